import type { IncomingMessage } from 'node:http';
import { hashCredential, isDeviceCredential } from '../crypto/credentials.ts';
import { PosthornError, toPosthornError } from '../errors.ts';

/** No credential of ours is near this long. */
const MAX_TOKEN_LENGTH = 512;

export interface Bearer {
  /** SHA-256 of the token: all that the rest of the program sees of it. */
  credential: Buffer;
  isDevice: boolean;
}

/** The bearer token of a request, hashed; null where there is none. */
export function readBearer(request: IncomingMessage): Bearer | null {
  const token = /^Bearer +([A-Za-z0-9._~+/=-]+)$/i.exec(request.headers.authorization ?? '')?.[1];
  if (token === undefined || token.length > MAX_TOKEN_LENGTH) return null;
  return { credential: hashCredential(token), isDevice: isDeviceCredential(token) };
}

/** The contract tells a device by a code of its own that it must be paired again; anything else stays as it is. */
export function namedForDevice(thrown: unknown, bearer: Bearer): unknown {
  return bearer.isDevice && toPosthornError(thrown).code === 'unauthorized'
    ? new PosthornError('device_unauthorized')
    : thrown;
}

/** The challenge of RFC 9728: where a client learns how to get a token for `resource`. */
export function challenge(publicUrl: string, hadToken: boolean): string {
  const parts = [`resource_metadata="${publicUrl}/.well-known/oauth-protected-resource/mcp"`, 'scope="messaging"'];
  if (hadToken) parts.unshift('error="invalid_token"');
  return `Bearer ${parts.join(', ')}`;
}
