import { afterAll, beforeEach, describe, expect, test } from 'vitest';
import { makeSignInUrl } from '../../src/sign-in-link.ts';
import { type Browser, createBrowser, type Page, readForm } from '../helpers/browser.ts';
import { callHttp, startPosthorn, type TestOwner } from '../helpers/posthorn.ts';

const posthorn = await startPosthorn({ pods: 2 });
afterAll(posthorn.close);
const [first, second] = posthorn.pods.map((pod) => pod.url) as [string, string];

let owner: TestOwner;
beforeEach(async () => {
  owner = await posthorn.owner('Ada <b>&</b>');
});

const makeLink = (url = first) => owner.act((db, credential) => makeSignInUrl(db, url, credential));

/** A browser that is signed in. */
async function signIn(url = first): Promise<Browser> {
  const browser = createBrowser(url);
  const page = await browser.submit(await browser.open(await makeLink(url)));
  expect(page.text).toContain('You are signed in as');
  return browser;
}

const cookieOf = (browser: Browser) =>
  [...browser.cookies].find(([name]) => name.startsWith('posthorn_session'))?.[1].value;
const isSignedIn = async (browser: Browser) => (await browser.open('/owner')).text.includes('You are signed in as');
const listConnections = async (browser: Browser) =>
  (
    (await browser.call('GET', '/owner/v1/connections')).json as {
      connections: { kind: string; revoked_at: unknown }[];
    }
  ).connections;

const advance = (interval: string) =>
  posthorn.database.admin.query('update posthorn_test.clock set shift = shift + $1::interval', [interval]);

describe('a link', () => {
  test('signs in with its button, and is looked at by nobody else than the person who presses it', async () => {
    const link = await makeLink();
    for (let preview = 0; preview < 3; preview++) expect((await fetch(link)).status).toBe(200);
    const browser = createBrowser(first);
    const page = await browser.submit(await browser.open(link));
    expect(page.url).toBe(`${first}/owner`);
    expect(page.text).toContain('Ada &#60;b&#62;&#38;&#60;/b&#62;');
  });

  test('works once, of two at once on two pods for one', async () => {
    const link = await makeLink();
    const browsers = [createBrowser(first), createBrowser(second)];
    const pages = await Promise.all(browsers.map((one, pod) => one.open(link.replace(first, posthorn.pods[pod]!.url))));
    const answers = await Promise.all(browsers.map((one, index) => one.submit(pages[index]!)));
    expect(answers.map(({ status }) => status).sort()).toEqual([200, 404]);
    expect(answers.find(({ status }) => status === 404)!.text).toContain('This link does not work');
  });

  test('is worth nothing after 15 minutes', async () => {
    const browser = createBrowser(first);
    const page = await browser.open(await makeLink());
    await advance('15 minutes');
    expect(await browser.submit(page)).toMatchObject({ status: 404 });
    expect(browser.cookies.size).toBe(0);
  });

  test('is kept as a hash, as the session is', async () => {
    const link = await makeLink();
    const token = new URL(link).searchParams.get('link')!;
    const browser = createBrowser(first);
    await browser.submit(await browser.open(link));
    const { rows } = await posthorn.database.admin.query(
      `select l::text as text from posthorn.sign_in_links l union all select c::text from posthorn.connections c`,
    );
    const stored = rows.map(({ text }) => text).join();
    expect(stored).not.toContain(token);
    expect(stored).not.toContain(cookieOf(browser));
    expect(posthorn.log()).not.toContain(token);
  });

  test('tried too often from one address must wait on every pod, and for 15 minutes', async () => {
    await advance('16 minutes');
    const guess = async (url: string) => {
      const browser = createBrowser(url);
      return (await browser.submit(await browser.open('/owner/sign-in?link=phl_wrong'))).status;
    };
    const answers = [];
    for (let attempt = 0; attempt < 21; attempt++) answers.push(await guess(attempt % 2 ? first : second));
    expect(answers).toEqual([...Array(20).fill(404), 429]);
    const link = await makeLink();
    const browser = createBrowser(first);
    expect(await browser.submit(await browser.open(link))).toMatchObject({ status: 429 });
    // another address, as a proxy on this machine names it
    const other = createBrowser(first);
    const headers = { 'x-forwarded-for': '203.0.113.9, 198.51.100.7' };
    expect(await other.submit(await other.open(link), {}, headers)).toMatchObject({ status: 200 });
    await advance('15 minutes');
    expect(await guess(first)).toBe(404);
  });
});

