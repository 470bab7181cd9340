import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Webhook } from 'standardwebhooks';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { Worker } from '../../src/worker.ts';
import { ask, askApart } from '../helpers/answers.ts';
import { runHere, type Settings, spawnCommand, startProcess } from '../helpers/command-line.ts';
import { newKey, startPosthorn, type TestAgent, type TestOwner, type TestPosthorn } from '../helpers/posthorn.ts';
import { startWebhookReceiver, type WebhookReceiver } from '../helpers/webhook-receiver.ts';

let posthorn: TestPosthorn;
let owner: TestOwner;
let a: TestAgent;
let b: TestAgent;
let worker: Worker;
let receiver: WebhookReceiver;
let folder: string;
let settings: Settings;

beforeAll(async () => {
  posthorn = await startPosthorn({ webhookAllow: '127.0.0.1' });
  owner = await posthorn.owner();
  [a, b] = [await owner.agent('anna'), await owner.agent('bert')];
  await owner.group([a, b]);
  worker = await posthorn.worker();
  receiver = await startWebhookReceiver();
  folder = await mkdtemp(join(tmpdir(), 'posthorn-webhooks-'));
  settings = {
    POSTHORN_DATABASE_URL: posthorn.database.url,
    POSTHORN_DATA_DIR: folder,
    POSTHORN_URL: posthorn.pods[0]!.url,
    POSTHORN_TOKEN: b.token,
    POSTHORN_AGENT_ID: b.id,
  };
});
afterAll(async () => {
  await worker.close();
  await receiver.close();
  await posthorn.close();
  await rm(folder, { recursive: true });
});

const send = () => a.send({ recipient_agent_id: b.id, body: 'hello', idempotency_key: newKey() });

test('a worker starts without a warning', () => {
  expect(posthorn.log()).not.toMatch(/"level":[456]0/);
});

test('an agent sets, tests, looks, redelivers and removes', async () => {
  const set = ['webhook', 'set', receiver.url, '--event', 'messaging.pending', '--event', 'call.updated'];
  const registered = await ask(set, settings);
  expect(registered).toMatchObject({
    events: ['messaging.pending', 'call.updated'],
    secret: expect.stringMatching(/^whsec_/),
  });
  expect(await ask([...set, '--rotate-secret', '--grace-seconds', '0'], settings)).toMatchObject({
    secret: expect.stringMatching(/^whsec_/),
  });
  expect(await ask(['webhook', 'show'], settings)).not.toHaveProperty('secret');

  const ping = await ask(['webhook', 'test'], settings);
  await receiver.until(1);
  const lastState = async () => (await ask(['webhook', 'deliveries'], settings)).deliveries[0].state;
  await expect.poll(lastState).toBe('delivered');
  expect(await ask(['webhook', 'redeliver', ping.id], settings)).toMatchObject({ id: ping.id, state: 'pending' });
  await receiver.until(2);

  const people = async (args: string[]) => (await runHere(args, settings)).stdout;
  expect(await people(['webhook', 'show'])).toContain('active');
  expect(await people(set)).not.toContain('whsec_');
  expect(await people([...set, '--rotate-secret'])).toMatch(/whsec_\S+\n\nThe secret is shown only this once/);
  expect(await people(['webhook', 'deliveries'])).toMatch(/webhook\.test: .*\n/);
  expect(await people(['status'])).toContain('127.0.0.1');
  expect(await ask(['webhook', 'remove'], settings)).toEqual({ removed: true });
});

test('what is wrong is named', async () => {
  const refused = (args: string[]) => ask(['webhook', ...args], settings);
  expect(await refused(['set', 'http://10.0.0.1/'])).toMatchObject({
    error: 'invalid_request',
    fields: ['url'],
    exit_code: 1,
  });
  expect(await refused(['set', receiver.url, '--event', 'mail'])).toMatchObject({ fields: ['events.0'] });
  const { stderr } = await runHere(['webhook', 'set', receiver.url, '--event', 'mail'], settings);
  expect(stderr).toMatch(/^invalid_request: events.0: must be one of messaging\.pending, /);
  for (const line of stderr.split('\n')) expect(line.length).toBeLessThanOrEqual(80);
  expect(await refused(['set', receiver.url, '--grace-seconds', 'long'])).toMatchObject({ exit_code: 2 });
  expect(await refused(['set'])).toMatchObject({ exit_code: 2 });
  expect(await refused(['test'])).toMatchObject({ error: 'not_found', exit_code: 1 });
  expect(await refused(['redeliver', 'x'])).toMatchObject({ fields: ['delivery_id'], exit_code: 1 });
});

