import { afterAll, beforeAll, expect, test } from 'vitest';
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
afterAll(async () => {
  await worker.close();
  await Promise.all(receivers.map((receiver) => receiver.close().catch(() => {})));
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

test('a message wakes its recipient, without content', async () => {
  const [a, b] = await pair();
  const receiver = await receiverOf();
  const registered = await b.call('PUT', '/webhook', {
    url: receiver.url,
    agent_id: b.id,
    auth_header: 'Bearer planted-auth',
  });
  expect(registered.body).toMatchObject({ status: 'active' });
  const sent = await a.send(say(b));
  expect(sent.status).toBe(201);
  const [wake] = await receiver.until(1);
  expect(wake!.json).toMatchObject({ type: 'messaging.pending', message_ids: [sent.body.id], pending_count: 1 });
  console.log(wake!.headers, wake!.body, registered.body);
  await expect
    .poll(async () => (await b.call('GET', `/webhook/deliveries?agent_id=${b.id}`)).body.deliveries[0]?.state)
    .toBe('delivered');
  console.log(
    (await b.call('GET', `/status?agent_id=${b.id}`)).body,
    JSON.stringify((await b.call('GET', `/webhook/deliveries?agent_id=${b.id}`)).body),
  );
});
