import { recogniseServer } from './functions.ts';
import type { Queryable } from './pool.ts';

/** Messages fenced in one transaction: few enough for the time that a statement has. */
const BATCH_SIZE = 1_000;

/**
 * Lets the database compare itself with the one that it was. One that was restored elsewhere answers nobody until
 * every body in it is fenced, which is done here, in batches; another process goes on where a killed one stopped.
 *
 * @param db each call commits by itself
 * @returns whether it was fenced just now
 */
export async function fenceIfRestored(db: Queryable): Promise<boolean> {
  for (;;) {
    const answer = await recogniseServer(db, { limit: BATCH_SIZE });
    if (answer !== 'fencing') return answer === 'fenced';
  }
}
