import { afterAll, beforeEach, describe, expect, test } from 'vitest';
import { hashCredential } from '../../src/crypto/credentials.ts';
import * as functions from '../../src/db/functions.ts';
import { type Browser, readForm } from '../helpers/browser.ts';
import {
  answerOf,
  begin,
  connectApp,
  consent,
  exchange,
  postForm,
  refresh,
  register,
  signIn,
} from '../helpers/oauth.ts';
import { callHttp, startPosthorn, type TestOwner } from '../helpers/posthorn.ts';
import { startReceiver } from '../net/receiver.ts';

const posthorn = await startPosthorn({ pods: 1 });
afterAll(posthorn.close);
const url = posthorn.pods[0]!.url;
const { admin } = posthorn.database;

let owner: TestOwner;
let browser: Browser;
let clientId: string;
beforeEach(async () => {
  await admin.query('truncate posthorn.attempts');
  owner = await posthorn.owner();
  browser = await signIn(owner, url);
  clientId = (await register(url)).body.client_id;
});

const statusOf = async (access: string) => (await callHttp(url, access, 'GET', '/messaging/v1/status')).status;
const app = () => posthorn.database.as('posthorn_app');

describe('a code', () => {
  test('used twice ends what it gave', async () => {
    const flow = begin(url, clientId);
    const code = await consent(browser, flow);
    const tokens = (await exchange(url, flow, code)).body;
    expect(await exchange(url, flow, code)).toMatchObject({ status: 400, body: { error: 'invalid_grant' } });
    expect(await statusOf(tokens.access_token)).toBe(401);
    expect((await refresh(url, clientId, tokens.refresh_token)).body).toMatchObject({ error: 'invalid_grant' });
  });

  test('used many times at once gives one set of tokens at the most', async () => {
    const flow = begin(url, clientId);
    const code = await consent(browser, flow);
    const answers = await Promise.all(Array.from({ length: 8 }, () => exchange(url, flow, code)));
    expect(answers.filter(({ status }) => status === 200).length).toBeLessThanOrEqual(1);
    expect(answers.every(({ status }) => status === 200 || status === 400)).toBe(true);
  });

  test.each([
    ['another verifier', { code_verifier: 'x'.repeat(43) }],
    ['no verifier', { code_verifier: '' }],
    ['another address', { redirect_uri: 'http://127.0.0.1:7777/other' }],
    ['the address of another port', { redirect_uri: 'http://127.0.0.1:7778/callback' }],
  ])('with %s is refused, and still good for whoever has the right one', async (_, changes) => {
    const flow = begin(url, clientId);
    const code = await consent(browser, flow);
    expect((await exchange(url, flow, code, changes)).status).toBe(400);
    expect((await exchange(url, flow, code)).status).toBe(200);
  });

  test('of one app is nothing to another', async () => {
    const flow = begin(url, clientId);
    const code = await consent(browser, flow);
    const { body: other } = await register(url);
    expect((await exchange(url, { ...flow, clientId: other.client_id }, code)).body).toMatchObject({
      error: 'invalid_grant',
    });
    const connected = await connectApp(browser, url);
    expect((await refresh(url, other.client_id, connected.refresh)).body).toMatchObject({ error: 'invalid_grant' });
    await postForm(`${url}/revoke`, { token: connected.refresh, client_id: other.client_id });
    expect(await statusOf(connected.access)).toBe(200);
  });

  test('is worth nothing after a minute', async () => {
    const flow = begin(url, clientId);
    const code = await consent(browser, flow);
    await admin.query(`update posthorn_test.clock set shift = shift + '61 seconds'`);
    expect((await exchange(url, flow, code)).body).toMatchObject({ error: 'invalid_grant' });
  });
});

