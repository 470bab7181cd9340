import type { Context } from 'koa';
import { errors, Provider } from 'oidc-provider';
import type pg from 'pg';
import type { ServerSecrets } from '../crypto/server-secrets.ts';
import { LOGIN_CLIENT } from '../login-client.ts';
import type { Egress } from '../net/egress.ts';
import { createAdapters } from './adapter.ts';
import { createDocumentFetch } from './client-document.ts';
import { SCOPES } from './client-habits.ts';

/** Whoever consents: which owner that is stands in the grant's connection and is never the library's to know. */
export const ACCOUNT = 'owner';

const DAY_S = 86_400;
const DEVICE_GRANT = 'urn:ietf:params:oauth:grant-type:device_code';

/** The pages that the library asks for, each as a whole. */
export interface ProviderPages {
  enterCode(ctx: Context, formToken: string, problem: 'unknown' | 'interrupted' | undefined): Promise<string>;
  deviceDone(): string;
  refused(message: string): string;
}

interface ProviderOptions {
  publicUrl: string;
  pool: pg.Pool;
  secrets: ServerSecrets;
  egress: Egress;
  pages: ProviderPages;
  sessionCredential: () => Buffer | undefined;
}

/**
 * The authorization server: code flow with S256, rotation, revocation, registration, client documents and devices. It
 * names the public address whatever a request says of hosts and schemes.
 */
export function createProvider({
  publicUrl,
  pool,
  secrets,
  egress,
  pages,
  sessionCredential,
}: ProviderOptions): Provider {
  const resource = `${publicUrl}/mcp`;
  const provider = new Provider(publicUrl, {
    adapter: createAdapters({ pool, secrets, sessionCredential }),
    clients: [
      {
        client_id: LOGIN_CLIENT,
        client_name: 'Posthorn on a command line',
        application_type: 'native',
        grant_types: [DEVICE_GRANT, 'refresh_token'],
        response_types: [],
        redirect_uris: [],
        token_endpoint_auth_method: 'none',
      },
    ],
    clientDefaults: {
      // documents without a type are those of programs that listen on any port of this computer
      application_type: 'native',
      grant_types: ['authorization_code', 'refresh_token'],
      response_types: ['code'],
      token_endpoint_auth_method: 'none',
      id_token_signed_response_alg: 'ES256',
    },
    clientAuthMethods: ['none', 'client_secret_basic', 'client_secret_post'],
    clientBasedCORS: (_ctx: Context, origin: string, client: { redirectUris: string[]; clientAuthMethod: string }) =>
      client.clientAuthMethod === 'none' && client.redirectUris.some((uri) => URL.parse(uri)?.origin === origin),
    responseTypes: ['code'],
    scopes: [...SCOPES, 'offline_access'],
    claims: {},
    pkce: { required: () => true },
    jwks: { keys: [secrets.signingKey] },
    enabledJWA: { idTokenSigningAlgValues: ['ES256'], clientAuthSigningAlgValues: ['ES256'] },
    cookies: {
      keys: [secrets.cookieKey],
      names: { session: 'posthorn_oauth', interaction: 'posthorn_consent', resume: 'posthorn_resume' },
    },
    routes: {
      authorization: '/authorize',
      token: '/token',
      registration: '/register',
      revocation: '/revoke',
      jwks: '/oauth/keys',
      code_verification: '/device',
      device_authorization: '/device/authorize',
    },
    extraParams: ['device_label'],
    features: {
      devInteractions: { enabled: false },
      dPoP: { enabled: false },
      userinfo: { enabled: false },
      rpInitiatedLogout: { enabled: false },
      pushedAuthorizationRequests: { enabled: false },
      registration: { enabled: true, issueRegistrationAccessToken: false },
      revocation: {
        enabled: true,
        allowedPolicy: (_ctx: Context, client: { clientId: string }, token: { clientId: string }) =>
          token.clientId === client.clientId,
      },
      clientIdMetadataDocument: { enabled: true, ack: 'draft-02' },
      deviceFlow: {
        enabled: true,
        deviceInfo: () => ({}),
        async userCodeInputSource(
          ctx: Context & { oidc: { session: { state: { secret: string } } } },
          _form: string,
          _out: unknown,
          error?: Error,
        ) {
          const problem = error === undefined ? undefined : error.name === 'AbortedError' ? 'interrupted' : 'unknown';
          ctx.body = await pages.enterCode(ctx, ctx.oidc.session.state.secret, problem);
        },
        userCodeConfirmSource: () => Promise.reject(new Error('The page for the code confirms it already.')),
        async successSource(ctx: Context) {
          ctx.body = pages.deviceDone();
        },
      },
      resourceIndicators: {
        enabled: true,
        defaultResource: () => resource,
        useGrantedResource: () => true,
        getResourceServerInfo(_ctx: Context, indicator: string) {
          if (indicator !== resource) throw new errors.InvalidTarget('there is no such resource here');
          return { scope: SCOPES.join(' '), audience: resource, accessTokenFormat: 'opaque' };
        },
      },
    },
    ttl: {
      AccessToken: 3_600,
      AuthorizationCode: 60,
      DeviceCode: 600,
      Grant: 3_650 * DAY_S,
      IdToken: 3_600,
      Interaction: 900,
      RefreshToken: (_ctx: Context, _token: unknown, client: { clientId: string }) =>
        client.clientId === LOGIN_CLIENT ? 90 * DAY_S : 60 * DAY_S,
      Session: 3_600,
    },
    expiresWithSession: () => false,
    issueRefreshToken: (_ctx: Context, client: { grantTypeAllowed(type: string): boolean }) =>
      client.grantTypeAllowed('refresh_token'),
    rotateRefreshToken: () => true,
    // each consent is asked for: what was allowed once is a connection of its own
    loadExistingGrant: (
      ctx: Context & {
        oidc: { result?: { consent?: { grantId?: string } }; provider: { Grant: { find(id: string): unknown } } };
      },
    ) => {
      const grantId = ctx.oidc.result?.consent?.grantId;
      return grantId === undefined ? undefined : ctx.oidc.provider.Grant.find(grantId);
    },
    findAccount: (_ctx: Context, sub: string) => ({ accountId: sub, claims: async () => ({ sub }) }),
    interactions: { url: (_ctx: Context, { uid }: { uid: string }) => `/oauth/interaction/${uid}` },
    fetch: createDocumentFetch(egress),
    async renderError(ctx: Context, out: { error: string; error_description?: string }) {
      ctx.type = 'html';
      ctx.body = pages.refused(out.error_description ?? out.error);
    },
  });
  provider.silent = true;
  const { protocol, host } = new URL(publicUrl);
  Object.defineProperties(provider.request, {
    protocol: { get: () => protocol.slice(0, -1) },
    host: { get: () => host },
  });
  provider.use(describeOnlyWhatThereIs);
  nameTokens(provider, secrets);
  return provider;
}

