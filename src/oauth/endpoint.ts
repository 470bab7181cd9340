import { AsyncLocalStorage } from 'node:async_hooks';
import { IncomingMessage } from 'node:http';
import type { Context, Middleware, Next } from 'koa';
import type { InteractionDetails, Provider } from 'oidc-provider';
import type { Logger } from 'pino';
import type { KeyRing } from '../crypto/key-ring.ts';
import { loadServerSecrets } from '../crypto/server-secrets.ts';
import { countOauthAttempt, createOauthGrant, listClientAgents } from '../db/functions.ts';
import { invalidRequest, PosthornError, toPosthornError } from '../errors.ts';
import { LOGIN_CLIENT } from '../login-client.ts';
import type { Egress } from '../net/egress.ts';
import type { Services } from '../operations/operation.ts';
import { readShortBody } from '../request/form-body.ts';
import { addressBucket, readSession, type Session } from '../request/session.ts';
import {
  knownScopes,
  nameOf,
  normalizeParameters,
  normalizeRegistration,
  normalizeScope,
  placeOf,
  SCOPES,
} from './client-habits.ts';
import { ACCOUNT, createProvider, type ProviderPages } from './provider.ts';

const INTERACTION = /^\/oauth\/interaction\/([\w-]{1,128})$/;

/** The library's own addresses, each with how it is called in logs. */
const ROUTES: [RegExp, string][] = [
  [/^\/authorize$/, '/authorize'],
  [/^\/authorize\/[\w-]+$/, '/authorize/:uid'],
  [/^\/token$/, '/token'],
  [/^\/register$/, '/register'],
  [/^\/revoke$/, '/revoke'],
  [/^\/device$/, '/device'],
  [/^\/device\/authorize$/, '/device/authorize'],
  [/^\/device\/[\w-]+$/, '/device/:uid'],
  [/^\/oauth\/keys$/, '/oauth/keys'],
  [
    /^\/\.well-known\/(oauth-authorization-server|openid-configuration)(\/mcp)?$/,
    '/.well-known/oauth-authorization-server',
  ],
  [/^\/mcp\/\.well-known\/openid-configuration$/, '/.well-known/oauth-authorization-server'],
];

/** What anybody may do without being known, and so not without end. */
const COUNTED: Record<string, string> = {
  'POST /register': 'register_client',
  'GET /authorize': 'authorize',
  'POST /device/authorize': 'ask_device_code',
  'POST /device': 'ask_device_code',
};

/** What of the web app is used here: pages stand in one place. */
export interface OAuthPages extends Omit<ProviderPages, 'enterCode'> {
  requireSignedIn(ctx: Context, returnTo?: string): Promise<Session | null>;
  readOwnForm(ctx: Context, session: Session): Promise<URLSearchParams>;
  renderErrors: Middleware;
  enterCode(fields: { formToken: string; userCode: string; problem: string | undefined }): string;
  consent(fields: {
    action: string;
    formToken: string;
    clientName: string;
    clientHost: string;
    isHere: boolean;
    documentHost: string | undefined;
    wantsMessaging: boolean;
    wantsFunctions: boolean;
    agents: { id: string; label: string }[];
  }): string;
  deviceConsent(fields: { action: string; formToken: string; userCode: string; label: string }): string;
}

interface OAuthOptions {
  services: Services;
  openRing: () => Promise<KeyRing>;
  egress: Egress;
  pages: OAuthPages;
  log: Logger;
}

/**
 * The authorization server: the library's endpoints, and the pages where the owner consents. What a consent is worth,
 * and what each code and token proves, the database says.
 */
