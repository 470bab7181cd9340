import { deleteExpiredCredentials } from '../src/db/functions.ts';
import { batchTask } from '../src/paced-steps.ts';

const BATCH_SIZE = 500;

/** Removes what has ended: codes, tokens, one-time links, requests under way and clients that nobody consented to. */
export default batchTask((db) => deleteExpiredCredentials(db, { limit: BATCH_SIZE }));
