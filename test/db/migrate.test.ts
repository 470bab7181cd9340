import { randomBytes } from 'node:crypto';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterAll, beforeEach, expect, test } from 'vitest';
import { migrate, readSqlFiles, SchemaTooNewError, schemaState } from '../../src/db/migrate.ts';
import { withClient } from '../../src/db/pool.ts';
import { packageRoot } from '../../src/package-root.ts';
import { createTestDatabase, type TestDatabase } from '../helpers/database.ts';

const folders: string[] = [];
let database: TestDatabase;

beforeEach(async () => {
  database = await createTestDatabase({ isEmpty: true });
  return () => database.drop();
});

afterAll(async () => {
  for (const folder of folders) await rm(folder, { recursive: true });
});

const NUMBERS = `create schema posthorn; create table posthorn.numbers (n int primary key);`;
const API = `create schema posthorn_api; create function posthorn_api.count_numbers() returns bigint language sql as 'select count(*) from posthorn.numbers';`;
const BASE = { 'migrations/0001_numbers.sql': NUMBERS, 'current/10_api.sql': API };

test('an empty database gets every migration in order, then the code; a second time nothing happens', async () => {
  const sqlDirectory = await sqlFolder({
    ...BASE,
    'migrations/0010_rows.sql': 'insert into posthorn.numbers values (1), (2);',
    'migrations/0002_check.sql': 'alter table posthorn.numbers add constraint n_is_positive check (n > 0);',
  });
  expect(await run(sqlDirectory)).toEqual({
    applied: ['0001_numbers.sql', '0002_check.sql', '0010_rows.sql'],
    rebuilt: true,
  });
  const before = await oidOf('posthorn_api.count_numbers()');
  expect(await run(sqlDirectory)).toEqual({ applied: [], rebuilt: false });
  expect(await oidOf('posthorn_api.count_numbers()')).toBe(before);
  expect((await database.admin.query('select posthorn_api.count_numbers() as count')).rows).toEqual([{ count: 2 }]);
});

test('twenty migrators at once apply each file once', async () => {
  const sqlDirectory = await sqlFolder({
    ...BASE,
    'migrations/0002_first.sql': 'insert into posthorn.numbers values (1);',
    'migrations/0003_second.sql': 'insert into posthorn.numbers values (2);',
  });
  const results = await Promise.all(Array.from({ length: 20 }, () => run(sqlDirectory)));
  expect(results.flatMap(({ applied }) => applied)).toEqual(['0001_numbers.sql', '0002_first.sql', '0003_second.sql']);
  expect(results.filter(({ rebuilt }) => rebuilt)).toHaveLength(1);
});

test('an applied file that has changed stops everything and is named', async () => {
  await run(await sqlFolder(BASE));
  const changed = await sqlFolder({
    ...BASE,
    'migrations/0001_numbers.sql': `${NUMBERS} -- harmless`,
    'migrations/0002_more.sql': 'select 1;',
  });
  await expect(run(changed)).rejects.toThrow('sql/migrations/0001_numbers.sql has changed');
  expect(await appliedNames()).toEqual(['0001_numbers.sql']);
});

test('a file that fails is named with its line, leaves nothing behind, and can be mended', async () => {
  const broken = { ...BASE, 'migrations/0002_more.sql': 'create table posthorn.more (n int);\n\nselect nonsense;' };
  await expect(run(await sqlFolder(broken))).rejects.toThrow(
    'sql/migrations/0002_more.sql:3: column "nonsense" does not exist',
  );
  expect(await appliedNames()).toEqual(['0001_numbers.sql']);
  const mended = { ...BASE, 'migrations/0002_more.sql': 'create table posthorn.more (n int);' };
  expect(await run(await sqlFolder(mended))).toEqual({ applied: ['0002_more.sql'], rebuilt: true });
});

test('an older build leaves the code of a newer one alone', async () => {
  const old = await sqlFolder(BASE);
  await run(old);
  const renamed = API.replaceAll('count_numbers', 'count_all');
  await run(await sqlFolder({ ...BASE, 'migrations/0002_more.sql': 'select 1;', 'current/10_api.sql': renamed }));
  const lines: string[] = [];
  expect(await run(old, lines)).toEqual({ applied: [], rebuilt: false });
  expect(lines.join()).toContain('0002_more.sql');
  expect(await oidOf('posthorn_api.count_all()')).not.toBeNull();
  expect(await state(old)).toBe('ahead');
});

test('a build without a breaking migration refuses to touch the database', async () => {
  const old = await sqlFolder(BASE);
  await run(await sqlFolder({ ...BASE, 'migrations/0002_more.sql': '--! breaking\nselect 1;' }));
  const error = await run(old).catch((refusal: unknown) => refusal);
  expect(error).toBeInstanceOf(SchemaTooNewError);
  expect((error as Error).message).toContain('0002_more.sql');
  expect(SchemaTooNewError.exitCode).toBe(57);
  expect(await state(old)).toBe('ahead_breaking');
});

