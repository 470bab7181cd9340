import { mkdtemp, readFile, rm, stat } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { hashCredential } from '../../src/crypto/credentials.ts';
import { authenticate, registerAgent } from '../../src/db/functions.ts';
import { type Result, runHere } from '../helpers/command-line.ts';
import { createTestDatabase, type TestDatabase } from '../helpers/database.ts';

let database: TestDatabase;
let folder: string;

beforeAll(async () => {
  database = await createTestDatabase();
  folder = await mkdtemp(join(tmpdir(), 'posthorn-person-'));
});

afterAll(() => rm(folder, { recursive: true }));

/** As the person at the server, who has the database's address and no connection. */
function posthorn(...args: string[]): Promise<Result> {
  return runHere(args, { POSTHORN_DATABASE_URL: database.url, POSTHORN_DATA_DIR: folder });
}

async function answer(...args: string[]) {
  const result = await posthorn(...args, '--json');
  expect(result).toMatchObject({ code: 0, stderr: '' });
  return result.json();
}

async function register(token: string, label: string): Promise<string> {
  const given = { credential: hashCredential(token), installation: 'test', label, runtime: 'other' };
  return (await registerAgent(database.as('posthorn_app'), given)).id;
}

describe('a server of one owner', () => {
  test('the first owner brings the key ring, which only its user can read', async () => {
    expect((await posthorn('token', 'list')).stderr).toContain('owner create');
    const first = await posthorn('owner', 'create', '--label', 'Ann', '--json');
    expect(first.code).toBe(0);
    const path = join(folder, 'keyring.json');
    expect(first.stderr).toContain(path);
    expect((await stat(path)).mode & 0o777).toBe(0o600);
    expect((await answer('owner', 'list')).owners).toMatchObject([{ id: first.json().id, label: 'Ann' }]);
  });

  test('tokens are made with a bound life, listed without their secret, rotated and revoked', async () => {
    const made = await answer(
      'token',
      'create',
      '--label',
      'Laptop',
      '--scope',
      'messaging',
      '--scope',
      'functions',
      '--expires-in',
      '30d',
    );
    expect(Object.keys(made)).toEqual(['connection_id', 'token']);
    const whoIs = (token: string) => authenticate(database.as('posthorn_app'), { credential: hashCredential(token) });
    expect(await whoIs(made.token)).toMatchObject([
      { connectionId: made.connection_id, scopes: ['messaging', 'functions'] },
    ]);

    const listed = await posthorn('token', 'list', '--json');
    expect(listed.stdout).not.toContain(made.token);
    const [connection] = listed.json().connections;
    expect(connection).toMatchObject({ id: made.connection_id, kind: 'service', label: 'Laptop', revoked_at: null });
    const days = (Date.parse(connection.expires_at) - Date.now()) / 86_400_000;
    expect(days).toBeGreaterThan(29.9);
    expect(days).toBeLessThan(30.1);

    const rotated = await answer('token', 'rotate', made.connection_id);
    expect(rotated.connection_id).toBe(made.connection_id);
    await expect(whoIs(made.token)).rejects.toThrow('unauthorized');
    expect(await whoIs(rotated.token)).toMatchObject([{ connectionId: made.connection_id }]);

    expect(await answer('token', 'revoke', made.connection_id)).toMatchObject({ revoked_at: expect.any(String) });
    await expect(whoIs(rotated.token)).rejects.toThrow('unauthorized');
  });

  test('for people, stdout has the token alone', async () => {
    const { stdout, stderr } = await posthorn('token', 'create', '--label', 'x', '--scope', 'messaging');
    expect(stdout).toMatch(/^phs_[\w-]{43}\n$/);
    expect(stderr).toContain('only this once');
  });

  test('a link is made that signs a browser in', async () => {
    const { url } = await answer('owner', 'link');
    expect(url).toMatch(/^http:\/\/127\.0\.0\.1:\d+\/owner\/sign-in\?link=phl_[\w-]{43}$/);
    const hash = hashCredential(new URL(url).searchParams.get('link')!);
    const { rows } = await database.admin.query(
      `select extract(epoch from expires_at - created_at)::int / 60 as minutes from posthorn.sign_in_links where link_hash = $1`,
      [hash],
    );
    expect(rows).toEqual([{ minutes: 15 }]);
  });

  test('a machine is paired', async () => {
    const { token, expires_at } = await answer('owner', 'pair', '--label', 'Desk');
    expect(token).toMatch(/^phd_/);
    expect((Date.parse(expires_at) - Date.now()) / 86_400_000).toBeCloseTo(90, 1);
  });

  test('groups are made, renewed and revoked; agents are revoked and restored', async () => {
    const { token } = await answer('token', 'create', '--label', 'a', '--scope', 'messaging');
    const { token: otherToken } = await answer('token', 'create', '--label', 'b', '--scope', 'messaging');
    const [a, b] = [await register(token, 'Agent A'), await register(otherToken, 'Agent B')];
    const group = await answer(
      ...['owner', 'groups', 'create', '--name', 'review', '--purpose', 'two\nlines'],
      ...['--agent', a, '--agent', b, '--hours', '24', '--boundary', 'repo x'],
    );
    expect(group).toEqual({
      id: expect.any(String),
      name: 'review',
      purpose: 'two\nlines',
      project_boundary: 'repo x',
      generation: 1,
      state: 'active',
      approved_at: expect.any(String),
      expires_at: expect.any(String),
      agent_ids: expect.arrayContaining([a, b]),
    });
    expect(await answer('owner', 'groups', 'renew', group.id, '--hours', '48')).toMatchObject({ generation: 2 });
    expect(await answer('owner', 'groups', 'revoke', group.id)).toMatchObject({ id: group.id, state: 'revoked' });
    expect((await answer('owner', 'groups', 'list')).groups).toMatchObject([{ id: group.id, state: 'revoked' }]);

    expect(await answer('owner', 'agents', 'revoke', b)).toMatchObject({ id: b, revoked_at: expect.any(String) });
    expect(await answer('owner', 'agents', 'restore', b)).toMatchObject({ id: b, revoked_at: null });
    expect((await answer('owner', 'agents', 'list')).agents).toMatchObject([
      { label: 'Agent A' },
      { label: 'Agent B' },
    ]);
  });

  test('settings are shown and changed', async () => {
    expect(await answer('owner', 'settings')).toMatchObject({
      automatic_approval: false,
      sensitive_content_check: true,
    });
    const changed = await answer('owner', 'settings', '--automatic-approval', 'on', '--sensitive-content-check', 'off');
    expect(changed).toMatchObject({ automatic_approval: true, sensitive_content_check: false });
  });

  test.each([
    { args: ['token', 'create', '--label', '😀'.repeat(65), '--scope', 'messaging'], code: 1, says: 'label' },
    { args: ['token', 'create', '--label', 'x', '--scope', 'owner'], code: 1, says: 'scope' },
    { args: ['token', 'create', '--label', 'x'], code: 2, says: '--scope' },
    { args: ['token', 'create', '--label', 'x', '--scope', 'messaging', '--expires-in', 'soon'], code: 2, says: '30d' },
    { args: ['token', 'revoke', '01a22dc0-0000-7000-8000-000000000000'], code: 1, says: 'not_found' },
    { args: ['token', 'revoke', 'x'], code: 1, says: 'invalid_request' },
    { args: ['owner', 'groups', 'create', '--name', 'x', '--purpose', 'y', '--agent', 'z'], code: 1, says: 'agent' },
    {
      args: ['owner', 'groups', 'renew', '01a22dc0-0000-7000-8000-000000000000', '--hours', '721'],
      code: 1,
      says: 'hours',
    },
    { args: ['owner', 'settings', '--automatic-approval', 'maybe'], code: 2, says: 'on or off' },
    { args: ['owner', 'list', '--owner', 'x'], code: 2, says: '--owner' },
  ])('refuses $args', async ({ args, code, says }) => {
    const result = await posthorn(...args);
    expect(result).toMatchObject({ code, stdout: '' });
    expect(result.stderr).toContain(says);
  });

  test('a label of 64 emoji is none too long', async () => {
    expect(await answer('token', 'create', '--label', '😀'.repeat(64), '--scope', 'messaging')).toHaveProperty('token');
  });
});

