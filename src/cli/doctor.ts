import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { stat, statfs } from 'node:fs/promises';
import { createServer } from 'node:net';
import { join } from 'node:path';
import type { Command } from 'commander';
import pg from 'pg';
import { type Config, readConfig, unknownSettings } from '../config.ts';
import { ringKeys } from '../db/functions.ts';
import { readSqlFiles, schemaState } from '../db/migrate.ts';
import { canActAs } from '../db/pool.ts';
import { keyRingPath, openKeyRing } from '../open-key-ring.ts';
import { packageRoot } from '../package-root.ts';
import { isExposed } from '../private-file.ts';
import { readServerFile, type ServerFile } from '../server-file.ts';
import { nameDatabase } from './database.ts';
import { EXIT } from './failure.ts';
import { addCommand, answer, type Output, posthorn } from './output.ts';
import { harmless } from './text.ts';

/** Less than this free, in bytes, and PostgreSQL may soon have to stop. */
const LITTLE_SPACE = 1024 ** 3;

/** How long one answer may take, in milliseconds. */
const ANSWER_MS = 5_000;

interface Finding {
  check: string;
  ok: boolean;
  message: string;
}

const ok = (message: string) => ({ ok: true, message });
const problem = (message: string) => ({ ok: false, message });

type Outcome = ReturnType<typeof ok>;

export function addDoctor(program: Command): void {
  addCommand(program, 'doctor', 'Look for what is wrong with this server, and say what to do.').action(run);
}

async function run(output: Output): Promise<void> {
  const config = readConfig(process.env);
  const findings = await examine(config);
  const width = Math.max(...findings.map(({ check }) => check.length));
  const lines = findings.map(
    ({ check, ok, message }) => `${ok ? 'ok     ' : 'PROBLEM'}  ${check.padEnd(width)}  ${message}`,
  );
  const isWell = findings.every(({ ok }) => ok);
  answer(output, { ok: isWell, checks: findings }, harmless(lines.join('\n')));
  if (!isWell) process.exitCode = EXIT.refused;
}

async function examine(config: Config): Promise<Finding[]> {
  const findings: Finding[] = [];
  const check = async (name: string, look: () => Outcome | Promise<Outcome>): Promise<boolean> => {
    const outcome = await Promise.resolve()
      .then(look)
      .catch((error: Error) => problem(`${error.message}.`));
    findings.push({ check: name, ...outcome });
    return outcome.ok;
  };

  await check('settings', checkSettings);
  await check('data folder', () => checkDataFolder(config.dataDirectory));
  await check('disk', () => checkDisk(config.dataDirectory));
  let server: ServerFile | undefined;
  await check('server', async () => {
    server = await readServerFile(config.dataDirectory);
    return await checkServer(config, server);
  });

  const url = config.databaseUrl ?? server?.database_url;
  if (url === undefined) {
    findings.push({
      check: 'database',
      ...ok('none to look at: no server runs here, and POSTHORN_DATABASE_URL is not set'),
    });
    return findings;
  }
  const client = connection(url);
  const isReached = await check('database', () => checkDatabase(client, url));
  if (isReached) {
    const hasSchema = await check('schema', () => checkSchema(client));
    if (hasSchema) await check('key ring', async () => await checkKeyRingFile(config, client));
    await check('role', () => checkRole(url));
    await check('listening', () => checkListening(client, config.listenUrl ?? url));
  }
  await client.end();
  return findings;
}

function checkSettings(): Outcome {
  const unknown = unknownSettings(process.env);
  return unknown.length === 0
    ? ok('every POSTHORN_ variable is known and valid')
    : problem(`${unknown.join(', ')}: no such setting. Misspelt? docs/settings.md has them all.`);
}

async function checkDataFolder(path: string): Promise<Outcome> {
  if (!existsSync(path)) return ok(`${path} is not there yet; ${posthorn} start makes it`);
  const { mode } = await stat(path);
  // others may pass through, where another user runs PostgreSQL, but look at nothing
  return process.platform !== 'win32' && (mode & 0o066) !== 0
    ? problem(`Other users can look into ${path}. Run: chmod 700 '${path}'`)
    : ok(path);
}

async function checkDisk(path: string): Promise<Outcome> {
  if (!existsSync(path)) return ok('nothing there yet');
  const { bavail, bsize } = await statfs(path);
  const free = bavail * bsize;
  const amount = `${(free / 1024 ** 3).toFixed(1)} GiB free at ${path}`;
  return free < LITTLE_SPACE ? problem(`${amount}. Make room before PostgreSQL has to stop.`) : ok(amount);
}

