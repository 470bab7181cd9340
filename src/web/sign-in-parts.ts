import { passkeyPlace } from '../crypto/passkeys.ts';
import { listOpenidAccounts, listPasskeys } from '../db/functions.ts';
import { PASSKEYS_SCRIPT } from './assets.ts';
import { graveAct, hiddenToken } from './form-parts.ts';
import { type Html, html } from './html.ts';
import type { Reader } from './reader.ts';
import { when } from './words.ts';

// What pages say and ask of the ways to sign in.

/** The script that speaks with authenticators, and the fields of a form that it fills in. */
export const passkeyScript = (): Html => html`<script type="module" src="${PASSKEYS_SCRIPT.path}"></script>`;
export const passkeyFields = (): Html =>
  html`<input type="hidden" name="passkey" value=""><input type="hidden" name="problem" value="">`;

/** Why there is no passkey: by our own refusal, or by what the browser calls it. */
const PROBLEMS: Record<string, string> = {
  NotAllowedError: 'No passkey was used: it was cancelled, took too long, or there is none here for this server.',
  InvalidStateError: 'That authenticator holds a passkey for this account already.',
  SecurityError:
    'Passkeys work at the address that POSTHORN_PUBLIC_URL names, and this page was opened at another one.',
  NotSupportedError: 'This browser cannot make such a passkey.',
  passkeys_per_owner: 'You have as many passkeys as may be. Remove one first.',
  rate_limited: 'Too many sign-ins begin here. Wait an hour.',
};

export function passkeyProblem(name: string): string {
  return Object.hasOwn(PROBLEMS, name) ? PROBLEMS[name]! : 'That did not work. Load the page again.';
}

/** The part of Settings that says how the owner signs in. */
export async function signInSettings(reader: Reader): Promise<Html> {
  return html`${await passkeys(reader)}
${await openIdAccounts(reader)}`;
}

async function passkeys({ pool, credential, formToken, publicUrl, now }: Reader): Promise<Html> {
  const rows = await listPasskeys(pool, { credential });
  const place = passkeyPlace(publicUrl);
  return html`<section class="card" id="passkeys" aria-labelledby="passkeys-title">
<h2 id="passkeys-title">Passkeys</h2>
<p>Sign in by fingerprint, face, PIN or security key, without a link from the command line.</p>
${
  rows.length > 0 &&
  html`<ul class="list">${rows.map(
    ({ id, label, createdAt, lastUsedAt }) => html`<li id="passkey-${id}" class="stack tight">
<div class="row apart"><div class="entry"><h3>${label}</h3><p class="quiet">Since ${when(createdAt, now)}</p></div>
${lastUsedAt === null ? html`<span class="mark off">Not used yet</span>` : html`<span class="mark good">Used ${when(lastUsedAt, now)}</span>`}</div>
${graveAct({
  action: `/owner/settings/passkeys/${id}/remove`,
  formToken,
  ask: 'Remove',
  consequence:
    'It signs nobody in any more. Browsers that are signed in stay so. Delete it in your authenticator, too, which would go on offering it.',
  yes: 'Remove this passkey',
})}
</li>`,
  )}</ul>`
}
${typeof place === 'string' ? noPasskeysHere(place, publicUrl) : newPasskey(formToken)}
</section>`;
}

function newPasskey(formToken: string): Html {
  return html`<form class="stack for-passkeys" method="post" action="/owner/settings/passkeys" data-passkey="/owner/v1/passkeys/options" data-passkey-new>
${hiddenToken(formToken)}
${passkeyFields()}
<label class="field">What to call it <input type="text" name="label" maxlength="64" placeholder="My laptop" autocomplete="off" required></label>
<div class="actions"><button>Add a passkey</button></div>
</form>
<p class="quiet without-passkeys">This browser offers no passkeys here, or runs no scripts.</p>
${passkeyScript()}`;
}

/** A passkey belongs to a name, so what to do is to give the server one. */
function noPasskeysHere(reason: 'is_address' | 'is_plain', publicUrl: string): Html {
  const { hostname, port } = new URL(publicUrl);
  const isLocal = /^(127\.|\[::1\])/.test(hostname);
  const local = `http://localhost${port && `:${port}`}`;
  return html`<p class="quiet">${
    reason === 'is_address'
      ? html`Passkeys belong to a name, and this server is reached by an address. `
      : html`Browsers make passkeys over HTTPS only. `
  }${
    isLocal
      ? html`Start it with <code>POSTHORN_PUBLIC_URL=${local}</code>, and open <code>${local}/owner</code>.`
      : html`Give it a name with HTTPS in <code>POSTHORN_PUBLIC_URL</code>.`
  }</p>`;
}

async function openIdAccounts({ pool, credential, formToken, openidName, now }: Reader): Promise<Html> {
  const rows = await listOpenidAccounts(pool, { credential });
  if (openidName === undefined && rows.length === 0) return html``;
  return html`<section class="card" id="openid" aria-labelledby="openid-title">
<h2 id="openid-title">${openidName ?? 'OpenID provider'}</h2>
${
  rows.length === 0
    ? html`<p>Connect your account there, and sign in with it from then on.</p>`
    : html`<ul class="list">${rows.map(
        ({ id, label, issuer, createdAt, lastUsedAt }) => html`<li id="openid-${id}" class="stack tight">
<div class="row apart"><div class="entry"><h3>${label}</h3><p class="quiet">At ${new URL(issuer).host}, connected ${when(createdAt, now)}</p></div>
${lastUsedAt === null ? html`<span class="mark off">Not used yet</span>` : html`<span class="mark good">Used ${when(lastUsedAt, now)}</span>`}</div>
${graveAct({
  action: `/owner/settings/openid/${id}/remove`,
  formToken,
  ask: 'Disconnect',
  consequence: 'That account signs nobody in here any more. Browsers that are signed in stay so.',
  yes: 'Disconnect this account',
})}
</li>`,
      )}</ul>`
}
${
  openidName !== undefined &&
  html`<form method="post" action="/owner/settings/openid">
${hiddenToken(formToken)}
<button>Connect ${rows.length === 0 ? 'your' : 'another'} account</button>
</form>`
}
</section>`;
}
