import { once } from 'node:events';
import { type IncomingMessage, request } from 'node:http';
import pg from 'pg';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { hashCredential, makeCredential } from '../../src/crypto/credentials.ts';
import { deleteAccount, readEvents, revokeAgent, revokeConnection, rotateConnection } from '../../src/db/functions.ts';
import { openStream, type StreamEvent, type TestStream } from '../helpers/event-stream.ts';
import {
  callHttp,
  newKey,
  startPosthorn,
  type TestAgent,
  type TestOwner,
  type TestPosthorn,
} from '../helpers/posthorn.ts';

let posthorn: TestPosthorn;
let owner: TestOwner;
const open: TestStream[] = [];

beforeAll(async () => {
  posthorn = await startPosthorn({ pods: 2 });
  owner = await posthorn.owner();
});
afterEach(async () => {
  for (const stream of open.splice(0)) stream.close();
});
afterAll(() => posthorn.close());

async function stream(
  agent: TestAgent,
  options: { pod?: number; last?: string; query?: string } = {},
): Promise<TestStream> {
  const opened = await openStream(
    posthorn.pods[options.pod ?? 0]!.url,
    agent.token,
    `/messaging/v1/events?agent_id=${agent.id}${options.query ?? ''}`,
    options.last,
  );
  open.push(opened);
  return opened;
}

async function pair(): Promise<[TestAgent, TestAgent]> {
  const agents = [await owner.agent('a'), await owner.agent('b')] as [TestAgent, TestAgent];
  await owner.group(agents);
  return agents;
}

const say = (to: TestAgent) => ({
  recipient_agent_id: to.id,
  body: 'words that no event may hold',
  idempotency_key: newKey(),
});
const admin = (sql: string, values?: unknown[]) => posthorn.database.admin.query(sql, values);
const ofKind = (kind: string) => (events: StreamEvent[]) => events.filter(({ event }) => event === kind);
const pending = ofKind('messaging.pending');
const idsOf = (events: StreamEvent[]) => events.flatMap(({ data }) => data.message_ids);

test('a stream begins with a snapshot and then tells of mail sent through any pod, without content', async () => {
  const [a, b] = await pair();
  const before = await a.send(say(b));
  const reader = await stream(b);
  expect(reader.headers).toMatchObject({
    'content-type': 'text/event-stream; charset=utf-8',
    'x-accel-buffering': 'no',
    'cache-control': 'no-store, no-transform',
    'x-content-type-options': 'nosniff',
    connection: 'close',
  });
  expect(reader.headers['content-encoding']).toBeUndefined();
  const [snapshot] = await reader.until((events) => events.length > 0);
  expect(snapshot).toMatchObject({
    event: 'snapshot',
    id: expect.any(String),
    data: { pending_count: 1, message_ids: [before.body.id], proposal_ids: [] },
  });
  const sent = await a.send(say(b), 1);
  const events = pending(await reader.until((all) => pending(all).length === 1));
  expect(events[0]!.data).toMatchObject({
    agent_id: b.id,
    pending_count: 2,
    message_ids: [sent.body.id],
    conversation_id: sent.body.conversation_id,
    group_id: sent.body.group_id,
  });
  expect(JSON.stringify(reader.events)).not.toContain('words');
});

/** Events without a message, straight into the log. */
async function appendEvents(agent: TestAgent, count: number): Promise<void> {
  await admin(
    `with counted as (
       update posthorn.mailboxes set event_seq = event_seq + $2 where agent_id = $1 returning owner_id, agent_id, wake_number, event_seq - $2 as base
     ), told as (
       insert into posthorn.events (owner_id, agent_id, seq, kind, subject_id, occurred_at)
       select owner_id, agent_id, base + n, 'wakeup.due', gen_random_uuid(), clock_timestamp() from counted, generate_series(1, $2) n
     )
     select pg_notify('posthorn', wake_number::text) from counted`,
    [agent.id, count],
  );
}

test('a sender hears what becomes of a message', async () => {
  const [a, b] = await pair();
  const reader = await stream(a, { pod: 1 });
  const sent = await a.send(say(b));
  await b.receive();
  await b.ack([sent.body.id]);
  const states = ofKind('message.state');
  const events = states(await reader.until((all) => states(all).length === 2));
  expect(events.map(({ data }) => [data.state, data.message_ids])).toEqual([
    ['delivered', [sent.body.id]],
    ['acknowledged', [sent.body.id]],
  ]);
});

