import { expireMessages } from '../src/db/functions.ts';
import { batchTask } from '../src/paced-steps.ts';

/** Small, since a batch holds the mailboxes of its senders and recipients while it runs. */
const BATCH_SIZE = 200;

/** Ends messages past their deadline: the body goes, the state says expired, the sender hears of it. */
export default batchTask((db) => expireMessages(db, { limit: BATCH_SIZE }));
