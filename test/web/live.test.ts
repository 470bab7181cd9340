import type { Browser, BrowserContext, Page } from 'playwright-core';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { denyProposal } from '../../src/db/functions.ts';
import { makeSignInUrl } from '../../src/sign-in-link.ts';
import { CHROMIUM, startChromium } from '../helpers/chromium.ts';
import { openStream } from '../helpers/event-stream.ts';
import { newKey, startPosthorn, type TestAgent, type TestOwner, type TestPosthorn } from '../helpers/posthorn.ts';

const STREAM = '/owner/v1/events';

// Debian's package has Chromium; where it cannot be had there is nothing to look through.
describe.skipIf(CHROMIUM === undefined)('an open Inbox', () => {
  let posthorn: TestPosthorn;
  let chromium: Browser;
  let url: string;
  let owner: TestOwner;
  let agents: [TestAgent, TestAgent];
  let context: BrowserContext;
  let page: Page;
  /** Requests for the stream, and for the page by its script. */
  let asked: string[];

  beforeAll(async () => {
    posthorn = await startPosthorn();
    url = posthorn.pods[0]!.url;
    chromium = await startChromium();
  });
  afterAll(async () => {
    await chromium.close();
    await posthorn.close();
  });

  beforeEach(async () => {
    owner = await posthorn.owner();
    agents = [await owner.agent('Ada'), await owner.agent('Bob')];
    context = await chromium.newContext();
    context.setDefaultTimeout(10_000);
    page = await context.newPage();
    asked = [];
    page.on('request', (request) => {
      if (request.resourceType() !== 'document') asked.push(new URL(request.url()).pathname);
    });
    // the timers of the page stand still from here on: whatever it shows, it was told, and did not look
    await page.clock.install();
    await page.goto(await owner.act((db, credential) => makeSignInUrl(db, url, credential)));
    await page.getByRole('button', { name: 'Sign in' }).click();
    await page.getByText('Nothing waits for you.').waitFor();
    await page.clock.pauseAt(Date.now() + 60_000);
    return () => context.close();
  });

  const askedFor = (path: string) => asked.filter((each) => each === path).length;

  const streamsOpen = async () =>
    (
      await posthorn.database.admin.query(
        'select count(*)::int as n from posthorn.streams s join posthorn.owners o using (owner_id) where o.id = $1',
        [owner.id],
      )
    ).rows[0].n;

  /** A message that waits for the owner. Answers the request's id. */
  async function ask(): Promise<string> {
    const [ada, bob] = agents;
    const words = { body: 'x', purpose: 'To talk', idempotency_key: newKey() };
    return (await ada.send({ recipient_agent_id: bob.id, ...words })).body.proposal_id;
  }

  const request = () => page.getByRole('heading', { name: 'Ada wants to talk with Bob' });

  test('shows a request within a second of the answer to the message that asks for it, and takes it away when it is decided elsewhere', async () => {
    await expect.poll(streamsOpen).toBe(1);
    const appeared = page.evaluate(`new Promise((resolve) => {
      const look = () => document.querySelector('[id^="request-"]') && resolve(true);
      new MutationObserver(look).observe(document.body, { subtree: true, childList: true });
    })`);
    const proposalId = await ask();
    const since = performance.now();
    await appeared;
    expect(performance.now() - since).toBeLessThan(1_000);
    expect(await request().count()).toBe(1);
    expect(await page.title()).toContain('(1) Inbox');
    await owner.act((db, credential) => denyProposal(db, { credential, proposalId }));
    await request().waitFor({ state: 'detached', timeout: 1_000 });
    await page.getByText('Nothing waits for you.').waitFor();
  });

  test('at rest asks for nothing, whatever time passes', async () => {
    await expect.poll(streamsOpen).toBe(1);
    await expect.poll(() => askedFor('/owner')).toBeGreaterThan(0); // as the stream began
    const askedForPage = askedFor('/owner');
    const askedForStream = askedFor('/owner/v1/events');
    await page.clock.runFor(120_000);
    await ask();
    await request().waitFor(); // by one request, and that comes after all others
    expect(askedFor('/owner')).toBe(askedForPage + 1);
    expect(askedFor('/owner/v1/events')).toBe(askedForStream);
  });

  test('holds no stream while nobody looks, and catches up when somebody does', async () => {
    await expect.poll(streamsOpen).toBe(1);
    const become = (isHidden: boolean) =>
      page.evaluate(
        `Object.defineProperty(document, 'hidden', { value: ${isHidden}, configurable: true });
         document.dispatchEvent(new Event('visibilitychange'))`,
      );
    await become(true);
    await expect.poll(streamsOpen).toBe(0);
    await ask();
    await page.clock.runFor(60_000);
    expect(await request().count()).toBe(0);
    await become(false);
    await request().waitFor();
    await expect.poll(streamsOpen).toBe(1);
  });

  test('looks every 5 seconds where its stream is refused, and does not try again at once', async () => {
    const cookies = await context.cookies();
    const cookie = cookies.map(({ name, value }) => `${name}=${value}`).join('; ');
    await page.goto('about:blank');
    await expect.poll(streamsOpen).toBe(0);
    const others = await Promise.all(Array.from({ length: 8 }, () => openStream(url, { cookie }, STREAM)));
    expect(others.map(({ status }) => status)).toEqual(others.map(() => 200));
    const refused = page.waitForResponse((response) => new URL(response.url()).pathname === STREAM);
    await page.goto(`${url}/owner`);
    expect((await refused).status()).toBe(429);
    await expect.poll(async () => page.evaluate('document.documentElement.className')).toContain('scripted');
    asked.length = 0;
    await ask();
    await page.clock.runFor(6_000);
    await request().waitFor();
    await page.clock.runFor(20_000);
    expect(askedFor(STREAM)).toBe(0);
    for (const other of others) other.close();
    await expect.poll(streamsOpen).toBe(0);
    await page.clock.runFor(30_000);
    await expect.poll(streamsOpen).toBe(1);
    expect(askedFor(STREAM)).toBe(1);
  });

  test('says so when the session ends elsewhere', async () => {
    await expect.poll(streamsOpen).toBe(1);
    const other = await context.newPage();
    await other.goto(`${url}/owner/settings`);
    await other.getByRole('button', { name: 'Sign out everywhere' }).click();
    await page.getByRole('heading', { name: 'Sign in' }).waitFor({ timeout: 2_000 });
  });
});