test('resumes after any id, on any pod, with nothing lost or doubled', async () => {
  const [a, b] = await pair();
  const first = await stream(b);
  await first.until((events) => events.length > 0);
  const ids: string[] = [];
  for (let index = 0; index < 12; index++) ids.push((await a.send(say(b), index % 2)).body.id);
  const seen = pending(await first.until((events) => pending(events).length === 12));
  expect(idsOf(seen)).toEqual(ids);
  first.close();
  for (const cut of [0, 4, 10]) {
    const again = await stream(b, { pod: cut % 2, last: seen[cut]!.id! });
    const rest = pending(await again.until((events) => pending(events).length === 11 - cut));
    expect(idsOf(rest)).toEqual(ids.slice(cut + 1));
    expect(again.events.some(({ event }) => event === 'snapshot')).toBe(false);
    again.close();
    await again.ended;
  }
});

test.each([['rubbish'], [Buffer.from('7 00000000-0000-4000-8000-000000000000 AAAAAAAA 1').toString('base64url')]])(
  'an id that is not of this log is answered by reset and snapshot: %s',
  async (last) => {
    const [, b] = await pair();
    const reader = await stream(b, { last });
    const events = await reader.until((all) => all.length >= 2);
    expect(events.map(({ event }) => event)).toEqual(['reset', 'snapshot']);
  },
);

test('several agents of a connection on one stream', async () => {
  const { token } = await owner.token();
  const register = async (installation: string) => {
    const response = await fetch(`${posthorn.pods[0]!.url}/messaging/v1/agents`, {
      method: 'POST',
      headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json' },
      body: JSON.stringify({ label: installation, runtime: 'other', installation }),
    });
    return ((await response.json()) as { id: string }).id;
  };
  const ids = [await register('one'), await register('two')];
  const sender = await owner.agent('sender');
  await owner.group([sender, ...ids.map((id) => ({ id }))]);
  const path = `/messaging/v1/events?${ids.map((id) => `agent_id=${id}`).join('&')}`;
  const reader = await openStream(posthorn.pods[1]!.url, token, path);
  open.push(reader);
  for (const id of ids) await sender.send({ recipient_agent_id: id, body: 'x', idempotency_key: newKey() });
  const events = pending(await reader.until((all) => pending(all).length === 2));
  expect(events.map(({ data }) => data.agent_id).sort()).toEqual([...ids].sort());
  reader.close();
  const again = await openStream(posthorn.pods[0]!.url, token, path, events[0]!.id);
  open.push(again);
  const rest = pending(await again.until((all) => pending(all).length === 1));
  expect(rest[0]!.data.message_ids).toEqual(events[1]!.data.message_ids);
});

/** A credential of its own for an agent, which acts as that one alone. */
async function childOf({ id, connectionId }: TestAgent): Promise<string> {
  const { token, hash } = makeCredential('child');
  await admin(
    `insert into posthorn.connections (owner_id, kind, label, credential_hash, scopes, parent_connection_id, agent_id, created_at)
     select owner_id, 'child', 'child', $1, '{messaging}', connection_id, $2, now() from posthorn.connections where connection_id = $3`,
    [hash, id, connectionId],
  );
  return token;
}

test('a connection that acts as one agent names none, and resumes its stream all the same', async () => {
  const [a, b] = await pair();
  const token = await childOf(b);
  const openOwn = async (pod: number, last?: string) => {
    const opened = await openStream(posthorn.pods[pod]!.url, token, '/messaging/v1/events', last);
    open.push(opened);
    return opened;
  };
  const first = await openOwn(0);
  const sent = [await a.send(say(b)), await a.send(say(b))];
  const events = await first.until((all) => pending(all).length === 2);
  const again = await openOwn(1, events[1]!.id);
  const rest = await again.until((all) => all.length === 1);
  expect(rest[0]).toMatchObject({ event: 'messaging.pending', data: { message_ids: [sent[1]!.body.id] } });
  await first.ended;
  expect(first.events.at(-1)).toMatchObject({ event: 'stream.closing', data: { reason: 'replaced' } });
});

