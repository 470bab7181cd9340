import {
  type ListActsRow,
  listActs,
  listConnections,
  listOpenidAccounts,
  listOwnerAgents,
  listOwnerGroups,
  listOwnerProposals,
  listPasskeys,
  mailHistory,
} from '../db/functions.ts';
import { barChart } from './charts.ts';
import { type Html, html } from './html.ts';
import { olderPage } from './older-links.ts';
import type { Reader } from './reader.ts';
import { listInWords, spanInWords, when } from './words.ts';

const HOURS = 24;

/** What was done and how the mail goes: who, what and when, and never what was said. */
export async function activityPage(reader: Reader): Promise<Html> {
  const { pool, credential, now } = reader;
  const acts = await olderPage(
    reader,
    'before',
    '/owner/activity#log',
    ({ after, limit }) => listActs(pool, { credential, before: after, limit }),
    ({ entryId }) => entryId,
  );
  const names = await namesOfSubjects(reader);
  return html`${!acts.isContinued && (await mailCharts(reader))}
<section class="stack" id="log" aria-labelledby="log-title">
<h2 id="log-title">Log</h2>
<p class="lead">Who did what, and when. Nothing that agents said to each other is in it.</p>
${
  acts.rows.length === 0
    ? html`<div class="empty"><p>There is nothing further back.</p></div>`
    : html`<ul class="card flat list dense">${acts.rows.map((each) => entry(each, names, now))}</ul>`
}
${acts.links}
</section>`;
}

async function mailCharts({ pool, credential }: Reader): Promise<Html> {
  const history = await mailHistory(pool, { credential, hours: HOURS });
  const scale = { from: `${HOURS} hours ago`, to: 'now' };
  return html`<section class="stack" id="mail" aria-labelledby="mail-title">
<h2 id="mail-title">Mail of the last ${HOURS} hours</h2>
<div class="charts">
${barChart({ title: 'Sent in an hour', values: history.map(({ sent }) => sent), inWords: String, ...scale })}
${barChart({ title: 'Waiting, for you or for a reader', values: history.map(({ waiting }) => waiting), inWords: String, ...scale })}
${barChart({
  title: 'Age of the oldest that waits',
  values: history.map(({ oldestSeconds }) => oldestSeconds),
  inWords: (seconds) =>
    seconds === 0 ? 'none' : spanInWords(seconds * 1000).replace('less than a minute', '< 1 minute'),
  ...scale,
})}
</div>
</section>`;
}

/** What ids are called, as far as there still is something to name. */
async function namesOfSubjects({ pool, credential }: Reader): Promise<Map<string, string>> {
  const agents = await listOwnerAgents(pool, { credential });
  const groups = await listOwnerGroups(pool, { credential });
  const connections = await listConnections(pool, { credential });
  const proposals = await listOwnerProposals(pool, { credential });
  const keys = [...(await listPasskeys(pool, { credential })), ...(await listOpenidAccounts(pool, { credential }))];
  const labels = new Map(agents.map(({ id, label }) => [id, label]));
  return new Map([
    ...[...connections, ...keys].map(({ id, label }): [string, string] => [id, label]),
    ...groups.map(({ id, name }): [string, string] => [id, `“${name}”`]),
    ...proposals.map(({ id, agentIds }): [string, string] => [
      id,
      `between ${listInWords(agentIds.map((agentId) => labels.get(agentId) ?? 'another'))}`,
    ]),
    ...labels,
  ]);
}

const ACTS: Record<string, string> = {
  'agent.register': 'Agent registered',
  'agent.update': 'Agent changed what it says of itself',
  'agent.revoke': 'Agent revoked',
  'agent.restore': 'Agent restored',
  'connection.create': 'Connection made',
  'connection.rotate': 'Connection given a new token',
  'connection.revoke': 'Connection ended',
  'group.create': 'Collaboration began',
  'group.renew': 'Collaboration renewed',
  'group.revoke': 'Collaboration ended',
  'link.create': 'Sign-in link made',
  'link.use': 'Signed in by a link',
  'openid.add': 'Account at the OpenID provider connected',
  'openid.remove': 'Account at the OpenID provider disconnected',
  'openid.use': 'Signed in by the OpenID provider',
  'owner.create': 'Account made',
  'owner.settings': 'Settings changed',
  'passkey.add': 'Passkey added',
  'passkey.refuse': 'Passkey refused, perhaps a copy: its counter went back',
  'passkey.remove': 'Passkey removed',
  'passkey.use': 'Signed in by a passkey',
  'proposal.create': 'Request made',
  'proposal.approve': 'Request approved',
  'proposal.deny': 'Request denied',
  'proposal.lift': 'Denial lifted',
  'push.add': 'Notifications switched on in a browser',
  'push.remove': 'Notifications ended in a browser',
};

function entry(
  { entryId, act, connectionId, agentId, subjectId, occurredAt }: ListActsRow,
  names: Map<string, string>,
  now: Date,
): Html {
  // who is acted upon stands as the agent, too
  const actor = agentId === null || agentId === subjectId ? connectionId : agentId;
  const by = actor === null ? 'at the server' : `by ${names.get(actor) ?? 'a connection that is gone'}`;
  const subject = names.get(subjectId);
  return html`<li id="act-${entryId}" class="row apart"><p>${ACTS[act] ?? act}${
    subject !== undefined && html`: <strong>${subject}</strong>`
  } <span class="quiet">${by}</span></p><span class="quiet">${when(occurredAt, now)}</span></li>`;
}
