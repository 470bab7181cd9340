import type { Command } from 'commander';
import { disableWebhook, liftWebhook, listOwnerAgents, listOwnerWebhooks, type WebhookView } from '../db/functions.ts';
import type { Queryable } from '../db/pool.ts';
import { ownerWebhookView } from '../operations/views.ts';
import { checkedId } from './options.ts';
import { answer } from './output.ts';
import { type AsOwner, addOwnerCommand, asOwner } from './person.ts';
import { facts, harmlessLine, list, sayTime } from './text.ts';

// What the person sees and decides of agents' webhooks, and how agents' answers about them read.

export function addWebhooks(owner: Command): void {
  const webhooks = owner
    .command('webhooks')
    .description('Where agents are woken: hosts, health, and a way to stop it.');
  addOwnerCommand(webhooks, 'list', "Every agent's webhook.").action(listAll);
  addOwnerCommand(webhooks, 'disable <id>', 'Stop a webhook until you lift it; its agent cannot.').action(
    (id: string, options: AsOwner) => change(id, options, disableWebhook),
  );
  addOwnerCommand(webhooks, 'lift <id>', 'Let a disabled webhook be used again.').action(
    (id: string, options: AsOwner) => change(id, options, liftWebhook),
  );
}

async function listAll(options: AsOwner): Promise<void> {
  const { rows, labels } = await asOwner(options, async (db, credential) => ({
    rows: await listOwnerWebhooks(db, { credential }),
    labels: new Map((await listOwnerAgents(db, { credential })).map(({ id, label }) => [id, label])),
  }));
  const webhooks = rows.map(ownerWebhookView);
  const blocks = webhooks.map((webhook) => sayOwnerWebhook(webhook, labels.get(webhook.agent_id)));
  answer(options, { webhooks }, list(blocks, 'No agent has a webhook.'));
}

async function change(
  id: string,
  options: AsOwner,
  act: (db: Queryable, p: { credential: Buffer; webhookId: string }) => Promise<WebhookView>,
): Promise<void> {
  const webhookId = checkedId(id);
  const row = await asOwner(options, (db, credential) => act(db, { credential, webhookId }));
  const webhook = ownerWebhookView(row);
  answer(options, webhook, sayOwnerWebhook(webhook));
}

function sayOwnerWebhook(webhook: ReturnType<typeof ownerWebhookView>, agentLabel = webhook.agent_id): string {
  const { id, url_host, events, last_delivered_at } = webhook;
  const delivered = last_delivered_at ? sayTime(last_delivered_at) : 'never';
  const rows = facts({ id, host: url_host, events: events.join(', '), status: sayHealth(webhook), delivered }, '  ');
  return `${harmlessLine(agentLabel)}\n${rows}`;
}

interface HealthSaid {
  status: string;
  disabled_reason?: string | null;
  consecutive_failures: number;
}

function sayHealth({ status, disabled_reason, consecutive_failures }: HealthSaid): string {
  if (status === 'disabled') return disabled_reason === 'owner' ? 'disabled by the owner' : 'disabled: it kept failing';
  return consecutive_failures === 0 ? status : `${status}, failed ${consecutive_failures} times in a row`;
}

export interface WebhookSaid extends HealthSaid {
  url: string;
  events: string[];
  has_auth_header: boolean;
  next_attempt_at: string | null;
  last_delivered_at: string | null;
  secret?: string | null;
}

export function sayWebhook(webhook: WebhookSaid): string {
  const rows = facts({
    url: webhook.url,
    events: webhook.events.join(', '),
    'auth header': webhook.has_auth_header,
    status: sayHealth(webhook),
    'waits until': webhook.next_attempt_at && sayTime(webhook.next_attempt_at),
    delivered: webhook.last_delivered_at ? sayTime(webhook.last_delivered_at) : 'never',
    secret: webhook.secret,
  });
  return webhook.secret ? `${rows}\n\nThe secret is shown only this once.` : rows;
}

export interface DeliverySaid {
  id: string;
  type: string;
  state: string;
  created_at: string;
  next_attempt_at: string | null;
  attempts: { attempted_at: string; milliseconds: number; http_status: number | null; problem: string | null }[];
}

export function sayDelivery(delivery: DeliverySaid): string {
  const { id, type, state, created_at, next_attempt_at, attempts } = delivery;
  const last = attempts.at(-1);
  const rows = facts(
    {
      id,
      created: sayTime(created_at),
      attempts: attempts.length,
      last: last && `${last.http_status ?? last.problem} after ${last.milliseconds} ms, ${sayTime(last.attempted_at)}`,
      next: next_attempt_at && sayTime(next_attempt_at),
    },
    '  ',
  );
  return `${type}: ${state}\n${rows}`;
}

export function sayDeliveries({
  deliveries,
  next_cursor,
}: {
  deliveries: DeliverySaid[];
  next_cursor: string | null;
}): string {
  const more = next_cursor === null ? '' : `\n\nMore: --after ${next_cursor}`;
  return list(deliveries.map(sayDelivery), 'Nothing was delivered yet.') + more;
}
