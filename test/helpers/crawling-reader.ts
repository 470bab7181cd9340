import { connect } from 'node:net';

const BYTE_MS = 1_000;
const HASTE_BYTES = 65_536;

export interface CrawlingReader {
  /** What it read so far. */
  text(): string;
  /** The last id that it read, for `Last-Event-ID`. */
  lastId(): string | undefined;
  /** Reads what is left as fast as it comes; resolves when the server has closed the connection. */
  readToEnd(): Promise<void>;
  /** Resolves when the connection is gone. */
  closed: Promise<void>;
  close(): void;
}

/**
 * A reader of an event stream that takes its first event at once and then one byte a second out of the kernel's hands,
 * without a buffer of its own.
 */
export async function openCrawlingReader(
  url: string,
  token: string,
  path: string,
  lastEventId?: string,
): Promise<CrawlingReader> {
  const { port, hostname, host } = new URL(url);
  let text = '';
  let hasBegun = false;
  let isCrawling = false;
  const begun = Promise.withResolvers<void>();
  const socket = connect({
    port: Number(port),
    host: hostname,
    onread: {
      buffer: () => Buffer.alloc(isCrawling ? 1 : HASTE_BYTES),
      callback(length, bytes) {
        text += Buffer.from(bytes.buffer, bytes.byteOffset, length).toString('latin1');
        if (hasBegun) return !isCrawling;
        hasBegun = isCrawling = text.includes('\nid: ');
        if (hasBegun) begun.resolve();
        return !hasBegun;
      },
    },
  });
  const closed = new Promise<void>((resolve) => socket.once('close', () => resolve()));
  socket.on('error', () => {}); // a reset ends it as well
  const head = [`GET ${path} HTTP/1.1`, `Host: ${host}`, `Authorization: Bearer ${token}`];
  if (lastEventId !== undefined) head.push(`Last-Event-ID: ${lastEventId}`);
  socket.write(`${head.join('\r\n')}\r\n\r\n`);
  await Promise.race([begun.promise, closed]);
  const crawling = setInterval(() => socket.resume(), BYTE_MS);
  void closed.then(() => clearInterval(crawling));
  return {
    text: () => text,
    lastId: () =>
      wholeEvents(text)
        .flatMap((block) => /^id: (.+)$/m.exec(block)?.[1] ?? [])
        .at(-1),
    async readToEnd() {
      isCrawling = false;
      socket.resume();
      await closed;
    },
    closed,
    close: () => socket.destroy(),
  };
}

/** The events of an answer, each as its lines; one that was cut off is none. */
export function wholeEvents(text: string): string[] {
  return text.split('\n\n').slice(0, -1);
}
