import { z } from 'zod';
import { hashCredential, makeCredential } from '../crypto/credentials.ts';
import {
  approveProposal,
  changeOwnerSettings,
  createGroup,
  createServiceConnection,
  deleteAccount,
  denyProposal,
  disableWebhook,
  liftDenial,
  liftWebhook,
  listConnections,
  listOwnerAgents,
  listOwnerGroups,
  listOwnerProposals,
  listOwnerWebhooks,
  type OwnerSettingsRow,
  ownerSettings,
  renewGroup,
  restoreAgent,
  revokeAgent,
  revokeConnection,
  revokeGroup,
  rotateConnection,
} from '../db/functions.ts';
import { invalidRequest, PosthornError } from '../errors.ts';
import {
  decodeCursor,
  encodeCursor,
  id,
  line,
  PART_AND_UUID_PLACE,
  pageAfter,
  pageLimit,
  paragraph,
  time,
} from './fields.ts';
import { defineOwnerOperation, type OwnerOperation } from './operation.ts';
import { addPush, removePush } from './pushes.ts';
import { SIGN_IN_OPERATIONS } from './sign-in.ts';
import {
  Connection,
  connectionView,
  Group,
  groupView,
  OwnerAgent,
  OwnerWebhook,
  ownerAgentView,
  ownerWebhookView,
  Proposal,
  proposalView,
} from './views.ts';

// What the owner does in the browser, by the same functions of the database as at the command line.

const hours = () => z.int().min(1).max(720).optional().describe('How long, in hours');
const byId = z.strictObject({ id: id() });

const page = { limit: pageLimit(50), after: pageAfter() };
const nextCursor = () => z.string().nullable();

/**
 * One page of a list of the owner.
 *
 * @param kind of the cursor: one given for another list is refused
 * @param list reads rows of the database, current ones first, behind a place
 * @param isCurrent in which part a row stands, as the database saw it
 * @throws PosthornError invalid_cursor
 */
async function readPage<Row extends { id: string }>(
  kind: string,
  { limit, after }: { limit: number; after?: string | undefined },
  list: (place: { limit: number; after: string | undefined; inPast: boolean }) => Promise<Row[]>,
  isCurrent: (row: Row) => boolean,
): Promise<{ rows: Row[]; next_cursor: string | null }> {
  const [part, afterId] = decodeCursor(kind, after, PART_AND_UUID_PLACE)?.split(' ') ?? [];
  const found = await list({ limit: limit + 1, after: afterId, inPast: part === 'past' });
  const rows = found.slice(0, limit);
  const last = found.length > limit ? rows.at(-1)! : undefined;
  return { rows, next_cursor: last ? encodeCursor(kind, `${isCurrent(last) ? 'current' : 'past'} ${last.id}`) : null };
}

const Settings = z.object({
  id: id(),
  label: z.string(),
  automatic_approval: z.boolean(),
  sensitive_content_check: z.boolean(),
  created_at: time(),
});

function settingsView([row]: OwnerSettingsRow[]): z.infer<typeof Settings> {
  return {
    id: row!.id,
    label: row!.label,
    automatic_approval: row!.automaticApproval,
    sensitive_content_check: row!.sensitiveContentCheck,
    created_at: row!.createdAt.toISOString(),
  };
}

