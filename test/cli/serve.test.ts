import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { createServer } from 'node:net';
import { beforeAll, describe, expect, test, vi } from 'vitest';
import { hashCredential } from '../../src/crypto/credentials.ts';
import { type KeyRing, makeKeyRing, serializeKeyRing } from '../../src/crypto/key-ring.ts';
import { registerAgent } from '../../src/db/functions.ts';
import { makeOwner } from '../../src/new-owner.ts';
import { runCommand, type Settings, startProcess } from '../helpers/command-line.ts';
import { createTestDatabase, type TestDatabase } from '../helpers/database.ts';

vi.setConfig({ testTimeout: 120_000 });

let database: TestDatabase;
let settings: Settings;
const ring = makeKeyRing();

beforeAll(async () => {
  database = await createTestDatabase();
  await makeOwner(database.as('posthorn_admin'), ring, 'Owner');
  settings = {
    POSTHORN_DATABASE_URL: database.url,
    POSTHORN_KEYRING: serializeKeyRing(ring),
    POSTHORN_PORT: '0',
    POSTHORN_DATA_DIR: '/nowhere',
  };
});

const LOOKED = `
  select from pg_catalog.pg_stat_activity
  where datname = current_database() and query like '%read_inbox%' and application_name = 'posthorn' and state = 'idle'`;

describe('serve', () => {
  test('says that it is ready, without the database, and ends with 0 however often it is told to', async () => {
    const pod = await startProcess(['serve'], settings);
    const { url } = pod.ready;
    expect(pod.ready).toEqual({
      event: 'ready',
      pid: pod.child.pid,
      url: expect.stringMatching(/^http:\/\/127\.0\.0\.1:\d+$/),
      mcp_url: `${url}/mcp`,
      owner_url: `${url}/owner`,
    });
    expect((await fetch(`${url}/readyz`)).status).toBe(200);
    pod.child.kill('SIGTERM');
    pod.child.kill('SIGINT');
    pod.child.kill('SIGTERM');
    expect(await pod.exited).toBe(0);
    expect(pod.stdout().trim().split('\n')).toHaveLength(1);
  });

  test('lets a call under way finish before it ends', async () => {
    const { token } = (
      await runCommand(['token', 'create', '--label', 'a', '--scope', 'messaging', '--json'], settings)
    ).json();
    const credential = hashCredential(token);
    const given = { credential, installation: 'test', label: 'a', runtime: 'other' };
    const { id } = await registerAgent(database.as('posthorn_app'), given);
    const pod = await startProcess(['serve'], settings);
    const waiting = fetch(`${pod.ready.url}/messaging/v1/receive`, {
      method: 'POST',
      headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json' },
      body: JSON.stringify({ wait_seconds: 25, agent_id: id }),
    });
    // its first look at the database was for mail, and it has found none
    await vi.waitUntil(async () => (await database.admin.query(LOOKED)).rows.length > 0, { timeout: 60_000 });
    pod.child.kill('SIGTERM');
    const response = await waiting;
    expect(response.status).toBe(200);
    expect(await response.json()).toMatchObject({ messages: [] });
    expect(await pod.exited).toBe(0);
  });

  test('with another key ring, or none, it does not start', async () => {
    const other: KeyRing = { currentId: ring.currentId, keys: new Map([[ring.currentId, randomBytes(32)]]) };
    const [wrong, missing, broken] = await Promise.all([
      runCommand(['serve'], { ...settings, POSTHORN_KEYRING: serializeKeyRing(other) }),
      runCommand(['serve', '--json'], { ...settings, POSTHORN_KEYRING: undefined }),
      runCommand(['serve'], { ...settings, POSTHORN_KEYRING: '{"current": 1}' }),
    ]);
    expect(wrong).toMatchObject({ code: 1, stdout: '' });
    expect(wrong.stderr).toMatch(new RegExp(`^key_ring: Key "${ring.currentId}" .+ is not the one`, 'm'));
    expect(missing).toMatchObject({ code: 1, stdout: '' });
    expect(JSON.parse(missing.stderr)).toMatchObject({ error: 'key_ring' });
    expect(broken).toMatchObject({ code: 1, stdout: '' });
    expect(wrong.stderr + broken.stderr).not.toContain(other.keys.get(ring.currentId)!.toString('base64'));
  });

  test('where its port is taken it says so and ends', async () => {
    const squatter = createServer().listen(0, '127.0.0.1');
    await once(squatter, 'listening');
    const { port } = squatter.address() as { port: number };
    const result = await runCommand(['serve', '--json'], { ...settings, POSTHORN_PORT: String(port) });
    squatter.close();
    expect(result).toMatchObject({ code: 1, stdout: '' });
    expect(result.stderr).toContain('"error":"port_in_use"');
    expect(result.stderr).toContain(String(port));
  });

  test('on a schema that a newer build broke with, it and migrate end with 57', async () => {
    const newer = await createTestDatabase();
    await newer.admin.query(
      `insert into posthorn_migrations.applied (id, name, sha256, breaking) values (9999, '9999_new.sql', 'x', true)`,
    );
    const there = { ...settings, POSTHORN_DATABASE_URL: newer.url };
    for (const command of ['serve', 'worker', 'migrate']) {
      const { code, stderr } = await runCommand([command, '--json'], there);
      expect(code).toBe(57);
      expect(JSON.parse(stderr)).toMatchObject({ error: 'schema_too_new' });
    }
    await newer.drop();
  });

  test.each([
    [{ POSTHORN_DATABASE_URL: undefined }, 2, 'POSTHORN_DATABASE_URL'],
    [{ POSTHORN_DATABASE_URL: 'mysql://x' }, 2, 'POSTHORN_DATABASE_URL'],
    [{ POSTHORN_PORT: '70000' }, 2, 'POSTHORN_PORT'],
    [{ POSTHORN_DATABASE_URL: 'postgres://u:secret@127.0.0.1:9/x' }, 3, '127.0.0.1:9/x'],
  ])('with %j it exits %i', async (wrong, code, says) => {
    const result = await runCommand(['serve'], { ...settings, ...wrong });
    expect(result).toMatchObject({ code, stdout: '' });
    expect(result.stderr).toContain(says);
    expect(result.stderr).not.toContain('secret');
  });
});

