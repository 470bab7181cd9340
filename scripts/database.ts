// npm run db:migrate | db:reset | db:psql: on POSTHORN_DATABASE_URL, or else on the development server in .posthorn/.
// Only the development server is ever reset.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import pg from 'pg';
import { migrate } from '../src/db/migrate.ts';
import { packageRoot } from '../src/package-root.ts';
import { withDevelopmentServer } from './development-server.ts';

const [command, ...args] = process.argv.slice(2);
const givenUrl = process.env.POSTHORN_DATABASE_URL;

if (command === 'migrate') await withServer(migrateAndTell);
else if (command === 'reset') await withDevelopmentServer(async (url) => migrateAndTell(await recreateDatabase(url)));
else if (command === 'psql') process.exitCode = await withServer(openPsql);
else throw new Error('Usage: database.ts migrate|reset|psql');

async function withServer<T>(work: (url: string) => Promise<T>): Promise<T> {
  return givenUrl ? await work(givenUrl) : await withDevelopmentServer(work);
}

async function migrateAndTell(url: string): Promise<void> {
  const { applied, rebuilt } = await migrate({ url, sqlDirectory: join(packageRoot, 'sql'), log: console.error });
  console.error(`Applied: ${applied.join(', ') || 'nothing'}. sql/current: ${rebuilt ? 'rebuilt' : 'unchanged'}.`);
}

async function recreateDatabase(url: string): Promise<string> {
  const target = new URL(url);
  const database = pg.escapeIdentifier(target.pathname.slice(1));
  const elsewhere = new URL(url);
  elsewhere.pathname = '/template1';
  const client = new pg.Client({ connectionString: elsewhere.toString() });
  await client.connect();
  await client.query(`drop database if exists ${database} with (force)`);
  await client.query(`create database ${database}`);
  await client.end();
  return url;
}

/** The password goes through the environment, which other users cannot see, unlike arguments. */
async function openPsql(url: string): Promise<number> {
  const target = new URL(url);
  const password = decodeURIComponent(target.password);
  target.password = '';
  const psql = spawn('psql', ['--dbname', target.toString(), ...args], {
    stdio: 'inherit',
    env: { ...process.env, PGPASSWORD: password },
  });
  // Ctrl-C cancels a statement in psql; it must not end this process and the server with it.
  process.on('SIGINT', () => {});
  try {
    const [code] = await once(psql, 'close');
    return code ?? 1;
  } catch (error) {
    console.error(`psql could not be started: ${(error as Error).message}`);
    return 1;
  }
}
