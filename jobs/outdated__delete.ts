import type { Task } from 'graphile-worker';
import { deleteOutdated } from '../src/db/functions.ts';

const TABLES = ['idempotency_keys', 'posts', 'messages', 'events', 'proposals', 'deliveries'];

/** 2 MiB of a table, so that no statement reads or holds much. */
const PAGES = 256;

/** Deletes receipts, idempotency keys, posts, decided requests and deliveries after their 30 days, events after their 7. */
export default (async (_payload, { withPgClient }) => {
  for (const table of TABLES) {
    const deleteFrom = (firstPage: number) =>
      withPgClient((client) => deleteOutdated(client, { table, firstPage, pages: PAGES }));
    for (let page = 0; await deleteFrom(page); page += PAGES);
  }
}) satisfies Task;
