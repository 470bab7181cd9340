import { afterAll, beforeAll, expect, test } from 'vitest';
import { type ServerProcess, startProcess } from '../helpers/command-line.ts';
import { buildGate, type Gate } from '../helpers/gate.ts';
import { createWorld, expectInvariants, messageStatus, send, type World } from '../helpers/world.ts';

let world: World;
let gate: Gate;
const running: ServerProcess[] = [];

beforeAll(async () => {
  world = await createWorld();
  gate = await buildGate(world.database, ['expire_messages'], ['bodies']);
});

afterAll(async () => {
  await Promise.all(running.map((program) => end(program, 'SIGKILL')));
  await gate.end();
  await expectInvariants(world);
});

async function startWorker(): Promise<ServerProcess> {
  const worker = await startProcess(['worker'], { POSTHORN_DATABASE_URL: world.database.url });
  running.push(worker);
  return worker;
}

async function end({ child, exited }: ServerProcess, signal: NodeJS.Signals): Promise<number | null> {
  child.kill(signal);
  return await exited;
}

const jobs = () => world.database.as('posthorn_jobs');

async function addJob(task: string): Promise<number> {
  const { rows } = await jobs().query(`select (graphile_worker.add_job($1)).id`, [task]);
  return rows[0].id;
}

async function holderOf(job: number): Promise<string | null | undefined> {
  const { rows } = await jobs().query('select locked_by from graphile_worker.jobs where id = $1', [job]);
  return rows.length === 0 ? undefined : rows[0].locked_by;
}

test('a job whose worker was killed runs again within a minute, and that of a living one is left alone', async () => {
  const owner = await world.makeOwner();
  const [anna, bert] = await owner.agents(2);
  await owner.group([anna!, bert!]);
  const { messageIds } = await send(world, { from: anna!, to: bert! });
  const message = messageIds![0]!;
  await world.clock.advance('25 hours');

  await gate.close();
  const victim = await startWorker();
  const job = await addJob('messages__expire');
  await gate.reached(['expire_messages']);
  const holder = await holderOf(job);
  expect(holder).toEqual(expect.any(String));

  const bystander = await startWorker(); // has looked for dead ones before it said that it is ready
  expect(await holderOf(job)).toBe(holder);

  await end(victim, 'SIGKILL');
  await gate.cut();
  await gate.open();
  await world.clock.advance('1 minute');
  // its own beat comes within ten seconds; asking for it is not waiting for it
  await jobs().query(`select posthorn_api.beat_worker('a worker elsewhere')`);
  await expect.poll(() => holderOf(job), { timeout: 10_000, interval: 50 }).toBeUndefined();
  expect(await messageStatus(world, anna!, message)).toMatchObject({ state: 'expired' });
  const { rows } = await world.database.admin.query('select state from posthorn.messages where message_id = $1', [
    message,
  ]);
  expect(rows, 'tidied, not only seen so').toEqual([{ state: 'expired' }]);
  expect(await end(bystander, 'SIGTERM')).toBe(0);
});

test('of several workers that look at once, one frees a dead one', async () => {
  await jobs().query('delete from posthorn.worker_heartbeats');
  await jobs().query(`select posthorn_api.beat_worker('dead')`);
  await world.clock.advance('31 seconds');
  const counts = await Promise.all(
    ['a', 'b', 'c', 'd'].map((name) => jobs().query('select posthorn_api.beat_worker($1) as dead', [name])),
  );
  expect(counts.reduce((sum, { rows }) => sum + rows[0].dead, 0)).toBe(1);
  const { rows } = await world.database.as('posthorn_ops').query('select worker_id from ops.workers order by 1');
  expect(rows.map((row) => row.worker_id)).toEqual(['a', 'b', 'c', 'd']);
});

test('a worker that stops in good order leaves nothing behind', async () => {
  const worker = await startWorker();
  const { rows } = await world.database
    .as('posthorn_ops')
    .query(`select worker_id from ops.workers where worker_id like 'pool-%'`);
  expect(rows).toHaveLength(1);
  expect(await end(worker, 'SIGTERM')).toBe(0);
  const after = await world.database
    .as('posthorn_ops')
    .query(`select worker_id from ops.workers where worker_id like 'pool-%'`);
  expect(after.rows).toEqual([]);
});
