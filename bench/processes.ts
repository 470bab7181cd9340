// Processes beside the bench: our pod, the peers' front and the callers.
import { type ChildProcess, fork, spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { packageRoot } from '../src/package-root.ts';
import type { CallOrder, CallReport } from './callers.ts';
import type { Sender } from './tenants.ts';

export interface Front {
  url: string;
  stop(): Promise<void>;
}

export function startPodProcess(databaseUrl: string, keyRing: string): Promise<Front> {
  return startFront(['src/main.ts', 'serve', '--json'], {
    POSTHORN_DATABASE_URL: databaseUrl,
    POSTHORN_KEYRING: keyRing,
    POSTHORN_PORT: '0',
  });
}

export async function startWorkerProcess(databaseUrl: string): Promise<{ stop(): Promise<void> }> {
  return await startFront(['src/main.ts', 'worker', '--json'], { POSTHORN_DATABASE_URL: databaseUrl });
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
  return { url: await Promise.race([ready, failed]), stop: () => stop(child, exited) };
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

async function stop(child: ChildProcess, exited: Promise<unknown>): Promise<void> {
  child.kill();
  await exited;
}
