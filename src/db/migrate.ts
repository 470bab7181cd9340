// Brings a database to what sql/ says. Two halves: migrations/ changes the shape of storage, each file once;
// current/ holds functions, triggers, policies, grants and views, rebuilt whole whenever one of its files changes.
// Between them, graphile-worker's own schema.
import { createHash } from 'node:crypto';
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as wait } from 'node:timers/promises';
import { Logger, makeWorkerUtils } from 'graphile-worker';
import pg from 'pg';
import { createPool, type Queryable } from './pool.ts';

/** Schemas that hold code and no data: dropped and made anew by a rebuild of current/. */
const CODE_SCHEMAS = ['posthorn_api', 'posthorn_impl', 'ops'];

const DATA_SCHEMA = 'posthorn';

/** graphile-worker makes its own tables; policies and grants on them, as on ours, are part of current/. */
const QUEUE_SCHEMA = 'graphile_worker';

/** Who may read the ledger, to learn whether the schema is the one that a build needs. */
const LEDGER_READERS = ['posthorn_app', 'posthorn_jobs'];

/** Who owns that schema and never logs in: workers must not. A migration of ours makes the role. */
const QUEUE_ROLE = 'posthorn_queue';

/** One per database; any number that nobody else uses will do. */
const MIGRATION_LOCK = 7_661_674_678;

/** How long another migrator may take before we give up, in milliseconds. */
const MIGRATION_LOCK_WAIT_MS = 10 * 60_000;

/** Statements queue behind one that waits for a lock, so we wait briefly and come again. */
const LOCK_TIMEOUT_MS = 2_000;
const LOCK_RETRIES_MS = 30_000;

/** lock_not_available, deadlock_detected, serialization_failure */
const RETRYABLE_STATES = ['55P03', '40P01', '40001'];

/** The database has a breaking migration that this build does not know: it must not run. */
export class SchemaTooNewError extends Error {
  override name = 'SchemaTooNewError';
  /** The exit code of a program that ends with this, so that a supervisor can tell it from a crash. */
  static readonly exitCode = 57;
}

export interface Migration {
  id: number;
  name: string;
  text: string;
  sha256: string;
  isBreaking: boolean;
  isTransactional: boolean;
}

export interface SqlFiles {
  migrations: Migration[];
  current: { name: string; text: string }[];
  /** Over the names and contents of current/. */
  currentHash: string;
}

/**
 * Reads sql/migrations and sql/current. A migration is named `0123_words.sql`; its first line may be a marker
 * `--! breaking` (older builds must not run afterwards), `--! no-transaction` (one statement that refuses to
 * run in a transaction, such as `create index concurrently`) or both, separated by a blank.
 */
export async function readSqlFiles(sqlDirectory: string): Promise<SqlFiles> {
  const [migrationFiles, current] = await Promise.all([
    readFolder(join(sqlDirectory, 'migrations')),
    readFolder(join(sqlDirectory, 'current')),
  ]);
  const migrations = migrationFiles.map(parseMigration);
  const twice = migrations.find((migration, index) => migrations[index - 1]?.id === migration.id);
  if (twice) throw new Error(`Two migrations have the number ${twice.id}`);
  const parts = current.flatMap(({ name, text }) => [name, text]);
  return { migrations, current, currentHash: sha256(JSON.stringify(parts)) };
}

/**
 * Brings the database up to date. Safe to call from any number of processes at once. Needs a direct connection
 * (a transaction pooler would hand the session lock to somebody else), as a role that may create roles.
 *
 * @returns the names of the migrations applied now, and whether current/ was rebuilt
 * @throws SchemaTooNewError if the database has a breaking migration that sqlDirectory has not
 * @throws Error naming file and line if a file fails, or if an applied file has changed since
 */