describe('ends within a second, and says why, when', () => {
  /** From the moment when what ends it was committed. */
  async function expectEnd(reader: TestStream, reason: string): Promise<void> {
    const since = performance.now();
    await reader.ended;
    expect(performance.now() - since).toBeLessThan(1_000);
    expect(reader.events.at(-1)).toMatchObject({ event: 'stream.closing', data: { reason } });
  }

  test('its connection is revoked, and tells nothing committed later', async () => {
    const [a, b] = await pair();
    const reader = await stream(b, { pod: 1 });
    await reader.until((events) => events.length > 0);
    await owner.act((db, credential) => revokeConnection(db, { credential, connectionId: b.connectionId }));
    await expectEnd(reader, 'revoked');
    expect((await a.send(say(b))).body.error).toBe('recipient_unavailable');
    expect((await stream(b)).status).toBe(401);
  });

  test('its agent is revoked', async () => {
    const [, b] = await pair();
    const reader = await stream(b);
    await reader.until((events) => events.length > 0);
    await owner.act((db, credential) => revokeAgent(db, { credential, agentId: b.id }));
    await expectEnd(reader, 'revoked');
  });

  test('its credential is rotated away', async () => {
    const [, b] = await pair();
    const reader = await stream(b, { pod: 1 });
    await reader.until((events) => events.length > 0);
    await owner.act((db, credential) =>
      rotateConnection(db, { credential, connectionId: b.connectionId, credentialHash: hashCredential(newKey()) }),
    );
    await expectEnd(reader, 'revoked');
  });

  test('it is succeeded by the stream that resumes it, on another pod', async () => {
    const [, b] = await pair();
    const reader = await stream(b);
    const [snapshot] = await reader.until((events) => events.length > 0);
    const next = await stream(b, { pod: 1, last: snapshot!.id! });
    expect(next.status).toBe(200);
    await expectEnd(reader, 'replaced');
  });

  test('it is succeeded by a stream with more agents', async () => {
    const { token, connectionId } = await owner.token();
    const ids: string[] = [];
    for (const installation of ['one', 'two']) {
      const body = { label: installation, runtime: 'other', installation };
      ids.push((await callHttp(posthorn.pods[0]!.url, token, 'POST', '/messaging/v1/agents', body)).body.id);
    }
    const agent = { id: ids[0]!, token, connectionId } as TestAgent;
    const reader = await stream(agent);
    const [snapshot] = await reader.until((events) => events.length > 0);
    const next = await stream(agent, { pod: 1, last: snapshot!.id!, query: `&agent_id=${ids[1]}` });
    await expectEnd(reader, 'replaced');
    expect((await next.until((events) => events.length === 2)).map(({ event }) => event)).toEqual([
      'reset',
      'snapshot',
    ]);
  });

  test('its owner is suspended', async () => {
    const other = await posthorn.owner();
    const agent = await other.agent('c');
    const reader = await stream(agent, { pod: 1 });
    await reader.until((events) => events.length > 0);
    await admin('select ops.suspend_owner($1)', [other.id]);
    await expectEnd(reader, 'suspended');
  });

  test('its owner deletes the account', async () => {
    const other = await posthorn.owner();
    const agent = await other.agent('c');
    const reader = await stream(agent, { pod: 1 });
    await reader.until((events) => events.length > 0);
    await other.act((db, credential) => deleteAccount(db, { credential }));
    await expectEnd(reader, 'revoked');
  });

  test('its credential expires', async () => {
    const [, b] = await pair();
    const { rows } = await admin(
      `update posthorn.connections set expires_at = clock_timestamp() + interval '1.5 seconds' where connection_id = $1 returning expires_at`,
      [b.connectionId],
    );
    const reader = await stream(b);
    await reader.ended;
    expect(Date.now() - rows[0].expires_at.getTime()).toBeLessThan(1_000);
    expect(reader.events.at(-1)).toMatchObject({ event: 'stream.closing', data: { reason: 'expired' } });
  });
});