export function createOAuth(options: OAuthOptions): Middleware {
  const { services, pages, log } = options;
  const answering = new AsyncLocalStorage<Context>();
  let making: Promise<{ provider: Provider; answer: ReturnType<Provider['callback']> }> | undefined;

  /** Made by the first request: the server's address is known once it listens. */
  function loadProvider(): NonNullable<typeof making> {
    making ??= makeProvider();
    making.catch(() => {
      making = undefined;
    });
    return making;
  }

  async function makeProvider() {
    const provider = createProvider({
      publicUrl: services.publicUrl,
      pool: services.pool,
      secrets: await loadServerSecrets(services.pool, options.openRing),
      egress: options.egress,
      sessionCredential: () => readSession(answering.getStore()!.req, services.publicUrl)?.credential,
      pages: { ...pages, enterCode: showCodePage },
    });
    provider.on('server_error', (_ctx, err) => {
      log.error({ requestId: answering.getStore()?.state.requestId, err }, 'unavailable');
    });
    return { provider, answer: provider.callback() };
  }

  async function showCodePage(_ctx: Context, formToken: string, problem?: 'unknown' | 'interrupted'): Promise<string> {
    const { userCode = '' } = answering.getStore()!.state as { userCode?: string };
    const said = {
      unknown: 'This code is not known, or its 10 minutes are over.',
      interrupted: 'The pairing was stopped.',
    };
    return pages.enterCode({ formToken, userCode, problem: problem && said[problem] });
  }

  async function answerByLibrary(ctx: Context): Promise<void> {
    const { path, method } = ctx;
    if (path === '/device' || (path.startsWith('/device/') && path !== '/device/authorize')) {
      const returnTo = /^\/device\?user_code=[A-Z-]+$/.test(ctx.url) ? ctx.url : '/device';
      if (!(await pages.requireSignedIn(ctx, returnTo))) return;
    }
    await countAttempts(ctx);
    const body = method === 'POST' ? await readShortBody(ctx.req, 'body') : undefined;
    const request = copyRequest(ctx.req, adjust(ctx, body));
    ctx.set('Cache-Control', 'no-store');
    const { answer } = await loadProvider();
    ctx.respond = false; // the response is the library's from here on
    await answering.run(ctx, () => answer(request, ctx.res));
  }

  async function countAttempts(ctx: Context): Promise<void> {
    // the library answers HEAD as it does GET
    const act = COUNTED[`${ctx.method === 'HEAD' ? 'GET' : ctx.method} ${ctx.path}`];
    if (act === undefined) return;
    if (await countOauthAttempt(services.pool, { act, bucket: addressBucket(ctx) })) return;
    throw new PosthornError('rate_limited', { retry_after: 3_600 }, 'Too many such requests come from this address.');
  }

  /** The request that a client means: its address, its headers and its body. */
  function adjust(ctx: Context, body: Buffer | undefined): Adjusted {
    const url = new URL(ctx.req.url ?? '/', services.publicUrl);
    const headers = { ...ctx.req.headers };
    const resource = `${services.publicUrl}/mcp`;
    if (url.pathname.includes('/.well-known/')) url.pathname = url.pathname.replace(/^\/mcp|\/mcp$/, '');
    if (url.pathname === '/authorize') {
      const parameters = normalizeParameters(url.searchParams, resource);
      parameters.set('scope', normalizeScope(parameters.get('scope')));
      url.search = parameters.toString();
    }
    if (url.pathname === '/device' && ctx.method === 'GET') {
      ctx.state.userCode = url.searchParams.get('user_code') ?? undefined;
      url.search = '';
    }
    // whoever calls these is a program, whatever it says that it accepts
    if (['/token', '/register', '/revoke', '/device/authorize'].includes(url.pathname))
      headers.accept = 'application/json';
    return { url: url.pathname + url.search, headers, body: body && adjustBody(url.pathname, headers, body, resource) };
  }

  async function showConsent(ctx: Context, uid: string): Promise<void> {
    const action = `/oauth/interaction/${uid}`;
    const session = await pages.requireSignedIn(ctx, action);
    if (!session) return;
    const { provider } = await loadProvider();
    const interaction = await findInteraction(ctx, provider, uid);
    const common = { action, formToken: session.formToken };
    ctx.type = 'html';
    ctx.set('Cache-Control', 'no-store');
    if (interaction.deviceCode !== undefined && interaction.params.client_id === LOGIN_CLIENT) {
      const code = await provider.DeviceCode.find(interaction.deviceCode);
      const label = nameOf(interaction.params.device_label ?? 'Machine');
      ctx.body = pages.deviceConsent({ ...common, userCode: sayCode(code?.userCode ?? ''), label });
      return;
    }
    const client = await describeClient(provider, interaction);
    const rows = await listClientAgents(services.pool, { credential: session.credential, clientId: client.id });
    const wanted = wantedScopes(interaction);
    if (client.redirectUri !== undefined) allowFormAction(ctx, client.redirectUri);
    ctx.body = pages.consent({
      ...common,
      clientName: client.name,
      clientHost: client.host,
      isHere: client.isHere,
      documentHost: client.documentHost,
      wantsMessaging: wanted.includes('messaging'),
      wantsFunctions: wanted.includes('functions'),
      agents: rows.map(({ agentId, label }) => ({ id: agentId, label })),
    });
  }

  async function decide(ctx: Context, uid: string): Promise<void> {
    const session = await pages.requireSignedIn(ctx, `/oauth/interaction/${uid}`);
    if (!session) return;
    const form = await pages.readOwnForm(ctx, session);
    const { provider } = await loadProvider();
    const interaction = await findInteraction(ctx, provider, uid);
    const wanted = wantedScopes(interaction);
    const scopes = wanted.filter((scope) => form.get(scope) === 'yes');
    const isAllowed = form.get('decision') === 'allow' && scopes.length > 0;
    const grantId = isAllowed ? await makeGrant(provider, interaction, session, scopes, form) : undefined;
    const result =
      grantId === undefined
        ? { error: 'access_denied', error_description: 'the owner said no' }
        : { login: { accountId: ACCOUNT }, consent: { grantId } };
    const next = await answering.run(ctx, () => provider.interactionResult(ctx.req, ctx.res, result));
    ctx.status = 303;
    ctx.set('Location', next);
    ctx.set('Cache-Control', 'no-store');
    ctx.body = '';
  }

  async function makeGrant(
    provider: Provider,
    interaction: InteractionDetails,
    { credential }: Session,
    scopes: string[],
    form: URLSearchParams,
  ): Promise<string> {
    const isLogin = interaction.params.client_id === LOGIN_CLIENT;
    const client = await describeClient(provider, interaction);
    const agent = form.get('agent');
    const grantId = await createOauthGrant(services.pool, {
      credential,
      kind: isLogin ? 'device' : 'oauth',
      label: isLogin ? nameOf(form.get('label')) : client.name,
      clientId: client.id,
      clientHost: client.host,
      scopes,
      agentId: agent === null || agent === 'new' ? null : requireId(agent),
      newAgentLabel: agent === 'new' ? nameOf(form.get('agent_label') ?? client.name) : null,
    });
    const grant = new provider.Grant({ accountId: ACCOUNT, clientId: client.id });
    grant.jti = grantId;
    const resource = `${services.publicUrl}/mcp`;
    const refused = [...SCOPES, 'offline_access'].filter((scope) => !scopes.includes(scope)).join(' ');
    grant.addOIDCScope(scopes.join(' '));
    grant.rejectOIDCScope(refused);
    grant.addResourceScope(resource, scopes.join(' '));
    grant.rejectResourceScope(resource, refused);
    return await grant.save();
  }

  return async function oauth(ctx: Context, next: Next): Promise<void> {
    const uid = INTERACTION.exec(ctx.path)?.[1];
    if (uid !== undefined && (ctx.method === 'GET' || ctx.method === 'POST')) {
      ctx.routerPath = '/oauth/interaction/:uid';
      const act = ctx.method === 'GET' ? showConsent : decide;
      return await pages.renderErrors(ctx, () => answering.run(ctx, () => act(ctx, uid)));
    }
    const route = ROUTES.find(([pattern]) => pattern.test(ctx.path))?.[1];
    if (route === undefined) return await next();
    ctx.routerPath = route;
    const forPeople = route.startsWith('/authorize') || route === '/device' || route === '/device/:uid';
    if (forPeople) return await pages.renderErrors(ctx, () => answerByLibrary(ctx));
    await renderOAuthErrors(ctx, () => answerByLibrary(ctx));
  };
}

