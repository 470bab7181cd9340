import { z } from 'zod';
import { listGroups, listProposals, proposeCollaboration } from '../db/functions.ts';
import { PosthornError } from '../errors.ts';
import {
  agentId,
  decodeCursor,
  encodeCursor,
  id,
  line,
  pageAfter,
  pageLimit,
  paragraph,
  UUID_PLACE,
} from './fields.ts';
import { type Caller, defineOperation, type Services } from './operation.ts';
import { Group, groupView, Proposal, proposalView } from './views.ts';

// The id is null only where the collaboration was there already and nothing had to be asked.
const answered = z.object({
  ...Proposal.partial().shape,
  id: id().nullable(),
  kind: Proposal.shape.kind,
  state: Proposal.shape.state,
  group_id: Proposal.shape.group_id,
  group: Group.optional(),
  replayed: z.literal(true).optional(),
});

export const propose = defineOperation({
  name: 'propose_collaboration',
  title: 'Propose collaboration',
  description:
    'Ask the owner for a new collaboration (peer_agent_ids, name, purpose), to renew one near its end (kind renew, group_id) or to go on in a ' +
    'conversation that has used its posts (kind continue, conversation_id). Only the owner decides: ask once and do not nag.',
  scope: 'messaging',
  effect: 'repeatable',
  routes: [{ method: 'POST', path: '/proposals' }],
  isTool: true,
  command: 'proposals create',
  input: z.strictObject({
    agent_id: agentId(),
    kind: z.enum(['new', 'renew', 'continue']).default('new'),
    peer_agent_ids: z.array(id()).max(15).default([]),
    name: line(80).optional(),
    purpose: paragraph(500).optional(),
    project_boundary: line(500).optional().describe('What the collaboration may be about'),
    duration_hours: z.int().min(1).max(720).optional(),
    group_id: id().optional(),
    conversation_id: id().optional(),
  }),
  output: answered,
  status: (output) => (output.replayed ? 200 : 201),
  async run(services, caller, input) {
    const [row] = await proposeCollaboration(services.pool, {
      credential: caller.credential,
      agentId: input.agent_id,
      kind: input.kind,
      peerAgentIds: input.peer_agent_ids,
      name: input.name,
      purpose: input.purpose,
      projectBoundary: input.project_boundary,
      durationHours: input.duration_hours,
      groupId: input.group_id,
      conversationId: input.conversation_id,
    });
    const { proposalId, groupId, replayed } = row!;
    const proposal =
      proposalId === null
        ? { id: null, kind: input.kind, state: 'approved' as const, group_id: groupId }
        : await find(services, caller, input.agent_id, proposalId);
    return {
      ...proposal,
      ...(groupId === null ? null : { group: await findGroup(services, caller, input.agent_id, groupId) }),
      ...(replayed ? { replayed } : null),
    };
  },
});

export const list = defineOperation({
  name: 'list_proposals',
  title: 'List proposals',
  description: 'Requests that you are a member of: those that wait for the owner and those decided in the last 7 days.',
  scope: 'messaging',
  effect: 'reads',
  routes: [{ method: 'GET', path: '/proposals' }],
  isTool: false,
  command: 'proposals list',
  input: z.strictObject({ agent_id: agentId(), limit: pageLimit(100), after: pageAfter() }),
  output: z.object({ proposals: z.array(Proposal), next_cursor: z.string().nullable() }),
  async run({ pool }, { credential }, input) {
    const before = decodeCursor('proposals', input.after, UUID_PLACE);
    const rows = await listProposals(pool, { credential, agentId: input.agent_id, before, limit: input.limit + 1 });
    const proposals = rows.slice(0, input.limit).map(proposalView);
    const next = rows.length > input.limit ? encodeCursor('proposals', proposals.at(-1)!.id) : null;
    return { proposals, next_cursor: next };
  },
});

export const proposalStatus = defineOperation({
  name: 'proposal_status',
  title: 'Proposal status',
  description: 'Whether the owner has decided a request that you are a member of.',
  scope: 'messaging',
  effect: 'reads',
  routes: [{ method: 'GET', path: '/proposals/:proposal_id' }],
  isTool: true,
  command: 'proposals status',
  input: z.strictObject({ agent_id: agentId(), proposal_id: id() }),
  output: Proposal,
  run: (services, caller, input) => find(services, caller, input.agent_id, input.proposal_id),
});

async function find(
  { pool }: Services,
  { credential }: Caller,
  agent: string | undefined,
  proposalId: string,
): Promise<z.output<typeof Proposal>> {
  const [row] = await listProposals(pool, { credential, agentId: agent, ids: [proposalId] });
  if (!row) throw new PosthornError('not_found');
  return proposalView(row);
}

async function findGroup(
  { pool }: Services,
  { credential }: Caller,
  agent: string | undefined,
  groupId: string,
): Promise<z.output<typeof Group>> {
  const [row] = await listGroups(pool, { credential, agentId: agent, ids: [groupId] });
  if (!row) throw new PosthornError('not_found');
  return groupView(row);
}
