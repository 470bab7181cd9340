import { ProtocolError, ProtocolErrorCode } from '@modelcontextprotocol/server';
import { z } from 'zod';
import { agentStatus, inboxSnapshots } from '../db/functions.ts';
import { PosthornError } from '../errors.ts';
import { OWNER_LOG } from '../events/event-content.ts';
import type { Services } from '../operations/operation.ts';

/** The inbox of the agent that a connection acts as; followed by a slash and an id, of one of several. */
const INBOX = 'posthorn://inbox';
const ABOUT = 'How much mail waits, its ids, and undecided requests; subscribe to hear of changes. Holds no content.';

export const INBOX_RESOURCES = [
  { uri: INBOX, name: 'inbox', title: 'Inbox', description: ABOUT, mimeType: 'application/json' },
];
export const INBOX_TEMPLATES = [
  {
    uriTemplate: `${INBOX}/{agent_id}`,
    name: 'inbox-of-agent',
    title: 'Inbox of an agent',
    description: ABOUT,
    mimeType: 'application/json',
  },
];

/** The agent whose inbox an address is: null for the one that the connection acts as, undefined if it is no inbox. */
function agentOf(uri: string): string | null | undefined {
  if (uri === INBOX) return null;
  const id = uri.startsWith(`${INBOX}/`) ? uri.slice(INBOX.length + 1) : '';
  // the owner's log is no agent's inbox
  return z.uuid().safeParse(id).success && id !== OWNER_LOG ? id.toLowerCase() : undefined;
}

/**
 * Reads an inbox: what a stream without a past begins with.
 *
 * @throws ProtocolError if there is no such resource; refusals of the database
 */
export async function readInboxResource(services: Services, credential: Buffer, uri: string) {
  const named = agentOf(uri);
  if (named === undefined) throw new ProtocolError(ProtocolErrorCode.InvalidParams, 'There is no such resource.');
  const agentId = named ?? (await ownAgent(services, credential));
  const [inbox] = await inboxSnapshots(services.pool, { credential, agentIds: [agentId] });
  const text = JSON.stringify({
    agent_id: agentId,
    pending_count: inbox!.pendingCount,
    message_ids: inbox!.messageIds,
    proposal_ids: inbox!.proposalIds,
  });
  return { contents: [{ uri, mimeType: 'application/json', text }] };
}

async function ownAgent({ pool }: Services, credential: Buffer): Promise<string> {
  const [status] = await agentStatus(pool, { credential, agentId: null });
  if (!status!.enabled) throw new PosthornError('owner_suspended');
  if (status!.agentId === null) throw new PosthornError('agent_required');
  return status!.agentId;
}

/** The addresses under which a subscriber knows the inbox of an agent. */
export function addressesOf(agentId: string, uris: string[]): string[] {
  return uris.filter((uri) => {
    const named = agentOf(uri);
    return named === agentId || named === null; // who has one of its own hears of no other
  });
}

/** The inboxes that a `subscriptions/listen` request names, once each; null of a request that names no resources. */
export function inboxesOf(body: Record<string, unknown>): string[] | null {
  const params = body.params as { notifications?: { resourceSubscriptions?: unknown } } | undefined;
  const asked = params?.notifications?.resourceSubscriptions;
  if (body.method !== 'subscriptions/listen' || !Array.isArray(asked)) return null;
  return [...new Set(asked)].filter((uri) => typeof uri === 'string' && agentOf(uri) !== undefined);
}

/**
 * The agents of these inboxes as a stream takes them: none for the one that the connection acts as.
 *
 * @throws PosthornError agent_required if that one is among others and there is none
 */
export async function agentsOf(services: Services, credential: Buffer, uris: string[]): Promise<string[]> {
  const named = uris.flatMap((uri) => agentOf(uri) ?? []);
  const isAmongOthers = named.length > 0 && uris.includes(INBOX);
  return isAmongOthers ? [...named, await ownAgent(services, credential)] : named;
}

/** The same request, asking for these inboxes alone: the acknowledgement then promises what is kept. */
export function askFor(body: Record<string, unknown>, uris: string[]): Record<string, unknown> {
  const params = body.params as { notifications: object };
  return { ...body, params: { ...params, notifications: { resourceSubscriptions: uris } } };
}
