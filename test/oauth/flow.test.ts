import { afterAll, beforeEach, describe, expect, test } from 'vitest';
import * as functions from '../../src/db/functions.ts';
import { type Browser, readForm } from '../helpers/browser.ts';
import { openStream } from '../helpers/event-stream.ts';
import {
  answerOf,
  begin,
  type Connected,
  connectApp,
  consent,
  exchange,
  postForm,
  refresh,
  register,
  signIn,
} from '../helpers/oauth.ts';
import { callHttp, newKey, startPosthorn, type TestOwner } from '../helpers/posthorn.ts';

// Two pods behind one public address, as behind a proxy: what begins at one goes on at the other.
const publicUrl = 'http://posthorn.test:8080';
const posthorn = await startPosthorn({ pods: 2, publicUrl });
afterAll(posthorn.close);
const [first, second] = posthorn.pods.map((pod) => pod.url) as [string, string];
const admin = posthorn.database.admin;

let owner: TestOwner;
let browser: Browser;
beforeEach(async () => {
  owner = await posthorn.owner();
  browser = await signIn(owner, publicUrl, first);
});

const resource = `${publicUrl}/mcp`;
const connect = (options: Parameters<typeof connectApp>[2] = {}) =>
  connectApp(browser, first, { ...options, parameters: { resource, ...options.parameters } });
const beginHere = (clientId: string, changes: Record<string, string | undefined> = {}) =>
  begin(first, clientId, { resource, ...changes });
const call = (token: string, method: string, path: string, body?: object) =>
  callHttp(second, token, method, `/messaging/v1${path}`, body);
const connectionsOf = async () =>
  (await browser.call('GET', '/owner/v1/connections')).json as {
    connections: {
      id: string;
      kind: string;
      agent_id: string | null;
      client: unknown;
      expires_at: string;
      revoked_at: string | null;
    }[];
  };
const grantOf = async () => (await connectionsOf()).connections.findLast(({ kind }) => kind === 'oauth')!;
const advance = (interval: string) =>
  admin.query('update posthorn_test.clock set shift = shift + $1::interval', [interval]);

describe('metadata', () => {
  test('is at every place that clients look, and names the public address whatever a request says', async () => {
    const places = [
      '/.well-known/oauth-authorization-server',
      '/.well-known/oauth-authorization-server/mcp',
      '/.well-known/openid-configuration',
      '/.well-known/openid-configuration/mcp',
      '/mcp/.well-known/openid-configuration',
    ];
    for (const place of places) {
      const headers = { host: 'evil.example', 'x-forwarded-host': 'evil.example', 'x-forwarded-proto': 'https' };
      const response = await fetch(first + place, { headers });
      expect(await response.json(), place).toMatchObject({
        issuer: publicUrl,
        authorization_endpoint: `${publicUrl}/authorize`,
        token_endpoint: `${publicUrl}/token`,
        registration_endpoint: `${publicUrl}/register`,
        revocation_endpoint: `${publicUrl}/revoke`,
        device_authorization_endpoint: `${publicUrl}/device/authorize`,
        code_challenge_methods_supported: ['S256'],
        response_types_supported: ['code'],
        scopes_supported: ['messaging'],
        client_id_metadata_document_supported: true,
        authorization_response_iss_parameter_supported: true,
        token_endpoint_auth_methods_supported: expect.arrayContaining(['none']),
        grant_types_supported: expect.not.arrayContaining(['implicit']),
      });
      expect(response.headers.get('access-control-allow-origin')).not.toBeNull();
    }
    for (const place of ['/.well-known/oauth-protected-resource', '/.well-known/oauth-protected-resource/mcp']) {
      expect(await (await fetch(second + place)).json()).toMatchObject({
        resource,
        authorization_servers: [publicUrl],
      });
    }
  });
});