describe('a request', () => {
  test.each([
    ['plain', { code_challenge_method: 'plain' }],
    ['no method', { code_challenge_method: undefined }],
    ['no challenge', { code_challenge: undefined, code_challenge_method: undefined }],
    ['a token at once', { response_type: 'token' }],
    ['an ID token', { response_type: 'code id_token' }],
    ['no person', { prompt: 'none' }],
  ])('for %s gets an error, with the issuer', async (_, changes) => {
    const page = await browser.open(begin(url, clientId, changes).url);
    const answer = new URL(page.headers.get('location')!.replace('#', '?')).searchParams;
    expect(answer.get('error')).toEqual(expect.any(String));
    expect(answer.get('iss')).toBe(url);
    expect(answer.get('code')).toBeNull();
  });

  test.each([
    'https://evil.example/callback',
    'http://127.0.0.1:7777/callback/../evil',
    'http://127.0.0.1:7777/callback?x=1',
    'http://127.0.0.1@evil.example/callback',
    'http://127.0.0.1.evil.example:7777/callback',
    'http://127.0.0.2:7777/callback',
    'http://localhost.evil.example/callback',
    'javascript:alert(1)',
    '//evil.example/callback',
  ])('with the foreign address %s is answered here and sent nowhere', async (redirect_uri) => {
    const page = await browser.open(begin(url, clientId, { redirect_uri }).url);
    expect(page.status).toBe(400);
    expect(page.headers.get('location')).toBeNull();
    expect(page.text).toContain('That did not work');
  });

  test('for a page that sends itself gets an ordinary redirect', async () => {
    const page = await browser.open(begin(url, clientId, { response_mode: 'form_post', prompt: 'none' }).url);
    expect(answerOf(page).get('error')).toEqual(expect.any(String));
  });
});

describe('consent', () => {
  const forged: [string, Record<string, string>][] = [
    ['from another site', { 'sec-fetch-site': 'cross-site', origin: 'https://evil.example' }],
    ['from nowhere', { 'sec-fetch-site': '', origin: '' }],
  ];

  test.each(forged)('%s gives nothing', async (_, headers) => {
    const page = await browser.open(begin(url, clientId).url);
    expect((await browser.submit(page, { decision: 'allow' }, headers)).status).toBe(403);
    expect((await browser.submit(page, { decision: 'allow', form_token: 'x' })).status).toBe(403);
    expect(answerOf(await browser.submit(page, { decision: 'allow' })).get('code')).toEqual(expect.any(String));
  });

  test('is of the owner who is signed in, with a request that this browser made', async () => {
    const page = await browser.open(begin(url, clientId).url);
    const stranger = await signIn(await posthorn.owner('Stranger'), url);
    expect((await stranger.open(page.url)).status).toBe(410); // a request of another browser
    const { fields } = readForm(page);
    const other = await stranger.open(begin(url, clientId).url);
    expect((await stranger.submit(other, { ...fields, decision: 'allow' })).status).toBe(403);
  });

  test('given once cannot be given again by going back', async () => {
    const page = await browser.open(begin(url, clientId).url);
    await browser.submit(page, { decision: 'allow' });
    expect((await browser.submit(page, { decision: 'allow' })).status).toBe(410);
  });

  test('shows the host as large as a name that anybody may take, and markup as text', async () => {
    const { body } = await register(url, {
      client_name: 'Claude Code</p><script>alert(1)</script>\u202e\nofficial',
      redirect_uris: ['https://xn--clude-0qa.example/callback'],
    });
    const page = await browser.open(
      begin(url, body.client_id, { redirect_uri: 'https://xn--clude-0qa.example/callback' }).url,
    );
    expect(page.text).toContain(
      '<p class="who">Claude Code&#60;/p&#62;&#60;script&#62;alert(1)&#60;/script&#62; official</p>',
    );
    expect(page.text).toContain('<p class="who">xn--clude-0qa.example</p>');
    expect(page.text).toContain('trust the host, not the name');
    expect(page.text).not.toMatch(/<script|\u202e/);
  });

  test('stands in no frame, and its form leads here and to the app alone', async () => {
    const { body } = await register(url, { redirect_uris: ['https://app.example/callback'] });
    const page = await browser.open(begin(url, body.client_id, { redirect_uri: 'https://app.example/callback' }).url);
    const policy = page.headers.get('content-security-policy')!;
    expect(policy).toContain("frame-ancestors 'none'");
    expect(policy).toContain("form-action 'self' https://app.example;");
    expect(policy).toContain("default-src 'none'");
    expect(page.headers.get('cache-control')).toBe('no-store');
    expect(page.text).not.toMatch(/<script|<style|\son\w+=|style=/);
  });
});

