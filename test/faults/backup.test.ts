import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { chmod, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { pino } from 'pino';
import { afterAll, expect, test } from 'vitest';
import { chosenMajor } from '../../scripts/throwaway-server.ts';
import { startPod } from '../../src/pod.ts';
import { ask } from '../helpers/answers.ts';
import { databaseAt, type TestDatabase } from '../helpers/database.ts';
import { type OwnServer, startFromBackup, startOwnServer, takeBaseBackup } from '../helpers/own-server.ts';
import { callHttp, newKey, startPosthorn, type TestAgent, type TestPosthorn } from '../helpers/posthorn.ts';

const run = promisify(execFile);
/** Where Debian puts the client programs of this version; a pg_dump of another one refuses the server, or is newer. */
const PROGRAMS = `/usr/lib/postgresql/${chosenMajor()}/bin`;
const hasDump = existsSync(join(PROGRAMS, 'pg_dump'));
const RECOVERED_MS = 30_000;

const running: TestPosthorn[] = [];
const servers: OwnServer[] = [];
const folders: string[] = [];
afterAll(async () => {
  for (const posthorn of running) await posthorn.close();
  for (const server of servers) await server.remove();
  for (const folder of folders) await rm(folder, { recursive: true, force: true });
});

type Before = Awaited<ReturnType<typeof mailAround>>;

/** Two agents, a message that the second has acknowledged after `keep` was done, and one that waits. */
async function mailAround(server: OwnServer, keep: () => Promise<void>) {
  const posthorn = await startPosthorn({ database: server.database });
  running.push(posthorn);
  const owner = await posthorn.owner();
  const [a, b] = [await owner.agent('a'), await owner.agent('b')];
  await owner.group([a, b]);
  const send = async (body: string) =>
    (await a.send({ recipient_agent_id: b.id, body, idempotency_key: newKey() })).body.id as string;
  const sent = [await send('one'), await send('two')];
  await keep();
  expect((await b.ack([sent[0]!])).status).toBe(200);
  return { posthorn, a, b, sent };
}

const bodies = async ({ admin }: TestDatabase) =>
  (await admin.query('select count(*)::int as n from posthorn.bodies')).rows[0].n;

/** That a pod on this database, which has the bodies of before, gives out none of them and goes on. */
async function expectFenced(database: TestDatabase, { posthorn, a, b, sent }: Before): Promise<void> {
  const pod = await startPod({
    databaseUrl: database.url,
    listenUrl: database.url,
    publicUrl: undefined,
    host: '127.0.0.1',
    port: 0,
    keyRing: posthorn.ring,
    log: pino({ enabled: false }),
  });
  const call = (agent: TestAgent, method: string, path: string, body?: object) =>
    callHttp(pod.url, agent.token, method, `/messaging/v1${path}`, body);
  const receive = async () => (await call(b, 'POST', '/receive', { agent_id: b.id })).body.messages;
  expect(await receive()).toEqual([]);
  for (const id of sent) expect((await call(a, 'GET', `/messages/${id}?agent_id=${a.id}`)).body.state).toBe('revoked');
  const later = { agent_id: a.id, recipient_agent_id: b.id, body: 'later', idempotency_key: newKey() };
  expect((await call(a, 'POST', '/send', later)).status).toBe(201);
  expect(await receive()).toMatchObject([{ body: 'later' }]);
  expect((await database.admin.query('select * from ops.invariants')).rows).toEqual([]);
  await pod.close();
}

test('a base backup and its WAL, recovered to before an acknowledgement: posthorn restore fences what came back', async () => {
  const server = await startOwnServer();
  servers.push(server);
  const archive = await mkdtemp(join(tmpdir(), 'posthorn-archive-'));
  folders.push(archive);
  await chmod(archive, 0o777); // the server may run as another user
  await server.stop();
  await server.start({ archive_mode: 'on', archive_command: `cp %p ${archive}/%f` });
  const backup = await takeBaseBackup(server);
  const { admin } = server.database;
  const before = await mailAround(server, async () => {
    await admin.query(`select pg_create_restore_point('noon')`);
  });
  await admin.query('select pg_switch_wal()');
  const archived = async () =>
    (
      await admin.query(
        'select last_archived_wal >= pg_walfile_name(pg_current_wal_lsn() - 1) as done from pg_stat_archiver',
      )
    ).rows[0].done;
  await expect.poll(archived, { timeout: RECOVERED_MS }).toBe(true);

  const restored = await startFromBackup(backup, 'recovery.signal', {
    restore_command: `cp ${archive}/%f %p`,
    recovery_target_name: 'noon',
    recovery_target_action: 'promote',
  });
  servers.push(restored);
  const isRecovered = async () =>
    (await restored.database.admin.query('select not pg_is_in_recovery() as done')).rows[0].done;
  await expect.poll(isRecovered, { timeout: RECOVERED_MS }).toBe(true);
  expect(await bodies(restored.database), 'the acknowledged one too').toBe(2);
  expect(
    await ask(['restore', '--confirm', 'fence'], {
      POSTHORN_DATABASE_URL: restored.database.url,
      POSTHORN_DATA_DIR: '/nowhere',
    }),
  ).toEqual({ fenced: true });
  await expectFenced(restored.database, before);
}, 180_000);

test.skipIf(!hasDump)(
  'pg_dump put into another cluster: nobody is served until all that came back is fenced',
  async () => {
    const server = await startOwnServer();
    servers.push(server);
    const folder = await mkdtemp(join(tmpdir(), 'posthorn-dump-'));
    folders.push(folder);
    const file = join(folder, 'dump.sql');
    const before = await mailAround(server, async () => {
      await run(join(PROGRAMS, 'pg_dump'), ['--dbname', server.directUrl(), '--file', file]);
    });
    const other = await startOwnServer();
    servers.push(other);
    const { admin } = other.database;
    await admin.query('create database restored');
    const url = Object.assign(new URL(other.directUrl()), { pathname: '/restored' }).toString();
    await run(join(PROGRAMS, 'psql'), ['--dbname', url, '--set', 'ON_ERROR_STOP=1', '--quiet', '--file', file]);
    const database = databaseAt(url);
    expect(await bodies(database), 'the acknowledged one too').toBe(2);
    await expectFenced(database, before);
    await database.drop();
  },
  180_000,
);
