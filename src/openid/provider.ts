import { createHmac, randomBytes } from 'node:crypto';
import * as client from 'openid-client';
import { type AllowList, parseAllowList } from '../net/allow-list.ts';
import type { Egress } from '../net/egress.ts';

/** The operator's OpenID provider, from the settings. */
export interface OpenIdSettings {
  issuer: string;
  clientId: string;
  /** None for a public client. */
  clientSecret: string | undefined;
  /** What the buttons say. */
  name: string;
}

/** Who signed in at the provider. A subject is the provider's own name for them, for ever. */
export interface OpenIdAccount {
  issuer: string;
  subject: string;
  /** What the provider calls them, to be shown and to decide nothing. */
  label: string;
}

/** The provider's answer is worth nothing, or there is none. What it said is in here, for nobody but the log. */
export class OpenIdError extends Error {
  override name = 'OpenIdError';
  readonly kind: 'refused' | 'unreachable';

  constructor(kind: OpenIdError['kind'], cause: unknown) {
    super(kind === 'refused' ? 'The answer of the OpenID provider is not valid.' : 'The OpenID provider is away.');
    this.kind = kind;
    this.cause = cause;
  }
}

export interface OpenIdProvider {
  name: string;
  /**
   * The address that a browser goes to.
   *
   * @param secret of this browser and this sign-in; state, nonce and PKCE's verifier all follow from it
   * @throws OpenIdError
   */
  begin(secret: string): Promise<string>;
  /**
   * Exchanges what the browser came back with.
   *
   * @param query of the address that it came back to, with its question mark
   * @throws OpenIdError
   */
  finish(secret: string, query: string): Promise<OpenIdAccount>;
}

/** One request to the provider, in milliseconds: a person waits. */
const DEADLINE_MS = 8_000;
const MAX_BYTES = 262_144;

/** A new secret of a browser that goes to the provider, and what it goes for. The database remembers that, too. */
export const makeOpenIdSecret = (purpose: 'enter' | 'connect') => `${purpose}.${randomBytes(32).toString('base64url')}`;

/** What must come back with the browser. */
export const stateOf = (secret: string) => derive(secret, 'state');

function derive(secret: string, use: 'state' | 'nonce' | 'verifier'): string {
  return createHmac('sha256', secret).update(use).digest('base64url');
}

/** Where the provider may be besides the open internet: at the address that the operator named, and no other. */
export function allowIssuer(issuer: string): AllowList {
  const { protocol, hostname, port } = new URL(issuer);
  return parseAllowList(`${hostname}:${port || (protocol === 'https:' ? 443 : 80)}`);
}

/**
 * Speaks with the provider, which is asked for what it can do at the first sign-in.
 *
 * @param redirectUri where it sends browsers back to; known once the server listens
 */
export function createOpenIdProvider(
  { issuer, clientId, clientSecret, name }: OpenIdSettings,
  redirectUri: () => string,
  egress: Egress,
): OpenIdProvider {
  let discovering: Promise<client.Configuration> | undefined;

  function discover(): Promise<client.Configuration> {
    discovering ??= client.discovery(
      new URL(issuer),
      clientId,
      undefined,
      clientSecret === undefined ? client.None() : client.ClientSecretPost(clientSecret),
      {
        [client.customFetch]: throughEgress(egress),
        execute: [
          client.enableNonRepudiationChecks,
          ...(issuer.startsWith('http:') ? [client.allowInsecureRequests] : []),
        ],
      },
    );
    discovering.catch(() => {
      discovering = undefined;
    });
    return discovering;
  }

  return {
    name,
    async begin(secret) {
      const config = await discover().catch((error) => {
        throw new OpenIdError('unreachable', error);
      });
      const url = client.buildAuthorizationUrl(config, {
        redirect_uri: redirectUri(),
        scope: 'openid profile',
        state: stateOf(secret),
        nonce: derive(secret, 'nonce'),
        code_challenge: await client.calculatePKCECodeChallenge(derive(secret, 'verifier')),
        code_challenge_method: 'S256',
      });
      return url.href;
    },
    async finish(secret, query) {
      const config = await discover().catch((error) => {
        throw new OpenIdError('unreachable', error);
      });
      const tokens = await client
        .authorizationCodeGrant(config, new URL(query, redirectUri()), {
          expectedState: stateOf(secret),
          expectedNonce: derive(secret, 'nonce'),
          pkceCodeVerifier: derive(secret, 'verifier'),
          idTokenExpected: true,
        })
        .catch((error) => {
          throw new OpenIdError('refused', error);
        });
      const { iss, sub, preferred_username, name: fullName } = tokens.claims()!;
      return { issuer: iss, subject: sub, label: labelOf([preferred_username, fullName, sub]) };
    },
  };
}

/** The first that says anything, in one line of up to 64 characters. */
function labelOf(names: unknown[]): string {
  const lines = names
    .filter((each) => typeof each === 'string')
    .map((each) => each.replace(/[\p{Cc}\p{Zl}\p{Zp}]+/gu, ' ').trim());
  return [...(lines.find((line) => line !== '') ?? 'Account')].slice(0, 64).join('');
}

/** What the library asks goes through the one place that opens outbound connections. */
function throughEgress(egress: Egress): client.CustomFetch {
  return async (url, { method, headers, body }) => {
    const answer = await egress.request(url, {
      method: method === 'POST' ? 'POST' : 'GET',
      headers: { ...headers, 'accept-encoding': 'identity' },
      ...(body === undefined || body === null ? {} : { body: String(body) }),
      deadlineMs: DEADLINE_MS,
      maxBodyBytes: MAX_BYTES,
    });
    return new Response(new Uint8Array(answer.body!), { status: answer.status, headers: answer.headers });
  };
}