describe('a connection', () => {
  test('goes from registration to calls over two pods, with the issuer and the state in the answer', async () => {
    const { body: client } = await register(second);
    const flow = beginHere(client.client_id);
    const asked = await browser.open(flow.url);
    expect(asked.text).toContain('Test app');
    expect(asked.text).toContain('127.0.0.1');
    expect(asked.text).toContain('exchanges messages with your other approved agents');
    expect(asked.text).toContain('never grants access to memory or sources');
    const answer = answerOf(await browser.submit(asked, { decision: 'allow' }));
    expect(Object.fromEntries(answer)).toEqual({ code: expect.any(String), state: 'a state', iss: publicUrl });
    const tokens = await exchange(second, flow, answer.get('code')!);
    expect(tokens.body).toMatchObject({ token_type: 'Bearer', expires_in: 3600, scope: 'messaging' });
    expect((await callHttp(first, tokens.body.access_token, 'GET', '/messaging/v1/status')).body).toMatchObject({
      granted: true,
    });
    const grant = await grantOf();
    expect(grant).toMatchObject({ client: { id: client.client_id, host: '127.0.0.1' }, label: 'Test app' });
  });

  test('is refused where the owner says no, and nothing is left of it', async () => {
    const flow = beginHere((await register(first)).body.client_id);
    const answer = answerOf(await browser.submit(await browser.open(flow.url), { decision: 'deny' }));
    expect(Object.fromEntries(answer)).toMatchObject({ error: 'access_denied', iss: publicUrl, state: 'a state' });
    expect(await grantOf()).toBeUndefined();
  });

  test('is asked for after signing in, where nobody was signed in', async () => {
    const flow = beginHere((await register(first)).body.client_id);
    await browser.submit(await browser.open('/owner')); // signs out
    const page = await browser.open(flow.url);
    expect(page.text).toContain('You come back to this page afterwards');
    const back = await (async () => {
      const { makeSignInUrl } = await import('../../src/sign-in-link.ts');
      const link = await owner.act((db, credential) => makeSignInUrl(db, publicUrl, credential));
      return await browser.submit(await browser.open(link));
    })();
    expect(back.text).toContain('Connect an app?');
    expect(answerOf(await browser.submit(back, { decision: 'allow' })).get('code')).toEqual(expect.any(String));
  });

  test('may be asked for again at any time, and is a connection of its own each time', async () => {
    const one = await connect();
    const two = await connect({ clientId: one.clientId });
    const grants = (await connectionsOf()).connections.filter(({ kind }) => kind === 'oauth');
    expect(grants).toHaveLength(2);
    await browser.call('POST', `/owner/v1/connections/${grants[0]!.id}/revoke`, {});
    expect((await call(one.access, 'GET', '/status')).status).toBe(401);
    expect((await call(two.access, 'GET', '/status')).status).toBe(200);
  });

  test('lives for 60 days after it was refreshed last', async () => {
    const app = await connect();
    const days = async () => (Date.parse((await grantOf()).expires_at) - (await now())) / 86_400_000;
    expect(await days()).toBeCloseTo(60, 2);
    await advance('50 minutes');
    await refresh(first, app.clientId, app.refresh);
    expect(await days()).toBeCloseTo(60, 2);
    const quick = await connect({ metadata: { grant_types: ['authorization_code'] } });
    expect(quick.refresh).toBeUndefined();
    expect(await days()).toBeCloseTo(1 / 24, 2);
    await advance('59 minutes');
    expect((await call(quick.access, 'GET', '/status')).status).toBe(200);
    await advance('61 seconds');
    const late = await call(quick.access, 'GET', '/status');
    expect(late.status).toBe(401);
    expect(late.headers.get('www-authenticate')).toContain('error="invalid_token"');
  });
});

async function now(): Promise<number> {
  const { rows } = await admin.query('select posthorn_impl.clock() as now');
  return rows[0].now.getTime();
}

