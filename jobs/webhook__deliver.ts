import type { Task } from 'graphile-worker';
import type { DrainWebhook } from '../src/webhooks/drain.ts';

/** Sends what is due at one endpoint. Has workers of its own, since receivers may take their time. */
export default function createTask(drain: DrainWebhook): Task {
  return (payload) => drain((payload as { webhook_id: string }).webhook_id);
}
