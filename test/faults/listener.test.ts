import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Writable } from 'node:stream';
import { pino } from 'pino';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { startEmbeddedPostgres } from '../../src/db/embedded.ts';
import { migrate } from '../../src/db/migrate.ts';
import { packageRoot } from '../../src/package-root.ts';
import { startPod } from '../../src/pod.ts';
import { databaseAt } from '../helpers/database.ts';
import { openStream, type StreamEvent } from '../helpers/event-stream.ts';
import { hasPooler, startPooler } from '../helpers/pooler.ts';
import { newKey, startPosthorn, type TestAgent, type TestPosthorn } from '../helpers/posthorn.ts';
import { startTcpProxy } from '../helpers/tcp-proxy.ts';

// What a pod does whose LISTEN connection hears nothing: says so, goes on by looking, and catches up.
const NOTICED_MS = 15_000;

let posthorn: TestPosthorn;
let a: TestAgent;
let b: TestAgent;
let log = '';

beforeAll(async () => {
  posthorn = await startPosthorn();
  const owner = await posthorn.owner();
  [a, b] = [await owner.agent('a'), await owner.agent('b')];
  await owner.group([a, b]);
  await posthorn.database.admin.query(`select ops.set_limit('group_posts_per_minute', 1000)`);
  await posthorn.database.admin.query(`select ops.set_limit('conversation_posts', 1000)`);
});
beforeEach(() => {
  log = '';
});
afterAll(() => posthorn.close());

async function podListeningAt(listenUrl: string) {
  const sink = new Writable({
    write(chunk, _encoding, done) {
      log += chunk;
      done();
    },
  });
  const pod = await startPod({
    databaseUrl: posthorn.database.url,
    listenUrl,
    publicUrl: undefined,
    host: '127.0.0.1',
    port: 0,
    keyRing: posthorn.ring,
    log: pino(sink),
  });
  const health = async () => (await (await fetch(`${pod.url}/readyz`)).json()) as object;
  const becomes = (state: object, timeout = NOTICED_MS) =>
    expect.poll(health, { timeout, interval: 50 }).toEqual({ status: 'ready', ...state });
  return { ...pod, becomes };
}

const LISTENING = { listening: true, listener_problem: null };
const deafBy = (listener_problem: string) => ({ listening: false, listener_problem });

const send = async () =>
  (await a.send({ recipient_agent_id: b.id, body: 'words', idempotency_key: newKey() })).body.id as string;
const told = (events: StreamEvent[]) =>
  events.filter(({ event }) => event === 'messaging.pending').flatMap(({ data }) => data.message_ids as string[]);

test('a connection that went silent is noticed within 15 seconds, nothing is lost, and it is made anew', async () => {
  const proxy = await startTcpProxy(posthorn.database.url);
  const pod = await podListeningAt(proxy.url);
  await pod.becomes(LISTENING);
  const stream = await openStream(pod.url, b.token, `/messaging/v1/events?agent_id=${b.id}`);
  const sent = [await send()];
  await stream.until((events) => told(events).length === 1);
  proxy.freeze();
  sent.push(await send());
  await pod.becomes(deafBy('unreachable'));
  sent.push(await send());
  await stream.until((events) => told(events).length === 3); // by looking
  proxy.thaw();
  await pod.becomes(LISTENING);
  sent.push(await send());
  expect(told(await stream.until((events) => told(events).length === 4))).toEqual(sent);
  expect(log).toContain('POSTHORN_LISTEN_URL does not answer');
  stream.close();
  await pod.close();
  await proxy.close();
}, 60_000);

test('a backend that is killed is replaced, and what was said meanwhile is read', async () => {
  const pod = await podListeningAt(posthorn.database.url);
  await pod.becomes(LISTENING);
  const stream = await openStream(pod.url, b.token, `/messaging/v1/events?agent_id=${b.id}`);
  await stream.until((events) => events.length > 0);
  const sent: string[] = [];
  for (let round = 0; round < 5; round++) {
    await posthorn.database.admin.query(
      `select pg_terminate_backend(pid, 5000) from pg_stat_activity where application_name = 'posthorn listener' and datname = current_database()`,
    );
    sent.push(await send());
  }
  expect(told(await stream.until((events) => told(events).length === 5))).toEqual(sent);
  stream.close();
  await pod.close();
});

test.skipIf(!hasPooler)(
  'a transaction pooler is named, and mail is found by looking',
  async () => {
    const pooler = await startPooler(posthorn.database.url);
    const pod = await podListeningAt(pooler.url);
    await pod.becomes(deafBy('deaf'));
    expect(log).toContain('a transaction pooler or another database');
    const stream = await openStream(pod.url, b.token, `/messaging/v1/events?agent_id=${b.id}`);
    await stream.until((events) => events.length > 0);
    const id = await send();
    expect(told(await stream.until((events) => told(events).length === 1))).toEqual([id]);
    stream.close();
    await pod.close();
    await pooler.stop();
  },
  60_000,
);

describe('a server of its own', () => {
  let directory: string;
  beforeEach(async () => {
    directory = await mkdtemp(join(tmpdir(), 'posthorn-server-'));
  });
  afterEach(async () => {
    await rm(directory, { recursive: true, force: true });
  });
  const start = () => startEmbeddedPostgres({ dataDirectory: directory, settings: { fsync: 'off' } });

  test('a standby is named', async () => {
    await (await start()).stop();
    await writeFile(join(directory, 'cluster', 'standby.signal'), '', { mode: 0o644 });
    const standby = await start();
    const pod = await podListeningAt(standby.url);
    await pod.becomes(deafBy('standby'));
    expect(log).toContain('POSTHORN_LISTEN_URL is a standby');
    await pod.close();
    await standby.stop();
  }, 60_000);

  test('after a restart of the database everything is caught up', async () => {
    let server = await start();
    await migrate({ url: server.url, sqlDirectory: join(packageRoot, 'sql'), log: () => {} });
    const proxy = await startTcpProxy(server.url);
    const database = databaseAt(proxy.url);
    const own = await startPosthorn({ database });
    const owner = await own.owner();
    const [c, d] = [await owner.agent('c'), await owner.agent('d')];
    await owner.group([c, d]);
    const stream = await openStream(own.pods[0]!.url, d.token, `/messaging/v1/events?agent_id=${d.id}`);
    const say = () => c.send({ recipient_agent_id: d.id, body: 'words', idempotency_key: newKey() });
    const sent = [(await say()).body.id];
    await stream.until((events) => told(events).length === 1);
    await server.stop();
    server = await start();
    proxy.leadTo(server.url);
    await expect
      .poll(
        async () => {
          const { status, body } = await say();
          if (status === 201) sent.push(body.id);
          return status;
        },
        { timeout: NOTICED_MS },
      )
      .toBe(201);
    expect(told(await stream.until((events) => told(events).length === 2))).toEqual(sent);
    stream.close();
    await own.close();
    await database.drop();
    await proxy.close();
    await server.stop();
  }, 60_000);
});