describe('the agent of a grant', () => {
  test('is made by the first call other than status, is one for each owner and client, and outlives its grants', async () => {
    const app = await connect();
    expect((await call(app.access, 'GET', '/status')).body).toMatchObject({ granted: true, agent_id: null });
    await Promise.all(
      Array.from({ length: 5 }, (_, index) =>
        callHttp(index % 2 ? first : second, app.access, 'GET', '/messaging/v1/agents'),
      ),
    );
    const { agent_id: id } = (await call(app.access, 'GET', '/status')).body;
    expect(id).toEqual(expect.any(String));
    const { agents } = (await browser.call('GET', '/owner/v1/agents')).json as { agents: object[] };
    expect(agents).toMatchObject([
      { id, label: 'Test app', runtime: 'other', origin_kind: 'oauth', client: { id: app.clientId, name: 'Test app' } },
    ]);
    const { access } = await connect({ clientId: app.clientId });
    expect((await call(access, 'GET', '/status')).body).toMatchObject({ agent_id: id }); // as before
    await browser.call('POST', `/owner/v1/connections/${(await grantOf()).id}/revoke`, {});
    await browser.call('POST', `/owner/v1/connections/${(await grantOf()).id}/revoke`, {});
    const again = await connect({ clientId: app.clientId });
    expect((await call(again.access, 'GET', '/status')).body).toMatchObject({ agent_id: id });
    // another owner's grant of the same client is another agent
    const other = await posthorn.owner('Other');
    const theirs = await connectApp(await signIn(other, publicUrl, first), first, {
      clientId: app.clientId,
      parameters: { resource },
    });
    expect((await call(theirs.access, 'GET', '/agents')).body.agents).toEqual([]);
    expect((await call(theirs.access, 'GET', '/status')).body.agent_id).not.toBe(id);
  });

  test('is told its label and runtime by registering, and acts as no other', async () => {
    const app = await connect();
    const registered = await call(app.access, 'POST', '/agents', {
      label: 'Reviewer',
      runtime: 'cursor',
      installation: 'x',
    });
    expect(registered.body).toMatchObject({ label: 'Reviewer', runtime: 'cursor', client: { id: app.clientId } });
    expect(registered.body).not.toHaveProperty('device');
    expect((await call(app.access, 'POST', '/agents', { label: 'R2', runtime: 'cursor' })).body).toMatchObject({
      id: registered.body.id,
      label: 'R2',
    });
    const peer = await owner.agent('peer');
    expect((await call(app.access, 'GET', `/agents?agent_id=${peer.id}`)).body).toMatchObject({ error: 'not_found' });
    expect((await call(app.access, 'GET', `/agents?agent_id=${registered.body.id}`)).body.agents).toHaveLength(1);
  });

  test('may be another one of the same client, which the owner picks or makes', async () => {
    const laptop = await connect();
    const { body: one } = await call(laptop.access, 'POST', '/agents', { label: 'Laptop', runtime: 'other' });
    const flow = beginHere(laptop.clientId);
    const asked = await browser.open(flow.url);
    expect(readForm(asked).fields).toMatchObject({ agent: one.id, agent_label: 'Test app 2' });
    const desktop = await connect({ clientId: laptop.clientId, choices: { agent: 'new', agent_label: 'Desktop' } });
    const { body: status } = await call(desktop.access, 'GET', '/status');
    expect(status.agent_id).not.toBe(one.id);
    const third = await connect({ clientId: laptop.clientId, choices: { agent: status.agent_id } });
    expect((await call(third.access, 'GET', '/status')).body.agent_id).toBe(status.agent_id);
    // nobody else's, not even another client's of the same owner
    const strange = await owner.agent('strange');
    const page = await browser.submit(await browser.open(beginHere(laptop.clientId).url), {
      decision: 'allow',
      agent: strange.id,
    });
    expect(page.status).toBe(404);
  });

  test('stays out where the owner took it out of service', async () => {
    const app = await connect();
    const { body: agent } = await call(app.access, 'POST', '/agents', { label: 'A', runtime: 'other' });
    await browser.call('POST', `/owner/v1/agents/${agent.id}/revoke`, {});
    for (const token of [app.access, (await connect({ clientId: app.clientId })).access]) {
      expect((await call(token, 'GET', '/agents')).body).toMatchObject({ error: 'agent_revoked' });
      expect((await call(token, 'POST', '/agents', { label: 'A', runtime: 'other' })).body).toMatchObject({
        error: 'agent_revoked',
      });
    }
  });

  test('exchanges messages like any other', async () => {
    const app = await connect();
    const { body: me } = await call(app.access, 'POST', '/agents', { label: 'A', runtime: 'other' });
    const peer = await owner.agent('peer');
    await owner.group([me, peer]);
    const sent = await call(app.access, 'POST', '/send', {
      recipient_agent_id: peer.id,
      body: 'Hello',
      idempotency_key: newKey(),
    });
    expect(sent).toMatchObject({ status: 201, body: { state: 'queued', sender_agent_id: me.id } });
    const [message] = (await peer.receive()).body.messages;
    const reply = {
      conversation_id: message.conversation_id,
      reply_to: message.id,
      body: 'Hi',
      idempotency_key: newKey(),
    };
    expect((await peer.send(reply)).status).toBe(201);
    expect((await call(app.access, 'POST', '/receive', {})).body.messages).toMatchObject([{ body: 'Hi' }]);
  });
});

