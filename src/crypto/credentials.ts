import { createHash, randomBytes } from 'node:crypto';

const PREFIXES = { device: 'phd_', child: 'phc_', service: 'phs_', session: 'phw_', link: 'phl_' } as const;

/** A new credential of 256 random bits, shown once, and the hash that the database keeps. */
export function makeCredential(kind: keyof typeof PREFIXES): { token: string; hash: Buffer } {
  const token = PREFIXES[kind] + randomBytes(32).toString('base64url');
  return { token, hash: hashCredential(token) };
}

/** What is presented to the database in place of a credential. */
export function hashCredential(token: string): Buffer {
  return createHash('sha256').update(token).digest();
}

/** Whether a credential says that it is a paired device's, known or not. */
export function isDeviceCredential(token: string): boolean {
  return token.startsWith(PREFIXES.device);
}