export async function migrate(options: {
  url: string;
  sqlDirectory: string;
  log: (line: string) => void;
}): Promise<{ applied: string[]; rebuilt: boolean }> {
  const { url, log } = options;
  const files = await readSqlFiles(options.sqlDirectory);
  return await withMigrationLock(url, log, async (client) => {
    await makeLedger(client);
    const ledger = await readLedger(client);
    refuseChangedFiles(files, ledger);
    const unknown = unknownMigrations(files, ledger);
    refuseBreaking(unknown);

    const applied: string[] = [];
    for (const migration of files.migrations) {
      if (ledger.applied.some(({ id }) => id === migration.id)) continue;
      if (await applyMigration(client, migration, log)) applied.push(migration.name);
    }

    if (unknown.length > 0) {
      log(
        `This database is newer than this build: it has ${unknown.map(({ name }) => name).join(', ')}. Its functions stay as they are.`,
      );
      return { applied, rebuilt: false };
    }
    const isNewQueue = await migrateQueue(client, url);
    const rebuilt = isNewQueue || ledger.hashes.at(-1) !== files.currentHash;
    if (rebuilt) await rebuildCurrent(client, files, log);
    if (applied.length > 0 || rebuilt) await analyzeTables(client, log);
    return { applied, rebuilt };
  });
}

/**
 * How the database's schema relates to this build's files.
 *
 * - `current`: the same
 * - `behind`: something of ours is missing; migrate first
 * - `ahead`: a newer build has migrated, compatibly; this one can go on
 * - `ahead_breaking`: a newer build has migrated, and this one must not go on
 * - `empty`: never migrated
 *
 * One query; any role of LEDGER_READERS may ask.
 */
export async function schemaState(
  db: Queryable,
  files: SqlFiles,
): Promise<'current' | 'behind' | 'ahead' | 'ahead_breaking' | 'empty'> {
  const ledger = await readLedger(db);
  const unknown = unknownMigrations(files, ledger);
  if (ledger.applied.length === 0) return 'empty';
  if (unknown.some(({ breaking }) => breaking)) return 'ahead_breaking';
  const appliedIds = new Set(ledger.applied.map(({ id }) => id));
  if (files.migrations.some(({ id }) => !appliedIds.has(id))) return 'behind';
  if (unknown.length > 0) return 'ahead';
  if (ledger.hashes.at(-1) === files.currentHash) return 'current';
  // The ledger keeps every hash that was once current: one that was and is no more has been superseded.
  return ledger.hashes.includes(files.currentHash) ? 'ahead' : 'behind';
}

// Files

async function readFolder(folder: string): Promise<{ name: string; text: string }[]> {
  const names = (await readdir(folder)).filter((name) => name.endsWith('.sql')).sort();
  return await Promise.all(names.map(async (name) => ({ name, text: await readFile(join(folder, name), 'utf8') })));
}

function parseMigration({ name, text }: { name: string; text: string }): Migration {
  const number = /^(\d{4})_[a-z0-9_]+\.sql$/.exec(name)?.[1];
  if (!number) throw new Error(`A migration is named like 0123_words.sql, not ${name}`);
  const markers = /^--! *(.*)/.exec(text)?.[1]?.trim().split(/ +/) ?? [];
  const unknown = markers.find((marker) => marker !== 'breaking' && marker !== 'no-transaction');
  if (unknown !== undefined) throw new Error(`${name} has the unknown marker "${unknown}"`);
  return {
    id: Number(number),
    name,
    text,
    sha256: sha256(text),
    isBreaking: markers.includes('breaking'),
    isTransactional: !markers.includes('no-transaction'),
  };
}

function sha256(text: string): string {
  return createHash('sha256').update(text).digest('hex');
}

// The ledger

interface Ledger {
  applied: { id: number; name: string; sha256: string; breaking: boolean }[];
  /** The hashes that current/ had, the last one last. */
  hashes: string[];
}