interface Adjusted {
  url: string;
  headers: IncomingMessage['headers'];
  body: Buffer | undefined;
}

/** Errors of ours as clients of OAuth read them. */
async function renderOAuthErrors(ctx: Context, work: () => Promise<void>): Promise<void> {
  try {
    await work();
  } catch (thrown) {
    const error = toPosthornError(thrown);
    if (error.code !== 'rate_limited' && error.code !== 'invalid_request') throw thrown;
    ctx.state.errorCode = error.code;
    ctx.status = error.status;
    if (error.code === 'rate_limited') ctx.set('Retry-After', String(error.detail.retry_after));
    const name =
      error.code === 'rate_limited' ? 'temporarily_unavailable' : (error.detail.oauth_error ?? 'invalid_request');
    ctx.body = { error: name, error_description: error.message };
  }
}

function adjustBody(path: string, headers: IncomingMessage['headers'], body: Buffer, resource: string): Buffer {
  if (path === '/register') {
    headers['content-type'] = 'application/json';
    return Buffer.from(JSON.stringify(readRegistration(body)));
  }
  if (path !== '/token' && path !== '/device/authorize') return body;
  const parameters = normalizeParameters(new URLSearchParams(body.toString()), resource);
  if (path === '/device/authorize') parameters.set('scope', normalizeScope(parameters.get('scope')));
  else if (knownScopes(parameters.get('scope')).length > 0)
    parameters.set('scope', knownScopes(parameters.get('scope')).join(' '));
  // none that there is: what was granted is meant
  else parameters.delete('scope');
  return Buffer.from(parameters.toString());
}

