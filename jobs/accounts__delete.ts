import type { Task } from 'graphile-worker';
import { deleteDeletedAccounts } from '../src/db/functions.ts';

const BATCH_SIZE = 1_000;

/** A job must be short; the rest is there in the next minute too. */
const MAX_BATCHES = 500;

/** Removes the rows of deleted accounts, whose keys are gone already. */
export default (async (_payload, { withPgClient }) => {
  for (let batch = 0; batch < MAX_BATCHES; batch++) {
    const deleted = await withPgClient((client) => deleteDeletedAccounts(client, { limit: BATCH_SIZE }));
    if (deleted === 0) return;
  }
}) satisfies Task;
