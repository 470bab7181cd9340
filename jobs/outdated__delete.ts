import type { Task } from 'graphile-worker';
import { deleteOutdated } from '../src/db/functions.ts';
import { RUN_MS, runPaced } from '../src/paced-steps.ts';

const TABLES = ['idempotency_keys', 'posts', 'messages', 'events', 'proposals', 'deliveries'];

/** 2 MiB of a table: some thousand rows at the most, in some milliseconds. */
const PAGES = 256;

/** Where a run begins; the schedule names nothing, and so begins at the first page of the first table. */
interface Place {
  table?: string;
  firstPage?: number;
}

/**
 * Deletes receipts, idempotency keys, posts, decided requests and deliveries after their 30 days, events after their 7.
 * A run that stops early leaves a job that goes on from there.
 */
export default (async (payload, { addJob, withPgClient, abortSignal: signal }) => {
  const place = payload as Place;
  const end = performance.now() + RUN_MS;
  let firstPage = place.firstPage ?? 0;
  for (const table of TABLES.slice(Math.max(0, TABLES.indexOf(place.table ?? '')))) {
    let isMore = true;
    const deleteNext = async () => {
      isMore = await withPgClient((client) => deleteOutdated(client, { table, firstPage, pages: PAGES }));
      firstPage += PAGES;
      return isMore;
    };
    await runPaced(deleteNext, { signal, longestMs: end - performance.now() });
    if (isMore) {
      await addJob('outdated__delete', { table, firstPage } satisfies Place, { jobKey: 'outdated__delete' });
      return;
    }
    firstPage = 0;
  }
}) satisfies Task;