async function makeLedger(client: pg.Client): Promise<void> {
  const { rows } = await client.query(`select to_regclass('posthorn_migrations.current') is not null as "isThere"`);
  if (rows[0].isThere) return;
  await client.query(`
    create schema posthorn_migrations;
    create table posthorn_migrations.applied (
      id int primary key,
      name text not null,
      sha256 bytea not null,
      breaking boolean not null,
      applied_at timestamptz not null default now()
    );
    create table posthorn_migrations.current (
      id int generated always as identity primary key,
      hash bytea not null,
      rebuilt_at timestamptz not null default now()
    )`);
}

async function readLedger(db: Queryable): Promise<Ledger> {
  try {
    const { rows } = await db.query(`
      select
        (select coalesce(jsonb_agg(jsonb_build_object('id', id, 'name', name, 'sha256', encode(sha256, 'hex'), 'breaking', breaking) order by id), '[]')
         from posthorn_migrations.applied) as applied,
        (select coalesce(jsonb_agg(encode(hash, 'hex') order by id), '[]') from posthorn_migrations.current) as hashes`);
    return rows[0];
  } catch (error) {
    if (hasState(error, ['42P01', '3F000'])) return { applied: [], hashes: [] };
    throw error;
  }
}

function unknownMigrations(files: SqlFiles, ledger: Ledger): Ledger['applied'] {
  const known = new Set(files.migrations.map(({ id }) => id));
  return ledger.applied.filter(({ id }) => !known.has(id));
}

function refuseChangedFiles(files: SqlFiles, ledger: Ledger): void {
  const changed = files.migrations.find((file) =>
    ledger.applied.some(({ id, sha256 }) => id === file.id && sha256 !== file.sha256),
  );
  if (changed) {
    throw new Error(
      `sql/migrations/${changed.name} has changed since it was applied. Migrations are frozen: write a new one.`,
    );
  }
}

function refuseBreaking(unknown: Ledger['applied']): void {
  const breaking = unknown.filter((migration) => migration.breaking);
  if (breaking.length === 0) return;
  const names = breaking.map(({ name }) => name).join(', ');
  throw new SchemaTooNewError(
    `This database has breaking migrations that this build does not know: ${names}. Run a newer build.`,
  );
}

// Steps

async function withMigrationLock<T>(
  url: string,
  log: (line: string) => void,
  work: (client: pg.Client) => Promise<T>,
): Promise<T> {
  const client = new pg.Client({ connectionString: url, application_name: 'posthorn migrate', keepAlive: true });
  // A connection that dies between two queries fails the next one; unheard, it would end the process.
  client.on('error', () => {});
  await client.connect();
  try {
    await takeMigrationLock(client, log);
    return await work(client);
  } finally {
    await client.end();
  }
}

/**
 * Asks again and again instead of waiting in one statement, whose snapshot would keep the holder's
 * `create index concurrently` waiting for us while we wait for it.
 */
async function takeMigrationLock(client: pg.Client, log: (line: string) => void): Promise<void> {
  for (let waited = 0; ; ) {
    const { rows } = await client.query('select pg_try_advisory_lock($1) as taken', [MIGRATION_LOCK]);
    if (rows[0].taken) return;
    if (waited === 0) log('Another process is migrating this database; waiting for it.');
    if (waited > MIGRATION_LOCK_WAIT_MS)
      throw new Error('Another process has been migrating this database for too long.');
    const pause = 50 + Math.random() * 100;
    await wait(pause);
    waited += pause;
  }
}

