import { z } from 'zod';
import { hashCredential, makeCredential } from '../crypto/credentials.ts';
import {
  agentStatus,
  listAgents,
  listGroups,
  listProposals,
  mintChildConnection,
  registerAgent,
  revokeOwnAgent,
} from '../db/functions.ts';
import { PosthornError } from '../errors.ts';
import { agentId, decodeCursor, encodeCursor, id, line, pageAfter, pageLimit, time, UUID_PLACE } from './fields.ts';
import { defineOperation } from './operation.ts';
import {
  Agent,
  agentView,
  Group,
  groupView,
  Peer,
  Proposal,
  peerView,
  proposalView,
  WebhookSummary,
  webhookSummary,
} from './views.ts';

export const status = defineOperation({
  name: 'status',
  title: 'Messaging status',
  description: 'Whether messaging is enabled, who you are, and how much mail waits for you. Cheap: call it every turn.',
  scope: 'messaging',
  effect: 'reads',
  routes: [{ method: 'GET', path: '/status' }],
  isTool: true,
  command: 'status',
  input: z.strictObject({ agent_id: agentId() }),
  output: z.object({
    enabled: z.boolean(),
    granted: z.boolean(),
    agent_id: id().nullable(),
    live_peers: z.int(),
    discoverable_agents: z.int(),
    pending_messages: z.int(),
    pending_proposals: z.int(),
    presence_kind: z.enum(['events', 'webhook']).nullable(),
    webhook: WebhookSummary.nullable(),
    owner_url: z.string(),
  }),
  async run({ pool, publicUrl }, { credential }, input) {
    const [row] = await agentStatus(pool, { credential, agentId: input.agent_id });
    return {
      enabled: row!.enabled,
      granted: true,
      agent_id: row!.agentId,
      live_peers: row!.livePeers,
      discoverable_agents: row!.discoverableAgents,
      pending_messages: row!.pendingMessages,
      pending_proposals: row!.pendingProposals,
      presence_kind: row!.presenceKind as 'events' | 'webhook' | null,
      webhook: webhookSummary(row!),
      owner_url: `${publicUrl}/owner`,
    };
  },
});

export const register = defineOperation({
  name: 'register_agent',
  title: 'Register agent',
  description:
    'Make or update your own agent: the address that others send to. Call it once; the answer has your agent id.',
  scope: 'messaging',
  effect: 'repeatable',
  routes: [{ method: 'POST', path: '/agents' }],
  isTool: true,
  command: 'messages register',
  input: z.strictObject({
    label: line(64).describe('What people call you'),
    runtime: z
      .string()
      .regex(/^[a-z][a-z0-9_-]{0,39}$/, 'must be a lower-case slug of 1 to 40 characters')
      .describe('Such as claude-code, codex, cursor, opencode, script'),
    runtime_version: line(40).optional(),
    installation: z
      .string()
      .regex(/^[A-Za-z0-9._-]{1,64}$/, 'must have 1 to 64 letters, digits, dots, underscores or hyphens')
      .optional()
      .describe('Which installation on this connection you are; one agent each'),
  }),
  output: Agent,
  async run({ pool }, { credential }, input) {
    const row = await registerAgent(pool, {
      credential,
      // null is refused by name where the kind of connection needs an installation
      installation: input.installation ?? (null as unknown as string),
      label: input.label,
      runtime: input.runtime,
      runtimeVersion: input.runtime_version,
    });
    return agentView(row);
  },
});

/** Of groups and requests beside the first page of agents; `GET /groups` and `GET /proposals` page through them all. */
const MAX_CONTEXT = 200;

