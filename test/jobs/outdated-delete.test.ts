import type { JobHelpers } from 'graphile-worker';
import { afterAll, beforeAll, expect, test } from 'vitest';
import deleteOutdatedRows from '../../jobs/outdated__delete.ts';
import { createWorld, expectInvariants, type World } from '../helpers/world.ts';

/** More than the pages of one batch hold. */
const ROWS = 40_000;

let world: World;

beforeAll(async () => {
  world = await createWorld();
});
afterAll(() => expectInvariants(world));

const jobs = () => world.database.as('posthorn_jobs');

/** Runs the task as the worker does; it is told to stop after so many batches. */
async function run(payload: unknown, batches: number): Promise<void> {
  const stopping = new AbortController();
  let batch = 0;
  await deleteOutdatedRows(payload, {
    abortSignal: stopping.signal,
    withPgClient: async (work: (client: unknown) => Promise<unknown>) => {
      if (++batch === batches) stopping.abort();
      return await work(jobs());
    },
    addJob: (task: string, next: unknown, { jobKey }: { jobKey: string }) =>
      jobs().query('select graphile_worker.add_job($1, $2, job_key := $3)', [task, next, jobKey]),
  } as unknown as JobHelpers);
}

async function nextPlace(): Promise<unknown> {
  const { rows } = await world.database.admin.query(
    `select payload from graphile_worker._private_jobs where key = 'outdated__delete'`,
  );
  return rows[0]?.payload;
}

async function countEvents(): Promise<number> {
  const { rows } = await world.database.admin.query('select count(*)::int as events from posthorn.events');
  return rows[0].events;
}

test('deleting what is outdated goes on where a run stopped', async () => {
  const owner = await world.makeOwner();
  const [agent] = await owner.agents(1);
  await world.database.admin.query(
    `with old as (
       insert into posthorn.events (owner_id, agent_id, seq, kind, subject_id, occurred_at)
       select o.owner_id, $1, n, 'messaging.pending', $1, posthorn_impl.clock() - interval '8 days'
         from posthorn.owners o cross join generate_series(1, ${ROWS}) n where o.id = $2
       returning 1)
     update posthorn.mailboxes set event_seq = (select count(*) from old) where agent_id = $1`,
    [agent!.id, owner.id],
  );

  // one batch for each of the three tables before it, and one of two for the events
  await run({}, 4);
  const place = await nextPlace();
  expect(place).toEqual({ table: 'events', firstPage: 256 });
  const left = await countEvents();
  expect(left).toBeGreaterThan(0);
  expect(left).toBeLessThan(ROWS);

  await run(place, Number.POSITIVE_INFINITY);
  expect(await countEvents()).toBe(0);
});
