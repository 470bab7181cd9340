import { randomBytes } from 'node:crypto';
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import type { Logger } from 'pino';
import type { Config } from './config.ts';
import type { KeyRing } from './crypto/key-ring.ts';
import { asAdmin } from './db/as-admin.ts';
import { DataDirectoryInUseError, startEmbeddedPostgres } from './db/embedded.ts';
import { actAsOwner, listOwners, ringKeys } from './db/functions.ts';
import { migrate } from './db/migrate.ts';
import { createPool, type Queryable } from './db/pool.ts';
import { fenceIfRestored } from './db/restored-server.ts';
import { makeOwner } from './new-owner.ts';
import { openOrMakeKeyRing, readKeyRing } from './open-key-ring.ts';
import { packageRoot } from './package-root.ts';
import { readServerFile, removeServerFile, writeServerFile } from './server-file.ts';
import { makeSignInUrl } from './sign-in-link.ts';

/** A server runs on this data directory already. */
export class AlreadyRunningError extends Error {
  override name = 'AlreadyRunningError';
}

export interface LocalServer {
  url: string;
  mcpUrl: string;
  ownerUrl: string;
  /** With the rights of the person at the server. */
  databaseUrl: string;
  /** The key ring's file, if it was made just now. */
  madeKeyRing: string | undefined;
  /** Makes a one-time link that signs the first owner in in a browser. */
  makeSignInUrl(): Promise<string>;
  /** Resolves with the last log lines if the embedded PostgreSQL ends by itself. */
  databaseEnded: Promise<string>;
  /** Lets requests and jobs under way finish, then stops everything. */
  close(): Promise<void>;
}

/**
 * Everything in one process: PostgreSQL (unless POSTHORN_DATABASE_URL names one), its schema, a first owner, API and
 * worker. Leaves its addresses in the data directory for the person's commands.
 *
 * @throws AlreadyRunningError if a server runs on the data directory
 * @throws KeyRingError if the key ring is missing, or not the one that the database depends on
 * @throws SchemaTooNewError if a newer build made the database unfit for this one
 */
export async function startLocalServer(config: Config, log: Logger): Promise<LocalServer> {
  // The pod and the worker load while PostgreSQL starts.
  const programs = Promise.all([import('./pod.ts'), import('./worker.ts')]);
  const { dataDirectory } = config;
  const closers: (() => Promise<unknown>)[] = [];
  const close = async () => {
    // one that fails must not keep PostgreSQL running
    for (const closeOne of closers.splice(0).reverse()) await closeOne().catch((err) => log.error({ err }, 'stopping'));
  };
  try {
    await mkdir(dataDirectory, { recursive: true, mode: 0o700 });
    const database = await openDatabase(config);
    closers.push(database.close);
    await removeServerFile(dataDirectory);
    await migrate({ url: database.adminUrl, sqlDirectory: join(packageRoot, 'sql'), log: (line) => log.info(line) });
    await fenceRestored(database.adminUrl, log);
    const { ring, madeAt } = await prepareOwner(database.adminUrl, config);
    const { podUrl, listenUrl, workerUrl } = await database.urls();

    const [{ startPod }, { startWorker }] = await programs;
    const { host, port, publicUrl } = config;
    const pod = await startPod({
      databaseUrl: podUrl,
      listenUrl,
      publicUrl,
      host,
      port,
      keyRing: ring,
      readKeyRing: () => readKeyRing(config),
      webhookAllow: config.webhookAllow,
      openid: config.openid,
      log,
    });
    closers.push(pod.close);
    const worker = await startWorker({
      databaseUrl: workerUrl,
      openDelivery: async () => ({
        keyRing: ring,
        readKeyRing: () => readKeyRing(config),
        allow: config.webhookAllow,
        publicUrl,
      }),
      log,
    });
    closers.push(worker.close);

    const url = publicUrl ?? pod.url;
    const mcpUrl = `${url}/mcp`;
    const databaseUrl = database.adminUrl;
    await writeServerFile(dataDirectory, {
      pid: process.pid,
      url: pod.url,
      mcp_url: mcpUrl,
      database_url: databaseUrl,
    });
    closers.push(() => removeServerFile(dataDirectory));
    return {
      url,
      mcpUrl,
      ownerUrl: `${url}/owner`,
      databaseUrl,
      madeKeyRing: madeAt,
      makeSignInUrl: () => asAdmin(databaseUrl, async (db) => await makeSignInUrl(db, url, await firstOwner(db))),
      databaseEnded: database.ended,
      close,
    };
  } catch (error) {
    await close();
    throw error;
  }
}