describe('device codes', () => {
  test('are confirmed by whoever is signed in, on a page that no other site can send', async () => {
    const asked = await postForm(`${url}/device/authorize`, { client_id: 'posthorn-cli', device_label: 'Laptop<b>' });
    expect(asked.body).toMatchObject({
      user_code: expect.stringMatching(/^[A-Z]{4}-[A-Z]{4}$/),
      expires_in: 600,
      verification_uri: `${url}/device`,
    });
    const token = () =>
      postForm(`${url}/token`, {
        grant_type: 'urn:ietf:params:oauth:grant-type:device_code',
        device_code: asked.body.device_code,
        client_id: 'posthorn-cli',
      });
    expect((await token()).body).toMatchObject({ error: 'authorization_pending' });
    const page = await browser.open(asked.body.verification_uri_complete);
    expect(page.text).not.toMatch(/<script|onfocus/);
    expect(readForm(page).fields.user_code).toBe(asked.body.user_code);
    const consentPage = await browser.submit(page);
    expect(consentPage.text).toContain(asked.body.user_code);
    expect(consentPage.text).toContain('value="Laptop&#60;b&#62;"');
    expect(
      (
        await browser.submit(
          consentPage,
          { decision: 'allow' },
          { 'sec-fetch-site': 'cross-site', origin: 'https://evil.example' },
        )
      ).status,
    ).toBe(403);
    expect((await token()).status).toBe(400);
    await browser.submit(consentPage, { decision: 'allow' });
    expect((await token()).status).toBe(200);
    expect((await token()).body).toMatchObject({ error: 'invalid_grant' });
  });

  test('that are wrong are told so, and nobody who is not signed in may try any', async () => {
    const page = await browser.open('/device');
    const wrong = await browser.submit(page, { user_code: 'AAAA-AAAA' });
    expect(wrong.text).toContain('This code is not known');
    const nobody = await fetch(`${url}/device`, {
      method: 'POST',
      body: new URLSearchParams({ user_code: 'AAAA-AAAA' }),
      headers: { accept: 'text/html' },
    });
    expect(await nobody.text()).toContain('posthorn owner link');
  });
});

describe('floods', () => {
  test('of registrations leave as many rows as may be, and none where an owner consented', async () => {
    const kept = await connectApp(browser, url, { clientId });
    await functions.setLimit(posthorn.database.as('posthorn_admin'), { name: 'unused_oauth_clients', value: 50 });
    // 10,000 from as many addresses, stored as a pod does, each a transaction of its own
    const flood = Array.from({ length: 100 }, async (_, batch) => {
      for (let index = 0; index < 100; index++)
        await functions.putOauthRecord(app(), {
          model: 'Client',
          idHash: hashCredential(`${batch} ${index}`),
          payload: Buffer.from('x'),
          seconds: 0,
        });
    });
    await Promise.all(flood);
    const { rows } = await admin.query(
      `select count(*)::int as n from posthorn.oauth_records where model = 'Client' and expires_at < 'infinity'`,
    );
    expect(rows[0].n).toBeLessThan(50 + 20); // those that came at the same moment did not see each other
    expect((await refresh(url, clientId, kept.refresh)).status).toBe(200);
    const newcomer = await register(url);
    await connectApp(browser, url, { clientId: newcomer.body.client_id });
    await functions.setLimit(posthorn.database.as('posthorn_admin'), { name: 'unused_oauth_clients', value: 1000 });
  });

  test('from one address are told to wait', async () => {
    await functions.setLimit(posthorn.database.as('posthorn_admin'), { name: 'registrations_per_hour', value: 4 });
    const answers = []; // beside the one that was registered before this test
    for (let attempt = 0; attempt < 4; attempt++) answers.push(await register(url));
    await functions.setLimit(posthorn.database.as('posthorn_admin'), { name: 'registrations_per_hour', value: 60 });
    expect(answers.map(({ status }) => status)).toEqual([201, 201, 201, 429]);
    expect(answers[3]).toMatchObject({ body: { error: 'temporarily_unavailable' } });
    expect(answers[3]!.headers.get('retry-after')).toBe('3600');
  });

  test('of authorizations are told to wait, by whichever method', async () => {
    const admin = posthorn.database.as('posthorn_admin');
    const { body } = await register(url);
    await functions.setLimit(admin, { name: 'authorizations_per_hour', value: 1 });
    const head = () => fetch(url + begin(url, body.client_id).url, { method: 'HEAD', redirect: 'manual' });
    const answers = [await head(), await head()];
    await functions.setLimit(admin, { name: 'authorizations_per_hour', value: 600 });
    expect(answers[1]!.status).toBe(429);
  });

  test('of bytes are cut', async () => {
    const answer = await fetch(`${url}/register`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: 'x'.repeat(100_000),
    });
    expect(answer.status).toBe(400);
  });
});

