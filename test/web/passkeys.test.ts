import type { CDPSession, Page as ChromiumPage, Browser as RealBrowser } from 'playwright-core';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { passkeyPlace } from '../../src/crypto/passkeys.ts';
import { makeSignInUrl } from '../../src/sign-in-link.ts';
import { makeSoftPasskey, type SoftPasskey } from '../helpers/authenticator.ts';
import { type Browser, createBrowser, type Page } from '../helpers/browser.ts';
import { CHROMIUM, startChromium } from '../helpers/chromium.ts';
import { signIn } from '../helpers/oauth.ts';
import { startPosthorn, type TestOwner } from '../helpers/posthorn.ts';

// A passkey belongs to a name, so these servers are reached by one.
const posthorn = await startPosthorn({ host: 'localhost' });
afterAll(posthorn.close);
const first = posthorn.pods[0]!.url;

let owner: TestOwner;
beforeEach(async () => {
  owner = await posthorn.owner('Ada <b>');
  // what failed in one test is not held against the next
  await advance('16 minutes');
});

const advance = (interval: string) =>
  posthorn.database.admin.query('update posthorn_test.clock set shift = shift + $1::interval', [interval]);

async function acts(): Promise<string[]> {
  const { rows } = await posthorn.database.admin.query(
    `select a.act from posthorn.audit_entries a join posthorn.owners o using (owner_id) where o.id = $1 and a.act like 'passkey.%' order by a.entry_id`,
    [owner.id],
  );
  return rows.map(({ act }) => act);
}

type Question = Parameters<SoftPasskey['answer']>[0];

async function askNew(browser: Browser): Promise<Question> {
  const { json } = await browser.call('POST', '/owner/v1/passkeys/options', {});
  return (json as { options: Question }).options;
}

async function ask(browser: Browser): Promise<Question> {
  const { json } = await browser.call('POST', '/owner/sign-in/passkey/options', {});
  return (json as { options: Question }).options;
}

const add = (browser: Browser, made: string, label = 'Key') =>
  browser.call('POST', '/owner/v1/passkeys', { label, passkey: made });

/** Presses the button of the sign-in page after the script has filled in the form. */
const press = async (browser: Browser, passkey: string): Promise<Page> =>
  await browser.submit(await browser.open('/owner/sign-in'), { passkey });

async function makePasskey(of = owner, changes = {}): Promise<SoftPasskey> {
  const browser = await signIn(of, first);
  const passkey = makeSoftPasskey(first, await askNew(browser), changes);
  expect(await add(browser, passkey.made)).toMatchObject({ status: 201 });
  return passkey;
}

const isSignedIn = async (browser: Browser) => (await browser.open('/owner')).text.includes('You are signed in as');