/** @returns false if somebody else applied it meanwhile */
async function applyMigration(client: pg.Client, migration: Migration, log: (line: string) => void): Promise<boolean> {
  const path = `sql/migrations/${migration.name}`;
  const enter = () =>
    client.query(
      `insert into posthorn_migrations.applied (id, name, sha256, breaking) values ($1, $2, decode($3, 'hex'), $4) on conflict do nothing`,
      [migration.id, migration.name, migration.sha256, migration.isBreaking],
    );
  if (!migration.isTransactional) {
    // No lock timeout: a cancelled `create index concurrently` leaves an invalid index, and waiting blocks nobody.
    await runFile(client, path, migration.text);
    await enter();
    return true;
  }
  return await inTransaction(client, path, log, async () => {
    // The id first: of two that got here in spite of the lock, one waits on the other's id and then stops.
    const { rowCount } = await enter();
    if (rowCount === 0) return false;
    await runFile(client, path, migration.text);
    await grantLedger(client);
    return true;
  });
}

/**
 * Installs or upgrades graphile-worker's schema, before current/, which says who may do what there. Workers find nothing
 * left to do when they start, so that they need own nothing. The owner may create schemas only meanwhile.
 *
 * @returns whether anything has changed
 */
async function migrateQueue(client: pg.Client, url: string): Promise<boolean> {
  const { rows } = await client.query(`
    select
      to_regrole('${QUEUE_ROLE}') is not null as "hasRole",
      to_regnamespace('${QUEUE_SCHEMA}') is null as "isMissing",
      quote_ident(current_database()) as database`);
  const { hasRole, isMissing, database } = rows[0];
  if (!hasRole) return false;
  const before = isMissing ? null : await queueVersion(client);
  if (isMissing) await client.query(`grant create on database ${database} to ${QUEUE_ROLE}`);
  const pool = createPool({ url, role: QUEUE_ROLE, max: 2 });
  try {
    const utils = await makeWorkerUtils({ pgPool: pool, logger: new Logger(() => () => {}) });
    await utils.migrate();
    await utils.release();
  } finally {
    await pool.end();
    if (isMissing) await client.query(`revoke create on database ${database} from ${QUEUE_ROLE}`);
  }
  return (await queueVersion(client)) !== before;
}

async function queueVersion(client: pg.Client): Promise<number> {
  const { rows } = await client.query(`select max(id) as version from ${QUEUE_SCHEMA}.migrations`);
  return rows[0].version;
}

async function rebuildCurrent(client: pg.Client, files: SqlFiles, log: (line: string) => void): Promise<void> {
  await inTransaction(client, 'sql/current', log, async () => {
    // Cascades tell each dropped function as a notice.
    await client.query(`set local client_min_messages = 'warning'`);
    // If a deadlock arises with a running request, then whoever looks first is the victim: that shall be us, who
    // try again. Only a superuser may set this; for others the lock timeout still ends the wait.
    await client.query(
      `select set_config('deadlock_timeout', '100ms', true) where (select rolsuper from pg_catalog.pg_roles where rolname = current_user)`,
    );
    await lockOutRequests(client);
    await dropPoliciesAndGrants(client);
    await client.query(`drop schema if exists ${CODE_SCHEMAS.join(', ')} cascade`);
    for (const { name, text } of files.current) await runFile(client, `sql/current/${name}`, text);
    await client.query(
      `reset role; insert into posthorn_migrations.current (hash) values (decode('${files.currentHash}', 'hex'))`,
    );
  });
}

/**
 * Every request looks up its credential first: held here, it waits with nothing in its hands. Taken as the policies come,
 * forty tables met requests that held a later one, and fifteen tries in thirty seconds ended as deadlocks.
 */
async function lockOutRequests(client: pg.Client): Promise<void> {
  const { rows } = await client.query(`select to_regclass('${DATA_SCHEMA}.connections')::text as connections`);
  if (rows[0].connections) await client.query(`lock table ${rows[0].connections} in access exclusive mode`);
}

/**
 * Policies and grants stand on tables, so that dropping the code schemas leaves them: one that was taken out of
 * current/ would live on in every database that once had it. Grants to roles that are not ours stay.
 */
