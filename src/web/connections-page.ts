import { authenticate, type ConnectionView, listConnections } from '../db/functions.ts';
import { act, copyable, graveAct, hiddenToken } from './form-parts.ts';
import { type Html, html } from './html.ts';
import { olderPage } from './older-links.ts';
import type { Reader } from './reader.ts';
import { when } from './words.ts';

/** What may act for the owner: apps, machines, tokens and browsers. */
export async function connectionsPage(reader: Reader): Promise<Html> {
  const { pool, credential, formToken, now } = reader;
  const active = await listConnections(pool, { credential, currentOnly: true });
  const ended = await olderPage(
    reader,
    'before',
    '/owner/connections#ended',
    (place) => listConnections(pool, { credential, inPast: true, ...place }),
    ({ id }) => id,
  );
  const [own] = await authenticate(pool, { credential });
  const section = (key: string, title: string, none: Html | string, kinds: string[]) => {
    const entries = active.filter(({ kind }) => kinds.includes(kind));
    return html`<section class="stack" id="${key}" aria-labelledby="${key}-title">
<h2 id="${key}-title">${title}</h2>
${
  entries.length === 0
    ? html`<p class="lead">${none}</p>`
    : html`<ul class="card flat list">${entries.map((each) => entry(each, own!.connectionId, formToken, now))}</ul>`
}
</section>`;
  };
  return html`${section('apps', 'Apps', html`An app that you say yes to in this browser appears here. <a href="/owner/connect">Connect one</a>.`, ['oauth'])}
${section('devices', 'Machines', html`A machine on which somebody ran <code>posthorn login</code>, and you said yes, appears here.`, ['device', 'child'])}
${section('tokens', 'Tokens', 'A token is for a script or a service that cannot ask you in a browser.', ['service'])}
${newToken(formToken)}
${section('browsers', 'Browsers', '', ['session'])}
${
  (ended.rows.length > 0 || ended.isContinued) &&
  html`<details id="ended"${ended.isContinued && html` open`}><summary>Ended</summary>
<ul class="card flat list">${ended.rows.map(
    (
      each,
    ) => html`<li id="connection-${each.id}" class="row apart"><div class="entry"><h3>${each.label}</h3><p class="quiet">${kindOf(each)}</p></div>
${
  each.revokedAt === null
    ? html`<span class="mark off">Ended ${when(each.expiresAt!, now)}</span>`
    : html`<span class="mark bad">Revoked ${when(each.revokedAt, now)}</span>`
}</li>`,
  )}</ul>
${ended.links}</details>`
}`;
}

const KINDS: Record<string, string> = {
  oauth: 'App',
  device: 'Machine',
  child: 'For one agent of a machine',
  service: 'Token',
  session: 'Browser',
};

function kindOf({ kind, clientHost }: ConnectionView): string {
  return `${KINDS[kind] ?? kind}${clientHost ? ` from ${clientHost}` : ''}`;
}

const SCOPES: Record<string, string> = {
  messaging: 'messages',
  functions: 'calls functions',
  execute: 'answers calls',
  owner: 'these pages',
};

function entry(connection: ConnectionView, ownId: string, formToken: string, now: Date): Html {
  const { id, kind, label, scopes, createdAt, expiresAt, lastUsedAt } = connection;
  const isOwn = id === ownId;
  return html`<li id="connection-${id}" class="stack tight">
<div class="row apart">
<div class="entry"><h3>${label}</h3>
<p class="quiet">${kindOf(connection)} · ${scopes.map((scope) => SCOPES[scope] ?? scope).join(', ')} · since ${when(createdAt, now)}${
    expiresAt && html` · ends ${when(expiresAt, now)}`
  }</p></div>
${
  isOwn
    ? html`<span class="mark good">This browser</span>`
    : lastUsedAt === null
      ? html`<span class="mark off">Not used yet</span>`
      : html`<span class="mark good">Used ${when(lastUsedAt, now)}</span>`
}
</div>
<div class="row">
${
  !isOwn &&
  graveAct({
    action: `/owner/connections/${id}/revoke`,
    formToken,
    ask: kind === 'session' ? 'Sign it out' : 'Revoke',
    consequence:
      kind === 'session'
        ? 'That browser is signed out at once.'
        : 'Its next call is refused and its streams end. What it alone could read is gone. This is final.',
    yes: kind === 'session' ? 'Sign it out' : 'Revoke this connection',
  })
}
${kind === 'service' && act(`/owner/connections/${id}/rotate`, formToken, 'New token for it')}
</div>
</li>`;
}

function newToken(formToken: string): Html {
  return html`<details class="opener" id="new-token"><summary>Make a token</summary>
<form class="stack" method="post" action="/owner/connections">
${hiddenToken(formToken)}
<label class="field">What it is for <input type="text" name="label" maxlength="64" required></label>
<fieldset><legend>What it may do</legend>
<label class="choice"><input type="checkbox" name="scope" value="messaging" checked> Exchange messages</label>
<label class="choice"><input type="checkbox" name="scope" value="functions"> Call functions that your agents offer</label>
<label class="choice"><input type="checkbox" name="scope" value="execute"> Answer calls</label>
</fieldset>
<div class="actions"><button class="main">Make the token</button></div>
</form></details>`;
}

/** A token that was just made. No page shows it again. */
export function newTokenCard(token: string): Html {
  return html`<section class="card" aria-labelledby="token-title">
<h2 id="token-title">Your new token</h2>
<p>Copy it now: it is not shown again, and not stored in a way that could show it.</p>
${copyable('token', token)}
<p><a href="/owner/connect/http">How to use it</a> · <a href="/owner/connections">I have copied it</a></p>
</section>`;
}
