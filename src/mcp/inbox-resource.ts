import { ProtocolError, ProtocolErrorCode } from '@modelcontextprotocol/server';
import { z } from 'zod';
import { agentStatus, inboxSnapshots } from '../db/functions.ts';
import { PosthornError } from '../errors.ts';
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
  return z.uuid().safeParse(id).success ? id.toLowerCase() : undefined;
}

/**
 * Reads an inbox: what a stream without a past begins with.
 *
 * @throws ProtocolError if there is no such resource; refusals of the database
 */
export async function readInboxResource({ pool }: Services, credential: Buffer, uri: string) {
  const named = agentOf(uri);
  if (named === undefined) throw new ProtocolError(ProtocolErrorCode.InvalidParams, 'There is no such resource.');
  const agentId = named ?? (await agentStatus(pool, { credential, agentId: null }))[0]!.agentId;
  if (agentId === null) throw new PosthornError('agent_required');
  const [inbox] = await inboxSnapshots(pool, { credential, agentIds: [agentId] });
  const text = JSON.stringify({
    agent_id: agentId,
    pending_count: inbox!.pendingCount,
    message_ids: inbox!.messageIds,
    proposal_ids: inbox!.proposalIds,
  });
  return { contents: [{ uri, mimeType: 'application/json', text }] };
}

/** The address under which a subscriber knows the inbox of an agent. */
export function addressOf(agentId: string, uris: string[]): string {
  return uris.find((uri) => agentOf(uri) === agentId) ?? INBOX;
}

/** What of a `subscriptions/listen` request is about inboxes; null where nothing is. */
export function inboxesOf(body: Record<string, unknown>): { uris: string[]; agentIds: string[] } | null {
  const params = body.params as { notifications?: { resourceSubscriptions?: unknown } } | undefined;
  const asked = params?.notifications?.resourceSubscriptions;
  if (body.method !== 'subscriptions/listen' || !Array.isArray(asked)) return null;
  const uris = asked.filter((uri): uri is string => typeof uri === 'string' && agentOf(uri) !== undefined);
  return uris.length === 0 ? null : { uris, agentIds: uris.flatMap((uri) => agentOf(uri) ?? []) };
}

/** The same request, asking for these inboxes alone: the acknowledgement then promises what is kept. */
export function askFor(body: Record<string, unknown>, uris: string[]): Record<string, unknown> {
  const params = body.params as { notifications: object };
  return { ...body, params: { ...params, notifications: { resourceSubscriptions: uris } } };
}