describe('a session', () => {
  test('is in a cookie that no script reads and no other site sends, and each sign-in makes a new one', async () => {
    const planted = createBrowser(first);
    const name = `posthorn_session_${new URL(first).port}`;
    planted.cookies.set(name, { value: `phw_${'A'.repeat(43)}`, path: '/' });
    const link = await planted.open(await makeLink());
    const response = await fetch(`${first}/owner/sign-in`, {
      method: 'POST',
      redirect: 'manual',
      body: new URLSearchParams(readForm(link).fields),
      headers: { origin: first, cookie: `${name}=phw_${'A'.repeat(43)}` },
    });
    const cookie = response.headers.getSetCookie().find((line) => line.startsWith(name))!;
    expect(cookie).toMatch(/; path=\/;/i);
    expect(cookie).toMatch(/; httponly/i);
    expect(cookie).toMatch(/; samesite=lax/i);
    expect(cookie).not.toContain('AAAA'); // a planted one is never taken over
  });

  test('ends the one that the browser had before', async () => {
    const browser = await signIn();
    const before = cookieOf(browser)!;
    await browser.submit(await browser.open(await makeLink()));
    expect(cookieOf(browser)).not.toBe(before);
    const old = createBrowser(first);
    old.cookies.set(`posthorn_session_${new URL(first).port}`, { value: before, path: '/' });
    expect(await isSignedIn(old)).toBe(false);
  });

  test('is one of at most 20: the oldest goes', async () => {
    const { rows } = await posthorn.database.admin.query(
      `update posthorn.limits set value = 2 where name = 'sessions_per_owner' returning value`,
    );
    expect(rows).toHaveLength(1);
    const [oldest, middle, newest] = [await signIn(), await signIn(), await signIn()];
    expect([await isSignedIn(oldest), await isSignedIn(middle), await isSignedIn(newest)]).toEqual([false, true, true]);
    await posthorn.database.admin.query(`update posthorn.limits set value = 20 where name = 'sessions_per_owner'`);
  });

  test('slides 30 days on with use, and ends without', async () => {
    const browser = await signIn();
    await advance('29 days');
    const { rows } = await posthorn.database.admin.query(
      `select credential_hash as hash from posthorn.connections where kind = 'session'`,
    );
    await posthorn.database
      .as('posthorn_app')
      .query('select posthorn_api.touch_connections($1)', [rows.map(({ hash }) => hash)]);
    await advance('29 days');
    expect(await isSignedIn(browser)).toBe(true);
    await advance('2 days');
    expect(await isSignedIn(browser)).toBe(false);
    expect((await browser.call('GET', '/owner/v1/settings')).status).toBe(401);
  });

  test('is ended by signing out here, or everywhere with the links that are left', async () => {
    const [one, other] = [await signIn(), await signIn()];
    const link = await makeLink();
    await one.submit(await one.open('/owner'));
    expect([await isSignedIn(one), await isSignedIn(other)]).toEqual([false, true]);
    const third = await signIn();
    await other.submit(await other.open('/owner'), { everywhere: 'yes' });
    expect([await isSignedIn(other), await isSignedIn(third)]).toEqual([false, false]);
    expect((await one.submit(await one.open(link))).status).toBe(404);
  });

  test('opens the web app and nothing else', async () => {
    const token = cookieOf(await signIn())!;
    expect((await callHttp(first, token, 'GET', '/messaging/v1/status')).body).toMatchObject({
      error: 'scope_required',
    });
    expect((await callHttp(first, token, 'GET', '/owner/v1/settings')).status).toBe(403); // not as a bearer token
    const { token: service } = await owner.token();
    const browser = createBrowser(first);
    browser.cookies.set(`posthorn_session_${new URL(first).port}`, { value: service, path: '/' });
    expect((await browser.call('GET', '/owner/v1/settings')).status).toBe(401);
  });
});

