import { afterAll, expect, test } from 'vitest';
import { openStream, type TestStream } from '../helpers/event-stream.ts';
import { type OwnServer, startOwnServer } from '../helpers/own-server.ts';
import { startPosthorn, type TestOwner, type TestPosthorn } from '../helpers/posthorn.ts';
import { liftLimits, startTraffic } from '../helpers/traffic.ts';

// One backend is killed, by the kernel for want of memory, say. The postmaster then ends all others, recovers and empties
// unlogged tables: leases of streams and presence.
const CRASHES = 3;
const POSTS = 40;
/** Streams whose leases are gone end as soon as the pod listens again, and not when it renews them after 15 seconds. */
const TOLD_MS = 5_000;
/** Readers come back within six seconds. */
const FILLED_AGAIN_MS = 15_000;
/** As many as a connection may have. */
const STREAMS = 8;

let server: OwnServer;
let posthorn: TestPosthorn;
afterAll(async () => {
  await posthorn?.close();
  await server?.remove();
});

test('kill -9 of a backend under streams and writers: every event once and in order, and leases come back', async () => {
  server = await startOwnServer();
  const { database } = server;
  posthorn = await startPosthorn({ database, pods: 2 });
  await liftLimits(database);
  const owner = await posthorn.owner();
  const agents = await Promise.all(['a', 'b', 'c'].map((label) => owner.agent(label)));
  const { id: groupId } = await owner.group(agents);
  const urls = posthorn.pods.map(({ url }) => url);
  const traffic = await startTraffic({ urls, agents, groupId, database });

  for (let crash = 0; crash < CRASHES; crash++) {
    await traffic.more(POSTS);
    const before = await leases();
    const streams = await fillSlots(owner, urls[crash % urls.length]!);
    const health = watchHealth(urls[crash % urls.length]!);
    await killBackend();
    await health.wentAndCame();
    expect(health.seen).toContain('503 unavailable');
    const recoveredAt = performance.now();
    await Promise.all(streams.map(({ ended }) => ended));
    expect(performance.now() - recoveredAt, 'streams beyond those that are counted').toBeLessThan(TOLD_MS);
    for (const { events } of streams) expect(events.at(-1)!.data.reason).toBe('draining');
    await traffic.more(POSTS);
    expect(await stillThere(before), 'leases of before').toBe(0);
  }
  const { length: agentCount } = agents;
  await expect.poll(leases, { timeout: FILLED_AGAIN_MS }).toHaveLength(agentCount * urls.length);
  const present = async () => (await database.admin.query('select from posthorn.presence')).rowCount;
  await expect.poll(present).toBe(agentCount);

  await traffic.finish();
  expect(new Set(traffic.refusals.map(({ told }) => told))).toEqual(new Set(['503 unavailable, Retry-After 1']));
}, 180_000);

async function fillSlots(owner: TestOwner, url: string): Promise<TestStream[]> {
  const { id, token } = await owner.agent('with all its streams');
  const open = () => openStream(url, token, `/messaging/v1/events?agent_id=${id}`);
  const streams = await Promise.all(Array.from({ length: STREAMS }, open));
  expect((await open()).status).toBe(429);
  return streams;
}

async function leases(): Promise<string[]> {
  const { rows } = await server.database.admin.query('select stream_id as id from posthorn.streams');
  return rows.map(({ id }) => id);
}

async function stillThere(streamIds: string[]): Promise<number | null> {
  const { rowCount } = await server.database.admin.query('select from posthorn.streams where stream_id = any ($1)', [
    streamIds,
  ]);
  return rowCount;
}

/** Ends one of a pod's backends as the kernel does. */
async function killBackend(): Promise<void> {
  const { rows } = await server.database.admin.query(
    `select pid from pg_catalog.pg_stat_activity where application_name = 'posthorn' and pid <> pg_backend_pid() order by query_start desc limit 1`,
  );
  process.kill(rows[0].pid, 'SIGKILL');
}

/** Asks a pod for its health again and again, from now until it was ill and is well. */
function watchHealth(url: string) {
  const seen: string[] = [];
  const asking = (async () => {
    let wasIll = false;
    for (;;) {
      const response = await fetch(`${url}/readyz`);
      const { status, error, listening } = (await response.json()) as Record<string, unknown>;
      seen.push(`${response.status} ${error ?? status}`);
      wasIll ||= response.status === 503;
      if (wasIll && listening) return;
    }
  })();
  return { seen, wentAndCame: () => asking };
}
