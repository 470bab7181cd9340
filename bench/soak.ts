// Soak: a million sends by one pod with a worker beside it. From the first tenth on, the memory of each process and the
// dead rows of the database must stay what they are.
import pg from 'pg';
import { makeKeyRing, serializeKeyRing } from '../src/crypto/key-ring.ts';
import { describeMachine } from './machine.ts';
import { ownMemoryOf, postgresProcesses } from './process-cost.ts';
import { startCallers, startPodProcess, startWorkerProcess } from './processes.ts';
import { median, type Report, type Result, singleResult } from './rounds.ts';
import { startBenchServer } from './server.ts';
import { seedTenants } from './tenants.ts';

const FULL = { sends: 1_000_000, seconds: 5, owners: 50, callers: 64 };
const QUICK = { sends: 300, seconds: 0.1, owners: 2, callers: 4 };

/** Of all sends: after these, nothing should grow any more. */
const WARM = 0.1;
const BAR = 1.1;

/** Memory in MiB and numbers of rows, by what they are of. */
type Sample = Record<string, number>;

export async function benchSoak({ isQuick }: { isQuick: boolean }): Promise<Report> {
  const size = isQuick ? QUICK : FULL;
  const server = await startBenchServer();
  const closers = [() => server.stop()];
  try {
    const keyRing = makeKeyRing();
    const url = await server.makeDatabase('soak');
    const senders = await seedTenants(url, size.owners, keyRing);
    const pod = await startPodProcess(url, serializeKeyRing(keyRing));
    const worker = await startWorkerProcess(url);
    const callers = startCallers(senders);
    const admin = new pg.Client({ connectionString: url });
    await admin.connect();
    closers.unshift(() => admin.end(), callers.stop, worker.stop, pod.stop);

    async function sample(): Promise<Sample> {
      const { rows } = await admin.query(
        `select sum(n_dead_tup)::int as dead from pg_stat_user_tables where schemaname in ('posthorn', 'graphile_worker')`,
      );
      const backends = postgresProcesses(server.directory).map(ownMemoryOf);
      return {
        'memory of the pod, MiB': ownMemoryOf(pod.pid),
        'memory of the worker, MiB': ownMemoryOf(worker.pid),
        'memory of the largest backend, MiB': Math.max(...backends),
        'dead rows': rows[0].dead,
      };
    }

    const samples: Sample[] = [];
    for (let sent = 0; sent < size.sends; ) {
      const { latencies } = await callers.call({
        url: `${pod.url}/messaging/v1/send`,
        callers: size.callers,
        seconds: size.seconds,
      });
      sent += latencies.length;
      if (sent >= size.sends * WARM) samples.push(await sample());
      console.error(`${sent} of ${size.sends} sent`);
    }
    return { machine: await describeMachine(url, server.directory), results: growthOf(samples) };
  } finally {
    for (const close of closers) await close();
  }
}

/** The median of the last third over that of the first: what goes up and down with vacuum and the garbage collector is no growth. */
function growthOf(samples: Sample[]): Result[] {
  const third = Math.max(1, Math.floor(samples.length / 3));
  return Object.keys(samples[0]!).flatMap((name) => {
    const figures = samples.map((each) => each[name]!);
    const [early, late] = [median(figures.slice(0, third)), median(figures.slice(-third))];
    return [
      singleResult({ name, unit: '', figure: late }),
      singleResult({
        name: `growth of the ${name.split(',')[0]}`,
        unit: '×',
        figure: late / Math.max(1, early),
        atMost: BAR,
      }),
    ];
  });
}