/** @throws PosthornError invalid_request, as RFC 7591 calls it */
function readRegistration(body: Buffer): Record<string, unknown> {
  try {
    const given = JSON.parse(body.toString());
    if (typeof given !== 'object' || given === null || Array.isArray(given))
      throw new TypeError('it must be an object');
    return normalizeRegistration(given);
  } catch (error) {
    const isUri = error instanceof TypeError && error.message.startsWith('redirect_uris');
    const oauthError = isUri ? 'invalid_redirect_uri' : 'invalid_client_metadata';
    throw new PosthornError(
      'invalid_request',
      { oauth_error: oauthError },
      isUri ? error.message : 'This is no registration.',
    );
  }
}

/** The same request with another address, other headers or another body. */
function copyRequest(original: IncomingMessage, { url, headers, body }: Adjusted): IncomingMessage {
  const request = new IncomingMessage(original.socket);
  Object.assign(request, { method: original.method, url, httpVersion: original.httpVersion, complete: true });
  request.headers = { ...headers };
  if (body !== undefined) {
    request.headers['content-length'] = String(body.length);
    delete request.headers['transfer-encoding'];
    request.push(body);
  }
  request.push(null);
  return request;
}

async function findInteraction(ctx: Context, provider: Provider, uid: string): Promise<InteractionDetails> {
  const interaction = await provider.interactionDetails(ctx.req, ctx.res).catch(() => undefined);
  if (interaction?.uid === uid) return interaction;
  throw new PosthornError(
    'expired',
    {},
    'This request was answered, or waited longer than 15 minutes. Start again in the app.',
  );
}

interface DescribedClient {
  id: string;
  name: string;
  host: string;
  isHere: boolean;
  documentHost: string | undefined;
  redirectUri: string | undefined;
}

async function describeClient(provider: Provider, { params }: InteractionDetails): Promise<DescribedClient> {
  const id = params.client_id ?? '';
  const client = await provider.Client.find(id);
  if (!client) throw new PosthornError('not_found', {}, 'The app is not registered here any more.');
  const redirectUri = params.redirect_uri;
  const documentHost = id.startsWith('https://') ? new URL(id).host : undefined;
  const place =
    redirectUri === undefined ? { host: documentHost ?? 'another machine', isHere: false } : placeOf(redirectUri);
  return { id, name: nameOf(client.clientName), documentHost, redirectUri, ...place };
}

function wantedScopes({ params }: InteractionDetails): string[] {
  return normalizeScope(params.scope ?? null).split(' ');
}

/** Browsers hold the address that a form leads to in the end against the page's policy, too. */
function allowFormAction(ctx: Context, redirectUri: string): void {
  const { origin, protocol } = new URL(redirectUri);
  const target = origin === 'null' ? protocol : origin;
  const policy = String(ctx.response.get('Content-Security-Policy'));
  ctx.set('Content-Security-Policy', policy.replace("form-action 'self'", `form-action 'self' ${target}`));
}

/** As the terminal shows it. */
function sayCode(code: string): string {
  return code.replace(/^(.{4})(.+)$/, '$1-$2');
}

function requireId(id: string): string {
  if (/^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/.test(id)) return id;
  throw invalidRequest(['agent']);
}
