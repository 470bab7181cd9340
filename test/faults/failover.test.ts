import { afterAll, expect, test } from 'vitest';
import { type OwnServer, startFromBackup, startOwnServer, takeBaseBackup } from '../helpers/own-server.ts';
import { startPosthorn, type TestPosthorn } from '../helpers/posthorn.ts';
import { liftLimits, startTraffic } from '../helpers/traffic.ts';

const POSTS = 30;
const MOVED_MS = 20_000;
const sessions = `from pg_catalog.pg_stat_activity where application_name like 'posthorn%' and pid <> pg_backend_pid()`;

let posthorn: TestPosthorn;
const servers: OwnServer[] = [];
afterAll(async () => {
  await posthorn?.close();
  for (const server of servers) await server.remove();
});

test('the primary dies, the address moves to its standby, which is promoted: nothing lost, readers begin anew', async () => {
  const primary = await startOwnServer();
  servers.push(primary);
  const { database, proxy } = primary;
  const standby = await startFromBackup(await takeBaseBackup(primary), 'standby.signal', {
    primary_conninfo: primary.directUrl(),
  });
  servers.push(standby);
  // what was accepted is on both
  await database.admin.query(`alter system set synchronous_standby_names = '*'`);
  await database.admin.query('select pg_reload_conf()');
  const replicas = async () =>
    (await database.admin.query(`select from pg_catalog.pg_stat_replication where sync_state = 'sync'`)).rowCount;
  await expect.poll(replicas).toBe(1);

  posthorn = await startPosthorn({ database, pods: 2 });
  await liftLimits(database);
  const owner = await posthorn.owner();
  const agents = await Promise.all(['a', 'b', 'c'].map((label) => owner.agent(label)));
  const { id: groupId } = await owner.group(agents);
  const traffic = await startTraffic({ urls: posthorn.pods.map(({ url }) => url), agents, groupId, database });
  await traffic.more(POSTS);
  const epoch = async () => (await database.admin.query('select epoch from posthorn.server')).rows[0].epoch;
  const before = await epoch();

  // the address leads astray for a while, and back
  proxy.leadTo(standby.directUrl());
  await database.admin.query(`select pg_terminate_backend(pid) ${sessions}`).catch(() => {});
  await traffic.refused(/^503/);
  proxy.leadTo(primary.directUrl());
  await traffic.more(POSTS);

  await primary.kill();
  await traffic.refused(/^503/);
  proxy.leadTo(standby.directUrl()); // before it is promoted, as balancers do
  const health = async () => (await (await fetch(`${posthorn.pods[0]!.url}/readyz`)).json()) as object;
  await expect.poll(posthorn.log, { timeout: MOVED_MS }).toContain('POSTHORN_LISTEN_URL is a standby');
  expect(await health()).toMatchObject({ error: 'unavailable' });
  await standby.database.admin.query('select pg_promote()');
  await expect.poll(health, { timeout: MOVED_MS }).toMatchObject({ status: 'ready', listening: true });
  await traffic.more(POSTS);
  await traffic.finish({ maySayReset: true });
  expect(await epoch()).toBe(before + 1);
  expect(new Set(traffic.refusals.map(({ told }) => told))).toEqual(new Set(['503 unavailable, Retry-After 1']));
}, 180_000);
