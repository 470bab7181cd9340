// The receiver of the webhook bench, in a process of its own. At /alive it answers 204, at /dead never.
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';

export type ReceiverOrder = { reset: true } | { until: number };

export interface ReceiverReport {
  port: number;
  count: number;
  /** Of each wake, from its event to its arrival, in milliseconds. */
  latencies: number[];
}

let latencies: number[] = [];
let count = 0;
let wanted: number | undefined;

const server = createServer(async (request, response) => {
  let body = '';
  for await (const chunk of request) body += chunk;
  if (request.url === '/dead') return;
  response.writeHead(204).end();
  const { occurred_at } = JSON.parse(body);
  if (occurred_at) latencies.push(Date.now() - Date.parse(occurred_at));
  count++;
  reportIfDone();
});

process.on('message', (order: ReceiverOrder) => {
  if ('reset' in order) {
    [latencies, count, wanted] = [[], 0, 0];
  } else {
    wanted = order.until;
  }
  reportIfDone();
});

function reportIfDone(): void {
  if (wanted === undefined || count < wanted) return;
  wanted = undefined;
  const { port } = server.address() as AddressInfo;
  process.send?.({ port, count, latencies } satisfies ReceiverReport);
}

server.listen(0, '127.0.0.1');