describe('signing in', () => {
  test('needs no name', async () => {
    const passkey = await makePasskey();
    const browser = createBrowser(first);
    const question = await ask(browser);
    expect(question).toMatchObject({ rpId: 'localhost', userVerification: 'required' });
    expect(question).not.toHaveProperty('allowCredentials');
    const page = await press(browser, passkey.answer(question));
    expect(page).toMatchObject({ status: 200, url: `${first}/owner` });
    expect(page.text).toContain('Ada &#60;b&#62;');
    expect(await acts()).toEqual(['passkey.add', 'passkey.use']);
  });

  test('ends what the browser was signed in with before, also as another owner', async () => {
    const passkey = await makePasskey();
    for (const before of [owner, await posthorn.owner('Bea')]) {
      const browser = await signIn(before, first);
      const old = new Map(browser.cookies);
      await press(browser, passkey.answer(await ask(browser)));
      expect(await isSignedIn(browser)).toBe(true);
      const thief = createBrowser(first);
      for (const [name, cookie] of old) thief.cookies.set(name, cookie);
      expect(await isSignedIn(thief)).toBe(false);
    }
  });

  test('never takes over a session that somebody planted', async () => {
    const passkey = await makePasskey();
    const browser = createBrowser(first);
    const name = `posthorn_session_${new URL(first).port}`;
    browser.cookies.set(name, { value: `phw_${'A'.repeat(43)}`, path: '/' });
    await press(browser, passkey.answer(await ask(browser)));
    expect(browser.cookies.get(name)!.value).not.toContain('AAAA');
    expect(await isSignedIn(browser)).toBe(true);
  });

  test('goes on where it was wanted, and nowhere else', async () => {
    const passkey = await makePasskey();
    const browser = createBrowser(first);
    const page = await browser.open('/owner/agents');
    expect(page.text).toContain('You come back to this page afterwards');
    expect((await browser.submit(page, { passkey: passkey.answer(await ask(browser)) })).url).toBe(
      `${first}/owner/agents`,
    );
    const lured = createBrowser(first);
    lured.cookies.set('posthorn_return', { value: '//evil.example', path: '/owner' });
    expect((await press(lured, passkey.answer(await ask(lured)))).url).toBe(`${first}/owner`);
  });

  test('is offered by the page and answered without a session', async () => {
    const { text } = await createBrowser(first).open('/owner');
    expect(text).toContain('Sign in with a passkey');
    expect(text).toContain('posthorn owner link');
    expect(text).not.toMatch(/<script(?! type="module" src="\/owner\/assets\/)|<style|\son\w+=|style=/);
  });
});

describe('an answer is refused', () => {
  /** Each as the second of two: the first shows that it is good otherwise. */
  async function refused(change: (passkey: SoftPasskey, browser: Browser) => Promise<string>): Promise<void> {
    const passkey = await makePasskey();
    const good = createBrowser(first);
    expect(await press(good, passkey.answer(await ask(good)))).toMatchObject({ status: 200 });
    const browser = createBrowser(first);
    const answer = await change(passkey, browser);
    const page = await press(browser, answer);
    expect(page.status).toBe(404);
    expect(page.text).toContain('does not sign anybody in here');
    expect(await isSignedIn(browser)).toBe(false);
    expect((await acts()).filter((act) => act === 'passkey.use')).toHaveLength(1);
  }

  test('the second time, in the same browser and in another', async () => {
    const passkey = await makePasskey();
    const browser = createBrowser(first);
    const answer = passkey.answer(await ask(browser));
    const cookies = new Map(browser.cookies);
    await press(browser, answer);
    expect((await press(browser, answer)).status).toBe(404);
    const thief = createBrowser(first);
    for (const [name, cookie] of cookies) thief.cookies.set(name, cookie);
    expect((await press(thief, answer)).status).toBe(404);
    expect(await isSignedIn(thief)).toBe(false);
  });

  test('of two at once for one', async () => {
    const passkey = await makePasskey();
    const browser = createBrowser(first);
    const answer = passkey.answer(await ask(browser));
    const copies = [1, 2].map(() => {
      const copy = createBrowser(first);
      for (const [name, cookie] of browser.cookies) copy.cookies.set(name, cookie);
      return copy;
    });
    const pages = await Promise.all(copies.map((each) => press(each, answer)));
    expect(pages.map(({ status }) => status).sort()).toEqual([200, 404]);
  });

  test('with the challenge of another browser', async () => {
    await refused(async (passkey, browser) => {
      await ask(browser);
      return passkey.answer(await ask(createBrowser(first)));
    });
  });

  test('with a challenge that nobody made', async () => {
    await refused(async (passkey, browser) => {
      await ask(browser);
      return passkey.answer({ challenge: 'A'.repeat(43) });
    });
  });

  test('with the challenge of a passkey that was to be made', async () => {
    await refused(async (passkey, browser) => {
      await ask(browser);
      return passkey.answer(await askNew(await signIn(owner, first)));
    });
  });

  test('after 5 minutes', async () => {
    await refused(async (passkey, browser) => {
      const question = await ask(browser);
      await advance('5 minutes');
      return passkey.answer(question);
    });
  });

  test.each([
    ['another origin', { origin: 'https://localhost.evil.example' }],
    ['another name', { rpId: 'evil.example' }],
    ['nobody verified', { flags: 1 }],
    ['nobody present', { flags: 4 }],
  ])('with %s', async (_, changes) => {
    await refused(async (passkey, browser) => passkey.answer(await ask(browser), changes));
  });

  test.each(['id', 'handle', 'key'] as const)("with another owner's %s", async (part) => {
    const other = await makePasskey(await posthorn.owner('Bea'));
    await refused(async (passkey, browser) => passkey.answer(await ask(browser), { [part]: other[part] }));
  });

  test.each(['', 'x', '{}', 'null', '{"id":"a"}'])('where there is none: %s', async (text) => {
    await refused(async (_, browser) => {
      await ask(browser);
      return text;
    });
  });

  test('where the counter stands still or goes back, which the log tells', async () => {
    const passkey = await makePasskey(owner, { signCount: 5 });
    const use = async (signCount: number) => {
      const browser = createBrowser(first);
      return (await press(browser, passkey.answer(await ask(browser), { signCount }))).status;
    };
    expect([await use(6), await use(9), await use(9), await use(3), await use(0), await use(10)]).toEqual([
      200, 200, 404, 404, 404, 200,
    ]);
    expect((await acts()).filter((act) => act === 'passkey.refuse')).toHaveLength(3);
  });

  test('after it was removed', async () => {
    await refused(async (passkey, browser) => {
      const session = await signIn(owner, first);
      const { json } = await session.call('GET', '/owner/v1/passkeys');
      const [{ id }] = (json as { passkeys: [{ id: string }] }).passkeys;
      expect(await session.call('DELETE', `/owner/v1/passkeys/${id}`)).toMatchObject({ status: 200 });
      return passkey.answer(await ask(browser));
    });
    expect(await acts()).toContain('passkey.remove');
  });

  test('once too many from one address have failed, whatever it says', async () => {
    const passkey = await makePasskey();
    const browser = createBrowser(first);
    for (let attempt = 0; attempt < 20; attempt++) {
      await ask(browser);
      expect((await press(browser, passkey.answer({ challenge: 'x' }))).status).toBe(404);
    }
    expect((await press(browser, passkey.answer(await ask(browser)))).status).toBe(429);
    await advance('15 minutes');
    expect((await press(browser, passkey.answer(await ask(browser)))).status).toBe(200);
  });

  test('to a page of another site', async () => {
    const passkey = await makePasskey();
    const browser = createBrowser(first);
    const foreign = { 'sec-fetch-site': 'cross-site', origin: 'https://evil.example' };
    expect((await browser.call('POST', '/owner/sign-in/passkey/options', {}, foreign)).status).toBe(403);
    const answer = passkey.answer(await ask(browser));
    const page = await browser.open('/owner/sign-in');
    expect((await browser.submit(page, { passkey: answer }, foreign)).status).toBe(403);
    expect((await browser.submit(page, { passkey: answer })).status).toBe(200);
  });
});

test('an address may begin so many sign-ins an hour', async () => {
  await advance('1 hour');
  await posthorn.database.admin.query(`update posthorn.limits set value = 3 where name = 'sign_ins_begun_per_hour'`);
  const browser = createBrowser(first);
  const begin = async () => (await browser.call('POST', '/owner/sign-in/passkey/options', {})).status;
  expect([await begin(), await begin(), await begin(), await begin()]).toEqual([200, 200, 200, 429]);
  await posthorn.database.admin.query(`update posthorn.limits set value = 600 where name = 'sign_ins_begun_per_hour'`);
  await advance('1 hour');
});

describe('a new passkey', () => {
  test('is asked for with what it must be, and for the account of the session', async () => {
    const known = await makePasskey();
    const browser = await signIn(owner, first);
    const question = (await askNew(browser)) as unknown as Record<string, unknown>;
    expect(question).toMatchObject({
      rp: { id: 'localhost' },
      user: { name: 'Ada <b>' },
      attestation: 'none',
      excludeCredentials: [{ id: known.id }],
      authenticatorSelection: { residentKey: 'required', userVerification: 'required' },
    });
  });

  test('needs a challenge that this session was given, once and within 5 minutes', async () => {
    const [browser, other] = [await signIn(owner, first), await signIn(owner, first)];
    const stolen = makeSoftPasskey(first, await askNew(other));
    expect(await add(browser, stolen.made)).toMatchObject({ status: 410, json: { error: 'expired' } });
    const question = await askNew(browser);
    expect(await add(browser, makeSoftPasskey(first, question).made)).toMatchObject({ status: 201 });
    expect(await add(browser, makeSoftPasskey(first, question).made)).toMatchObject({ status: 410 });
    const late = await askNew(browser);
    await advance('5 minutes');
    expect(await add(browser, makeSoftPasskey(first, late).made)).toMatchObject({ status: 410 });
    const login = { ...(await ask(browser)), user: { id: 'AAAA' } };
    expect(await add(browser, makeSoftPasskey(first, login).made)).toMatchObject({ status: 410 });
  });

  test.each([
    ['another origin', { origin: 'https://evil.example' }],
    ['another name', { rpId: 'evil.example' }],
    ['nobody verified', { flags: 1 }],
  ])('is refused with %s', async (_, changes) => {
    const browser = await signIn(owner, first);
    const { made } = makeSoftPasskey(first, await askNew(browser), changes);
    expect(await add(browser, made)).toMatchObject({ status: 400, json: { error: 'invalid_request' } });
    expect(await acts()).toEqual([]);
  });

  test("is refused with the credential of another's", async () => {
    const theirs = await makePasskey(await posthorn.owner('Bea'));
    const browser = await signIn(owner, first);
    const { made } = makeSoftPasskey(first, await askNew(browser), { id: theirs.id });
    expect(await add(browser, made)).toMatchObject({ status: 400, json: { fields: ['passkey'] } });
  });

  test('is one of so many', async () => {
    await posthorn.database.admin.query(`update posthorn.limits set value = 1 where name = 'passkeys_per_owner'`);
    const browser = await signIn(owner, first);
    const question = await askNew(browser);
    await makePasskey();
    expect(await add(browser, makeSoftPasskey(first, question).made)).toMatchObject({
      status: 400,
      json: { limit: 'passkeys_per_owner' },
    });
    expect(await browser.call('POST', '/owner/v1/passkeys/options', {})).toMatchObject({ status: 400 });
    await posthorn.database.admin.query(`update posthorn.limits set value = 20 where name = 'passkeys_per_owner'`);
  });

  test('is added and removed by forms of its own session alone', async () => {
    const [browser, other] = [await signIn(owner, first), await signIn(owner, first)];
    const { made } = makeSoftPasskey(first, await askNew(browser));
    const page = formOf(await browser.open('/owner/settings'), '/owner/settings/passkeys');
    const foreign = { 'sec-fetch-site': 'cross-site', origin: 'https://evil.example' };
    const fields = { passkey: made, label: 'Key' };
    expect((await browser.submit(page, fields, foreign)).status).toBe(403);
    expect((await browser.submit(page, { ...fields, form_token: '' })).status).toBe(403);
    expect((await other.submit(page, fields)).status).toBe(403);
    expect((await browser.call('POST', '/owner/v1/passkeys/options', {}, foreign)).status).toBe(403);
    expect(await acts()).toEqual([]);
    expect((await browser.submit(page, fields)).text).toContain('From now on it signs you in');
    const removing = formOf(await browser.open('/owner/settings'), /^\/owner\/settings\/passkeys\/.+\/remove$/);
    expect((await browser.submit(removing, {}, foreign)).status).toBe(403);
    expect((await other.submit(removing)).status).toBe(403);
    expect((await browser.submit(removing)).text).toContain('Removed.');
    expect(await acts()).toEqual(['passkey.add', 'passkey.remove']);
  });

  test('and what it shows is in no log and no row', async () => {
    const { handle, answer, id } = await makePasskey();
    const browser = createBrowser(first);
    await press(browser, answer(await ask(browser)));
    const { rows } = await posthorn.database.admin.query(
      `select k::text as text from posthorn.passkeys k union all select c::text from posthorn.challenges c`,
    );
    const stored = rows.map(({ text }) => text).join();
    const hex = Buffer.from(handle, 'base64url').toString('hex');
    expect(stored).toContain(Buffer.from(id, 'base64url').toString('hex'));
    expect(stored).not.toContain(hex);
    expect(posthorn.log()).not.toContain(handle);
  });
});

/** A page with one of its forms first. */
function formOf(page: Page, action: string | RegExp): Page {
  const forms = [...page.text.matchAll(/<form[\s\S]*?<\/form>/g)].map(([form]) => form);
  const found = forms.find((form) => {
    const at = /action="([^"]*)"/.exec(form)![1]!;
    return typeof action === 'string' ? at === action : action.test(at);
  });
  if (found === undefined) throw new Error(`There is no form for ${action}.`);
  return { ...page, text: found };
}

