import { createHash, generateKeyPairSync, type KeyObject, randomBytes, sign } from 'node:crypto';
import { isoCBOR } from '@simplewebauthn/server/helpers';

// An authenticator and the browser before it, by hand, so that each part of an answer can be wrong.

/** The part of WebAuthn's options that an authenticator looks at. */
interface Question {
  challenge: string;
  user?: { id: string };
}

interface Changes {
  origin?: string;
  rpId?: string;
  challenge?: string;
  /** What the authenticator says it has counted. */
  signCount?: number;
  /** 1: somebody was there; 4: they were verified. */
  flags?: number;
  /** Another passkey's credential id, or user handle. */
  id?: string;
  handle?: string;
  /** Another passkey's key. */
  key?: KeyObject;
}

export interface SoftPasskey {
  id: string;
  handle: string;
  key: KeyObject;
  /** What navigator.credentials.create answered. */
  made: string;
  /** What navigator.credentials.get answers to a question. */
  answer(question: Question, changes?: Changes): string;
}

const PRESENT_AND_VERIFIED = 5;
const HAS_CREDENTIAL = 0x40;

const sha256 = (data: string | Buffer) => createHash('sha256').update(data).digest();

function authenticatorData(rpId: string, flags: number, signCount: number): Buffer {
  const count = Buffer.alloc(4);
  count.writeUInt32BE(signCount);
  return Buffer.concat([sha256(rpId), Buffer.from([flags]), count]);
}

function clientData(type: string, challenge: string, origin: string): Buffer {
  return Buffer.from(JSON.stringify({ type, challenge, origin, crossOrigin: false }));
}

/** Makes a passkey as an authenticator does that was asked for one on a page of `origin`. */
export function makeSoftPasskey(origin: string, question: Question, changes: Changes = {}): SoftPasskey {
  const { publicKey, privateKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' });
  const { x, y } = publicKey.export({ format: 'jwk' });
  const rpId = changes.rpId ?? new URL(origin).hostname;
  const idBytes = changes.id === undefined ? randomBytes(32) : Buffer.from(changes.id, 'base64url');
  const id = idBytes.toString('base64url');
  const coordinate = (text: string | undefined) => new Uint8Array(Buffer.from(text!, 'base64url'));
  const cose = new Map<number, number | Uint8Array>([
    [1, 2],
    [3, -7],
    [-1, 1],
    [-2, coordinate(x)],
    [-3, coordinate(y)],
  ]);
  const length = Buffer.alloc(2);
  length.writeUInt16BE(idBytes.length);
  const authData = Buffer.concat([
    authenticatorData(rpId, (changes.flags ?? PRESENT_AND_VERIFIED) | HAS_CREDENTIAL, changes.signCount ?? 0),
    Buffer.alloc(16),
    length,
    idBytes,
    isoCBOR.encode(cose as never),
  ]);
  const attestation = new Map<string, unknown>([
    ['fmt', 'none'],
    ['attStmt', new Map()],
    ['authData', new Uint8Array(authData)],
  ]);
  const created = clientData('webauthn.create', changes.challenge ?? question.challenge, changes.origin ?? origin);
  const handle = question.user!.id;
  return {
    id,
    handle,
    key: privateKey,
    made: JSON.stringify({
      id,
      rawId: id,
      type: 'public-key',
      response: {
        clientDataJSON: created.toString('base64url'),
        attestationObject: Buffer.from(isoCBOR.encode(attestation as never)).toString('base64url'),
      },
    }),
    answer({ challenge }, other = {}) {
      const signed = authenticatorData(other.rpId ?? rpId, other.flags ?? PRESENT_AND_VERIFIED, other.signCount ?? 0);
      const asked = clientData('webauthn.get', other.challenge ?? challenge, other.origin ?? origin);
      const signature = sign('sha256', Buffer.concat([signed, sha256(asked)]), other.key ?? privateKey);
      return JSON.stringify({
        id: other.id ?? id,
        rawId: other.id ?? id,
        type: 'public-key',
        response: {
          clientDataJSON: asked.toString('base64url'),
          authenticatorData: signed.toString('base64url'),
          signature: signature.toString('base64url'),
          userHandle: other.handle ?? handle,
        },
      });
    },
  };
}
