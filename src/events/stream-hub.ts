import type pg from 'pg';
import { makeId } from '../crypto/ids.ts';
import type { CredentialUse } from '../db/credential-use.ts';
import { closeStreams, inboxSnapshots, openStream, renewStreams } from '../db/functions.ts';
import { createGroupCommit } from '../db/group-commit.ts';
import type { Listener } from '../db/listener.ts';
import { PosthornError } from '../errors.ts';
import { metrics } from '../metrics.ts';
import type { InboxSnapshot } from './event-content.ts';
import { decodeEventId, encodePlace, encodeStreamId, nameSet } from './event-id.ts';
import { createFeeds, EVENTS_PER_READ, type Feed, type FeedEvent } from './feeds.ts';

/** Agents of one stream, as many as the database lets it have. */
export const MAX_AGENTS = 100;
/** Leases and presence are renewed this often, and each stream gets a comment, which keeps it open through proxies. */
const RENEW_MS = 15_000;
/** Comments are spread over the interval: ten thousand at once would hold up every event for a tenth of a second. */
const BEATS = 15;
/** A stream whose socket took nothing between this many comments is cut: 30 seconds, when its slot is free for others. */
const MISSED_BEATS = 2;
/** Streams in one statement; a pod with more renews them by several. */
const RENEW_BATCH = 1_000;
/** The net below a lost notification, and how often to look while nobody notifies us. */
const SWEEP_MS = 5_000;
const SWEEPS_WHILE_LISTENING = 6;
/** A reader that takes nothing is cut here, in bytes; it comes back with its id and loses nothing. */
const MAX_WAITING_BYTES = 262_144;
const RETRY_MS = 1_000;
/** Readers that must all come back do so spread over this time, in milliseconds. */
const SPREAD_MS = 5_000;
const MAX_TIMER_MS = 2_147_483_647;
const EXPIRY_RETRY_MS = 500;

export type CloseReason = 'revoked' | 'expired' | 'replaced' | 'slow' | 'draining' | 'suspended';

/** Where the events of a stream go. */
export interface Outlet {
  begin(): void;
  /**
   * Writes an event of a log.
   *
   * @param text the whole of it, in the format of server-sent events
   */
  write(text: string, agentId: string, kind: string): void;
  /** Says where a stream without a past begins. */
  snapshot(id: string, agents: InboxSnapshot[]): void;
  /** Says that what came before is not known any more. */
  reset(): void;
  /** Says that the stream lives; answers whether its reader took anything since the last time. */
  beat(): boolean;
  /** Bytes that the reader has not taken. */
  readonly waiting: number;
  readonly isGone: boolean;
  onGone(tell: () => void): void;
  /** Resolves when there is room for more, or nobody any more. */
  drained(): Promise<void>;
  /** Says why, and how soon to come back, and ends. */
  end(reason: CloseReason, retryMs: number): void;
}

export interface StreamHub {
  /**
   * Opens an event stream over some of the caller's agents, or over the owner's log, at the place of `lastEventId` or from a snapshot. Nothing is
   * written to the outlet if this throws.
   *
   * @param options.agentIds as named by the caller; none for a connection that acts as one, OWNER_LOG for a session
   * @throws refusals of the database, stream_limit among them; `unavailable` while the pod stops
   */
  open(options: {
    credential: Buffer;
    agentIds: string[];
    lastEventId: string | undefined;
    outlet: Outlet;
  }): Promise<void>;
  count(): number;
  /** Tells every reader to come back, spread over some seconds, and ends the streams. */
  drain(): Promise<void>;
}

/** One stream of one reader. */
interface Stream {
  id: string;
  /** What all its event ids begin with. */
  idPart: string;
  outlet: Outlet;
  /** The name of its set of agents. */
  set: string;
  feeds: Feed<Stream>[];
  /** The last event written of each feed. */
  seqs: number[];
  /** In which part of the interval it gets its comment. */
  beat: number;
  missedBeats: number;
  isCatchingUp: boolean;
  /** In milliseconds, by a clock that nobody sets. */
  expiresAt: number | null;
  expiry: NodeJS.Timeout | undefined;
}

interface HubServices {
  pool: pg.Pool;
  listener: Listener;
  credentialUse: CredentialUse;
}