describe('without the messaging scope', () => {
  test('calls are refused, and no agent is made', async () => {
    const asked = await connect({ parameters: { scope: 'functions' } });
    const answer = await call(asked.access, 'GET', '/agents');
    expect(answer).toMatchObject({ status: 403, body: { error: 'scope_required' } });
    const mcp = await fetch(`${second}/mcp`, {
      method: 'POST',
      headers: {
        authorization: `Bearer ${asked.access}`,
        'content-type': 'application/json',
        accept: 'application/json, text/event-stream',
      },
      body: JSON.stringify({
        jsonrpc: '2.0',
        id: 1,
        method: 'tools/call',
        params: { name: 'receive_messages', arguments: {} },
      }),
    });
    const text = await mcp.text();
    expect(text).toContain('"granted":false');
    expect(text).toContain('"how_to_enable":"reconnect"');
    expect(((await browser.call('GET', '/owner/v1/agents')).json as { agents: [] }).agents).toEqual([]);
  });

  test('the owner may have unticked it', async () => {
    const flow = beginHere((await register(first)).body.client_id, { scope: 'messaging functions' });
    const page = await browser.open(flow.url);
    const code = answerOf(await browser.submit(page, { decision: 'allow', messaging: '' })).get('code')!;
    const tokens = await exchange(first, flow, code);
    expect(tokens.body.scope).toBe('functions');
    expect((await call(tokens.body.access_token, 'GET', '/status')).status).toBe(403);
  });
});

describe('refreshing', () => {
  test('by two processes within 50 ms, on two pods, gives both the same next token', async () => {
    const app = await connect();
    const answers = await Promise.all([
      refresh(first, app.clientId, app.refresh),
      refresh(second, app.clientId, app.refresh),
    ]);
    expect(answers.map(({ status }) => status)).toEqual([200, 200]);
    expect(answers[0]!.body.refresh_token).toBe(answers[1]!.body.refresh_token);
    expect(answers[0]!.body.refresh_token).not.toBe(app.refresh);
    for (const { body } of answers) expect((await call(body.access_token, 'GET', '/status')).status).toBe(200);
    const late = await refresh(second, app.clientId, app.refresh);
    expect(late.body.refresh_token).toBe(answers[0]!.body.refresh_token); // within the minute
    expect((await refresh(first, app.clientId, late.body.refresh_token)).status).toBe(200);
  });

  test('with a token that was used more than a minute ago ends the grant', async () => {
    const app = await connect();
    const next = (await refresh(first, app.clientId, app.refresh)).body;
    await advance('61 seconds');
    expect(await refresh(second, app.clientId, app.refresh)).toMatchObject({
      status: 400,
      body: { error: 'invalid_grant' },
    });
    expect((await call(next.access_token, 'GET', '/status')).status).toBe(401);
    expect((await refresh(first, app.clientId, next.refresh_token)).body).toMatchObject({ error: 'invalid_grant' });
    expect((await grantOf()).revoked_at).not.toBeNull();
  });

  test('keeps the scope, and may be asked for with scopes that there are not', async () => {
    const app = await connect();
    const answer = await postForm(`${first}/token`, {
      grant_type: 'refresh_token',
      refresh_token: app.refresh,
      client_id: app.clientId,
      scope: 'openid offline_access profile',
    });
    expect(answer.body).toMatchObject({ scope: 'messaging' });
  });
});

