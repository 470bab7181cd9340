import { afterAll, beforeAll, expect, test, vi } from 'vitest';
import { makeKeyRing, serializeKeyRing } from '../../src/crypto/key-ring.ts';
import { makeOwner } from '../../src/new-owner.ts';
import { runHere, type ServerProcess, type Settings, startProcess } from '../helpers/command-line.ts';
import { createTestDatabase, type TestDatabase } from '../helpers/database.ts';
import { followLog, makeReader, readLog } from '../helpers/event-log.ts';
import { callHttp } from '../helpers/posthorn.ts';

// Streams while everything dies: three pods as processes, killed in turn and started anew; listeners whose backends are
// killed every two seconds; commits that come late, in another order than they began. Every stream must see every event
// of its agent once, in order. POSTHORN_TEST_CHAOS_EVENTS makes it as long as one likes; 50,000 is the full form.
const EVENTS = Number(process.env.POSTHORN_TEST_CHAOS_EVENTS ?? 3_000);
const PODS = 3;
const WRITERS = 16;
const AGENTS = 8;
const STREAMS_PER_AGENT = 2;
const LISTENER_KILL_MS = 2_000;
const POD_KILL_MS = 3_000;
const POSTS = Math.ceil(EVENTS / (AGENTS - 1));

vi.setConfig({ testTimeout: 60_000 + EVENTS * 40 });

let database: TestDatabase;
let settings: Settings;
let pods: ServerProcess[] = [];

afterAll(() => {
  for (const pod of pods) pod.child.kill('SIGKILL');
});

beforeAll(async () => {
  database = await createTestDatabase();
  const ring = makeKeyRing();
  await makeOwner(database.as('posthorn_admin'), ring, 'Owner');
  for (const name of ['conversation_posts', 'group_posts_per_minute', 'inbox_messages']) {
    await database.admin.query('select ops.set_limit($1, 1000000)', [name]);
  }
  await database.admin.query(`
    create function posthorn_test.commit_late() returns trigger language plpgsql as $$
    begin
      if random() < 0.02 then
        perform pg_sleep(random() * 0.05);
      end if;
      return null;
    end $$;
    create constraint trigger commit_late after insert on posthorn.events deferrable initially deferred
      for each row execute function posthorn_test.commit_late()`);
  settings = {
    POSTHORN_DATABASE_URL: database.url,
    POSTHORN_KEYRING: serializeKeyRing(ring),
    POSTHORN_PORT: '0',
    POSTHORN_DATA_DIR: '/nowhere',
  };
});

interface Agent {
  id: string;
  token: string;
}

test(`${EVENTS} events through kills and late commits: every stream sees each once, in order`, async () => {
  pods = await Promise.all(Array.from({ length: PODS }, () => startProcess(['serve'], settings)));
  const urls = pods.map((pod) => pod.ready.url as string);
  const over = new AbortController();

  const agents: Agent[] = [];
  for (let index = 0; index < AGENTS; index++) agents.push(await register(urls[0]!, `agent-${index}`));
  const named = agents.flatMap(({ id }) => ['--agent', id]);
  const { id: groupId } = (
    await runHere(['owner', 'groups', 'create', '--name', 'g', '--purpose', 'p', ...named, '--json'], settings)
  ).json();

  const readers = agents.flatMap((agent) => Array.from({ length: STREAMS_PER_AGENT }, () => makeReader(agent)));
  const reading = readers.map((reader, index) => followLog(reader, urls, index, over.signal));
  await expect.poll(() => readers.every(({ lastId }) => lastId !== undefined), { timeout: 30_000 }).toBe(true);

  const killing = killInTurn(urls, () => over.signal.aborted);
  let next = 0;
  const writer = async () => {
    while (next < POSTS) {
      const index = next++;
      await postUntilAnswered(agents[index % AGENTS]!, groupId, index, urls);
    }
  };
  await Promise.all(Array.from({ length: WRITERS }, writer));
  await acknowledgeSome(agents[0]!, urls);

  const logs = new Map<string, string[]>();
  for (const { id } of agents) logs.set(id, await readLog(database, id));
  const missing = () => readers.reduce((sum, { agent, heard }) => sum + logs.get(agent.id)!.length - heard.length, 0);
  await expect.poll(missing, { timeout: 30_000, interval: 100 }).toBeLessThanOrEqual(0);
  over.abort();
  const kills = await killing;
  for (const pod of pods) pod.child.kill('SIGTERM');
  await Promise.all([...reading, ...pods.map((pod) => pod.exited)]);

  for (const { agent, heard } of readers) expect(heard).toEqual(logs.get(agent.id));
  expect([...logs.values()].flat().length).toBeGreaterThanOrEqual(EVENTS);
  expect(kills.pods, 'pods that were killed').toBeGreaterThan(0);
  expect(kills.listeners, 'listeners that were killed').toBeGreaterThan(0);
  expect(Math.max(...readers.map(({ openings }) => openings)), 'streams that were resumed').toBeGreaterThan(1);
});

