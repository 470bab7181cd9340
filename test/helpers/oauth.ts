import { createHash, randomBytes } from 'node:crypto';
import { makeSignInUrl } from '../../src/sign-in-link.ts';
import { type Browser, createBrowser, type Page } from './browser.ts';
import type { TestOwner } from './posthorn.ts';

// An OAuth client that does by hand what libraries do, so that each step can be done wrong.

/** What an endpoint answered. */
export interface OAuthAnswer {
  status: number;
  // biome-ignore lint/suspicious/noExplicitAny: each test says what it expects
  body: any;
  headers: Headers;
}

/** A browser in which an owner is signed in. */
export async function signIn(owner: TestOwner, url: string, at: string = url): Promise<Browser> {
  const browser = createBrowser(url, at);
  const link = await owner.act((db, credential) => makeSignInUrl(db, url, credential));
  await browser.submit(await browser.open(link));
  return browser;
}

export async function postForm(url: string, fields: Record<string, string>): Promise<OAuthAnswer> {
  const response = await fetch(url, { method: 'POST', body: new URLSearchParams(fields), redirect: 'manual' });
  const text = await response.text();
  return { status: response.status, body: text === '' ? null : JSON.parse(text), headers: response.headers };
}

export async function register(url: string, metadata: object = {}): Promise<OAuthAnswer> {
  const response = await fetch(`${url}/register`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({
      client_name: 'Test app',
      redirect_uris: ['http://127.0.0.1:7777/callback'],
      token_endpoint_auth_method: 'none',
      ...metadata,
    }),
  });
  return { status: response.status, body: await response.json(), headers: response.headers };
}

export interface Flow {
  clientId: string;
  redirectUri: string;
  verifier: string;
  /** The address that the app opens in the browser, on the server. */
  url: string;
}

/** The beginning of an authorization; what is undefined is left out. */
export function begin(url: string, clientId: string, changes: Record<string, string | undefined> = {}): Flow {
  const verifier = randomBytes(32).toString('base64url');
  const parameters = {
    response_type: 'code',
    client_id: clientId,
    redirect_uri: 'http://127.0.0.1:7777/callback',
    code_challenge: createHash('sha256').update(verifier).digest('base64url'),
    code_challenge_method: 'S256',
    scope: 'messaging',
    state: 'a state',
    resource: `${url}/mcp`,
    ...changes,
  };
  const given = Object.entries(parameters).filter((entry): entry is [string, string] => entry[1] !== undefined);
  return {
    clientId,
    redirectUri: parameters.redirect_uri!,
    verifier,
    url: `/authorize?${new URLSearchParams(given)}`,
  };
}

/** Where the browser is sent in the end: the app's own address with its answer. */
export function answerOf(page: Page): URLSearchParams {
  const location = page.headers.get('location');
  if (location === null) throw new Error(`It was not sent back to the app: ${page.status} ${page.text}`);
  return new URL(location).searchParams;
}

/** The owner consents, and the app gets its code. */
export async function consent(browser: Browser, flow: Flow, choices: Record<string, string> = {}): Promise<string> {
  const page = await browser.submit(await browser.open(flow.url), { decision: 'allow', ...choices });
  const code = answerOf(page).get('code');
  if (code === null) throw new Error(`There is no code: ${page.headers.get('location')}`);
  return code;
}

export async function exchange(
  url: string,
  flow: Flow,
  code: string,
  changes: Record<string, string> = {},
): Promise<OAuthAnswer> {
  return await postForm(`${url}/token`, {
    grant_type: 'authorization_code',
    code,
    client_id: flow.clientId,
    redirect_uri: flow.redirectUri,
    code_verifier: flow.verifier,
    ...changes,
  });
}

export async function refresh(url: string, clientId: string, refreshToken: string): Promise<OAuthAnswer> {
  return await postForm(`${url}/token`, {
    grant_type: 'refresh_token',
    refresh_token: refreshToken,
    client_id: clientId,
  });
}

export interface Connected {
  clientId: string;
  access: string;
  refresh: string;
}

/** A whole connection: registered, consented to, with its tokens. */
export async function connectApp(
  browser: Browser,
  url: string,
  options: {
    metadata?: object;
    parameters?: Record<string, string | undefined>;
    choices?: Record<string, string>;
    clientId?: string;
  } = {},
): Promise<Connected> {
  const clientId = options.clientId ?? (await register(url, options.metadata)).body.client_id;
  const flow = begin(url, clientId, options.parameters);
  const answer = await exchange(url, flow, await consent(browser, flow, options.choices));
  if (answer.status !== 200) throw new Error(`No tokens: ${JSON.stringify(answer.body)}`);
  return { clientId, access: answer.body.access_token, refresh: answer.body.refresh_token };
}
