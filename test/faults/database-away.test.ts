import pg from 'pg';
import { afterAll, beforeAll, beforeEach, expect, test, vi } from 'vitest';
import { type OwnServer, putSignal, startOwnServer } from '../helpers/own-server.ts';
import { startPosthorn, type TestAgent, type TestPosthorn } from '../helpers/posthorn.ts';
import { liftLimits, startTraffic, type Traffic } from '../helpers/traffic.ts';

// What clients are told while the database is away, busy or full, and that everything goes on behind it as if nothing
// had been. Each fault comes into traffic on two pods.
const POSTS = 30;
const UNAVAILABLE = '503 unavailable, Retry-After 1';
/** How long the server works on a statement, and how much longer a busy machine may take to say that it gave up. */
const STATEMENT_MS = 10_000;
const GIVEN_UP_MS = 14_000;
const isLong = process.env.POSTHORN_TEST_FAULTS === 'long';

vi.setConfig({ testTimeout: 60_000, hookTimeout: 120_000 });

let server: OwnServer;
let posthorn: TestPosthorn;
let agents: TestAgent[];
let groupId: string;
let traffic: Traffic;

beforeAll(async () => {
  server = await startOwnServer();
  posthorn = await startPosthorn({ database: server.database, pods: 2 });
  await liftLimits(server.database);
});
afterAll(async () => {
  await posthorn?.close();
  await server?.remove();
});

beforeEach(async () => {
  const { database } = server;
  const owner = await posthorn.owner();
  agents = await Promise.all(['a', 'b', 'c'].map((label) => owner.agent(label)));
  groupId = (await owner.group(agents)).id;
  traffic = await startTraffic({ urls: posthorn.pods.map(({ url }) => url), agents, groupId, database });
  await traffic.more(POSTS);
});

const told = () => new Set(traffic.refusals.map((refusal) => refusal.told));
const longest = () => Math.max(...traffic.refusals.map(({ after }) => after));
const health = async () => {
  const response = await fetch(`${posthorn.pods[0]!.url}/readyz`);
  const { error, status, listening, listener_problem } = (await response.json()) as Record<string, unknown>;
  return error ?? { status, listening, listener_problem };
};
const LISTENING = { status: 'ready', listening: true, listener_problem: null };
const wellAgain = () => expect.poll(health, { timeout: 20_000 }).toEqual(LISTENING);
const sessions = `from pg_catalog.pg_stat_activity where application_name like 'posthorn%' and pid <> pg_backend_pid()`;

test('killed with -9 and started again: 503 meanwhile, at once', async () => {
  await server.kill();
  await traffic.refused(/^503/);
  expect(await health()).toBe('unavailable');
  await server.start();
  await wellAgain();
  await traffic.more(POSTS);
  await traffic.finish();
  expect(told()).toEqual(new Set([UNAVAILABLE]));
  expect(longest()).toBeLessThan(STATEMENT_MS);
});

test('started again in recovery, and promoted later: 503 until then, and readers begin anew', async () => {
  await server.stop();
  await putSignal(server.directory, 'standby.signal');
  await server.start();
  await traffic.refused(/^503/);
  await expect.poll(posthorn.log, { timeout: 20_000 }).toContain('POSTHORN_LISTEN_URL is a standby');
  expect(await health()).toBe('unavailable');
  await server.database.admin.query('select pg_promote()');
  await wellAgain();
  await traffic.more(POSTS);
  await traffic.finish({ maySayReset: true });
  expect(told()).toEqual(new Set([UNAVAILABLE]));
});

test('every session terminated, five times: 503 for what was under way, and nothing twice', async () => {
  for (let round = 0; round < 5; round++) {
    await server.database.admin.query(`select pg_terminate_backend(pid, 5000) ${sessions}`);
    await traffic.more(POSTS / 5);
  }
  await wellAgain();
  await traffic.finish();
  expect([...told()].filter((text) => text !== UNAVAILABLE)).toEqual([]);
});

