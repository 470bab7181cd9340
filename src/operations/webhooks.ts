import { z } from 'zod';
import { openForWebhook, sealForWebhook } from '../crypto/seal.ts';
import {
  type DeliveryView,
  getWebhook,
  listDeliveries,
  planWebhook,
  redeliver,
  removeWebhook,
  setWebhook,
  testWebhook,
} from '../db/functions.ts';
import { invalidRequest } from '../errors.ts';
import { checkOutboundUrl } from '../net/outbound-url.ts';
import { makeWebhookSecret } from '../webhooks/signature.ts';
import { agentId, decodeCursor, encodeCursor, id, line, pageAfter, pageLimit, time, UUID_PLACE } from './fields.ts';
import { type Caller, defineOperation, type Services } from './operation.ts';
import { WEBHOOK_EVENTS, WebhookSummary } from './views.ts';

/** Longer than any address that a receiver needs; several servers refuse more. */
const MAX_URL = 2_048;

const Registration = WebhookSummary.extend({
  id: id(),
  agent_id: id(),
  url: z.string(),
  has_auth_header: z.boolean(),
  disabled_reason: z.enum(['owner', 'delivery_failures']).nullable(),
  next_attempt_at: time().nullable(),
  previous_secret_until: time().nullable(),
  created_at: time(),
  updated_at: time(),
});

const Delivery = z.object({
  id: id(),
  type: z.string(),
  subject_id: id(),
  state: z.enum(['pending', 'delivered', 'failed', 'skipped', 'ended']),
  occurred_at: time(),
  created_at: time(),
  next_attempt_at: time().nullable(),
  ended_at: time().nullable(),
  attempts: z.array(
    z.object({
      attempted_at: time(),
      milliseconds: z.int(),
      http_status: z.int().nullable(),
      problem: z.enum(['address_blocked', 'dns', 'tls', 'timeout', 'connection']).nullable(),
    }),
  ),
});

export const registerWebhook = defineOperation({
  name: 'register_webhook',
  title: 'Register webhook',
  description:
    'Be woken at a public HTTPS URL when you hold no stream open. Registering again replaces the registration and clears its failures. The secret is shown once.',
  scope: 'messaging',
  effect: 'repeatable',
  routes: [{ method: 'PUT', path: '/webhook' }],
  isTool: true,
  command: 'webhook set',
  input: z.strictObject({
    agent_id: agentId(),
    url: line(MAX_URL),
    events: z
      .array(z.enum(WEBHOOK_EVENTS))
      .min(1)
      .max(WEBHOOK_EVENTS.length)
      .default(['messaging.pending', 'proposal.decided']),
    auth_header: z
      .string()
      .regex(/^[ -~]{1,512}$/, 'must have 1 to 512 printable ASCII characters')
      .optional()
      .describe('Sent as Authorization; left out: none'),
    rotate_secret: z.boolean().default(false),
    grace_seconds: z.int().min(0).max(86_400).default(3_600).describe('How long the old secret signs too'),
  }),
  output: Registration.extend({ secret: z.string().nullable() }),
  async run(services, caller, input) {
    const { pool, ownerKeysOf, webhookAllow } = services;
    const { credential } = caller;
    const problem = checkOutboundUrl(input.url, webhookAllow);
    if (problem !== undefined) throw invalidRequest(['url'], `url: ${problem}`);
    const [plan] = await planWebhook(pool, { credential, agentId: input.agent_id });
    const keys = await ownerKeysOf(plan!.ownerId, credential);
    const seal = (field: 'url' | 'secret' | 'auth_header', text: string) =>
      sealForWebhook(keys, { agentId: plan!.agentId, field }, text);
    const secret = makeWebhookSecret();
    const isNew = await setWebhook(pool, {
      credential,
      agentId: input.agent_id,
      urlHost: new URL(input.url).host,
      sealedUrl: seal('url', input.url),
      sealedSecret: seal('secret', secret),
      sealedAuthHeader: input.auth_header === undefined ? null : seal('auth_header', input.auth_header),
      events: [...new Set(input.events)],
      rotateSecret: input.rotate_secret,
      graceSeconds: input.grace_seconds,
    });
    return { ...(await show(services, caller, input.agent_id)), secret: isNew ? secret : null };
  },
});

export const webhookRegistration = defineOperation({
  name: 'webhook_registration',
  title: 'Webhook',
  description: 'Your webhook as it is registered, with its health, without its secrets.',
  scope: 'messaging',
  effect: 'reads',
  routes: [{ method: 'GET', path: '/webhook' }],
  isTool: false,
  command: 'webhook show',
  input: z.strictObject({ agent_id: agentId() }),
  output: Registration,
  run: (services, caller, input) => show(services, caller, input.agent_id),
});

