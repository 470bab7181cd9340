import { setTimeout as wait } from 'node:timers/promises';
import { expect } from 'vitest';
import type { TestDatabase } from './database.ts';
import { openStream, type StreamEvent } from './event-stream.ts';

/** One who follows the log of an agent, whichever pods live. */
export interface LogReader {
  agent: { id: string; token: string };
  /** What it heard: kind, message and state of each event. */
  heard: string[];
  openings: number;
  lastId: string | undefined;
}

export function makeReader(agent: LogReader['agent']): LogReader {
  return { agent, heard: [], openings: 0, lastId: undefined };
}

const describeEvent = ({ event, data }: StreamEvent) => `${event} ${data.message_ids[0]} ${data.state ?? ''}`.trim();

/** What a reader notes where it was told that events are not known any more. */
const RESET = /instead of what was missed$/;

/** What a reader heard but for that: after a failover it is told to begin anew. */
export const withoutResets = (heard: string[]): string[] => heard.filter((event) => !RESET.test(event));

/**
 * Follows one agent's log over whichever pod lives, from the last id it has, until it is told to stop. Refused, it comes
 * again after its Retry-After.
 *
 * @param start which of the pods is tried first
 */
export async function followLog(reader: LogReader, urls: string[], start: number, stop: AbortSignal): Promise<void> {
  const { agent } = reader;
  for (let attempt = start; !stop.aborted; attempt++) {
    const path = `/messaging/v1/events?agent_id=${agent.id}`;
    const stream = await openStream(urls[attempt % urls.length]!, agent.token, path, reader.lastId).catch(() => null);
    if (stream?.status !== 200) {
      stream?.close();
      await wait(1_000 * Number(stream?.headers['retry-after'] ?? 0.05), undefined, { signal: stop }).catch(() => {});
      continue;
    }
    stop.addEventListener('abort', stream.close);
    if (stop.aborted) stream.close();
    reader.openings++;
    const take = (event: StreamEvent) => {
      reader.lastId = event.id ?? reader.lastId;
      if (event.event === 'snapshot' || event.event === 'reset') {
        if (reader.openings > 1) reader.heard.push(`${event.event} instead of what was missed`);
      } else if (event.event !== 'stream.closing') reader.heard.push(describeEvent(event));
    };
    let taken = 0;
    await stream
      .until((events) => {
        while (taken < events.length) take(events[taken++]!);
        return false;
      })
      .catch(() => {}); // it ended: on to the next pod
    stop.removeEventListener('abort', stream.close);
  }
}

/** What the log of an agent holds, which has no gap by itself. */
export async function readLog(database: TestDatabase, agentId: string): Promise<string[]> {
  const { rows } = await database.admin.query(
    `select e.kind, e.subject_id, e.state, e.seq::int from posthorn.events e where e.agent_id = $1 order by e.seq`,
    [agentId],
  );
  expect(rows.map(({ seq }) => seq)).toEqual(rows.map((_, index) => index + 1));
  return rows.map(({ kind, subject_id, state }) => `${kind} ${subject_id} ${state ?? ''}`.trim());
}
