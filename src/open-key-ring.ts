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

/**
 * Opens the server's key ring and holds it against the keys that the database's owners depend on. A database that
 * depends on none may get a new ring; never one that has owners, whose bodies only the lost ring opens.
 *
 * @param known what posthorn_api.ring_keys answers
 * @returns the ring, and the path of its file if it was made just now
 * @throws KeyRingError
 */
export async function openKeyRing(
  config: Config,
  known: { ringKeyId: string; proof: Buffer }[],
): Promise<{ ring: KeyRing; madeAt: string | undefined }> {
  const path = keyRingFile(config.dataDirectory);
  if (config.keyRing === undefined && !existsSync(path)) {
    if (known.length > 0) {
      throw new KeyRingError(
        `There is no key ring at ${path}, and this database depends on one. Restore it there, or set POSTHORN_KEYRING.`,
      );
    }
    const ring = makeKeyRing();
    await createPrivateFile(path, serializeKeyRing(ring));
    return { ring, madeAt: path };
  }
  try {
    const ring = await loadKeyRing(config.keyRing ?? path);
    checkKeyRing(ring, known);
    return { ring, madeAt: undefined };
  } catch (error) {
    throw new KeyRingError((error as Error).message, { cause: error });
  }
}
