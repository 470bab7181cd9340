import { createHash } from 'node:crypto';

/** Where a stream is: the epoch of the server's log, the stream itself, and the last event seen of each of its agents. */
export interface Place {
  epoch: number;
  streamId: string;
  /** In the order of the agents' ids. */
  seqs: number[];
}

/** An opaque id for `Last-Event-ID`. It names the set of agents, so that another set begins with a snapshot. */
export function encodeEventId({ epoch, streamId, seqs }: Place, agentIds: string[]): string {
  return Buffer.from([epoch, streamId, nameSet(agentIds), ...seqs].join(' ')).toString('base64url');
}

/** The place that an id stands for, or null if it is not an id of ours or is one of another set of agents. */
export function decodeEventId(id: string, agentIds: string[]): Place | null {
  const [epoch, streamId, set, ...seqs] = Buffer.from(id, 'base64url').toString().split(' ');
  const isOurs =
    /^\d{1,9}$/.test(epoch ?? '') &&
    /^[0-9a-f-]{36}$/.test(streamId ?? '') &&
    set === nameSet(agentIds) &&
    seqs.length === agentIds.length &&
    seqs.every((seq) => /^\d{1,15}$/.test(seq));
  return isOurs ? { epoch: Number(epoch), streamId: streamId!, seqs: seqs.map(Number) } : null;
}

function nameSet(agentIds: string[]): string {
  return createHash('sha256').update(agentIds.join()).digest('base64url').slice(0, 8);
}
