// The server that every bench runs on: the embedded PostgreSQL in a temporary folder, with durable commits.
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import pg from 'pg';
import { startEmbeddedPostgres } from '../src/db/embedded.ts';
import { migrate } from '../src/db/migrate.ts';
import { packageRoot } from '../src/package-root.ts';

export interface BenchServer {
  /** Its folder, for probes of the disk that the database writes to. */
  directory: string;
  /** Makes a database, with our schema unless it is for a peer. @returns the superuser's address of it */
  makeDatabase(name: string, options?: { isOurs: boolean }): Promise<string>;
  /** Writes all dirty pages, so that no slice pays for what another one left. */
  checkpoint(): Promise<void>;
  /** Stops the server and removes its folder. */
  stop(): Promise<void>;
}

/**
 * Durability as in production. Memory and checkpoints are set so that checkpoints fall between slices, not
 * into some of them; ours and the peers run under the same settings.
 */
const SETTINGS = {
  fsync: 'on',
  synchronous_commit: 'on',
  full_page_writes: 'on',
  shared_buffers: '1GB',
  max_wal_size: '8GB',
  // segments are used again: a slice that has to make new ones is a fifth slower
  min_wal_size: '8GB',
  checkpoint_timeout: '1h',
  max_connections: '200',
};

export async function startBenchServer(settings: Record<string, string> = {}): Promise<BenchServer> {
  const directory = await mkdtemp(join(tmpdir(), 'posthorn-bench-'));
  const server = await startEmbeddedPostgres({ dataDirectory: directory, settings: { ...SETTINGS, ...settings } });
  const admin = new pg.Client({ connectionString: server.url });
  await admin.connect();
  return {
    directory,
    async makeDatabase(name, { isOurs } = { isOurs: true }) {
      await admin.query(`create database ${name}`);
      const url = new URL(server.url);
      url.pathname = name;
      if (isOurs) await migrate({ url: url.toString(), sqlDirectory: join(packageRoot, 'sql'), log: () => {} });
      return url.toString();
    },
    async checkpoint() {
      await admin.query('checkpoint');
    },
    async stop() {
      await admin.end();
      await server.stop();
      await rm(directory, { recursive: true, force: true });
    },
  };
}

/** The address with which a session acts as a pod: under the role that may only call functions. */
export function actAsPod(url: string): string {
  const address = new URL(url);
  address.searchParams.set('options', '-c role=posthorn_app');
  return address.toString();
}
