import { createHash } from 'node:crypto';

/** Where a stream is: the epoch of the server's log, and the last event seen of each of its agents. */
export interface Place {
  epoch: number;
  /** In the order of the agents' ids. */
  seqs: number[];
}

/** A UUID in base64url. */
const STREAM_ID_LENGTH = 22;

/** The part of an event id that is the same for every event of a stream. */
export function encodeStreamId(streamId: string): string {
  return Buffer.from(streamId.replaceAll('-', ''), 'hex').toString('base64url');
}

/**
 * The part of an event id that is the same for every stream at the same place. It names the set of agents, so that
 * another set begins with a snapshot.
 *
 * @param set what nameSet said of the agents
 */
export function encodePlace({ epoch, seqs }: Place, set: string): string {
  return Buffer.from([epoch, set, ...seqs].join(' ')).toString('base64url');
}

/**
 * The stream, the set of agents by its name, and the place that an id for `Last-Event-ID` stands for; null if it is not
 * ours. Whether the set is that of the caller is not said here: only the database knows which agents that are.
 */
export function decodeEventId(id: string): { streamId: string; set: string; place: Place } | null {
  const stream = Buffer.from(id.slice(0, STREAM_ID_LENGTH), 'base64url').toString('hex');
  const [epoch, set, ...seqs] = Buffer.from(id.slice(STREAM_ID_LENGTH), 'base64url').toString().split(' ');
  const isOurs =
    stream.length === 32 &&
    /^\d{1,9}$/.test(epoch ?? '') &&
    set !== undefined &&
    seqs.every((seq) => /^\d{1,15}$/.test(seq));
  if (!isOurs) return null;
  const streamId = stream.replace(/^(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-');
  return { streamId, set, place: { epoch: Number(epoch), seqs: seqs.map(Number) } };
}

/** A short name of a set of agents, sorted by id. */
export function nameSet(agentIds: string[]): string {
  return createHash('sha256').update(agentIds.join()).digest('base64url').slice(0, 8);
}