export const list = defineOperation({
  name: 'list_agents',
  title: 'List agents',
  description:
    'The other agents of your owner, with the groups you share, and your own groups. You can message an agent that shares an active group.',
  scope: 'messaging',
  effect: 'reads',
  routes: [{ method: 'GET', path: '/agents' }],
  isTool: true,
  command: 'messages list',
  input: z.strictObject({ agent_id: agentId(), limit: pageLimit(100), after: pageAfter() }),
  output: z.object({
    agents: z.array(Peer),
    groups: z.array(Group),
    proposals: z.array(Proposal),
    next_cursor: z.string().nullable(),
  }),
  async run({ pool }, { credential }, input) {
    const after = decodeCursor('agents', input.after, UUID_PLACE);
    const rows = await listAgents(pool, { credential, agentId: input.agent_id, after, limit: input.limit + 1 });
    const agents = rows.slice(0, input.limit).map(peerView);
    const next = rows.length > input.limit ? encodeCursor('agents', agents.at(-1)!.id) : null;
    if (after !== undefined) return { agents, groups: [], proposals: [], next_cursor: next };
    const groups = await listGroups(pool, {
      credential,
      agentId: input.agent_id,
      currentOnly: true,
      limit: MAX_CONTEXT,
    });
    const proposals = await listProposals(pool, { credential, agentId: input.agent_id, limit: MAX_CONTEXT });
    return { agents, groups: groups.map(groupView), proposals: proposals.map(proposalView), next_cursor: next };
  },
});

export const revoke = defineOperation({
  name: 'revoke_agent',
  title: 'Revoke own agent',
  description: 'Take your own agent out of service: it leaves its groups and its waiting mail is fenced.',
  scope: 'messaging',
  effect: 'repeatable',
  routes: [{ method: 'DELETE', path: '/agents/:id' }],
  isTool: false,
  command: 'messages revoke',
  input: z.strictObject({ id: id(), agent_id: agentId() }),
  output: z.object({ id: id(), revoked: z.literal(true) }),
  async run({ pool }, { credential }, input) {
    if (input.agent_id !== undefined && input.agent_id !== input.id) throw new PosthornError('not_found');
    await revokeOwnAgent(pool, { credential, agentId: input.id });
    return { id: input.id, revoked: true as const };
  },
});

export const groups = defineOperation({
  name: 'list_groups',
  title: 'List groups',
  description: 'The groups that you are a member of.',
  scope: 'messaging',
  effect: 'reads',
  routes: [{ method: 'GET', path: '/groups' }],
  isTool: false,
  command: 'messages groups',
  input: z.strictObject({ agent_id: agentId(), limit: pageLimit(100), after: pageAfter() }),
  output: z.object({ groups: z.array(Group), next_cursor: z.string().nullable() }),
  async run({ pool }, { credential }, input) {
    const after = decodeCursor('groups', input.after, UUID_PLACE);
    const rows = await listGroups(pool, { credential, agentId: input.agent_id, after, limit: input.limit + 1 });
    const page = rows.slice(0, input.limit).map(groupView);
    return { groups: page, next_cursor: rows.length > input.limit ? encodeCursor('groups', page.at(-1)!.id) : null };
  },
});

export const mintChild = defineOperation({
  name: 'create_child_connection',
  title: 'Create child connection',
  description: 'A credential that can only message as one agent of this paired device. Shown once.',
  scope: 'messaging',
  effect: 'writes',
  routes: [{ method: 'POST', path: '/connections/child' }],
  isTool: false,
  input: z.strictObject({ agent_id: id(), label: line(64).optional(), expires_at: time().optional() }),
  output: z.object({ connection_id: id(), token: z.string(), agent_id: id(), expires_at: time().nullable() }),
  status: () => 201,
  async run({ pool }, { credential }, input) {
    const { token } = makeCredential('child');
    const row = await mintChildConnection(pool, {
      credential,
      agentId: input.agent_id,
      label: input.label ?? 'child',
      credentialHash: hashCredential(token),
      expiresAt: input.expires_at === undefined ? null : new Date(input.expires_at),
    });
    return {
      connection_id: row.id,
      token,
      agent_id: input.agent_id,
      expires_at: row.expiresAt?.toISOString() ?? null,
    };
  },
});
