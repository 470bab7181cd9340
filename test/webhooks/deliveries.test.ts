import { createHmac } from 'node:crypto';
import { Webhook } from 'standardwebhooks';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { disableWebhook } from '../../src/db/functions.ts';
import type { Worker } from '../../src/worker.ts';
import { newKey, startPosthorn, type TestAgent, type TestOwner, type TestPosthorn } from '../helpers/posthorn.ts';
import { startWebhookReceiver, type WebhookReceiver } from '../helpers/webhook-receiver.ts';

let posthorn: TestPosthorn;
let owner: TestOwner;
let worker: Worker;
const receivers: WebhookReceiver[] = [];

beforeAll(async () => {
  posthorn = await startPosthorn({ webhookAllow: '127.0.0.1' });
  owner = await posthorn.owner();
  worker = await posthorn.worker();
});
afterEach(async () => {
  await Promise.all(receivers.splice(0).map((receiver) => receiver.close().catch(() => {})));
});
afterAll(async () => {
  await worker.close();
  await posthorn.close();
});

async function receiverOf(): Promise<WebhookReceiver> {
  const receiver = await startWebhookReceiver();
  receivers.push(receiver);
  return receiver;
}

async function pair(): Promise<[TestAgent, TestAgent]> {
  const agents = [await owner.agent('a'), await owner.agent('b')] as [TestAgent, TestAgent];
  await owner.group(agents);
  return agents;
}

const say = (to: TestAgent) => ({
  recipient_agent_id: to.id,
  body: 'words that no wake may hold',
  idempotency_key: newKey(),
});

const register = async (agent: TestAgent, url: string, more: object = {}) => {
  const answer = await agent.call('PUT', '/webhook', { url, agent_id: agent.id, ...more });
  expect(answer.status).toBe(200);
  return answer.body;
};
const deliveriesOf = async (agent: TestAgent) =>
  (await agent.call('GET', `/webhook/deliveries?agent_id=${agent.id}&limit=100`)).body.deliveries;
const statesOf = async (agent: TestAgent): Promise<string[]> =>
  (await deliveriesOf(agent)).map(({ state }: { state: string }) => state);
const summaryOf = async (agent: TestAgent) => (await agent.call('GET', `/status?agent_id=${agent.id}`)).body.webhook;

const clock = async (interval: string) => {
  await posthorn.database.admin.query('update posthorn_test.clock set shift = shift + $1::interval', [interval]);
};
/** A machine may be busy. */
const eventually = <T>(read: () => Promise<T>) => expect.poll(read, { timeout: 15_000 });
const failuresOf = async (agent: TestAgent): Promise<number> => {
  await look();
  return (await summaryOf(agent)).consecutive_failures;
};

/** Lets the worker look now: its jobs wait by the real clock, which nobody moves. */
const look = async () => {
  await posthorn.database.admin.query(
    'update graphile_worker._private_jobs set run_at = now() where locked_at is null',
  );
  await posthorn.database.admin.query(`select pg_notify('jobs:insert', '{"r":1,"count":1}')`);
};

test('a message wakes its recipient, without content, signed in two ways', async () => {
  const [a, b] = await pair();
  const receiver = await receiverOf();
  const { secret, id } = await register(b, receiver.url, { auth_header: 'Bearer planted-auth' });
  const sent = await a.send(say(b));
  const [wake] = await receiver.until(1);
  expect(wake!.json).toEqual({
    webhook_id: id,
    delivery_id: expect.any(String),
    type: 'messaging.pending',
    agent_id: b.id,
    occurred_at: expect.any(String),
    pending_count: 1,
    group_id: sent.body.group_id,
    conversation_id: sent.body.conversation_id,
    message_ids: [sent.body.id],
  });
  expect(wake!.body).not.toContain('words');
  expect(wake!.headers).toMatchObject({
    'content-type': 'application/json',
    'user-agent': 'Posthorn-Webhooks/1',
    'x-posthorn-webhook-id': id,
    'x-posthorn-delivery-id': wake!.json.delivery_id,
    'x-posthorn-event': 'messaging.pending',
    'webhook-id': wake!.json.delivery_id,
    authorization: 'Bearer planted-auth',
  });
  expect(new Webhook(secret).verify(wake!.body, wake!.headers as Record<string, string>)).toEqual(wake!.json);
  const [, t, v1] = /^t=(\d+),v1=([0-9a-f]{64})$/.exec(wake!.headers['x-posthorn-signature'] as string)!;
  const key = Buffer.from(secret.replace('whsec_', ''), 'base64');
  expect(key).toHaveLength(32);
  expect(createHmac('sha256', key).update(`${t}.${wake!.body}`).digest('hex')).toBe(v1);
  await eventually(() => statesOf(b)).toEqual(['delivered']);
  expect(await summaryOf(b)).toEqual({
    url_host: new URL(receiver.url).host,
    events: ['messaging.pending', 'proposal.decided'],
    status: 'active',
    consecutive_failures: 0,
    last_delivered_at: expect.any(String),
  });
  const { body: receipt } = await a.call('GET', `/messages/${sent.body.id}?agent_id=${a.id}`);
  expect(receipt.state, 'a 2xx marks nothing delivered').toBe('queued');
});

