import { passkeyPlace } from '../crypto/passkeys.ts';
import type { Services } from '../operations/operation.ts';
import { html } from './html.ts';
import { page } from './layout.ts';
import { passkeyFields, passkeyScript } from './sign-in-parts.ts';

/** For whoever comes without a session: every way in that this server has. */
export function howToSignInPage({
  services: { publicUrl, openid },
  isOnTheWay,
  problem,
}: {
  services: Pick<Services, 'publicUrl' | 'openid'>;
  isOnTheWay: boolean;
  problem?: string;
}): string {
  const hasPasskeys = typeof passkeyPlace(publicUrl) === 'object';
  return page(
    'Sign in',
    html`${problem && html`<p class="problem" role="alert">${problem}</p>`}
${isOnTheWay && html`<p class="quiet">You come back to this page afterwards.</p>`}
${
  hasPasskeys &&
  html`<form class="for-passkeys" method="post" action="/owner/sign-in/passkey" data-passkey="/owner/sign-in/passkey/options">
${passkeyFields()}
<button class="main">Sign in with a passkey</button>
</form>`
}
${
  openid &&
  html`<form method="post" action="/owner/sign-in/openid">
<button>Sign in with ${openid.name}</button>
</form>`
}
${(hasPasskeys || openid) && html`<h2>By a link</h2>`}
<p>On the machine where Posthorn runs, make a link and open it in this browser:</p>
<p class="card"><code>posthorn owner link</code></p>
<p class="quiet">From the repository: <code>npm run -s posthorn -- owner link</code>. A link works once, within 15 minutes.</p>
${hasPasskeys && passkeyScript()}`,
  );
}

/** For whoever goes to the OpenID provider; browsers go on by themselves. */
export function goToProviderPage(name: string, url: string): string {
  return page(`Go on at ${name}`, html`<p><a class="button main" href="${url}">Go on at ${name}</a></p>`);
}

/** For whoever opened a link. It signs in with the button alone: previews of chat programs open links, too. */
export function signInPage(link: string): string {
  return page(
    'Sign in',
    html`<p>You are about to sign in to Posthorn in this browser. Go on only if you made the link yourself.</p>
<form method="post" action="/owner/sign-in">
<input type="hidden" name="link" value="${link}">
<button class="main">Sign in</button>
</form>`,
  );
}

/** For a link that is worth nothing, or an address that tried too many. */
export function signInFailedPage(reason: 'not_found' | 'rate_limited'): string {
  return reason === 'rate_limited'
    ? page('Wait a little', html`<p>Too many links from here were not valid. Wait 15 minutes, then make a new one.</p>`)
    : page(
        'This link does not work',
        html`<p>It was used already, or is older than 15 minutes. Make a new one:</p>
<p class="card"><code>posthorn owner link</code></p>`,
      );
}

/** For a refusal in the browser. */
export function refusedPage(message: string): string {
  return page('That did not work', html`<p>${message}</p>\n<p><a href="/owner">Go to the start page</a></p>`);
}
