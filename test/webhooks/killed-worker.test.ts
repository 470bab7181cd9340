import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { serializeKeyRing } from '../../src/crypto/key-ring.ts';
import { type ServerProcess, startProcess } from '../helpers/command-line.ts';
import { newKey, startPosthorn } from '../helpers/posthorn.ts';
import { startWebhookReceiver } from '../helpers/webhook-receiver.ts';

const workers: ServerProcess[] = [];
afterAll(() =>
  Promise.all(
    workers.map(async ({ child, exited }) => {
      child.kill('SIGKILL');
      await exited;
    }),
  ),
);

test('a worker killed between the receiver’s 2xx and the record: delivered again under the same id, never lost', async () => {
  const posthorn = await startPosthorn({ webhookAllow: '127.0.0.1' });
  const receiver = await startWebhookReceiver();
  const { admin } = posthorn.database;
  const startWorker = async () => {
    const worker = await startProcess(['worker'], {
      POSTHORN_DATABASE_URL: posthorn.database.url,
      POSTHORN_KEYRING: serializeKeyRing(posthorn.ring),
      POSTHORN_WEBHOOK_ALLOW: '127.0.0.1',
    });
    workers.push(worker);
    return worker;
  };
  const owner = await posthorn.owner();
  const [a, b] = [await owner.agent('a'), await owner.agent('b')];
  await owner.group([a, b]);
  await b.call('PUT', '/webhook', { agent_id: b.id, url: receiver.url });

  const victim = await startWorker();
  const answered = new Promise<void>((resolve) => {
    receiver.answer(async (response) => {
      victim.child.kill('SIGKILL');
      await victim.exited;
      response.writeHead(200).end();
      resolve();
    });
  });
  const messages = [];
  for (let count = 0; count < 3; count++)
    messages.push((await a.send({ recipient_agent_id: b.id, body: 'hello', idempotency_key: newKey() })).body.id);
  await answered;
  const { rows } = await admin.query('select state, attempts from posthorn.deliveries order by event_seq');
  expect(rows).toContainEqual({ state: 'pending', attempts: 0 });
  expect(rows).not.toContainEqual(expect.objectContaining({ state: 'delivered' }));

  receiver.answer(200);
  await admin.query(`update posthorn_test.clock set shift = shift + interval '1 minute'`);
  const second = await startWorker();
  const wakes = await receiver.until(4);
  expect(wakes[1]!.json.delivery_id).toBe(wakes[0]!.json.delivery_id);
  expect(wakes[1]!.json.message_ids).toEqual(wakes[0]!.json.message_ids);
  expect(new Set(wakes.flatMap(({ json }) => json.message_ids))).toEqual(new Set(messages));
  const states = async () => (await admin.query('select distinct state from posthorn.deliveries')).rows;
  await expect.poll(states).toEqual([{ state: 'delivered' }]);
  expect(receiver.received).toHaveLength(4);
  second.child.kill('SIGTERM');
  expect(await second.exited).toBe(0);
  await receiver.close();
  await posthorn.close();
}, 60_000);

test('a worker without a key ring says so, leaves webhooks to others, and delivers once there is one', async () => {
  const posthorn = await startPosthorn({ webhookAllow: '127.0.0.1' });
  const owner = await posthorn.owner();
  const agent = await owner.agent('a');
  await agent.call('PUT', '/webhook', { agent_id: agent.id, url: 'http://127.0.0.1:9/' });
  await agent.call('POST', '/webhook/test', { agent_id: agent.id });
  const folder = await mkdtemp(join(tmpdir(), 'posthorn-ring-'));
  const worker = await startProcess(['worker'], {
    POSTHORN_DATABASE_URL: posthorn.database.url,
    POSTHORN_DATA_DIR: folder,
    POSTHORN_WEBHOOK_ALLOW: '127.0.0.1',
  });
  workers.push(worker);
  await expect.poll(worker.stderr).toContain('delivers no webhooks');
  const other = await posthorn.worker();
  const attempts = async () =>
    (await agent.call('GET', `/webhook/deliveries?agent_id=${agent.id}`)).body.deliveries[0].attempts;
  await expect.poll(attempts).toMatchObject([{ http_status: null, problem: 'connection' }]);
  await other.close();
  await writeFile(join(folder, 'keyring.json'), serializeKeyRing(posthorn.ring), { mode: 0o600 });
  const { body: ping } = await agent.call('POST', '/webhook/test', { agent_id: agent.id });
  const stateOf = async () => {
    const { deliveries } = (await agent.call('GET', `/webhook/deliveries?agent_id=${agent.id}`)).body;
    return deliveries.find(({ id }: { id: string }) => id === ping.id).state;
  };
  await expect.poll(stateOf, { timeout: 20_000 }).toBe('failed');
  worker.child.kill('SIGTERM');
  expect(await worker.exited).toBe(0);
  await posthorn.close();
  await rm(folder, { recursive: true });
}, 40_000);

test('a worker with the ring of another server refuses to start', async () => {
  const [posthorn, another] = [await startPosthorn(), await startPosthorn()];
  const starting = startProcess(['worker'], {
    POSTHORN_DATABASE_URL: posthorn.database.url,
    POSTHORN_KEYRING: serializeKeyRing(another.ring),
  });
  await expect(starting).rejects.toThrow('key_ring');
  await posthorn.close();
  await another.close();
}, 30_000);
