/** An event of an agent's log, with what its kind refers to; null where the kind has no such thing. */
export interface EventFacts {
  kind: string;
  occurredAt: Date;
  subjectId: string;
  state: string | null;
  pendingCount: number | null;
  groupId: string | null;
  conversationId: string | null;
  messageIds: string[] | null;
}

/** What streams and webhooks tell of an event: ids, states and counts, never content. */
export function eventContent(agentId: string, event: EventFacts): Record<string, unknown> {
  return { type: event.kind, agent_id: agentId, occurred_at: event.occurredAt.toISOString(), ...factsOf(event) };
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
    case 'webhook.test':
      return {};
    default:
      return { id: event.subjectId, state: event.state };
  }
}