describe('ending', () => {
  async function withMail(app: Connected) {
    const { body: me } = await call(app.access, 'POST', '/agents', { label: 'A', runtime: 'other' });
    const peer = await owner.agent('peer');
    await owner.group([me, peer]);
    const toMe = await peer.send({ recipient_agent_id: me.id, body: 'secret', idempotency_key: newKey() });
    const stream = await openStream(first, app.access, '/messaging/v1/events');
    await stream.until((events) => events.some(({ event }) => event === 'snapshot'));
    return { me, peer, stream, messageId: toMe.body.id as string };
  }

  test('by the owner: the next call is refused, streams close within a second, and mail is fenced', async () => {
    const app = await connect();
    const { peer, stream, messageId } = await withMail(app);
    const revokedAt = performance.now();
    await browser.call('POST', `/owner/v1/connections/${(await grantOf()).id}/revoke`, {});
    const next = await call(app.access, 'GET', '/status');
    expect(next.status).toBe(401);
    expect(next.headers.get('www-authenticate')).toContain(
      `resource_metadata="${publicUrl}/.well-known/oauth-protected-resource/mcp"`,
    );
    await stream.ended;
    expect(performance.now() - revokedAt).toBeLessThan(1_000);
    expect((await peer.call('GET', `/messages/${messageId}?agent_id=${peer.id}`)).body).toMatchObject({
      state: 'revoked',
    });
    expect((await refresh(first, app.clientId, app.refresh)).body).toMatchObject({ error: 'invalid_grant' });
  });

  test('by the app, with its refresh token', async () => {
    const app = await connect();
    const { stream, peer, messageId } = await withMail(app);
    const answer = await postForm(`${second}/revoke`, { token: app.refresh, client_id: app.clientId });
    expect(answer.status).toBe(200);
    await stream.ended;
    expect((await call(app.access, 'GET', '/status')).status).toBe(401);
    expect((await peer.call('GET', `/messages/${messageId}?agent_id=${peer.id}`)).body).toMatchObject({
      state: 'revoked',
    });
    expect((await grantOf()).revoked_at).not.toBeNull();
  });

  test('by the app, with an access token, ends that token alone', async () => {
    const app = await connect();
    await postForm(`${first}/revoke`, { token: app.access, client_id: app.clientId });
    expect((await call(app.access, 'GET', '/status')).status).toBe(401);
    expect((await refresh(first, app.clientId, app.refresh)).status).toBe(200);
  });

  test('leaves mail to an agent that another grant acts as', async () => {
    const app = await connect();
    const { peer, messageId } = await withMail(app);
    const grant = await grantOf();
    const other = await connect({ clientId: app.clientId });
    await browser.call('POST', `/owner/v1/connections/${grant.id}/revoke`, {});
    expect((await peer.call('GET', `/messages/${messageId}?agent_id=${peer.id}`)).body).toMatchObject({
      state: 'queued',
    });
    expect((await call(other.access, 'POST', '/receive', {})).body.messages).toMatchObject([{ body: 'secret' }]);
  });

  test('with the account', async () => {
    const app = await connect();
    await owner.act((db, credential) => functions.deleteAccount(db, { credential }));
    expect((await call(app.access, 'GET', '/status')).status).toBe(401);
    expect((await refresh(first, app.clientId, app.refresh)).body).toMatchObject({ error: 'invalid_grant' });
  });
});

test('a dump of the database holds nothing that a client or a browser holds', async () => {
  const app = await connect({ metadata: { token_endpoint_auth_method: 'client_secret_post' } }).catch(() => null);
  expect(app).toBeNull(); // it has a secret, and must show it
  const { body: client } = await register(first, { token_endpoint_auth_method: 'client_secret_post' });
  const flow = beginHere(client.client_id);
  const code = await consent(browser, flow);
  const tokens = (await exchange(first, flow, code, { client_secret: client.client_secret })).body;
  const { rows } = await admin.query(
    `select r::text as text from posthorn.oauth_records r union all select t::text from posthorn.grant_tokens t
     union all select c::text from posthorn.connections c union all select s::text from posthorn.server_secrets s`,
  );
  const dump = rows.map(({ text }) => text).join('\n');
  const inHex = (text: string) => Buffer.from(text).toString('hex');
  const cookies = [...browser.cookies.values()].map(({ value }) => value).filter((value) => value.length > 20);
  const secrets = [code, tokens.access_token, tokens.refresh_token, client.client_secret, flow.verifier, ...cookies];
  for (const secret of secrets) {
    expect(dump).not.toContain(secret);
    expect(dump).not.toContain(inHex(secret));
    expect(posthorn.log()).not.toContain(secret);
  }
});

test('what has ended is removed by workers', async () => {
  await connect();
  await register(first);
  await advance('91 days');
  const jobs = posthorn.database.as('posthorn_jobs');
  while ((await functions.deleteExpiredCredentials(jobs, { limit: 100 })) > 0);
  const { rows } = await admin.query(
    `select (select count(*)::int from posthorn.oauth_records where expires_at < 'infinity') as records,
            (select count(*)::int from posthorn.grant_tokens where kind <> 'grant') as tokens`,
  );
  expect(rows).toEqual([{ records: 0, tokens: 0 }]);
});
