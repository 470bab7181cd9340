import type { Task } from 'graphile-worker';
import { expireProposals } from '../src/db/functions.ts';
import { MINUTELY_RUN_MS, runPaced } from '../src/paced-steps.ts';

/** Ends requests past their deadline and what they hold, one owner at a time. */
export default (async (_payload, { withPgClient, abortSignal: signal }) => {
  await runPaced(async () => (await withPgClient((client) => expireProposals(client))) > 0, {
    signal,
    longestMs: MINUTELY_RUN_MS,
  });
}) satisfies Task;
