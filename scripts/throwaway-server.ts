import { join } from 'node:path';
import pg from 'pg';
import { DataDirectoryInUseError, type EmbeddedPostgres, startEmbeddedPostgres } from '../src/db/embedded.ts';
import { packageRoot } from '../src/package-root.ts';

export interface ThrowawayServer {
  /** A superuser's address. */
  url: string;
  stop(): Promise<void>;
}

/** Nothing in a throwaway server survives a crash, and nothing needs to. */
const NO_DURABILITY = { fsync: 'off', synchronous_commit: 'off', full_page_writes: 'off' };

/** Several runs at once in one tree each take a data directory of their own. */
const DIRECTORIES = 20;

/**
 * A server for tests and generators, without databases and roles of ours. With POSTHORN_TEST_DATABASE_URL it is
 * that server, as it is, and stays up. Otherwise it is an embedded one of the version in POSTHORN_TEST_POSTGRES
 * (18 or 15; default 18), on a data directory in .posthorn/ that is kept, since a warm start is ten times faster.
 */
export async function startThrowawayServer(settings: Record<string, string> = {}): Promise<ThrowawayServer> {
  const given = process.env.POSTHORN_TEST_DATABASE_URL;
  if (given) return { url: given, stop: async () => {} };
  const server = await startInFreeDirectory(chosenMajor(), { ...NO_DURABILITY, ...settings });
  await removeLeftovers(server.url);
  return server;
}

/** The version that POSTHORN_TEST_POSTGRES names. */
export function chosenMajor(): 15 | 18 {
  const asked = process.env.POSTHORN_TEST_POSTGRES ?? '18';
  if (asked === '18' || asked === '15') return asked === '18' ? 18 : 15;
  throw new Error(`POSTHORN_TEST_POSTGRES is 18 or 15, not ${asked}`);
}

async function startInFreeDirectory(major: 15 | 18, settings: Record<string, string>): Promise<EmbeddedPostgres> {
  for (let number = 1; number <= DIRECTORIES; number++) {
    const dataDirectory = join(packageRoot, '.posthorn', 'throwaway', `${major}-${number}`);
    try {
      return await startEmbeddedPostgres({ dataDirectory, major, settings });
    } catch (error) {
      if (!(error instanceof DataDirectoryInUseError)) throw error;
    }
  }
  throw new Error(`${DIRECTORIES} throwaway servers are running already`);
}

/** What an earlier run left: its databases, and the roles, which belong to the whole cluster. */
async function removeLeftovers(url: string): Promise<void> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  try {
    const databases = await client.query(
      `select quote_ident(datname) as name from pg_catalog.pg_database where datname not in ('postgres', 'template0', 'template1')`,
    );
    for (const { name } of databases.rows) await client.query(`drop database ${name} with (force)`);
    const roles = await client.query(
      `select quote_ident(rolname) as name from pg_catalog.pg_roles where rolname <> 'postgres' and rolname not like 'pg\\_%'`,
    );
    for (const { name } of roles.rows) await client.query(`drop role ${name}`);
  } finally {
    await client.end();
  }
}
