import type { Task } from 'graphile-worker';
import { expireMessages } from '../src/db/functions.ts';
import { MINUTELY_RUN_MS, runPaced } from '../src/paced-steps.ts';

/** Small, since a batch holds the mailboxes of its senders and recipients while it runs. */
const BATCH_SIZE = 200;

/** Ends messages past their deadline: the body goes, the state says expired, the sender hears of it. */
export default (async (_payload, { withPgClient, abortSignal: signal }) => {
  await runPaced(async () => (await withPgClient((client) => expireMessages(client, { limit: BATCH_SIZE }))) > 0, {
    signal,
    longestMs: MINUTELY_RUN_MS,
  });
}) satisfies Task;
