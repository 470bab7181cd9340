import { generateKeyPairSync, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import Provider from 'oidc-provider';
import type { OpenIdSettings } from '../../src/openid/provider.ts';

export interface TestOpenIdProvider {
  settings: OpenIdSettings;
  /** Where it may send browsers back to. */
  register(redirectUri: string): void;
  /** Who signs in next, without being asked. */
  account: string;
  /** The paths that it was asked for, but by browsers. */
  asked: string[];
  close(): Promise<void>;
}

const CLIENT_ID = 'posthorn';

/** A real OpenID provider on this machine, at which one person after the other is signed in already. */
export async function startOpenIdProvider(name = 'Corp'): Promise<TestOpenIdProvider> {
  const clientSecret = randomBytes(32).toString('hex');
  let answer: (request: IncomingMessage, response: ServerResponse) => void = () => {};
  const server = createServer((request, response) => answer(request, response)).listen(0, '127.0.0.1');
  await once(server, 'listening');
  const issuer = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const self: TestOpenIdProvider = {
    settings: { issuer, clientId: CLIENT_ID, clientSecret, name },
    account: 'ada',
    asked: [],
    register(redirectUri) {
      const provider = createProvider(issuer, clientSecret, redirectUri);
      const callback = provider.callback();
      answer = (request, response) => {
        const path = new URL(request.url!, issuer).pathname;
        if (path.startsWith('/login/')) {
          void consent(provider, self.account, request, response);
          return;
        }
        if (!path.startsWith('/auth')) self.asked.push(path);
        void callback(request, response);
      };
    },
    async close() {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
  return self;
}

function createProvider(issuer: string, clientSecret: string, redirectUri: string): Provider {
  const { privateKey } = generateKeyPairSync('rsa', { modulusLength: 2048 });
  return new Provider(issuer, {
    clients: [
      {
        client_id: CLIENT_ID,
        client_secret: clientSecret,
        redirect_uris: [redirectUri],
        token_endpoint_auth_method: 'client_secret_post',
        response_types: ['code'],
        grant_types: ['authorization_code'],
      },
    ],
    jwks: { keys: [{ ...privateKey.export({ format: 'jwk' }), use: 'sig', alg: 'RS256' }] },
    cookies: { keys: [randomBytes(16).toString('hex')] },
    claims: { openid: ['sub'], profile: ['preferred_username'] },
    conformIdTokenClaims: false,
    features: { devInteractions: { enabled: false } },
    findAccount: (_: unknown, id: string) => ({
      accountId: id,
      claims: () => ({ sub: id, preferred_username: `${id}@corp.example` }),
    }),
    interactions: { url: (_: unknown, { uid }: { uid: string }) => `/login/${uid}` },
    pkce: { required: () => true },
  });
}

/** What its own pages would ask is answered at once. */
async function consent(
  provider: Provider,
  accountId: string,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  const grant = new provider.Grant({ accountId, clientId: CLIENT_ID });
  grant.addOIDCScope('openid profile');
  const next = await provider.interactionResult(request, response, {
    login: { accountId },
    consent: { grantId: await grant.save() },
  });
  response.writeHead(303, { location: next }).end();
}
