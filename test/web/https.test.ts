import { afterAll, expect, test } from 'vitest';
import { connectApp, signIn } from '../helpers/oauth.ts';
import { startPosthorn } from '../helpers/posthorn.ts';

// Behind a proxy that ends TLS: this end of the connection is plain, and what browsers are told is not.
const publicUrl = 'https://posthorn.test';
const posthorn = await startPosthorn({ publicUrl });
afterAll(posthorn.close);
const at = posthorn.pods[0]!.url;

test('cookies are marked for TLS, and the session is in one that no other host can set', async () => {
  const browser = await signIn(await posthorn.owner(), publicUrl, at);
  expect([...browser.cookies.keys()]).toContain('__Host-posthorn_session');
  const cookies: string[] = [];
  for (const path of ['/owner/sign-in', '/device']) {
    const response = await fetch(at + path, { headers: { accept: 'text/html' } });
    cookies.push(...response.headers.getSetCookie());
  }
  const app = await connectApp(browser, at, { parameters: { resource: `${publicUrl}/mcp` } });
  expect(app.refresh).toEqual(expect.any(String));
  const asked = await fetch(
    `${at}/authorize?client_id=${app.clientId}&response_type=code&redirect_uri=http://127.0.0.1:7777/callback&code_challenge=${'x'.repeat(43)}&code_challenge_method=S256`,
    { redirect: 'manual', headers: { accept: 'text/html' } },
  );
  expect(asked.headers.get('location')).toMatch(/^\/oauth\/interaction\//);
  cookies.push(...asked.headers.getSetCookie());
  expect(cookies.length).toBeGreaterThan(2);
  for (const cookie of cookies) expect(cookie).toMatch(/; secure/i);
  for (const cookie of cookies) expect(cookie).toMatch(/; httponly/i);
});