test('migrate brings an empty database up to date, and then has nothing to do', async () => {
  const empty = await createTestDatabase({ isEmpty: true });
  const there = { POSTHORN_DATABASE_URL: empty.url };
  const first = await runCommand(['migrate', '--json'], there);
  expect(first).toMatchObject({ code: 0 });
  expect(first.json()).toMatchObject({ applied: expect.arrayContaining(['0001_roles.sql']), rebuilt: true });
  expect((await runCommand(['migrate', '--json'], there)).json()).toEqual({ applied: [], rebuilt: false });
  await empty.drop();
});

describe('doctor', () => {
  test('finds nothing wrong where nothing is', async () => {
    const result = await runCommand(['doctor', '--json'], settings);
    expect(result.json()).toMatchObject({ ok: true });
    expect(result.json().checks.map(({ check }: { check: string }) => check)).toEqual(
      expect.arrayContaining(['database', 'schema', 'key ring', 'listening']),
    );
    expect(result.code).toBe(0);
  });

  test('says what is wrong, and what to do', async () => {
    const empty = await createTestDatabase({ isEmpty: true });
    const wrong = { POSTHORN_LISTEN_URL: empty.url, POSTHORN_KEYRING: undefined, POSTHORN_DATABSE_URL: 'typo' };
    const result = await runCommand(['doctor'], { ...settings, ...wrong });
    expect(result.code).toBe(1);
    const problems = result.stdout.split('\n').filter((line) => line.startsWith('PROBLEM'));
    expect(problems.join('\n')).toMatch(/settings .*POSTHORN_DATABSE_URL/);
    expect(problems.join('\n')).toMatch(/key ring .*keyring\.json/);
    expect(problems.join('\n')).toMatch(/listening .*POSTHORN_LISTEN_URL/);
    expect(problems).toHaveLength(3);
    await empty.drop();
  });

  test('of a database that does not answer it says no more', async () => {
    const result = await runCommand(['doctor'], {
      ...settings,
      POSTHORN_DATABASE_URL: 'postgres://u:secret@127.0.0.1:9/x',
    });
    expect(result.code).toBe(1);
    expect(result.stdout).toMatch(/^PROBLEM {2}database /m);
    expect(result.stdout).not.toContain('secret');
  });
});