test('what is committed after a revocation is not read, though the reader was proved before', async () => {
  const [, b] = await pair();
  const app = posthorn.database.as('posthorn_app');
  const read = () =>
    readEvents(app, { credentials: [hashCredential(b.token)], agentIds: [b.id], after: [0], limit: 10 });
  expect(await read()).toEqual([]);
  const owner = new pg.Client({ connectionString: posthorn.database.url });
  await owner.connect();
  // the reader is proved and then waits for the log, while the connection ends and an event follows
  await owner.query('begin');
  await owner.query('lock table posthorn.events in access exclusive mode');
  const reading = read();
  await expect
    .poll(
      async () =>
        (await admin(`select from pg_locks where relation = 'posthorn.events'::regclass and not granted`)).rowCount,
    )
    .toBe(1);
  await owner.query('update posthorn.connections set revoked_at = clock_timestamp() where connection_id = $1', [
    b.connectionId,
  ]);
  await owner.query(
    `insert into posthorn.events (owner_id, agent_id, seq, kind, subject_id, occurred_at)
     select owner_id, agent_id, 1, 'wakeup.due', agent_id, clock_timestamp() from posthorn.agents where agent_id = $1`,
    [b.id],
  );
  await owner.query('commit');
  await owner.end();
  expect(await reading).toEqual([expect.objectContaining({ problem: 'unauthorized', seq: null })]);
});

test('a reader far behind is given every page, and what is sent meanwhile, in order', async () => {
  const [a, b] = await pair();
  const first = await stream(b);
  const [snapshot] = await first.until((events) => events.length > 0);
  first.close();
  await appendEvents(b, 350);
  const readers = await Promise.all([0, 1].map((pod) => stream(b, { pod, last: snapshot!.id! })));
  const sent = await a.send(say(b));
  const truth = await admin('select subject_id from posthorn.events where agent_id = $1 order by seq', [b.id]);
  const subjects = (events: StreamEvent[]) =>
    events.map(({ data }) => data.message_ids?.[0] ?? data.id).filter(Boolean);
  // the second took the slot of the first stream, and the first of the two has none to succeed
  for (const reader of readers) {
    const events = await reader.until((all) => idsOf(pending(all)).includes(sent.body.id));
    expect(subjects(events)).toEqual(truth.rows.map(({ subject_id }) => subject_id));
  }
});

test('an id from below the floor of the log is answered by reset and snapshot, one at the floor goes on', async () => {
  const [, b] = await pair();
  const first = await stream(b);
  await first.until((events) => events.length > 0);
  await appendEvents(b, 3);
  const events = (await first.until((all) => all.length === 4)).slice(1);
  first.close();
  await admin(
    `update posthorn.events set occurred_at = occurred_at - interval '8 days' where agent_id = $1 and seq <= 2`,
    [b.id],
  );
  const below = await stream(b, { last: events[0]!.id! });
  expect((await below.until((all) => all.length === 2)).map(({ event }) => event)).toEqual(['reset', 'snapshot']);
  const at = await stream(b, { last: events[1]!.id! });
  expect((await at.until((all) => all.length === 1)).map(({ event }) => event)).toEqual(['wakeup.due']);
});

test('ids of another epoch are answered by reset, and streams of it are told to come back', async () => {
  const [, b] = await pair();
  const old = await stream(b);
  const [snapshot] = await old.until((events) => events.length > 0);
  await admin('update posthorn.server set epoch = epoch + 1');
  const next = await stream(b, { last: snapshot!.id! });
  expect((await next.until((all) => all.length === 2)).map(({ event }) => event)).toEqual(['reset', 'snapshot']);
  await old.ended;
  const witness = await stream(b);
  await witness.until((events) => events.length > 0);
});

test('eight streams over one agent hear the same', async () => {
  const [a, b] = await pair();
  const readers = await Promise.all(Array.from({ length: 8 }, (_, index) => stream(b, { pod: index % 2 })));
  for (const reader of readers) await reader.until((events) => events.length > 0);
  const sent = [];
  for (let index = 0; index < 5; index++) sent.push((await a.send(say(b), index % 2)).body.id);
  const heard = await Promise.all(readers.map((reader) => reader.until((all) => pending(all).length === 5)));
  for (const events of heard) expect(idsOf(pending(events))).toEqual(sent);
  const ids = heard.flatMap((events) => events.map(({ id }) => id));
  expect(new Set(ids).size, 'ids name their stream').toBe(ids.length);
});