async function checkServer(config: Config, server: ServerFile | undefined): Promise<Outcome> {
  const url = server?.url ?? `http://${config.host}:${config.port}`;
  const health = await fetch(`${url}/readyz`, { signal: AbortSignal.timeout(ANSWER_MS) }).catch(() => undefined);
  if (health?.ok) return ok(`${url} answers and is ready`);
  if (health) return problem(`${url} answers with HTTP ${health.status}: it is not ready, or another program's.`);
  if (server) return problem(`Process ${server.pid} should answer at ${url} and does not. Look into its log.`);
  const isFree = await canListen(config.host, config.port);
  return isFree
    ? ok(`none runs here; port ${config.port} is free`)
    : problem(`Port ${config.port} is taken. Set POSTHORN_PORT.`);
}

async function canListen(host: string, port: number): Promise<boolean> {
  const server = createServer().listen(port, host);
  try {
    await once(server, 'listening');
    return true;
  } catch {
    return false;
  } finally {
    server.close();
  }
}

function connection(url: string): pg.Client {
  const client = new pg.Client({
    connectionString: url,
    application_name: 'posthorn doctor',
    connectionTimeoutMillis: ANSWER_MS,
    query_timeout: ANSWER_MS,
  });
  client.on('error', () => {});
  return client;
}

async function checkDatabase(client: pg.Client, url: string): Promise<Outcome> {
  await client.connect();
  const { rows } = await client.query(`
    select current_setting('server_version') as version, current_setting('server_version_num')::int / 10000 as major,
           pg_catalog.pg_is_in_recovery() as "isReplica"`);
  const { version, major, isReplica } = rows[0];
  const where = `PostgreSQL ${version} at ${nameDatabase(url)}`;
  if (major < 15 || major > 18) return problem(`${where}. Posthorn needs 15 to 18.`);
  if (isReplica) return problem(`${where} is a read-only replica. Name the primary.`);
  return ok(where);
}

async function checkSchema(client: pg.Client): Promise<Outcome> {
  const state = await schemaState(client, await readSqlFiles(join(packageRoot, 'sql')));
  if (state === 'current') return ok('is the one that this build needs');
  if (state === 'ahead') return ok('is of a newer build, which this one gets on with');
  if (state === 'ahead_breaking') return problem('A newer build has changed it beyond this one. Run a newer build.');
  return problem(
    `${state === 'empty' ? 'There is none yet' : 'It is older than this build'}. Run: ${posthorn} migrate`,
  );
}

async function checkKeyRingFile(config: Config, client: pg.Client): Promise<Outcome> {
  const ring = await openKeyRing(config, await ringKeys(client));
  const path = keyRingPath(config);
  if (path === undefined) return ok(`opens this database; its current key is ${ring.currentId}`);
  return isExposed((await stat(path)).mode)
    ? problem(`Other users can read ${path}. Run: chmod 600 '${path}'`)
    : ok(`${path} opens this database; its current key is ${ring.currentId}`);
}

async function checkRole(url: string): Promise<Outcome> {
  return (await canActAs('posthorn_app', url))
    ? ok('the login acts as posthorn_app')
    : problem('The pooler passes no role on, so that serve runs as its login. Log in as posthorn_app.');
}

/** Says something on the one connection and hears it on the other: the same database, and no pooler in between. */
async function checkListening(speaker: pg.Client, listenUrl: string): Promise<Outcome> {
  const where = nameDatabase(listenUrl);
  const channel = `posthorn_doctor_${process.pid}`;
  const listener = connection(listenUrl);
  try {
    await listener.connect();
    const { rows } = await listener.query('select pg_catalog.pg_is_in_recovery() as "isReplica"');
    if (rows[0].isReplica) return problem(`${where} is a read-only replica. POSTHORN_LISTEN_URL must be the primary.`);
    const heard = once(listener, 'notification', { signal: AbortSignal.timeout(ANSWER_MS) });
    heard.catch(() => {});
    await listener.query(`listen ${channel}`);
    await speaker.query(`notify ${channel}`);
    await heard;
    return ok(`${where} hears what is said at once`);
  } catch (error) {
    if ((error as Error).name !== 'AbortError') throw error;
    return problem(
      `${where} heard nothing: it is another database, or a pooler. Set POSTHORN_LISTEN_URL to the server.`,
    );
  } finally {
    await listener.end();
  }
}
