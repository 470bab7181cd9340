import { once } from 'node:events';
import http from 'node:http';
import { text } from 'node:stream/consumers';
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';
import { makeCredential } from '../../src/crypto/credentials.ts';
import { revokeConnection } from '../../src/db/functions.ts';
import { newKey, startPosthorn, type TestAgent, type TestOwner, type TestPosthorn } from '../helpers/posthorn.ts';

let posthorn: TestPosthorn;
let owner: TestOwner;
let token: string;

beforeAll(async () => {
  posthorn = await startPosthorn({ pods: 2 });
  owner = await posthorn.owner();
  token = (await owner.token()).token;
});
afterAll(() => posthorn.close());

interface RawAnswer {
  status: number;
  headers: http.IncomingHttpHeaders;
  // biome-ignore lint/suspicious/noExplicitAny: each test says what it expects
  body: any;
}

interface RawCall {
  pod?: number;
  method?: string;
  path?: string;
  headers?: Record<string, string | undefined>;
  body?: unknown;
  signal?: AbortSignal;
}

const legacyHeaders = { 'content-type': 'application/json', accept: 'application/json, text/event-stream' };

/** One HTTP request, below fetch, which sets no Host and refuses odd paths. */
async function call({
  pod = 0,
  method = 'POST',
  path = '/mcp',
  headers = {},
  body,
  signal,
}: RawCall): Promise<RawAnswer> {
  const { hostname, port } = new URL(posthorn.pods[pod]!.url);
  const all = { ...legacyHeaders, authorization: `Bearer ${token}`, ...headers };
  const given = Object.fromEntries(Object.entries(all).filter(([, value]) => value !== undefined));
  const request = http.request({ hostname, port, method, path, headers: given, signal });
  request.end(body === undefined || typeof body === 'string' || body instanceof Buffer ? body : JSON.stringify(body));
  const [response] = (await once(request, 'response')) as [http.IncomingMessage];
  const content = await text(response);
  const data = /^data: (.+)$/m.exec(content)?.[1] ?? content;
  return { status: response.statusCode!, headers: response.headers, body: data === '' ? null : JSON.parse(data) };
}

const rpc = (method: string, params?: object) => ({ jsonrpc: '2.0', id: 1, method, params });
const tool = (name: string, input: object = {}) => rpc('tools/call', { name, arguments: input });
const initialize = (protocolVersion: string) =>
  rpc('initialize', { protocolVersion, capabilities: {}, clientInfo: { name: 'test', version: '1' } });

test('a child sees and calls only what messages as its agent', async () => {
  const agent = await owner.agent('parent');
  const child = makeCredential('child');
  await posthorn.database.admin.query(
    `insert into posthorn.connections (owner_id, kind, label, credential_hash, scopes, parent_connection_id, agent_id, created_at)
     select owner_id, 'child', 'child', $1, '{messaging}', connection_id, $2, now() from posthorn.connections where connection_id = $3`,
    [child.hash, agent.id, agent.connectionId],
  );
  const headers = { authorization: `Bearer ${child.token}` };
  const listed = await call({ headers, body: rpc('tools/list') });
  const names = listed.body.result.tools.map(({ name }: { name: string }) => name);
  expect(names).toContain('send_message');
  for (const hidden of ['register_agent', 'propose_collaboration', 'register_webhook', 'remove_webhook']) {
    expect(names).not.toContain(hidden);
    expect((await call({ headers, body: tool(hidden) })).body.error.message).toContain('no such tool');
  }
});

/** A request of the 2026-07-28 revision. */
function modern(method: string, params: Record<string, unknown> = {}): Pick<RawCall, 'headers' | 'body'> {
  const _meta = {
    'io.modelcontextprotocol/protocolVersion': '2026-07-28',
    'io.modelcontextprotocol/clientCapabilities': {},
    'io.modelcontextprotocol/clientInfo': { name: 'test', version: '1' },
  };
  const name = params.name as string | undefined;
  return {
    headers: { 'mcp-protocol-version': '2026-07-28', 'mcp-method': method, 'mcp-name': name },
    body: rpc(method, { ...params, _meta }),
  };
}

