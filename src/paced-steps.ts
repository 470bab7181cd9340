import { setTimeout as wait } from 'node:timers/promises';

/**
 * After each step the worker leaves the database this many times as long to others: without pauses, tidying takes all of
 * a core from whoever sends.
 */
const PAUSES_PER_STEP = 5;

/** For tasks of every minute, in milliseconds: what is left over is there for the next run, and no two overlap. */
export const MINUTELY_RUN_MS = 50_000;

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
