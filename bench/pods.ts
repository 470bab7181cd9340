// Pods: one, two and four on one database. With a small share of a core each they are what limits, as they would be on
// machines of their own; without that, this machine's cores are, and the last column says how much of them the database
// takes.
import { makeKeyRing, serializeKeyRing } from '../src/crypto/key-ring.ts';
import { limitCpu } from './cpu-share.ts';
import { describeMachine } from './machine.ts';
import { cpuMsOf, postgresProcesses } from './process-cost.ts';
import { type Front, startCallers, startPodProcess } from './processes.ts';
import { type Case, type Measurement, median, type Report, runRounds } from './rounds.ts';
import { startBenchServer } from './server.ts';
import { seedTenants } from './tenants.ts';

const FULL = { rounds: 5, seconds: 3, warmUpSeconds: 4, owners: 50, callersAPod: 64 };
const QUICK = { rounds: 1, seconds: 0.3, warmUpSeconds: 0.1, owners: 2, callersAPod: 4 };

const COUNTS = [1, 2, 4];
/** Of a core: four such pods leave room for the database on two cores. */
const SHARE = 0.15;

export async function benchPods({ isQuick }: { isQuick: boolean }): Promise<Report> {
  const size = isQuick ? QUICK : FULL;
  const server = await startBenchServer();
  const closers: (() => Promise<unknown>)[] = [() => server.stop()];
  try {
    const keyRing = makeKeyRing();
    const url = await server.makeDatabase('pods');
    const senders = await seedTenants(url, size.owners, keyRing);

    /** As many pods as the largest case needs, each with its own callers. */
    async function startPods(share?: number): Promise<Pod[]> {
      const pods: Pod[] = [];
      for (let count = 0; count < Math.max(...COUNTS); count++) {
        const front = await startPodProcess(url, serializeKeyRing(keyRing));
        const callers = startCallers(senders);
        await callers.call({ url: sendUrl(front), callers: size.callersAPod, seconds: size.warmUpSeconds });
        const unlimit = share === undefined ? async () => {} : await limitCpu(front.pid, share);
        closers.unshift(callers.stop, front.stop, unlimit);
        pods.push({ front, callers });
      }
      return pods;
    }

    async function send(pods: Pod[]): Promise<Measurement> {
      const reports = await Promise.all(
        pods.map(({ front, callers }) =>
          callers.call({ url: sendUrl(front), callers: size.callersAPod, seconds: size.seconds }),
        ),
      );
      return {
        figure: reports.reduce((sum, { perSecond }) => sum + perSecond, 0),
        p50: median(reports.flatMap(({ latencies }) => latencies)),
      };
    }

    let databaseShare = 0;
    async function sendAndCount(pods: Pod[]): Promise<Measurement> {
      const postgres = postgresProcesses(server.directory);
      const [before, startedAt] = [cpuMsOf(postgres), performance.now()];
      const measured = await send(pods);
      databaseShare = (100 * (cpuMsOf(postgres) - before)) / (performance.now() - startedAt);
      return measured;
    }

    const small = await startPods(SHARE);
    const whole = await startPods();
    const named = (count: number, what: string) => `${count} ${count === 1 ? 'pod' : 'pods'}${what}`;
    const ofACore = ` with ${SHARE} of a core each`;
    const cases: Case[] = [
      ...COUNTS.map((count) => ({
        name: named(count, ofACore),
        unit: '/s' as const,
        measure: () => send(small.slice(0, count)),
        peers: count === 1 ? [] : [{ name: named(1, ofACore), atLeast: count === 2 ? 1.6 : undefined }],
      })),
      ...COUNTS.flatMap((count) => [
        {
          name: named(count, ''),
          unit: '/s' as const,
          measure: () => sendAndCount(whole.slice(0, count)),
          peers: count === 1 ? [] : [{ name: named(1, '') }],
        },
        {
          name: named(count, ': the database, of one core'),
          unit: '%' as const,
          measure: async () => ({ figure: databaseShare }),
        },
      ]),
    ];
    const results = await runRounds(cases, size.rounds, server.checkpoint);
    return { machine: await describeMachine(url, server.directory), results };
  } finally {
    for (const close of closers) await close();
  }
}

interface Pod {
  front: Front;
  callers: ReturnType<typeof startCallers>;
}

function sendUrl({ url }: Front): string {
  return `${url}/messaging/v1/send`;
}