test('no connection left: 503 at once, and on when there is one', async () => {
  await server.stop();
  await server.start({ max_connections: '14', superuser_reserved_connections: '0' });
  const hogs = await takeConnections(server.directUrl());
  expect(hogs.length).toBeGreaterThan(0);
  // those of the pods that came first have work to do again
  await hogs[0]!.query(`select pg_terminate_backend(pid) ${sessions}`);
  hogs.push(...(await takeConnections(server.directUrl())));
  await traffic.refused(/^503/);
  await Promise.all(hogs.map((hog) => hog.end()));
  await traffic.more(POSTS);
  await server.stop();
  await server.start();
  await wellAgain();
  await traffic.finish();
  expect(told()).toEqual(new Set([UNAVAILABLE]));
});

test('a lock that is not let go: the statement gives up after ten seconds, reading goes on meanwhile', async () => {
  const holder = await server.database.admin.connect();
  await holder.query('begin');
  await holder.query('select from posthorn.conversations where group_id = $1 for update', [groupId]);
  const refused = traffic.refused(/^503/);
  const [reader] = agents;
  const startedAt = performance.now();
  expect((await reader!.call('GET', `/status?agent_id=${reader!.id}`)).status).toBe(200);
  expect(performance.now() - startedAt).toBeLessThan(STATEMENT_MS / 2);
  await refused;
  await holder.query('rollback');
  holder.release();
  await traffic.more(POSTS);
  await traffic.finish();
  expect(told()).toEqual(new Set([UNAVAILABLE]));
  expect(traffic.refusals.map(({ call }) => call)).not.toContain('receive');
  expect(longest()).toBeGreaterThan(STATEMENT_MS * 0.9);
  expect(longest()).toBeLessThan(GIVEN_UP_MS);
});

test('with a lock timeout of the operator: 503 as soon as that is over', async () => {
  const { admin } = server.database;
  await admin.query(`alter database postgres set lock_timeout = '200ms'`);
  const holder = await admin.connect();
  try {
    await holder.query('begin');
    await holder.query('select from posthorn.conversations where group_id = $1 for update', [groupId]);
    await admin.query(`select pg_terminate_backend(pid) ${sessions} and pid <> $1`, [
      (await holder.query('select pg_backend_pid() as pid')).rows[0].pid,
    ]);
    await traffic.refused(/^503/);
    await holder.query('rollback');
  } finally {
    holder.release();
    await admin.query('alter database postgres reset lock_timeout');
  }
  await traffic.more(POSTS);
  await traffic.finish();
  expect(told()).toEqual(new Set([UNAVAILABLE]));
  expect(longest()).toBeLessThan(STATEMENT_MS);
});

test('a slow and narrow way to the database: everything takes longer and nothing else', async () => {
  server.proxy.crawl({ delayMs: 40, bytesPerSecond: 50_000 });
  await traffic.more(POSTS);
  server.proxy.crawl({ delayMs: 0, bytesPerSecond: Number.POSITIVE_INFINITY });
  await traffic.finish();
  expect(traffic.refusals).toEqual([]);
});

test.runIf(isLong)('a database that falls silent: 503 after fifteen seconds, and on when it speaks again', async () => {
  server.proxy.freeze();
  await traffic.refused(/^503/);
  server.proxy.thaw();
  await wellAgain();
  await traffic.more(POSTS);
  await traffic.finish();
  expect(told()).toEqual(new Set([UNAVAILABLE]));
});

/** As many as there are. */
async function takeConnections(url: string): Promise<pg.Client[]> {
  const clients: pg.Client[] = [];
  for (;;) {
    const client = new pg.Client({ connectionString: url });
    client.on('error', () => {});
    const failure = await client.connect().then(
      () => undefined,
      (error) => error,
    );
    if (failure?.code === '53300') return clients;
    if (failure) throw failure;
    clients.push(client);
  }
}