describe('a server of several owners', () => {
  test('each command must say whose it is', async () => {
    const ring = await readFile(join(folder, 'keyring.json'), 'utf8');
    const bob = await answer('owner', 'create', '--label', 'Bob');
    expect(await readFile(join(folder, 'keyring.json'), 'utf8')).toBe(ring);
    const unsaid = await posthorn('token', 'list', '--json');
    expect(unsaid).toMatchObject({ code: 2, stdout: '' });
    expect(unsaid.stderr).toContain(bob.id);
    expect((await answer('token', 'list', '--owner', 'Bob')).connections).toEqual([]);
    expect((await answer('token', 'list', '--owner', bob.id)).connections).toEqual([]);
    expect((await answer('token', 'list', '--owner', 'Ann')).connections).not.toEqual([]);
    expect(await posthorn('token', 'list', '--owner', 'Eve')).toMatchObject({ code: 1, stdout: '' });
    await answer('owner', 'create', '--label', 'Bob');
    expect(await posthorn('token', 'list', '--owner', 'Bob')).toMatchObject({ code: 2, stdout: '' });
  });
});

describe('where the person is', () => {
  test('without a server and without an address, exit 3 says how to start', async () => {
    const result = await runHere(['owner', 'list'], { POSTHORN_DATA_DIR: folder });
    expect(result).toMatchObject({ code: 3, stdout: '' });
    expect(result.stderr).toMatch(/posthorn (-- )?start/); // as it is called, by itself or through npm
  });

  test('the login of a pod is not the person', async () => {
    await database.admin.query(`alter role posthorn_app password 'only-for-tests'`);
    const url = Object.assign(new URL(database.url), { username: 'posthorn_app', password: 'only-for-tests' });
    const result = await runHere(['owner', 'list'], {
      POSTHORN_DATABASE_URL: url.toString(),
      POSTHORN_DATA_DIR: folder,
    });
    expect(result).toMatchObject({ code: 1, stdout: '' });
    expect(result.stderr).toMatch(/^not_admin: /);
  });

  test('an address that does not answer is named without its password', async () => {
    const url = 'postgres://ann:secret@127.0.0.1:9/posthorn';
    const result = await runHere(['owner', 'list', '--json'], {
      POSTHORN_DATABASE_URL: url,
      POSTHORN_DATA_DIR: folder,
    });
    expect(result.code).toBe(3);
    expect(result.stderr).toContain('127.0.0.1:9/posthorn');
    expect(result.stderr).not.toContain('secret');
  });

  test('a database without our schema is told apart', async () => {
    const empty = await createTestDatabase({ isEmpty: true });
    const settings = { POSTHORN_DATABASE_URL: empty.url, POSTHORN_DATA_DIR: folder };
    const result = await runHere(['owner', 'list'], settings);
    expect(result).toMatchObject({ code: 1, stdout: '' });
    expect(result.stderr).toContain('migrate');
    await empty.drop();
  });
});