test('a lock that somebody holds is waited for in short turns', async () => {
  await run(await sqlFolder(BASE));
  const more = await sqlFolder({
    ...BASE,
    'migrations/0002_more.sql': 'alter table posthorn.numbers add column more int;',
  });
  await withClient(database.admin, async (client) => {
    await client.query('begin; lock table posthorn.numbers in access share mode');
    const lines: string[] = [];
    const turnedAway = Promise.withResolvers<void>();
    const migration = migrate({
      url: database.url,
      sqlDirectory: more,
      log: (line) => {
        lines.push(line);
        turnedAway.resolve();
      },
    });
    await turnedAway.promise;
    await client.query('commit');
    expect(await migration).toEqual({ applied: ['0002_more.sql'], rebuilt: false });
    expect(lines[0]).toContain('lock timeout; trying again');
  });
});

test('the code is rebuilt when a file changes, appears, disappears or is renamed, and functions taken out are gone', async () => {
  await run(await sqlFolder(BASE));
  const extra = 'create function posthorn_api.one() returns int language sql as $$ select 1 $$;';
  const rebuilds = async (files: Record<string, string>) => (await run(await sqlFolder(files))).rebuilt;
  expect(await rebuilds({ ...BASE, 'current/20_one.sql': extra })).toBe(true);
  expect(await rebuilds({ ...BASE, 'current/20_one.sql': extra })).toBe(false);
  expect(await rebuilds({ ...BASE, 'current/21_one.sql': extra })).toBe(true);
  expect(await rebuilds({ ...BASE, 'current/21_one.sql': `${extra} -- one` })).toBe(true);
  expect(await oidOf('posthorn_api.one()')).not.toBeNull();
  expect(await rebuilds(BASE)).toBe(true);
  expect(await oidOf('posthorn_api.one()')).toBeNull();
});

test('policies and grants taken out of the code are gone from the tables, grants to others stay', async () => {
  const policies = `
    alter table posthorn.numbers enable row level security;
    create policy select_all on posthorn.numbers for select to posthorn_app using (true);
    grant select, update (n) on posthorn.numbers to posthorn_app;`;
  await run(await sqlFolder({ ...BASE, 'current/20_policies.sql': policies }));
  await database.admin.query('grant select on posthorn.numbers to pg_monitor');
  expect(await accessFacts()).toEqual({ policies: 1, select: true, update: true, others: true });
  await run(await sqlFolder({ ...BASE, 'current/20_policies.sql': `${policies} -- again` }));
  expect(await accessFacts()).toEqual({ policies: 1, select: true, update: true, others: true });
  await run(await sqlFolder(BASE));
  expect(await accessFacts()).toEqual({ policies: 0, select: false, update: false, others: true });
});

test('a rebuild that fails leaves the old code in place', async () => {
  await run(await sqlFolder(BASE));
  await expect(run(await sqlFolder({ ...BASE, 'current/20_bad.sql': 'select nonsense;' }))).rejects.toThrow(
    'sql/current/20_bad.sql:1:',
  );
  expect(await oidOf('posthorn_api.count_numbers()')).not.toBeNull();
});

test('a role that one file takes on ends with that file', async () => {
  const files = { 'migrations/0001_role.sql': 'set role posthorn_app;', 'migrations/0002_numbers.sql': NUMBERS };
  const current = { 'current/00_role.sql': 'set local role posthorn_app;', 'current/10_api.sql': API };
  expect(await run(await sqlFolder({ ...files, ...current }))).toMatchObject({ rebuilt: true });
});

test('statements that refuse a transaction run outside of one', async () => {
  const index = 'create index concurrently numbers_by_n on posthorn.numbers (n);';
  const inside = await sqlFolder({ ...BASE, 'migrations/0002_index.sql': index });
  await expect(run(inside)).rejects.toThrow('cannot run inside a transaction block');
  const outside = await sqlFolder({ ...BASE, 'migrations/0002_index.sql': `--! no-transaction\n${index}` });
  expect((await run(outside)).applied).toEqual(['0002_index.sql']);
});

test('tables are analysed after a change', async () => {
  await run(
    await sqlFolder({
      ...BASE,
      'migrations/0002_rows.sql': 'insert into posthorn.numbers select generate_series(1, 50);',
    }),
  );
  const { rows } = await database.admin.query(
    `select reltuples::int8 as count from pg_catalog.pg_class where oid = 'posthorn.numbers'::regclass`,
  );
  expect(rows).toEqual([{ count: 50 }]);
});

test('pods can tell where the schema is', async () => {
  const first = await sqlFolder(BASE);
  const second = await sqlFolder({ ...BASE, 'current/10_api.sql': `${API} -- two` });
  const third = await sqlFolder({ ...BASE, 'migrations/0002_more.sql': 'select 1;' });
  expect(await state(first)).toBe('empty');
  await run(first);
  expect(await state(first)).toBe('current');
  expect(await state(second)).toBe('behind');
  expect(await state(third)).toBe('behind');
  await run(second);
  expect(await state(second)).toBe('current');
  // A pod that still runs the older code during a rolling deployment is fine.
  expect(await state(first)).toBe('ahead');
});

