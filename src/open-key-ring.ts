import { existsSync } from 'node:fs';
import { join } from 'node:path';
import type { Config } from './config.ts';
import { checkKeyRing, type KeyRing, loadKeyRing, makeKeyRing, serializeKeyRing } from './crypto/key-ring.ts';
import { createPrivateFile } from './private-file.ts';

/** There is no usable key ring, or it is not the one that this database depends on. */
export class KeyRingError extends Error {
  override name = 'KeyRingError';
}

/** The key ring's file where POSTHORN_KEYRING does not say otherwise. */
export function keyRingFile(dataDirectory: string): string {
  return join(dataDirectory, 'keyring.json');
}

/** What posthorn_api.ring_keys answers: the keys that the database's owners depend on. */
export type KnownRingKeys = { ringKeyId: string; proof: Buffer }[];

/** Where the key ring is, as a setting of loadKeyRing: a path, or the ring itself. */
const placeOf = (config: Config): string => config.keyRing ?? keyRingFile(config.dataDirectory);

/** Whether there is a key ring, good or not. */
export function hasKeyRing(config: Config): boolean {
  return config.keyRing !== undefined || existsSync(keyRingFile(config.dataDirectory));
}

/** Reads the server's key ring, whatever the database depends on. */
export async function readKeyRing(config: Config): Promise<KeyRing> {
  return await loadKeyRing(placeOf(config));
}

/** The path of the key ring's file; undefined where the setting holds the ring itself. */
export function keyRingPath(config: Config): string | undefined {
  const place = placeOf(config);
  return place.trimStart().startsWith('{') ? undefined : place;
}

/**
 * Opens the server's key ring and holds it against the keys that the database depends on.
 *
 * @throws KeyRingError
 */
export async function openKeyRing(config: Config, known: KnownRingKeys): Promise<KeyRing> {
  const path = keyRingFile(config.dataDirectory);
  if (!hasKeyRing(config)) {
    const remedy =
      known.length > 0
        ? 'and this database depends on one. Restore it there'
        : 'yet. The first owner brings one: posthorn owner create --label NAME. Or copy one there';
    throw new KeyRingError(`There is no key ring at ${path} ${remedy}, or set POSTHORN_KEYRING.`);
  }
  try {
    const ring = await readKeyRing(config);
    checkKeyRing(ring, known);
    return ring;
  } catch (error) {
    throw new KeyRingError((error as Error).message, { cause: error });
  }
}

/**
 * The same, for whoever is about to make an owner: a database that depends on no ring yet gets a new one. Never one
 * that has owners, whose bodies only the lost ring opens.
 *
 * @returns the ring, and the path of its file if it was made just now
 * @throws KeyRingError
 */
export async function openOrMakeKeyRing(
  config: Config,
  known: KnownRingKeys,
): Promise<{ ring: KeyRing; madeAt: string | undefined }> {
  const path = keyRingFile(config.dataDirectory);
  if (config.keyRing !== undefined || existsSync(path) || known.length > 0) {
    return { ring: await openKeyRing(config, known), madeAt: undefined };
  }
  const ring = makeKeyRing();
  await createPrivateFile(path, serializeKeyRing(ring));
  return { ring, madeAt: path };
}
