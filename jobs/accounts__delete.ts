import type { Task } from 'graphile-worker';
import { deleteDeletedAccounts } from '../src/db/functions.ts';
import { MINUTELY_RUN_MS, runPaced } from '../src/paced-steps.ts';

const BATCH_SIZE = 1_000;

/** Removes the rows of deleted accounts, whose keys are gone already. */
export default (async (_payload, { withPgClient, abortSignal: signal }) => {
  await runPaced(
    async () => (await withPgClient((client) => deleteDeletedAccounts(client, { limit: BATCH_SIZE }))) > 0,
    { signal, longestMs: MINUTELY_RUN_MS },
  );
}) satisfies Task;
