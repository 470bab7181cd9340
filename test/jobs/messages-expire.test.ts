import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { type JobHelpers, parseCrontab } from 'graphile-worker';
import { afterAll, expect, test } from 'vitest';
import expire from '../../jobs/messages__expire.ts';
import { expireMessages } from '../../src/db/functions.ts';
import { withClient } from '../../src/db/pool.ts';
import { packageRoot } from '../../src/package-root.ts';
import { type ServerProcess, startProcess } from '../helpers/command-line.ts';
import {
  type Agent,
  advance,
  createWorld,
  expectInvariants,
  messageStatus,
  newKey,
  type Owner,
  readInbox,
  refusal,
  send,
  sendBatch,
} from '../helpers/world.ts';

const world = await createWorld();
const { clock, database } = world;
const jobs = database.as('posthorn_jobs');

afterAll(() => expectInvariants(world));

/** The task, with all that it asks of graphile-worker. */
async function runTask(): Promise<void> {
  const helpers = { withPgClient: (work: Parameters<typeof withClient>[1]) => withClient(jobs, work) };
  await expire(null, helpers as unknown as JobHelpers);
}

async function makePair(): Promise<{ owner: Owner; sender: Agent; recipient: Agent }> {
  const owner = await world.makeOwner();
  const [sender, recipient] = (await owner.agents(2)) as [Agent, Agent];
  await owner.group([sender, recipient]);
  return { owner, sender, recipient };
}

async function sendOne(from: Agent, to: Agent): Promise<string> {
  return (await send(world, { from, to })).messageIds![0]!;
}

/** What is stored, whatever the clock says. */
async function storedState(messageId: string): Promise<string> {
  const { rows } = await database.admin.query('select state from posthorn.messages where message_id = $1', [messageId]);
  return rows[0].state;
}

async function eventsOf(messageId: string): Promise<string[]> {
  const { rows } = await database.admin.query(
    `select e.state from posthorn.events e where e.kind = 'message.state' and e.subject_id = $1 order by e.seq`,
    [messageId],
  );
  return rows.map(({ state }) => state);
}

async function bodiesLeft(messageIds: string[]): Promise<number> {
  const { rows } = await database.admin.query('select count(*) from posthorn.bodies where message_id = any ($1)', [
    messageIds,
  ]);
  return rows[0].count;
}

test('past its deadline a message is stored as expired, its body is gone and its sender is told', async () => {
  const { sender, recipient } = await makePair();
  const untouched = await sendOne(sender, recipient);
  const delivered = await sendOne(sender, recipient);
  const acknowledged = await sendOne(sender, recipient);
  await advance(world, recipient, 'delivered', [delivered]);
  await advance(world, recipient, 'acknowledged', [acknowledged]);
  await clock.advance('25 hours');
  const young = await sendOne(sender, recipient);

  // by the clock it is expired already; what is stored does not say so yet
  expect((await messageStatus(world, sender, untouched)).state).toBe('expired');
  expect(await storedState(untouched)).toBe('queued');
  expect(await bodiesLeft([untouched, delivered])).toBe(2);

  await runTask();
  expect(await storedState(untouched)).toBe('expired');
  expect(await storedState(delivered)).toBe('expired');
  expect(await storedState(acknowledged)).toBe('acknowledged');
  expect(await storedState(young)).toBe('queued');
  expect(await bodiesLeft([untouched, delivered])).toBe(0);
  expect((await readInbox(world, recipient)).map(({ id }) => id)).toEqual([young]);
  expect(await eventsOf(untouched)).toEqual(['expired']);
  expect(await eventsOf(delivered)).toEqual(['delivered', 'expired']);

  await runTask();
  expect(await eventsOf(untouched)).toEqual(['expired']);
});

test('more than a batch of several owners, by two workers at once, is told once each', async () => {
  await world.setLimit('group_posts_per_minute', 1_000);
  await world.setLimit('conversation_posts', 1_000);
  const pairs = await Promise.all([makePair(), makePair(), makePair()]);
  const sends = pairs.flatMap(({ sender, recipient }) =>
    Array.from({ length: 90 }, () => ({ from: sender, to: recipient })),
  );
  const rows = await sendBatch(
    world,
    sends.map((item) => ({ ...item, key: newKey() })),
  );
  const ids = rows.map(({ messageIds }) => messageIds![0]!);
  await clock.advance('25 hours');
  await Promise.all([runTask(), runTask()]);
  await runTask();
  expect(await bodiesLeft(ids)).toBe(0);
  const { rows: told } = await database.admin.query(
    `select count(*), count(distinct subject_id) as subjects from posthorn.events where kind = 'message.state' and subject_id = any ($1)`,
    [ids],
  );
  expect(told).toEqual([{ count: 270, subjects: 270 }]);
});

