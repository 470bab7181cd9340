import { once } from 'node:events';
import { createServer, type IncomingHttpHeaders, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';

export interface Received {
  headers: IncomingHttpHeaders;
  body: string;
  // biome-ignore lint/suspicious/noExplicitAny: each test says what it expects
  json: any;
}

export interface WebhookReceiver {
  url: string;
  /** What came so far, in order. */
  received: Received[];
  /** How it answers from now on: a status, or whatever the function does with the response. */
  answer(how: number | ((response: ServerResponse, request: Received) => void)): void;
  /** Resolves with all that came once there are so many. */
  until(count: number): Promise<Received[]>;
  /** Stops listening and cuts what is connected; `open` listens again at the same port. */
  close(): Promise<void>;
  open(): Promise<void>;
}

/** A receiver on this machine; it answers 204 unless told otherwise. */
export async function startWebhookReceiver(): Promise<WebhookReceiver> {
  const received: Received[] = [];
  const waiting = new Set<() => void>();
  let respond: (response: ServerResponse, request: Received) => void = (response) => response.writeHead(204).end();
  const server = createServer(async (request, response) => {
    let body = '';
    for await (const chunk of request) body += chunk;
    const one = { headers: request.headers, body, json: JSON.parse(body) };
    received.push(one);
    respond(response, one);
    for (const check of waiting) check();
  });
  const listen = async (port: number) => {
    server.listen(port, '127.0.0.1');
    await once(server, 'listening');
    return (server.address() as AddressInfo).port;
  };
  const port = await listen(0);
  return {
    url: `http://127.0.0.1:${port}/hooks?key=planted-key`,
    received,
    answer(how) {
      respond = typeof how === 'number' ? (response) => response.writeHead(how).end() : how;
    },
    until: (count) =>
      new Promise((resolve) => {
        const check = () => {
          if (received.length < count) return;
          waiting.delete(check);
          resolve(received);
        };
        waiting.add(check);
        check();
      }),
    async close() {
      const closed = once(server, 'close');
      server.close();
      server.closeAllConnections();
      await closed;
    },
    open: async () => void (await listen(port)),
  };
}
