import axe from 'axe-core';
import type { Browser, Page } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { makeCredential } from '../../src/crypto/credentials.ts';
import { createGroup, createServiceConnection } from '../../src/db/functions.ts';
import { makeSignInUrl } from '../../src/sign-in-link.ts';
import { CHROMIUM, startChromium } from '../helpers/chromium.ts';
import { begin, connectApp, postForm, register, signIn } from '../helpers/oauth.ts';
import {
  callHttp,
  newKey,
  startPosthorn,
  type TestAgent,
  type TestOwner,
  type TestPosthorn,
} from '../helpers/posthorn.ts';

/** What somebody might put where only words belong: it must be seen, and do nothing. */
const MARKUP = `<img src=x onerror=alert(1)>"'&</p>`;

const PATHS = [
  '/owner',
  '/owner/agents',
  '/owner/connections',
  '/owner/connect',
  '/owner/connect/claude-code',
  '/owner/connect/codex',
  '/owner/connect/cursor',
  '/owner/connect/opencode',
  '/owner/connect/vscode',
  '/owner/connect/http',
  '/owner/activity',
  '/owner/activity?before=00000000-0000-0000-0000-000000000000',
  '/owner/settings',
];

// Debian's package has Chromium; where it cannot be had there is nothing to look through.
describe.skipIf(CHROMIUM === undefined)('the pages, in Chromium', () => {
  let posthorn: TestPosthorn;
  let chromium: Browser;
  let owner: TestOwner;
  let newcomer: TestOwner;
  let agents: [TestAgent, TestAgent, TestAgent, TestAgent];
  let url: string;

  beforeAll(async () => {
    posthorn = await startPosthorn();
    url = posthorn.pods[0]!.url;
    owner = await posthorn.owner(MARKUP);
    newcomer = await posthorn.owner('New');
    chromium = await startChromium();
    const browser = await signIn(owner, url);
    await connectApp(browser, url, { metadata: { client_name: MARKUP.slice(0, 60) } });
    const labels = [`a ${MARKUP}`, `b ${MARKUP}`, `c ${MARKUP}`, `d ${MARKUP}`];
    agents = (await Promise.all(labels.map((label) => owner.agent(label)))) as typeof agents;
    const [one, two, three, four] = agents;
    await owner.act(async (db, credential) => {
      const words = { name: MARKUP, purpose: MARKUP, projectBoundary: MARKUP };
      await createGroup(db, { credential, ...words, agentIds: [one.id, two.id] });
      const { hash: credentialHash } = makeCredential('service');
      await createServiceConnection(db, { credential, label: MARKUP, scopes: ['messaging'], credentialHash });
    });
    const ask = (from: TestAgent, to: TestAgent) =>
      from.send({ recipient_agent_id: to.id, body: 'x', name: MARKUP, purpose: MARKUP, idempotency_key: newKey() });
    await ask(one, three);
    const denied = await ask(two, three);
    await browser.call('POST', `/owner/v1/proposals/${denied.body.proposal_id}/deny`, {});
    await callHttp(url, three.token, 'DELETE', `/messaging/v1/agents/${four.id}?agent_id=${four.id}`);
    await browser.call('POST', `/owner/v1/agents/${four.id}/revoke`, {});
  });
  afterAll(async () => {
    await chromium.close();
    await posthorn.close();
  });

  interface Watched {
    page: Page;
    /** What was asked for, as far as it was elsewhere. */
    elsewhere: string[];
    /** What pages said to the console as errors, and what they opened. */
    trouble: string[];
  }

  async function openPage(options: Parameters<Browser['newContext']>[0] = {}, signedIn?: TestOwner): Promise<Watched> {
    const context = await chromium.newContext(options);
    context.setDefaultTimeout(10_000);
    const page = await context.newPage();
    const watched: Watched = { page, elsewhere: [], trouble: [] };
    page.on('request', (request) => {
      if (new URL(request.url()).origin !== url) watched.elsewhere.push(request.url());
    });
    page.on('console', (message) => {
      if (message.type() === 'error') watched.trouble.push(message.text());
    });
    page.on('pageerror', (error) => watched.trouble.push(String(error)));
    page.on('dialog', (dialog) => {
      watched.trouble.push(dialog.message());
      void dialog.dismiss();
    });
    if (signedIn) {
      await page.goto(await signedIn.act((db, credential) => makeSignInUrl(db, url, credential)));
      await page.getByRole('button', { name: 'Sign in' }).click();
      await page.getByRole('heading', { name: 'Inbox' }).waitFor();
    }
    return watched;
  }

  /** What axe finds, as far as it can be said in a line. */
  async function violations(page: Page): Promise<string[]> {
    await page.evaluate(axe.source);
    const found = (await page.evaluate('axe.run()')) as axe.AxeResults;
    return found.violations.flatMap(({ id, nodes }) =>
      nodes.map(({ html, failureSummary }) => `${page.url()}: ${id}: ${html}: ${failureSummary}`),
    );
  }

  async function openAll(page: Page): Promise<void> {
    await page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true");
  }

  describe.each(['light', 'dark'] as const)('in %s', (colorScheme) => {
    test('axe finds nothing on any, and every text is harmless', { timeout: 120_000 }, async () => {
      const { page, elsewhere, trouble } = await openPage({ colorScheme }, owner);
      const found: string[] = [];
      for (const path of PATHS) {
        await page.goto(url + path);
        await openAll(page);
        found.push(...(await violations(page)));
        expect(await page.locator('img').count(), path).toBe(0);
      }
      await page.goto(`${url}/owner/agents`);
      for (const agent of ['a', 'b', 'c', 'd'])
        expect(await page.getByText(`${agent} ${MARKUP}`, { exact: true }).count()).toBeGreaterThan(0);
      expect(found).toEqual([]);
      expect(elsewhere).toEqual([]);
      expect(trouble).toEqual([]);
    });

    test('axe finds nothing where an app or a machine asks to be connected', async () => {
      const { page, elsewhere, trouble } = await openPage({ colorScheme }, owner);
      const found: string[] = [];
      const registered = await register(url, { client_name: MARKUP.slice(0, 60) });
      await page.goto(url + begin(url, registered.body.client_id).url);
      await page.getByRole('button', { name: 'Connect' }).waitFor();
      found.push(...(await violations(page)));
      const asked = await postForm(`${url}/device/authorize`, { client_id: 'posthorn-cli', device_label: MARKUP });
      await page.goto(asked.body.verification_uri_complete);
      found.push(...(await violations(page)));
      await page.getByRole('button', { name: 'Go on' }).click();
      await page.getByText(asked.body.user_code).waitFor();
      found.push(...(await violations(page)));
      await page.getByRole('button', { name: 'Pair' }).click();
      await page.getByRole('heading', { name: 'Paired' }).waitFor();
      found.push(...(await violations(page)));
      expect(await page.locator('img').count()).toBe(0);
      expect(found).toEqual([]);
      expect(elsewhere).toEqual([]);
      expect(trouble).toEqual([]);
    });

    test('axe finds nothing where nothing is yet, where nobody is signed in, and after a refusal', async () => {
      const { page, elsewhere } = await openPage({ colorScheme, viewport: { width: 390, height: 844 } }, newcomer);
      const found: string[] = [];
      for (const path of ['/owner', '/owner/agents', '/owner/connections', '/owner/nothing']) {
        await page.goto(url + path);
        found.push(...(await violations(page)));
      }
      await page.goto(`${url}/owner/settings`);
      await page.getByText('Delete it').click();
      await page.getByLabel('to go on').fill('somebody');
      await page.getByRole('button', { name: 'Delete the account for good' }).click();
      await page.getByRole('alert').waitFor();
      found.push(...(await violations(page)));
      await page.context().clearCookies();
      for (const path of ['/owner', '/owner/sign-in?link=x', '/device']) {
        await page.goto(url + path);
        found.push(...(await violations(page)));
      }
      expect(found).toEqual([]);
      expect(elsewhere).toEqual([]);
    });
  });

  test('no page is wider than a phone, or heavier than 60 KB at first', { timeout: 60_000 }, async () => {
    const { page: signedIn } = await openPage({}, owner);
    const cookies = await signedIn.context().cookies();
    for (const path of PATHS) {
      const { page } = await openPage({ viewport: { width: 390, height: 844 } });
      await page.context().addCookies(cookies);
      const network = await page.context().newCDPSession(page);
      let bytes = 0;
      network.on('Network.loadingFinished', ({ encodedDataLength }) => {
        bytes += encodedDataLength;
      });
      await network.send('Network.enable');
      await page.goto(url + path);
      await openAll(page);
      expect(await page.evaluate('document.documentElement.scrollWidth'), path).toBe(390);
      expect(bytes, path).toBeGreaterThan(10_000);
      expect(bytes, path).toBeLessThan(60_000);
      await page.context().close();
    }
  });

  test('a request is edited and approved by the keyboard alone', async () => {
    const [, two, three] = [await owner.agent('key'), await owner.agent('board'), await owner.agent('only')];
    await two.send({ recipient_agent_id: three.id, body: 'x', purpose: 'By keys', idempotency_key: newKey() });
    const { page } = await openPage();
    await page.goto(await owner.act((db, credential) => makeSignInUrl(db, url, credential)));
    const focused = () => page.evaluate('document.activeElement?.textContent.trim() || document.activeElement?.name');
    const tabTo = async (text: string) => {
      for (let presses = 0; presses < 60; presses++) {
        await page.keyboard.press('Tab');
        if ((await focused()) === text) return;
      }
      throw new Error(`No way leads to ${text}.`);
    };
    await tabTo('Sign in');
    await page.keyboard.press('Enter');
    await page.getByRole('heading', { name: 'Inbox' }).waitFor();
    await page.keyboard.press('Tab');
    expect(await focused()).toBe('Skip to the content');
    await page.keyboard.press('Enter');
    const card = page.getByRole('article').filter({ hasText: 'By keys' });
    do await tabTo('Change before you approve');
    while ((await card.locator(':focus').count()) === 0);
    await page.keyboard.press('Enter');
    await tabTo('name');
    await page.keyboard.press('ControlOrMeta+a');
    await page.keyboard.type('Typed');
    await page.keyboard.press('Enter');
    await page.getByText('Approved. What was held is on its way.').waitFor();
    await page.getByText('“Typed”').waitFor();
  });

  test('every form works without a script', async () => {
    const [one, two] = [await owner.agent('plain one'), await owner.agent('plain two')];
    await one.send({ recipient_agent_id: two.id, body: 'x', purpose: 'Plainly', idempotency_key: newKey() });
    const { page } = await openPage({ javaScriptEnabled: false }, owner);
    const card = page.getByRole('article').filter({ hasText: 'Plainly' });
    await card.getByRole('button', { name: 'Deny' }).click();
    await page.getByText('Denied. What was held is gone.').waitFor();
    await page
      .getByRole('listitem')
      .filter({ hasText: 'plain one' })
      .getByRole('button', { name: 'Let them ask again' })
      .click();
    await page.getByText('They may ask again.').waitFor();
    await page.goto(`${url}/owner/agents`);
    await page.getByText('Make a collaboration').click();
    await page.getByLabel('Name').fill('Made by hand');
    await page.getByLabel('Purpose').fill('To see');
    await page.getByLabel('plain one').check();
    await page.getByLabel('plain two').check();
    await page.getByRole('group', { name: 'How long' }).getByLabel('30 days').last().check();
    await page.getByRole('button', { name: 'Let them talk' }).click();
    await page.getByText('Made: they may talk now.').waitFor();
    await page.goto(`${url}/owner/connections`);
    await page.getByText('Make a token').click();
    await page.getByLabel('What it is for').fill('A script');
    await page.getByRole('button', { name: 'Make the token' }).click();
    const token = (await page.locator('#token').textContent())!;
    expect((await callHttp(url, token, 'GET', '/messaging/v1/status')).status).toBe(200);
    await page.goto(`${url}/owner/connections`);
    expect(await page.content()).not.toContain(token);
  });
});
