import { randomBytes } from 'node:crypto';
import { basename } from 'node:path';
import { setTimeout as wait } from 'node:timers/promises';
import pg from 'pg';
import { expect, inject } from 'vitest';
import { createPool } from '../../src/db/pool.ts';

export interface TestDatabase {
  /** A superuser's address. */
  url: string;
  /** A superuser's pool: for fixtures and looking behind the curtain, never for what is tested. */
  admin: pg.Pool;
  /** A pool that acts as one of the database's roles, as programs do. */
  as(role: string): pg.Pool;
  /** Ends the pools and drops the database; the end of the test file does it too. */
  drop(): Promise<void>;
}

const open = new Set<TestDatabase>();

const RECOGNISE = `
  update posthorn.server set database_oid = (select oid::bigint from pg_catalog.pg_database where datname = current_database())`;

/**
 * A database for this test file: a clone of the migrated template, or an empty one.
 * Dropped at the end of the file, which fails if a connection of the file's own is still open then.
 */
export async function createTestDatabase(options: { isEmpty?: boolean } = {}): Promise<TestDatabase> {
  const name = databaseName();
  const template = options.isEmpty
    ? `template0 encoding 'UTF8' locale 'C'`
    : `${inject('templateDatabase')} strategy file_copy`;
  await onServer((client) => client.query(`create database ${name} template ${template}`));
  const url = Object.assign(new URL(inject('serverUrl')), { pathname: `/${name}` }).toString();
  const reached = databaseAt(url);
  const database: TestDatabase = {
    ...reached,
    async drop() {
      if (!open.delete(database)) return;
      await reached.drop();
      const leaks = await connectionsLeft(name);
      await onServer((client) => client.query(`drop database ${name} with (force)`));
      expect(leaks, `connections that ${name}'s tests left open`).toEqual([]);
    },
  };
  open.add(database);
  // a copy of a database is a restored one to it, unless it is told otherwise
  if (!options.isEmpty) await database.admin.query(RECOGNISE);
  return database;
}

/** A database of a server that the test runs itself; `drop` only ends the pools. */
export function databaseAt(url: string): TestDatabase {
  const pools = new Map<string, pg.Pool>();
  const as = (role: string): pg.Pool => {
    const pool = pools.get(role) ?? createPool({ url, role, max: 20 });
    pools.set(role, pool);
    return pool;
  };
  return {
    url,
    admin: as(decodeURIComponent(new URL(url).username)),
    as,
    async drop() {
      await Promise.all([...pools.values()].map((pool) => pool.end()));
    },
  };
}

/** Called at the end of each test file. */
export async function dropTestDatabases(): Promise<void> {
  for (const database of [...open]) await database.drop();
}

/** With the file and the time, for whoever looks into a failed run; PostgreSQL cuts names at 63 bytes. */
function databaseName(): string {
  const file = basename(expect.getState().testPath ?? 'test', '.test.ts')
    .replaceAll(/[^a-z0-9]+/gi, '_')
    .toLowerCase();
  return `posthorn_test_${Date.now()}_${file.slice(0, 26)}_${randomBytes(4).toString('hex')}`;
}

/** A session ends a moment after its client has left; whatever stays longer is a leak. */
async function connectionsLeft(database: string): Promise<string[]> {
  return await onServer(async (client) => {
    for (const deadline = Date.now() + 3_000; ; await wait(10)) {
      const { rows } = await client.query(
        `select format('%s: %s', application_name, query) as text from pg_catalog.pg_stat_activity where datname = $1 and backend_type = 'client backend'`,
        [database],
      );
      if (rows.length === 0 || Date.now() > deadline) return rows.map((row) => row.text);
    }
  });
}

async function onServer<T>(work: (client: pg.Client) => Promise<T>): Promise<T> {
  const client = new pg.Client({ connectionString: inject('serverUrl') });
  await client.connect();
  try {
    return await work(client);
  } finally {
    await client.end();
  }
}
