import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { hashCredential } from '../../src/crypto/credentials.ts';
import { revokeAgent, revokeConnection, rotateConnection } from '../../src/db/functions.ts';
import { openStream, type StreamEvent, type TestStream } from '../helpers/event-stream.ts';
import { newKey, startPosthorn, type TestAgent, type TestOwner, type TestPosthorn } from '../helpers/posthorn.ts';

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

describe('ends within a second, and says why, when', () => {
  const closing = ofKind('stream.closing');

  test('its connection is revoked, and tells nothing committed later', async () => {
    const [a, b] = await pair();
    const reader = await stream(b, { pod: 1 });
    await reader.until((events) => events.length > 0);
    await owner.act((db, credential) => revokeConnection(db, { credential, connectionId: b.connectionId }));
    await reader.ended;
    expect(closing(reader.events)[0]!.data.reason).toBe('revoked');
    expect((await a.send(say(b))).body.error).toBe('recipient_unavailable');
    expect((await stream(b)).status).toBe(401);
  });

  test('its agent is revoked', async () => {
    const [, b] = await pair();
    const reader = await stream(b);
    await reader.until((events) => events.length > 0);
    await owner.act((db, credential) => revokeAgent(db, { credential, agentId: b.id }));
    await reader.ended;
    expect(closing(reader.events)[0]!.data.reason).toBe('revoked');
  });

  test('its credential is rotated away', async () => {
    const [, b] = await pair();
    const reader = await stream(b, { pod: 1 });
    await reader.until((events) => events.length > 0);
    await owner.act((db, credential) =>
      rotateConnection(db, { credential, connectionId: b.connectionId, credentialHash: hashCredential(newKey()) }),
    );
    await reader.ended;
    expect(closing(reader.events)[0]!.data.reason).toBe('revoked');
  });

  test('it is succeeded by the stream that resumes it, on another pod', async () => {
    const [, b] = await pair();
    const reader = await stream(b);
    const [snapshot] = await reader.until((events) => events.length > 0);
    const next = await stream(b, { pod: 1, last: snapshot!.id! });
    expect(next.status).toBe(200);
    await reader.ended;
    expect(closing(reader.events)[0]!.data.reason).toBe('replaced');
  });
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
  const head = await fetch(`${url}/messaging/v1/events?agent_id=${b.id}`, {
    method: 'HEAD',
    headers: { authorization: `Bearer ${b.token}` },
  });
  expect([head.status, head.headers.get('content-type')]).toEqual([200, 'text/event-stream; charset=utf-8']);
});
