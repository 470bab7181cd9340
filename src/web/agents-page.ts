import {
  type AgentView,
  type GroupView,
  listOwnerAgents,
  listOwnerGroups,
  listOwnerWebhooks,
  ownerSettings,
  type WebhookView,
} from '../db/functions.ts';
import { act, automaticApproval, durationChoice, graveAct, hiddenToken } from './form-parts.ts';
import { type Html, html } from './html.ts';
import { horn } from './icons.ts';
import { olderPage } from './older-links.ts';
import type { Reader } from './reader.ts';
import { talkPicture } from './talk-picture.ts';
import { count, listInWords, when } from './words.ts';

/** The agents, who may talk to whom, and the collaborations that say so. */
export async function agentsPage(reader: Reader): Promise<Html> {
  const { pool, credential, formToken, now } = reader;
  const present = await listOwnerAgents(pool, { credential, currentOnly: true });
  const revoked = await olderPage(
    reader,
    'revoked_before',
    '/owner/agents#revoked',
    (place) => listOwnerAgents(pool, { credential, inPast: true, ...place }),
    ({ id }) => id,
  );
  const active = await listOwnerGroups(pool, { credential, currentOnly: true });
  const ended = await olderPage(
    reader,
    'before',
    '/owner/agents#ended',
    (place) => listOwnerGroups(pool, { credential, inPast: true, ...place }),
    ({ id }) => id,
  );
  const webhooks = await listOwnerWebhooks(pool, { credential });
  const webhookOf = (agent: AgentView) => webhooks.find(({ agentId }) => agentId === agent.id);
  const [settings] = await ownerSettings(pool, { credential });
  // who was revoked is in no collaboration any more
  const names = new Map(present.map(({ id, label }) => [id, label]));
  return html`${
    present.length === 0
      ? html`<div class="empty" id="nobody">${horn(40)}<p><strong>No agent is connected yet.</strong></p>
<p>An agent is a Claude Code, a Codex, a script: whatever speaks MCP or HTTP.</p>
<a class="button main" href="/owner/connect">Connect an agent</a></div>`
      : html`<section class="card" id="picture" aria-labelledby="picture-title">
<h2 id="picture-title">Who may talk to whom</h2>
${talkPicture(
  present.map(({ id, label, presenceKind }) => ({ id, label, isLive: presenceKind !== null })),
  active,
)}
</section>
<section class="stack" id="agents" aria-labelledby="agents-title">
<div class="row apart"><h2 id="agents-title">Agents</h2><a class="button" href="/owner/connect">Connect an agent</a></div>
<ul class="card flat list">${present.map((agent) => agentEntry(agent, groupsOf(agent, active), webhookOf(agent), formToken, now))}</ul>
</section>`
  }
${
  present.length > 0 &&
  html`<section class="stack" id="groups" aria-labelledby="groups-title">
<h2 id="groups-title">Collaborations</h2>
${
  active.length === 0
    ? html`<p class="lead">No agent may talk to another now. Make a collaboration, or wait until an agent asks for one.</p>`
    : active.map((group) => groupCard(group, names, formToken, now))
}
${newGroup(present, formToken)}
${
  (ended.rows.length > 0 || ended.isContinued) &&
  html`<details id="ended"${ended.isContinued && html` open`}><summary>Ended</summary>
<ul class="card flat list">${ended.rows.map((group) => endedGroup(group, names, formToken, now))}</ul>
${ended.links}</details>`
}
</section>`
}
${automaticApproval('/owner/agents/automatic-approval', formToken, settings!.automaticApproval)}
${
  (revoked.rows.length > 0 || revoked.isContinued) &&
  html`<section class="stack" id="revoked" aria-labelledby="revoked-title">
<h2 id="revoked-title">Revoked agents</h2>
<ul class="card flat list">${revoked.rows.map(
    (agent) => html`<li id="agent-${agent.id}" class="row apart"><div class="entry"><h3>${agent.label}</h3>
<p class="quiet">${originOf(agent)} · revoked ${when(agent.revokedAt!, now)}</p></div>
${act(`/owner/agents/${agent.id}/restore`, formToken, 'Restore')}</li>`,
  )}</ul>
${revoked.links}
</section>`
}`;
}

const groupsOf = (agent: AgentView, groups: GroupView[]) =>
  groups.filter(({ agentIds }) => agentIds.includes(agent.id));

function originOf({ runtime, runtimeVersion, deviceLabel, clientId, installation }: AgentView): string {
  const version = runtimeVersion === null ? '' : ` ${runtimeVersion}`;
  return `${runtime}${version}, through ${deviceLabel}${clientId === null && installation ? ` (${installation})` : ''}`;
}

function presence({ presenceKind }: AgentView): Html {
  if (presenceKind === 'events') return html`<span class="mark good">Live</span>`;
  if (presenceKind === 'webhook') return html`<span class="mark good">Woken by its webhook</span>`;
  return html`<span class="mark off">Reads when it asks</span>`;
}

