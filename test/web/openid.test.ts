import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterAll, beforeEach, describe, expect, test } from 'vitest';
import { readConfig } from '../../src/config.ts';
import { type Browser, createBrowser, type Page } from '../helpers/browser.ts';
import { signIn } from '../helpers/oauth.ts';
import { startOpenIdProvider } from '../helpers/openid-provider.ts';
import { startPosthorn, type TestOwner } from '../helpers/posthorn.ts';

const provider = await startOpenIdProvider();
const posthorn = await startPosthorn({ openid: provider.settings });
const url = posthorn.pods[0]!.url;
const CALLBACK = '/owner/sign-in/openid/callback';
provider.register(url + CALLBACK);
afterAll(async () => {
  await posthorn.close();
  await provider.close();
});

const advance = (interval: string) =>
  posthorn.database.admin.query('update posthorn_test.clock set shift = shift + $1::interval', [interval]);

let owner: TestOwner;
let people = 0;
beforeEach(async () => {
  owner = await posthorn.owner('Ada');
  provider.account = `person-${++people}`;
  // what failed in one test is not held against the next
  await advance('16 minutes');
});

async function acts(): Promise<string[]> {
  const { rows } = await posthorn.database.admin.query(
    `select a.act from posthorn.audit_entries a join posthorn.owners o using (owner_id) where o.id = $1 and a.act like 'openid.%' order by a.entry_id`,
    [owner.id],
  );
  return rows.map(({ act }) => act);
}

/** A page with one of its forms first. */
function formOf(page: Page, action: RegExp): Page {
  const forms = [...page.text.matchAll(/<form[\s\S]*?<\/form>/g)].map(([form]) => form);
  const found = forms.find((form) => action.test(/action="([^"]*)"/.exec(form)![1]!));
  if (found === undefined) throw new Error(`There is no form for ${action}: ${page.text}`);
  return { ...page, text: found };
}

/** Where a page sends the browser on to. */
const onward = ({ text }: Page) => /<a class="button main" href="([^"]*)"/.exec(text)![1]!.replaceAll('&#38;', '&');

/** Presses the button on the sign-in page; answers the address at the provider. */
async function leave(browser: Browser, from = '/owner/sign-in'): Promise<URL> {
  const page = await browser.submit(formOf(await browser.open(from), /^\/owner\/sign-in\/openid$/));
  expect(page.headers.get('refresh')).toBe(`0;url=${onward(page)}`);
  return new URL(onward(page));
}

/** Goes through the provider's pages; answers the address that it sends the browser back to. */
async function visit(at: URL): Promise<URL> {
  const { headers } = await createBrowser(provider.settings.issuer).open(at.href);
  return new URL(headers.get('location')!);
}

async function connect(browser: Browser): Promise<Page> {
  const page = await browser.submit(formOf(await browser.open('/owner/settings'), /^\/owner\/settings\/openid$/));
  return await browser.open((await visit(new URL(onward(page)))).href);
}

const isSignedIn = async (browser: Browser) => (await browser.open('/owner')).text.includes('You are signed in as');

test('an account that was connected in Settings signs in, until it is disconnected', async () => {
  const session = await signIn(owner, url);
  const connected = await connect(session);
  expect(connected.text).toContain('Connected. From now on that account signs you in.');
  expect(connected.text).toContain(`${provider.account}@corp.example`);
  const browser = createBrowser(url);
  const at = await leave(browser, '/owner/agents');
  expect(Object.fromEntries(at.searchParams)).toMatchObject({
    response_type: 'code',
    code_challenge_method: 'S256',
    scope: 'openid profile',
    redirect_uri: url + CALLBACK,
    state: expect.stringMatching(/^[\w-]{43}$/),
    nonce: expect.stringMatching(/^[\w-]{43}$/),
  });
  const page = await browser.open((await visit(at)).href);
  expect(page).toMatchObject({ status: 200, url: `${url}/owner/agents` });
  expect(await acts()).toEqual(['openid.add', 'openid.use']);

  await session.submit(formOf(await session.open('/owner/settings'), /^\/owner\/settings\/openid\/.+\/remove$/));
  const again = createBrowser(url);
  expect((await again.open((await visit(await leave(again))).href)).status).toBe(403);
  expect(await acts()).toEqual(['openid.add', 'openid.use', 'openid.remove']);
  expect(await isSignedIn(browser)).toBe(true);
});

