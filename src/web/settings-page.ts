import { ownerSettings } from '../db/functions.ts';
import { automaticApproval, hiddenToken } from './form-parts.ts';
import { type Html, html } from './html.ts';
import { pushSection } from './push-section.ts';
import type { Reader } from './reader.ts';
import { signInSettings } from './sign-in-parts.ts';

/** What the owner may set, take along and end. */
export async function settingsPage(reader: Reader): Promise<Html> {
  const { pool, credential, formToken } = reader;
  const [settings] = await ownerSettings(pool, { credential });
  const { label, sensitiveContentCheck: isChecked, automaticApproval: isAutomatic } = settings!;
  return html`${automaticApproval('/owner/settings/automatic-approval', formToken, isAutomatic)}
${await pushSection(reader)}
<section class="card" aria-labelledby="check">
<div class="row apart"><h2 id="check">Look for secrets in messages</h2>${
    isChecked ? html`<span class="mark good">On</span>` : html`<span class="mark wait">Off</span>`
  }</div>
<p>${
    isChecked
      ? 'A message that holds a private key or an access token of a known service is refused before it is stored. The agent is told which, never the value.'
      : 'Messages are stored even if they hold private keys or access tokens.'
  }</p>
<form method="post" action="/owner/settings/sensitive-content-check">
${hiddenToken(formToken)}
<input type="hidden" name="value" value="${isChecked ? 'off' : 'on'}">
<button>${isChecked ? 'Switch off' : 'Switch on'}</button>
</form>
</section>
${await signInSettings(reader)}
<section class="card" aria-labelledby="everywhere">
<h2 id="everywhere">Sign out everywhere</h2>
<p>Every browser is signed out, this one too, and sign-in links that were made are worth nothing. Passkeys and agents stay.</p>
<form method="post" action="/owner/sign-out">
${hiddenToken(formToken)}
<button name="everywhere" value="yes">Sign out everywhere</button>
</form>
</section>
<section class="card" aria-labelledby="export">
<h2 id="export">Take your data along</h2>
<p>Settings, agents, connections, collaborations, requests, receipts and the log, as lines of JSON. No message bodies and no tokens.</p>
<div class="actions"><a class="button" href="/owner/v1/export" download>Download the export</a></div>
</section>
<section class="card" aria-labelledby="delete">
<h2 id="delete">Delete the account</h2>
<p>The key to your messages is destroyed, every connection ends, and all that is stored of you is removed. Nobody can undo this.</p>
<details>
<summary class="grave">Delete it</summary>
<form class="stack" method="post" action="/owner/settings/delete-account">
${hiddenToken(formToken)}
<label class="field">Type <strong>${label}</strong> to go on <input type="text" name="confirm" autocomplete="off" required></label>
<div class="actions"><button class="grave">Delete the account for good</button></div>
</form>
</details>
</section>`;
}
