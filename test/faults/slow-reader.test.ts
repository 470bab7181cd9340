import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import { readdirSync } from 'node:fs';
import { type IncomingMessage, request } from 'node:http';
import type { Socket } from 'node:net';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { pino } from 'pino';
import { afterAll, beforeAll, expect, test, vi } from 'vitest';
import { type Pod, startPod } from '../../src/pod.ts';
import { openCrawlingReader, wholeEvents } from '../helpers/crawling-reader.ts';
import { openStream, type StreamEvent, type TestStream } from '../helpers/event-stream.ts';
import { newKey, startPosthorn, type TestAgent, type TestOwner, type TestPosthorn } from '../helpers/posthorn.ts';

// Readers that take almost nothing, leave without a word or only ask for the head. POSTHORN_TEST_STREAM_CYCLES makes the
// second test as long as one likes; 10,000 is its full form.
const CYCLES = Number(process.env.POSTHORN_TEST_STREAM_CYCLES ?? 600);
const AT_ONCE = 6;
const OTHERS = 1_000;
const OPENED_AT_ONCE = 20;
/** Far above what a send takes on a busy machine, far below what a reader would wait for one that is cut after 30 s. */
const SOON_MS = 5_000;
/** More than the kernel's buffers of both ends of a connection and ours hold: 13 MB. */
const BACKLOG = 60_000;

vi.setConfig({ testTimeout: 60_000 + CYCLES * 20 });

let posthorn: TestPosthorn;
let owner: TestOwner;
let sender: TestAgent;
let pod: Pod;

beforeAll(async () => {
  posthorn = await startPosthorn();
  owner = await posthorn.owner();
  sender = await owner.agent('sender');
  // whose log the test does not keep: it would count as heap
  pod = await startPod({
    databaseUrl: posthorn.database.url,
    listenUrl: posthorn.database.url,
    publicUrl: undefined,
    host: '127.0.0.1',
    port: 0,
    keyRing: posthorn.ring,
    log: pino({ enabled: false }),
  });
  posthorn.pods.push(pod);
});
afterAll(() => posthorn.close());

const path = (agent: TestAgent) => `/messaging/v1/events?agent_id=${agent.id}`;
const open = (agent: TestAgent, last?: string) => openStream(pod.url, agent.token, path(agent), last);
const told = (events: StreamEvent[]) =>
  events.filter(({ event }) => event === 'messaging.pending').flatMap(({ data }) => data.message_ids as string[]);
const due = (events: StreamEvent[]) => events.filter(({ event }) => event === 'wakeup.due');

async function appendEvents(agent: TestAgent, count: number): Promise<void> {
  await posthorn.database.admin.query(
    `with counted as (
       update posthorn.mailboxes set event_seq = event_seq + $2 where agent_id = $1 returning owner_id, agent_id, wake_number, event_seq - $2 as base
     ), told as (
       insert into posthorn.events (owner_id, agent_id, seq, kind, subject_id, occurred_at)
       select owner_id, agent_id, base + n, 'wakeup.due', gen_random_uuid(), clock_timestamp() from counted, generate_series(1, $2::int) n
     )
     select pg_notify('posthorn', wake_number::text) from counted`,
    [agent.id, count],
  );
}

