import { ownerKey } from '../db/functions.ts';
import type { Queryable } from '../db/pool.ts';
import { type KeyRing, unwrapDataKey } from './key-ring.ts';
import { deriveOwnerKeys, type OwnerKeys } from './seal.ts';

/** Owners whose keys a pod keeps unwrapped; the one used longest ago goes first. */
const CACHED_OWNERS = 10_000;

export type OwnerKeysOf = (ownerId: string, credential: Buffer) => Promise<OwnerKeys>;

/**
 * Unwraps owners' data keys with the ring and keeps them in memory. A credential of the owner is needed to read the
 * wrapped key, so that a pod holds no key of an owner who never called it.
 */
export function createOwnerKeys(db: Queryable, ring: KeyRing): OwnerKeysOf {
  const cache = new Map<string, Promise<OwnerKeys>>();

  async function load(ownerId: string, credential: Buffer): Promise<OwnerKeys> {
    const [row] = await ownerKey(db, { credential });
    if (row?.ownerId !== ownerId)
      throw new Error('The credential belongs to another owner than the key that was asked for.');
    return deriveOwnerKeys(ownerId, unwrapDataKey(ring, ownerId, row.ringKeyId, row.wrappedKey));
  }

  return (ownerId, credential) => {
    const cached = cache.get(ownerId);
    if (cached) {
      cache.delete(ownerId);
      cache.set(ownerId, cached);
      return cached;
    }
    const loading = load(ownerId, credential);
    cache.set(ownerId, loading);
    loading.catch(() => cache.delete(ownerId));
    const oldest = cache.size > CACHED_OWNERS ? cache.keys().next().value : undefined;
    if (oldest !== undefined) cache.delete(oldest);
    return loading;
  };
}
