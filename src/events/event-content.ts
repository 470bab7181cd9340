/** What stands in place of an agent for the owner's log. */
export const OWNER_LOG = '00000000-0000-0000-0000-000000000000';

/** Where a log is at the beginning of a stream without a past. */
export interface InboxSnapshot {
  agent_id: string;
  pending_count: number;
  message_ids: string[];
  proposal_ids: string[];
}

/** An event of a log, with what its kind refers to; null where the kind has no such thing. */
export interface EventFacts {
  kind: string;
  occurredAt: Date;
  subjectId: string;
  state: string | null;
  pendingCount: number | null;
  groupId: string | null;
  conversationId: string | null;
  messageIds: string[] | null;
  /** Whom a request is about. */
  agentIds?: string[] | null;
}

/** What streams and webhooks tell of an event: ids, states and counts, never content. */
export function eventContent(agentId: string, event: EventFacts): Record<string, unknown> {
  const whose = agentId === OWNER_LOG ? null : { agent_id: agentId };
  return { type: event.kind, ...whose, occurred_at: event.occurredAt.toISOString(), ...factsOf(event) };
}

/** What a stream tells of where a log is: an owner has requests and no mail. */
export function snapshotContent(snapshot: InboxSnapshot): Partial<InboxSnapshot> {
  return snapshot.agent_id === OWNER_LOG ? { proposal_ids: snapshot.proposal_ids } : snapshot;
}

function factsOf(event: EventFacts): Record<string, unknown> {
  switch (event.kind) {
    case 'messaging.pending':
      return {
        pending_count: event.pendingCount,
        group_id: event.groupId,
        conversation_id: event.conversationId,
        message_ids: event.messageIds,
      };
    case 'message.state':
      return { state: event.state, message_ids: event.messageIds };
    case 'proposal.decided':
      return { proposal_id: event.subjectId, state: event.state, message_ids: event.messageIds };
    case 'proposal.created':
      return { proposal_id: event.subjectId, agent_ids: event.agentIds };
    case 'webhook.test':
      return {};
    default:
      return { id: event.subjectId, state: event.state };
  }
}