test('the name of an account stands in no row, and its hash is no hash of the name alone', async () => {
  await connect(await signIn(owner, url));
  const { rows } = await posthorn.database.admin.query(
    `select sha256(convert_to($1, 'UTF8')) = a.subject_hash as is_plain, a.label from posthorn.openid_accounts a join posthorn.owners o using (owner_id) where o.id = $2`,
    [JSON.stringify([provider.settings.issuer, provider.account]), owner.id],
  );
  expect(rows).toEqual([{ is_plain: false, label: `${provider.account}@corp.example` }]);
});

test('signing in ends what the browser was signed in with before', async () => {
  await connect(await signIn(owner, url));
  for (const before of [owner, await posthorn.owner('Bea')]) {
    const browser = await signIn(before, url);
    const old = new Map(browser.cookies);
    const at = await leave(browser);
    await browser.open((await visit(at)).href);
    expect(await isSignedIn(browser)).toBe(true);
    const thief = createBrowser(url);
    for (const [name, cookie] of old) thief.cookies.set(name, cookie);
    expect(await isSignedIn(thief)).toBe(false);
  }
});

test('an account that nobody connected is refused in plain words, and makes no owner', async () => {
  const { rows: before } = await posthorn.database.admin.query('select count(*) from posthorn.owners');
  const browser = createBrowser(url);
  const page = await browser.open((await visit(await leave(browser))).href);
  expect(page.status).toBe(403);
  expect(page.text).toContain('No owner here has connected that account of Corp.');
  expect(await isSignedIn(browser)).toBe(false);
  const { rows: after } = await posthorn.database.admin.query('select count(*) from posthorn.owners');
  expect(after).toEqual(before);
});

test('an account signs in one owner: nobody else connects it', async () => {
  await connect(await signIn(owner, url));
  const other = await posthorn.owner('Bea');
  const page = await connect(await signIn(other, url));
  expect(page.status).toBe(400);
  expect(page.text).toContain('connected already');
  const browser = createBrowser(url);
  expect((await browser.open((await visit(await leave(browser))).href)).text).toContain('Ada');
});

test('so many accounts and no more', async () => {
  await posthorn.database.admin.query(`update posthorn.limits set value = 1 where name = 'openid_accounts_per_owner'`);
  const session = await signIn(owner, url);
  await connect(session);
  const page = await session.submit(formOf(await session.open('/owner/settings'), /^\/owner\/settings\/openid$/));
  expect(page.status).toBe(400);
  await posthorn.database.admin.query(`update posthorn.limits set value = 5 where name = 'openid_accounts_per_owner'`);
});

describe('what comes back is refused', () => {
  /** Each after a sign-in that went well, with the same account. */
  async function refused(come: (browser: Browser) => Promise<URL>, status = 403): Promise<void> {
    await connect(await signIn(owner, url));
    const good = createBrowser(url);
    expect((await good.open((await visit(await leave(good))).href)).status).toBe(200);
    const browser = createBrowser(url);
    const page = await browser.open((await come(browser)).href);
    expect(page.status).toBe(status);
    expect(page.text).toContain('role="alert"');
    expect(await isSignedIn(browser)).toBe(false);
    expect((await acts()).filter((act) => act === 'openid.use')).toHaveLength(1);
  }

  const altered = (address: URL, name: string, value: string | null) => {
    const copy = new URL(address);
    if (value === null) copy.searchParams.delete(name);
    else copy.searchParams.set(name, value);
    return copy;
  };

  test.each([
    ['state', 'A'.repeat(43)],
    ['nonce', 'A'.repeat(43)],
    ['code_challenge', 'A'.repeat(43)],
  ])('for another %s', async (name, value) => {
    await refused(async (browser) => visit(altered(await leave(browser), name, value)));
  });

  test.each([
    ['state', null],
    ['state', 'B'.repeat(43)],
    ['iss', null],
    ['iss', 'https://evil.example'],
    ['code', null],
    ['code', 'C'.repeat(43)],
  ])('with its %s as %s', async (name, value) => {
    await refused(async (browser) => altered(await visit(await leave(browser)), name, value));
  });

  test("with another provider's code and name", async () => {
    const other = await startOpenIdProvider('Other');
    other.register(url + CALLBACK);
    try {
      await refused(async (browser) => {
        const at = await leave(browser);
        other.account = provider.account;
        const there = new URL(`${other.settings.issuer}/auth${at.search}`);
        const { headers } = await createBrowser(other.settings.issuer).open(there.href);
        return new URL(headers.get('location')!);
      });
    } finally {
      await other.close();
    }
  });

  test("with somebody else's code", async () => {
    await refused(async (browser) => {
      const theirs = await visit(await leave(createBrowser(url)));
      return altered(await visit(await leave(browser)), 'code', theirs.searchParams.get('code'));
    });
  });

  test('in a browser that did not begin', async () => {
    await refused(async () => visit(await leave(createBrowser(url))), 404);
  });

  test('after 15 minutes', async () => {
    await refused(async (browser) => {
      const back = await visit(await leave(browser));
      await advance('15 minutes');
      return back;
    }, 404);
  });

  test('a code that was used, whoever kept the cookies', async () => {
    await connect(await signIn(owner, url));
    const browser = createBrowser(url);
    const back = await visit(await leave(browser));
    const cookies = new Map(browser.cookies);
    expect((await browser.open(back.href)).status).toBe(200);
    const thief = createBrowser(url);
    for (const [name, cookie] of cookies) thief.cookies.set(name, cookie);
    expect((await thief.open(back.href)).status).toBe(403);
    expect(await isSignedIn(thief)).toBe(false);
    expect((await browser.open(back.href)).status).toBe(404);
  });

  test('a refusal of the provider', async () => {
    const browser = createBrowser(url);
    const at = await leave(browser);
    const state = at.searchParams.get('state')!;
    const iss = provider.settings.issuer;
    const page = await browser.open(`${CALLBACK}?${new URLSearchParams({ error: 'access_denied', state, iss })}`);
    expect(page.status).toBe(403);
    expect(page.text).toContain('Corp did not sign you in.');
  });
});