async function dropPoliciesAndGrants(client: pg.Client): Promise<void> {
  await client.query(`
    do $$
    declare
      v_statement text;
    begin
      for v_statement in
        select format('drop policy %I on %s', p.polname, p.polrelid::regclass)
        from pg_catalog.pg_policy p
        join pg_catalog.pg_class c on c.oid = p.polrelid
        where c.relnamespace = any (array[to_regnamespace('${DATA_SCHEMA}'), to_regnamespace('${QUEUE_SCHEMA}')])
        union all
        select distinct format('revoke all on %s from %I', c.oid::regclass, r.rolname)
        from pg_catalog.pg_class c
        cross join lateral (
          select c.relacl as acl
          union all
          select a.attacl from pg_catalog.pg_attribute a where a.attrelid = c.oid
        ) acls
        cross join lateral aclexplode(acls.acl) granted
        join pg_catalog.pg_roles r on r.oid = granted.grantee
        where c.relnamespace = any (array[to_regnamespace('${DATA_SCHEMA}'), to_regnamespace('${QUEUE_SCHEMA}')])
          and c.relkind in ('r', 'p', 'v', 'm')
          and granted.grantee <> c.relowner
          and r.rolname like 'posthorn\\_%'
      loop
        execute v_statement;
      end loop;
    end $$`);
}

async function analyzeTables(client: pg.Client, log: (line: string) => void): Promise<void> {
  const { rows } = await client.query(
    `select oid::regclass::text as name from pg_catalog.pg_class
     where relnamespace = to_regnamespace('${DATA_SCHEMA}') and relkind in ('r', 'p') and not relispartition order by 1`,
  );
  for (const { name } of rows)
    await inTransaction(client, `analyze ${name}`, log, () => client.query(`analyze ${name}`));
}

/** The roles come with a migration, so the grant is tried after each. */
async function grantLedger(client: pg.Client): Promise<void> {
  await client.query('reset role');
  const { rows } = await client.query(
    `select quote_ident(rolname) as role from pg_catalog.pg_roles
     where rolname = any ($1) and not has_table_privilege(oid, 'posthorn_migrations.current', 'select')`,
    [LEDGER_READERS],
  );
  for (const { role } of rows) {
    await client.query(
      `grant usage on schema posthorn_migrations to ${role}; grant select on all tables in schema posthorn_migrations to ${role}`,
    );
  }
}

/** Runs `work` in a transaction that waits only briefly for locks, again with growing pauses when it cannot get them. */
async function inTransaction<T>(
  client: pg.Client,
  what: string,
  log: (line: string) => void,
  work: () => Promise<T>,
): Promise<T> {
  const started = Date.now();
  for (let pause = 100; ; pause = Math.min(pause * 2, 3_000)) {
    try {
      await client.query(`begin; set local lock_timeout = ${LOCK_TIMEOUT_MS}`);
      const result = await work();
      await client.query('commit');
      return result;
    } catch (error) {
      await client.query('rollback').catch(() => {});
      if (!hasState(error, RETRYABLE_STATES) || Date.now() - started > LOCK_RETRIES_MS) throw error;
      log(`${what}: ${(error as Error).message}; trying again.`);
      await wait(pause * (0.5 + Math.random()));
    }
  }
}

async function runFile(client: pg.Client, path: string, text: string): Promise<void> {
  try {
    // A role that the file before took on ends with that file.
    await client.query('reset role');
    await client.query(text);
  } catch (error) {
    if (!(error instanceof pg.DatabaseError)) throw error;
    const line = error.position ? `:${text.slice(0, Number(error.position)).split('\n').length}` : '';
    const context = error.where ? `\n${error.where}` : '';
    throw new Error(`${path}${line}: ${error.message}${context}`, { cause: error });
  }
}

/** Whether the error, or the one that it wraps, has one of the SQLSTATEs. */
function hasState(error: unknown, states: string[]): boolean {
  if (!(error instanceof Error)) return false;
  if (error instanceof pg.DatabaseError) return states.includes(error.code ?? '');
  return hasState(error.cause, states);
}
