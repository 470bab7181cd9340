import { createCipheriv, createDecipheriv, type KeyObject } from 'node:crypto';
import { takeRandomBytes } from './random.ts';

const NONCE_BYTES = 12;
const TAG_BYTES = 16;
const HEADER_BYTES = NONCE_BYTES + TAG_BYTES;

/**
 * Encrypts with AES-256-GCM under a random nonce, which is safe for 2^32 texts under one key.
 *
 * @param bound what the result belongs to: it opens for nothing else
 * @returns nonce (12 bytes), tag (16), ciphertext
 */
export function encrypt(key: KeyObject | Buffer, bound: string, plaintext: Buffer): Buffer {
  const sealed = Buffer.allocUnsafe(HEADER_BYTES + plaintext.length);
  const nonce = sealed.subarray(0, NONCE_BYTES);
  takeRandomBytes(NONCE_BYTES).copy(nonce);
  const cipher = createCipheriv('aes-256-gcm', key, nonce).setAAD(Buffer.from(bound));
  cipher.update(plaintext).copy(sealed, HEADER_BYTES);
  cipher.final();
  cipher.getAuthTag().copy(sealed, NONCE_BYTES);
  return sealed;
}

/** @throws Error if it was altered, bound to something else or encrypted under another key */
export function decrypt(key: KeyObject | Buffer, bound: string, sealed: Buffer): Buffer {
  const nonce = sealed.subarray(0, NONCE_BYTES);
  const decipher = createDecipheriv('aes-256-gcm', key, nonce, { authTagLength: TAG_BYTES });
  decipher.setAAD(Buffer.from(bound)).setAuthTag(sealed.subarray(NONCE_BYTES, HEADER_BYTES));
  return Buffer.concat([decipher.update(sealed.subarray(HEADER_BYTES)), decipher.final()]);
}
