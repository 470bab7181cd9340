import { ownerKey } from '../db/functions.ts';
import type { Queryable } from '../db/pool.ts';
import { createRecentMap } from '../recent-map.ts';
import { type KeyRing, unwrapDataKey } from './key-ring.ts';
import { deriveOwnerKeys, type OwnerKeys } from './seal.ts';

/** Owners whose keys a process keeps unwrapped; the one used longest ago goes first. */
const CACHED_OWNERS = 10_000;

/** How long a ring that lacked a key is not read again, in milliseconds: no flood of calls may become one of reads. */
const REREAD_MS = 5_000;

export type OwnerKeysOf = (ownerId: string, credential: Buffer) => Promise<OwnerKeys>;

/** Makes an owner's keys of a wrapped data key. @throws Error if the ring does not hold the key that wrapped it */
export type UnwrapOwnerKeys = (ownerId: string, ringKeyId: string, wrappedKey: Buffer) => Promise<OwnerKeys>;

/**
 * Unwraps data keys with the ring, and remembers what it unwrapped: it took an eighth of the work of a delivery.
 *
 * @param ring the ring at start
 * @param readRing reads the ring anew: when a key was wrapped by one that came with a rotation since
 */
export function createUnwrapper(ring: KeyRing, readRing?: () => Promise<KeyRing>): UnwrapOwnerKeys {
  // keys that left the ring stay until the process ends: what was wrapped by one may be on its way from the database
  const keys = new Map(ring.keys);
  const unwrapped = createRecentMap<OwnerKeys>(CACHED_OWNERS);
  let readAgainAt = 0; // by a clock that nobody sets

  async function readNewKeys(wantedId: string): Promise<void> {
    if (!readRing || performance.now() < readAgainAt) return;
    for (const [id, key] of (await readRing()).keys) keys.set(id, key);
    if (!keys.has(wantedId)) readAgainAt = performance.now() + REREAD_MS;
  }

  return async (ownerId, ringKeyId, wrappedKey) => {
    const wrapping = `${ownerId} ${ringKeyId} ${wrappedKey.toString('base64')}`;
    const known = unwrapped.get(wrapping);
    if (known) return known;
    if (!keys.has(ringKeyId)) await readNewKeys(ringKeyId);
    const made = deriveOwnerKeys(ownerId, unwrapDataKey({ ...ring, keys }, ownerId, ringKeyId, wrappedKey));
    unwrapped.set(wrapping, made);
    return made;
  };
}

/**
 * Unwraps owners' data keys and keeps them in memory. A credential of the owner is needed to read the wrapped key, so
 * that a pod holds no key of an owner who never called it.
 *
 * @param ring the ring at start
 * @param readRing reads the ring anew
 */
export function createOwnerKeys(db: Queryable, ring: KeyRing, readRing?: () => Promise<KeyRing>): OwnerKeysOf {
  const cache = createRecentMap<Promise<OwnerKeys>>(CACHED_OWNERS);
  const unwrap = createUnwrapper(ring, readRing);

  async function load(ownerId: string, credential: Buffer): Promise<OwnerKeys> {
    const [row] = await ownerKey(db, { credential });
    if (row?.ownerId !== ownerId)
      throw new Error('The credential belongs to another owner than the key that was asked for.');
    return await unwrap(ownerId, row.ringKeyId, row.wrappedKey);
  }

  return (ownerId, credential) => {
    const cached = cache.get(ownerId);
    if (cached) return cached;
    const loading = load(ownerId, credential);
    cache.set(ownerId, loading);
    loading.catch(() => cache.delete(ownerId));
    return loading;
  };
}
