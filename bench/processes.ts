// Processes beside the bench: our pod, the peers' front and the callers.
import { type ChildProcess, fork, spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { packageRoot } from '../src/package-root.ts';
import type { CallOrder, CallReport } from './callers.ts';
import type { ReaderOrder, ReaderReport } from './stream-clients.ts';
import type { ServerCost, ServerOrder } from './stream-server.ts';
import type { Sender } from './tenants.ts';
import type { LoopOrder } from './undici-loop.ts';
import type { ReceiverOrder, ReceiverReport } from './webhook-receiver.ts';

export interface Front {
  url: string;
  send(signal: NodeJS.Signals): void;
  stop(): Promise<void>;
}

export function startPodProcess(databaseUrl: string, keyRing: string): Promise<Front> {
  return startFront(['src/main.ts', 'serve', '--json'], {
    POSTHORN_DATABASE_URL: databaseUrl,
    POSTHORN_KEYRING: keyRing,
    POSTHORN_PORT: '0',
  });
}

/** A worker; with the key ring it delivers webhooks to this machine. It has no address. */
export function startWorkerProcess(databaseUrl: string, keyRing?: string): Promise<Front> {
  return startFront(['src/main.ts', 'worker', '--json'], {
    POSTHORN_DATABASE_URL: databaseUrl,
    POSTHORN_WEBHOOK_ALLOW: '127.0.0.1',
    ...(keyRing === undefined ? {} : { POSTHORN_KEYRING: keyRing }),
  });
}

export function startPeerFronts(databaseUrl: string): Promise<Front> {
  return startFront(['bench/fronts.ts', databaseUrl], {});
}

/** Starts a program that says `{"event": "ready", "url": …}` when it is. Its log is read and thrown away, as by a log collector. */
async function startFront(args: string[], env: Record<string, string>): Promise<Front> {
  const child = spawn(process.execPath, args, {
    cwd: packageRoot,
    env: { ...process.env, ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let log = '';
  child.stderr.on('data', (chunk: Buffer) => {
    log = (log + chunk).slice(-4000);
  });
  const exited = once(child, 'exit');
  const ready = new Promise<string>((resolve) => {
    createInterface(child.stdout).on('line', (line) => {
      if (line.startsWith('{"event":"ready"')) resolve(JSON.parse(line).url);
    });
  });
  const failed = exited.then(() => {
    throw new Error(`${args[0]} ended before it was ready:\n${log}`);
  });
  failed.catch(() => {});
  return {
    url: await Promise.race([ready, failed]),
    send: (signal) => void child.kill(signal),
    stop: () => stop(child, exited),
  };
}

export interface Callers {
  call(order: CallOrder): Promise<CallReport>;
  stop(): Promise<void>;
}

export function startCallers(senders: Sender[]): Callers {
  const child = fork(join(import.meta.dirname, 'callers.ts'));
  const exited = once(child, 'exit');
  child.send({ senders });
  return {
    async call(order) {
      child.send(order);
      const [report] = (await once(child, 'message')) as [CallReport];
      if (report.failure) throw new Error(`${order.url} answered: ${report.failure}`);
      return report;
    },
    stop: () => stop(child, exited),
  };
}

export interface StreamServer {
  url: string;
  /** Collects garbage and says what the process holds, and what CPU it used before that. */
  measure(): Promise<ServerCost>;
  publish(frame: string): void;
  stop(): Promise<void>;
}

export async function startStreamServer(args: ['raw'] | ['posthorn', string, string]): Promise<StreamServer> {
  const child = fork(join(import.meta.dirname, 'stream-server.ts'), args, { execArgv: ['--expose-gc'] });
  const exited = once(child, 'exit');
  const [{ url }] = (await once(child, 'message')) as [{ url: string }];
  const order = (message: ServerOrder) => child.send(message);
  return {
    url,
    publish: (frame) => order({ publish: frame }),
    async measure() {
      order({ measure: true });
      const [cost] = (await once(child, 'message')) as [ServerCost];
      return cost;
    },
    async stop() {
      child.kill('SIGKILL');
      await exited;
    },
  };
}

export interface StreamReaders {
  obey(order: ReaderOrder): Promise<ReaderReport>;
  stop(): Promise<void>;
}

export function startStreamReaders(): StreamReaders {
  const child = fork(join(import.meta.dirname, 'stream-clients.ts'));
  const exited = once(child, 'exit');
  return {
    async obey(order) {
      child.send(order);
      const [report] = (await once(child, 'message')) as [ReaderReport];
      if (report.failure) throw new Error(`A reader failed: ${report.failure}`);
      return report;
    },
    stop: () => stop(child, exited),
  };
}

export interface Receiver {
  /** Forgets what came, and answers at once; where it listens is in the answer. */
  reset(): Promise<ReceiverReport>;
  /** Answers when so many requests came since. */
  until(count: number): Promise<ReceiverReport>;
  stop(): Promise<void>;
}

export function startReceiver(): Receiver {
  const child = fork(join(import.meta.dirname, 'webhook-receiver.ts'));
  const exited = once(child, 'exit');
  const ask = async (order: ReceiverOrder) => {
    child.send(order);
    const [report] = (await once(child, 'message')) as [ReceiverReport];
    return report;
  };
  return {
    reset: () => ask({ reset: true }),
    until: (count) => ask({ until: count }),
    stop: () => stop(child, exited),
  };
}

export interface UndiciLoop {
  /** @returns requests per second */
  run(order: LoopOrder): Promise<number>;
  stop(): Promise<void>;
}

export function startUndiciLoop(): UndiciLoop {
  const child = fork(join(import.meta.dirname, 'undici-loop.ts'));
  const exited = once(child, 'exit');
  return {
    async run(order) {
      child.send(order);
      const [perSecond] = (await once(child, 'message')) as [number];
      return perSecond;
    },
    stop: () => stop(child, exited),
  };
}

async function stop(child: ChildProcess, exited: Promise<unknown>): Promise<void> {
  child.kill();
  await exited;
}