test('during a rotation’s grace both secrets sign, the new one first; afterwards the new one alone', async () => {
  const [a, b] = await pair();
  const receiver = await receiverOf();
  const first = await register(b, receiver.url);
  expect(await register(b, receiver.url)).toMatchObject({ secret: null });
  const second = await register(b, receiver.url, { rotate_secret: true, grace_seconds: 60 });
  expect(second.secret).toMatch(/^whsec_/);
  expect(second.secret).not.toBe(first.secret);
  await a.send(say(b));
  const [both] = await receiver.until(1);
  for (const { secret } of [first, second])
    new Webhook(secret).verify(both!.body, both!.headers as Record<string, string>);
  expect((both!.headers['x-posthorn-signature'] as string).match(/v1=/g)).toHaveLength(2);
  new Webhook(second.secret).verify(both!.body, {
    ...(both!.headers as Record<string, string>),
    'webhook-signature': (both!.headers['webhook-signature'] as string).split(' ')[0]!,
  });
  await clock('61 seconds');
  await a.send(say(b));
  const [, alone] = await receiver.until(2);
  new Webhook(second.secret).verify(alone!.body, alone!.headers as Record<string, string>);
  expect(() => new Webhook(first.secret).verify(alone!.body, alone!.headers as Record<string, string>)).toThrow();
  expect((alone!.headers['x-posthorn-signature'] as string).match(/v1=/g)).toHaveLength(1);
});

test('a retry keeps the delivery’s id and signs a fresh time', async () => {
  const [a, b] = await pair();
  const receiver = await receiverOf();
  const { secret } = await register(b, receiver.url);
  receiver.answer(503);
  await a.send(say(b));
  const [first] = await receiver.until(1);
  await eventually(() => failuresOf(b)).toBe(1);
  receiver.answer(200);
  await clock('30 seconds');
  // a look that is under way may put its job back behind the time that ours gave it
  await eventually(async () => {
    await look();
    return receiver.received.length;
  }).toBe(2);
  const [, second] = await receiver.until(2);
  expect(second!.headers['webhook-id']).toBe(first!.headers['webhook-id']);
  new Webhook(secret).verify(second!.body, second!.headers as Record<string, string>);
  await eventually(() => statesOf(b)).toEqual(['delivered']);
  const [delivery] = await deliveriesOf(b);
  expect(delivery.attempts).toMatchObject([{ http_status: 503, problem: null }, { http_status: 200 }]);
});

test('a redirect is followed nowhere and fails for good', async () => {
  const [a, b] = await pair();
  const [receiver, elsewhere] = [await receiverOf(), await receiverOf()];
  receiver.answer((response) => response.writeHead(307, { location: elsewhere.url }).end());
  await register(b, receiver.url);
  await a.send(say(b));
  await eventually(() => statesOf(b)).toEqual(['failed']);
  expect(elsewhere.received).toEqual([]);
});

test('an answer’s body is not waited for', async () => {
  const [a, b] = await pair();
  const receiver = await receiverOf();
  receiver.answer((response) => {
    response.writeHead(200).write('this never ends'.repeat(100_000));
  });
  await register(b, receiver.url);
  await a.send(say(b));
  await eventually(() => statesOf(b)).toEqual(['delivered']);
});

