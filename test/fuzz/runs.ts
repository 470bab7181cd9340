import { randomInt } from 'node:crypto';

/** How many times as many cases as in `npm test`; more than that are new ones each time. */
const FACTOR = Number(process.env.POSTHORN_TEST_FUZZ ?? 1);

/** The same cases in each `npm test`, so that what fails there was broken by a change. */
const FIRST_SEED = 20_261_201;
const SEED = Number(process.env.POSTHORN_TEST_SEED ?? (FACTOR > 1 ? randomInt(2 ** 31) : FIRST_SEED));

/** For each property: a failure prints its seed, and the smallest case that fails, which POSTHORN_TEST_SEED repeats. */
export function runs(count: number): { numRuns: number; seed: number } {
  return { numRuns: Math.ceil(count * FACTOR), seed: SEED };
}

/** How long a test may take, in milliseconds. */
export function patience(milliseconds: number): number {
  return milliseconds * Math.max(1, FACTOR);
}