async function register(url: string, label: string): Promise<Agent> {
  const { token } = (
    await runHere(['token', 'create', '--label', label, '--scope', 'messaging', '--json'], settings)
  ).json();
  const answer = await callHttp(url, token, 'POST', '/messaging/v1/agents', {
    label,
    runtime: 'other',
    installation: 'x',
  });
  return { token, id: answer.body.id };
}

/** Kills a pod every three seconds, starts another in its place, and kills the listeners' backends every two. */
async function killInTurn(urls: string[], isDone: () => boolean) {
  const kills = { pods: 0, listeners: 0 };
  const listeners = setInterval(async () => {
    const { rowCount } = await database.admin.query(
      `select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'posthorn listener' and datname = current_database()`,
    );
    kills.listeners += rowCount ?? 0;
  }, LISTENER_KILL_MS);
  let due = Date.now() + POD_KILL_MS;
  let restarting: Promise<void> = Promise.resolve();
  await new Promise<void>((resolve) => {
    const timer = setInterval(() => {
      if (isDone()) {
        clearInterval(timer);
        clearInterval(listeners);
        void restarting.then(resolve);
      } else if (Date.now() >= due) {
        due = Number.POSITIVE_INFINITY;
        const victim = kills.pods++ % PODS;
        pods[victim]!.child.kill('SIGKILL');
        restarting = startProcess(['serve'], settings).then((pod) => {
          pods[victim] = pod;
          urls[victim] = pod.ready.url;
          due = Date.now() + POD_KILL_MS;
        });
      }
    }, 50);
  });
  return kills;
}

/** Tries the pods in turn with one key, until there is a receipt. */
async function postUntilAnswered(agent: Agent, groupId: string, index: number, urls: string[]): Promise<void> {
  const body = { agent_id: agent.id, group_id: groupId, body: 'words', idempotency_key: `post-${index}` };
  for (let attempt = index; ; attempt++) {
    const url = urls[attempt % urls.length]!;
    const answer = await callHttp(url, agent.token, 'POST', '/messaging/v1/send', body).catch(() => null);
    if (answer && answer.status < 300) return;
    if (answer && answer.status < 500) throw new Error(JSON.stringify(answer.body));
  }
}

/** So that senders' logs hold states besides mail. */
async function acknowledgeSome(agent: Agent, urls: string[]): Promise<void> {
  for (let attempt = 0; ; attempt++) {
    const call = (path: string, body: object) =>
      callHttp(urls[attempt % urls.length]!, agent.token, 'POST', `/messaging/v1${path}`, {
        agent_id: agent.id,
        ...body,
      });
    const received = await call('/receive', { limit: 20 }).catch(() => null);
    if (received?.status !== 200) continue;
    const message_ids = received.body.messages.map((message: { id: string }) => message.id);
    const acknowledged = await call('/ack', { message_ids }).catch(() => null);
    if (acknowledged?.status === 200) return;
  }
}
