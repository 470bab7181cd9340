// Receivers on this machine that stand for the whole internet.
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import { createServer as createTlsServer } from 'node:https';
import net, { type AddressInfo } from 'node:net';
import { join } from 'node:path';
import tls, { type TLSSocket } from 'node:tls';
import { vi } from 'vitest';

const pem = readFileSync(join(import.meta.dirname, 'receiver.pem'), 'utf8');

const authorities = tls.getCACertificates('default');

/** Lets this process trust the receiver's certificate, as it trusts those of the public authorities. */
export function trustReceiver(): void {
  tls.setDefaultCACertificates([...authorities, /-----BEGIN CERTIFICATE[\s\S]+END CERTIFICATE-----/.exec(pem)![0]]);
}

export function distrustReceiver(): void {
  tls.setDefaultCACertificates(authorities);
}

export interface Receiver {
  port: number;
  /** What came, in order. */
  requests: {
    host: string;
    serverName: TLSSocket['servername'] | undefined;
    method: string;
    path: string;
    body: string;
  }[];
  /** How many connections were ever made. */
  connections(): number;
  /** Resolves when no connection is left. */
  left(): Promise<void>;
  close(): Promise<void>;
}

type Answer = (request: IncomingMessage, response: ServerResponse) => void;

/** An HTTP or, with TLS, HTTPS server; it answers 200 unless told otherwise. */
export async function startReceiver(options: { isTls?: boolean; answer?: Answer } = {}): Promise<Receiver> {
  const answer = options.answer ?? ((_request, response) => response.end('thanks'));
  const requests: Receiver['requests'] = [];
  const onRequest = async (request: IncomingMessage, response: ServerResponse) => {
    let body = '';
    for await (const chunk of request) body += chunk;
    const { servername: serverName } = request.socket as TLSSocket;
    requests.push({ host: request.headers.host!, serverName, method: request.method!, path: request.url!, body });
    answer(request, response);
  };
  const server = options.isTls ? createTlsServer({ key: pem, cert: pem }, onRequest) : createServer(onRequest);
  return { requests, ...(await listen(server)) };
}

/** A server below HTTP: what it does with its sockets is up to the test. */
export async function startRawReceiver(onSocket: (socket: net.Socket) => void): Promise<Omit<Receiver, 'requests'>> {
  return await listen(net.createServer(onSocket));
}

async function listen(server: net.Server): Promise<Omit<Receiver, 'requests'>> {
  const sockets = new Set<net.Socket>();
  let count = 0;
  server.on('connection', (socket) => {
    count++;
    sockets.add(socket);
    socket.on('error', () => {});
    socket.once('close', () => sockets.delete(socket));
  });
  server.on('tlsClientError', () => {});
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return {
    port: (server.address() as AddressInfo).port,
    connections: () => count,
    async left() {
      await Promise.all([...sockets].map((socket) => new Promise((resolve) => socket.once('close', resolve))));
    },
    async close() {
      server.close();
      for (const socket of sockets) socket.destroy();
      await once(server, 'close');
    },
  };
}

/**
 * From now on each dial of this process is written down and goes to this port of this machine, wherever it was meant
 * to go; with no port it goes nowhere and never ends.
 */
export function divertDials(port: number | undefined): { dialled: string[]; restore(): void } {
  const dialled: string[] = [];
  const { connect } = net.Socket.prototype;
  const spy = vi.spyOn(net.Socket.prototype, 'connect').mockImplementation(function (this: net.Socket, ...args) {
    const first: unknown = args[0];
    const { host, port: wanted } = (Array.isArray(first) ? first[0] : first) as net.TcpNetConnectOpts;
    dialled.push(`${host} ${wanted}`);
    return port === undefined ? this : connect.apply(this, [port, '127.0.0.1'] as never);
  } as typeof connect);
  return { dialled, restore: () => spy.mockRestore() };
}