test('documents of clients on this machine or a private network are not asked for', async () => {
  const receiver = await startReceiver({ isTls: true });
  for (const host of [
    `127.0.0.1:${receiver.port}`,
    `localhost:${receiver.port}`,
    `[::1]:${receiver.port}`,
    '10.0.0.1',
    '169.254.169.254',
    'metadata.internal',
  ]) {
    const page = await browser.open(begin(url, `https://${host}/client.json`).url);
    expect(page.status, host).toBe(400);
  }
  expect(receiver.connections()).toBe(0);
  await receiver.close();
});

describe('a pod without the credentials of anybody', () => {
  const anyToken = { payload: Buffer.from('x'), scopes: ['messaging'], seconds: 3_600 };

  test('makes no token of a grant that it knows', async () => {
    const connected = await connectApp(browser, url);
    const { rows } = await admin.query(
      `select connection_id as id from posthorn.oauth_grants order by connection_id desc limit 1`,
    );
    const connectionId = rows[0].id as string;
    const tokenHash = hashCredential('forged');
    for (const proof of [
      Buffer.alloc(0),
      hashCredential('guess'),
      tokenHash,
      hashCredential(connectionId),
      hashCredential(connected.access),
    ]) {
      for (const kind of ['grant', 'code', 'device_code', 'refresh', 'access'])
        await expect(
          functions.addGrantToken(app(), { proof, connectionId, kind, tokenHash, ...anyToken }),
        ).rejects.toMatchObject({ code: expect.stringMatching(/^MH(UNA|PER)$/) });
    }
    expect(await statusOf('forged')).toBe(401);
  });

  test('ends no grant by the id of its connection', async () => {
    const { clientId, refresh: token } = await connectApp(browser, url);
    const { rows } = await admin.query(
      `select connection_id as id from posthorn.oauth_grants order by connection_id desc limit 1`,
    );
    const tokenHash = hashCredential(rows[0].id);
    await functions.endGrantToken(app(), { tokenHash });
    await functions.consumeGrantToken(app(), { tokenHash });
    expect((await refresh(url, clientId, token)).status).toBe(200);
  });

  test('makes no token of another grant, nor of a wider scope, with one that it saw', async () => {
    const one = await connectApp(browser, url);
    await connectApp(browser, url);
    const { rows } = await admin.query(`select connection_id as id from posthorn.oauth_grants order by connection_id`);
    const [mine, other] = rows.slice(-2).map(({ id }) => id as string);
    const proof = hashCredential(one.refresh);
    const given = { proof, kind: 'access', tokenHash: hashCredential('forged'), ...anyToken };
    await expect(functions.addGrantToken(app(), { ...given, connectionId: other! })).rejects.toMatchObject({
      code: 'MHUNA',
    });
    await expect(
      functions.addGrantToken(app(), { ...given, connectionId: mine!, scopes: ['functions'] }),
    ).rejects.toMatchObject({ code: 'MHUNA' });
    await expect(functions.revokeOauthGrant(app(), { proof, connectionId: other! })).rejects.toMatchObject({
      code: 'MHUNA',
    });
    await functions.addGrantToken(app(), { ...given, connectionId: mine! });
    expect(await statusOf('forged')).toBe(200); // what the client itself could have got
  });

  test('makes no grant, and no session', async () => {
    const grant = { kind: 'oauth', label: 'X', clientId: 'x', clientHost: 'x', scopes: ['messaging'] };
    const { token } = await owner.token();
    for (const credential of [hashCredential('guess'), hashCredential(token)])
      await expect(functions.createOauthGrant(app(), { credential, ...grant })).rejects.toMatchObject({
        code: expect.stringMatching(/^MH(UNA|PER)$/),
      });
    await expect(app().query(`select ops.create_sign_in_link('\\x00', '\\x00')`)).rejects.toMatchObject({
      code: '42501',
    });
    for (const table of [
      'grant_tokens',
      'oauth_grants',
      'oauth_records',
      'sign_in_links',
      'server_secrets',
      'attempts',
    ])
      await expect(app().query(`select * from posthorn.${table}`)).rejects.toMatchObject({ code: '42501' });
  });
});