describe('without a valid credential there is only the challenge', () => {
  const challenge = () =>
    `resource_metadata="${posthorn.pods[0]!.url}/.well-known/oauth-protected-resource/mcp", scope="messaging"`;

  test.each([
    ['initialize', { body: initialize('2025-11-25') }],
    ['tools/list', { body: rpc('tools/list') }],
    ['ping', { body: rpc('ping') }],
    ['server/discover', modern('server/discover')],
    ['nonsense', { body: '{' }],
  ])('%s', async (_, request) => {
    const none = await call({ ...request, headers: { ...request.headers, authorization: undefined } });
    expect(none.status).toBe(401);
    expect(none.headers['www-authenticate']).toBe(`Bearer ${challenge()}`);
    expect(none.body).toMatchObject({ error: 'unauthorized' });
    const unknown = await call({ ...request, headers: { ...request.headers, authorization: 'Bearer phs_unknown' } });
    expect(unknown.status).toBe(401);
    expect(unknown.headers['www-authenticate']).toBe(`Bearer error="invalid_token", ${challenge()}`);
  });

  test('an unknown device is told to pair again', async () => {
    const answer = await call({ body: tool('status'), headers: { authorization: 'Bearer phd_unknown' } });
    expect([answer.status, answer.body.error]).toEqual([401, 'device_unauthorized']);
  });

  test('the challenge leads to metadata whose resource is this endpoint', async () => {
    const { url } = posthorn.pods[0]!;
    const { headers } = await call({ body: rpc('ping'), headers: { authorization: undefined } });
    const metadataUrl = /resource_metadata="([^"]+)"/.exec(headers['www-authenticate']!)![1]!;
    expect(await (await fetch(metadataUrl)).json()).toMatchObject({
      resource: `${url}/mcp`,
      authorization_servers: [url],
    });
  });

  test.each([
    ['2025-11-25', (): RawCall => ({ body: tool('status') })],
    ['2026-07-28', (): RawCall => modern('tools/call', { name: 'status', arguments: {} })],
  ])('a revoked one ends at the next call: %s', async (_, request) => {
    const revoked = await owner.token();
    const headers = { authorization: `Bearer ${revoked.token}` };
    const ask = () => call({ ...request(), headers: { ...request().headers, ...headers } });
    expect((await ask()).body.result.structuredContent).toMatchObject({ enabled: true });
    await owner.act((db, credential) => revokeConnection(db, { credential, connectionId: revoked.connectionId }));
    expect((await ask()).status).toBe(401);
  });
});

describe('names of other sites are refused', () => {
  const port = () => new URL(posthorn.pods[0]!.url).port;

  test.each(['http://evil.test', 'null', 'https://127.0.0.1.evil.test', 'file://', 'nonsense'])(
    'Origin %s',
    async (origin) => {
      expect((await call({ body: rpc('ping'), headers: { origin } })).status).toBe(403);
      expect(
        (await call({ ...modern('tools/list'), headers: { ...modern('tools/list').headers, origin } })).status,
      ).toBe(403);
    },
  );

  test.each(['evil.test', 'localhost.evil.test', 'evil.test:80', '127.0.0.2', '[::2]', 'a b'])(
    'Host %s',
    async (host) => {
      expect((await call({ body: rpc('ping'), headers: { host } })).status).toBe(403);
    },
  );

  test.each(['localhost', '127.0.0.1', '[::1]'])('%s is this machine', async (name) => {
    const headers = { host: `${name}:${port()}`, origin: `http://${name}:6274` };
    expect((await call({ body: rpc('ping'), headers })).body).toEqual({ jsonrpc: '2.0', id: 1, result: {} });
  });
});

