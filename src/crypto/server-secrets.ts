import { createECDH, createHmac, generateKeyPairSync, hkdfSync, randomBytes } from 'node:crypto';
import { keepServerSecret, serverSecret } from '../db/functions.ts';
import type { Queryable } from '../db/pool.ts';
import { decrypt, encrypt } from './aes-gcm.ts';
import { type KeyRing, openServerSecret, sealServerSecret } from './key-ring.ts';

/** The key pair by which push services know this server (RFC 8292): a point and a number of P-256, in base64url. */
export interface PushKeys {
  publicKey: string;
  privateKey: string;
}

/** How many private keys P-256 has, and one. */
const P256_ORDER = 0xffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551n;

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
  /** Every browser that is notified depends on it. */
  pushKeys: PushKeys;
  /** What stands for an account at an OpenID provider: nobody can make it of a name that they guess. */
  subjectHash(issuer: string, subject: string): Buffer;
}

/**
 * Reads the server's secrets, or makes them: of pods that start at once the first one's count. A worker reads what a pod
 * has made.
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
  const derive = (use: string, bytes = 32) =>
    Buffer.from(hkdfSync('sha256', Buffer.from(secret, 'base64'), '', `posthorn ${use}`, bytes));
  const recordKey = derive('records');
  const successorKey = derive('successors');
  const subjectKey = derive('openid subjects');
  return {
    cookieKey: derive('cookies').toString('base64url'),
    signingKey: signing_key,
    seal: (place, value) => encrypt(recordKey, place, Buffer.from(JSON.stringify(value))),
    open: (place, sealed) => JSON.parse(decrypt(recordKey, place, sealed).toString()),
    successorOf: (token) => createHmac('sha256', successorKey).update(token).digest('base64url'),
    pushKeys: makePushKeys(derive('push', 48)),
    subjectHash: (issuer, subject) =>
      createHmac('sha256', subjectKey)
        .update(JSON.stringify([issuer, subject]))
        .digest(),
  };
}

/** The key pair of a seed, which is half as long again as a key so that the remainder favours none (FIPS 186-5, A.2.1). */
function makePushKeys(seed: Buffer): PushKeys {
  const key = (BigInt(`0x${seed.toString('hex')}`) % (P256_ORDER - 1n)) + 1n;
  const privateKey = Buffer.from(key.toString(16).padStart(64, '0'), 'hex');
  const pair = createECDH('prime256v1');
  pair.setPrivateKey(privateKey);
  return { publicKey: pair.getPublicKey('base64url'), privateKey: privateKey.toString('base64url') };
}

function makeSecrets(): Buffer {
  const { privateKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' });
  const secrets = {
    secret: randomBytes(32).toString('base64'),
    signing_key: { ...privateKey.export({ format: 'jwk' }), use: 'sig', alg: 'ES256' },
  };
  return Buffer.from(JSON.stringify(secrets));
}
