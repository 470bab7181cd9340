import type { Browser, BrowserContext, Page } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { makeSignInUrl } from '../../src/sign-in-link.ts';
import { CHROMIUM, startChromium } from '../helpers/chromium.ts';
import { newKey, startPosthorn, type TestOwner, type TestPosthorn } from '../helpers/posthorn.ts';
import { CALLBACK, connectSdkApp, type SdkApp } from '../helpers/sdk-app.ts';

// Debian's package has it; where it cannot be had there is nothing to look through.
describe.skipIf(CHROMIUM === undefined)("a newcomer's path, in Chromium", () => {
  let posthorn: TestPosthorn;
  let chromium: Browser;
  let context: BrowserContext;
  let owner: TestOwner;
  let url: string;
  let watching: Page;
  const apps: SdkApp[] = [];
  const streams: AbortController[] = [];

  beforeAll(async () => {
    posthorn = await startPosthorn();
    url = posthorn.pods[0]!.url;
    owner = await posthorn.owner('Ada');
    chromium = await startChromium();
    context = await chromium.newContext();
    context.setDefaultTimeout(15_000);
    watching = await context.newPage();
  });
  afterAll(async () => {
    for (const stream of streams) stream.abort();
    for (const app of apps) await app.close();
    await chromium.close();
    await posthorn.close();
  });

  /** The owner says yes in a second tab, as the app would open it. */
  async function consent(address: string): Promise<URLSearchParams> {
    const tab = await context.newPage();
    await tab.route(`${CALLBACK}?**`, (route) => route.fulfill({ body: 'You can close this.' }));
    await tab.goto(address);
    await tab.getByRole('button', { name: 'Connect' }).click();
    await tab.waitForURL(`${CALLBACK}?**`);
    const answer = new URL(tab.url()).searchParams;
    await tab.close();
    return answer;
  }

  async function connect(name: string, runtime: string): Promise<string> {
    const app = await connectSdkApp(url, name, consent);
    apps.push(app);
    const registered = await app.call('register_agent', { label: name, runtime });
    return registered.structuredContent.id;
  }

  /** Fails if the page was loaded anew: a mark that was left in it must still be there. */
  const leaveMark = (page: Page) => page.evaluate("document.documentElement.dataset.mark = 'left'");
  const isSamePage = (page: Page) => page.evaluate("document.documentElement.dataset.mark === 'left'");

  test('signs in by the link', async () => {
    await watching.goto(await owner.act((db, credential) => makeSignInUrl(db, url, credential)));
    await watching.getByRole('button', { name: 'Sign in' }).click();
    await watching.getByText('No agent is connected yet.').waitFor();
  });

  let codex: string;

  test('connects two agents by OAuth, and sees the first appear while looking', async () => {
    await watching.getByRole('main').getByRole('link', { name: 'Connect an agent' }).click();
    await watching.getByRole('link', { name: 'Claude Code' }).click();
    await watching.getByText('Waiting for it').waitFor();
    await leaveMark(watching);
    await connect('Claude Code', 'claude-code');
    await watching.getByText('Connected · just now').waitFor();
    expect(await isSamePage(watching)).toBe(true);
    codex = await connect('Codex', 'codex');
  });

  test('sees them live', async () => {
    await watching.goto(`${url}/owner/agents`);
    await leaveMark(watching);
    expect(await watching.getByText('Live', { exact: true }).count()).toBe(0);
    for (const app of apps) {
      const stream = new AbortController();
      streams.push(stream);
      await fetch(`${url}/messaging/v1/events`, {
        headers: { authorization: `Bearer ${app.accessToken()}` },
        signal: stream.signal,
      });
    }
    await expect.poll(() => watching.getByText('Live', { exact: true }).count(), { timeout: 15_000 }).toBe(2);
    expect(await isSamePage(watching)).toBe(true);
  });

  test('sees the request of the first send, and keeps what is being typed while another comes in', async () => {
    await watching.goto(`${url}/owner`);
    await watching.getByText('Nothing waits for you.').waitFor();
    await leaveMark(watching);
    const sent = await apps[0]!.call('send_message', {
      recipient_agent_id: codex,
      body: 'Hello, this is a body that nobody else reads',
      purpose: 'Share the tests',
      name: 'Tests',
      idempotency_key: newKey(),
    });
    expect(sent.structuredContent).toMatchObject({ state: 'held' });
    await watching.getByRole('heading', { name: 'Claude Code wants to talk with Codex' }).waitFor();
    expect(await watching.title()).toContain('(1) Inbox');
    await watching.getByText('Change before you approve').click();
    await watching.getByLabel('Name').fill('Shared te');
    await apps[0]!.call('send_message', {
      recipient_agent_id: codex,
      body: 'One more',
      purpose: 'Share the tests',
      idempotency_key: newKey(),
    });
    await watching.getByText('2 messages held until you decide').waitFor();
    await watching.keyboard.type('sts');
    expect(await watching.getByLabel('Name').inputValue()).toBe('Shared tests');
    expect(await isSamePage(watching)).toBe(true);
  });

  test('approves it under another name, and watches the mark turn to delivered', async () => {
    await watching.getByRole('button', { name: 'Approve' }).click();
    await watching.getByText('Approved. What was held is on its way.').waitFor();
    await watching.getByText('“Shared tests”').waitFor();
    await watching.getByText('2 messages on the way').waitFor();
    await leaveMark(watching);
    const received = await apps[1]!.call('receive_messages');
    expect(received.structuredContent.messages).toHaveLength(2);
    await watching.getByText('2 messages delivered').waitFor();
    expect(await isSamePage(watching)).toBe(true);
  });

  test('sees no body anywhere', async () => {
    for (const path of ['', '/agents', '/connections', '/activity', '/settings']) {
      await watching.goto(`${url}/owner${path}`);
      expect(await watching.content()).not.toContain('nobody else reads');
    }
  });

  test('is told when the session ends elsewhere', async () => {
    await watching.goto(`${url}/owner`);
    const other = await context.newPage();
    await other.goto(`${url}/owner/settings`);
    await other.getByRole('button', { name: 'Sign out everywhere' }).click();
    await watching.getByRole('heading', { name: 'Sign in' }).waitFor();
  });
});
