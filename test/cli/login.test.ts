import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { readFile, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeEach, describe, expect, test } from 'vitest';
import { packageRoot } from '../../src/package-root.ts';
import { makeSignInUrl } from '../../src/sign-in-link.ts';
import { createBrowser, readForm } from '../helpers/browser.ts';
import { runCommand, type Settings } from '../helpers/command-line.ts';
import { signIn } from '../helpers/oauth.ts';
import { callHttp, startPosthorn, type TestOwner } from '../helpers/posthorn.ts';

const posthorn = await startPosthorn();
afterAll(posthorn.close);
const url = posthorn.pods[0]!.url;
const folder = mkdtempSync(join(tmpdir(), 'posthorn-login-'));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

let files = 0;
let owner: TestOwner;
let settings: Settings & { POSTHORN_CONFIG: string };
beforeEach(async () => {
  owner = await posthorn.owner();
  settings = { POSTHORN_CONFIG: join(folder, `config-${++files}.json`), POSTHORN_DATA_DIR: folder };
});

/** Starts `posthorn login`, and waits until it says where to go. */
async function startLogin(label = 'Laptop') {
  const args = [join(packageRoot, 'src', 'main.ts'), 'login', '--url', url, '--label', label, '--json'];
  const child = spawn(process.execPath, args, { env: { ...process.env, ...settings } });
  let stderr = '';
  let stdout = '';
  child.stdout.on('data', (chunk) => {
    stdout += chunk;
  });
  const address = await new Promise<string>((resolve, reject) => {
    child.stderr.on('data', (chunk) => {
      stderr += chunk;
      const found = /(http:\S+)\nWaiting/.exec(stderr)?.[1];
      if (found) resolve(found);
    });
    child.once('close', () => reject(new Error(stderr)));
  });
  const exited = once(child, 'close').then(([code]) => ({ code: code as number, stdout, stderr: () => stderr }));
  return { address, stderr: () => stderr, exited, stop: () => child.kill() };
}

const readFileAsJson = async () => JSON.parse(await readFile(settings.POSTHORN_CONFIG, 'utf8'));

async function countAccessTokens(): Promise<number> {
  const { rows } = await posthorn.database.admin.query(
    `select count(*)::int as n from posthorn.grant_tokens where kind = 'access'`,
  );
  return rows[0].n;
}

async function pair(label?: string) {
  const [browser, login] = await Promise.all([signIn(owner, url), startLogin(label)]);
  const code = await browser.submit(await browser.open(login.address));
  const done = await browser.submit(code, { decision: 'allow' });
  return { browser, code, done, login, ended: await login.exited };
}

describe('login', () => {
  test('pairs a machine that a person confirmed in the browser by the same code', async () => {
    const { code, done, login, ended } = await pair();
    const shown = /code ([A-Z]{4}-[A-Z]{4})/.exec(login.stderr())?.[1];
    expect(code.text).toContain(shown!);
    expect(readForm(code).fields.label).toBe('Laptop');
    expect(done.text).toContain('The machine is paired');
    expect(ended.code).toBe(0);
    expect(JSON.parse(ended.stdout)).toEqual({ url, config: settings.POSTHORN_CONFIG });
    expect((await stat(settings.POSTHORN_CONFIG)).mode & 0o777).toBe(0o600);
    const { token, login: kept } = await readFileAsJson();
    expect(token).toMatch(/^phd_/);
    expect(ended.stdout + ended.stderr()).not.toContain(token);
    expect(ended.stdout + ended.stderr()).not.toContain(kept.refresh_token);
    const [connection] = await owner.act(
      async (db, credential) =>
        (await db.query('select * from posthorn_api.list_connections($1) where kind <> $2', [credential, 'session']))
          .rows,
    );
    expect(connection).toMatchObject({
      kind: 'device',
      label: 'Laptop',
      scopes: ['messaging'],
      client_id: 'posthorn-cli',
    });
    // a paired device registers agents by installation, and is a person's
    const registered = await runCommand(
      ['messages', 'register', '--label', 'A', '--runtime', 'script', '--installation', 'main', '--json'],
      settings,
    );
    expect(registered.json()).toMatchObject({ device: { label: 'Laptop' }, installation: 'main' });
    const child = await callHttp(url, token, 'POST', '/messaging/v1/connections/child', {
      agent_id: registered.json().id,
    });
    expect(child.status).toBe(201);
    expect((await runCommand(['login', '--json'], settings)).code).toBe(2); // paired already

    const out = await runCommand(['logout', '--json'], settings);
    expect(out.json()).toEqual({ url, revoked: true });
    expect(await readFileAsJson()).toEqual({ url });
    expect((await callHttp(url, token, 'GET', '/messaging/v1/status')).body).toMatchObject({
      error: 'device_unauthorized',
    });
    expect((await callHttp(url, child.body.token, 'GET', '/messaging/v1/status')).status).toBe(401);
  }, 60_000);

  test('gets nothing where the person says no', async () => {
    const [browser, login] = await Promise.all([signIn(owner, url), startLogin()]);
    await browser.submit(await browser.submit(await browser.open(login.address)), { decision: 'deny' });
    const ended = await login.exited;
    expect(ended.code).toBe(1);
    expect(ended.stderr()).toContain('access_denied');
    expect(await readFile(settings.POSTHORN_CONFIG, 'utf8').catch(() => null)).toBeNull();
  }, 60_000);
});