describe('connecting', () => {
  test('is begun by a form of the own session alone', async () => {
    const [session, other] = [await signIn(owner, url), await signIn(owner, url)];
    const page = formOf(await session.open('/owner/settings'), /^\/owner\/settings\/openid$/);
    const foreign = { 'sec-fetch-site': 'cross-site', origin: 'https://evil.example' };
    expect((await session.submit(page, {}, foreign)).status).toBe(403);
    expect((await session.submit(page, { form_token: '' })).status).toBe(403);
    expect((await other.submit(page)).status).toBe(403);
    const begin = formOf(await session.open('/owner/sign-in'), /^\/owner\/sign-in\/openid$/);
    expect((await session.submit(begin, {}, foreign)).status).toBe(403);
  });

  test('ties nothing to whoever else is signed in when the browser comes back', async () => {
    const browser = await signIn(owner, url);
    const page = await browser.submit(formOf(await browser.open('/owner/settings'), /^\/owner\/settings\/openid$/));
    const back = await visit(new URL(onward(page)));
    const bea = await signIn(await posthorn.owner('Bea'), url);
    for (const [name, cookie] of browser.cookies) if (name.includes('openid')) bea.cookies.set(name, cookie);
    expect((await bea.open(back.href)).status).toBe(410);
    expect((await bea.open('/owner/settings')).text).toContain('Connect your account');
  });

  test('is not what a sign-in does, nor the reverse', async () => {
    const browser = await signIn(owner, url);
    const flip = (from: string, to: string) => {
      for (const [name, { value, path }] of browser.cookies)
        if (name.includes('openid')) browser.cookies.set(name, { value: value.replace(from, to), path });
    };
    // state and verifier follow from the cookie, so that one that was changed fits nothing
    const back = await visit(await leave(browser));
    flip('enter.', 'connect.');
    expect((await browser.open(back.href)).status).toBe(403);
    expect(await acts()).toEqual([]);
  });
});

test('too many that fail from one address must wait', async () => {
  for (let attempt = 0; attempt < 20; attempt++) {
    const browser = createBrowser(url);
    expect((await browser.open((await visit(await leave(browser))).href)).status).toBe(403);
  }
  const browser = createBrowser(url);
  expect((await browser.open((await visit(await leave(browser))).href)).status).toBe(429);
});

test('nobody is sent elsewhere after signing in', async () => {
  await connect(await signIn(owner, url));
  for (const path of ['//evil.example', 'https://evil.example', '/messaging/v1/status']) {
    const browser = createBrowser(url);
    browser.cookies.set('posthorn_return', { value: path, path: '/owner' });
    expect((await browser.open((await visit(await leave(browser))).href)).url).toBe(`${url}/owner`);
  }
});

