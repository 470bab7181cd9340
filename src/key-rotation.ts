import { realpath, stat } from 'node:fs/promises';
import type { Config } from './config.ts';
import {
  type KeyRing,
  makeRingProof,
  openServerSecret,
  sealServerSecret,
  serializeKeyRing,
  unwrapDataKey,
  withNewKey,
  wrapDataKey,
} from './crypto/key-ring.ts';
import {
  addRingKey,
  forgetRingKeys,
  listRingKeys,
  ownerKeysToWrap,
  ringKeys,
  serverSecretToWrap,
  wrapOwnerKeys,
  wrapServerSecret,
} from './db/functions.ts';
import type { Queryable } from './db/pool.ts';
import { KeyRingError, keyRingPath, openKeyRing } from './open-key-ring.ts';
import { writePrivateFile } from './private-file.ts';

/** One of these acts at a time; any number that no other lock of the database has will do. */
const ROTATION_LOCK = 7_661_674_680;

/** Owners in one transaction. */
const BATCH_SIZE = 100;

/** Runs something as the person at the server, in a transaction of its own. */
export type Act = <T>(work: (db: Queryable) => Promise<T>) => Promise<T>;

/**
 * Makes a key of the ring the one that every owner's data key is wrapped by: a new one, or, where an earlier rotation
 * has not ended, the current one. The key is in the ring's file before the database hears of it, so that a process that
 * meets it there finds it. Killed anywhere, it goes on at the next call.
 *
 * @param onProgress is told after each batch how many owners' keys were wrapped anew, of how many
 * @returns the ring's current key, and whether it is a new one
 * @throws KeyRingError if the ring is not the database's, cannot be written, or was changed meanwhile
 */
export async function rotateKeys(
  config: Config,
  act: Act,
  onProgress: (progress: { wrapped: number; owners: number }) => void,
): Promise<{ ringKeyId: string; isNew: boolean; wrapped: number }> {
  const { ringKeyId, isNew, owners } = await act((db) => prepareRing(config, db));
  let wrapped = 0;
  do {
    for (let batch = await act(wrapBatch); batch > 0; batch = await act(wrapBatch)) {
      wrapped += batch;
      onProgress({ wrapped, owners });
    }
    await act(wrapSecret);
  } while (!(await forgetOthers(act, ringKeyId)));
  return { ringKeyId, isNew, wrapped };

  async function wrapSecret(db: Queryable): Promise<void> {
    const ring = await lockRing(config, db);
    if (ring.currentId !== ringKeyId) return; // another rotation does it
    const [row] = await serverSecretToWrap(db, { ringKeyId });
    if (!row) return;
    const { sealed } = sealServerSecret(ring, openServerSecret(ring, row.ringKeyId, row.sealed));
    await wrapServerSecret(db, { fromRingKeyId: row.ringKeyId, ringKeyId, sealed });
  }

  async function wrapBatch(db: Queryable): Promise<number> {
    const ring = await lockRing(config, db);
    if (ring.currentId !== ringKeyId) throw new KeyRingError('Another rotation has begun. It does the rest.');
    const rows = await ownerKeysToWrap(db, { ringKeyId, limit: BATCH_SIZE });
    const keys = rows.map((row) => {
      const dataKey = unwrapDataKey(ring, row.ownerId, row.ringKeyId, row.wrappedKey);
      return wrapDataKey(ring, row.ownerId, dataKey).wrappedKey;
    });
    if (rows.length === 0) return 0;
    return await wrapOwnerKeys(db, {
      ownerIds: rows.map(({ ownerId }) => ownerId),
      fromRingKeyIds: rows.map((row) => row.ringKeyId),
      ringKeyId,
      wrappedKeys: keys,
    });
  }
}

async function prepareRing(
  config: Config,
  db: Queryable,
): Promise<{ ringKeyId: string; isNew: boolean; owners: number }> {
  const ring = await lockRing(config, db);
  const used = await listRingKeys(db);
  const countOwners = (keys: typeof used) => keys.reduce((sum, { owners }) => sum + owners, 0);
  const toMove = countOwners(used.filter((key) => key.ringKeyId !== ring.currentId));
  const next = toMove > 0 ? ring : withNewKey(ring.keys);
  if (toMove === 0) await replaceRing(config, next);
  const ringKeyId = next.currentId;
  await addRingKey(db, { ringKeyId, proof: makeRingProof(next, ringKeyId) });
  return { ringKeyId, isNew: toMove === 0, owners: toMove > 0 ? toMove : countOwners(used) };
}

/** The ring, which no other rotation changes until this transaction ends. */
async function lockRing(config: Config, db: Queryable): Promise<KeyRing> {
  await db.query('select pg_advisory_xact_lock($1)', [ROTATION_LOCK]);
  return await openKeyRing(config, await ringKeys(db));
}

async function replaceRing(config: Config, ring: KeyRing): Promise<void> {
  const path = keyRingPath(config);
  if (path === undefined) {
    throw new KeyRingError(
      'POSTHORN_KEYRING holds the ring itself, which cannot be changed from here. Add a new key to it ' +
        '(a name and, in base64, 32 random bytes: openssl rand -base64 32), keep the old ones, make the new one current, ' +
        'give that ring to every process that serves, and run this again.',
    );
  }
  // through a link, or it would be replaced by a file
  const file = await realpath(path);
  const { uid } = await stat(file);
  if (process.getuid !== undefined && process.getuid() !== uid) {
    throw new KeyRingError(`${file} belongs to another user, and must go on to. Run this as that user.`);
  }
  await writePrivateFile(file, serializeKeyRing(ring));
}

/** @returns false if an owner came meanwhile who was given a key of the others */
async function forgetOthers(act: Act, ringKeyId: string): Promise<boolean> {
  try {
    await act((db) => forgetRingKeys(db, { except: ringKeyId }));
  } catch (error) {
    // foreign_key_violation: it was not there yet when we looked
    if ((error as { code?: string }).code !== '23503') throw error;
    return false;
  }
  return await act(async (db) => (await ownerKeysToWrap(db, { ringKeyId, limit: 1 })).length === 0);
}
