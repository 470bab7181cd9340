import { beforeAll, describe, expect, test } from 'vitest';
import * as functions from '../../src/db/functions.ts';
import { withClient } from '../../src/db/pool.ts';
import { createWorld, refusal } from '../helpers/world.ts';

// Sends write to graphile-worker's queue in their own transactions: whoever could put code there would run it as the
// pod or the person who sends.
const world = await createWorld();
const { app, database } = world;
const jobs = database.as('posthorn_jobs');
const enqueuer = database.as('posthorn_enqueuer');
const denied = { code: '42501' };

describe('workers', () => {
  test('put no code into the queue and change nothing but its rows', async () => {
    const { rows } = await database.admin.query(
      `select pg_get_functiondef(oid) as add_jobs from pg_proc where proname = 'add_jobs' and pronamespace = 'graphile_worker'::regnamespace`,
    );
    for (const attempt of [
      `create constraint trigger evil after insert or update on graphile_worker._private_jobs deferrable initially deferred
         for each row execute function pg_catalog.suppress_redundant_updates_trigger()`,
      rows[0].add_jobs,
      'drop function graphile_worker.add_jobs',
      'alter function graphile_worker.add_jobs security definer',
      `create function graphile_worker.evil() returns int language sql return 1`,
      'create table graphile_worker.loot (credential text)',
      'create view graphile_worker.loot as select 1 as n',
      'create type graphile_worker.loot as (n int)',
      'create rule evil as on insert to graphile_worker._private_jobs do also select 1',
      'create policy evil on graphile_worker._private_jobs using (true)',
      'create index evil on graphile_worker._private_jobs (id)',
      'alter table graphile_worker._private_jobs disable row level security',
      'alter table graphile_worker._private_jobs add column evil int default 1',
      'alter table graphile_worker._private_jobs owner to posthorn_jobs',
      'truncate graphile_worker._private_jobs',
      'drop table graphile_worker._private_jobs',
      'drop schema graphile_worker cascade',
      'alter schema graphile_worker owner to posthorn_jobs',
      'create schema evil',
      'update graphile_worker.migrations set id = id',
      'delete from graphile_worker.migrations',
      'insert into graphile_worker.migrations (id) values (1000)',
    ])
      expect(await refusal(jobs.query(attempt)), attempt).toEqual(denied);
  });

  test('read and write every row of the queue', async () => {
    await jobs.query(`select graphile_worker.add_job('messages__expire', queue_name => 'one', job_key => 'kept')`);
    await jobs.query(
      `insert into graphile_worker._private_known_crontabs (identifier, known_since) values ('kept', now())`,
    );
    const { rows: tables } = await database.admin.query(
      `select oid::regclass::text as name, attname as column from pg_class join pg_attribute on attrelid = oid and attnum = 1
        where relnamespace = 'graphile_worker'::regnamespace and relkind = 'r' and relname <> 'migrations'`,
    );
    expect(tables).toHaveLength(4);
    for (const { name } of tables) {
      const count = `select count(*)::int as n from ${name}`;
      const { rows } = await database.admin.query(count);
      expect(rows[0].n, name).toBeGreaterThan(0);
      expect((await jobs.query(count)).rows, name).toEqual(rows);
    }
    await withClient(jobs, async (client) => {
      await client.query('begin');
      expect((await client.query(`update graphile_worker._private_jobs set attempts = 1`)).rowCount).toBeGreaterThan(0);
      for (const { name } of tables)
        expect((await client.query(`delete from ${name}`)).rowCount, name).toBeGreaterThan(0);
      await client.query('rollback');
    });
    await jobs.query(`select graphile_worker.remove_job('kept')`);
  });
});

describe('the role that fills the queue', () => {
  const put = (task: string, key: string) =>
    enqueuer.query(
      `insert into graphile_worker._private_jobs (task_id, payload, key)
       select id, '{}', $2 from graphile_worker._private_tasks where identifier = $1 returning id`,
      [task, key],
    );
  const another = `(select id from graphile_worker._private_tasks where identifier = 'accounts__delete')`;

  beforeAll(async () => {
    await jobs.query(
      `insert into graphile_worker._private_tasks (identifier) values ('accounts__delete'), ('webhook__deliver'), ('push__send') on conflict do nothing`,
    );
  });

  test('puts nothing but deliveries and pushes there, whatever the key', async () => {
    for (const key of ['webhook:y', 'push:y']) expect(await refusal(put('accounts__delete', key)), key).toEqual(denied);
    for (const task of ['webhook__deliver', 'push__send'])
      expect(await refusal(put(task, 'messages__expire')), task).toEqual(denied);
    expect(await refusal(put('push__send', 'webhook:x'))).toEqual(denied);
    expect((await put('webhook__deliver', 'webhook:y')).rows).toHaveLength(1);
    expect((await put('push__send', 'push:y')).rows).toHaveLength(1);
  });

  test.each([
    ['webhook__deliver', 'webhook:'],
    ['push__send', 'push:'],
  ])('turns no %s into something else', async (task, kind) => {
    const change = (to: string) =>
      enqueuer.query(`update graphile_worker._private_jobs set ${to} where key like '${kind}%' returning id`);
    await put(task, `${kind}z`);
    expect(await refusal(change(`task_id = ${another}, payload = '{"owner_id": 1}'`))).toEqual(denied);
    expect(await refusal(change(`key = null, task_id = ${another}`))).toEqual(denied);
    expect(await refusal(change(`key = 'messages__expire'`))).toEqual(denied);
    expect((await change(`run_at = now()`)).rows.length).toBeGreaterThan(0);
    // what add_jobs does with one that runs
    expect((await change(`key = null, attempts = max_attempts`)).rows.length).toBeGreaterThan(0);
  });
});

test('what a call presented is found by nothing that runs after it', async () => {
  const anna = await (await world.makeOwner()).agent('anna');
  const engine = database.as('posthorn_engine');
  const presented = async (
    db: typeof app,
    call: (client: Parameters<typeof functions.authenticate>[0]) => Promise<unknown>,
  ) =>
    await withClient(db, async (client) => {
      await client.query('begin');
      await call(client);
      const { rows } = await client.query(`select current_setting('posthorn.presented') as presented`);
      await client.query('rollback');
      return rows[0].presented;
    });
  expect(await presented(app, (db) => functions.authenticate(db, { credential: anna.credential }))).toBe('{}');
  for (const prover of [
    'prove(array[$1::bytea])',
    'prove_link($1)',
    'prove_grant_token($1)',
    'prove_passkey($1, $1)',
    'prove_openid_account($1)',
  ])
    expect(
      await presented(engine, (db) => db.query(`select * from posthorn_impl.${prover}`, [anna.credential])),
      prover,
    ).toBe('{}');
});
