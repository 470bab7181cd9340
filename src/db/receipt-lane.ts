import { PosthornError } from '../errors.ts';
import { type AdvanceReceiptsRow, advanceReceipts } from './functions.ts';
import { createGroupCommit, rowsByItem } from './group-commit.ts';
import type { Queryable } from './pool.ts';

const BATCH_SIZE = 50;
const QUEUE_LIMIT = 5_000;

/** How far a receipt may be moved by its recipient. */
export type ReceiptLevel = 'delivered' | 'admitted' | 'acknowledged' | 'processed';

export interface ReceiptMove {
  credential: Buffer;
  agentId: string | null;
  level: ReceiptLevel;
  messageIds: string[];
}

export interface ReceiptLane {
  /**
   * Moves receipts forward and answers each id in the order given, with a null state where it is not the caller's.
   *
   * @throws PosthornError for what is wrong with the caller, and `unavailable`
   */
  advance(move: ReceiptMove): Promise<AdvanceReceiptsRow[]>;
  depth(): number;
  idle(): Promise<void>;
}

/** Deliveries and acknowledgements tell senders, so they notify, so they commit in groups like sends. */
export function createReceiptLane(db: Queryable): ReceiptLane {
  const lane = createGroupCommit({
    lane: 'receipts',
    batchSize: BATCH_SIZE,
    queueLimit: QUEUE_LIMIT,
    run: (moves: ReceiptMove[]) => runMoves(db, moves),
  });
  return {
    async advance(move) {
      const rows = await lane.submit(move);
      const problem = rows.find((row) => row.problem !== null)?.problem;
      if (problem) throw new PosthornError(problem as PosthornError['code']);
      return rows;
    },
    depth: lane.depth,
    idle: lane.idle,
  };
}

async function runMoves(db: Queryable, moves: ReceiptMove[]): Promise<AdvanceReceiptsRow[][]> {
  const rows = await advanceReceipts(db, {
    credentials: moves.map((move) => move.credential),
    agentIds: moves.map((move) => move.agentId),
    levels: moves.map((move) => move.level),
    items: moves.flatMap((move, index) => move.messageIds.map(() => index + 1)),
    messageIds: moves.flatMap((move) => move.messageIds),
  });
  return rowsByItem(moves, rows);
}
