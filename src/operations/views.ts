import { z } from 'zod';
import type {
  AgentStatusRow,
  AgentView,
  ConnectionView,
  GroupView,
  MessageView,
  ProposalView,
  WebhookView,
} from '../db/functions.ts';
import { id, time } from './fields.ts';

// What leaves the doors: snake_case, times in RFC 3339 UTC.

const timeOrNull = () => time().nullable();
const idOrNull = () => id().nullable();

export const Agent = z.object({
  id: id(),
  label: z.string(),
  name: z.string().nullable(),
  runtime: z.string(),
  runtime_version: z.string().nullable(),
  origin_kind: z.string(),
  live: z.boolean(),
  presence_kind: z.enum(['events', 'webhook']).nullable(),
  created_at: time(),
  /** Of an agent of a paired device or a service. */
  device: z.object({ id: id(), label: z.string() }).optional(),
  installation: z.string().optional(),
  /** Of an agent of an OAuth client. */
  client: z.object({ id: z.string(), name: z.string() }).optional(),
});

export const Peer = Agent.extend({ shared_group_ids: z.array(id()) });

/** An agent as its owner sees it, revoked or not. */
export const OwnerAgent = Agent.extend({ revoked_at: timeOrNull() });

/** A connection as its owner sees it; never its credential. */
export const Connection = z.object({
  id: id(),
  kind: z.string(),
  label: z.string(),
  scopes: z.array(z.string()),
  parent_connection_id: idOrNull(),
  agent_id: idOrNull(),
  created_at: time(),
  expires_at: timeOrNull(),
  last_used_at: timeOrNull(),
  revoked_at: timeOrNull(),
  /** The app that the owner consented to, and the host that it says it is from. */
  client: z.object({ id: z.string(), host: z.string() }).nullable(),
});

export const Group = z.object({
  id: id(),
  name: z.string(),
  purpose: z.string(),
  project_boundary: z.string().nullable(),
  generation: z.int(),
  state: z.enum(['active', 'expired', 'revoked']),
  approved_at: time(),
  expires_at: time(),
  agent_ids: z.array(id()),
});

export const Message = z.object({
  id: id(),
  conversation_id: idOrNull(),
  conversation_kind: z.enum(['pair', 'group']),
  post_id: idOrNull(),
  group_id: idOrNull(),
  sender_agent_id: id(),
  recipient_agent_id: id(),
  reply_to: idOrNull(),
  proposal_id: idOrNull(),
  state: z.enum(['held', 'queued', 'delivered', 'acknowledged', 'replied', 'denied', 'expired', 'revoked']),
  created_at: time(),
  expires_at: time(),
  delivered_at: timeOrNull(),
  admitted_at: timeOrNull(),
  acknowledged_at: timeOrNull(),
  processed_at: timeOrNull(),
  replied_at: timeOrNull(),
});

export const Post = z.object({
  post_id: id(),
  conversation_id: idOrNull(),
  conversation_kind: z.enum(['pair', 'group']),
  group_id: idOrNull(),
  sender_agent_id: id(),
  recipient_agent_ids: z.array(id()),
  messages: z.array(Message),
  state: z.literal('queued'),
  created_at: time(),
  expires_at: time(),
});

/** A message or a post in one object without a union, which several MCP clients refuse in a schema. */
export const MessageOrPost = z.object({
  ...Post.partial().shape,
  ...Message.partial().shape,
  conversation_id: Message.shape.conversation_id,
  state: Message.shape.state,
});

export const Proposal = z.object({
  id: id(),
  kind: z.enum(['new', 'renew', 'continue']),
  state: z.enum(['pending', 'approved', 'denied', 'expired']),
  reason: z.string().nullable(),
  group_id: idOrNull(),
  conversation_id: idOrNull(),
  proposer_agent_id: id(),
  agent_ids: z.array(id()),
  name: z.string().nullable(),
  purpose: z.string().nullable(),
  project_boundary: z.string().nullable(),
  duration_hours: z.int().nullable(),
  held_messages: z.int().nullable(),
  created_at: time(),
  expires_at: time(),
  decided_at: timeOrNull(),
});

/** What a webhook may be told of: any event of its agent's log. */
export const WEBHOOK_EVENTS = [
  'messaging.pending',
  'message.state',
  'proposal.decided',
  'call.updated',
  'wakeup.due',
] as const;

/** A webhook in short, for every turn. */
export const WebhookSummary = z.object({
  url_host: z.string(),
  events: z.array(z.string()),
  status: z.enum(['active', 'disabled']),
  consecutive_failures: z.int(),
  last_delivered_at: timeOrNull(),
});

const iso = (value: Date | null): string | null => value?.toISOString() ?? null;

/** A webhook as its owner sees it: the rest of its address may be a secret between the agent and its receiver. */
export const OwnerWebhook = z.object({
  id: id(),
  agent_id: id(),
  url_host: z.string(),
  events: z.array(z.string()),
  status: z.string(),
  disabled_reason: z.string().nullable(),
  consecutive_failures: z.int(),
  last_delivered_at: timeOrNull(),
});

