import type { Task } from 'graphile-worker';
import type { SendPushes } from '../src/pushes/send-pushes.ts';

/** Tells one owner's browsers that requests wait. Runs beside deliveries, since push services may take their time. */
export default function createTask(sendPushes: SendPushes): Task {
  return (payload) => sendPushes((payload as { owner_id: string }).owner_id);
}