test('the provider may be at the address that the operator named, and send us to no other private one', async () => {
  let elsewhere = 0;
  const inner = createServer((_, response) => {
    elsewhere++;
    response.end();
  }).listen(0, '127.0.0.1');
  const sly = createServer((_, response) => {
    const issuer = `http://127.0.0.1:${(sly.address() as AddressInfo).port}`;
    const at = `http://127.0.0.1:${(inner.address() as AddressInfo).port}`;
    response.setHeader('content-type', 'application/json');
    response.end(
      JSON.stringify({
        issuer,
        authorization_endpoint: `${issuer}/auth`,
        token_endpoint: `${at}/token`,
        jwks_uri: `${at}/jwks`,
      }),
    );
  }).listen(0, '127.0.0.1');
  await Promise.all([once(inner, 'listening'), once(sly, 'listening')]);
  const issuer = `http://127.0.0.1:${(sly.address() as AddressInfo).port}`;
  const other = await startPosthorn({
    openid: { issuer, clientId: 'x', clientSecret: 'y', name: 'Sly' },
  });
  try {
    const at = other.pods[0]!.url;
    const browser = createBrowser(at);
    const begun = await browser.submit(formOf(await browser.open('/owner/sign-in'), /openid/));
    const state = new URL(onward(begun)).searchParams.get('state')!;
    const page = await browser.open(`${CALLBACK}?${new URLSearchParams({ code: 'x', state })}`);
    expect(page.status).toBe(403);
    expect(elsewhere).toBe(0);
    sly.closeAllConnections();
    await new Promise((resolve) => sly.close(resolve));
    expect(other.log()).toContain('"openid"');
  } finally {
    await other.close();
    inner.close();
  }
});

test('a provider that is away is said to be, and asked again the next time', async () => {
  const late = await startOpenIdProvider('Late');
  const { issuer } = late.settings;
  await late.close();
  const other = await startPosthorn({ openid: late.settings });
  try {
    const browser = createBrowser(other.pods[0]!.url);
    const begin = formOf(await browser.open('/owner/sign-in'), /openid/);
    const page = await browser.submit(begin);
    expect(page.status).toBe(502);
    expect(page.text).toContain('Late does not answer.');
    const again = createServer((_, response) => {
      response.setHeader('content-type', 'application/json');
      const [authorization_endpoint, token_endpoint] = [`${issuer}/auth`, `${issuer}/token`];
      response.end(JSON.stringify({ issuer, authorization_endpoint, token_endpoint }));
    }).listen(Number(new URL(issuer).port), '127.0.0.1');
    await once(again, 'listening');
    expect(onward(await browser.submit(begin))).toContain(`${issuer}/auth?`);
    again.closeAllConnections();
    again.close();
  } finally {
    await other.close();
  }
});

test('without a provider there is no button', async () => {
  const other = await startPosthorn();
  try {
    const browser = createBrowser(other.pods[0]!.url);
    expect((await browser.open('/owner')).text).not.toContain('Sign in with');
    expect((await browser.open(CALLBACK)).status).toBe(404);
  } finally {
    await other.close();
  }
});

test.each([
  [{ POSTHORN_OPENID_ISSUER: 'https://login.example' }, 'POSTHORN_OPENID_CLIENT_ID must be set, too.'],
  [{ POSTHORN_OPENID_CLIENT_ID: 'x' }, 'POSTHORN_OPENID_ISSUER must be set, too.'],
  [
    { POSTHORN_OPENID_ISSUER: 'http://login.example', POSTHORN_OPENID_CLIENT_ID: 'x' },
    'POSTHORN_OPENID_ISSUER must be an https:// address.',
  ],
  [
    { POSTHORN_OPENID_ISSUER: 'http://localhost.evil.example', POSTHORN_OPENID_CLIENT_ID: 'x' },
    'POSTHORN_OPENID_ISSUER must be an https:// address.',
  ],
])('settings %j are refused', (env, message) => {
  expect(() => readConfig(env)).toThrow(message);
});

test('settings that are enough', () => {
  const env = { POSTHORN_OPENID_ISSUER: 'https://login.example/realms/x', POSTHORN_OPENID_CLIENT_ID: 'x' };
  expect(readConfig(env).openid).toEqual({
    issuer: 'https://login.example/realms/x',
    clientId: 'x',
    clientSecret: undefined,
    name: 'login.example',
  });
});
