// Tidying: 100,000 messages and 10,000 requests past their deadline, ended by the worker's own tasks while sends go on
// as fast as they can; then what is kept no longer, deleted likewise. Each round is a month later, so that tables reach
// the size that they keep.
import pg from 'pg';
import { makeKeyRing } from '../src/crypto/key-ring.ts';
import { describeMachine } from './machine.ts';
import { startWorkerProcess } from './processes.ts';
import { type Case, drive, type Report, type Result, runRounds } from './rounds.ts';
import { openLane } from './send-calls.ts';
import { actAsPod, startBenchServer } from './server.ts';
import { fillInboxes, fillRequests, seedTenants } from './tenants.ts';

const BATCH = 50;
const LANES = 2;
const DAYS_A_ROUND = 31;
const POLL_MS = 100;
/** Longer than any tidying takes. */
const ENDLESS_SECONDS = 3_600;

const FULL = { rounds: 10, seconds: 12, owners: 80, unread: 63, requests: 125 };
const QUICK = { rounds: 1, seconds: 0.2, owners: 2, unread: 5, requests: 3 };

/** From this round on, tables have been full once and tidied once. */
const SETTLED_ROUND = 4;

/** What is left to do. Limits are asked for once, since asking for each row would take longer than all the tidying. */
const OVERDUE = `
  select (select count(*) from posthorn.bodies where expires_at <= (select posthorn_impl.clock()))
       + (select count(*) from posthorn.proposals where state = 'pending' and expires_at <= (select posthorn_impl.clock())) as left`;
const OUTDATED = `
  select (select count(*) from posthorn.messages where state not in ('held', 'queued', 'delivered') and created_at <= (select posthorn_impl.kept_since('receipt_days')))
       + (select count(*) from posthorn.events where occurred_at <= (select posthorn_impl.kept_since('event_days'))) as left`;
const JOBS = 'select count(*) as left from graphile_worker.jobs';

export async function benchTidy({ isQuick }: { isQuick: boolean }): Promise<Report> {
  const size = isQuick ? QUICK : FULL;
  const server = await startBenchServer();
  const closers = [() => server.stop()];
  try {
    const url = await server.makeDatabase('tidy');
    const senders = await seedTenants(url, size.owners, makeKeyRing());
    const admin = new pg.Client({ connectionString: url });
    await admin.connect();
    closers.unshift(() => admin.end());
    await admin.query(`update posthorn.groups set expires_at = 'infinity'`);
    const lanes = await Promise.all(
      Array.from({ length: LANES }, (_, lane) =>
        openLane(
          actAsPod(url),
          senders.filter(({ groupId }) => Number.parseInt(groupId.slice(-4), 16) % LANES === lane),
          BATCH,
        ),
      ),
    );

    const left = async (query: string) => Number((await admin.query(query)).rows[0].left);
    async function sendFor(seconds: number, isOver?: () => boolean): Promise<number> {
      const run = await drive(LANES, seconds, (lane) => lanes[lane]!(), isOver);
      return (run.calls * BATCH) / run.seconds;
    }

    /** Does these tasks until nothing is left. */
    async function tidy(tasks: string[], query: string): Promise<void> {
      do {
        // again where a run left something over, as the schedule does it
        await admin.query('select graphile_worker.add_job(t, job_key := t) from unnest($1::text[]) t', [tasks]);
        // counting what is left would cost more than ending it does
        while ((await left(JOBS)) > 0) await new Promise((resolve) => setTimeout(resolve, POLL_MS));
      } while ((await left(query)) > 0);
    }

    /** The rate of sends while a worker does these tasks, and what it was shortly before and is shortly afterwards. */
    async function sendBeside(tasks: string[], query: string): Promise<Rates> {
      const rows = await left(query);
      const before = await sendFor(size.seconds);
      const worker = await startWorkerProcess(url);
      let isOver = false;
      const startedAt = performance.now();
      const [beside] = await Promise.all([
        sendFor(ENDLESS_SECONDS, () => isOver),
        tidy(tasks, query).then(() => {
          isOver = true;
        }),
      ]);
      console.error(`  ${tasks.join(', ')}: ${rows} in ${((performance.now() - startedAt) / 1_000).toFixed(1)} s`);
      await worker.stop();
      const after = await sendFor(size.seconds);
      console.error(`  before ${before.toFixed(0)} /s, after ${after.toFixed(0)} /s`);
      return { beside, alone: (before + after) / 2 };
    }

    const cases = [
      ...phaseCases('what is overdue is ended', () => sendBeside(['messages__expire', 'proposals__expire'], OVERDUE)),
      ...phaseCases('what is outdated is deleted', () => sendBeside(['outdated__delete'], OUTDATED)),
    ];

    const sizes: Map<string, number>[] = [];
    let round = 0;
    const results = await runRounds(cases, size.rounds, async () => {
      await forgetAll(admin);
      const measured = await measureSizes(admin);
      if (round > 0) sizes.push(measured);
      round++;
      await setClock(admin, round * DAYS_A_ROUND);
      await fillInboxes(url, size.unread);
      await fillRequests(url, size.requests);
      await server.checkpoint();
    });
    await forgetAll(admin);
    sizes.push(await measureSizes(admin));
    return { machine: await describeMachine(url, server.directory), results: [...results, summarizeGrowth(sizes)] };
  } finally {
    for (const close of closers) await close();
  }
}