export function ownerWebhookView(row: WebhookView): z.infer<typeof OwnerWebhook> {
  return {
    id: row.id,
    agent_id: row.agentId,
    url_host: row.urlHost,
    events: row.events,
    status: row.status,
    disabled_reason: row.disabledReason,
    consecutive_failures: row.consecutiveFailures,
    last_delivered_at: row.lastDeliveredAt?.toISOString() ?? null,
  };
}

export function agentView(row: AgentView): z.infer<typeof Agent> {
  return {
    id: row.id,
    label: row.label,
    name: null,
    runtime: row.runtime,
    runtime_version: row.runtimeVersion,
    origin_kind: row.originKind,
    live: row.presenceKind !== null,
    presence_kind: row.presenceKind as z.infer<typeof Agent>['presence_kind'],
    created_at: row.createdAt.toISOString(),
    ...(row.clientId === null
      ? { device: { id: row.deviceId, label: row.deviceLabel }, installation: row.installation }
      : { client: { id: row.clientId, name: row.deviceLabel } }),
  };
}

/** Null where the agent has none. */
export function webhookSummary(row: AgentStatusRow): z.infer<typeof WebhookSummary> | null {
  if (row.webhookStatus === null) return null;
  return {
    url_host: row.webhookUrlHost!,
    events: row.webhookEvents!,
    status: row.webhookStatus as 'active' | 'disabled',
    consecutive_failures: row.webhookConsecutiveFailures!,
    last_delivered_at: iso(row.webhookLastDeliveredAt),
  };
}

export function peerView(row: AgentView): z.infer<typeof Peer> {
  return { ...agentView(row), shared_group_ids: row.sharedGroupIds };
}

export function ownerAgentView(row: AgentView): z.infer<typeof OwnerAgent> {
  return { ...agentView(row), revoked_at: row.revokedAt?.toISOString() ?? null };
}

export function connectionView(row: ConnectionView): z.infer<typeof Connection> {
  return {
    id: row.id,
    kind: row.kind,
    label: row.label,
    scopes: row.scopes,
    parent_connection_id: row.parentConnectionId,
    agent_id: row.agentId,
    created_at: row.createdAt.toISOString(),
    expires_at: row.expiresAt?.toISOString() ?? null,
    last_used_at: row.lastUsedAt?.toISOString() ?? null,
    revoked_at: row.revokedAt?.toISOString() ?? null,
    client: row.clientId === null ? null : { id: row.clientId, host: row.clientHost ?? '' },
  };
}

export function groupView(row: GroupView): z.infer<typeof Group> {
  return {
    id: row.id,
    name: row.name,
    purpose: row.purpose,
    project_boundary: row.projectBoundary,
    generation: row.generation,
    state: row.state as z.infer<typeof Group>['state'],
    approved_at: row.approvedAt.toISOString(),
    expires_at: row.expiresAt.toISOString(),
    agent_ids: row.agentIds,
  };
}

export function messageView(row: MessageView): z.infer<typeof Message> {
  return {
    id: row.id,
    conversation_id: row.conversationId,
    conversation_kind: row.conversationKind as 'pair' | 'group',
    post_id: row.postId,
    group_id: row.groupId,
    sender_agent_id: row.senderAgentId,
    recipient_agent_id: row.recipientAgentId,
    reply_to: row.replyTo,
    proposal_id: row.proposalId,
    state: row.state as z.infer<typeof Message>['state'],
    created_at: row.createdAt.toISOString(),
    expires_at: row.expiresAt.toISOString(),
    delivered_at: iso(row.deliveredAt),
    admitted_at: iso(row.admittedAt),
    acknowledged_at: iso(row.acknowledgedAt),
    processed_at: iso(row.processedAt),
    replied_at: iso(row.repliedAt),
  };
}

export function proposalView(row: ProposalView): z.infer<typeof Proposal> {
  return {
    id: row.id,
    kind: row.kind as z.infer<typeof Proposal>['kind'],
    state: row.state as z.infer<typeof Proposal>['state'],
    reason: row.reason,
    group_id: row.groupId,
    conversation_id: row.conversationId,
    proposer_agent_id: row.proposerAgentId,
    agent_ids: row.agentIds,
    name: row.name,
    purpose: row.purpose,
    project_boundary: row.projectBoundary,
    duration_hours: row.durationHours,
    held_messages: row.heldMessages,
    created_at: row.createdAt.toISOString(),
    expires_at: row.expiresAt.toISOString(),
    decided_at: iso(row.decidedAt),
  };
}

/** A post from the receipts of its copies; individual states stay on the copies. */
export function postView(postId: string, copies: z.infer<typeof Message>[]): z.infer<typeof Post> {
  const first = copies[0]!;
  return {
    post_id: postId,
    conversation_id: first.conversation_id,
    conversation_kind: first.conversation_kind,
    group_id: first.group_id,
    sender_agent_id: first.sender_agent_id,
    recipient_agent_ids: copies.map((copy) => copy.recipient_agent_id),
    messages: copies,
    state: 'queued',
    created_at: first.created_at,
    expires_at: first.expires_at,
  };
}
