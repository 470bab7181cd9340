import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { afterAll, beforeAll, expect, test, vi } from 'vitest';
import { makeCredential } from '../../src/crypto/credentials.ts';
import { makeId } from '../../src/crypto/ids.ts';
import { type KeyRing, makeKeyRing, parseKeyRing, serializeKeyRing, wrapDataKey } from '../../src/crypto/key-ring.ts';
import * as functions from '../../src/db/functions.ts';
import { makeOwner } from '../../src/new-owner.ts';
import { packageRoot } from '../../src/package-root.ts';
import { ask } from '../helpers/answers.ts';
import { runCommand, type ServerProcess, type Settings, startProcess } from '../helpers/command-line.ts';
import { createTestDatabase, type TestDatabase } from '../helpers/database.ts';
import { callHttp } from '../helpers/posthorn.ts';
import { inTransaction } from '../helpers/world.ts';

// each command is a process of its own, and a busy machine starts them slowly
vi.setConfig({ testTimeout: 90_000, hookTimeout: 120_000 });

/** More than one batch of a rotation. */
const OWNERS = 110;

let database: TestDatabase;
let folder: string;
let ringFile: string;
let settings: Settings;
let pods: ServerProcess[] = [];

interface Pair {
  token: string;
  sender: string;
  reader: string;
}
let pairs: Pair[];

beforeAll(async () => {
  database = await createTestDatabase();
  folder = await mkdtemp(join(tmpdir(), 'posthorn-keys-'));
  ringFile = join(folder, 'keyring.json');
  settings = { POSTHORN_DATABASE_URL: database.url, POSTHORN_DATA_DIR: folder, POSTHORN_PORT: '0' };
  const ring = makeKeyRing();
  await writeFile(ringFile, serializeKeyRing(ring), { mode: 0o600 });
  await makeOwner(database.as('posthorn_admin'), ring, 'first');
  pairs = await Promise.all(Array.from({ length: OWNERS }, () => makePair(ring)));
  pods = await Promise.all([startProcess(['serve'], settings), startProcess(['serve'], settings)]);
});

afterAll(async () => {
  await Promise.all(pods.map(stop));
  await rm(folder, { recursive: true });
});

async function stop({ child, exited }: ServerProcess): Promise<void> {
  child.kill('SIGTERM');
  await exited;
}

/** An owner with two agents that may talk, both behind one token. */
async function makePair(ring: KeyRing): Promise<Pair> {
  const admin = database.as('posthorn_admin');
  const id = makeId();
  const { token, hash } = makeCredential('service');
  await functions.createOwner(admin, { label: 'owner', id, ...wrapDataKey(ring, id, randomBytes(32)) });
  await inTransaction(admin, async (db) => {
    const credential = await functions.actAsOwner(db, { ownerId: id });
    await functions.createServiceConnection(db, {
      credential,
      label: 'token',
      scopes: ['messaging'],
      credentialHash: hash,
    });
  });
  const register = (installation: string) =>
    functions.registerAgent(database.as('posthorn_app'), {
      credential: hash,
      installation,
      label: installation,
      runtime: 'other',
    });
  const [sender, reader] = await Promise.all([register('sender'), register('reader')]);
  await inTransaction(admin, async (db) =>
    functions.createGroup(db, {
      credential: await functions.actAsOwner(db, { ownerId: id }),
      name: 'pair',
      purpose: 'to test',
      agentIds: [sender.id, reader.id],
      durationHours: 24,
    }),
  );
  return { token, sender: sender.id, reader: reader.id };
}

async function send({ token, sender, reader }: Pair, pod: ServerProcess, body: string): Promise<number> {
  const request = { agent_id: sender, recipient_agent_id: reader, body, idempotency_key: body };
  return (await callHttp(pod.ready.url, token, 'POST', '/messaging/v1/send', request)).status;
}

async function receive({ token, reader }: Pair, pod: ServerProcess): Promise<string[]> {
  const { body } = await callHttp(pod.ready.url, token, 'POST', '/messaging/v1/receive', { agent_id: reader });
  return body.messages?.map((message: { body: string }) => message.body) ?? [body.error];
}

const readRing = async () => parseKeyRing(await readFile(ringFile, 'utf8'), ringFile);
const list = async (): Promise<{ id: string; current: boolean; needed: boolean; owners: number }[]> =>
  (await ask(['keys', 'list'], settings)).keys;
const rotate = () => ask(['keys', 'rotate'], settings);

