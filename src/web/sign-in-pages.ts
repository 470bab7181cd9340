import { html } from './html.ts';
import { page } from './layout.ts';

/** For whoever comes without a session. */
export function howToSignInPage(isOnTheWay: boolean): string {
  return page(
    'Sign in',
    html`<p>On the machine where Posthorn runs, make a link and open it in this browser:</p>
<p class="card"><code>posthorn owner link</code></p>
<p class="quiet">From the repository: <code>npm run -s posthorn -- owner link</code>. A link works once, within 15 minutes.${
      isOnTheWay ? ' You come back to this page afterwards.' : ''
    }</p>`,
  );
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
