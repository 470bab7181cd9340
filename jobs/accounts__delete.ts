import { deleteDeletedAccounts } from '../src/db/functions.ts';
import { batchTask } from '../src/paced-steps.ts';

const BATCH_SIZE = 1_000;

/** Removes the rows of deleted accounts, whose keys are gone already. */
export default batchTask((db) => deleteDeletedAccounts(db, { limit: BATCH_SIZE }));