test('a rotation that was killed goes on with its key', async () => {
  const before = await readRing();
  const holder = await database.admin.connect();
  // the last owner is in the last batch
  await holder.query('begin');
  await holder.query(
    'select from posthorn.owner_keys where owner_id = (select max(owner_id) from posthorn.owner_keys) for update',
  );
  const main = join(packageRoot, 'src', 'main.ts');
  const victim = spawn(process.execPath, [main, 'keys', 'rotate'], { env: { ...process.env, ...settings } });
  const said = text(victim.stderr);
  await expect
    .poll(
      // of this database: other files wait for locks on the same server
      () =>
        database.admin.query(
          `select from pg_catalog.pg_locks l join pg_catalog.pg_stat_activity a using (pid)
            where a.datname = current_database() and l.locktype = 'transactionid' and not l.granted`,
        ),
      {
        timeout: 20_000,
        interval: 20,
      },
    )
    .toMatchObject({ rowCount: 1 });
  victim.kill('SIGKILL');
  expect(await said).toContain(`100 of ${OWNERS + 1} owners`);
  await holder.query('rollback');
  holder.release();

  const { currentId, keys } = await readRing();
  expect([...keys.keys()]).toEqual([before.currentId, currentId]);
  expect((await stat(ringFile)).mode & 0o777).toBe(0o600);
  expect(await list()).toMatchObject([
    { id: before.currentId, current: false, needed: true, owners: OWNERS + 1 - 100 },
    { id: currentId, current: true, needed: true, owners: 100 },
  ]);

  expect(await rotate()).toEqual({ key: currentId, new: false, wrapped: OWNERS + 1 - 100 });
  expect(await list()).toMatchObject([
    { id: currentId, current: true, needed: true, owners: OWNERS + 1 },
    { id: before.currentId, current: false, needed: false, owners: 0 },
  ]);
});

test('two pods serve every read and send while the ring is rotated twice', async () => {
  const waiting = pairs.slice();
  const seen: { status: number; body: string[] }[] = [];
  let isOver = false;
  // each owner's key is unwrapped for the first time by one pod here and by the other there
  const client = async (name: number) => {
    for (let round = 0; !isOver || waiting.length > 0; round++) {
      const pair = waiting.pop() ?? pairs[(name * 31 + round) % pairs.length]!;
      const [here, there] = round % 2 === 0 ? pods : pods.toReversed();
      const text = `${name} ${round}`;
      const status = await send(pair, here!, text);
      seen.push({ status, body: await receive(pair, there!) });
    }
  };
  const clients = Promise.all([0, 1, 2, 3].map(client));
  const rotations = [await rotate(), await rotate()];
  isOver = true;
  await clients;

  expect(rotations).toMatchObject([
    { new: true, wrapped: OWNERS + 1 },
    { new: true, wrapped: OWNERS + 1 },
  ]);
  expect(seen.length).toBeGreaterThanOrEqual(OWNERS);
  expect(new Set(seen.map(({ status }) => status))).toEqual(new Set([201]));
  expect(seen.filter(({ body }) => body.length === 0 || body.includes('unavailable'))).toEqual([]);
  expect((await list()).filter(({ needed }) => needed)).toEqual([expect.objectContaining({ owners: OWNERS + 1 })]);
});

test('old keys may leave the ring; without the one that is needed nobody starts, and with it again all opens', async () => {
  const pair = pairs[0]!;
  expect(await send(pair, pods[0]!, 'kept')).toBe(201);
  const whole = await readRing();
  const currentKey = whole.keys.get(whole.currentId)!;
  const without = new Map([...whole.keys].filter(([id]) => id !== whole.currentId));
  await Promise.all(pods.splice(0).map(stop));

  await writeFile(ringFile, serializeKeyRing({ currentId: [...without.keys()][0]!, keys: without }));
  for (const command of ['serve', 'start']) {
    const refused = await runCommand([command, '--json'], settings);
    expect(refused.code).toBe(1);
    const error = JSON.parse(refused.stderr.trim().split('\n').at(-1)!);
    expect(error).toMatchObject({ error: 'key_ring', message: expect.stringContaining(whole.currentId) });
    expect(refused.stderr).not.toContain(currentKey.toString('base64'));
  }

  const alone = { currentId: whole.currentId, keys: new Map([[whole.currentId, currentKey]]) };
  await writeFile(ringFile, serializeKeyRing(alone));
  const pod = await startProcess(['serve'], settings);
  pods.push(pod);
  expect(await receive(pair, pod)).toContain('kept');
});

test('a ring in the environment is for its owner to change, and then moved to', async () => {
  const ring = await readRing();
  const inline = (current: KeyRing) => ({ ...settings, POSTHORN_KEYRING: serializeKeyRing(current) });
  expect(await ask(['keys', 'rotate'], inline(ring))).toMatchObject({
    error: 'key_ring',
    exit_code: 1,
    message: expect.stringContaining('openssl rand'),
  });
  const next = makeKeyRing();
  const both = { currentId: next.currentId, keys: new Map([...ring.keys, ...next.keys]) };
  expect(await ask(['keys', 'rotate'], inline(both))).toEqual({
    key: next.currentId,
    new: false,
    wrapped: OWNERS + 1,
  });
});
