import { afterAll, expect, test } from 'vitest';
import { serializeKeyRing } from '../../src/crypto/key-ring.ts';
import { type ServerProcess, startProcess } from '../helpers/command-line.ts';
import { signIn } from '../helpers/oauth.ts';
import { newKey, startPosthorn } from '../helpers/posthorn.ts';
import { startPushService } from '../helpers/push-service.ts';

const workers: ServerProcess[] = [];
afterAll(() =>
  Promise.all(
    workers.map(async ({ child, exited }) => {
      child.kill('SIGKILL');
      await exited;
    }),
  ),
);

test('a worker killed between the answer and its record: the browser is told once more, and that was all', async () => {
  const service = await startPushService();
  const webhookAllow = new URL(service.origin).host;
  const posthorn = await startPosthorn({ webhookAllow });
  const { admin } = posthorn.database;
  const startWorker = async () => {
    const worker = await startProcess(['worker'], {
      POSTHORN_DATABASE_URL: posthorn.database.url,
      POSTHORN_KEYRING: serializeKeyRing(posthorn.ring),
      POSTHORN_WEBHOOK_ALLOW: webhookAllow,
      POSTHORN_PUBLIC_URL: 'https://posthorn.example',
    });
    workers.push(worker);
    return worker;
  };
  const owner = await posthorn.owner();
  const browser = await signIn(owner, posthorn.pods[0]!.url);
  const { text } = await browser.open('/owner/settings');
  const pushed = service.browser(/data-key="([^"]+)"/.exec(text)![1]!);
  expect((await browser.call('PUT', '/owner/v1/push', pushed.subscription)).status).toBe(200);
  const [a, b] = [await owner.agent('a'), await owner.agent('b')];

  const victim = await startWorker();
  const answered = new Promise<void>((resolve) => {
    service.answer(async (response) => {
      victim.child.kill('SIGKILL');
      await victim.exited;
      response.writeHead(201).end();
      resolve();
    });
  });
  await a.send({ recipient_agent_id: b.id, body: 'hello', purpose: 'To test', idempotency_key: newKey() });
  await answered;
  const told = async () => (await admin.query('select requests_told from posthorn.push_subscriptions')).rows;
  expect(await told()).toEqual([{ requests_told: 0 }]);

  service.answer(201);
  await admin.query(`update posthorn_test.clock set shift = shift + interval '1 minute'`);
  const second = await startWorker();
  await service.until(2);
  await expect.poll(told).toEqual([{ requests_told: 1 }]);
  await admin.query(`update posthorn_test.clock set shift = shift + interval '1 hour'`);
  await admin.query('update graphile_worker._private_jobs set run_at = now()');
  second.child.kill('SIGTERM');
  expect(await second.exited).toBe(0);
  const third = await startWorker();
  const left = async () =>
    (await admin.query(`select from graphile_worker.jobs where task_identifier = 'push__send'`)).rowCount;
  await expect.poll(left, { timeout: 15_000 }).toBe(0);
  third.child.kill('SIGTERM');
  expect(await third.exited).toBe(0);
  expect(pushed.received().map((push) => JSON.parse(pushed.read(push)))).toEqual([{ waiting: 1 }, { waiting: 1 }]);
  await posthorn.close();
  await service.close();
}, 90_000);
