import { execFile } from 'node:child_process';
import { chown, mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { chosenMajor } from '../../scripts/throwaway-server.ts';
import { type EmbeddedPostgres, startEmbeddedPostgres } from '../../src/db/embedded.ts';
import { migrate } from '../../src/db/migrate.ts';
import { packageRoot } from '../../src/package-root.ts';
import { databaseAt, type TestDatabase } from './database.ts';
import { startTcpProxy, type TcpProxy } from './tcp-proxy.ts';

/** A PostgreSQL server for a test that breaks it, of the version that the tests run on. */
export interface OwnServer {
  /** Its cluster is in cluster/. */
  directory: string;
  /** The way to it for pods: a superuser's address that stays the same, whatever becomes of the server. */
  proxy: TcpProxy;
  /** By that way. */
  database: TestDatabase;
  /** A superuser's address, past the proxy. */
  directUrl(): string;
  /** @param settings over the throwaway ones, for this run */
  start(settings?: Record<string, string>): Promise<void>;
  stop(): Promise<void>;
  /** kill -9 of the postmaster; resolves when its backends have noticed. */
  kill(): Promise<void>;
  /** Resolves when it has ended by itself. */
  ended(): Promise<unknown>;
  /** Stops whatever runs and removes its folder. */
  remove(): Promise<void>;
}

/** What processes do is on the disk's cache when they are killed, which no machine does to itself here. */
const SETTINGS = { fsync: 'off', full_page_writes: 'off', max_connections: '60' };

/**
 * Starts a server of the test's own, with our schema.
 *
 * @param folder where to put it; it must exist. A temporary one otherwise
 */
export async function startOwnServer(folder: string = tmpdir()): Promise<OwnServer> {
  const server = await serve(await mkdtemp(join(folder, 'posthorn-server-')), {});
  await migrate({ url: server.directUrl(), sqlDirectory: join(packageRoot, 'sql'), log: () => {} });
  return server;
}

/**
 * Copies the files of a server that runs: a base backup, as pg_basebackup takes it, which the embedded server does not
 * bring.
 *
 * @returns the copy's folder, for startFromBackup
 */
export async function takeBaseBackup({ database, directory }: OwnServer): Promise<string> {
  const copy = await mkdtemp(join(tmpdir(), 'posthorn-server-'));
  const client = await database.admin.connect();
  try {
    await client.query(`select pg_backup_start('copy', fast => true)`);
    await promisify(execFile)('cp', ['-a', `${directory}/.`, copy]).catch((error: { stderr: string }) => {
      if (!/^(cp: .*No such file or directory\n)+$/.test(error.stderr)) throw error; // it runs, so files come and go
    });
    const { rows } = await client.query('select labelfile from pg_backup_stop(wait_for_archive => false)');
    await writeInto(copy, 'backup_label', rows[0].labelfile);
  } finally {
    client.release(true);
  }
  await promisify(execFile)('sh', ['-c', 'rm -f "$1"/owner-* "$1"/port "$1"/cluster/postmaster.pid', '-', copy]);
  return copy;
}

/**
 * Starts a server on a base backup.
 *
 * @param signal the file that makes it a standby, or one that recovers
 * @param settings how: the primary's address, say, or the archive and the target
 */
export async function startFromBackup(
  backup: string,
  signal: 'standby.signal' | 'recovery.signal',
  settings: Record<string, string>,
): Promise<OwnServer> {
  await putSignal(backup, signal);
  return await serve(backup, settings);
}

/** What the server at this folder is to be from its next start on. */
export async function putSignal(directory: string, signal: 'standby.signal' | 'recovery.signal'): Promise<void> {
  await writeInto(directory, signal, '');
}

/** A file in the cluster that belongs to whoever the rest does: the server opens it to write. */
async function writeInto(directory: string, name: string, text: string): Promise<void> {
  const cluster = join(directory, 'cluster');
  const { uid, gid } = await stat(cluster);
  await writeFile(join(cluster, name), text, { mode: 0o600 });
  await chown(join(cluster, name), uid, gid);
}

async function serve(directory: string, settings: Record<string, string>): Promise<OwnServer> {
  const run = (more: Record<string, string>) =>
    startEmbeddedPostgres({ dataDirectory: directory, major: chosenMajor(), settings: { ...SETTINGS, ...more } });
  let server: EmbeddedPostgres = await run(settings);
  const proxy = await startTcpProxy(server.url);
  const database = databaseAt(proxy.url);
  return {
    directory,
    proxy,
    database,
    directUrl: () => server.url,
    async start(more = {}) {
      server = await run(more);
      proxy.leadTo(server.url);
    },
    stop: () => server.stop(),
    async kill() {
      const pid = Number((await readFile(join(directory, 'cluster', 'postmaster.pid'), 'utf8')).split('\n')[0]);
      process.kill(pid, 'SIGKILL');
      await server.exited;
    },
    ended: () => server.exited,
    async remove() {
      await database.drop();
      await proxy.close();
      await server.stop();
      await rm(directory, { recursive: true, force: true });
    },
  };
}
