// npm run db:types: writes what follows from the SQL files, src/db/functions.ts and sql/schema.sql, out of a freshly
// migrated database. With --check it only compares.
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import pg from 'pg';
import { migrate } from '../src/db/migrate.ts';
import { packageRoot } from '../src/package-root.ts';
import { dumpSchema } from './dump-schema.ts';
import { generateFunctions } from './generate-functions.ts';
import { startThrowawayServer } from './throwaway-server.ts';

const isCheck = process.argv.includes('--check');

for (const [path, text] of Object.entries(await generate())) {
  const existing = await readFile(join(packageRoot, path), 'utf8').catch(() => '');
  if (existing === text) continue;
  if (isCheck) {
    console.error(`${path} is out of date (${firstDifference(existing, text)}). Run npm run db:types.`);
    process.exitCode = 1;
  } else {
    await writeFile(join(packageRoot, path), text);
    console.error(`Wrote ${path}`);
  }
}

async function generate(): Promise<Record<string, string>> {
  const server = await startThrowawayServer();
  try {
    return await inFreshDatabase(server.url, async (client, url) => {
      await migrate({ url, sqlDirectory: join(packageRoot, 'sql'), log: console.error });
      return { 'src/db/functions.ts': await generateFunctions(client), 'sql/schema.sql': await dumpSchema(client) };
    });
  } finally {
    await server.stop();
  }
}

async function inFreshDatabase<T>(serverUrl: string, work: (client: pg.Client, url: string) => Promise<T>): Promise<T> {
  const name = `posthorn_types_${process.pid}`;
  const admin = new pg.Client({ connectionString: serverUrl });
  await admin.connect();
  try {
    await admin.query(`create database ${name} template template0 encoding 'UTF8' locale 'C'`);
    const url = Object.assign(new URL(serverUrl), { pathname: `/${name}` }).toString();
    const client = new pg.Client({ connectionString: url });
    await client.connect();
    try {
      return await work(client, url);
    } finally {
      await client.end();
    }
  } finally {
    await admin.query(`drop database if exists ${name} with (force)`);
    await admin.end();
  }
}

function firstDifference(existing: string, generated: string): string {
  const now = existing.split('\n');
  const wanted = generated.split('\n');
  const index = wanted.findIndex((line, position) => line !== now[position]);
  const line = index === -1 ? wanted.length : index;
  return `line ${line + 1} is ${JSON.stringify(now[line] ?? '')}, should be ${JSON.stringify(wanted[line] ?? '')}`;
}