test.each([
  ['http://127.0.0.1:7070', 'is_address'],
  ['https://192.0.2.1', 'is_address'],
  ['http://[::1]:7070', 'is_address'],
  ['http://posthorn.example', 'is_plain'],
  ['http://notlocalhost', 'is_plain'],
  ['http://localhost:7070', { rpId: 'localhost', origin: 'http://localhost:7070' }],
  ['https://posthorn.example', { rpId: 'posthorn.example', origin: 'https://posthorn.example' }],
])('passkeys at %s', (url, place) => {
  expect(passkeyPlace(url)).toEqual(place);
});

test('a server without a name says how to get one', async () => {
  const nameless = await startPosthorn();
  try {
    const { url } = nameless.pods[0]!;
    const browser = await signIn(await nameless.owner('Cy'), url);
    const { text } = await browser.open('/owner/settings');
    expect(text).toContain(`http://localhost:${new URL(url).port}`);
    expect(text).not.toContain('Add a passkey');
    expect((await browser.call('POST', '/owner/v1/passkeys/options', {})).status).toBe(400);
    expect((await createBrowser(url).call('POST', '/owner/sign-in/passkey/options', {})).status).toBe(404);
    expect((await createBrowser(url).open('/owner')).text).not.toContain('Sign in with a passkey');
  } finally {
    await nameless.close();
  }
});