test('the queue belongs to a role of its own, which may make no other schema', async () => {
  await run(await sqlFolder(BASE));
  expect(await queueOwners()).toEqual(['posthorn_queue']);
  const { rows } = await database.admin.query(
    `select has_database_privilege('posthorn_queue', current_database(), 'create') as "mayCreate"`,
  );
  expect(rows).toEqual([{ mayCreate: false }]);
});

test('a queue that is new to current/ is granted anew', async () => {
  const sqlDirectory = await sqlFolder(BASE);
  await run(sqlDirectory);
  await database.admin.query('drop schema graphile_worker cascade');
  expect(await run(sqlDirectory)).toEqual({ applied: [], rebuilt: true });
  expect(await run(sqlDirectory)).toEqual({ applied: [], rebuilt: false });
});

test('a login that is no superuser takes an older queue from the workers', async () => {
  const login = `migrator_${randomBytes(4).toString('hex')}`;
  const url = Object.assign(new URL(database.url), { username: login, password: login }).toString();
  const sqlDirectory = join(packageRoot, 'sql');
  const { rows } = await database.admin.query(
    `select current_database() as name, current_user as admin, string_agg(rolname, ', ') as roles from pg_catalog.pg_roles where rolname like 'posthorn\\_%'`,
  );
  const [{ name, admin, roles }] = rows;
  await database.admin.query(`create role ${login} login createrole password '${login}'`);
  await database.admin.query(`grant ${roles} to ${login} with admin option; alter database ${name} owner to ${login}`);
  try {
    await migrate({ url, sqlDirectory, log: () => {} });
    expect(await queueOwners()).toEqual(['posthorn_queue']);
    await database.admin.query(`
      reassign owned by posthorn_queue to posthorn_jobs;
      delete from posthorn_migrations.applied where name = '1310_queue.sql';
      insert into posthorn_migrations.current (hash) values ('\\x00')`);
    expect(await queueOwners()).toEqual(['posthorn_jobs']);
    expect(await migrate({ url, sqlDirectory, log: () => {} })).toEqual({ applied: ['1310_queue.sql'], rebuilt: true });
    expect(await queueOwners()).toEqual(['posthorn_queue']);
    await database.as('posthorn_jobs').query(`select graphile_worker.add_job('messages__expire')`);
  } finally {
    await database.admin.query(`reassign owned by ${login} to ${admin}; drop owned by ${login}; drop role ${login}`);
  }
});

test('files with other names or markers are refused', async () => {
  await expect(run(await sqlFolder({ ...BASE, 'migrations/2_more.sql': '' }))).rejects.toThrow('2_more.sql');
  await expect(run(await sqlFolder({ ...BASE, 'migrations/0001_again.sql': '' }))).rejects.toThrow('number 1');
  await expect(run(await sqlFolder({ ...BASE, 'migrations/0002_more.sql': '--! braking\n' }))).rejects.toThrow(
    '"braking"',
  );
});

async function sqlFolder(files: Record<string, string>): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'posthorn-sql-'));
  folders.push(folder);
  for (const [path, text] of Object.entries(files)) {
    await mkdir(join(folder, dirname(path)), { recursive: true });
    await writeFile(join(folder, path), text);
  }
  return folder;
}

async function run(sqlDirectory: string, lines: string[] = []): Promise<{ applied: string[]; rebuilt: boolean }> {
  return await migrate({ url: database.url, sqlDirectory, log: (line) => lines.push(line) });
}

async function state(sqlDirectory: string): Promise<string> {
  return await schemaState(database.as('posthorn_app'), await readSqlFiles(sqlDirectory));
}

async function oidOf(signature: string): Promise<number | null> {
  return (await database.admin.query('select to_regprocedure($1)::oid as oid', [signature])).rows[0].oid;
}

async function appliedNames(): Promise<string[]> {
  const { rows } = await database.admin.query('select name from posthorn_migrations.applied order by id');
  return rows.map(({ name }) => name);
}

/** Who owns the schema of the queue or anything in it. */
async function queueOwners(): Promise<string[]> {
  const { rows } = await database.admin.query(`
    select nspowner::regrole::text as owner from pg_catalog.pg_namespace where nspname = 'graphile_worker'
    union
    select relowner::regrole::text from pg_catalog.pg_class where relnamespace = 'graphile_worker'::regnamespace
    union
    select typowner::regrole::text from pg_catalog.pg_type where typnamespace = 'graphile_worker'::regnamespace
    union
    select proowner::regrole::text from pg_catalog.pg_proc where pronamespace = 'graphile_worker'::regnamespace`);
  return rows.map(({ owner }) => owner);
}

async function accessFacts(): Promise<unknown> {
  const { rows } = await database.admin.query(`
    select (select count(*) from pg_catalog.pg_policy) as policies,
      has_table_privilege('posthorn_app', 'posthorn.numbers', 'select') as select,
      has_column_privilege('posthorn_app', 'posthorn.numbers', 'n', 'update') as update,
      has_table_privilege('pg_monitor', 'posthorn.numbers', 'select') as others`);
  return rows[0];
}
