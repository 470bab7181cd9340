import { setTimeout as wait } from 'node:timers/promises';
import type { Task } from 'graphile-worker';
import type { Queryable } from './db/pool.ts';

/**
 * After each step the worker leaves the database this many times as long to others: without pauses, tidying takes all of
 * a core from whoever sends.
 */
const PAUSES_PER_STEP = 5;

/** A run of a task ends here, in milliseconds, and leaves the rest to the next one: below a minute, so that no two of a minutely task overlap. */
export const RUN_MS = 50_000;

/**
 * Does one step after another until one says that nothing is left, with pauses that keep the whole gentle.
 *
 * @param step one short transaction; answers whether more may be left
 * @param options.signal ends it after the step under way: the worker is stopping
 * @param options.longestMs ends it likewise
 */
export async function runPaced(
  step: () => Promise<boolean>,
  options: { signal: AbortSignal | undefined; longestMs: number },
): Promise<void> {
  const { signal, longestMs } = options;
  const end = performance.now() + longestMs;
  while (performance.now() < end && !signal?.aborted) {
    const started = performance.now();
    if (!(await step())) return;
    await wait((performance.now() - started) * PAUSES_PER_STEP, undefined, { signal }).catch(() => {});
  }
}

/**
 * A task of every minute that does one batch after another.
 *
 * @param batch one short transaction; answers how much it did, 0 when nothing is left
 */
export function batchTask(batch: (db: Queryable) => Promise<number>): Task {
  return async (_payload, { withPgClient, abortSignal: signal }) => {
    await runPaced(async () => (await withPgClient(batch)) > 0, { signal, longestMs: RUN_MS });
  };
}
