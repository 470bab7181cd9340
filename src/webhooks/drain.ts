import type pg from 'pg';
import { makeId } from '../crypto/ids.ts';
import type { UnwrapOwnerKeys } from '../crypto/owner-keys.ts';
import { openForWebhook } from '../crypto/seal.ts';
import { claimDeliveries, type DueDelivery, recordAttempts } from '../db/functions.ts';
import { createGroupCommit, rowsByItem } from '../db/group-commit.ts';
import { type EventFacts, eventContent } from '../events/event-content.ts';
import { metrics } from '../metrics.ts';
import type { Egress } from '../net/egress.ts';
import { classOf, type PostOutcome, post } from '../net/post.ts';
import { deliveryRequest } from './delivery-request.ts';

/** A job must be short; what is left after these has a job of its own. */
const MAX_DELIVERIES = 50;

/** Endpoints in one transaction. */
const BATCH_SIZE = 100;

/** Of each of claims and records, so many transactions at once. */
export const DELIVERY_LANES = 2;
const QUEUE_LIMIT = 100_000;

interface Outcome extends PostOutcome {
  milliseconds: number;
}

interface Claim {
  webhookId: string;
  leaseId: string;
}

interface Attempt extends Outcome, Claim {
  deliveryId: string;
  goesOn: boolean;
}

/** Sends what is due at one endpoint; resolves when nothing is, or another job has it or goes on with it. */
export type DrainWebhook = (webhookId: string) => Promise<void>;

/**
 * Sends deliveries, of any number of endpoints at once and of each one at a time. The database is asked in batches over
 * all of them and never while a receiver is waited for. Killed between an answer and its record, the delivery is sent
 * again under the same id.
 *
 * @param options.closing aborts when the worker stops: attempts under way end, and no further ones begin
 */
export function createDrain(options: {
  pool: pg.Pool;
  egress: Egress;
  unwrap: UnwrapOwnerKeys;
  closing: AbortSignal;
}): DrainWebhook {
  const { pool, egress, unwrap, closing } = options;
  const grouped = { batchSize: BATCH_SIZE, queueLimit: QUEUE_LIMIT };
  const lanes = Array.from({ length: DELIVERY_LANES }, () => ({
    claims: createGroupCommit({ ...grouped, lane: 'claims', run: (items: Claim[]) => runClaims(pool, items) }),
    records: createGroupCommit({ ...grouped, lane: 'records', run: (items: Attempt[]) => runRecords(pool, items) }),
  }));
  // by endpoint, so that no lane waits for another's locks
  const laneOf = (webhookId: string) => lanes[Number.parseInt(webhookId.slice(-4), 16) % DELIVERY_LANES]!;

  async function attempt(due: DueDelivery): Promise<Outcome> {
    const keys = await unwrap(due.ownerId, due.ringKeyId, due.wrappedKey);
    const { agentId } = due;
    const openSecret = (sealed: Buffer) => openForWebhook(keys, { agentId, field: 'secret' }, sealed);
    const url = openForWebhook(keys, { agentId, field: 'url' }, due.sealedUrl);
    const { headers, body } = deliveryRequest({
      webhookId: due.webhookId,
      deliveryId: due.deliveryId,
      content: eventContent(agentId, due satisfies EventFacts),
      secrets: [due.sealedSecret, due.previousSealedSecret].filter((sealed) => sealed !== null).map(openSecret),
      authHeader:
        due.sealedAuthHeader === null
          ? undefined
          : openForWebhook(keys, { agentId, field: 'auth_header' }, due.sealedAuthHeader),
    });
    const startedAt = performance.now();
    const outcome = await post(egress, url, headers, body);
    const milliseconds = Math.round(performance.now() - startedAt);
    metrics.webhookSeconds.observe(milliseconds / 1_000);
    metrics.webhookAttempts.inc({ outcome: classOf(outcome) });
    return { ...outcome, milliseconds };
  }

  return async function drain(webhookId) {
    const { claims, records } = laneOf(webhookId);
    const leaseId = makeId();
    let due = await claims.submit({ webhookId, leaseId });
    for (let sent = 1; due !== null; sent++) {
      const outcome = await attempt(due);
      const goesOn = sent < MAX_DELIVERIES && !closing.aborted;
      due = await records.submit({ webhookId, leaseId, deliveryId: due.deliveryId, goesOn, ...outcome });
    }
  };
}

async function runClaims(pool: pg.Pool, items: Claim[]): Promise<(DueDelivery | null)[]> {
  const rows = await claimDeliveries(pool, {
    webhookIds: items.map(({ webhookId }) => webhookId),
    leaseIds: items.map(({ leaseId }) => leaseId),
  });
  return dueOfEach(items, rows);
}

async function runRecords(pool: pg.Pool, items: Attempt[]): Promise<(DueDelivery | null)[]> {
  const rows = await recordAttempts(pool, {
    webhookIds: items.map((item) => item.webhookId),
    leaseIds: items.map((item) => item.leaseId),
    deliveryIds: items.map((item) => item.deliveryId),
    httpStatuses: items.map((item) => item.httpStatus),
    problems: items.map((item) => item.problem),
    milliseconds: items.map((item) => item.milliseconds),
    retryAfterSeconds: items.map((item) => item.retryAfterSeconds),
    goOn: items.map((item) => item.goesOn),
  });
  return dueOfEach(items, rows);
}

function dueOfEach(items: unknown[], rows: DueDelivery[]): (DueDelivery | null)[] {
  return rowsByItem(items, rows).map(([due]) => due ?? null);
}
