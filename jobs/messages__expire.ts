import type { Task } from 'graphile-worker';
import { expireMessages } from '../src/db/functions.ts';

/** Small, since a batch holds the mailboxes of its senders and recipients while it runs. */
const BATCH_SIZE = 200;

/** A job must be short; what is left after these is there in the next minute too. */
const MAX_BATCHES = 50;

/** Ends messages past their deadline: the body goes, the state says expired, the sender hears of it. */
export default (async (_payload, { withPgClient }) => {
  for (let batch = 0; batch < MAX_BATCHES; batch++) {
    const ended = await withPgClient((client) => expireMessages(client, { limit: BATCH_SIZE }));
    if (ended === 0) return;
  }
}) satisfies Task;
