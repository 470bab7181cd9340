import type pg from 'pg';
import type { Logger } from 'pino';
import type { UnwrapOwnerKeys } from '../crypto/owner-keys.ts';
import { openForPush } from '../crypto/seal.ts';
import type { PushKeys } from '../crypto/server-secrets.ts';
import { claimPushes, type DuePush, recordPush } from '../db/functions.ts';
import { metrics } from '../metrics.ts';
import type { Egress } from '../net/egress.ts';
import { classOf, post } from '../net/post.ts';
import { type PushSubscription, pushRequest } from './push-request.ts';

/** Tells the browsers of an owner how many requests wait; resolves when each has been tried. */
export type SendPushes = (ownerId: string) => Promise<void>;

/**
 * Sends pushes. The database says which browsers are due, and what an answer means. Killed between an answer and its
 * record, the browser is told once more.
 *
 * @param options.loadPushKeys reads the server's key pair; asked until it was there once
 * @param options.contact whom push services may turn to
 */
export function createPushSender(options: {
  pool: pg.Pool;
  egress: Egress;
  unwrap: UnwrapOwnerKeys;
  loadPushKeys: () => Promise<PushKeys>;
  contact: string;
  log: Logger;
}): SendPushes {
  const { pool, egress, unwrap, contact, log } = options;
  let pushKeys: PushKeys | undefined;

  async function sendOne(ownerId: string, due: DuePush): Promise<void> {
    pushKeys ??= await options.loadPushKeys();
    const keys = await unwrap(ownerId, due.ringKeyId, due.wrappedKey);
    const subscription = JSON.parse(openForPush(keys, due.endpointHash, due.sealedSubscription)) as PushSubscription;
    const { waiting, lifeSeconds, subscriptionId, requests } = due;
    const { headers, body } = pushRequest({ subscription, pushKeys, contact, waiting, lifeSeconds });
    const outcome = await post(egress, subscription.endpoint, headers, body);
    metrics.pushes.inc({ outcome: classOf(outcome) });
    const { httpStatus, retryAfterSeconds } = outcome;
    if (isRefusal(httpStatus)) {
      // most often what signs is not what the browser was told: somebody should look
      log.warn({ subscriptionId, status: httpStatus }, 'a push service refused a notification');
    }
    await recordPush(pool, { ownerId, subscriptionId, requests, httpStatus, retryAfterSeconds });
  }

  return async function sendPushes(ownerId) {
    const due = await claimPushes(pool, { ownerId });
    const sent = await Promise.allSettled(due.map((each) => sendOne(ownerId, each)));
    const failed = sent.find(({ status }) => status === 'rejected');
    if (failed) throw (failed as PromiseRejectedResult).reason;
  };
}

/** Neither a browser that is gone nor a service that is busy. */
function isRefusal(status: number | null): boolean {
  return status !== null && status >= 300 && status < 500 && ![404, 408, 410, 425, 429].includes(status);
}