test('a connection holds eight streams over all pods, and a closed one gives its slot back', async () => {
  const [, b] = await pair();
  const streams = await Promise.all(Array.from({ length: 9 }, (_, index) => stream(b, { pod: index % 2 })));
  const refused = streams.filter(({ status }) => status === 429);
  expect(refused).toHaveLength(1);
  expect(refused[0]!.headers['retry-after']).toBe('1');
  const held = streams.find(({ status }) => status === 200)!;
  held.close();
  await expect
    .poll(
      async () =>
        (
          await posthorn.database.admin.query(
            'select count(*)::int as n from posthorn.streams where connection_id = $1',
            [b.connectionId],
          )
        ).rows[0].n,
    )
    .toBe(7);
  expect((await stream(b, { pod: 1 })).status).toBe(200);
});

test('a listening agent is live for its peers', async () => {
  const [a, b] = await pair();
  const live = async () =>
    (await a.call('GET', `/agents?agent_id=${a.id}`)).body.agents.find((agent: { id: string }) => agent.id === b.id);
  expect(await live()).toMatchObject({ live: false, presence_kind: null });
  const reader = await stream(b, { pod: 1 });
  await reader.until((events) => events.length > 0);
  expect(await live()).toMatchObject({ live: true, presence_kind: 'events' });
  expect((await b.call('GET', `/status?agent_id=${b.id}`)).body.presence_kind).toBe('events');
});

test('bad input at this door', async () => {
  const [, b] = await pair();
  expect((await stream(b, { query: '&limit=3' })).status).toBe(400);
  const url = posthorn.pods[0]!.url;
  expect((await openStream(url, b.token, '/messaging/v1/events')).status).toBe(400);
  expect((await openStream(url, b.token, '/messaging/v1/events?agent_id=x')).status).toBe(400);
  expect((await openStream(url, 'phs_unknown', `/messaging/v1/events?agent_id=${b.id}`)).status).toBe(401);
});

test('HEAD says what GET would and takes no slot; OPTIONS names the methods', async () => {
  const [, b] = await pair();
  const url = `${posthorn.pods[0]!.url}/messaging/v1/events?agent_id=${b.id}`;
  const ask = (method: string, token: string) => fetch(url, { method, headers: { authorization: `Bearer ${token}` } });
  for (let index = 0; index < 10; index++) {
    const head = await ask('HEAD', b.token);
    expect([head.status, head.headers.get('content-type')]).toEqual([200, 'text/event-stream; charset=utf-8']);
  }
  expect((await ask('HEAD', 'phs_unknown')).status).toBe(401);
  const [other] = await pair();
  for (const query of ['', `?agent_id=${other.id}`, `?agent_id=${b.id}&agent_id=${other.id}`, `?agent_id=x`]) {
    const answers = ['HEAD', 'GET'].map(async (method) => {
      const address = `${posthorn.pods[0]!.url}/messaging/v1/events${query}`;
      return (await fetch(address, { method, headers: { authorization: `Bearer ${b.token}` } })).status;
    });
    const [head, get] = await Promise.all(answers);
    expect(head).toBe(get);
    expect(get).toBeGreaterThanOrEqual(400);
  }
  const options = await fetch(url, { method: 'OPTIONS' });
  expect([options.status, options.headers.get('allow')]).toEqual([204, 'GET, HEAD, OPTIONS']);
  expect((await ask('POST', b.token)).status).toBe(404);
  expect((await stream(b)).status).toBe(200);
});

test('a target with the host in front of the path, as proxies send it, is a stream too', async () => {
  const [, b] = await pair();
  const { hostname, port, href } = new URL(`${posthorn.pods[0]!.url}/messaging/v1/events?agent_id=${b.id}`);
  const asked = request({ hostname, port, path: href, headers: { authorization: `Bearer ${b.token}` }, agent: false });
  asked.end();
  const [response] = (await once(asked, 'response')) as [IncomingMessage];
  expect([response.statusCode, response.headers['content-type']]).toEqual([200, 'text/event-stream; charset=utf-8']);
  asked.on('error', () => {}).destroy();
});

test('opening a stream counts as a use of the credential', async () => {
  const [, b] = await pair();
  const token = await childOf(b);
  open.push(await openStream(posthorn.pods[1]!.url, token, '/messaging/v1/events'));
  await posthorn.pods.pop()!.close(); // which writes down what was used
  const { rows } = await admin('select last_used_at from posthorn.connections where credential_hash = $1', [
    hashCredential(token),
  ]);
  expect(rows[0].last_used_at).toBeInstanceOf(Date);
});