/** Two kinds of tokens are no mere random numbers. */
function nameTokens(provider: Provider, secrets: ServerSecrets): void {
  const [access, refresh] = [provider.AccessToken.prototype, provider.RefreshToken.prototype];
  const { generateTokenId: makeAccess } = access;
  const { generateTokenId: makeRefresh } = refresh;
  access.generateTokenId = function generateTokenId() {
    // by its prefix whoever is refused knows that a machine must be paired again
    return (Provider.ctx?.oidc.client?.clientId === LOGIN_CLIENT ? 'phd_' : '') + makeAccess.call(this);
  };
  refresh.generateTokenId = function generateTokenId() {
    // processes that share a token and use it at once are all given the same next one
    const rotated = Provider.ctx?.oidc.entities.RotatedRefreshToken;
    return rotated ? secrets.successorOf(rotated.jti) : makeRefresh.call(this);
  };
}

/** Clients ask for what metadata names, so that it names nothing that they should not ask for. */
async function describeOnlyWhatThereIs(
  ctx: Context & { oidc?: { route: string } },
  next: () => Promise<void>,
): Promise<void> {
  await next();
  if (ctx.oidc?.route !== 'discovery') return;
  const { claims_supported: _, ...body } = ctx.body as Record<string, unknown>;
  ctx.body = { ...body, scopes_supported: ['messaging'], response_modes_supported: ['query'] };
}
