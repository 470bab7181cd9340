import type { Task } from 'graphile-worker';
import { deleteOutdated } from '../src/db/functions.ts';
import { runPaced } from '../src/paced-steps.ts';

const TABLES = ['idempotency_keys', 'posts', 'messages', 'events', 'proposals'];

/** 2 MiB of a table: some thousand rows at the most, in some milliseconds. */
const PAGES = 256;

/** Deletes receipts, idempotency keys, posts and decided requests after their 30 days, events after their 7. */
export default (async (_payload, { withPgClient, abortSignal: signal }) => {
  for (const table of TABLES) {
    let firstPage = -PAGES;
    const deleteNext = async () => {
      firstPage += PAGES;
      return await withPgClient((client) => deleteOutdated(client, { table, firstPage, pages: PAGES }));
    };
    // to the end, however long: a run that stopped early would always see the same pages
    await runPaced(deleteNext, { signal, longestMs: Number.POSITIVE_INFINITY });
  }
}) satisfies Task;