test('behind a name of its own, that name is told and accepted', async () => {
  const named = await startPosthorn({ publicUrl: 'https://posthorn.test:8443' });
  const { hostname, port } = new URL(named.pods[0]!.url);
  const headers = { ...legacyHeaders, host: 'posthorn.test:8443', origin: 'https://posthorn.test:8443' };
  const request = http.request({ hostname, port, method: 'POST', path: '/mcp', headers }).end('{}');
  const [response] = (await once(request, 'response')) as [http.IncomingMessage];
  response.resume();
  await named.close();
  expect(response.statusCode).toBe(401);
  const metadata = 'https://posthorn.test:8443/.well-known/oauth-protected-resource/mcp';
  expect(response.headers['www-authenticate']).toContain(`resource_metadata="${metadata}"`);
});

describe('no session, no stream', () => {
  test.each(['GET', 'DELETE', 'PUT', 'OPTIONS', 'HEAD'])('%s is 405', async (method) => {
    for (const authorization of [undefined, `Bearer ${token}`]) {
      const answer = await call({ method, headers: { authorization } });
      expect([answer.status, answer.headers.allow]).toEqual([405, 'POST']);
    }
  });

  test('no answer names a session, and one named by a client is ignored', async () => {
    const requests = [initialize('2025-11-25'), initialize('2025-03-26'), rpc('tools/list'), tool('status')];
    for (const body of requests) {
      for (const session of [undefined, 'made-by-another-pod', '018f0000-0000-7000-8000-000000000000']) {
        const answer = await call({ body, headers: { 'mcp-session-id': session } });
        expect(answer.status).toBe(200);
        expect(answer.body.result).toBeDefined();
        expect(answer.headers['mcp-session-id']).toBeUndefined();
      }
    }
    const discovered = await call(modern('server/discover'));
    expect(discovered.headers['mcp-session-id']).toBeUndefined();
  });

  test('what began at one pod goes on at the other', async () => {
    await call({ pod: 0, body: initialize('2025-11-25') });
    expect((await call({ pod: 1, body: { jsonrpc: '2.0', method: 'notifications/initialized' } })).status).toBe(202);
    expect((await call({ pod: 1, body: tool('status') })).body.result.structuredContent.enabled).toBe(true);
  });

  test.each(['2025-11-25', '2025-06-18', '2025-03-26'])('revision %s is spoken', async (version) => {
    expect((await call({ body: initialize(version) })).body.result.protocolVersion).toBe(version);
  });

  test('an unknown revision is negotiated down', async () => {
    expect((await call({ body: initialize('2031-01-01') })).body.result.protocolVersion).toBe('2025-11-25');
  });

  test('the list of tools may be kept for five minutes, by its client alone', async () => {
    const { result } = (await call(modern('tools/list'))).body;
    expect(result).toMatchObject({ ttlMs: 300_000, cacheScope: 'private' });
    const old = (await call({ body: rpc('tools/list') })).body.result;
    expect(old.tools).toEqual(result.tools);
  });

  test('a slash at the end and an absolute target are the same endpoint', async () => {
    for (const path of ['/mcp/', `${posthorn.pods[0]!.url}/mcp`]) {
      expect((await call({ path, body: rpc('ping') })).body.result).toEqual({});
    }
  });
});