test('a receiver that was away with 50 wakes pending is not disabled, and gets them all', async () => {
  const [a, b] = await pair();
  const receiver = await receiverOf();
  await register(b, receiver.url);
  await posthorn.database.admin.query(
    `update posthorn.limits set value = 1000 where name in ('conversation_posts', 'group_posts_per_minute')`,
  );
  await receiver.close();
  const sent = await Promise.all(Array.from({ length: 50 }, () => a.send(say(b))));
  await eventually(() => failuresOf(b)).toBe(1);
  await clock('30 seconds');
  await look();
  await eventually(() => failuresOf(b)).toBe(2);
  await receiver.open();
  await clock('1 minute');
  // a look from before may end after one from now, and leave its job for later
  const received = async () => {
    await look();
    return receiver.received.length;
  };
  await eventually(received).toBe(50);
  const wakes = receiver.received;
  expect(new Set(wakes.flatMap(({ json }) => json.message_ids))).toEqual(new Set(sent.map(({ body }) => body.id)));
  await eventually(async () => new Set(await statesOf(b))).toEqual(new Set(['delivered']));
  expect(await summaryOf(b)).toMatchObject({ status: 'active', consecutive_failures: 0 });
}, 20_000);

test('one that is dead for a day is disabled after twelve paced attempts; registering again wakes once', async () => {
  const [a, b] = await pair();
  const receiver = await receiverOf();
  await register(b, receiver.url);
  receiver.answer(500);
  await a.send(say(b));
  const sent = await a.send(say(b));
  for (let attempt = 1; attempt <= 12; attempt++) {
    await eventually(() => failuresOf(b)).toBe(attempt); // however often it looks before the time
    expect(receiver.received).toHaveLength(attempt);
    await clock(`${Math.min(3_600, 30 * 2 ** (attempt - 1))} seconds`);
  }
  expect(await summaryOf(b)).toMatchObject({ status: 'disabled', consecutive_failures: 12 });
  await a.send(say(b));
  await clock('10 hours');
  await look();
  receiver.answer(204);
  expect(await register(b, receiver.url)).toMatchObject({
    status: 'active',
    consecutive_failures: 0,
    disabled_reason: null,
  });
  const all = await receiver.until(13);
  expect(all).toHaveLength(13);
  expect(all.at(-1)!.json).toMatchObject({ pending_count: 3 });
  expect(all.at(-1)!.json.message_ids).not.toEqual([sent.body.id]);
  await eventually(async () => (await statesOf(b)).filter((state) => state === 'delivered')).toHaveLength(1);
}, 30_000);

test('a dead endpoint does not delay another', async () => {
  const [a, b] = await pair();
  const [c, d] = await pair();
  const [dead, alive] = [await receiverOf(), await receiverOf()];
  dead.answer(() => {}); // takes the request and never answers
  await register(b, dead.url);
  await register(d, alive.url);
  await a.send(say(b));
  await dead.until(1);
  const startedAt = performance.now();
  await c.send(say(d));
  await alive.until(1);
  expect(performance.now() - startedAt).toBeLessThan(5_000);
  expect(await statesOf(b)).toEqual(['pending']);
  await b.call('DELETE', `/webhook?agent_id=${b.id}`);
});

test('a test arrives at once, and redelivery sends a delivery again under its id', async () => {
  const [a, b] = await pair();
  const receiver = await receiverOf();
  await register(b, receiver.url);
  const asked = await b.call('POST', '/webhook/test', { agent_id: b.id });
  expect(asked).toMatchObject({ status: 201, body: { type: 'webhook.test', state: 'pending', attempts: [] } });
  const [ping] = await receiver.until(1);
  expect(ping!.json).toEqual({
    webhook_id: expect.any(String),
    delivery_id: asked.body.id,
    type: 'webhook.test',
    agent_id: b.id,
    occurred_at: expect.any(String),
  });
  await a.send(say(b));
  const [, wake] = await receiver.until(2);
  await eventually(() => statesOf(b)).toEqual(['delivered', 'delivered']);
  const path = `/webhook/deliveries/${wake!.json.delivery_id}/redeliver`;
  expect(await b.call('POST', path, { agent_id: b.id })).toMatchObject({ status: 200, body: { state: 'pending' } });
  const [, , again] = await receiver.until(3);
  expect(again!.json.delivery_id).toBe(wake!.json.delivery_id);
  const unknown = await b.call('POST', `/webhook/deliveries/${b.id}/redeliver`, { agent_id: b.id });
  expect(unknown).toMatchObject({ status: 404, body: { error: 'not_found' } });
});

test('the log is paged', async () => {
  const [a, b] = await pair();
  const receiver = await receiverOf();
  await register(b, receiver.url);
  for (let count = 1; count <= 3; count++) {
    await a.send(say(b));
    await receiver.until(count);
  }
  await eventually(() => statesOf(b)).toEqual(Array(3).fill('delivered'));
  const first = (await b.call('GET', `/webhook/deliveries?agent_id=${b.id}&limit=2`)).body;
  expect(first.deliveries).toHaveLength(2);
  const rest = (await b.call('GET', `/webhook/deliveries?agent_id=${b.id}&limit=2&after=${first.next_cursor}`)).body;
  expect(rest).toMatchObject({ deliveries: [{ state: 'delivered' }], next_cursor: null });
  const foreign = await b.call('GET', `/webhook/deliveries?agent_id=${b.id}&after=Zm9v`);
  expect(foreign).toMatchObject({ status: 400, body: { error: 'invalid_cursor' } });
});

