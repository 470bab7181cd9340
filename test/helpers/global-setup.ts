import { existsSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import pg from 'pg';
import type { TestProject } from 'vitest/node';
import { startThrowawayServer } from '../../scripts/throwaway-server.ts';
import { migrate } from '../../src/db/migrate.ts';
import { packageRoot } from '../../src/package-root.ts';

declare module 'vitest' {
  export interface ProvidedContext {
    /** A superuser's address on the run's server. */
    serverUrl: string;
    /** The migrated database that test databases are clones of. */
    templateDatabase: string;
  }
}

/** Databases of a run that crashed on a server of somebody's own are dropped by a later run, when this old. */
const LEFTOVER_AGE_MS = 3_600_000;

/** Starts one server for the whole run and makes one migrated template on it, with the test clock. */
export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  const server = await startThrowawayServer({ max_connections: '300' });
  const templateDatabase = `posthorn_test_${Date.now()}_template_${process.pid}`;
  const admin = new pg.Client({ connectionString: server.url });
  await admin.connect();
  const tearDown = async () => {
    await admin.query(`drop database if exists ${templateDatabase} with (force)`);
    await admin.end();
    await server.stop();
  };
  try {
    await dropLeftovers(admin);
    await admin.query(`create database ${templateDatabase} template template0 encoding 'UTF8' locale 'C'`);
    await fillTemplate(Object.assign(new URL(server.url), { pathname: `/${templateDatabase}` }).toString());
  } catch (error) {
    await tearDown();
    throw error;
  }
  project.provide('serverUrl', server.url);
  project.provide('templateDatabase', templateDatabase);
  return tearDown;
}

async function dropLeftovers(admin: pg.Client): Promise<void> {
  const { rows } = await admin.query(
    `select datname as name from pg_catalog.pg_database where datname like 'posthorn\\_test\\_%'`,
  );
  for (const { name } of rows) {
    const madeAt = Number(name.split('_')[2]);
    if (Date.now() - madeAt > LEFTOVER_AGE_MS) await admin.query(`drop database ${name} with (force)`);
  }
}

async function fillTemplate(url: string): Promise<void> {
  await migrate({ url, sqlDirectory: join(packageRoot, 'sql'), log: () => {} });
  const testClock = join(packageRoot, 'test', 'helpers', 'test-clock.sql');
  if (!existsSync(testClock)) return;
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  await client.query(await readFile(testClock, 'utf8'));
  await client.end();
}
