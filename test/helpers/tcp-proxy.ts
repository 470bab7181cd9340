import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';

export interface TcpProxy {
  /** The given address, through the proxy. */
  url: string;
  /** Leads to another address from now on. */
  leadTo(url: string): void;
  /** Passes nothing on and closes nothing, as a machine that lost power: both ends believe in their connection. */
  freeze(): void;
  thaw(): void;
  /** Passes everything on late and slowly, each way. */
  crawl(pace: { delayMs: number; bytesPerSecond: number }): void;
  close(): Promise<void>;
}

/** A way to a server that a test can cut without either end being told. */
export async function startTcpProxy(targetUrl: string): Promise<TcpProxy> {
  let target = new URL(targetUrl);
  let isFrozen = false;
  let pace = { delayMs: 0, bytesPerSecond: Number.POSITIVE_INFINITY };
  const sockets = new Set<Socket>();
  const server = createServer((inner) => {
    const outer = connect(Number(target.port), target.hostname);
    for (const [socket, other] of [
      [inner, outer],
      [outer, inner],
    ] as const) {
      sockets.add(socket);
      socket.setNoDelay(true);
      socket.on('data', (chunk) => {
        const lateMs = pace.delayMs + (chunk.length / pace.bytesPerSecond) * 1_000;
        if (lateMs === 0) return other.write(chunk);
        socket.pause();
        setTimeout(() => {
          other.write(chunk);
          if (!isFrozen) socket.resume();
        }, lateMs);
      });
      socket.on('error', () => {});
      socket.on('close', () => {
        sockets.delete(socket);
        if (!isFrozen) other.destroy();
      });
      if (isFrozen) socket.pause();
    }
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  return {
    url: Object.assign(new URL(targetUrl), { hostname: '127.0.0.1', port: String(port) }).toString(),
    leadTo(url) {
      target = new URL(url);
    },
    freeze() {
      isFrozen = true;
      for (const socket of sockets) socket.pause();
    },
    thaw() {
      isFrozen = false;
      for (const socket of sockets) socket.resume();
    },
    crawl(newPace) {
      pace = newPace;
    },
    async close() {
      for (const socket of sockets) socket.destroy();
      server.close();
      await once(server, 'close');
    },
  };
}
