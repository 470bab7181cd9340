import { afterAll, expect, test } from 'vitest';
import { deleteAccount } from '../../src/db/functions.ts';
import { type ServerProcess, startProcess } from '../helpers/command-line.ts';
import { buildGate } from '../helpers/gate.ts';
import { createWorld, expectInvariants, sendBatch, type World } from '../helpers/world.ts';

const TASKS = ['messages__expire', 'proposals__expire', 'outdated__delete', 'accounts__delete'];
/** What each calls for one batch. */
const BATCHES = ['expire_messages', 'expire_proposals', 'delete_outdated', 'delete_deleted_accounts'];
/** Where each of them deletes. */
const TABLES = ['bodies', 'held_bodies', 'events', 'audit_entries'];

const workers: ServerProcess[] = [];
afterAll(() => Promise.all(workers.map((worker) => end(worker, 'SIGKILL'))));

test('tasks killed in the middle of their batches end where undisturbed ones end', async () => {
  const undisturbed = await worldWithWork();
  await queue(undisturbed);
  const worker = await startWorker(undisturbed);
  await finished(undisturbed);
  expect(await end(worker, 'SIGTERM')).toBe(0);

  const disturbed = await worldWithWork();
  const gate = await buildGate(disturbed.database, BATCHES, TABLES);
  await gate.close();
  await queue(disturbed);
  for (const happens of ['not', 'all', 'not', 'all']) {
    const victim = await startWorker(disturbed);
    await gate.reached(BATCHES);
    await end(victim, 'SIGKILL');
    if (happens === 'not') await gate.cut();
    else await gate.letThrough();
    // until then a silent one may live
    await disturbed.clock.advance('1 minute');
  }
  await gate.open();
  const last = await startWorker(disturbed);
  await finished(disturbed);
  expect(await end(last, 'SIGTERM')).toBe(0);
  await gate.end();

  expect(await endState(disturbed)).toEqual(await endState(undisturbed));
  await expectInvariants(disturbed);
}, 120_000);

/** Several batches of work for each task, the same in each world but for ids and times. */
async function worldWithWork(): Promise<World> {
  const world = await createWorld();
  for (const name of ['conversation_posts', 'group_posts_per_minute']) await world.setLimit(name, 1_000_000);

  const writers = await world.makeOwner('writers');
  const [sender, ...readers] = await writers.agents(7);
  await writers.group([sender!, ...readers]);
  for (const reader of readers) {
    await sendBatch(
      world,
      Array.from({ length: 100 }, () => ({ from: sender!, to: reader })),
    );
  }

  for (const label of ['first', 'second', 'third', 'fourth']) {
    const owner = await world.makeOwner(label);
    const [a, b] = await owner.agents(2);
    await sendBatch(world, [
      { from: a!, to: b!, purpose: 'Please' },
      { from: b!, to: a!, purpose: 'Please' },
    ]);
  }

  // 40,000 rows are more than the pages of one batch
  await world.database.admin.query(
    `with old as (
       insert into posthorn.events (owner_id, agent_id, seq, kind, subject_id, occurred_at)
       select o.owner_id, $1, n, 'messaging.pending', $1, posthorn_impl.clock() - interval '8 days'
         from posthorn.owners o cross join generate_series(1, 40000) n where o.id = $2
       returning 1)
     update posthorn.mailboxes set event_seq = (select count(*) from old) where agent_id = $1`,
    [(await writers.agent('old')).id, writers.id],
  );

  const leaver = await world.makeOwner('leaver');
  const [c, d] = await leaver.agents(2);
  await leaver.group([c!, d!]);
  await sendBatch(world, [{ from: c!, to: d! }]);
  await world.database.admin.query(
    `insert into posthorn.audit_entries (owner_id, act, subject_id, occurred_at)
     select o.owner_id, 'test', o.id, posthorn_impl.clock() from posthorn.owners o cross join generate_series(1, 2500) where o.id = $1`,
    [leaver.id],
  );
  await leaver.act((db, credential) => deleteAccount(db, { credential }));

  await world.clock.advance('25 hours');
  // only jobs of the test: the schedule takes it that they ran
  await world.database.admin.query(
    `insert into graphile_worker._private_known_crontabs (identifier, known_since, last_execution)
     select t, now(), now() + interval '1 year' from unnest($1::text[]) t`,
    [TASKS],
  );
  return world;
}

async function startWorker({ database }: World): Promise<ServerProcess> {
  const worker = await startProcess(['worker'], { POSTHORN_DATABASE_URL: database.url });
  workers.push(worker);
  return worker;
}

async function end({ child, exited }: ServerProcess, signal: NodeJS.Signals): Promise<number | null> {
  child.kill(signal);
  return await exited;
}

async function queue({ database }: World): Promise<void> {
  await database.as('posthorn_jobs').query('select graphile_worker.add_job(t) from unnest($1::text[]) t', [TASKS]);
}

/** Every job is done, none failed. */
async function finished({ database }: World): Promise<void> {
  const left = async () => {
    const { rows } = await database
      .as('posthorn_jobs')
      .query('select task_identifier, locked_by from graphile_worker.jobs');
    return rows;
  };
  await expect.poll(left, { timeout: 40_000, interval: 50 }).toEqual([]);
}

async function endState({ database }: World): Promise<unknown> {
  const read = async (sql: string) => (await database.admin.query(sql)).rows;
  const agents = 'posthorn.agents a join posthorn.owners o using (owner_id)';
  return {
    owners: await read('select label from posthorn.owners order by 1'),
    messages: await read(
      `select o.label as owner, a.label as reader, m.seq, m.state, m.ended_at is not null as ended
         from posthorn.messages m join ${agents} on (m.owner_id, m.recipient_agent_id) = (a.owner_id, a.agent_id) order by 1, 2, 3`,
    ),
    bodies: await read(
      'select (select count(*) from posthorn.bodies), (select count(*) from posthorn.held_bodies) as held',
    ),
    inboxes: await read(
      `select o.label as owner, a.label as agent, b.unfenced, b.message_seq, b.event_seq
         from posthorn.mailboxes b join ${agents} on (b.owner_id, b.agent_id) = (a.owner_id, a.agent_id) order by 1, 2`,
    ),
    events: await read(
      `select o.label as owner, a.label as agent, e.kind, e.state, count(*)
         from posthorn.events e join ${agents} on (e.owner_id, e.agent_id) = (a.owner_id, a.agent_id) group by 1, 2, 3, 4 order by 1, 2, 3, 4`,
    ),
    requests: await read(
      'select o.label as owner, p.state, p.reason, count(*) from posthorn.proposals p join posthorn.owners o using (owner_id) group by 1, 2, 3 order by 1',
    ),
    audit: await read(
      'select o.label as owner, x.act, count(*) from posthorn.audit_entries x join posthorn.owners o using (owner_id) group by 1, 2 order by 1, 2',
    ),
  };
}
