import type { ServerResponse } from 'node:http';
import type pg from 'pg';
import { makeId } from '../crypto/ids.ts';
import {
  closeStreams,
  inboxSnapshot,
  openStream,
  type ReadEventsRow,
  readEvents,
  renewStreams,
} from '../db/functions.ts';
import { createGroupCommit } from '../db/group-commit.ts';
import type { Listener } from '../db/listener.ts';
import { type EventFacts, eventContent } from '../event-content.ts';
import { decodeEventId, encodeEventId } from './event-id.ts';

/** Comments keep a stream open through proxies, and with each the lease and the presence are renewed. */
const HEARTBEAT_MS = 15_000;
/** The net below a lost notification. */
const SWEEP_MS = 5_000;
const READ_BATCH = 100;
const READ_QUEUE = 100_000;
const EVENTS_PER_READ = 100;
/** A reader that takes nothing is cut here, in bytes; it comes back with its id and loses nothing. */
const MAX_BUFFERED_BYTES = 262_144;
/** Readers of a pod that stops come back spread over this time, in milliseconds. */
const DRAIN_SPREAD_MS = 5_000;
const MAX_TIMER_MS = 2_147_483_647;

type CloseReason = 'revoked' | 'expired' | 'replaced' | 'slow' | 'draining' | 'suspended';

interface AgentLog {
  agentId: string;
  /** The last event that was written. */
  seq: number;
  isReading: boolean;
  isDirty: boolean;
  unsubscribe: () => void;
}

interface Stream {
  id: string;
  credential: Buffer;
  response: ServerResponse;
  epoch: number;
  expiresAt: Date | null;
  logs: AgentLog[];
  expiry: NodeJS.Timeout | undefined;
}

export interface StreamHub {
  /**
   * Turns a response into an event stream over some of the caller's agents, at the place of `lastEventId` or from a
   * snapshot. Nothing is written to the response if this throws.
   *
   * @param options.agentIds as named by the caller; none for a connection that acts as one
   * @throws refusals of the database, stream_limit among them
   */
  open(options: {
    credential: Buffer;
    agentIds: string[];
    lastEventId: string | undefined;
    response: ServerResponse;
  }): Promise<void>;
  count(): number;
  /** Tells every reader to come back, spread over some seconds, and ends the streams. */
  drain(): Promise<void>;
}

interface ReadItem {
  credential: Buffer;
  streamId: string;
  agentId: string;
  after: number;
}

/**
 * The event streams of a pod. Whatever their number, they hang on the one LISTEN connection; a wake is answered by
 * reading the agent's log after the last event written, in batches over all streams. So a stream can miss a wake but
 * never an event, and each read proves the credential again.
 */
