import { createHmac, generateKeyPairSync, hkdfSync, randomBytes } from 'node:crypto';
import { keepServerSecret, serverSecret } from '../db/functions.ts';
import type { Queryable } from '../db/pool.ts';
import { decrypt, encrypt } from './aes-gcm.ts';
import { type KeyRing, openServerSecret, sealServerSecret } from './key-ring.ts';

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
  /** What stands for an account at an OpenID provider: nobody can make it of a name that they guess. */
  subjectHash(issuer: string, subject: string): Buffer;
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
  const subjectKey = derive('openid subjects');
  return {
    cookieKey: derive('cookies').toString('base64url'),
    signingKey: signing_key,
    seal: (place, value) => encrypt(recordKey, place, Buffer.from(JSON.stringify(value))),
    open: (place, sealed) => JSON.parse(decrypt(recordKey, place, sealed).toString()),
    successorOf: (token) => createHmac('sha256', successorKey).update(token).digest('base64url'),
    subjectHash: (issuer, subject) =>
      createHmac('sha256', subjectKey)
        .update(JSON.stringify([issuer, subject]))
        .digest(),
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
