// Growth: what agents do every turn, with a thousand to ten million messages stored and 100,000 agents, each size in a
// database of its own so that rounds alternate between them. Then how fast a million messages past their deadline end.
import pg from 'pg';
import { makeKeyRing } from '../src/crypto/key-ring.ts';
import { advanceReceipts, agentStatus, listAgents, readInbox } from '../src/db/functions.ts';
import { createPool } from '../src/db/pool.ts';
import { describeMachine } from './machine.ts';
import { startWorkerProcess } from './processes.ts';
import { type Case, drive, median, type Report, type Result, runRounds, singleResult } from './rounds.ts';
import { openLane } from './send-calls.ts';
import { actAsPod, startBenchServer } from './server.ts';
import { fillHistory, fillInboxes, pick, type Sender, seedTenants } from './tenants.ts';

const FULL = { rounds: 7, seconds: 0.6, owners: 5_000, stored: [1_000, 100_000, 1_000_000, 10_000_000], overdue: 10 };
const QUICK = { rounds: 1, seconds: 0.05, owners: 3, stored: [10, 100], overdue: 1 };

/** How much an act may cost of what it costs with the fewest messages. */
const BAR = 1.3;

/** Owners whose agents have unread mail to read. */
const READERS = 50;
const PAGE = 20;
const POLL_MS = 100;

/** Tables that grow with use; none of the acts may read one from end to end. */
const GROWING = ['messages', 'bodies', 'events', 'idempotency_keys', 'conversations', 'agents', 'mailboxes', 'members'];

interface Store {
  stored: number;
  url: string;
  pool: pg.Pool;
  /** What agents do, each by its median duration in milliseconds. */
  acts: Record<string, (seconds: number) => Promise<number>>;
}

export async function benchGrowth({ isQuick }: { isQuick: boolean }): Promise<Report> {
  const size = isQuick ? QUICK : FULL;
  const server = await startBenchServer();
  const closers = [() => server.stop()];
  try {
    const stores: Store[] = [];
    for (const stored of size.stored) {
      const url = await server.makeDatabase(`stored_${stored}`);
      const senders = await seedTenants(url, size.owners, makeKeyRing());
      await fillHistory(url, stored);
      await fillInboxes(url, PAGE, READERS);
      const store = await openStore(url, stored, senders);
      closers.unshift(() => store.pool.end());
      stores.push(store);
      console.error(`seeded ${senders.length} agents with ${stored} messages`);
    }
    const [smallest] = stores;
    const named = (act: string, { stored }: Store) =>
      `${act}, ${stored.toExponential(0).replace('e+', ' × 10^')} stored`;
    const cases: Case[] = Object.keys(smallest!.acts).flatMap((act) =>
      stores.map((store) => ({
        name: named(act, store),
        unit: 'ms' as const,
        measure: async () => ({ figure: await store.acts[act]!(size.seconds) }),
        peers: store === smallest ? [] : [{ name: named(act, smallest!), atMost: BAR }],
      })),
    );
    for (const { measure } of cases) await measure(); // connections, plans and caches
    const scansBefore = await countScans(stores);
    const results = await runRounds(cases, size.rounds, server.checkpoint);
    const scans = (await countScans(stores)) - scansBefore;
    const machine = await describeMachine(smallest!.url, server.directory);
    return {
      machine,
      results: [
        ...results,
        singleResult({ name: 'growing tables read from end to end', unit: '×', figure: scans, atMost: 0 }),
        await endOverdue(stores.at(-1)!, size.overdue),
      ],
    };
  } finally {
    for (const close of closers) await close();
  }
}

async function openStore(url: string, stored: number, senders: Sender[]): Promise<Store> {
  const pool = createPool({ url, role: 'posthorn_app', max: 1 });
  const send = await openLane(actAsPod(url), senders, 1);
  const readers = await readersOf(pool, senders);
  const timed = (work: () => Promise<unknown>) => async (seconds: number) =>
    median((await drive(1, seconds, work)).latencies);
  const as = ({ credentialHash: credential, agentId }: Sender) => ({ credential, agentId });
  return {
    stored,
    url,
    pool,
    acts: {
      send: timed(send),
      'inbox page': timed(() => readInbox(pool, { ...as(pick(readers)), after: 0, limit: PAGE })),
      receive: timed(async () => {
        const { credential, agentId } = as(pick(readers));
        const rows = await readInbox(pool, { credential, agentId, after: 0, limit: PAGE });
        await advanceReceipts(pool, {
          credentials: [credential],
          agentIds: [agentId],
          levels: ['delivered'],
          items: rows.map(() => 1),
          messageIds: rows.map(({ id }) => id),
        });
      }),
      status: timed(() => agentStatus(pool, as(pick(senders)))),
      'list of agents': timed(() => listAgents(pool, { ...as(pick(senders)), limit: PAGE })),
    },
  };
}

/** Those who have mail. */
async function readersOf(pool: pg.Pool, senders: Sender[]): Promise<Sender[]> {
  const readers: Sender[] = [];
  for (const sender of senders.slice(0, READERS * 20)) {
    const { credentialHash: credential, agentId } = sender;
    if ((await readInbox(pool, { credential, agentId, after: 0, limit: 1 })).length > 0) readers.push(sender);
  }
  return readers;
}

/** How often any of the growing tables was read from end to end. */
async function countScans(stores: Store[]): Promise<number> {
  let scans = 0;
  for (const { url } of stores) {
    await asAdmin(url, async (client) => {
      const { rows } = await client.query(
        `select sum(seq_scan) as scans from pg_stat_user_tables where schemaname = 'posthorn' and relname = any ($1)`,
        [GROWING],
      );
      scans += Number(rows[0].scans);
    });
  }
  return scans;
}

/** Messages past their deadline that a worker ends in a second, so many in each inbox. */
async function endOverdue({ url }: Store, unread: number): Promise<Result> {
  await fillInboxes(url, unread);
  return await asAdmin(url, async (client) => {
    await client.query(`
      create or replace function posthorn_impl.clock() returns timestamptz language sql volatile security invoker set search_path = pg_catalog, pg_temp
        as $$ select clock_timestamp() + interval '2 days' $$`);
    const count = async () => Number((await client.query('select count(*) from posthorn.bodies')).rows[0].count);
    const overdue = await count();
    const worker = await startWorkerProcess(url);
    const startedAt = performance.now();
    while ((await count()) > 0) {
      await client.query(`select graphile_worker.add_job('messages__expire', job_key := 'messages__expire')`);
      while (Number((await client.query('select count(*) from graphile_worker.jobs')).rows[0].count) > 0)
        await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    }
    const seconds = (performance.now() - startedAt) / 1_000;
    await worker.stop();
    return singleResult({
      name: `ending ${overdue} messages past their deadline`,
      unit: '/s',
      figure: overdue / seconds,
    });
  });
}

async function asAdmin<Answer>(url: string, work: (client: pg.Client) => Promise<Answer>): Promise<Answer> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  try {
    return await work(client);
  } finally {
    await client.end();
  }
}
