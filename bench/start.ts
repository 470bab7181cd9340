// Starting everything, the first time and again; and what a pod and its database's processes hold of memory when idle
// and after many sends.
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { makeKeyRing, serializeKeyRing } from '../src/crypto/key-ring.ts';
import { describeMachine } from './machine.ts';
import { ownMemoryOf } from './process-cost.ts';
import { startCallers, startPodProcess, startWholeServer } from './processes.ts';
import { type Case, type Report, runRounds } from './rounds.ts';
import { startBenchServer } from './server.ts';
import { seedTenants } from './tenants.ts';

const FULL = { rounds: 5, sends: 100_000, owners: 50, callers: 64 };
const QUICK = { rounds: 1, sends: 100, owners: 2, callers: 4 };

/** Of a slice of sends, in seconds. */
const SLICE = 2;

export async function benchStart({ isQuick }: { isQuick: boolean }): Promise<Report> {
  const size = isQuick ? QUICK : FULL;
  const server = await startBenchServer();
  const directory = await mkdtemp(join(tmpdir(), 'posthorn-start-'));
  const closers = [() => server.stop(), () => rm(directory, { recursive: true, force: true })];
  try {
    const keyRing = makeKeyRing();
    const url = await server.makeDatabase('start');
    const senders = await seedTenants(url, size.owners, keyRing);
    const callers = startCallers(senders);
    closers.unshift(callers.stop);
    let round = 0;

    const timeToReady = async () => {
      const startedAt = performance.now();
      const whole = await startWholeServer(join(directory, String(round)));
      const figure = performance.now() - startedAt;
      await whole.stop();
      return { figure };
    };

    /** A pod's memory before and after its sends. */
    async function growPod(): Promise<{ idle: number; busy: number }> {
      const pod = await startPodProcess(url, serializeKeyRing(keyRing));
      const idle = ownMemoryOf(pod.pid);
      for (let sent = 0; sent < size.sends; ) {
        const order = { url: `${pod.url}/messaging/v1/send`, callers: size.callers, seconds: isQuick ? 0.1 : SLICE };
        sent += (await callers.call(order)).latencies.length;
      }
      const busy = ownMemoryOf(pod.pid);
      await pod.stop();
      return { idle, busy };
    }

    let grown = { idle: 0, busy: 0 };
    const cases: Case[] = [
      { name: 'npm start, the first time, until ready', unit: 'ms', measure: timeToReady },
      { name: 'npm start, again, until ready', unit: 'ms', measure: timeToReady, atMost: 3_000 },
      {
        name: 'a pod, idle',
        unit: 'MiB',
        measure: async () => {
          grown = await growPod();
          return { figure: grown.idle };
        },
      },
      { name: `a pod, after ${size.sends} sends`, unit: 'MiB', measure: async () => ({ figure: grown.busy }) },
    ];
    const results = await runRounds(cases, size.rounds, async () => {
      round++;
      await server.checkpoint();
    });
    return { machine: await describeMachine(url, server.directory), results };
  } finally {
    for (const close of closers) await close();
  }
}
