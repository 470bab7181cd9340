// Readers of event streams, in a process of their own: 10,000 of them must not share a heap with what is measured. Over
// bare sockets, which only count the events that they see.
import { connect, type Socket } from 'node:net';
import { openCrawlingReader } from '../test/helpers/crawling-reader.ts';

export type ReaderOrder =
  /** A stream for each token; where an agent follows it, the path says AGENT in its place. */
  | { open: { url: string; path: string; tokens: string[] } }
  /** One more, that takes a byte a second and comes back by id whenever it is cut. */
  | { crawl: { url: string; path: string; token: string } }
  | { await: { events: number } }
  | { close: true };

export interface ReaderReport {
  /** When each of the events that were awaited came, in milliseconds of the wall clock. */
  arrivedAt?: number[];
  /** How often the crawling reader was cut until it was closed. */
  cuts?: number;
  failure?: string;
}

const AT_ONCE = 50;
const EVENT = 'event: messaging.pending';

let sockets: Socket[] = [];
let arrivedAt: number[] = [];
let onEvent = () => {};
let endCrawling = () => {};
let cuts = 0;

process.on('message', async (order: ReaderOrder) => {
  const report = await obey(order).catch((error: Error): ReaderReport => ({ failure: error.message }));
  process.send?.(report);
});

async function obey(order: ReaderOrder): Promise<ReaderReport> {
  if ('open' in order) {
    const { url, path, tokens } = order.open;
    let next = 0;
    const opener = async () => {
      while (next < tokens.length) {
        const [token = '', agentId = ''] = tokens[next++]!.split(' ');
        sockets.push(await open(new URL(path.replace('AGENT', agentId), url), token));
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, opener));
    return {};
  }
  if ('crawl' in order) {
    void crawl(order.crawl);
    return {};
  }
  if ('await' in order) {
    await new Promise<void>((resolve) => {
      onEvent = () => arrivedAt.length >= order.await.events && resolve();
      onEvent();
    });
    return { arrivedAt: arrivedAt.splice(0, order.await.events) };
  }
  endCrawling();
  const closed = sockets.map((socket) => new Promise((resolve) => socket.once('close', resolve)));
  for (const socket of sockets) socket.destroy();
  sockets = [];
  arrivedAt = [];
  await Promise.all(closed);
  const report = { cuts };
  cuts = 0;
  return report;
}

async function crawl({ url, path, token }: { url: string; path: string; token: string }): Promise<void> {
  let isOver = false;
  let lastId: string | undefined;
  while (!isOver) {
    const reader = await openCrawlingReader(url, token, path, lastId);
    endCrawling = () => {
      isOver = true;
      reader.close();
    };
    await reader.closed;
    if (!isOver) cuts++;
    lastId = reader.lastId() ?? lastId;
  }
}

/** Resolves when the head of the answer is there. */
function open(url: URL, token: string): Promise<Socket> {
  return new Promise((resolve, reject) => {
    const socket = connect(Number(url.port), url.hostname);
    let isOpen = false;
    let head = '';
    socket.on('data', (chunk) => {
      if (isOpen) {
        if (chunk.includes(EVENT)) {
          arrivedAt.push(performance.timeOrigin + performance.now());
          onEvent();
        }
        return;
      }
      head += chunk.toString('latin1');
      if (!head.startsWith('HTTP/1.1 200') && head.length > 12) return reject(new Error(head.slice(0, 400)));
      if (head.includes('\r\n\r\n')) {
        isOpen = true;
        head = '';
        resolve(socket);
      }
    });
    socket.on('error', reject);
    socket.write(
      `GET ${url.pathname}${url.search} HTTP/1.1\r\nHost: ${url.host}\r\nAccept: text/event-stream\r\nAuthorization: Bearer ${token}\r\n\r\n`,
    );
  });
}
