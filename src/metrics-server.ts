import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { registry } from './metrics.ts';

export interface MetricsServer {
  port: number;
  close(): Promise<void>;
}

/**
 * Serves /metrics and nothing else, on a port of its own: what an operator may see is not for whoever reaches the
 * API, and a worker has no other port.
 *
 * @param options.port 0 takes a free one
 * @throws Error if the port cannot be had
 */
export async function startMetricsServer(options: { host: string; port: number }): Promise<MetricsServer> {
  const server = createServer((request, response) => {
    answer(request, response).catch(() => response.writeHead(500).end());
  });
  server.listen(options.port, options.host);
  await once(server, 'listening');
  return {
    port: (server.address() as AddressInfo).port,
    async close() {
      server.close();
      server.closeAllConnections();
      await once(server, 'close');
    },
  };
}

async function answer({ method = '', url = '' }: IncomingMessage, response: ServerResponse): Promise<void> {
  const isAsked = ['GET', 'HEAD'].includes(method) && url.split('?')[0] === '/metrics';
  if (!isAsked) return void response.writeHead(404).end();
  const page = await registry.metrics();
  response.setHeader('Content-Type', registry.contentType);
  response.end(page); // of which HEAD gets the length alone
}