export function createStreamHub({ pool, listener }: { pool: pg.Pool; listener: Listener }): StreamHub {
  const streams = new Map<string, Stream>();
  const podId = makeId();
  const reads = createGroupCommit({
    batchSize: READ_BATCH,
    queueLimit: READ_QUEUE,
    run: (items: ReadItem[]) => runReads(pool, items),
  });
  const heartbeat = setInterval(() => void renewAll(), HEARTBEAT_MS);
  const sweep = setInterval(lookEverywhere, SWEEP_MS);

  function lookEverywhere(): void {
    for (const stream of streams.values()) for (const log of stream.logs) look(stream, log);
  }

  function look(stream: Stream, log: AgentLog): void {
    log.isDirty = true;
    if (!log.isReading) void readOn(stream, log);
  }

  /** Writes what the log holds after the last event written, until there is no more. */
  async function readOn(stream: Stream, log: AgentLog): Promise<void> {
    log.isReading = true;
    try {
      while (log.isDirty && streams.has(stream.id)) {
        log.isDirty = false;
        const rows = await reads.submit({
          credential: stream.credential,
          streamId: stream.id,
          agentId: log.agentId,
          after: log.seq,
        });
        const problem = rows.find((row) => row.problem !== null)?.problem;
        if (problem) return close(stream, reasonOf(problem, stream));
        const events = rows.filter((row) => row.seq !== null);
        for (const event of events) writeEvent(stream, log, event);
        log.isDirty ||= events.length === EVENTS_PER_READ;
      }
    } catch {
      log.isDirty = true; // the database is away: the sweep looks again
    } finally {
      log.isReading = false;
    }
  }

  function writeEvent(stream: Stream, log: AgentLog, row: ReadEventsRow): void {
    log.seq = row.seq!;
    write(stream, row.kind!, eventContent(log.agentId, row as EventFacts), placeOf(stream));
  }

  function write(stream: Stream, event: string, data: object, id?: string): void {
    if (!streams.has(stream.id)) return;
    stream.response.write(`${id === undefined ? '' : `id: ${id}\n`}event: ${event}\ndata: ${JSON.stringify(data)}\n\n`);
    if (stream.response.writableLength > MAX_BUFFERED_BYTES) cut(stream);
  }

  function placeOf(stream: Stream): string {
    const agentIds = stream.logs.map((log) => log.agentId);
    return encodeEventId(
      { epoch: stream.epoch, streamId: stream.id, seqs: stream.logs.map((log) => log.seq) },
      agentIds,
    );
  }

  /** Says why, and how soon to come back, and ends the response. */
  function close(stream: Stream, reason: CloseReason, retryMs = 1_000): void {
    if (!streams.has(stream.id)) return;
    stream.response.write(
      `retry: ${retryMs}\nevent: stream.closing\ndata: ${JSON.stringify({ reason, retry_ms: retryMs })}\n\n`,
    );
    stream.response.end();
    forget(stream);
  }

  /** A reader that takes nothing would not take a farewell either. */
  function cut(stream: Stream): void {
    forget(stream);
    stream.response.destroy();
  }

  function forget(stream: Stream): void {
    if (!streams.delete(stream.id)) return;
    clearTimeout(stream.expiry);
    for (const log of stream.logs) log.unsubscribe();
    closeStreams(pool, { credentials: [stream.credential], streamIds: [stream.id] }).catch(() => {}); // the lease lapses anyway
  }

  async function renewAll(): Promise<void> {
    const all = [...streams.values()];
    const written = all.map(({ response }) => response.writableLength === 0);
    for (const { response } of all) response.write(':\n\n');
    if (all.length === 0) return;
    const rows = await renewStreams(pool, {
      credentials: all.map((stream) => stream.credential),
      streamIds: all.map((stream) => stream.id),
      written,
    }).catch(() => []);
    for (const { streamId, problem } of rows) {
      const stream = streams.get(streamId);
      if (stream && problem) close(stream, reasonOf(problem, stream));
    }
  }

  async function open(options: Parameters<StreamHub['open']>[0]): Promise<void> {
    const { credential, response } = options;
    const agentIds = [...new Set(options.agentIds)].sort();
    const id = makeId();
    const claimed = options.lastEventId === undefined ? null : decodeEventId(options.lastEventId, agentIds);
    const rows = await openStream(pool, { credential, streamId: id, podId, agentIds, succeeds: claimed?.streamId });
    const epoch = rows[0]!.epoch;
    const isResumed =
      claimed !== null &&
      claimed.epoch === epoch &&
      rows.every((row, index) => claimed.seqs[index]! >= row.firstSeq - 1 && claimed.seqs[index]! <= row.lastSeq);
    const stream: Stream = {
      id,
      credential,
      response,
      epoch,
      expiresAt: rows[0]!.expiresAt,
      logs: [],
      expiry: undefined,
    };
    stream.logs = rows.map((row, index) => {
      const log: AgentLog = {
        agentId: row.agentId,
        seq: isResumed ? claimed.seqs[index]! : row.lastSeq,
        isReading: true,
        isDirty: false,
        unsubscribe: () => {},
      };
      log.unsubscribe = listener.subscribe(row.wakeNumber, () => look(stream, log));
      return log;
    });
    if (response.destroyed) {
      streams.set(id, stream);
      return forget(stream);
    }
    streams.set(id, stream);
    response.once('close', () => forget(stream));
    stream.expiry = expireAt(stream);
    response.writeHead(200, STREAM_HEADERS);
    response.write('retry: 1000\n\n');
    if (options.lastEventId !== undefined && !isResumed) write(stream, 'reset', {});
    if (!isResumed) await writeSnapshot(stream);
    // nothing was read so far, so that no event comes before the snapshot
    for (const log of stream.logs) {
      log.isReading = false;
      look(stream, log);
    }
  }

  async function writeSnapshot(stream: Stream): Promise<void> {
    const agents = await Promise.all(
      stream.logs.map(async ({ agentId }) => {
        const [row] = await inboxSnapshot(pool, { credential: stream.credential, agentId });
        return {
          agent_id: agentId,
          pending_count: row!.pendingCount,
          message_ids: row!.messageIds,
          proposal_ids: row!.proposalIds,
        };
      }),
    );
    write(stream, 'snapshot', agents.length === 1 ? agents[0]! : { agents }, placeOf(stream));
  }

  function expireAt(stream: Stream): NodeJS.Timeout | undefined {
    if (stream.expiresAt === null) return undefined;
    const milliseconds = Math.min(MAX_TIMER_MS, Math.max(0, stream.expiresAt.getTime() - Date.now()));
    return setTimeout(() => lookAll(stream), milliseconds);
  }

  /** The database says whether it is over: its clock counts, not ours. */
  function lookAll(stream: Stream): void {
    for (const log of stream.logs) look(stream, log);
    stream.expiry = streams.has(stream.id) ? setTimeout(() => lookAll(stream), 500) : undefined;
  }

  return {
    open,
    count: () => streams.size,
    async drain() {
      clearInterval(heartbeat);
      clearInterval(sweep);
      for (const stream of [...streams.values()])
        close(stream, 'draining', 500 + Math.floor(Math.random() * DRAIN_SPREAD_MS));
      await reads.idle();
    },
  };
}

const STREAM_HEADERS = {
  'Content-Type': 'text/event-stream; charset=utf-8',
  // no-transform and X-Accel-Buffering keep proxies from compressing and collecting
  'Cache-Control': 'no-store, no-transform',
  'X-Accel-Buffering': 'no',
};

function reasonOf(problem: string, stream: Stream): CloseReason {
  if (problem === 'owner_suspended') return 'suspended';
  if (problem === 'replaced') return 'replaced';
  return stream.expiresAt !== null && stream.expiresAt.getTime() <= Date.now() ? 'expired' : 'revoked';
}

async function runReads(pool: pg.Pool, items: ReadItem[]): Promise<ReadEventsRow[][]> {
  const rows = await readEvents(pool, {
    credentials: items.map((item) => item.credential),
    streamIds: items.map((item) => item.streamId),
    agentIds: items.map((item) => item.agentId),
    after: items.map((item) => item.after),
    limit: EVENTS_PER_READ,
  });
  const answers: ReadEventsRow[][] = items.map(() => []);
  for (const row of rows) answers[row.item - 1]!.push(row);
  return answers;
}
