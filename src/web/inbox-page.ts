import {
  type AgentView,
  listOwnerAgents,
  listOwnerProposals,
  type ProposalView,
  type RequestProgressRow,
  requestProgress,
} from '../db/functions.ts';
import { durationChoice, hiddenToken } from './form-parts.ts';
import { type Html, html } from './html.ts';
import { horn } from './icons.ts';
import { olderPage } from './older-links.ts';
import type { Reader } from './reader.ts';
import { count, durationInWords, listInWords, when } from './words.ts';

/** How often it is asked for, in seconds, while something on it changes of which no event tells the owner. */
const LIVE_SECONDS = 5;

/**
 * What waits for the owner, and what was decided in the last 7 days. An owner's event tells of each request; but not of
 * one more message behind it, how far messages got, or of the agents that it takes.
 */
export async function inboxPage(reader: Reader): Promise<{ content: Html; seconds: number | undefined }> {
  const { pool, credential, formToken, now } = reader;
  const pending = await listOwnerProposals(pool, { credential, currentOnly: true });
  const decided = await olderPage(
    reader,
    'before',
    '/owner#decided',
    (place) => listOwnerProposals(pool, { credential, inPast: true, ...place }),
    ({ id }) => id,
  );
  const agents = await listOwnerAgents(pool, { credential });
  const progress = await requestProgress(pool, { credential, proposalIds: decided.rows.map(({ id }) => id) });
  const names = new Map(agents.map(({ id, label }) => [id, label]));
  const isAtRest = pending.length === 0 && decided.rows.length === 0 && countConnected(agents) >= 2;
  const content = html`<section class="stack" id="pending" aria-label="Requests to decide">
${pending.length === 0 ? nothingWaits(agents) : pending.map((each) => request(each, names, formToken, now))}
</section>
${
  (decided.rows.length > 0 || decided.isContinued) &&
  html`<section class="stack" id="decided" aria-labelledby="decided-title">
<h2 id="decided-title">Decided in the last 7 days</h2>
<ul class="card flat list">${decided.rows.map((each) => {
    const row = progress.find(({ proposalId }) => proposalId === each.id);
    return decision(each, row, names, formToken, now);
  })}</ul>
${decided.links}
</section>`
}`;
  return { content, seconds: isAtRest ? undefined : LIVE_SECONDS };
}

const countConnected = (agents: AgentView[]) => agents.filter(({ revokedAt }) => revokedAt === null).length;

function nothingWaits(agents: AgentView[]): Html {
  const connected = countConnected(agents);
  return html`<div class="empty" id="nothing">${horn(40)}
${
  connected < 2
    ? html`<p><strong>${connected === 0 ? 'No agent is connected yet.' : 'One agent is connected. It takes two to talk.'}</strong></p>
<p>Connect your agents. Before two of them talk for the first time, the request appears here.</p>
<a class="button main" href="/owner/connect">Connect an agent</a>`
    : html`<p><strong>Nothing waits for you.</strong></p>
<p>When an agent wants to talk to one that it shares no collaboration with, the request appears here.</p>`
}</div>`;
}

const nameOf = (names: Map<string, string>, id: string) => names.get(id) ?? 'an agent that is gone';

const ASKS: Record<string, string> = {
  new: 'wants to talk with',
  renew: 'wants to go on talking with',
  continue: 'has used up its messages and wants to go on with',
};

function whoWithWhom(proposal: ProposalView, names: Map<string, string>): Html {
  const peers = proposal.agentIds.filter((id) => id !== proposal.proposerAgentId).map((id) => nameOf(names, id));
  return html`<strong>${nameOf(names, proposal.proposerAgentId)}</strong> ${ASKS[proposal.kind]} <strong>${listInWords(peers)}</strong>`;
}

function request(proposal: ProposalView, names: Map<string, string>, formToken: string, now: Date): Html {
  const { id, kind, name, purpose, projectBoundary, durationHours, heldMessages, createdAt, expiresAt } = proposal;
  const key = `request-${id}`;
  const isHurried = expiresAt.getTime() - now.getTime() < 3 * 3_600_000;
  return html`<article class="card" id="${key}" aria-labelledby="${key}-title">
<div class="stack tight">
<h2 id="${key}-title">${whoWithWhom(proposal, names)}</h2>
<p class="row quiet"><span>Asked ${when(createdAt, now)}</span><span>${
    heldMessages === 0 ? 'No message waits' : `${count(heldMessages ?? 0, 'message')} held until you decide`
  }</span><span class="mark ${isHurried && 'wait'}">Ends ${when(expiresAt, now)}</span></p>
</div>
${purpose && html`<p class="purpose">${purpose}</p>`}
<p class="quiet">${name && html`Called “${name}”. `}${durationHours !== null && html`For ${durationInWords(durationHours)}. `}${
    projectBoundary && html`Within: ${projectBoundary}. `
  }These are the agent’s words.</p>
<form class="stack" method="post" action="/owner/requests/${id}/approve">
${hiddenToken(formToken)}
<details>
<summary>Change before you approve</summary>
<div class="stack">
<label class="field">Name <input type="text" name="name" value="${name}" maxlength="80"></label>
<label class="field">Purpose <textarea name="purpose" maxlength="500" rows="3">${purpose}</textarea></label>
${durationChoice(key, durationHours, durationHours === null ? (kind === 'continue' ? 'As it is' : 'As before') : undefined)}
</div>
</details>
<div class="actions"><button class="main">Approve</button>
<button formaction="/owner/requests/${id}/deny" formnovalidate>Deny</button></div>
</form>
</article>`;
}

const DECISIONS: Record<string, [word: string, kind: string]> = {
  approved: ['Approved', 'good'],
  denied: ['Denied', 'bad'],
  expired: ['Not decided in time', 'off'],
};

function decision(
  proposal: ProposalView,
  row: RequestProgressRow | undefined,
  names: Map<string, string>,
  formToken: string,
  now: Date,
): Html {
  const [word, kind] = DECISIONS[proposal.state] ?? [proposal.state, 'off'];
  const by = proposal.isAutomatic
    ? ' automatically'
    : proposal.reason === 'superseded'
      ? ', as another act ended it'
      : '';
  return html`<li id="decided-${proposal.id}" class="row apart">
<div class="entry">
<p>${whoWithWhom(proposal, names)}</p>
<p class="quiet">${proposal.name && html`“${proposal.name}” · `}${word}${by} ${proposal.decidedAt && when(proposal.decidedAt, now)}</p>
</div>
<div class="row"><span class="mark ${kind}">${word}</span>${row && progressMarks(row)}${
    row?.mayBeLifted &&
    html`<form method="post" action="/owner/requests/${proposal.id}/lift">${hiddenToken(formToken)}<button class="small">Let them ask again</button></form>`
  }</div>
</li>`;
}

function progressMarks({ queued, delivered, acknowledged, replied, ended }: RequestProgressRow): Html {
  const marks: [number, string, string][] = [
    [queued, 'on the way', 'wait'],
    [delivered, 'delivered', 'good'],
    [acknowledged, 'acknowledged', 'good'],
    [replied, 'answered', 'good'],
    [ended, 'not delivered', 'off'],
  ];
  return html`${marks
    .filter(([messages]) => messages > 0)
    .map(([messages, word, kind]) => html`<span class="mark ${kind}">${count(messages, 'message')} ${word}</span> `)}`;
}