/** Nothing of the round before is left, else the next one would tidy a million of the bench's own sends. */
async function forgetAll(admin: pg.Client): Promise<void> {
  await admin.query(`
    delete from posthorn.bodies;
    delete from posthorn.messages;
    delete from posthorn.events;
    delete from posthorn.idempotency_keys;
    update posthorn.mailboxes set unfenced = 0 where unfenced > 0`);
}

interface Rates {
  beside: number;
  alone: number;
}

function phaseCases(what: string, measureBoth: () => Promise<Rates>): Case[] {
  const alone = `sends before and after ${what}`;
  let rates: Rates;
  return [
    {
      name: `sends while ${what}`,
      unit: '/s',
      measure: async () => {
        rates = await measureBoth();
        return { figure: rates.beside };
      },
      peers: [{ name: alone, atLeast: 0.8 }],
    },
    { name: alone, unit: '/s', measure: async () => ({ figure: rates.alone }) },
  ];
}

/** Days ahead of the real time, for every session of the database. */
async function setClock(admin: pg.Client, days: number): Promise<void> {
  await admin.query(`
    create or replace function posthorn_impl.clock() returns timestamptz language sql volatile security invoker set search_path = pg_catalog, pg_temp
      as $$ select clock_timestamp() + interval '${days} days' $$`);
}

/** Bytes of every table of ours with its indexes, once what is dead has been given back. */
async function measureSizes(admin: pg.Client): Promise<Map<string, number>> {
  await admin.query('vacuum');
  const { rows } = await admin.query(
    `select c.relname as name, pg_total_relation_size(c.oid) as bytes from pg_class c
      where c.relnamespace in ('posthorn'::regnamespace, 'graphile_worker'::regnamespace) and c.relkind = 'r' order by 2 desc`,
  );
  return new Map(rows.map(({ name, bytes }) => [name, Number(bytes)]));
}

/** How much larger the table that grew most is after the last round than it ever was before, once tables had settled. */
function summarizeGrowth(sizes: Map<string, number>[]): Result {
  const last = sizes.at(-1)!;
  const before = sizes.slice(SETTLED_ROUND - 1, -1);
  const growth = [...last].map(([name, bytes]) => {
    const most = Math.max(...before.map((round) => round.get(name)!), 1 << 20);
    return { name, ratio: before.length === 0 ? 1 : bytes / most };
  });
  const worst = growth.toSorted((a, b) => b.ratio - a.ratio)[0]!;
  for (const name of [...last.keys()].slice(0, 6))
    console.error(`${name}: ${sizes.map((round) => (round.get(name)! / 2 ** 20).toFixed(0)).join(' ')} MiB`);
  return {
    name: `growth of ${worst.name} in the last round`,
    unit: '×',
    median: worst.ratio,
    lowest: Math.min(...growth.map(({ ratio }) => ratio)),
    highest: worst.ratio,
    rounds: growth.map(({ ratio }) => ratio),
    p50: null,
    comparisons: [],
    atMost: 1.1,
  };
}
