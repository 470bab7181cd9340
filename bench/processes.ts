// Processes beside the bench: our pod, the peers' front and the callers.
import { type ChildProcess, fork, spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { packageRoot } from '../src/package-root.ts';
import type { CallOrder, CallReport } from './callers.ts';
import type { ConversationOrder } from './conversation-callers.ts';
import type { ReaderOrder, ReaderReport } from './stream-clients.ts';
import type { ServerCost, ServerOrder } from './stream-server.ts';
import type { Sender } from './tenants.ts';
import type { LoopOrder } from './undici-loop.ts';
import type { ReceiverOrder, ReceiverReport } from './webhook-receiver.ts';

export interface Front {
  url: string;
  pid: number;
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

/** Everything on an embedded PostgreSQL, as a newcomer starts it. */
export function startWholeServer(dataDirectory: string): Promise<Front> {
  return startFront(['src/main.ts', 'start', '--json'], { POSTHORN_DATA_DIR: dataDirectory, POSTHORN_PORT: '0' });
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
    pid: child.pid!,
    send: (signal) => void child.kill(signal),
    stop: () => stop(child, exited),
  };
}

/** A program of the bench in a process of its own, which obeys one order at a time. */
interface Helper<Order> {
  tell(order: Order): void;
  /** @returns its next message */
  heard<Report>(): Promise<Report>;
  ask<Report>(order: Order): Promise<Report>;
  stop(signal?: NodeJS.Signals): Promise<void>;
}

function startHelper<Order extends object>(file: string, args: string[] = [], execArgv: string[] = []): Helper<Order> {
  const child = fork(join(import.meta.dirname, file), args, { execArgv });
  const exited = once(child, 'exit');
  const tell = (order: Order) => void child.send(order);
  async function heard<Report>(): Promise<Report> {
    const [report] = await once(child, 'message');
    return report;
  }
  return {
    tell,
    heard,
    ask(order) {
      tell(order);
      return heard();
    },
    stop: (signal) => stop(child, exited, signal),
  };
}

export interface Callers<Order> {
  call(order: Order): Promise<CallReport>;
  stop(): Promise<void>;
}

export const startCallers = (senders: Sender[]) => startCallersOf<CallOrder>('callers.ts', senders);

export const startConversationCallers = (senders: Sender[]) =>
  startCallersOf<ConversationOrder>('conversation-callers.ts', senders);

function startCallersOf<Order extends { url: string }>(file: string, senders: Sender[]): Callers<Order> {
  const helper = startHelper<Order | { senders: Sender[] }>(file);
  helper.tell({ senders });
  return {
    async call(order) {
      const report = await helper.ask<CallReport>(order);
      if (report.failure) throw new Error(`${order.url} answered: ${report.failure}`);
      return report;
    },
    stop: () => helper.stop(),
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
  const helper = startHelper<ServerOrder>('stream-server.ts', args, ['--expose-gc']);
  const { url } = await helper.heard<{ url: string }>();
  return {
    url,
    publish: (frame) => helper.tell({ publish: frame }),
    measure: () => helper.ask({ measure: true }),
    stop: () => helper.stop('SIGKILL'),
  };
}

export interface StreamReaders {
  obey(order: ReaderOrder): Promise<ReaderReport>;
  stop(): Promise<void>;
}

export function startStreamReaders(): StreamReaders {
  const helper = startHelper<ReaderOrder>('stream-clients.ts');
  return {
    async obey(order) {
      const report = await helper.ask<ReaderReport>(order);
      if (report.failure) throw new Error(`A reader failed: ${report.failure}`);
      return report;
    },
    stop: () => helper.stop(),
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
  const helper = startHelper<ReceiverOrder>('webhook-receiver.ts');
  return {
    reset: () => helper.ask({ reset: true }),
    until: (count) => helper.ask({ until: count }),
    stop: () => helper.stop(),
  };
}

export interface UndiciLoop {
  /** @returns requests per second */
  run(order: LoopOrder): Promise<number>;
  stop(): Promise<void>;
}

export function startUndiciLoop(): UndiciLoop {
  const helper = startHelper<LoopOrder>('undici-loop.ts');
  return { run: (order) => helper.ask(order), stop: () => helper.stop() };
}

async function stop(child: ChildProcess, exited: Promise<unknown>, signal?: NodeJS.Signals): Promise<void> {
  child.kill(signal);
  await exited;
}
