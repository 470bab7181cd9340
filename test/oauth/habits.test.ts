import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { parseAllowList } from '../../src/net/allow-list.ts';
import { createEgress } from '../../src/net/egress.ts';
import { createDocumentFetch } from '../../src/oauth/client-document.ts';
import type { Browser } from '../helpers/browser.ts';
import {
  answerOf,
  begin,
  connectApp,
  consent,
  exchange,
  type Flow,
  postForm,
  register,
  signIn,
} from '../helpers/oauth.ts';
import { callHttp, startPosthorn, type TestPosthorn } from '../helpers/posthorn.ts';
import { distrustReceiver, type Receiver, startReceiver, trustReceiver } from '../net/receiver.ts';

// What real clients do, each as its public issue threads say.

/** Documents that vendors publish, at a host on this machine that stands for theirs. */
const documents = new Map<string, { status: number; body: string }>();
let vendors: Receiver;
let posthorn: TestPosthorn;
let browser: Browser;
let url: string;

beforeAll(async () => {
  trustReceiver();
  vendors = await startReceiver({
    isTls: true,
    answer(request, response) {
      const { status, body } = documents.get(request.url!) ?? { status: 404, body: '<h1>Not found</h1>' };
      response.writeHead(status, { 'content-type': status === 200 ? 'application/json' : 'text/html' }).end(body);
    },
  });
  const allow = parseAllowList(`agents.example.com:${vendors.port}, 127.0.0.1`);
  posthorn = await startPosthorn({ egress: createEgress({ allow, resolve: async () => ['127.0.0.1'] }) });
  url = posthorn.pods[0]!.url;
  browser = await signIn(await posthorn.owner(), url);
});
afterAll(async () => {
  distrustReceiver();
  await posthorn.close();
  await vendors.close();
});

const statusOf = async (access: string) => (await callHttp(url, access, 'GET', '/messaging/v1/status')).status;

/** A client that names a document as its id. */
function publish(path: string, document: object): string {
  const id = `https://agents.example.com:${vendors.port}${path}`;
  documents.set(path, { status: 200, body: JSON.stringify({ client_id: id, ...document }) });
  return id;
}

async function connectWith(flow: Flow): Promise<string> {
  const answer = await exchange(url, flow, await consent(browser, flow));
  expect(answer.body, flow.redirectUri).toMatchObject({ access_token: expect.any(String) });
  expect(await statusOf(answer.body.access_token)).toBe(200);
  return answer.body.refresh_token;
}

const CLAUDE_CODE = {
  client_name: 'Claude Code',
  redirect_uris: ['http://localhost/callback', 'http://127.0.0.1/callback', 'http://[::1]/callback'],
  grant_types: ['authorization_code', 'refresh_token'],
  response_types: ['code'],
  token_endpoint_auth_method: 'none',
};

describe('loopback redirects on whatever port is free', () => {
  const hosts = ['http://localhost:51234/callback', 'http://127.0.0.1:51234/callback', 'http://[::1]:51234/callback'];

  test.each(hosts)('%s, of a registered client', async (redirect_uri) => {
    const { body } = await register(url, CLAUDE_CODE);
    await connectWith(begin(url, body.client_id, { redirect_uri }));
  });

  test.each(hosts)('%s, of a client with a document that names no type', async (redirect_uri) => {
    const clientId = publish('/claude-code', CLAUDE_CODE);
    expect(await connectWith(begin(url, clientId, { redirect_uri }))).toEqual(expect.any(String));
  });
});