async function firstOwner(db: Queryable): Promise<Buffer> {
  const [owner] = await listOwners(db);
  return await actAsOwner(db, { ownerId: owner!.id });
}

interface Database {
  /** Logs in as whoever may migrate. */
  adminUrl: string;
  /** Where the processes log in, once the roles are there. */
  urls(): Promise<{ podUrl: string; listenUrl: string; workerUrl: string }>;
  ended: Promise<string>;
  close(): Promise<void>;
}

async function openDatabase(config: Config): Promise<Database> {
  if (config.databaseUrl !== undefined) {
    await refuseIfRunning(config.dataDirectory);
    const listenUrl = config.listenUrl!;
    return {
      adminUrl: listenUrl,
      urls: async () => ({ podUrl: config.databaseUrl!, listenUrl, workerUrl: listenUrl }),
      ended: new Promise(() => {}),
      close: async () => {},
    };
  }
  const server = await startEmbedded(config.dataDirectory);
  return {
    adminUrl: server.url,
    async urls() {
      const [podUrl, workerUrl] = await logInWithNewPasswords(server.url, ['posthorn_app', 'posthorn_jobs']);
      return { podUrl: podUrl!, listenUrl: podUrl!, workerUrl: workerUrl! };
    },
    ended: server.exited,
    close: server.stop,
  };
}

async function startEmbedded(dataDirectory: string) {
  try {
    return await startEmbeddedPostgres({ dataDirectory: join(dataDirectory, 'postgres') });
  } catch (error) {
    if (!(error instanceof DataDirectoryInUseError)) throw error;
    await refuseIfRunning(dataDirectory);
    // it has the database and has not said yet where it listens
    throw new AlreadyRunningError(`Posthorn is starting or stopping on ${dataDirectory} in another process.`);
  }
}

async function refuseIfRunning(dataDirectory: string): Promise<void> {
  const running = await readServerFile(dataDirectory);
  if (!running || !(await answers(running.url))) return;
  throw new AlreadyRunningError(
    `Posthorn runs on ${dataDirectory} already, at ${running.url} (process ${running.pid}). ` +
      'Stop that one first, or set POSTHORN_DATA_DIR to another folder.',
  );
}

/** A process of that number may be somebody else's by now; only Posthorn answers there. */
async function answers(url: string): Promise<boolean> {
  try {
    const response = await fetch(`${url}/healthz`, { signal: AbortSignal.timeout(2_000) });
    return response.ok;
  } catch {
    return false;
  }
}

async function fenceRestored(adminUrl: string, log: Logger): Promise<void> {
  const pool = createPool({ url: adminUrl, role: 'posthorn_admin', max: 1 });
  try {
    if (await fenceIfRestored(pool)) log.warn('this database was restored; all mail in it was fenced');
  } finally {
    await pool.end();
  }
}

/** Any number that no other lock of the database has will do. */
const FIRST_OWNER_LOCK = 7_661_674_679;

/** A fresh server has one owner, made at its first start, however many processes start at once. */
async function prepareOwner(adminUrl: string, config: Config): Promise<{ ring: KeyRing; madeAt: string | undefined }> {
  return await asAdmin(adminUrl, async (db) => {
    await db.query('select pg_advisory_xact_lock($1)', [FIRST_OWNER_LOCK]);
    const opened = await openOrMakeKeyRing(config, await ringKeys(db));
    if ((await listOwners(db)).length === 0) await makeOwner(db, opened.ring, 'Owner');
    return opened;
  });
}

/** Random, and new at every start: nobody needs to know them, and none lies in a file. */
async function logInWithNewPasswords(superuserUrl: string, roles: string[]): Promise<string[]> {
  const pool = createPool({ url: superuserUrl, max: 1 });
  try {
    const urls = [];
    for (const role of roles) {
      const password = randomBytes(24).toString('base64url');
      await pool.query(`alter role ${role} password '${password}'`);
      urls.push(Object.assign(new URL(superuserUrl), { username: role, password }).toString());
    }
    return urls;
  } finally {
    await pool.end();
  }
}
