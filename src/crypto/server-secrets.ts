import { createCipheriv, createDecipheriv, createHmac, generateKeyPairSync, hkdfSync, randomBytes } from 'node:crypto';
import { keepServerSecret, serverSecret } from '../db/functions.ts';
import type { Queryable } from '../db/pool.ts';
import { type KeyRing, openServerSecret, sealServerSecret } from './key-ring.ts';

const NONCE_BYTES = 12;
const TAG_BYTES = 16;

/** What all pods of a server share and no dump shows. */
export interface ServerSecrets {
  cookieKey: string;
  /** Signs what the OpenID part of the library insists on; nothing of ours is signed with it. */
  signingKey: object;
  /** Seals a record for one place: it opens nowhere else. */
  seal(place: string, value: object): Buffer;
  /** @throws Error if it was not sealed here for this place */
  open(place: string, sealed: Buffer): Record<string, unknown>;
  /** The one token that follows another: whoever asks again is told the same. */
  successorOf(token: string): string;
}

/**
 * Reads the server's secrets, or makes them: of pods that start at once the first one's count.
 *
 * @param openRing the ring as it is now, which may have a newer key than at start
 */
export async function loadServerSecrets(db: Queryable, openRing: () => Promise<KeyRing>): Promise<ServerSecrets> {
  let [row] = await serverSecret(db);
  if (!row) {
    await keepServerSecret(db, sealServerSecret(await openRing(), makeSecrets()));
    [row] = await serverSecret(db);
  }
  const { secret, signing_key } = JSON.parse(
    openServerSecret(await openRing(), row!.ringKeyId, row!.sealed).toString(),
  ) as { secret: string; signing_key: object };
  const derive = (use: string) =>
    Buffer.from(hkdfSync('sha256', Buffer.from(secret, 'base64'), '', `posthorn ${use}`, 32));
  const recordKey = derive('records');
  const successorKey = derive('successors');
  return {
    cookieKey: derive('cookies').toString('base64url'),
    signingKey: signing_key,
    seal(place, value) {
      const nonce = randomBytes(NONCE_BYTES);
      const cipher = createCipheriv('aes-256-gcm', recordKey, nonce).setAAD(Buffer.from(place));
      const text = Buffer.concat([cipher.update(JSON.stringify(value)), cipher.final()]);
      return Buffer.concat([nonce, cipher.getAuthTag(), text]);
    },
    open(place, sealed) {
      const nonce = sealed.subarray(0, NONCE_BYTES);
      const tag = sealed.subarray(NONCE_BYTES, NONCE_BYTES + TAG_BYTES);
      const decipher = createDecipheriv('aes-256-gcm', recordKey, nonce, { authTagLength: TAG_BYTES });
      decipher.setAAD(Buffer.from(place)).setAuthTag(tag);
      const text = Buffer.concat([decipher.update(sealed.subarray(NONCE_BYTES + TAG_BYTES)), decipher.final()]);
      return JSON.parse(text.toString());
    },
    successorOf: (token) => createHmac('sha256', successorKey).update(token).digest('base64url'),
  };
}

function makeSecrets(): Buffer {
  const { privateKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' });
  const secrets = {
    secret: randomBytes(32).toString('base64'),
    signing_key: { ...privateKey.export({ format: 'jwk' }), use: 'sig', alg: 'ES256' },
  };
  return Buffer.from(JSON.stringify(secrets));
}
