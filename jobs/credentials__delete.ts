import type { Task } from 'graphile-worker';
import { deleteExpiredCredentials } from '../src/db/functions.ts';
import { MINUTELY_RUN_MS, runPaced } from '../src/paced-steps.ts';

const BATCH_SIZE = 500;

/** Removes what has ended: codes, tokens, one-time links, requests under way and clients that nobody consented to. */
export default (async (_payload, { withPgClient, abortSignal: signal }) => {
  await runPaced(
    async () => (await withPgClient((client) => deleteExpiredCredentials(client, { limit: BATCH_SIZE }))) > 0,
    { signal, longestMs: MINUTELY_RUN_MS },
  );
}) satisfies Task;