/** The event streams of a pod. Whatever their number, they hang on the one LISTEN connection. */
export function createStreamHub({ pool, listener, credentialUse }: HubServices): StreamHub {
  const streams = new Map<string, Stream>();
  /** Streams that read by themselves until they are where the feeds are. */
  const lagging = new Set<Stream>();
  const podId = makeId();
  const feeds = createFeeds<Stream>({
    pool,
    listener,
    deliver,
    refuse: (stream, problem) => close(stream, reasonOf(problem, stream)),
  });
  const closings = createGroupCommit({
    batchSize: RENEW_BATCH,
    queueLimit: Number.POSITIVE_INFINITY,
    run: async (gone: Stream[]) => {
      await closeStreams(pool, { credentials: gone.map(credentialOf), streamIds: gone.map(({ id }) => id) });
      return gone.map(() => undefined);
    },
  });
  /** Which history of the log this pod reads. */
  let epoch = 0;
  let beats = 0;
  let sweeps = 0;
  let isDraining = false;
  const timers = [
    setInterval(beat, RENEW_MS / BEATS),
    setInterval(() => void renew([...streams.values()]), RENEW_MS),
    setInterval(sweep, SWEEP_MS),
  ];
  const stopListening = listener.subscribeStreams((id) => {
    // some may have been replaced unheard; or the database crashed, which frees their slots for others
    if (id === '*') return void renew([...streams.values()]);
    const stream = streams.get(id);
    if (stream) void renew([stream], 'replaced');
  });

  async function open(options: Parameters<StreamHub['open']>[0]): Promise<void> {
    const { credential, outlet, lastEventId } = options;
    const agentIds = [...new Set(options.agentIds)].sort();
    const id = makeId();
    refuseWhileDraining();
    const claimed = lastEventId === undefined ? null : decodeEventId(lastEventId);
    const rows = await openStream(pool, { credential, streamId: id, podId, agentIds, succeeds: claimed?.streamId });
    credentialUse.note(credential);
    // of the agents that the database answered: a connection that acts as one names none
    const set = nameSet(rows.map(({ agentId }) => agentId));
    const place = claimed?.set === set ? claimed.place : undefined;
    const isResumed =
      place?.epoch === rows[0]!.epoch &&
      place.seqs.length === rows.length &&
      rows.every((row, index) => place.seqs[index]! >= row.firstSeq - 1 && place.seqs[index]! <= row.lastSeq);
    const { expiresInMs } = rows[0]!;
    const stream: Stream = {
      id,
      idPart: encodeStreamId(id),
      outlet,
      set,
      feeds: rows.map((row) => feeds.hold(credential, row.agentId, row.wakeNumber)),
      seqs: isResumed ? place.seqs : [],
      beat: streams.size % BEATS,
      missedBeats: 0,
      isCatchingUp: false,
      expiresAt: expiresInMs === null ? null : performance.now() + expiresInMs,
      expiry: undefined,
    };
    streams.set(id, stream);
    metrics.streams.inc();
    try {
      const snapshot = isResumed ? null : await takeSnapshot(stream);
      refuseWhileDraining();
      meetEpoch(rows[0]!.epoch, stream);
      outlet.onGone(() => forget(stream));
      if (outlet.isGone) return forget(stream);
      outlet.begin();
      if (lastEventId !== undefined && !isResumed) outlet.reset();
      if (snapshot) outlet.snapshot(idOf(stream), snapshot);
      watchExpiry(stream);
    } catch (error) {
      forget(stream);
      throw error;
    }
    void catchUp(stream, isResumed);
  }

  function refuseWhileDraining(): void {
    if (isDraining) throw new PosthornError('unavailable', { retry_after: 1 + Math.floor(Math.random() * 5) });
  }

  /** After a restore the log has another history: streams of the old one come back, and are told so by a reset. */
  function meetEpoch(current: number, newcomer: Stream): void {
    if (current === epoch) return;
    for (const stream of streams.values()) {
      if (stream !== newcomer && stream.seqs.length > 0) close(stream, 'draining', spread());
    }
    epoch = current;
  }

  async function takeSnapshot(stream: Stream): Promise<InboxSnapshot[]> {
    const rows = await inboxSnapshots(pool, {
      credential: credentialOf(stream),
      agentIds: stream.feeds.map(({ agentId }) => agentId),
    });
    stream.seqs = rows.map(({ lastSeq }) => lastSeq);
    return rows.map((row) => ({
      agent_id: row.agentId,
      pending_count: row.pendingCount,
      message_ids: row.messageIds,
      proposal_ids: row.proposalIds,
    }));
  }

  /**
   * Reads the logs for one stream until it is where their feeds are, no faster than it takes them.
   *
   * @param isBehind whether there may be more than the feeds will tell
   */
  async function catchUp(stream: Stream, isBehind: boolean): Promise<void> {
    stream.isCatchingUp = true;
    lagging.add(stream);
    try {
      for (const [index, feed] of stream.feeds.entries()) {
        let isFar = isBehind;
        while (streams.has(stream.id) && (isFar || !feeds.join(feed, stream, stream.seqs[index]!))) {
          const events = await feeds.read(feed, stream.seqs[index]!);
          if (typeof events === 'string') return close(stream, reasonOf(events, stream));
          for (const event of events) deliver(stream, feed, event);
          isFar = events.length === EVENTS_PER_READ;
          await stream.outlet.drained();
        }
      }
      lagging.delete(stream);
    } catch {
      // the database is away: the sweep goes on with it
    } finally {
      stream.isCatchingUp = false;
    }
  }

  function deliver(stream: Stream, feed: Feed<Stream>, event: FeedEvent): void {
    const index = stream.feeds.length === 1 ? 0 : stream.feeds.indexOf(feed);
    if (event.seq <= stream.seqs[index]! || !streams.has(stream.id)) return;
    stream.seqs[index] = event.seq;
    if (stream.feeds.length === 1) {
      event.withPlace ??= `${placeOf(stream)}\n${event.lines}`;
      stream.outlet.write(`id: ${stream.idPart}${event.withPlace}`, feed.agentId, event.kind);
    } else {
      stream.outlet.write(`id: ${idOf(stream)}\n${event.lines}`, feed.agentId, event.kind);
    }
    if (stream.outlet.waiting > MAX_WAITING_BYTES) close(stream, 'slow');
  }

  function idOf(stream: Stream): string {
    return stream.idPart + placeOf(stream);
  }

  function placeOf({ seqs, set }: Stream): string {
    return encodePlace({ epoch, seqs }, set);
  }

  function close(stream: Stream, reason: CloseReason, retryMs = RETRY_MS): void {
    if (!streams.has(stream.id)) return;
    forget(stream, reason);
    stream.outlet.end(reason, retryMs);
  }

  function forget(stream: Stream, reason: CloseReason | 'gone' = 'gone'): void {
    if (!streams.delete(stream.id)) return;
    metrics.streams.dec();
    metrics.streamsEnded.inc({ reason });
    lagging.delete(stream);
    clearTimeout(stream.expiry);
    for (const feed of stream.feeds) feeds.release(feed, stream);
    closings.submit(stream).catch(() => {}); // the lease lapses anyway
  }

  function beat(): void {
    beats = (beats + 1) % BEATS;
    for (const stream of streams.values()) {
      if (stream.beat !== beats || stream.seqs.length === 0) continue;
      stream.missedBeats = stream.outlet.beat() ? 0 : stream.missedBeats + 1;
      if (stream.missedBeats === MISSED_BEATS) close(stream, 'slow');
    }
  }

  /**
   * Renews leases and presence, and ends the streams that must.
   *
   * @param whyGone what to say to one whose row is gone. Unless somebody said that it was replaced, the table may just
   *   be empty after a crash of the database, and the reader should come back.
   */
  async function renew(some: Stream[], whyGone: CloseReason = 'draining'): Promise<void> {
    for (let start = 0; start < some.length; start += RENEW_BATCH) {
      const batch = some.slice(start, start + RENEW_BATCH).filter(({ seqs }) => seqs.length > 0);
      const problems = await renewStreams(pool, {
        credentials: batch.map(credentialOf),
        streamIds: batch.map(({ id }) => id),
        written: batch.map(({ missedBeats }) => missedBeats === 0),
        epoch,
      }).catch(() => []);
      for (const { streamId, problem } of problems) {
        const stream = streams.get(streamId);
        if (!stream) continue;
        if (problem === 'replaced') close(stream, whyGone, whyGone === 'draining' ? spread() : RETRY_MS);
        else if (problem === 'other_epoch') close(stream, 'draining', spread());
        else close(stream, reasonOf(problem, stream));
      }
    }
  }

  function sweep(): void {
    sweeps++;
    if (listener.isListening() && sweeps % SWEEPS_WHILE_LISTENING !== 0) return;
    feeds.lookEverywhere();
    for (const stream of lagging) if (!stream.isCatchingUp) void catchUp(stream, true);
  }

  /** Looks when its credential ends. The database says whether it is over, since its clock counts and not ours. */
  function watchExpiry(stream: Stream): void {
    if (stream.expiresAt === null || !streams.has(stream.id)) return;
    const left = stream.expiresAt - performance.now();
    if (left < -RENEW_MS) return; // it was used meanwhile, which moved its end: the next renewals see that one
    stream.expiry = setTimeout(
      () => {
        if (left <= MAX_TIMER_MS) void renew([stream]);
        watchExpiry(stream);
      },
      Math.min(MAX_TIMER_MS, Math.max(EXPIRY_RETRY_MS, left)),
    );
  }

  return {
    open,
    count: () => streams.size,
    async drain() {
      isDraining = true;
      for (const timer of timers) clearInterval(timer);
      stopListening();
      for (const stream of [...streams.values()]) close(stream, 'draining', spread());
      await Promise.all([feeds.idle(), closings.idle()]);
    },
  };
}

function credentialOf({ feeds }: Stream): Buffer {
  return feeds[0]!.credential;
}

/** When one of many readers should come back, in milliseconds. */
function spread(): number {
  return RETRY_MS + Math.floor(Math.random() * SPREAD_MS);
}

function reasonOf(problem: string, { expiresAt }: Stream): CloseReason {
  if (problem === 'owner_suspended') return 'suspended';
  return expiresAt !== null && expiresAt <= performance.now() ? 'expired' : 'revoked';
}
