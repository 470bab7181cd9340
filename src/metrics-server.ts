import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { registry } from './metrics.ts';

export interface MetricsServer {
  port: number;
  close(): Promise<void>;
}

/**
 * Serves GET /metrics and nothing else, on a port of its own: what an operator may see is not for whoever reaches the
 * API, and a worker has no other port.
 *
 * @param options.port 0 takes a free one
 * @throws Error if the port cannot be had
 */
export async function startMetricsServer(options: { host: string; port: number }): Promise<MetricsServer> {
  const server = createServer(async (request, response) => {
    if (request.method !== 'GET' || request.url !== '/metrics') return void response.writeHead(404).end();
    response.setHeader('Content-Type', registry.contentType);
    response.end(await registry.metrics());
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
