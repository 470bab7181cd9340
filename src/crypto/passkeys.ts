import { randomBytes } from 'node:crypto';
import { isIP } from 'node:net';
import {
  type AuthenticationResponseJSON,
  generateAuthenticationOptions,
  generateRegistrationOptions,
  type RegistrationResponseJSON,
  verifyAuthenticationResponse,
  verifyRegistrationResponse,
} from '@simplewebauthn/server';
import { decodeAttestationObject, decodeClientDataJSON, isoBase64URL, isoCBOR } from '@simplewebauthn/server/helpers';
import { z } from 'zod';
import { hashCredential } from './credentials.ts';

// Passkeys as browsers and authenticators speak of them. Whose a passkey is, the database knows alone.

/** How long a person may look for their authenticator, in milliseconds; the database remembers the challenge as long. */
const TIMEOUT_MS = 5 * 60_000;

/** EdDSA, ES256 and RS256: what authenticators have. */
const ALGORITHMS = [-8, -7, -257];

/** Where a server's passkeys are good. */
export interface PasskeyPlace {
  rpId: string;
  origin: string;
}

/**
 * Where passkeys of a server at this address are good. They belong to a name: at an address (`is_address`) or over plain
 * HTTP, except on `localhost`, (`is_plain`) browsers make none.
 */
export function passkeyPlace(publicUrl: string): PasskeyPlace | 'is_address' | 'is_plain' {
  const { protocol, hostname, origin } = new URL(publicUrl);
  if (isIP(hostname.replace(/^\[|\]$/g, ''))) return 'is_address';
  if (protocol !== 'https:' && !/(^|\.)localhost$/.test(hostname)) return 'is_plain';
  return { rpId: hostname, origin };
}

/** What a browser is asked for: its JSON, and the hashes that the database remembers. */
export interface PasskeyQuestion {
  challengeHash: Buffer;
  options: object;
}

/** Asks for a passkey of whoever has one here. */
export async function askForPasskey({ rpId }: PasskeyPlace): Promise<PasskeyQuestion> {
  const options = await generateAuthenticationOptions({
    rpID: rpId,
    challenge: new Uint8Array(randomBytes(32)),
    timeout: TIMEOUT_MS,
    userVerification: 'required',
  });
  return { challengeHash: hashCredential(options.challenge), options };
}

/** A challenge and a user handle for a passkey to be, by hash for the database. */
export interface NewPasskey {
  challenge: Buffer;
  challengeHash: Buffer;
  handle: Buffer;
  handleHash: Buffer;
}

export function beginNewPasskey(): NewPasskey {
  const [challenge, handle] = [randomBytes(32), randomBytes(32)];
  return {
    challenge,
    challengeHash: hashCredential(challenge.toString('base64url')),
    handle,
    handleHash: hashCredential(handle.toString('base64url')),
  };
}

/**
 * Asks for a new passkey.
 *
 * @param label whose it is, for the authenticator's list
 * @param known credentials that must not be made twice
 */
export async function askForNewPasskey(
  { rpId }: PasskeyPlace,
  { challenge, handle }: NewPasskey,
  label: string,
  known: Buffer[],
): Promise<object> {
  return await generateRegistrationOptions({
    rpName: 'Posthorn',
    rpID: rpId,
    userName: label,
    userDisplayName: label,
    userID: new Uint8Array(handle),
    challenge: new Uint8Array(challenge),
    timeout: TIMEOUT_MS,
    attestationType: 'none',
    excludeCredentials: known.map((id) => ({ id: id.toString('base64url') })),
    authenticatorSelection: { residentKey: 'required', userVerification: 'required' },
    supportedAlgorithmIDs: ALGORITHMS,
  });
}

const base64url = (length: number) =>
  z
    .string()
    .max(length)
    .regex(/^[\w-]+$/);

const Registration = z.object({
  id: base64url(1_400),
  rawId: base64url(1_400),
  type: z.literal('public-key'),
  response: z.object({ clientDataJSON: base64url(8_000), attestationObject: base64url(40_000) }),
});