describe('bad input', () => {
  test.each([
    ['no JSON', '{', 400, 'invalid_request'],
    ['broken UTF-8', Buffer.from('{"jsonrpc":"2.0","id":1,"method":"ping\xff"}', 'latin1'), 400, 'invalid_request'],
    [
      'more than 1 MiB',
      JSON.stringify(tool('send_message', { body: 'x'.repeat(1_048_577) })),
      413,
      'payload_too_large',
    ],
  ])('%s', async (_, body, status, error) => {
    const answer = await call({ body });
    expect([answer.status, answer.body.error]).toEqual([status, error]);
  });

  test('another content type', async () => {
    expect((await call({ body: rpc('ping'), headers: { 'content-type': 'text/plain' } })).status).toBe(400);
  });

  test('arguments that are no object', async () => {
    expect((await call({ body: rpc('tools/call', { name: 'status', arguments: ['x'] }) })).body.error.code).toBe(
      -32_602,
    );
  });

  test('lone surrogates', async () => {
    const input = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"register_agent","arguments":{"label":"\\ud800","runtime":"script","installation":"x"}}}`;
    const { result } = (await call({ body: input })).body;
    expect(result).toMatchObject({ isError: true, structuredContent: { error: 'invalid_request', fields: ['label'] } });
  });
});

test('a suspended owner is told so', async () => {
  const suspended = await posthorn.owner();
  const agent = await suspended.agent('a');
  await posthorn.database.admin.query('update posthorn.owners set suspended_at = now() where id = $1', [suspended.id]);
  const headers = { authorization: `Bearer ${agent.token}` };
  const status = await call({ headers, body: tool('status', { agent_id: agent.id }) });
  expect(status.body.result.structuredContent).toMatchObject({ enabled: false });
  const received = await call({ headers, body: tool('receive_messages', { agent_id: agent.id }) });
  expect(received.body.result).toMatchObject({ isError: true, structuredContent: { error: 'owner_suspended' } });
});

describe('whoever waits for mail', () => {
  const waitForMail = () => ({ name: 'receive_messages', arguments: { agent_id: agent.id, wait_seconds: 25 } });
  let agent: TestAgent;
  let sender: TestAgent;
  beforeAll(async () => {
    [agent, sender] = [await owner.agent('waiting'), await owner.agent('sender')];
    await owner.group([agent, sender]);
  });

  /** Resolves when a pod has looked for mail since a moment, and waits now. */
  async function isWaiting(since: Date): Promise<void> {
    await vi.waitFor(async () => {
      const { rows } = await posthorn.database.admin.query(
        `select from pg_catalog.pg_stat_activity where datname = current_database() and state = 'idle' and query like '%read_inbox%' and query_start > $1`,
        [since],
      );
      expect(rows).not.toEqual([]);
    });
  }

  const now = async () => (await posthorn.database.admin.query('select clock_timestamp() as now')).rows[0].now as Date;
  const finished = () => posthorn.log().split('"tool":"receive_messages","outcome":"done"').length - 1;

  test.each([
    ['2025-11-25', (): RawCall => ({ body: rpc('tools/call', waitForMail()) })],
    ['2026-07-28', (): RawCall => modern('tools/call', waitForMail())],
  ])('stops when the client hangs up: %s', async (_, make) => {
    const before = finished();
    const since = await now();
    const gone = new AbortController();
    const { headers, body } = make();
    const answer = call({ headers: { ...headers, authorization: `Bearer ${agent.token}` }, body, signal: gone.signal });
    await isWaiting(since);
    gone.abort();
    await expect(answer).rejects.toThrow();
    await vi.waitFor(() => expect(finished()).toBe(before + 1), { timeout: 2_000 });
    const sent = await sender.send({ recipient_agent_id: agent.id, body: 'late', idempotency_key: newKey() });
    const receipt = await sender.call('GET', `/messages/${sent.body.id}?agent_id=${sender.id}`);
    expect(receipt.body.state).toBe('queued');
    await agent.ack([sent.body.id]);
  });

  test('is answered when the pod stops', async () => {
    const since = await now();
    const body = rpc('tools/call', waitForMail());
    const answer = call({ pod: 1, body, headers: { authorization: `Bearer ${agent.token}` } });
    const stream = call({ pod: 1, ...modern('subscriptions/listen', { notifications: {} }) });
    await isWaiting(since);
    const stoppedAt = performance.now();
    const closed = posthorn.pods.pop()!.close();
    expect((await answer).body.result.structuredContent).toMatchObject({ messages: [] });
    expect((await stream).body).toMatchObject({ method: 'notifications/subscriptions/acknowledged' });
    expect(performance.now() - stoppedAt).toBeLessThan(2_000);
    await closed;
  });
});