describe('a paired machine', () => {
  test('gets one new token, however many processes ask at once', async () => {
    await pair();
    const before = await readFileAsJson();
    await writeFile(
      settings.POSTHORN_CONFIG,
      JSON.stringify({ ...before, login: { ...before.login, expires_at: new Date().toISOString() } }),
    );
    const tokens = await countAccessTokens();
    const answers = await Promise.all(Array.from({ length: 4 }, () => runCommand(['status', '--json'], settings)));
    expect(answers.map(({ code, stderr }) => ({ code, stderr }))).toEqual(Array(4).fill({ code: 0, stderr: '' }));
    const after = await readFileAsJson();
    expect(after.login.refresh_token).not.toBe(before.login.refresh_token);
    expect(await countAccessTokens()).toBe(tokens + 1);
  }, 60_000);

  test('signs in on the way, and keeps nothing of what it had where the owner gives it another token', async () => {
    const browser = createBrowser(url);
    const login = await startLogin();
    expect((await browser.open(login.address)).text).toContain('posthorn owner link');
    const link = await owner.act((db, credential) => makeSignInUrl(db, url, credential));
    const back = await browser.submit(await browser.open(link));
    expect(readForm(back).fields.user_code).toMatch(/^[A-Z]{4}-[A-Z]{4}$/);
    await browser.submit(await browser.submit(back), { decision: 'allow' });
    await login.exited;
    const before = await readFileAsJson();
    const { connections } = (await browser.call('GET', '/owner/v1/connections')).json as {
      connections: { id: string; kind: string }[];
    };
    const { id } = connections.find(({ kind }) => kind === 'device')!;
    const rotated = await browser.call('POST', `/owner/v1/connections/${id}/rotate`, {});
    expect((await callHttp(url, before.token, 'GET', '/messaging/v1/status')).status).toBe(401);
    const { token } = rotated.json as { token: string };
    expect((await callHttp(url, token, 'GET', '/messaging/v1/status')).status).toBe(200);
  }, 60_000);

  test('is told to pair again when the owner has ended it', async () => {
    const { browser } = await pair();
    const { connections } = (await browser.call('GET', '/owner/v1/connections')).json as {
      connections: { id: string; kind: string }[];
    };
    const { id } = connections.find(({ kind }) => kind === 'device')!;
    await browser.call('POST', `/owner/v1/connections/${id}/revoke`, {});
    expect(await runCommand(['status', '--json'], settings)).toMatchObject({
      code: 1,
      stderr: expect.stringContaining('device_unauthorized'),
    });
    const file = await readFileAsJson();
    await writeFile(
      settings.POSTHORN_CONFIG,
      JSON.stringify({ ...file, login: { ...file.login, expires_at: new Date().toISOString() } }),
    );
    const refused = await runCommand(['status', '--json'], settings);
    expect(JSON.parse(refused.stderr)).toMatchObject({
      error: 'device_unauthorized',
      message: expect.stringContaining('login'),
    });
    expect((await runCommand(['logout', '--json'], settings)).code).toBe(0);
  }, 60_000);
});
