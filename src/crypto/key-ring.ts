import { randomBytes } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { z } from 'zod';
import { decrypt, encrypt } from './aes-gcm.ts';

/**
 * The server's key-encryption keys. They wrap each owner's data key and never touch a body. The ring lives outside
 * the database and its backups: losing it loses the bodies, never the receipts.
 */
export interface KeyRing {
  currentId: string;
  keys: Map<string, Buffer>;
}

const RingFile = z.strictObject({
  current: z.string().min(1).max(64),
  keys: z.record(
    z.string().min(1).max(64),
    z.base64().refine((key) => Buffer.from(key, 'base64').length === 32, 'a key has 32 bytes'),
  ),
});

const PROOF_TEXT = 'posthorn key ring';

/** A ring with one new key. */
export function makeKeyRing(): KeyRing {
  return withNewKey(new Map());
}

/** A ring of these keys and a new one, which is its current one. */
export function withNewKey(keys: ReadonlyMap<string, Buffer>): KeyRing {
  const id = `k${new Date().toISOString().slice(0, 10).replaceAll('-', '')}-${randomBytes(3).toString('hex')}`;
  return { currentId: id, keys: new Map([...keys, [id, randomBytes(32)]]) };
}

/**
 * Reads a ring from its JSON: `{"current": id, "keys": {id: base64 of 32 bytes}}`.
 *
 * @throws Error saying what is wrong, without showing a key
 */
export function parseKeyRing(text: string, where: string): KeyRing {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    throw new Error(`The key ring in ${where} is not JSON.`);
  }
  const parsed = RingFile.safeParse(value);
  if (!parsed.success)
    throw new Error(`The key ring in ${where} must look like {"current": "id", "keys": {"id": "base64 of 32 bytes"}}.`);
  const keys = new Map(Object.entries(parsed.data.keys).map(([id, key]) => [id, Buffer.from(key, 'base64')]));
  if (!keys.has(parsed.data.current))
    throw new Error(`The key ring in ${where} names "${parsed.data.current}" as current but does not hold it.`);
  return { currentId: parsed.data.current, keys };
}

/** The ring's JSON. */
export function serializeKeyRing(ring: KeyRing): string {
  const keys = Object.fromEntries([...ring.keys].map(([id, key]) => [id, key.toString('base64')]));
  return `${JSON.stringify({ current: ring.currentId, keys }, null, 2)}\n`;
}

/**
 * Loads the ring of a setting: JSON itself, or the path of a file that holds it.
 *
 * @throws Error if there is no readable ring
 */
export async function loadKeyRing(setting: string): Promise<KeyRing> {
  if (setting.trimStart().startsWith('{')) return parseKeyRing(setting, 'POSTHORN_KEYRING');
  const text = await readFile(setting, 'utf8').catch((error: Error) => {
    throw new Error(`The key ring cannot be read: ${error.message}`);
  });
  return parseKeyRing(text, setting);
}

/** Wraps an owner's data key with the current key; the owner's id is bound to it. */
export function wrapDataKey(
  ring: KeyRing,
  ownerId: string,
  dataKey: Buffer,
): { ringKeyId: string; wrappedKey: Buffer } {
  return { ringKeyId: ring.currentId, wrappedKey: encrypt(ringKey(ring, ring.currentId), `owner|${ownerId}`, dataKey) };
}

/** @throws Error if the ring lacks the key, or the key is not the one that wrapped it */
export function unwrapDataKey(ring: KeyRing, ownerId: string, ringKeyId: string, wrappedKey: Buffer): Buffer {
  return decrypt(ringKey(ring, ringKeyId), `owner|${ownerId}`, wrappedKey);
}

/** Seals the server's own secrets with the current key. */
export function sealServerSecret(ring: KeyRing, secret: Buffer): { ringKeyId: string; sealed: Buffer } {
  return { ringKeyId: ring.currentId, sealed: encrypt(ringKey(ring, ring.currentId), 'server', secret) };
}

/** @throws Error if the ring lacks the key, or the key is not the one that sealed them */
export function openServerSecret(ring: KeyRing, ringKeyId: string, sealed: Buffer): Buffer {
  return decrypt(ringKey(ring, ringKeyId), 'server', sealed);
}

/** A known text under a key, by which a later start tells the right ring from another. */
export function makeRingProof(ring: KeyRing, ringKeyId: string): Buffer {
  return encrypt(ringKey(ring, ringKeyId), `proof|${ringKeyId}`, Buffer.from(PROOF_TEXT));
}

/**
 * Holds the ring against what the database says was used.
 *
 * @throws Error naming the key that is missing or different
 */
export function checkKeyRing(ring: KeyRing, known: { ringKeyId: string; proof: Buffer }[]): void {
  for (const { ringKeyId, proof } of known) {
    if (!ring.keys.has(ringKeyId))
      throw new Error(
        `The key ring lacks key "${ringKeyId}", which this database's owners depend on. Restore the ring that belongs to it.`,
      );
    try {
      decrypt(ringKey(ring, ringKeyId), `proof|${ringKeyId}`, proof);
    } catch {
      throw new Error(
        `Key "${ringKeyId}" of the key ring is not the one that this database's owners depend on. Restore the ring that belongs to it.`,
      );
    }
  }
}

function ringKey(ring: KeyRing, id: string): Buffer {
  const key = ring.keys.get(id);
  if (!key) throw new Error(`The key ring lacks key "${id}".`);
  return key;
}