async function show(
  { pool, ownerKeysOf }: Services,
  { credential }: Caller,
  agent: string | undefined,
): Promise<z.output<typeof Registration>> {
  const row = await getWebhook(pool, { credential, agentId: agent });
  const keys = await ownerKeysOf(row.ownerId, credential);
  return {
    id: row.id,
    agent_id: row.agentId,
    url: openForWebhook(keys, { agentId: row.agentId, field: 'url' }, row.sealedUrl),
    url_host: row.urlHost,
    has_auth_header: row.hasAuthHeader,
    events: row.events,
    status: row.status as 'active' | 'disabled',
    disabled_reason: row.disabledReason as 'owner' | 'delivery_failures' | null,
    consecutive_failures: row.consecutiveFailures,
    next_attempt_at: row.nextAttemptAt?.toISOString() ?? null,
    previous_secret_until: row.previousSecretUntil?.toISOString() ?? null,
    last_delivered_at: row.lastDeliveredAt?.toISOString() ?? null,
    created_at: row.createdAt.toISOString(),
    updated_at: row.updatedAt.toISOString(),
  };
}

export const unregisterWebhook = defineOperation({
  name: 'remove_webhook',
  title: 'Remove webhook',
  description: 'Delete your webhook and its deliveries.',
  scope: 'messaging',
  effect: 'repeatable',
  routes: [{ method: 'DELETE', path: '/webhook' }],
  isTool: true,
  command: 'webhook remove',
  input: z.strictObject({ agent_id: agentId() }),
  output: z.object({ removed: z.boolean() }),
  async run({ pool }, { credential }, input) {
    return { removed: await removeWebhook(pool, { credential, agentId: input.agent_id }) };
  },
});

export const testDelivery = defineOperation({
  name: 'test_webhook',
  title: 'Test webhook',
  description: 'Send your webhook one event of type webhook.test. Answers at once; the deliveries tell how it went.',
  scope: 'messaging',
  effect: 'writes',
  routes: [{ method: 'POST', path: '/webhook/test' }],
  isTool: false,
  command: 'webhook test',
  input: z.strictObject({ agent_id: agentId() }),
  output: Delivery,
  status: () => 201,
  async run({ pool }, { credential }, input) {
    return deliveryView(await testWebhook(pool, { credential, agentId: input.agent_id }));
  },
});

export const deliveries = defineOperation({
  name: 'list_webhook_deliveries',
  title: 'Webhook deliveries',
  description: 'What was sent to your webhook in the last 30 days or waits to be, newest first, with each attempt.',
  scope: 'messaging',
  effect: 'reads',
  routes: [{ method: 'GET', path: '/webhook/deliveries' }],
  isTool: false,
  command: 'webhook deliveries',
  input: z.strictObject({ agent_id: agentId(), limit: pageLimit(20), after: pageAfter() }),
  output: z.object({ deliveries: z.array(Delivery), next_cursor: z.string().nullable() }),
  async run({ pool }, { credential }, input) {
    const before = decodeCursor('deliveries', input.after, UUID_PLACE);
    const rows = await listDeliveries(pool, { credential, agentId: input.agent_id, before, limit: input.limit + 1 });
    const page = rows.slice(0, input.limit).map(deliveryView);
    const next = rows.length > input.limit ? encodeCursor('deliveries', page.at(-1)!.id) : null;
    return { deliveries: page, next_cursor: next };
  },
});

export const deliverAgain = defineOperation({
  name: 'redeliver_webhook',
  title: 'Redeliver',
  description: 'Send a delivery to your webhook again, under its old id.',
  scope: 'messaging',
  effect: 'writes',
  routes: [{ method: 'POST', path: '/webhook/deliveries/:delivery_id/redeliver' }],
  isTool: false,
  command: 'webhook redeliver',
  input: z.strictObject({ agent_id: agentId(), delivery_id: id() }),
  output: Delivery,
  async run({ pool }, { credential }, input) {
    return deliveryView(await redeliver(pool, { credential, agentId: input.agent_id, deliveryId: input.delivery_id }));
  },
});

interface StoredAttempt {
  attempted_at: string;
  milliseconds: number;
  http_status: number | null;
  problem: z.output<typeof Delivery>['attempts'][number]['problem'];
}

function deliveryView(row: DeliveryView): z.output<typeof Delivery> {
  return {
    id: row.id,
    type: row.kind,
    subject_id: row.subjectId,
    state: row.state as z.output<typeof Delivery>['state'],
    occurred_at: row.occurredAt.toISOString(),
    created_at: row.createdAt.toISOString(),
    next_attempt_at: row.nextAttemptAt?.toISOString() ?? null,
    ended_at: row.endedAt?.toISOString() ?? null,
    attempts: (row.attempts as StoredAttempt[]).map((attempt) => ({
      ...attempt,
      attempted_at: new Date(attempt.attempted_at).toISOString(),
    })),
  };
}