test('of two workers with the same message, the second waits for the first and finds nothing left to do', async () => {
  const { sender, recipient } = await makePair();
  const message = await sendOne(sender, recipient);
  await clock.advance('25 hours');
  const [first, second] = await Promise.all([jobs.connect(), jobs.connect()]);
  await first.query('begin');
  expect(await expireMessages(first, { limit: 200 })).toBe(1);
  const late = expireMessages(second, { limit: 200 });
  await until(IS_WAITING);
  await first.query('commit');
  expect(await late).toBe(0);
  expect(await eventsOf(message)).toEqual(['expired']);
  first.release();
  second.release();
});

test('a worker sees of all owners only what is due, and can end nothing before its time', async () => {
  const { sender, recipient } = await makePair();
  const message = await sendOne(sender, recipient);
  const visible = async () => (await jobs.query('select message_id from posthorn.bodies')).rows;
  expect(await visible()).toEqual([]);
  const { rows } = await database.admin.query('select owner_id from posthorn.messages where message_id = $1', [
    message,
  ]);
  const early = await jobs.query(
    'select posthorn_impl.expire_owners_messages(array[$1]::int[], array[$2]::uuid[]) as ended',
    [rows[0].owner_id, message],
  );
  expect(early.rows).toEqual([{ ended: 0 }]);
  expect(await storedState(message)).toBe('queued');

  expect(await refusal(jobs.query('select ciphertext from posthorn.bodies'))).toEqual({ code: '42501' });
  // it may remove what a deleted account left and receipts that are kept no longer; neither is here
  expect((await jobs.query('delete from posthorn.bodies')).rowCount).toBe(0);
  expect((await jobs.query('delete from posthorn.messages')).rowCount).toBe(0);
  expect((await jobs.query('select state from posthorn.messages')).rows).toEqual([]);
  expect(await storedState(message)).toBe('queued');
  expect(await refusal(jobs.query(`select * from posthorn_api.read_inbox('', 0, 1)`))).toEqual({ code: '42501' });

  await clock.advance('25 hours');
  expect(await visible()).toEqual([{ message_id: message }]);
  await runTask();
});

test('a worker that is killed in the middle leaves nothing half done, and the next one finishes', async () => {
  const { sender, recipient } = await makePair();
  const message = await sendOne(sender, recipient);
  await clock.advance('25 hours');

  // the job comes as far as the mailbox, which is ours
  const blocker = await database.admin.connect();
  await blocker.query('begin');
  await blocker.query('select from posthorn.mailboxes where agent_id = $1 for update', [recipient.id]);
  await addJob();
  const first = await startWorkerProcess();
  await until(IS_WAITING);
  first.child.kill('SIGKILL');
  await first.exited;
  expect(await storedState(message)).toBe('queued');
  expect(await bodiesLeft([message])).toBe(1);
  await blocker.query(
    `select pg_catalog.pg_terminate_backend(pid) from pg_catalog.pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`,
  );
  await blocker.query('commit');
  blocker.release();
  expect(await storedState(message)).toBe('queued');

  await addJob();
  const second = await startWorkerProcess();
  await until('select where not exists (select from posthorn.bodies)');
  second.child.kill('SIGTERM');
  expect(await second.exited).toBe(0);
  expect(await storedState(message)).toBe('expired');
  expect(await eventsOf(message)).toEqual(['expired']);
});

test('every task of the schedule is there', async () => {
  const folder = join(packageRoot, 'jobs');
  const scheduled = parseCrontab(await readFile(join(folder, 'crontab'), 'utf8')).map(({ task }) => `${task}.ts`);
  expect(scheduled).not.toEqual([]);
  expect(await readdir(folder)).toEqual(expect.arrayContaining(scheduled));
});

async function startWorkerProcess(): Promise<ServerProcess> {
  return await startProcess(['worker'], { POSTHORN_DATABASE_URL: database.url });
}

/** As the schedule does it: under a key, so that a run which died with its worker does not hold up the next. */
async function addJob(): Promise<void> {
  await jobs.query(`select graphile_worker.add_job('messages__expire', job_key => 'messages__expire')`);
}

const IS_WAITING = `
  select from pg_catalog.pg_stat_activity
  where datname = current_database() and wait_event_type = 'Lock' and query like '%expire_messages%'`;

/** Looks again and again until the query has a row; the test's own time limit ends it. */
async function until(query: string): Promise<void> {
  while ((await database.admin.query(query)).rows.length === 0) await pause(20);
}
