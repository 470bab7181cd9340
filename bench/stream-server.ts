// A server of event streams in a process of its own, ours or a bare one of node:http, that tells what it costs: argument
// `raw`, or `posthorn` and the database's address. Speaks to the bench by messages; run with --expose-gc.
import { createServer, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { pino } from 'pino';
import { parseKeyRing } from '../src/crypto/key-ring.ts';
import { startPod } from '../src/pod.ts';

/** `publish` is for the raw server: ours hears from the database. */
export type ServerOrder = { measure: true } | { publish: string };

export interface ServerCost {
  heapBytes: number;
  residentBytes: number;
  cpuMs: number;
  /** The same after the garbage was collected to count the heap. */
  cpuMsAfterwards: number;
}

const [kind, databaseUrl, keyRing] = process.argv.slice(2);
const streams = new Set<ServerResponse>();

process.on('message', (order: ServerOrder) => {
  if ('publish' in order) publish(order.publish);
  else process.send?.(measure());
});
process.send?.({ url: kind === 'raw' ? await startRaw() : await startPosthorn() });

/** What anybody would write: one frame for all, on the response as Node gives it. */
function publish(frame: string): void {
  const bytes = Buffer.from(frame);
  for (const response of streams) response.write(bytes);
}

async function startRaw(): Promise<string> {
  const server = createServer((_request, response) => {
    response.writeHead(200, { 'Content-Type': 'text/event-stream', 'Cache-Control': 'no-store' });
    response.write('event: snapshot\ndata: {}\n\n');
    streams.add(response);
    response.on('close', () => streams.delete(response));
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

async function startPosthorn(): Promise<string> {
  const pod = await startPod({
    databaseUrl: databaseUrl!,
    listenUrl: databaseUrl!,
    publicUrl: undefined,
    host: '127.0.0.1',
    port: 0,
    keyRing: parseKeyRing(keyRing!, 'the bench'),
    log: pino({ enabled: false }),
  });
  return pod.url;
}

function measure(): ServerCost {
  const cpuMs = countCpu();
  for (let pass = 0; pass < 3; pass++) globalThis.gc?.();
  const { heapUsed, rss } = process.memoryUsage();
  return { heapBytes: heapUsed, residentBytes: rss, cpuMs, cpuMsAfterwards: countCpu() };
}

function countCpu(): number {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1000;
}
