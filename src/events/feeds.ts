import type pg from 'pg';
import { type ReadEventsRow, readEvents } from '../db/functions.ts';
import { createGroupCommit, rowsByItem } from '../db/group-commit.ts';
import type { Listener } from '../db/listener.ts';
import { type EventFacts, eventContent } from './event-content.ts';

const READ_BATCH = 100;
const READ_QUEUE = 100_000;
export const EVENTS_PER_READ = 100;

/** An event of a log, written out once for all that hear it. */
export interface FeedEvent {
  seq: number;
  kind: string;
  /** The lines `event:` and `data:` and the empty one; ASCII, since an event holds ids, states and numbers. */
  lines: string;
  /** The place and the lines, for streams of this one agent; filled in by the first of them. */
  withPlace: string | undefined;
}

/** The end of one agent's log, as one credential may read it: all streams of a connection over it share the reads. */
export interface Feed<Follower> {
  credential: Buffer;
  agentId: string;
  /** The last event that was delivered to the followers. */
  seq: number;
  followers: Set<Follower>;
  isReading: boolean;
  isDirty: boolean;
  /** Streams that hold it, those that still catch up included. */
  holders: number;
  stopListening: () => void;
}

export interface Feeds<Follower> {
  /** The feed of an agent's log; give it back with `release`. */
  hold(credential: Buffer, agentId: string, wakeNumber: number): Feed<Follower>;
  release(feed: Feed<Follower>, follower: Follower): void;
  /**
   * Lets a follower have what comes next, unless the feed is ahead of it: then it must read on by itself first.
   *
   * @param seq the last event that the follower had
   */
  join(feed: Feed<Follower>, follower: Follower, seq: number): boolean;
  /** The events after `seq`, oldest first, up to a page of them; or the problem that forbids to read. */
  read(feed: Feed<Follower>, seq: number): Promise<FeedEvent[] | string>;
  lookEverywhere(): void;
  idle(): Promise<void>;
}

/**
 * Reads logs after a wake, in batches over all streams of the pod. A wake only says "look", so that a stream may miss
 * one but never an event; and each read proves its credential anew in the statement that reads.
 */
export function createFeeds<Follower>(options: {
  pool: pg.Pool;
  listener: Listener;
  /** Told of each event, in order. */
  deliver: (follower: Follower, feed: Feed<Follower>, event: FeedEvent) => void;
  /** Told of what forbids to read on. */
  refuse: (follower: Follower, problem: string) => void;
}): Feeds<Follower> {
  const { pool, listener, deliver, refuse } = options;
  const feeds = new Map<string, Feed<Follower>>();
  const reads = createGroupCommit({
    batchSize: READ_BATCH,
    queueLimit: READ_QUEUE,
    run: (items: ReadItem[]) => runReads(pool, items),
  });

  function look(feed: Feed<Follower>): void {
    feed.isDirty = true;
    if (!feed.isReading) void readOn(feed);
  }

  /** Delivers what the log holds after the last event delivered, until there is no more. */
  async function readOn(feed: Feed<Follower>): Promise<void> {
    feed.isReading = true;
    try {
      while (feed.isDirty && feed.followers.size > 0) {
        feed.isDirty = false;
        const after = feed.seq;
        const events = await read(feed, after);
        if (feed.seq !== after) continue; // everybody left and others came, at another place: they look by themselves
        if (typeof events === 'string') {
          for (const follower of feed.followers) refuse(follower, events);
          return;
        }
        for (const event of events) {
          feed.seq = event.seq;
          for (const follower of feed.followers) deliver(follower, feed, event);
        }
        feed.isDirty ||= events.length === EVENTS_PER_READ;
      }
    } catch {
      feed.isDirty = true; // the database is away: the next sweep looks again
    } finally {
      feed.isReading = false;
    }
  }

  async function read({ credential, agentId }: Feed<Follower>, after: number): Promise<FeedEvent[] | string> {
    const rows = await reads.submit({ credential, agentId, after });
    return rows[0]?.problem ?? rows.map((row) => toEvent(agentId, row));
  }

  return {
    hold(credential, agentId, wakeNumber) {
      const key = `${credential.toString('base64')} ${agentId}`;
      let feed = feeds.get(key);
      if (!feed) {
        const made: Feed<Follower> = {
          credential,
          agentId,
          seq: 0,
          followers: new Set(),
          isReading: false,
          isDirty: false,
          holders: 0,
          stopListening: () => {},
        };
        const stop = listener.subscribe(wakeNumber, () => look(made));
        made.stopListening = () => {
          stop();
          feeds.delete(key);
        };
        feeds.set(key, made);
        feed = made;
      }
      feed.holders++;
      return feed;
    },
    release(feed, follower) {
      feed.followers.delete(follower);
      if (--feed.holders === 0) feed.stopListening();
    },
    join(feed, follower, seq) {
      if (feed.followers.size === 0) feed.seq = seq;
      else if (seq < feed.seq) return false;
      feed.followers.add(follower);
      look(feed); // what woke the feed before somebody followed it was not read
      return true;
    },
    read,
    lookEverywhere() {
      for (const feed of feeds.values()) if (feed.followers.size > 0) look(feed);
    },
    idle: () => reads.idle(),
  };
}

interface ReadItem {
  credential: Buffer;
  agentId: string;
  after: number;
}

async function runReads(pool: pg.Pool, items: ReadItem[]): Promise<ReadEventsRow[][]> {
  const rows = await readEvents(pool, {
    credentials: items.map((item) => item.credential),
    agentIds: items.map((item) => item.agentId),
    after: items.map((item) => item.after),
    limit: EVENTS_PER_READ,
  });
  return rowsByItem(items, rows);
}

function toEvent(agentId: string, row: ReadEventsRow): FeedEvent {
  const lines = `event: ${row.kind}\ndata: ${JSON.stringify(eventContent(agentId, row as EventFacts))}\n\n`;
  return { seq: row.seq!, kind: row.kind!, lines, withPlace: undefined };
}