describe('other sites', () => {
  const foreign: Record<string, Record<string, string>> = {
    'a page of another site': { 'sec-fetch-site': 'cross-site', origin: 'https://evil.example' },
    'another host of the same site': { 'sec-fetch-site': 'same-site', origin: 'http://127.0.0.1:1' },
    'an older browser on another site': { 'sec-fetch-site': '', origin: 'https://evil.example' },
    'a sandboxed page': { 'sec-fetch-site': '', origin: 'null' },
    'what says nothing': { 'sec-fetch-site': '', origin: '' },
  };

  test.each(Object.entries(foreign))(
    '%s can send no form and call nothing that changes anything',
    async (_, headers) => {
      const browser = await signIn();
      expect((await browser.submit(await browser.open('/owner'), { everywhere: 'yes' }, headers)).status).toBe(403);
      const act = await browser.call('PATCH', '/owner/v1/settings', { automatic_approval: true }, headers);
      expect(act).toMatchObject({ status: 403, json: { error: 'person_required' } });
      expect((await browser.call('DELETE', '/owner/v1/account?confirm=x', undefined, headers)).status).toBe(403);
      expect((await browser.call('GET', '/owner/v1/settings')).json).toMatchObject({ automatic_approval: false });
      // nor sign the browser in as somebody else
      const link = await browser.open(await makeLink());
      expect((await browser.submit(link, {}, headers)).status).toBe(403);
      expect(await isSignedIn(browser)).toBe(true);
    },
  );

  test('a form of another session is refused', async () => {
    const [one, other] = [await signIn(), await signIn()];
    const page = await one.open('/owner');
    expect((await other.submit(page)).status).toBe(403);
    expect((await other.submit(page, { form_token: '' })).status).toBe(403);
    expect(await isSignedIn(other)).toBe(true);
  });

  test('no page can be framed, runs a script or is kept by a cache', async () => {
    const browser = await signIn();
    const pages: Page[] = [
      await browser.open('/owner'),
      await browser.open(await makeLink()),
      await createBrowser(first).open('/owner'),
    ];
    for (const { headers, text } of pages) {
      const policy = headers.get('content-security-policy')!;
      expect(policy).toContain("default-src 'none'");
      expect(policy).toContain("frame-ancestors 'none'");
      expect(policy).not.toContain('unsafe-inline');
      expect(headers.get('x-frame-options')).toBe('SAMEORIGIN');
      expect(headers.get('cache-control')).toBe('no-store');
      expect(headers.get('referrer-policy')).toBe('same-origin');
      expect(text).not.toMatch(/<script(?! type="module" src="\/owner\/assets\/)|<style|\son\w+=|style=/);
    }
  });

  test('whoever opened a page comes back to it after signing in, and not to one that asked for itself', async () => {
    for (const [fetchDestination, path] of [
      ['document', '/owner/settings'],
      ['empty', '/owner'],
    ] as const) {
      const browser = createBrowser(first);
      await browser.open('/owner/settings', { 'sec-fetch-dest': fetchDestination });
      expect((await browser.submit(await browser.open(await makeLink()))).url).toBe(first + path);
    }
  });

  test('nobody is sent elsewhere after signing in', async () => {
    for (const path of [
      '//evil.example',
      'https://evil.example',
      '/\\evil.example',
      '/oauth/interaction/../../evil',
      '/messaging/v1/status',
    ]) {
      const browser = createBrowser(first);
      browser.cookies.set('posthorn_return', { value: path, path: '/owner' });
      expect((await browser.submit(await browser.open(await makeLink()))).url).toBe(`${first}/owner`);
    }
  });
});

describe('owner calls', () => {
  test('do what the command line does', async () => {
    const browser = await signIn();
    const [one, other] = [await owner.agent('one'), await owner.agent('other')];
    const group = await browser.call('POST', '/owner/v1/groups', {
      name: 'G',
      purpose: 'To test',
      agent_ids: [one.id, other.id],
    });
    expect(group).toMatchObject({ status: 201, json: { name: 'G', state: 'active' } });
    const { id } = group.json as { id: string };
    expect((await browser.call('POST', `/owner/v1/groups/${id}/renew`, { duration_hours: 2 })).json).toMatchObject({
      generation: 2,
    });
    expect((await browser.call('GET', '/owner/v1/agents')).json).toMatchObject({
      agents: [{ id: one.id }, { id: other.id }],
    });
    expect((await browser.call('POST', `/owner/v1/agents/${one.id}/revoke`, {})).json).toMatchObject({
      revoked_at: expect.any(String),
    });
    expect((await browser.call('POST', `/owner/v1/agents/${one.id}/restore`, {})).json).toMatchObject({
      revoked_at: null,
    });
    expect((await browser.call('POST', `/owner/v1/groups/${id}/revoke`, {})).json).toMatchObject({ state: 'revoked' });
    const made = (await browser.call('POST', '/owner/v1/connections', { label: 'T', scopes: ['messaging'] })).json as {
      token: string;
      connection_id: string;
    };
    expect((await callHttp(first, made.token, 'GET', '/messaging/v1/status')).status).toBe(200);
    const rotated = (await browser.call('POST', `/owner/v1/connections/${made.connection_id}/rotate`, {})).json as {
      token: string;
    };
    expect((await callHttp(first, made.token, 'GET', '/messaging/v1/status')).status).toBe(401);
    await browser.call('POST', `/owner/v1/connections/${made.connection_id}/revoke`, {});
    expect((await callHttp(second, rotated.token, 'GET', '/messaging/v1/status')).status).toBe(401);
    expect((await browser.call('PATCH', '/owner/v1/settings', { automatic_approval: true })).json).toMatchObject({
      automatic_approval: true,
    });
    expect(await listConnections(browser)).toHaveLength(4);
  });

  test('stop and lift the webhook of an agent, of which they show the host alone', async () => {
    const browser = await signIn();
    const agent = await owner.agent('one');
    const set = await agent.call('PUT', '/webhook', { agent_id: agent.id, url: 'https://hooks.example.com/secret' });
    expect(set.status).toBeLessThan(300);
    const listed = (await browser.call('GET', '/owner/v1/webhooks')).json as { webhooks: { id: string }[] };
    expect(listed.webhooks).toMatchObject([{ agent_id: agent.id, url_host: 'hooks.example.com', status: 'active' }]);
    expect(JSON.stringify(listed)).not.toContain('secret');
    const at = `/owner/v1/webhooks/${listed.webhooks[0]!.id}`;
    expect((await browser.call('POST', `${at}/disable`, {})).json).toMatchObject({
      status: 'disabled',
      disabled_reason: 'owner',
    });
    expect((await browser.call('POST', `${at}/lift`, {})).json).toMatchObject({ status: 'active' });
  });

  test('decide requests, edited or not', async () => {
    const browser = await signIn();
    const [one, other] = [await owner.agent('one'), await owner.agent('other')];
    const held = await one.send({
      recipient_agent_id: other.id,
      body: 'Hello',
      purpose: 'To talk',
      idempotency_key: 'k',
    });
    const waiting = (await browser.call('GET', '/owner/v1/proposals?pending=true')).json as {
      proposals: { id: string }[];
    };
    expect(waiting.proposals).toMatchObject([{ id: held.body.proposal_id, purpose: 'To talk' }]);
    const { id } = waiting.proposals[0]!;
    expect((await browser.call('POST', `/owner/v1/proposals/${id}/approve`, { name: 'Edited' })).json).toMatchObject({
      state: 'approved',
      name: 'Edited',
    });
    expect((await browser.call('POST', `/owner/v1/proposals/${id}/deny`, {})).json).toMatchObject({
      error: 'already_decided',
    });
  });

  test('see and reach nothing of another owner', async () => {
    const stranger = await posthorn.owner('Other');
    const agent = await stranger.agent('theirs');
    const browser = await signIn();
    expect((await browser.call('POST', `/owner/v1/agents/${agent.id}/revoke`, {})).json).toMatchObject({
      error: 'not_found',
    });
    expect((await browser.call('GET', '/owner/v1/agents')).json).toEqual({ agents: [], next_cursor: null });
  });

  test('export everything, and delete the account once its name was typed', async () => {
    const browser = await signIn();
    const agent = await owner.agent('one');
    const file = await browser.call('GET', '/owner/v1/export');
    expect(file.headers.get('content-disposition')).toContain('attachment');
    const kinds = file.text
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line).kind);
    expect(new Set(kinds)).toEqual(new Set(['owners', 'connections', 'agents', 'audit_entries']));
    expect(file.text).not.toContain('credential');
    expect((await browser.call('DELETE', '/owner/v1/account?confirm=Ada')).json).toMatchObject({
      error: 'invalid_request',
      fields: ['confirm'],
    });
    const confirm = encodeURIComponent('Ada <b>&</b>');
    expect((await browser.call('DELETE', `/owner/v1/account?confirm=${confirm}`)).json).toEqual({
      id: owner.id,
      deleted: true,
    });
    expect((await agent.call('GET', `/status?agent_id=${agent.id}`)).status).toBe(401);
    expect(await isSignedIn(browser)).toBe(false);
  });
});
