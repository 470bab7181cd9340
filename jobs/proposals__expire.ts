import { expireProposals } from '../src/db/functions.ts';
import { batchTask } from '../src/paced-steps.ts';

/** Ends requests past their deadline and what they hold, one owner at a time. */
export default batchTask((db) => expireProposals(db));
