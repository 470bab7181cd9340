import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmod, mkdtemp, readFile, rename, rm, stat, writeFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface, type Interface } from 'node:readline';
import pg from 'pg';
import { afterAll, expect, test } from 'vitest';
import {
  DataDirectoryInUseError,
  type EmbeddedPostgres,
  findEmbeddedPostgres,
  startEmbeddedPostgres,
} from '../../src/db/embedded.ts';

const major = process.env.POSTHORN_TEST_POSTGRES === '15' ? 15 : 18;
const folders: string[] = [];

afterAll(async () => {
  for (const folder of folders) await rm(folder, { recursive: true });
});

test('data, password and port outlast a stop', async () => {
  const dataDirectory = await dataFolder();
  const first = await start({ dataDirectory });
  await query(first.url, 'create table kept as select 42 as n');
  await first.stop();
  const second = await start({ dataDirectory });
  expect(second.url).toBe(first.url);
  expect(await query(second.url, 'select n from kept')).toEqual([{ n: 42 }]);
  await second.stop();
});

test('the server listens on loopback only, wants a password and keeps data private', async () => {
  const dataDirectory = await dataFolder();
  const server = await start({ dataDirectory });
  const settings = await query(
    server.url,
    `select current_setting('listen_addresses') as addresses, current_setting('unix_socket_directories') as sockets`,
  );
  expect(settings).toEqual([{ addresses: '127.0.0.1', sockets: '' }]);
  const wrong = Object.assign(new URL(server.url), { password: 'wrong' }).toString();
  await expect(query(wrong, 'select 1')).rejects.toMatchObject({ code: '28P01' });
  expect(await query(server.url, `select distinct auth_method from pg_catalog.pg_hba_file_rules`)).toEqual([
    { auth_method: 'scram-sha-256' },
  ]);
  expect((await stat(join(dataDirectory, 'superuser-password'))).mode & 0o777).toBe(0o600);
  expect((await stat(join(dataDirectory, 'cluster'))).mode & 0o077).toBe(0);
  await server.stop();
});

test('data without its password file is refused and left alone', async () => {
  const dataDirectory = await dataFolder();
  const server = await start({ dataDirectory });
  await server.stop();
  const passwordFile = join(dataDirectory, 'superuser-password');
  await rename(passwordFile, `${passwordFile}.aside`);
  await expect(start({ dataDirectory })).rejects.toThrow('superuser-password is missing');
  await rename(`${passwordFile}.aside`, passwordFile);
  const again = await start({ dataDirectory });
  expect(await query(again.url, 'select 1 as one')).toEqual([{ one: 1 }]);
  await again.stop();
});

test("the caller's umask, locale and PG variables make no difference", async () => {
  const dataDirectory = await dataFolder();
  const environment = {
    LC_ALL: 'xx_XX.nonsense',
    PGPORT: '1',
    PGDATA: '/nowhere',
    PGOPTIONS: '-c nonsense=1',
    TZ: 'Asia/Tokyo',
  };
  const { child, url } = await startInProcess(dataDirectory, { umask: '077', environment });
  const rows = await query(
    url,
    `select getdatabaseencoding() as encoding, current_setting('lc_messages') as messages, current_setting('TimeZone') as zone`,
  );
  expect(rows).toEqual([{ encoding: 'UTF8', messages: 'C', zone: 'UTC' }]);
  child.kill('SIGTERM');
  await once(child, 'exit');
});

test('a second start is refused while the first process lives, and finds its address', async () => {
  const dataDirectory = await dataFolder();
  const { child, url } = await startInProcess(dataDirectory);
  const refusal = await start({ dataDirectory }).catch((error: unknown) => error);
  expect(refusal).toBeInstanceOf(DataDirectoryInUseError);
  expect((refusal as Error).message).toContain(String(child.pid));
  // the server says in its own file that it is ready, a moment after it takes connections
  await expect.poll(() => findEmbeddedPostgres(dataDirectory)).toBe(url);
  child.kill('SIGTERM');
  await once(child, 'exit');
  expect(await findEmbeddedPostgres(dataDirectory)).toBeUndefined();
});

test('of eight starts at once on an abandoned directory at most one wins, and a later one can', async () => {
  const dataDirectory = await dataFolder();
  const { child } = await startInProcess(dataDirectory);
  child.kill('SIGKILL');
  await once(child, 'exit');
  const starts = await Promise.allSettled(Array.from({ length: 8 }, () => start({ dataDirectory })));
  const won = starts.filter((each) => each.status === 'fulfilled');
  expect(won.length).toBeLessThanOrEqual(1);
  for (const each of starts)
    if (each.status === 'rejected') expect(each.reason).toBeInstanceOf(DataDirectoryInUseError);
  await won[0]?.value.stop();
  const later = await start({ dataDirectory });
  await later.stop();
});

test('a server orphaned by kill -9 is stopped, and its data is there for the next', async () => {
  const dataDirectory = await dataFolder();
  const { child, url } = await startInProcess(dataDirectory);
  await query(url, 'create table kept as select 42 as n');
  const orphan = await postmasterPid(dataDirectory);
  child.kill('SIGKILL');
  await once(child, 'exit');
  expect(await query(url, 'select n from kept')).toEqual([{ n: 42 }]);

  const server = await start({ dataDirectory });
  // Its port was free again, so the orphan has ended.
  expect(server.url).toBe(url);
  expect(await postmasterPid(dataDirectory)).not.toBe(orphan);
  expect(await query(server.url, 'select n from kept')).toEqual([{ n: 42 }]);
  await server.stop();
});

