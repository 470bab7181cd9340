import { createHash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { createContext, runInContext } from 'node:vm';
import axe from 'axe-core';
import type { Browser, BrowserContext, Page } from 'playwright-core';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { packageRoot } from '../../src/package-root.ts';
import { makeSignInUrl } from '../../src/sign-in-link.ts';
import { CHROMIUM, startChromium } from '../helpers/chromium.ts';
import { signIn } from '../helpers/oauth.ts';
import { startPosthorn, type TestOwner, type TestPosthorn } from '../helpers/posthorn.ts';

// A push service of its own that Chromium could be made to ask there is none. What is asked of it here is stubbed at the
// one interface between; the rest, the worker included, is the browser's.

describe.skipIf(CHROMIUM === undefined)('notifications, in Chromium', { timeout: 90_000 }, () => {
  let posthorn: TestPosthorn;
  let chromium: Browser;
  let url: string;
  let owner: TestOwner;

  beforeAll(async () => {
    posthorn = await startPosthorn();
    url = posthorn.pods[0]!.url;
    chromium = await startChromium();
  });
  beforeEach(async () => {
    owner = await posthorn.owner('Ada');
  });
  afterAll(async () => {
    await chromium.close();
    await posthorn.close();
  });

  async function newContext(permissions: string[] = ['notifications']): Promise<BrowserContext> {
    const context = await chromium.newContext();
    context.setDefaultTimeout(10_000);
    await context.grantPermissions(permissions, { origin: url });
    return context;
  }

  async function openSettings(context: BrowserContext): Promise<Page> {
    const page = await context.newPage();
    await page.goto(await owner.act((db, credential) => makeSignInUrl(db, url, credential)));
    await page.getByRole('button', { name: 'Sign in' }).click();
    await page.getByRole('heading', { name: 'Inbox' }).waitFor();
    await page.goto(`${url}/owner/settings`);
    return page;
  }

  /** The sentence and the button that are shown. */
  const shown = (page: Page) =>
    page
      .locator('#push p[data-when]:visible, #push button:visible, #push .mark:visible')
      .allInnerTexts()
      .then((texts) => texts.map((text) => text.slice(0, 30)));
  const eventually = (page: Page) => expect.poll(() => shown(page), { timeout: 10_000 });

  test('a browser that cannot says so, and so does one that may not', async () => {
    const unable = await newContext();
    await unable.addInitScript('delete window.PushManager');
    await eventually(await openSettings(unable)).toEqual(['Off', 'This browser cannot be notifie']);
    const blocked = await newContext([]);
    await blocked.addInitScript(`Object.defineProperty(Notification, 'permission', { get: () => 'denied' })`);
    await eventually(await openSettings(blocked)).toEqual(['Off', 'Notifications of this site are']);
    for (const context of [unable, blocked]) await context.close();
  });

  test('a page that came over plain http says what it needs', async () => {
    const context = await newContext();
    const cookies = await signIn(owner, url);
    const cookie = [...cookies.cookies].map(([name, { value }]) => `${name}=${value}`).join('; ');
    await context.route('http://posthorn.example/**', async (route) => {
      const asked = new URL(route.request().url());
      const response = await route.fetch({ url: url + asked.pathname, headers: { cookie } });
      await route.fulfill({ response });
    });
    const page = await context.newPage();
    await page.goto('http://posthorn.example/owner/settings');
    await eventually(page).toEqual(['Off', 'Browsers allow this over https']);
    await context.unrouteAll({ behavior: 'ignoreErrors' }); // the page may be asking for itself just now
    await context.close();
  });

  test('without a script the page says what is missing, and promises nothing', async () => {
    const context = await chromium.newContext({ javaScriptEnabled: false });
    const page = await openSettings(context);
    expect(await shown(page)).toEqual(['This takes JavaScript, which i']);
    await context.close();
  });

  test('where the push service does not answer, nothing is said to be on', async () => {
    const context = await newContext();
    await context.addInitScript(
      `PushManager.prototype.subscribe = () => Promise.reject(new DOMException('x', 'AbortError'))`,
    );
    const page = await openSettings(context);
    await eventually(page).toEqual(['Off', 'Switch notifications on']);
    await page.getByRole('button', { name: 'Switch notifications on' }).click();
    await eventually(page).toEqual(['Off', 'That did not work: this browse', 'Switch notifications on']);
    expect(await subscriptions()).toEqual([]);
    await page.reload();
    await eventually(page).toEqual(['Off', 'Switch notifications on']);
    await context.close();
  });

  const subscriptions = async () => {
    const { rows } = await posthorn.database.admin.query(
      `select encode(s.endpoint_hash, 'hex') as hash from posthorn.push_subscriptions s
         join posthorn.owners o on o.owner_id = s.owner_id where o.id = $1`,
      [owner.id],
    );
    return rows.map(({ hash }) => hash);
  };

  /** A push manager that gets its subscriptions from nobody, and keeps them as a browser does. */
  const STUB = `
    const read = () => {
      const endpoint = localStorage.getItem('stub');
      return endpoint && {
        endpoint,
        toJSON: () => ({ endpoint, keys: { p256dh: '${P256DH()}', auth: 'AAAAAAAAAAAAAAAAAAAAAA' } }),
        unsubscribe: async () => localStorage.removeItem('stub'),
      };
    };
    PushManager.prototype.getSubscription = async () => read();
    PushManager.prototype.subscribe = async ({ userVisibleOnly, applicationServerKey }) => {
      if (!userVisibleOnly || read()) throw new DOMException('It is there.', 'InvalidStateError');
      if (!/^B[\\w-]{86}$/.test(applicationServerKey)) throw new DOMException('No key.', 'InvalidAccessError');
      localStorage.setItem('stub', 'https://push.example/' + crypto.randomUUID());
      return read();
    };`;

  test('is switched on and off, and is on after a reload, but not for who signs in next', async () => {
    const context = await newContext();
    await context.addInitScript(STUB);
    const page = await openSettings(context);
    await page.getByRole('button', { name: 'Switch notifications on' }).click();
    await eventually(page).toEqual(['On', 'Switch notifications off']);
    const endpoint = (await page.evaluate(`localStorage.getItem('stub')`)) as string;
    const hash = createHash('sha256').update(endpoint).digest('hex');
    expect(await subscriptions()).toEqual([hash]);
    expect(await page.evaluate('document.activeElement?.innerText'), 'who presses it stays on it').toBe(
      'Switch notifications off',
    );
    // the page asks for itself when it is looked at again, and finds the section changed
    const asked = page.waitForResponse((response) => response.url().endsWith('/owner/settings') && response.ok());
    await page.evaluate(`document.dispatchEvent(new Event('visibilitychange'))`);
    await asked;
    await expect.poll(() => page.locator('#push').getAttribute('data-known')).toBe(hash);
    expect(await shown(page)).toEqual(['On', 'Switch notifications off']);
    expect(await page.content()).not.toContain('push.example');
    await page.reload();
    await eventually(page).toEqual(['On', 'Switch notifications off']);

    await page.getByRole('button', { name: 'Sign out', exact: true }).click();
    await page.waitForURL(`${url}/owner`);
    expect(await subscriptions()).toEqual([]);
    await page.close();
    const next = await openSettings(context);
    await eventually(next).toEqual(['Off', 'Switch notifications on']);
    await next.getByRole('button', { name: 'Switch notifications on' }).click();
    await eventually(next).toEqual(['On', 'Switch notifications off']);
    expect(await subscriptions()).toHaveLength(1);
    await next.getByRole('button', { name: 'Switch notifications off' }).click();
    await eventually(next).toEqual(['Off', 'Switch notifications on']);
    expect(await subscriptions()).toEqual([]);
    expect(await next.evaluate(`localStorage.getItem('stub')`)).toBeNull();
    await context.close();
  });

  test('what the server refuses is off, here and there', async () => {
    const context = await newContext();
    await context.addInitScript(STUB.replace('https://push.example/', 'https://10.0.0.1/'));
    const page = await openSettings(context);
    await page.getByRole('button', { name: 'Switch notifications on' }).click();
    await eventually(page).toEqual(['Off', 'That did not work: this browse', 'Switch notifications on']);
    expect(await subscriptions()).toEqual([]);
    expect(await page.evaluate(`localStorage.getItem('stub')`)).toBeNull();
    await context.close();
  });

  test.each(['light', 'dark'] as const)('axe finds nothing in any state, in %s', async (colorScheme) => {
    const context = await newContext();
    const page = await openSettings(context);
    await page.emulateMedia({ colorScheme });
    await page.evaluate(axe.source);
    for (const state of ['on', 'off', 'failed', 'blocked', 'unsupported', 'insecure']) {
      await page.evaluate(`document.documentElement.dataset.push = '${state}'`);
      expect((await shown(page)).length, state).toBeGreaterThan(1);
      const { violations } = (await page.evaluate(`axe.run('#push')`)) as axe.AxeResults;
      expect(violations, state).toEqual([]);
    }
    await context.close();
  });

  test('a push shows one notification, whichever number came before, and the worker breaks no rule of its policy', async () => {
    const context = await newContext();
    const page = await openSettings(context);
    const devtools = await context.newCDPSession(page);
    const registered = new Promise<string>((resolve) => {
      devtools.on('ServiceWorker.workerVersionUpdated', ({ versions }) => {
        const active = versions.find(({ status }) => status === 'activated');
        if (active) resolve(active.registrationId);
      });
    });
    await devtools.send('ServiceWorker.enable');
    await page.evaluate(
      `navigator.serviceWorker.register('/owner/push-worker.js').then(() => navigator.serviceWorker.ready).then(() => {})`,
    );
    const registrationId = await registered;
    const notifications = () =>
      page.evaluate(
        `navigator.serviceWorker.ready.then((r) => r.getNotifications()).then((all) => all.map(({ title, body, tag }) => ({ title, body, tag })))`,
      );
    for (const [data, body] of [
      ['{"waiting":1}', 'A request waits for you'],
      ['{"waiting":3}', '3 requests wait for you'],
      ['unreadable', 'A request waits for you'],
    ] as const) {
      await devtools.send('ServiceWorker.deliverPushMessage', { origin: url, registrationId, data });
      await expect.poll(notifications).toEqual([{ title: 'Posthorn', body, tag: 'requests' }]);
    }
    await context.close();
  });
});

/** A point that the server takes. */
function P256DH(): string {
  // the base point of P-256, uncompressed
  return Buffer.from(
    '046b17d1f2e12c4247f8bce6e563a440f277037d812deb33a0f4a13945d898c2964fe342e2fe1a7f9b8ee7eb4a7c0f9e162bce33576b315ececbb6406837bf51f5',
    'hex',
  ).toString('base64url');
}

describe('a click on the notification', () => {
  /** The worker's file in a scope that has what it needs, and writes down what it does. */
  async function click(windows: { url: string }[]): Promise<string[]> {
    const did: string[] = [];
    const handlers: Record<string, (event: object) => void> = {};
    const self = {
      addEventListener: (name: string, handler: (event: object) => void) => {
        handlers[name] = handler;
      },
      clients: {
        async matchAll({ includeUncontrolled }: { includeUncontrolled: boolean }) {
          // the inbox is outside of the worker's own place, so that no window of it is controlled
          return includeUncontrolled
            ? windows.map((window) => ({ ...window, focus: () => did.push(`focus ${window.url}`) }))
            : [];
        },
        openWindow: (path: string) => did.push(`open ${path}`),
      },
    };
    const source = await readFile(join(packageRoot, 'src', 'web', 'push-worker.js'), 'utf8');
    runInContext(source, createContext({ self, URL }));
    let done: Promise<unknown> | undefined;
    handlers.notificationclick!({
      notification: { close: () => did.push('close') },
      waitUntil: (promise: Promise<unknown>) => {
        done = promise;
      },
    });
    await done;
    return did;
  }

  test('goes to the inbox that is open, or opens it', async () => {
    const [settings, inbox] = [
      { url: 'https://posthorn.example/owner/settings' },
      { url: 'https://posthorn.example/owner?said=approved' },
    ];
    expect(await click([settings, inbox])).toEqual(['close', `focus ${inbox.url}`]);
    expect(await click([settings])).toEqual(['close', 'open /owner']);
    expect(await click([])).toEqual(['close', 'open /owner']);
  });
});
