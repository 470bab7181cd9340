import type { Task } from 'graphile-worker';
import { deleteOutdated } from '../src/db/functions.ts';

/** Small, so that no statement holds rows for long. */
const BATCH_SIZE = 1_000;

/** A job must be short; the rest is there in the next hour too. */
const MAX_BATCHES = 500;

/** Deletes receipts and idempotency keys after their 30 days, events after their 7. */
export default (async (_payload, { withPgClient }) => {
  for (let batch = 0; batch < MAX_BATCHES; batch++) {
    const deleted = await withPgClient((client) => deleteOutdated(client, { limit: BATCH_SIZE }));
    if (deleted === 0) return;
  }
}) satisfies Task;