test('the owner sees hosts, disables and lifts', async () => {
  await ask(['webhook', 'set', receiver.url], settings);
  const listed = await ask(['owner', 'webhooks', 'list'], settings);
  expect(listed.webhooks).toMatchObject([{ agent_id: b.id, status: 'active', url_host: new URL(receiver.url).host }]);
  expect(JSON.stringify(listed)).not.toContain('planted-key');
  const [{ id }] = listed.webhooks;
  const disabled = await ask(['owner', 'webhooks', 'disable', id], settings);
  expect(disabled).toMatchObject({ status: 'disabled', disabled_reason: 'owner' });
  const { stdout } = await runHere(['owner', 'webhooks', 'list'], settings);
  expect(stdout).toMatch(/^bert\n.*disabled by the owner/s);
  expect(await ask(['webhook', 'set', receiver.url], settings)).toMatchObject({ disabled_reason: 'owner' });
  expect(await ask(['owner', 'webhooks', 'lift', id], settings)).toMatchObject({ status: 'active' });
  expect(await ask(['owner', 'webhooks', 'disable', a.id], settings)).toMatchObject({ error: 'not_found' });
  await ask(['webhook', 'remove'], settings);
});

test('listen forwards events to a local address, signed, and goes on after its receiver was away', async () => {
  const local = await startWebhookReceiver();
  const listener = await startProcess(['listen', local.url, '--event', 'messaging.pending'], settings);
  const { secret } = listener.ready;
  const sent = await send();
  const [wake] = await local.until(1);
  expect(new Webhook(secret).verify(wake!.body, wake!.headers as Record<string, string>)).toMatchObject({
    type: 'messaging.pending',
    webhook_id: expect.any(String),
    delivery_id: wake!.headers['webhook-id'],
    agent_id: b.id,
    message_ids: [sent.body.id],
  });
  // a receiver that is away is told, and forgotten
  await local.close();
  await send();
  await expect.poll(listener.stdout).toContain('"status":null');
  await local.open();
  const third = await send();
  const [, next] = await local.until(2);
  expect(next!.json.message_ids).toEqual([third.body.id]);
  listener.child.kill('SIGINT');
  expect(await listener.exited).toBe(0);
  await local.close();
}, 20_000);

/** A server that is not Posthorn; it hears of connections, and answers nothing by itself. */
async function startOther(): Promise<{ server: Server; url: string; close(): Promise<unknown> }> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  return {
    server,
    url: `http://127.0.0.1:${port}`,
    close() {
      server.closeAllConnections();
      return once(server.close(), 'close');
    },
  };
}

/** Presses Ctrl-C, and expects the end long before anything that it waits for gives up. */
async function expectEndAtOnce(child: { kill(signal: NodeJS.Signals): boolean }, exited: Promise<unknown>) {
  const since = performance.now();
  child.kill('SIGINT');
  expect(await exited).toEqual(0);
  expect(performance.now() - since).toBeLessThan(5_000);
}

test('listen gives up on a server that never answers, and ends at Ctrl-C before', async () => {
  const deaf = await startOther();
  const asked = once(deaf.server, 'request');
  const child = spawnCommand(['listen', receiver.url], { ...settings, POSTHORN_URL: deaf.url });
  const exited = once(child, 'exit').then(([code]) => code);
  await asked;
  await expectEndAtOnce(child, exited);
  expect(await askApart(['listen', receiver.url], { ...settings, POSTHORN_URL: deaf.url })).toMatchObject({
    error: 'unreachable',
    exit_code: 3,
  });
  await deaf.close();
}, 30_000);

test('listen ends at Ctrl-C while its target is slow', async () => {
  const slow = await startOther();
  const asked = once(slow.server, 'request');
  const listener = await startProcess(['listen', slow.url], settings);
  await send();
  await asked;
  await expectEndAtOnce(listener.child, listener.exited);
  await slow.close();
}, 20_000);

test('listen takes no web page for a stream', async () => {
  const page = await startOther();
  page.server.on('request', (_, response) => response.writeHead(200, { 'content-type': 'text/html' }).end('<p>'));
  expect(await askApart(['listen', receiver.url], { ...settings, POSTHORN_URL: page.url })).toMatchObject({
    error: 'unreachable',
    message: expect.stringContaining('not as Posthorn does'),
  });
  await page.close();
});

test('listen says what is wrong', async () => {
  const wrong = (args: string[]) => ask(['listen', ...args], settings);
  // once it runs it takes over its process
  const wrongApart = (more: Settings) => askApart(['listen', 'http://localhost:3000'], { ...settings, ...more });
  expect(await wrong(['localhost:3000'])).toMatchObject({ error: 'invalid_request', fields: ['target'] });
  expect(await wrong(['http://localhost:3000', '--secret', 'mine'])).toMatchObject({ fields: ['secret'] });
  expect(await wrong(['http://localhost:3000', '--event', 'mail'])).toMatchObject({ fields: ['event.0'] });
  expect(await wrongApart({ POSTHORN_TOKEN: 'phs_unknown' })).toMatchObject({
    error: 'unauthorized',
    exit_code: 1,
  });
  expect(await wrongApart({ POSTHORN_URL: 'http://127.0.0.1:9' })).toMatchObject({
    error: 'unreachable',
    exit_code: 3,
  });
}, 20_000);