test('a server killed with its process recovers what was committed', async () => {
  const dataDirectory = await dataFolder();
  const { child, url } = await startInProcess(dataDirectory);
  await query(url, 'create table kept as select 42 as n');
  process.kill(await postmasterPid(dataDirectory), 'SIGKILL');
  child.kill('SIGKILL');
  await once(child, 'exit');
  const server = await start({ dataDirectory });
  expect(await query(server.url, 'select n from kept')).toEqual([{ n: 42 }]);
  await server.stop();
});

test('a pid file that names somebody else does not stop the start, nor that process', async () => {
  const dataDirectory = await dataFolder();
  const { child } = await startInProcess(dataDirectory);
  const pidFile = join(dataDirectory, 'cluster', 'postmaster.pid');
  process.kill(await postmasterPid(dataDirectory), 'SIGKILL');
  child.kill('SIGKILL');
  await once(child, 'exit');
  const { uid, gid } = await stat(pidFile);
  const bystander = spawn('sleep', ['60'], { uid, gid });
  await once(bystander, 'spawn');
  const [, ...lines] = (await readFile(pidFile, 'utf8')).split('\n');
  await writeFile(pidFile, [bystander.pid, ...lines].join('\n'));

  const server = await start({ dataDirectory });
  expect(bystander.exitCode ?? bystander.signalCode).toBeNull();
  bystander.kill();
  await server.stop();
});

test('Ctrl-C at a terminal, which signals the whole process group, leaves the server to its owner', async () => {
  const { child, url, output } = await startInProcess(await dataFolder(), { isGroup: true });
  process.kill(-child.pid!, 'SIGINT');
  expect(await nextLine(output)).toBe('interrupted');
  expect(await query(url, 'select 1 as one')).toEqual([{ one: 1 }]);
  child.kill('SIGTERM');
  await once(child, 'exit');
});

test('a process that ends without a stop takes its server with it', async () => {
  const { child, url } = await startInProcess(await dataFolder());
  child.kill('SIGUSR2');
  await once(child, 'exit');
  const isServing = () =>
    query(url, 'select 1').then(
      () => true,
      (error) => error.code !== 'ECONNREFUSED',
    );
  while (await isServing());
});

test('a kept port that is taken meanwhile is replaced; a given one is insisted on, with the reason in the error', async () => {
  const dataDirectory = await dataFolder();
  const first = await start({ dataDirectory });
  await first.stop();
  const squatter = createServer().listen(first.port, '127.0.0.1');
  await once(squatter, 'listening');
  await expect(start({ dataDirectory, port: first.port })).rejects.toThrow('Address already in use');
  const second = await start({ dataDirectory });
  expect(second.port).not.toBe(first.port);
  await second.stop();
  squatter.close();
});

test('an end that nobody asked for is told, with the last log lines', async () => {
  const dataDirectory = await dataFolder();
  const server = await start({ dataDirectory });
  process.kill(await postmasterPid(dataDirectory), 'SIGINT');
  expect(await server.exited).toContain('database system is shut down');
  const next = await start({ dataDirectory });
  await next.stop();
});

test('data of another major version is refused and left alone', async () => {
  const dataDirectory = await dataFolder();
  const server = await start({ dataDirectory });
  await server.stop();
  const other = major === 18 ? 15 : 18;
  await expect(start({ dataDirectory, major: other })).rejects.toThrow(`is of PostgreSQL ${major}`);
  const again = await start({ dataDirectory });
  await again.stop();
});

/** These tests kill processes, not machines, so nothing need reach the disk. */
function start(options: { dataDirectory: string; port?: number; major?: 15 | 18 }): Promise<EmbeddedPostgres> {
  return startEmbeddedPostgres({ major, settings: { fsync: 'off' }, ...options });
}

/** Under a folder that nobody but its maker may enter, as mkdtemp makes them; PostgreSQL itself is never root. */
async function dataFolder(): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'posthorn-embedded-'));
  await chmod(folder, 0o700);
  folders.push(folder);
  return join(folder, 'data');
}

// biome-ignore lint/suspicious/noExplicitAny: rows have the shape that the text says.
async function query(url: string, text: string): Promise<any[]> {
  const client = new pg.Client({ connectionString: url });
  client.on('error', () => {});
  await client.connect();
  try {
    return (await client.query(text)).rows;
  } finally {
    await client.end();
  }
}

interface OwningProcess {
  child: ChildProcess;
  url: string;
  output: Interface;
}

/** Another process that owns a server: `child` stops it and ends at SIGTERM, ends without a stop at SIGUSR2. */
async function startInProcess(
  dataDirectory: string,
  options: { umask?: string; environment?: Record<string, string>; isGroup?: boolean } = {},
): Promise<OwningProcess> {
  const program = join(import.meta.dirname, '..', 'helpers', 'embedded-process.ts');
  const command = `umask ${options.umask ?? '022'}; exec "$@"`;
  const child = spawn('sh', ['-c', command, 'sh', process.execPath, program, dataDirectory, String(major)], {
    stdio: ['ignore', 'pipe', 'inherit'],
    env: { ...process.env, ...options.environment },
    detached: options.isGroup ?? false,
  });
  const output = createInterface(child.stdout!);
  return { child, url: await nextLine(output), output };
}

async function nextLine(output: Interface): Promise<string> {
  const [line] = await once(output, 'line');
  return line;
}

async function postmasterPid(dataDirectory: string): Promise<number> {
  return Number((await readFile(join(dataDirectory, 'cluster', 'postmaster.pid'), 'utf8')).split('\n')[0]);
}
