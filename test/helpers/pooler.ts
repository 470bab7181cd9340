import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createConnection, createServer } from 'node:net';
import { tmpdir, userInfo } from 'node:os';
import { join } from 'node:path';
import { vi } from 'vitest';

const PGBOUNCER = ['/usr/sbin/pgbouncer', '/usr/bin/pgbouncer'].find((path) => existsSync(path));

/** Debian's package has it; where it cannot be had there is nothing to put in front. */
export const hasPooler = PGBOUNCER !== undefined;

/** PgBouncer in transaction mode in front of a database. */
export async function startPooler(databaseUrl: string): Promise<{ url: string; stop(): Promise<void> }> {
  const port = await freePort();
  const database = new URL(databaseUrl);
  const folder = mkdtempSync(join(tmpdir(), 'posthorn-pooler-'));
  chmodSync(folder, 0o755);
  const config = join(folder, 'pgbouncer.ini');
  const users = join(folder, 'users.txt');
  writeFileSync(users, `"${decodeURIComponent(database.username)}" "${decodeURIComponent(database.password)}"\n`, {
    mode: 0o644,
  });
  writeFileSync(
    config,
    `[databases]
* = host=${database.hostname} port=${database.port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = ${port}
unix_socket_dir =
auth_type = plain
auth_file = ${users}
pool_mode = transaction
default_pool_size = 3
max_client_conn = 200
`,
  );
  const asUser = userInfo().uid === 0 ? ['-u', 'nobody'] : [];
  const bouncer = spawn(PGBOUNCER!, [...asUser, config], { stdio: 'ignore' });
  await untilListening(port);
  return {
    url: Object.assign(database, { port: String(port) }).toString(),
    async stop() {
      bouncer.kill('SIGKILL');
      await once(bouncer, 'exit');
      rmSync(folder, { recursive: true, force: true });
    },
  };
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as { port: number };
  server.close();
  await once(server, 'close');
  return port;
}

/** Connects until somebody answers. */
async function untilListening(port: number): Promise<void> {
  await vi.waitFor(
    async () => {
      const socket = createConnection(port, '127.0.0.1');
      await once(socket, 'connect');
      socket.destroy();
    },
    { timeout: 10_000 },
  );
}