describe('the registration', () => {
  test('is shown whole, without its secrets; removed, it is gone', async () => {
    const [, b] = await pair();
    const receiver = await receiverOf();
    expect(await b.call('GET', `/webhook?agent_id=${b.id}`)).toMatchObject({ status: 404 });
    expect(await summaryOf(b)).toBeNull();
    const { secret, ...registered } = await register(b, receiver.url, {
      auth_header: 'planted-auth',
      events: ['call.updated'],
    });
    const shown = await b.call('GET', `/webhook?agent_id=${b.id}`);
    expect(shown.body).toEqual(registered);
    expect(shown.body).toMatchObject({ url: receiver.url, has_auth_header: true, events: ['call.updated'] });
    expect(JSON.stringify(shown.body)).not.toContain('planted-auth');
    expect(JSON.stringify(shown.body)).not.toContain(secret);
    expect(await register(b, receiver.url)).toMatchObject({ has_auth_header: false, id: registered.id });
    const remove = () => b.call('DELETE', `/webhook?agent_id=${b.id}`);
    expect(await remove()).toMatchObject({ status: 200, body: { removed: true } });
    expect(await remove()).toMatchObject({ status: 200, body: { removed: false } });
    expect(await summaryOf(b)).toBeNull();
  });

  test.each([
    [{ url: 'https://10.0.0.1/' }, ['url']],
    [{ url: 'http://hooks.example/' }, ['url']],
    [{ url: 'https://hooks.example:8080/' }, ['url']],
    [{ url: 'https://user:pw@hooks.example/' }, ['url']],
    [{ url: 'https://hooks.example/#part' }, ['url']],
    [{ url: 'https://localhost/' }, ['url']],
    [{ url: 'ftp://hooks.example/' }, ['url']],
    [{ url: `https://hooks.example/${'x'.repeat(2_048)}` }, ['url']],
    [{ url: '' }, ['url']],
    [{ url: 7 }, ['url']],
    [{}, ['url']],
    [{ events: [] }, ['events']],
    [{ events: ['messaging.deleted'] }, ['events.0']],
    [{ auth_header: '' }, ['auth_header']],
    [{ auth_header: 'x'.repeat(513) }, ['auth_header']],
    [{ auth_header: 'Bearer a\r\nX-Evil: 1' }, ['auth_header']],
    [{ auth_header: 'Bearer zażółć' }, ['auth_header']],
    [{ rotate_secret: 'yes' }, ['rotate_secret']],
    [{ grace_seconds: -1 }, ['grace_seconds']],
    [{ grace_seconds: 86_401 }, ['grace_seconds']],
    [{ secret: 'mine' }, ['secret']],
  ])('refuses %j', async (change, fields) => {
    const [, b] = await pair();
    const good = 'url' in change || fields[0] === 'url' ? {} : { url: 'https://hooks.example/' };
    const answer = await b.call('PUT', '/webhook', { agent_id: b.id, ...good, ...change });
    expect(answer).toMatchObject({ status: 400, body: { error: 'invalid_request', fields } });
    expect(await summaryOf(b)).toBeNull();
  });

  test('stays disabled while the owner wants it so', async () => {
    const [, b] = await pair();
    const receiver = await receiverOf();
    const { id } = await register(b, receiver.url);
    await owner.act((db, credential) => disableWebhook(db, { credential, webhookId: id }));
    expect(await register(b, receiver.url)).toMatchObject({ status: 'disabled', disabled_reason: 'owner' });
    expect(await b.call('POST', '/webhook/test', { agent_id: b.id })).toMatchObject({
      status: 400,
      body: { error: 'invalid_request', disabled_reason: 'owner' },
    });
  });
});

test('no log line and no job holds an address, a secret or a header', async () => {
  const { rows } = await posthorn.database.admin.query('select payload::text from graphile_worker._private_jobs');
  const everything = posthorn.log() + JSON.stringify(rows);
  expect(posthorn.log()).not.toBe('');
  for (const planted of ['planted-key', 'planted-auth', 'whsec_', 'words that'])
    expect(everything).not.toContain(planted);
});