describe.skipIf(CHROMIUM === undefined)('in Chromium', () => {
  let chromium: RealBrowser;
  beforeAll(async () => {
    chromium = await startChromium();
  });
  afterAll(() => chromium.close());

  /** A page with an authenticator that says yes to everything. */
  async function openPage(): Promise<{ page: ChromiumPage; devtools: CDPSession; authenticatorId: string }> {
    const context = await chromium.newContext();
    context.setDefaultTimeout(10_000);
    const page = await context.newPage();
    const devtools = await context.newCDPSession(page);
    await devtools.send('WebAuthn.enable');
    const { authenticatorId } = await devtools.send('WebAuthn.addVirtualAuthenticator', {
      options: {
        protocol: 'ctap2',
        transport: 'internal',
        hasResidentKey: true,
        hasUserVerification: true,
        isUserVerified: true,
        automaticPresenceSimulation: true,
      },
    });
    return { page, devtools, authenticatorId };
  }

  async function signInByLink(page: ChromiumPage): Promise<void> {
    await page.goto(await owner.act((db, credential) => makeSignInUrl(db, first, credential)));
    await page.getByRole('button', { name: 'Sign in' }).click();
    await page.getByRole('heading', { name: 'Inbox' }).waitFor();
  }

  test.each(['as it is', 'without its own JSON'])(
    'a passkey is added, signs in, and no more after it was removed, %s',
    { timeout: 60_000 },
    async (browserKind) => {
      const { page, devtools, authenticatorId } = await openPage();
      if (browserKind !== 'as it is')
        await page.addInitScript(
          'for (const name of ["parseCreationOptionsFromJSON", "parseRequestOptionsFromJSON"]) delete PublicKeyCredential[name]',
        );
      await signInByLink(page);
      await page.goto(`${first}/owner/settings`);
      await page.getByLabel('What to call it').fill('My "laptop"');
      await page.getByRole('button', { name: 'Add a passkey' }).click();
      await page.getByText('From now on it signs you in.').waitFor();
      await page.getByRole('heading', { name: 'My "laptop"' }).waitFor();
      const { credentials } = await devtools.send('WebAuthn.getCredentials', { authenticatorId });
      expect(credentials).toMatchObject([{ isResidentCredential: true, rpId: 'localhost' }]);

      // the same authenticator holds no second one for this account
      await page.getByLabel('What to call it').fill('Again');
      await page.getByRole('button', { name: 'Add a passkey' }).click();
      await page.getByText('holds a passkey for this account already').waitFor();

      await page.getByRole('button', { name: 'Sign out', exact: true }).click();
      await page.getByRole('button', { name: 'Sign in with a passkey' }).click();
      await page.getByRole('heading', { name: 'Inbox' }).waitFor();

      await page.goto(`${first}/owner/settings`);
      await page.locator('#passkeys summary').click();
      await page.getByRole('button', { name: 'Remove this passkey' }).click();
      await page.getByText('Removed.', { exact: true }).waitFor();
      await page.getByRole('button', { name: 'Sign out', exact: true }).click();
      await page.getByRole('button', { name: 'Sign in with a passkey' }).click();
      await page.getByRole('alert').filter({ hasText: 'does not sign anybody in here' }).waitFor();
      expect(await acts()).toEqual(['passkey.add', 'passkey.use', 'passkey.remove']);
      await page.context().close();
    },
  );

  test('who says no is told that nothing happened', { timeout: 60_000 }, async () => {
    const { page, devtools, authenticatorId } = await openPage();
    await devtools.send('WebAuthn.setUserVerified', { authenticatorId, isUserVerified: false });
    await signInByLink(page);
    await page.goto(`${first}/owner/settings`);
    await page.getByLabel('What to call it').fill('Key');
    await page.getByRole('button', { name: 'Add a passkey' }).click();
    await page.getByRole('alert').filter({ hasText: 'No passkey was used' }).waitFor();
    expect(await acts()).toEqual([]);
    await page.context().close();
  });
});