describe('registration', () => {
  const clients: Record<string, { metadata: object; redirectUris: string[] }> = {
    'Cursor, which calls itself a web application': {
      metadata: { client_name: 'Cursor', application_type: 'web', scope: 'openid whatever' },
      redirectUris: [
        'http://localhost:8787/callback',
        'cursor://anysphere.cursor-mcp/oauth/callback',
        'https://www.cursor.com/agents/mcp/oauth/callback',
      ],
    },
    'VS Code': {
      metadata: {
        client_name: 'Visual Studio Code',
        client_uri: 'https://code.visualstudio.com',
        response_types: ['code'],
      },
      redirectUris: [
        'https://insiders.vscode.dev/redirect',
        'https://vscode.dev/redirect',
        'http://127.0.0.1/',
        'http://127.0.0.1:33418/',
      ],
    },
    'ChatGPT, by a connector': {
      metadata: { client_name: 'ChatGPT', grant_types: ['authorization_code', 'refresh_token', 'implicit'] },
      redirectUris: [
        'https://chatgpt.com/connector/oauth/abc',
        'https://chatgpt.com/connector_platform_oauth_redirect',
      ],
    },
    'a private scheme without a host': { metadata: {}, redirectUris: ['com.example.app:/callback'] },
    'Codex, with scopes of OpenID': {
      metadata: {
        scope: 'openid profile email offline_access',
        id_token_signed_response_alg: 'RS256',
        contacts: ['x'],
      },
      redirectUris: ['http://127.0.0.1:1455/callback'],
    },
  };

  test.each(Object.entries(clients))('of %s, each of whose addresses works', async (_, { metadata, redirectUris }) => {
    const answer = await register(url, { ...metadata, redirect_uris: redirectUris });
    expect(answer).toMatchObject({ status: 201, body: { client_id: expect.any(String), redirect_uris: redirectUris } });
    expect(answer.body).not.toHaveProperty('registration_access_token');
    for (const redirect_uri of redirectUris) await connectWith(begin(url, answer.body.client_id, { redirect_uri }));
  });

  test.each(['client_secret_post', 'client_secret_basic'])(
    'with %s is given a secret, and needs it',
    async (method) => {
      const { body } = await register(url, {
        redirect_uris: ['https://claude.ai/api/mcp/auth_callback'],
        token_endpoint_auth_method: method,
      });
      expect(body).toMatchObject({
        client_secret: expect.any(String),
        client_secret_expires_at: 0,
        token_endpoint_auth_method: method,
      });
      const flow = begin(url, body.client_id, { redirect_uri: 'https://claude.ai/api/mcp/auth_callback' });
      const code = await consent(browser, flow);
      expect((await exchange(url, flow, code)).status).not.toBe(200);
      if (method === 'client_secret_post') {
        expect((await exchange(url, flow, code, { client_secret: body.client_secret })).status).toBe(200);
        return;
      }
      const response = await fetch(`${url}/token`, {
        method: 'POST',
        headers: {
          authorization: `Basic ${Buffer.from(`${body.client_id}:${body.client_secret}`).toString('base64')}`,
        },
        body: new URLSearchParams({
          grant_type: 'authorization_code',
          code,
          redirect_uri: flow.redirectUri,
          code_verifier: flow.verifier,
        }),
      });
      expect(response.status).toBe(200);
    },
  );

  test('that names no method is public where it comes back to this computer', async () => {
    expect((await register(url, { token_endpoint_auth_method: undefined })).body).toMatchObject({
      token_endpoint_auth_method: 'none',
    });
    const far = await register(url, {
      token_endpoint_auth_method: undefined,
      redirect_uris: ['https://app.example/callback'],
    });
    expect(far.body).toMatchObject({ token_endpoint_auth_method: 'client_secret_basic' });
  });

  test.each([
    ['a script', ['javascript:alert(1)'], /invalid_(redirect_uri|client_metadata)/],
    ['a data address', ['data:text/html,x'], /invalid/],
    ['plain HTTP elsewhere', ['http://app.example/callback'], /invalid_redirect_uri/],
    ['credentials', ['https://claude.ai@evil.example/callback'], /invalid_redirect_uri/],
    ['a backslash', ['https://claude.ai\\@evil.example/'], /invalid_redirect_uri/],
    ['a fragment', ['https://app.example/#x'], /invalid_redirect_uri/],
    ['none', [], /invalid_redirect_uri/],
    ['no list', 'https://app.example/', /invalid_redirect_uri/],
  ])('with %s as address is refused in JSON', async (_, redirect_uris, error) => {
    for (const accept of ['*/*', 'text/html']) {
      const response = await fetch(`${url}/register`, {
        method: 'POST',
        redirect: 'manual',
        headers: { 'content-type': 'application/json', accept },
        body: JSON.stringify({ client_name: 'X', redirect_uris }),
      });
      expect(response.status).toBe(400);
      expect(((await response.json()) as { error: string }).error).toMatch(error);
    }
  });

  test('that is no JSON object is refused in JSON', async () => {
    for (const body of ['', '[]', '"x"', '{', 'null']) {
      const response = await fetch(`${url}/register`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body,
      });
      expect(response.status, body).toBe(400);
      expect(await response.json()).toMatchObject({ error: expect.stringMatching(/^invalid/) });
    }
  });
});