/** Every operation of /owner/v1. */
export const OWNER_OPERATIONS: OwnerOperation[] = [
  ...SIGN_IN_OPERATIONS,
  defineOwnerOperation({
    name: 'list_owner_proposals',
    title: 'List requests',
    description:
      'What waits for the owner, the longest first, then what was decided in the last 7 days, the latest first.',
    effect: 'reads',
    routes: [{ method: 'GET', path: '/proposals' }],
    input: z.strictObject({ pending: z.enum(['true', 'false']).default('false'), ...page }),
    output: z.object({ proposals: z.array(Proposal), next_cursor: nextCursor() }),
    async run({ pool }, { credential }, { pending, ...asked }) {
      const { rows, next_cursor } = await readPage(
        'owner_proposals',
        asked,
        (place) => listOwnerProposals(pool, { credential, ...place, currentOnly: pending === 'true' }),
        ({ state }) => state === 'pending',
      );
      return { proposals: rows.map(proposalView), next_cursor };
    },
  }),
  defineOwnerOperation({
    name: 'approve_proposal',
    title: 'Approve a request',
    description: 'Say yes, perhaps with another name, purpose or duration; what was held is queued.',
    effect: 'writes',
    routes: [{ method: 'POST', path: '/proposals/:id/approve' }],
    input: byId.extend({ name: line(80).optional(), purpose: paragraph(500).optional(), duration_hours: hours() }),
    output: Proposal,
    async run({ pool }, { credential }, { id: proposalId, name, purpose, duration_hours: durationHours }) {
      return proposalView(await approveProposal(pool, { credential, proposalId, name, purpose, durationHours }));
    },
  }),
  defineOwnerOperation({
    name: 'deny_proposal',
    title: 'Deny a request',
    description: 'Say no; what was held is fenced, and the same agents cannot ask again for 24 hours.',
    effect: 'writes',
    routes: [{ method: 'POST', path: '/proposals/:id/deny' }],
    input: byId,
    output: Proposal,
    async run({ pool }, { credential }, { id: proposalId }) {
      return proposalView(await denyProposal(pool, { credential, proposalId }));
    },
  }),
  defineOwnerOperation({
    name: 'lift_denial',
    title: 'Lift a denial',
    description: 'Let those whom you denied ask again before the 24 hours are over.',
    effect: 'repeatable',
    routes: [{ method: 'POST', path: '/proposals/:id/lift' }],
    input: byId,
    output: Proposal,
    async run({ pool }, { credential }, { id: proposalId }) {
      return proposalView(await liftDenial(pool, { credential, proposalId }));
    },
  }),
  defineOwnerOperation({
    name: 'list_owner_groups',
    title: 'List collaborations',
    description: 'Active collaborations, then those that ended, the latest first.',
    effect: 'reads',
    routes: [{ method: 'GET', path: '/groups' }],
    input: z.strictObject(page),
    output: z.object({ groups: z.array(Group), next_cursor: nextCursor() }),
    async run({ pool }, { credential }, asked) {
      const { rows, next_cursor } = await readPage(
        'owner_groups',
        asked,
        (place) => listOwnerGroups(pool, { credential, ...place }),
        ({ state }) => state === 'active',
      );
      return { groups: rows.map(groupView), next_cursor };
    },
  }),
  defineOwnerOperation({
    name: 'create_group',
    title: 'Make a collaboration',
    description: 'Let 2 to 16 agents talk to each other.',
    effect: 'writes',
    routes: [{ method: 'POST', path: '/groups' }],
    input: z.strictObject({
      name: line(80),
      purpose: paragraph(500),
      project_boundary: line(500).optional(),
      duration_hours: hours(),
      agent_ids: z.array(id()).min(2).max(16),
    }),
    output: Group,
    status: () => 201,
    async run({ pool }, { credential }, input) {
      const { name, purpose, project_boundary: projectBoundary, duration_hours: durationHours, agent_ids } = input;
      const given = { name, purpose, projectBoundary, durationHours, agentIds: agent_ids };
      return groupView(await createGroup(pool, { credential, ...given }));
    },
  }),
  defineOwnerOperation({
    name: 'renew_group',
    title: 'Renew a collaboration',
    description: 'Extend a collaboration; its conversations start anew.',
    effect: 'writes',
    routes: [{ method: 'POST', path: '/groups/:id/renew' }],
    input: byId.extend({ duration_hours: hours() }),
    output: Group,
    async run({ pool }, { credential }, { id: groupId, duration_hours: durationHours }) {
      return groupView(await renewGroup(pool, { credential, groupId, durationHours }));
    },
  }),
  defineOwnerOperation({
    name: 'revoke_group',
    title: 'End a collaboration',
    description: 'End a collaboration for good; mail in it is fenced.',
    effect: 'repeatable',
    routes: [{ method: 'POST', path: '/groups/:id/revoke' }],
    input: byId,
    output: Group,
    async run({ pool }, { credential }, { id: groupId }) {
      return groupView(await revokeGroup(pool, { credential, groupId }));
    },
  }),
  defineOwnerOperation({
    name: 'list_owner_agents',
    title: 'List agents',
    description: 'Agents, then those that were revoked, the latest first.',
    effect: 'reads',
    routes: [{ method: 'GET', path: '/agents' }],
    input: z.strictObject(page),
    output: z.object({ agents: z.array(OwnerAgent), next_cursor: nextCursor() }),
    async run({ pool }, { credential }, asked) {
      const { rows, next_cursor } = await readPage(
        'owner_agents',
        asked,
        (place) => listOwnerAgents(pool, { credential, ...place }),
        ({ revokedAt }) => revokedAt === null,
      );
      return { agents: rows.map(ownerAgentView), next_cursor };
    },
  }),
  defineOwnerOperation({
    name: 'revoke_owner_agent',
    title: 'Revoke an agent',
    description: 'Take an agent out of service: it leaves its groups, its mail is fenced.',
    effect: 'repeatable',
    routes: [{ method: 'POST', path: '/agents/:id/revoke' }],
    input: byId,
    output: OwnerAgent,
    async run({ pool }, { credential }, { id: agentId }) {
      return ownerAgentView(await revokeAgent(pool, { credential, agentId }));
    },
  }),
  defineOwnerOperation({
    name: 'restore_owner_agent',
    title: 'Restore an agent',
    description: 'Lift a revocation; the agent joins no group by itself.',
    effect: 'repeatable',
    routes: [{ method: 'POST', path: '/agents/:id/restore' }],
    input: byId,
    output: OwnerAgent,
    async run({ pool }, { credential }, { id: agentId }) {
      return ownerAgentView(await restoreAgent(pool, { credential, agentId }));
    },
  }),
  defineOwnerOperation({
    name: 'list_connections',
    title: 'List connections',
    description: 'Apps, devices, tokens and sessions, then those that ended, the latest first.',
    effect: 'reads',
    routes: [{ method: 'GET', path: '/connections' }],
    input: z.strictObject(page),
    output: z.object({ connections: z.array(Connection), next_cursor: nextCursor() }),
    async run({ pool }, { credential }, asked) {
      const { rows, next_cursor } = await readPage(
        'owner_connections',
        asked,
        (place) => listConnections(pool, { credential, ...place }),
        ({ endedAt }) => endedAt === null,
      );
      return { connections: rows.map(connectionView), next_cursor };
    },
  }),
  defineOwnerOperation({
    name: 'create_service_token',
    title: 'Make a token',
    description: 'A token for a service or a script. It is shown this once.',
    effect: 'writes',
    routes: [{ method: 'POST', path: '/connections' }],
    input: z.strictObject({
      label: line(64),
      scopes: z
        .array(z.enum(['messaging', 'functions', 'execute']))
        .min(1)
        .max(3),
      expires_at: time().optional(),
    }),
    output: z.object({ connection_id: id(), token: z.string(), expires_at: time().nullable() }),
    status: () => 201,
    async run({ pool }, { credential }, { label, scopes, expires_at }) {
      const { token, hash: credentialHash } = makeCredential('service');
      const expiresAt = expires_at === undefined ? null : new Date(expires_at);
      const row = await createServiceConnection(pool, { credential, label, scopes, credentialHash, expiresAt });
      return { connection_id: row.id, token, expires_at: row.expiresAt?.toISOString() ?? null };
    },
  }),
  defineOwnerOperation({
    name: 'rotate_token',
    title: 'Give a connection a new token',
    description: 'The old token of a service, device or child is dead at once. The new one is shown this once.',
    effect: 'writes',
    routes: [{ method: 'POST', path: '/connections/:id/rotate' }],
    input: byId,
    output: z.object({ connection_id: id(), token: z.string() }),
    async run({ pool }, { credential }, { id: connectionId }) {
      const connection = (await listConnections(pool, { credential })).find((each) => each.id === connectionId);
      if (!connection) throw new PosthornError('not_found');
      const { token } = makeCredential(connection.kind as Parameters<typeof makeCredential>[0]);
      await rotateConnection(pool, { credential, connectionId, credentialHash: hashCredential(token) });
      return { connection_id: connectionId, token };
    },
  }),
  defineOwnerOperation({
    name: 'revoke_connection',
    title: 'Revoke a connection',
    description: 'End a connection and its children for good; its next call is refused and its mail is fenced.',
    effect: 'repeatable',
    routes: [{ method: 'POST', path: '/connections/:id/revoke' }],
    input: byId,
    output: Connection,
    async run({ pool }, { credential }, { id: connectionId }) {
      return connectionView(await revokeConnection(pool, { credential, connectionId }));
    },
  }),
  defineOwnerOperation({
    name: 'list_owner_webhooks',
    title: 'List webhooks',
    description: 'Where agents are woken: hosts and health.',
    effect: 'reads',
    routes: [{ method: 'GET', path: '/webhooks' }],
    input: z.strictObject(page),
    output: z.object({ webhooks: z.array(OwnerWebhook), next_cursor: nextCursor() }),
    async run({ pool }, { credential }, asked) {
      const { rows, next_cursor } = await readPage(
        'owner_webhooks',
        asked,
        ({ limit, after }) => listOwnerWebhooks(pool, { credential, limit, after }),
        () => true,
      );
      return { webhooks: rows.map(ownerWebhookView), next_cursor };
    },
  }),
  defineOwnerOperation({
    name: 'disable_webhook',
    title: 'Disable a webhook',
    description: 'Stop a webhook until you lift it; its agent cannot.',
    effect: 'repeatable',
    routes: [{ method: 'POST', path: '/webhooks/:id/disable' }],
    input: byId,
    output: OwnerWebhook,
    async run({ pool }, { credential }, { id: webhookId }) {
      return ownerWebhookView(await disableWebhook(pool, { credential, webhookId }));
    },
  }),
  defineOwnerOperation({
    name: 'lift_webhook',
    title: 'Lift a webhook',
    description: 'Let a disabled webhook be used again.',
    effect: 'repeatable',
    routes: [{ method: 'POST', path: '/webhooks/:id/lift' }],
    input: byId,
    output: OwnerWebhook,
    async run({ pool }, { credential }, { id: webhookId }) {
      return ownerWebhookView(await liftWebhook(pool, { credential, webhookId }));
    },
  }),
  defineOwnerOperation({
    name: 'owner_settings',
    title: 'Settings',
    description: "The owner's settings.",
    effect: 'reads',
    routes: [{ method: 'GET', path: '/settings' }],
    input: z.strictObject({}),
    output: Settings,
    run: async ({ pool }, { credential }) => settingsView(await ownerSettings(pool, { credential })),
  }),
  defineOwnerOperation({
    name: 'change_owner_settings',
    title: 'Change settings',
    description: 'Changes the settings that are given and answers them all.',
    effect: 'repeatable',
    routes: [{ method: 'PATCH', path: '/settings' }],
    input: z.strictObject({
      automatic_approval: z.boolean().optional(),
      sensitive_content_check: z.boolean().optional(),
    }),
    output: Settings,
    async run({ pool }, { credential }, { automatic_approval, sensitive_content_check }) {
      const given = { automaticApproval: automatic_approval, sensitiveContentCheck: sensitive_content_check };
      return settingsView(await changeOwnerSettings(pool, { credential, ...given }));
    },
  }),
  addPush,
  removePush,
  defineOwnerOperation({
    name: 'delete_account',
    title: 'Delete the account',
    description: "End this account for good. The owner's label, typed, confirms it.",
    effect: 'writes',
    routes: [{ method: 'DELETE', path: '/account' }],
    input: z.strictObject({ confirm: z.string().describe("The owner's label") }),
    output: z.object({ id: id(), deleted: z.literal(true) }),
    async run({ pool }, { credential }, { confirm }) {
      const [owner] = await ownerSettings(pool, { credential });
      if (confirm !== owner!.label) throw invalidRequest(['confirm'], 'confirm must be the label of the owner.');
      await deleteAccount(pool, { credential });
      return { id: owner!.id, deleted: true as const };
    },
  }),
];
