import type { ReadEventsRow } from '../db/functions.ts';

/** What an event says: the same fields that a webhook carries, and never content. */
export function eventData(agentId: string, row: ReadEventsRow): object {
  const common = { type: row.kind, agent_id: agentId, occurred_at: row.occurredAt!.toISOString() };
  switch (row.kind) {
    case 'messaging.pending':
      return {
        ...common,
        pending_count: row.pendingCount,
        group_id: row.groupId,
        conversation_id: row.conversationId,
        message_ids: row.messageIds,
      };
    case 'message.state':
      return { ...common, state: row.state, message_ids: row.messageIds };
    case 'proposal.decided':
      return { ...common, proposal_id: row.subjectId, state: row.state, message_ids: row.messageIds };
    default:
      return { ...common, id: row.subjectId, state: row.state };
  }
}