function agentEntry(
  agent: AgentView,
  groups: GroupView[],
  webhook: WebhookView | undefined,
  formToken: string,
  now: Date,
): Html {
  return html`<li id="agent-${agent.id}" class="stack tight">
<div class="row apart">
<div class="entry"><h3>${agent.label}</h3>
<p class="quiet">${originOf(agent)} · since ${when(agent.createdAt, now)}</p>
<p class="quiet">${groups.length === 0 ? 'In no collaboration' : `In ${listInWords(groups.map(({ name }) => `“${name}”`))}`}</p></div>
${presence(agent)}
</div>
${webhook && webhookLine(webhook, formToken, now)}
${graveAct({
  action: `/owner/agents/${agent.id}/revoke`,
  formToken,
  ask: 'Revoke',
  consequence: `${agent.label} leaves its collaborations, and mail that waits for it or from it is gone. It can do nothing until you restore it, and then joins nothing by itself.`,
  yes: 'Revoke this agent',
})}
</li>`;
}

function webhookLine(webhook: WebhookView, formToken: string, now: Date): Html {
  const { id, urlHost, status, disabledReason, consecutiveFailures, lastDeliveredAt } = webhook;
  const isActive = status === 'active';
  const fares = isActive
    ? consecutiveFailures === 0
      ? html`<span class="mark good">Works</span>`
      : html`<span class="mark wait">Failed ${count(consecutiveFailures, 'time')} in a row</span>`
    : html`<span class="mark bad">${disabledReason === 'owner' ? 'Stopped by you' : 'Stopped: it failed too often'}</span>`;
  return html`<div class="row apart"><p class="quiet">Webhook at <strong>${urlHost}</strong>${
    lastDeliveredAt ? html`, last reached ${when(lastDeliveredAt, now)}` : ', not reached yet'
  }</p><div class="row">${fares}${
    isActive
      ? act(`/owner/webhooks/${id}/disable`, formToken, 'Stop it')
      : act(`/owner/webhooks/${id}/lift`, formToken, 'Use it again')
  }</div></div>`;
}

function membersOf(group: GroupView, names: Map<string, string>): string {
  return listInWords(group.agentIds.map((id) => names.get(id) ?? 'an agent that is gone'));
}

function groupCard(group: GroupView, names: Map<string, string>, formToken: string, now: Date): Html {
  const { id, name, purpose, projectBoundary, expiresAt } = group;
  return html`<article class="card" id="group-${id}" aria-labelledby="group-${id}-title">
<div class="row apart"><h3 id="group-${id}-title">${name}</h3><span class="mark good">Active · ends ${when(expiresAt, now)}</span></div>
<p>${membersOf(group, names)}</p>
<p class="purpose">${purpose}</p>
${projectBoundary && html`<p class="quiet">Within: ${projectBoundary}</p>`}
<div class="stack tight">
${renewal(group, formToken)}
${graveAct({
  action: `/owner/groups/${id}/revoke`,
  formToken,
  ask: 'End it',
  consequence: 'These agents may not talk in it any more, and mail that waits in it is gone. This is final.',
  yes: 'End this collaboration',
})}
</div>
</article>`;
}

function renewal({ id }: GroupView, formToken: string): Html {
  return html`<details><summary>Renew</summary>
<form class="stack" method="post" action="/owner/groups/${id}/renew">
${hiddenToken(formToken)}
<p>It goes on from its end, and its conversations start anew.</p>
${durationChoice(`renew-${id}`, null, 'As long as before')}
<div class="actions"><button>Renew</button></div>
</form></details>`;
}

function endedGroup(group: GroupView, names: Map<string, string>, formToken: string, now: Date): Html {
  const { id, name, state, expiresAt } = group;
  return html`<li id="group-${id}" class="stack tight"><div class="row apart"><div class="entry"><h3>${name}</h3><p class="quiet">${membersOf(group, names)}</p></div>
${
  state === 'expired'
    ? html`<span class="mark off">Ended ${when(expiresAt, now)}</span>`
    : html`<span class="mark bad">Ended by you</span>`
}</div>${state === 'expired' && renewal(group, formToken)}</li>`;
}

function newGroup(agents: AgentView[], formToken: string): Html {
  if (agents.length < 2) return html`<p class="quiet">A collaboration takes two agents: connect another one.</p>`;
  return html`<details class="opener" id="new-group"><summary>Make a collaboration</summary>
<form class="stack" method="post" action="/owner/groups">
${hiddenToken(formToken)}
<label class="field">Name <input type="text" name="name" maxlength="80" required></label>
<label class="field">Purpose <textarea name="purpose" maxlength="500" rows="3" required></textarea></label>
<label class="field">Within which project <small>(if you want to say so)</small> <input type="text" name="project_boundary" maxlength="500"></label>
<fieldset><legend>Agents, 2 to 16</legend><div class="row">${agents.map(
    ({ id, label }) => html`<label class="choice"><input type="checkbox" name="agent" value="${id}"> ${label}</label>`,
  )}</div></fieldset>
${durationChoice('new-group', 168)}
<div class="actions"><button class="main">Let them talk</button></div>
</form></details>`;
}
