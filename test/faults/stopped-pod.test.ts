import { afterAll, expect, test } from 'vitest';
import { serializeKeyRing } from '../../src/crypto/key-ring.ts';
import { type ServerProcess, startProcess } from '../helpers/command-line.ts';
import { openStream } from '../helpers/event-stream.ts';
import { callHttp, startPosthorn, type TestPosthorn } from '../helpers/posthorn.ts';
import { liftLimits, startTraffic } from '../helpers/traffic.ts';

const POSTS = 30;
/** Clients of a pod that does not answer try another one. */
const PATIENCE_MS = 2_000;

let posthorn: TestPosthorn;
const pods: ServerProcess[] = [];
afterAll(async () => {
  for (const { child } of pods) child.kill('SIGKILL');
  await Promise.all(pods.map(({ exited }) => exited));
  await posthorn.close();
});

test('a pod stopped past its leases and continued: its slots are free meanwhile, and nothing comes twice', async () => {
  posthorn = await startPosthorn();
  const { database, ring } = posthorn;
  await liftLimits(database);
  const settings = {
    POSTHORN_DATABASE_URL: database.url,
    POSTHORN_KEYRING: serializeKeyRing(ring),
    POSTHORN_PORT: '0',
    POSTHORN_DATA_DIR: '/nowhere',
  };
  pods.push(await startProcess(['serve'], settings), await startProcess(['serve'], settings));
  const [stopped, other] = pods.map(({ ready }) => ready.url as string) as [string, string];
  const owner = await posthorn.owner();
  const agents = await Promise.all(['a', 'b', 'c'].map((label) => owner.agent(label)));
  const { id: groupId } = await owner.group(agents);
  const traffic = await startTraffic({ urls: [stopped, other], agents, groupId, database, patienceMs: PATIENCE_MS });
  const loner = await owner.agent('loner');
  const path = `/messaging/v1/events?agent_id=${loner.id}`;
  const streams = await Promise.all(Array.from({ length: 8 }, () => openStream(stopped, loner.token, path)));
  await Promise.all(streams.map((stream) => stream.until((events) => events.length > 0)));
  expect((await callHttp(other, loner.token, 'GET', path)).body.error).toBe('stream_limit');
  await traffic.more(POSTS);

  pods[0]!.child.kill('SIGSTOP');
  await traffic.refused(/^no answer/);
  await database.admin.query(`update posthorn_test.clock set shift = shift + interval '46 seconds'`);
  const { rows } = await database.admin.query(
    'select from posthorn.presence where agent_id = $1 and present_until > posthorn_impl.clock()',
    [loner.id],
  );
  expect(rows).toEqual([]);
  const instead = await Promise.all(Array.from({ length: 8 }, () => openStream(other, loner.token, path)));
  expect(instead.map(({ status }) => status)).toEqual(instead.map(() => 200));
  await traffic.more(POSTS);

  pods[0]!.child.kill('SIGCONT');
  await traffic.more(POSTS);
  // those that it held before find their slots taken
  await Promise.all(streams.map(({ ended }) => ended));
  const farewells = streams.map(({ events }) => events.at(-1)!);
  for (const { event, data } of farewells) expect([event, data.reason]).toEqual(['stream.closing', 'draining']);
  const { rowCount } = await database.admin.query('select from posthorn.streams where agent_ids @> array[$1::uuid]', [
    loner.id,
  ]);
  expect(rowCount).toBe(8);
  for (const stream of instead) stream.close();
  await traffic.finish();
  expect(new Set(traffic.refusals.map(({ told }) => told))).toEqual(new Set(['no answer']));
}, 120_000);
