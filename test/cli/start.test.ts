import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { copyFile, mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';
import { runCommand, type ServerProcess, type Settings, startProcess } from '../helpers/command-line.ts';

// The whole product on a data directory of its own, as its README starts it. Each start takes seconds, so that these
// tests go on from one another.
vi.setConfig({ testTimeout: 180_000, hookTimeout: 180_000 });

let folder: string;
let settings: Settings;
let server: ServerProcess;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'posthorn-start-'));
  settings = { POSTHORN_DATA_DIR: join(folder, 'data'), POSTHORN_PORT: '0' };
  server = await startProcess(['start'], settings);
});

afterAll(async () => {
  server.child.kill('SIGTERM');
  await server.exited;
  await rm(folder, { recursive: true });
});

const file = (name: string) => join(folder, 'data', name);
const modeOf = async (path: string) => (await stat(path)).mode & 0o777;

async function query(url: string, text: string): Promise<Record<string, unknown>[]> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  try {
    return (await client.query(text)).rows;
  } finally {
    await client.end();
  }
}

describe('start', () => {
  test('says on one line where it is, and everything is there', async () => {
    const { url } = server.ready;
    expect(Object.keys(server.ready)).toEqual(['event', 'pid', 'url', 'mcp_url', 'owner_url', 'database_url']);
    expect(server.ready).toMatchObject({ event: 'ready', pid: server.child.pid, mcp_url: `${url}/mcp` });
    expect((await fetch(`${url}/readyz`)).status).toBe(200);
    expect(server.stdout().trim().split('\n')).toHaveLength(1);
    // pods and workers log in with no more rights than they need
    const logins = await query(
      server.ready.database_url,
      `select distinct usename, application_name from pg_catalog.pg_stat_activity where application_name like 'posthorn%' order by 1, 2`,
    );
    expect(logins).toEqual([
      { usename: 'posthorn_app', application_name: 'posthorn' },
      { usename: 'posthorn_app', application_name: 'posthorn listener' },
      { usename: 'posthorn_jobs', application_name: 'posthorn' },
    ]);
  });

  test('keeps its secrets to its user', async () => {
    for (const name of ['keyring.json', 'server.json', 'postgres/superuser-password']) {
      expect(await modeOf(file(name))).toBe(0o600);
    }
    // root lets the user that runs PostgreSQL pass through, and see nothing
    expect((await modeOf(file(''))) & 0o067).toBe(0);
  });

  test('a second one on the same data is refused, and says where the first is', async () => {
    const second = await runCommand(['start', '--json'], settings);
    expect(second).toMatchObject({ code: 1, stdout: '' });
    const { error, message } = JSON.parse(second.stderr.trim().split('\n').at(-1)!);
    expect(error).toBe('already_running');
    expect(message).toContain(server.ready.url);
    expect((await fetch(`${server.ready.url}/readyz`)).status).toBe(200);
  });

  test("the person's commands and the agents' find it without being told", async () => {
    expect((await runCommand(['owner', 'list', '--json'], settings)).json().owners).toHaveLength(1);
    const token = (
      await runCommand(['token', 'create', '--label', 'a', '--scope', 'messaging', '--json'], settings)
    ).json();
    const status = await runCommand(['status', '--json'], { ...settings, POSTHORN_TOKEN: token.token });
    expect(status.json()).toMatchObject({ enabled: true, agent_id: null, owner_url: server.ready.owner_url });
    const doctor = await runCommand(['doctor', '--json'], settings);
    expect(doctor.json().checks.filter(({ ok }: { ok: boolean }) => !ok)).toEqual([]);
  });

  test('stops with 0 however often it is told to, and leaves no process and no address behind', async () => {
    const postgres = Number((await readFile(file('postgres/cluster/postmaster.pid'), 'utf8')).split('\n')[0]);
    for (const signal of ['SIGTERM', 'SIGINT', 'SIGTERM', 'SIGHUP'] as const) server.child.kill(signal);
    expect(await server.exited).toBe(0);
    expect(() => process.kill(postgres, 0)).toThrow('ESRCH');
    expect(existsSync(file('server.json'))).toBe(false);
    expect(await runCommand(['owner', 'list'], settings)).toMatchObject({ code: 3, stdout: '' });
  });

  test('a wrong, a broken and a missing key ring are each refused in a line, and none is made anew', async () => {
    const path = file('keyring.json');
    const kept = join(folder, 'keyring.json');
    await copyFile(path, kept);
    const right = JSON.parse(await readFile(path, 'utf8'));
    const wrong = { ...right, keys: { [right.current]: Buffer.alloc(32, 7).toString('base64') } };
    for (const [text, says] of [
      [JSON.stringify(wrong), 'is not the one'],
      ['{', 'is not JSON'],
    ]) {
      await writeFile(path, text!);
      const result = await runCommand(['start'], settings);
      expect(result).toMatchObject({ code: 1, stdout: '' });
      expect(result.stderr).toMatch(new RegExp(`^key_ring: .*${says}`, 'm'));
    }
    await rm(path);
    const missing = await runCommand(['start'], settings);
    expect(missing).toMatchObject({ code: 1, stdout: '' });
    expect(missing.stderr).toContain(path);
    expect(existsSync(path)).toBe(false);
    await copyFile(kept, path);
  });

  test('where its port is taken it says so, and stops what it had started', async () => {
    const squatter = createServer().listen(0, '127.0.0.1');
    await once(squatter, 'listening');
    const { port } = squatter.address() as { port: number };
    const result = await runCommand(['start'], { ...settings, POSTHORN_PORT: String(port) });
    squatter.close();
    expect(result).toMatchObject({ code: 1, stdout: '' });
    expect(result.stderr).toMatch(/^port_in_use: .*POSTHORN_PORT/m);
    expect(existsSync(file('postgres/cluster/postmaster.pid'))).toBe(false);
  });

  test('killed in the middle, it starts again with all that it had', async () => {
    server = await startProcess(['start'], settings);
    const before = (await runCommand(['token', 'list', '--json'], settings)).json();
    server.child.kill('SIGKILL');
    await server.exited;
    server = await startProcess(['start'], settings);
    expect((await fetch(`${server.ready.url}/readyz`)).status).toBe(200);
    expect((await runCommand(['token', 'list', '--json'], settings)).json()).toEqual(before);
  });

  test('when PostgreSQL ends by itself, so does it, and says so', async () => {
    const postgres = Number((await readFile(file('postgres/cluster/postmaster.pid'), 'utf8')).split('\n')[0]);
    process.kill(postgres, 'SIGINT');
    expect(await server.exited).toBe(1);
    expect(server.stderr()).toContain('"error":"database_ended"');
    server = await startProcess(['start'], settings);
  });
});
