import { randomBytes } from 'node:crypto';
import { makeId } from './crypto/ids.ts';
import { type KeyRing, makeRingProof, wrapDataKey } from './crypto/key-ring.ts';
import { addRingKey, createOwner } from './db/functions.ts';
import type { Queryable } from './db/pool.ts';

/**
 * Makes an owner with a data key of their own, wrapped by the ring's current key. The database learns of the ring's key
 * first, with a proof by which a later start tells the right ring from another.
 *
 * @param db acts as the person at the server
 * @returns the owner's id
 */
export async function makeOwner(db: Queryable, ring: KeyRing, label: string): Promise<string> {
  const id = makeId();
  const { ringKeyId, wrappedKey } = wrapDataKey(ring, id, randomBytes(32));
  await addRingKey(db, { ringKeyId, proof: makeRingProof(ring, ringKeyId) });
  return await createOwner(db, { id, label, ringKeyId, wrappedKey });
}
