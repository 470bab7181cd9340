import { listPushSubscriptions } from '../db/functions.ts';
import { PUSH_SCRIPT } from './assets.ts';
import { type Html, html } from './html.ts';
import type { Reader } from './reader.ts';
import { count } from './words.ts';

/**
 * Whether this browser is notified of requests. What it can do and whether it may only a script knows, so there is a
 * sentence for each case, and the script says which is shown.
 */
export async function pushSection({ pool, credential, pushPublicKey }: Reader): Promise<Html> {
  const subscriptions = await listPushSubscriptions(pool, { credential });
  const mine = subscriptions.find(({ isMine }) => isMine);
  const others = subscriptions.length - (mine ? 1 : 0);
  return html`<section class="card push" id="push" aria-labelledby="push-title" data-key="${await pushPublicKey()}" data-known="${mine?.endpointHash.toString('hex') ?? ''}">
<div class="row apart"><h2 id="push-title">Notify this browser</h2><span class="mark good" data-when="on">On</span><span class="mark off" data-when="off failed blocked unsupported insecure">Off</span></div>
<div class="stack" role="status">
<p>A notification appears when a request waits for you, also while no page is open. It says how many wait, and never who asks or what for.</p>
<p data-when="unscripted">This takes JavaScript, which is off in this browser.</p>
<p data-when="insecure">Browsers allow this over https or at localhost only. Open this page at such an address.</p>
<p data-when="unsupported">This browser cannot be notified. On an iPhone or iPad, add this page to the home screen and open it from there.</p>
<p data-when="blocked">Notifications of this site are blocked here. Allow them in the browser’s settings, then load this page again.</p>
<p data-when="failed">That did not work: this browser did not reach the service that notifies it, or this server. Try again.</p>
</div>
<div data-when="off failed on"><button type="button" data-push-switch><span data-when="off failed">Switch notifications on</span><span data-when="on">Switch notifications off</span></button></div>
${others > 0 && html`<p class="quiet">${count(others, 'other browser')} of yours ${others === 1 ? 'is' : 'are'} notified. Whichever is signed out, here or under <a href="/owner/connections">Connections</a>, no longer is.</p>`}
<script type="module" src="${PUSH_SCRIPT.path}"></script>
</section>`;
}