const Assertion = z.object({
  id: base64url(1_400),
  rawId: base64url(1_400),
  type: z.literal('public-key'),
  response: z.object({
    clientDataJSON: base64url(8_000),
    authenticatorData: base64url(8_000),
    signature: base64url(2_000),
    userHandle: base64url(100),
  }),
});

/** What a browser sent of a passkey, read and not yet believed. */
export interface PasskeyAnswer {
  challengeHash: Buffer;
  handleHash: Buffer;
  credentialId: Buffer;
  /** Checks the signature, and everything that it covers but the challenge. */
  check(place: PasskeyPlace, publicKey: Buffer): Promise<{ isValid: boolean; signCount: number }>;
}

/** A passkey that was made just now: its first answer was checked. */
export interface MadePasskey {
  challengeHash: Buffer;
  credentialId: Buffer;
  publicKey: Buffer;
  signCount: number;
}

/** Reads the answer of a passkey; null for what is none. */
export function readPasskeyAnswer(text: string): PasskeyAnswer | null {
  const answer = readJson(text, Assertion);
  const challenge = answer && challengeOf(answer.response.clientDataJSON);
  if (!challenge) return null;
  const { id, response } = answer;
  return {
    challengeHash: hashCredential(challenge),
    handleHash: hashCredential(response.userHandle),
    credentialId: Buffer.from(id, 'base64url'),
    async check({ rpId, origin }, publicKey) {
      try {
        const { verified, authenticationInfo } = await verifyAuthenticationResponse({
          response: { ...answer, clientExtensionResults: {} } satisfies AuthenticationResponseJSON,
          expectedChallenge: challenge,
          expectedOrigin: origin,
          expectedRPID: rpId,
          requireUserVerification: true,
          // the count is the database's to judge, under its lock: here any is ahead
          credential: { id, publicKey: new Uint8Array(publicKey), counter: 0 },
        });
        return { isValid: verified, signCount: authenticationInfo.newCounter };
      } catch {
        return { isValid: false, signCount: 0 };
      }
    },
  };
}

/** Reads and checks the first answer of a new passkey; null for what is none, or not good at this place. */
export async function checkNewPasskey(place: PasskeyPlace, text: string): Promise<MadePasskey | null> {
  const answer = readJson(text, Registration);
  const challenge = answer && challengeOf(answer.response.clientDataJSON);
  if (!challenge) return null;
  try {
    const { clientDataJSON, attestationObject } = answer.response;
    const response = { clientDataJSON, attestationObject: withoutMaker(attestationObject) };
    const { verified, registrationInfo } = await verifyRegistrationResponse({
      response: { ...answer, response, clientExtensionResults: {} } satisfies RegistrationResponseJSON,
      expectedChallenge: challenge,
      expectedOrigin: place.origin,
      expectedRPID: place.rpId,
      requireUserVerification: true,
      supportedAlgorithmIDs: ALGORITHMS,
    });
    if (!verified || !registrationInfo) return null;
    const { id, publicKey, counter } = registrationInfo.credential;
    return {
      challengeHash: hashCredential(challenge),
      credentialId: Buffer.from(id, 'base64url'),
      publicKey: Buffer.from(publicKey),
      signCount: counter,
    };
  } catch {
    return null;
  }
}

/**
 * An attestation without what it says of the authenticator's maker. We did not ask for it, and to check it the library
 * would fetch lists of revoked certificates from wherever the certificates say.
 */
function withoutMaker(attestationObject: string): string {
  const authData = decodeAttestationObject(isoBase64URL.toBuffer(attestationObject)).get('authData');
  const plain = new Map<string, unknown>([
    ['fmt', 'none'],
    ['attStmt', new Map()],
    ['authData', authData],
  ]);
  return isoBase64URL.fromBuffer(isoCBOR.encode(plain as never) as never);
}

function readJson<Shape extends z.ZodObject>(text: string, shape: Shape): z.output<Shape> | null {
  try {
    return shape.safeParse(JSON.parse(text)).data ?? null;
  } catch {
    return null;
  }
}

function challengeOf(clientDataJSON: string): string | null {
  try {
    const { challenge } = decodeClientDataJSON(clientDataJSON);
    return typeof challenge === 'string' ? challenge : null;
  } catch {
    return null;
  }
}
