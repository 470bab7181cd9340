import { once } from 'node:events';
import { type IncomingMessage, request } from 'node:http';

export interface StreamEvent {
  id?: string;
  event?: string;
  // biome-ignore lint/suspicious/noExplicitAny: each test says what it expects
  data?: any;
}

export interface TestStream {
  status: number;
  headers: IncomingMessage['headers'];
  /** What came so far. */
  events: StreamEvent[];
  /** Resolves with all events so far once they satisfy the condition; rejects if the stream ends before. */
  until(isEnough: (events: StreamEvent[]) => boolean): Promise<StreamEvent[]>;
  /** Resolves when the server has ended the stream. */
  ended: Promise<void>;
  close(): void;
  /** Leaves by a reset, as a client that is killed with data unread. */
  reset(): void;
}

/**
 * A reader of server-sent events over a plain socket.
 *
 * @param credential a bearer token, or the headers that stand for one
 */
export async function openStream(
  url: string,
  credential: string | Record<string, string>,
  path: string,
  lastEventId?: string,
): Promise<TestStream> {
  const outgoing = request(url + path, {
    headers: {
      ...(typeof credential === 'string' ? { authorization: `Bearer ${credential}` } : credential),
      ...(lastEventId === undefined ? {} : { 'last-event-id': lastEventId }),
    },
    agent: false,
  });
  outgoing.end();
  const [response] = (await once(outgoing, 'response')) as [IncomingMessage];
  outgoing.on('error', () => {}); // a server that dies
  const events: StreamEvent[] = [];
  const waiting = new Set<() => void>();
  let rest = '';
  let isEnded = false;
  const ended = new Promise<void>((resolve) => {
    response.once('close', () => {
      isEnded = true;
      resolve();
      for (const check of waiting) check();
    });
  });
  response.on('error', () => {});
  response.setEncoding('utf8').on('data', (chunk: string) => {
    const blocks = (rest + chunk).split('\n\n');
    rest = blocks.pop()!;
    events.push(...blocks.map(parseBlock).filter((event) => event.event !== undefined));
    for (const check of waiting) check();
  });
  return {
    status: response.statusCode!,
    headers: response.headers,
    events,
    ended,
    until: (isEnough) =>
      new Promise((resolve, reject) => {
        const check = () => {
          if (isEnough(events)) resolve(events);
          else if (isEnded)
            reject(new Error(`The stream ended after ${JSON.stringify(events.map(({ event }) => event))}`));
          else return;
          waiting.delete(check);
        };
        waiting.add(check);
        check();
      }),
    close: () => outgoing.destroy(),
    reset: () => response.socket.resetAndDestroy(),
  };
}

function parseBlock(block: string): StreamEvent {
  const event: StreamEvent = {};
  for (const line of block.split('\n')) {
    const [, name, value] = /^(id|event|data): (.*)$/.exec(line) ?? [];
    if (name === 'data') event.data = JSON.parse(value!);
    else if (name) event[name as 'id' | 'event'] = value!;
  }
  return event;
}
