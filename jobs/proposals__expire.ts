import type { Task } from 'graphile-worker';
import { expireProposals } from '../src/db/functions.ts';

/** A job must be short; what is left after these is there in the next minute too. */
const MAX_OWNERS = 1_000;

/** Ends requests past their deadline and what they hold, one owner at a time. */
export default (async (_payload, { withPgClient }) => {
  for (let owner = 0; owner < MAX_OWNERS; owner++) {
    const ended = await withPgClient((client) => expireProposals(client));
    if (ended === 0) return;
  }
}) satisfies Task;