test(`a reader at one byte a second among ${OTHERS} others is cut at its bound, delays nobody, and resumes`, async () => {
  const slow = await owner.agent('slow');
  const other = await owner.agent('other');
  await owner.group([sender, slow, other]);
  await posthorn.database.admin.query(`select ops.set_limit('streams_per_connection', 10000)`);
  const others: TestStream[] = [];
  while (others.length < OTHERS)
    others.push(...(await Promise.all(Array.from({ length: OPENED_AT_ONCE }, () => open(other)))));
  const held = watchHeldBytes(path(slow));
  const crawler = await openCrawlingReader(pod.url, slow.token, path(slow));
  const slots = async () =>
    (await posthorn.database.admin.query(`select from posthorn.streams where agent_ids @> array[$1::uuid]`, [slow.id]))
      .rowCount;
  expect(await slots()).toBe(1);

  await appendEvents(slow, BACKLOG);
  const sent: string[] = [];
  const latencies: number[] = [];
  do {
    const startedAt = performance.now();
    sent.push((await sender.send({ recipient_agent_id: other.id, body: 'words', idempotency_key: newKey() })).body.id);
    await Promise.all(others.map((stream) => stream.until((events) => told(events).length === sent.length)));
    latencies.push(performance.now() - startedAt);
  } while (sent.length < 15 && (await slots()) !== 0);
  for (const stream of others) expect(told(stream.events)).toEqual(sent);
  expect(Math.max(...latencies)).toBeLessThan(SOON_MS);
  await expect.poll(slots, { timeout: 40_000 }).toBe(0);
  // what waited when it was cut, and one event that was too much
  expect(held.most()).toBeGreaterThan(262_144);
  expect(held.most()).toBeLessThan(262_144 + 1_024);

  // what was on its way arrives
  await crawler.readToEnd();
  const heard = wholeEvents(crawler.text()).flatMap(
    (block) => /"type":"wakeup.due".*"id":"([^"]+)"/.exec(block)?.[1] ?? [],
  );
  expect(heard.length).toBeLessThan(BACKLOG);
  const again = await open(slow, crawler.lastId());
  const rest = due(await again.until((events) => due(events).length >= BACKLOG - heard.length));
  const { rows } = await posthorn.database.admin.query(
    'select subject_id as id from posthorn.events where agent_id = $1 order by seq',
    [slow.id],
  );
  expect([...heard, ...rest.map(({ data }) => data.id)]).toEqual(rows.map(({ id }) => id));
  for (const stream of [...others, again]) stream.close();
  await posthorn.database.admin.query(`select ops.set_limit('streams_per_connection', 8)`);
}, 120_000);

/** Watches how much waits in the pod, which is in this process, for the reader of this target, in bytes. */
function watchHeldBytes(target: string): { most(): number } {
  let most = 0;
  const watch = (message: unknown) => {
    const { request, socket } = message as { request: IncomingMessage; socket: Socket };
    if (request.url !== target) return;
    unsubscribe('http.server.request.start', watch);
    const write = socket.write;
    socket.write = ((...args: Parameters<typeof write>) => {
      const hasRoom = write.apply(socket, args);
      most = Math.max(most, socket.writableLength);
      return hasRoom;
    }) as typeof write;
  };
  subscribe('http.server.request.start', watch);
  return { most: () => most };
}

test(`${CYCLES} readers that come and go, by close, reset, HEAD and refusal, leave nothing behind`, async () => {
  setFlagsFromString('--expose_gc');
  const collect = runInNewContext('gc') as () => void;
  const agents: TestAgent[] = [];
  for (let index = 0; index < AT_ONCE; index++) agents.push(await owner.agent(`reader ${index}`));
  const heap = () => {
    collect();
    return process.memoryUsage().heapUsed;
  };
  const descriptors = () => readdirSync('/proc/self/fd').length;

  async function cycle(agent: TestAgent, number: number): Promise<void> {
    if (number % 4 === 3) return await askForHead(agent);
    const stream = await open(agent);
    if (stream.status === 429) return await stream.ended; // those before are not quite gone
    await stream.until((events) => events.length > 0);
    if (number % 4 === 0) stream.reset();
    else stream.close();
  }
  async function askForHead(agent: TestAgent): Promise<void> {
    const head = request(pod.url + path(agent), {
      method: 'HEAD',
      headers: { authorization: `Bearer ${agent.token}` },
      agent: false,
    });
    head.end();
    await new Promise((resolve, reject) =>
      head.once('response', (response) => resolve(response.resume())).once('error', reject),
    );
  }
  async function run(count: number): Promise<void> {
    let next = 0;
    await Promise.all(
      agents.map(async (agent) => {
        while (next < count) await cycle(agent, next++);
      }),
    );
    await expect
      .poll(async () => (await posthorn.database.admin.query('select from posthorn.streams')).rowCount)
      .toBe(0);
  }

  await run(AT_ONCE * 20); // pools and code
  const before = { heap: heap(), descriptors: descriptors() };
  await run(CYCLES);
  await expect.poll(descriptors, { timeout: 10_000 }).toBeLessThanOrEqual(before.descriptors);
  await expect.poll(heap, { timeout: 10_000 }).toBeLessThan(before.heap * 1.05);
});
