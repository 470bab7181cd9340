import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createConnection, createServer } from 'node:net';
import { tmpdir, userInfo } from 'node:os';
import { join } from 'node:path';
import { pino } from 'pino';
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';
import { startPod } from '../../src/pod.ts';
import { newKey, startPosthorn, type TestAgent, type TestPosthorn } from '../helpers/posthorn.ts';

const PGBOUNCER = ['/usr/sbin/pgbouncer', '/usr/bin/pgbouncer'].find((path) => existsSync(path));
const READS = 1_000;
const CALLERS = 20;

// Debian's package has it; where it cannot be had there is nothing to put in front.
describe.skipIf(PGBOUNCER === undefined)('behind PgBouncer in transaction mode', () => {
  let posthorn: TestPosthorn;
  let bouncer: ChildProcess;
  let folder: string;
  let pooledUrl: string;

  beforeAll(async () => {
    posthorn = await startPosthorn();
    const port = await freePort();
    const database = new URL(posthorn.database.url);
    folder = mkdtempSync(join(tmpdir(), 'posthorn-pooler-'));
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
    bouncer = spawn(PGBOUNCER!, [...asUser, config], { stdio: 'ignore' });
    await untilListening(port);
    pooledUrl = Object.assign(new URL(database), { port: String(port) }).toString();
  });
  afterAll(async () => {
    bouncer.kill('SIGKILL');
    await once(bouncer, 'exit');
    await posthorn.close();
    rmSync(folder, { recursive: true, force: true });
  });

  test('1,000 interleaved reads of two owners show no foreign row, and wakes arrive over the direct connection', async () => {
    const log = pino({ enabled: false });
    const pod = await startPod({
      databaseUrl: pooledUrl,
      listenUrl: posthorn.database.url,
      publicUrl: undefined,
      host: '127.0.0.1',
      port: 0,
      keyRing: posthorn.ring,
      readKeyRing: async () => posthorn.ring,
      log,
    });
    posthorn.pods.push(pod);
    const pairs = await Promise.all([1, 2].map(() => makePair()));
    const mine = pairs.map((pair) => new Set(pair.flatMap((agent) => [agent.id])));
    for (const [a, b] of pairs)
      await a.send({ recipient_agent_id: b.id, body: `for ${b.id}`, idempotency_key: newKey() }, 1);

    let read = 0;
    async function caller(number: number): Promise<void> {
      while (read < READS) {
        const which = (read++ + number) % 2;
        const [, b] = pairs[which]!;
        const listed = await b.call('GET', `/agents?agent_id=${b.id}`, undefined, 1);
        const received = await b.receive({}, 1);
        expect(
          listed.body.agents.map((agent: { id: string }) => agent.id).every((id: string) => mine[which]!.has(id)),
        ).toBe(true);
        expect(received.body.messages.map((message: { body: string }) => message.body)).toEqual([`for ${b.id}`]);
      }
    }
    await Promise.all(Array.from({ length: CALLERS }, (_, number) => caller(number)));

    const [a, b] = pairs[0]!;
    await b.ack(
      (await b.receive({}, 1)).body.messages.map((message: { id: string }) => message.id),
      {},
      1,
    );
    const waiting = b.receive({ wait_seconds: 25 }, 1);
    await b.call('GET', `/status?agent_id=${b.id}`, undefined, 1);
    const sent = await a.send({ recipient_agent_id: b.id, body: 'wake', idempotency_key: newKey() });
    expect((await waiting).body.messages.map((message: { id: string }) => message.id)).toEqual([sent.body.id]);
  }, 120_000);

  async function makePair(): Promise<[TestAgent, TestAgent]> {
    const owner = await posthorn.owner();
    const pair: [TestAgent, TestAgent] = [await owner.agent('a'), await owner.agent('b')];
    await owner.group(pair);
    return pair;
  }
});

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
