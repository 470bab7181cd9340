import { execFile } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, expect, test } from 'vitest';
import { ask } from '../helpers/answers.ts';
import { type ServerProcess, type Settings, startProcess } from '../helpers/command-line.ts';
import { callHttp, newKey } from '../helpers/posthorn.ts';

const folders: string[] = [];
const running: ServerProcess[] = [];
afterAll(async () => {
  await Promise.all(running.map(end));
  for (const folder of folders) await rm(folder, { recursive: true, force: true });
});

async function newFolder(): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'posthorn-restore-'));
  folders.push(folder);
  return folder;
}

async function start(settings: Settings): Promise<ServerProcess> {
  const server = await startProcess(['start'], settings);
  running.push(server);
  return server;
}

async function end({ child, exited }: ServerProcess): Promise<number | null> {
  child.kill('SIGTERM');
  return await exited;
}

async function stop(server: ServerProcess): Promise<void> {
  running.splice(running.indexOf(server), 1);
  expect(await end(server)).toBe(0);
}

// As one who puts a file of last night back, which is the same system with the same identifier: nothing but the person
// can know that it is old.
test('after posthorn restore a copy of the data folder serves no body, with and without a running server', async () => {
  const original = join(await newFolder(), 'data');
  const settings = (folder: string) => ({ POSTHORN_DATA_DIR: folder, POSTHORN_PORT: '0' });
  const first = await start(settings(original));
  const { token } = await ask(['token', 'create', '--label', 'both', '--scope', 'messaging'], settings(original));
  const call = (server: ServerProcess, path: string, body: object) =>
    callHttp(server.ready.url, token, 'POST', `/messaging/v1${path}`, body);
  const register = async (installation: string): Promise<string> =>
    (await call(first, '/agents', { installation, label: installation, runtime: 'other' })).body.id;
  const [anna, bert] = [await register('anna'), await register('bert')];
  await ask(
    ['owner', 'groups', 'create', '--name', 'n', '--purpose', 'p', '--agent', anna, '--agent', bert],
    settings(original),
  );
  const send = async (server: ServerProcess): Promise<string> => {
    const body = { agent_id: anna, recipient_agent_id: bert, body: 'secret', idempotency_key: newKey() };
    return (await call(server, '/send', body)).body.id;
  };
  const receive = async (server: ServerProcess): Promise<unknown[]> =>
    (await call(server, '/receive', { agent_id: bert })).body.messages;
  const state = async (server: ServerProcess, id: string): Promise<string> =>
    (await callHttp(server.ready.url, token, 'GET', `/messaging/v1/messages/${id}?agent_id=${anna}`)).body.state;
  const message = await send(first);
  await stop(first);

  const copy = join(await newFolder(), 'data');
  // with its owners and modes, which PostgreSQL insists on
  await promisify(execFile)('cp', ['-a', original, copy]);
  expect(await ask(['restore', '--confirm', 'fence'], settings(copy))).toEqual({ fenced: true });

  const second = await start(settings(copy));
  expect(await receive(second)).toEqual([]);
  expect(await state(second, message)).toBe('revoked');

  const later = await send(second);
  expect(await ask(['restore', '--confirm', 'fence'], settings(copy))).toEqual({ fenced: true });
  expect(await receive(second)).toEqual([]);
  expect(await state(second, later)).toBe('revoked');
  await send(second);
  expect(await receive(second)).toMatchObject([{ body: 'secret' }]);
  await stop(second);
}, 180_000);

test('with nobody to ask it must be told in words', async () => {
  expect(await ask(['restore'], { POSTHORN_DATA_DIR: await newFolder() })).toMatchObject({ exit_code: 2 });
  const answer = await ask(['restore', '--confirm', 'yes'], { POSTHORN_DATA_DIR: await newFolder() });
  expect(answer).toMatchObject({ error: 'not_confirmed', exit_code: 1 });
});

test('without a database there is nothing to fence, and it says so', async () => {
  const answer = await ask(['restore', '--confirm', 'fence'], { POSTHORN_DATA_DIR: await newFolder() });
  expect(answer).toMatchObject({ error: 'unreachable', exit_code: 3 });
}, 60_000);
