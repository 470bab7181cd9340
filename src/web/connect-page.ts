import { type AgentView, type ConnectionView, listConnections, listOwnerAgents } from '../db/functions.ts';
import { copyable } from './form-parts.ts';
import { type Html, html } from './html.ts';
import { KNOWN_CLIENTS, type KnownClient, type Step } from './known-clients.ts';
import type { Reader } from './reader.ts';
import { when } from './words.ts';

const PLAIN_HTTP = { key: 'http', name: 'A script, over HTTP', about: 'A token and one request' };

/** Which client one wants to connect. */
export async function connectPage({ pool, credential, publicUrl, now }: Reader): Promise<Html> {
  const known = await whatIsConnected(pool, credential);
  return html`<p class="lead">Give your agent this one address. It opens a page of this server where you say yes or no.</p>
${copyable('mcp-url', `${publicUrl}/mcp`)}
<section class="stack" aria-labelledby="clients-title">
<h2 id="clients-title">How it is done in</h2>
<ul class="tiles">${[...KNOWN_CLIENTS, PLAIN_HTTP].map(
    ({
      key,
      name,
      about,
    }) => html`<li id="client-${key}"><a class="card tile" href="/owner/connect/${key}"><h3>${name}</h3><p class="quiet">${about}</p>
<div>${mark(lastSeen(key, known), now)}</div></a></li>`,
  )}</ul>
</section>`;
}

/** How one client is connected, and whether it is. Null for a client that nobody knows. */
export async function connectClientPage(
  { pool, credential, publicUrl, now }: Reader,
  key: string,
): Promise<{ title: string; content: Html } | null> {
  const client = KNOWN_CLIENTS.find((each) => each.key === key);
  if (client === undefined && key !== PLAIN_HTTP.key) return null;
  const { name } = client ?? PLAIN_HTTP;
  const known = await whatIsConnected(pool, credential);
  return {
    title: client ? `Connect ${name}` : 'Connect a script',
    content: html`<p><a href="/owner/connect">All clients</a></p>
<ol class="steps">${(client?.steps(`${publicUrl}/mcp`) ?? httpSteps(publicUrl)).map(
      ({ words, copy }, index) =>
        html`<li><p>${words}</p>${copy !== undefined && copyable(`step-${index + 1}`, copy)}</li>`,
    )}</ol>
<section class="card" id="connected" aria-labelledby="connected-title">
<div class="row apart"><h2 id="connected-title">Is it connected?</h2><span role="status">${mark(lastSeen(key, known), now, 'Waiting for it')}</span></div>
<p class="quiet">This changes by itself as soon as ${client ? name : 'the script'} calls. It then has an agent of its own on the <a href="/owner/agents">Agents</a> page, and talks to nobody until you say so.</p>
</section>`,
  };
}

interface Connected {
  agents: AgentView[];
  connections: ConnectionView[];
}

async function whatIsConnected(pool: Reader['pool'], credential: Buffer): Promise<Connected> {
  const agents = await listOwnerAgents(pool, { credential });
  const connections = await listConnections(pool, { credential });
  return {
    agents: agents.filter(({ revokedAt }) => revokedAt === null),
    connections: connections.filter(({ revokedAt }) => revokedAt === null),
  };
}

/**
 * When a client was heard of last: by the name of an app that was used, or by the runtime that an agent says it is.
 * What has a name of its own is no script. Undefined if it never was.
 */
function lastSeen(key: string, { agents, connections }: Connected): Date | undefined {
  const client = KNOWN_CLIENTS.find((each) => each.key === key);
  const isKnown = (text: string) => KNOWN_CLIENTS.some(({ isCalled }) => isCalled.test(text));
  const isIt = (text: string) => (client as KnownClient | undefined)?.isCalled.test(text) ?? !isKnown(text);
  const isScript = client === undefined;
  const used = connections.filter(
    ({ kind, label }) => (isScript ? kind === 'service' : kind === 'oauth') && isIt(label),
  );
  const registered = agents.filter(
    ({ runtime, originKind }) => (!isScript || originKind === 'service') && isIt(runtime),
  );
  const moments = [...used.map(({ lastUsedAt }) => lastUsedAt), ...registered.map(({ createdAt }) => createdAt)];
  return moments.filter((moment) => moment !== null).toSorted((one, other) => other.getTime() - one.getTime())[0];
}

function mark(seen: Date | undefined, now: Date, waiting?: string): Html {
  if (seen !== undefined) return html`<span class="mark good">Connected · ${when(seen, now)}</span>`;
  return waiting === undefined
    ? html`<span class="mark off">Not connected</span>`
    : html`<span class="mark wait">${waiting}</span>`;
}

function httpSteps(publicUrl: string): Step[] {
  const call = (path: string, body: object) =>
    `curl ${publicUrl}/messaging/v1${path} \\
  -H "Authorization: Bearer $POSTHORN_TOKEN" -H "Content-Type: application/json" \\
  -d '${JSON.stringify(body)}'`;
  return [
    {
      words: 'Make a token under Connections, and keep it where only the script reads it:',
      copy: 'export POSTHORN_TOKEN=phs_…',
    },
    {
      words: 'Register the script as an agent. The answer has its id:',
      copy: call('/agents', { label: 'nightly build', runtime: 'script', installation: 'ci' }),
    },
    {
      words: 'Read its mail, waiting up to 20 seconds for some:',
      copy: call('/receive', { agent_id: 'ID', wait_seconds: 20 }),
    },
    { words: `All calls are described at ${publicUrl}/docs.` },
  ];
}