describe('documents of clients', () => {
  test('of ChatGPT and OpenCode are read at their own addresses', async () => {
    const chatgpt = publish('/oauth/abc/client.json', {
      client_name: 'ChatGPT',
      redirect_uris: ['https://chatgpt.com/connector/oauth/abc'],
      token_endpoint_auth_method: 'none',
    });
    const flow = begin(url, chatgpt, { redirect_uri: 'https://chatgpt.com/connector/oauth/abc' });
    const page = await browser.open(flow.url);
    expect(page.text).toContain('chatgpt.com');
    expect(page.text).toContain(`Described at agents.example.com:${vendors.port}`);
    await connectWith(flow);
    const opencode = publish('/oauth/opencode/client.json', {
      client_name: 'OpenCode',
      redirect_uris: ['http://127.0.0.1:19876/mcp/oauth/callback'],
      token_endpoint_auth_method: 'none',
    });
    await connectWith(begin(url, opencode, { redirect_uri: 'http://127.0.0.1:19876/mcp/oauth/callback' }));
  });

  test.each([
    [
      'that is another client',
      { client_id: 'https://agents.example.com/other', redirect_uris: ['https://app.example/'] },
    ],
    ['with a secret', { redirect_uris: ['https://app.example/'], client_secret: 'x' }],
    ['without addresses', {}],
  ])('%s are refused', async (_, document) => {
    const clientId = publish(`/bad-${Math.random()}`, document);
    const page = await browser.open(begin(url, clientId, { redirect_uri: 'https://app.example/' }).url);
    expect(page.status).toBe(400);
    expect(page.headers.get('location')).toBeNull();
  });

  test('that vanish for a while are taken as they were last', async () => {
    const fetchDocument = createDocumentFetch(
      createEgress({ allow: parseAllowList(`agents.example.com:${vendors.port}`), resolve: async () => ['127.0.0.1'] }),
    );
    const id = publish('/vanishing', { client_name: 'App' });
    const good = await (await fetchDocument(id)).text();
    documents.delete('/vanishing');
    expect(await (await fetchDocument(id)).text()).toBe(good);
    documents.set('/vanishing', { status: 200, body: '<h1>Maintenance</h1>' });
    expect(await (await fetchDocument(id)).text()).toBe(good);
    expect((await fetchDocument(`https://agents.example.com:${vendors.port}/never`)).status).toBe(404);
    documents.set('/huge', { status: 200, body: JSON.stringify({ name: 'x'.repeat(6_000) }) });
    await expect(fetchDocument(`https://agents.example.com:${vendors.port}/huge`)).rejects.toMatchObject({
      kind: 'body_too_large',
    });
  });
});

describe('the resource', () => {
  const forms: Record<string, (own: string) => string | undefined> = {
    exact: (own) => own,
    missing: () => undefined,
    'with a slash': (own) => `${own}/`,
  };

  test.each(Object.keys(forms).flatMap((asked) => Object.keys(forms).map((told) => [asked, told] as const)))(
    '%s in the request and %s at the token endpoint is ours',
    async (asked, told) => {
      const { body } = await register(url);
      const flow = begin(url, body.client_id, { resource: forms[asked]!(`${url}/mcp`) });
      const resource = forms[told]!(`${url}/mcp`);
      const code = await consent(browser, flow);
      const tokens = await exchange(url, flow, code, resource === undefined ? {} : { resource });
      expect(tokens.body).toMatchObject({ access_token: expect.any(String), scope: 'messaging' });
      expect(await statusOf(tokens.body.access_token)).toBe(200);
      const next = await postForm(`${url}/token`, {
        grant_type: 'refresh_token',
        client_id: body.client_id,
        refresh_token: tokens.body.refresh_token,
        ...(resource === undefined ? {} : { resource }),
      });
      expect(next.status).toBe(200);
    },
  );

  test('of another server is refused where it is asked for', async () => {
    const { body } = await register(url);
    for (const resource of ['https://other.example/mcp', `${url}/other`, 'no address']) {
      const answer = answerOf(await browser.open(begin(url, body.client_id, { resource }).url));
      expect(Object.fromEntries(answer), resource).toMatchObject({ error: 'invalid_target' });
    }
    const flow = begin(url, body.client_id);
    const tokens = await exchange(url, flow, await consent(browser, flow), { resource: 'https://other.example/mcp' });
    expect(tokens).toMatchObject({ status: 400, body: { error: 'invalid_target' } });
  });
});

describe('scopes', () => {
  test.each([
    ['none', undefined],
    ['an empty one', ''],
    ['those of OpenID alone', 'openid profile email offline_access'],
    ['unknown ones', 'mail:read everything'],
    ['ours among them', 'openid messaging'],
  ])('%s are understood as messaging', async (_, scope) => {
    const { body } = await register(url);
    const flow = begin(url, body.client_id, { scope });
    const tokens = await exchange(url, flow, await consent(browser, flow));
    expect(tokens.body).toMatchObject({ scope: 'messaging', refresh_token: expect.any(String) });
    expect(tokens.body).not.toHaveProperty('id_token');
  });
});

test('a client that sends its expired token again and again is told each time how to get another', async () => {
  for (const body of [
    { jsonrpc: '2.0', id: 1, method: 'initialize' },
    { jsonrpc: '2.0', id: 1, method: 'tools/list' },
  ]) {
    const response = await fetch(`${url}/mcp`, {
      method: 'POST',
      headers: { authorization: 'Bearer expired', 'content-type': 'application/json' },
      body: JSON.stringify(body),
    });
    expect(response.status).toBe(401);
    const challenge = response.headers.get('www-authenticate')!;
    expect(challenge).toContain('error="invalid_token"');
    const metadata = /resource_metadata="([^"]+)"/.exec(challenge)![1]!;
    expect((await fetch(metadata)).status).toBe(200);
  }
});

test('a token in the address is none', async () => {
  const { access } = await connectApp(browser, url);
  expect((await fetch(`${url}/messaging/v1/status?access_token=${access}`)).status).toBe(401);
});
