import axe from 'axe-core';
import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { makeSignInUrl } from '../../src/sign-in-link.ts';
import { makeSoftPasskey } from '../helpers/authenticator.ts';
import { CHROMIUM, startChromium } from '../helpers/chromium.ts';
import { signIn } from '../helpers/oauth.ts';
import { startOpenIdProvider, type TestOpenIdProvider } from '../helpers/openid-provider.ts';
import { startPosthorn, type TestOwner, type TestPosthorn } from '../helpers/posthorn.ts';

describe.skipIf(CHROMIUM === undefined)('the ways to sign in, in Chromium', () => {
  let provider: TestOpenIdProvider;
  let posthorn: TestPosthorn;
  let chromium: Browser;
  let owner: TestOwner;
  let url: string;

  beforeAll(async () => {
    provider = await startOpenIdProvider('Example Corporation');
    posthorn = await startPosthorn({ host: 'localhost', openid: provider.settings });
    url = posthorn.pods[0]!.url;
    provider.register(`${url}/owner/sign-in/openid/callback`);
    owner = await posthorn.owner('Ada');
    const browser = await signIn(owner, url);
    const { json } = await browser.call('POST', '/owner/v1/passkeys/options', {});
    const { made } = makeSoftPasskey(url, (json as { options: Parameters<typeof makeSoftPasskey>[1] }).options);
    const added = await browser.call('POST', '/owner/v1/passkeys', { label: '<b>My laptop</b>', passkey: made });
    expect(added.status).toBe(201);
    chromium = await startChromium();
  });
  afterAll(async () => {
    await chromium.close();
    await posthorn.close();
    await provider.close();
  });

  test.each(['light', 'dark'] as const)(
    'axe finds nothing on them in %s, and none is wider than a phone',
    { timeout: 120_000 },
    async (colorScheme) => {
      const context = await chromium.newContext({ colorScheme, viewport: { width: 390, height: 844 } });
      context.setDefaultTimeout(20_000);
      const page = await context.newPage();
      const found: string[] = [];
      const look = async () => {
        await page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true");
        expect(await page.evaluate('document.documentElement.scrollWidth'), page.url()).toBe(390);
        await page.evaluate(axe.source);
        const { violations } = (await page.evaluate('axe.run()')) as axe.AxeResults;
        found.push(...violations.map(({ id, nodes }) => `${page.url()} ${id} ${nodes[0]!.html}`));
      };
      await page.goto(`${url}/owner`);
      await page.getByRole('button', { name: 'Sign in with a passkey' }).waitFor();
      await look();
      await page.goto(`${url}/owner/sign-in/openid/callback`); // nothing was begun
      await page.getByRole('alert').waitFor();
      await look();
      await page.goto(await owner.act((db, credential) => makeSignInUrl(db, url, credential)));
      await page.getByRole('button', { name: 'Sign in' }).click();
      await page.getByRole('heading', { name: 'Inbox' }).waitFor();
      provider.account = `ada-${colorScheme}`;
      await page.goto(`${url}/owner/settings`);
      // by way of the provider and back, through the pages' policy
      await page.getByRole('button', { name: /^Connect (your|another) account$/ }).click();
      await page.getByText('From now on that account signs you in.').waitFor();
      await page.getByRole('heading', { name: '<b>My laptop</b>' }).waitFor();
      await look();
      expect(found).toEqual([]);
      await context.close();
    },
  );
});
