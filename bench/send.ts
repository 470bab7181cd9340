// Sending, three ways: through SQL in batches next to raw single-row inserts; one lone send; through HTTP next to two
// queue libraries behind a front of the same kind. And reading mail next to fetching jobs.
import { makeKeyRing, serializeKeyRing } from '../src/crypto/key-ring.ts';
import type { CallOrder } from './callers.ts';
import { describeMachine } from './machine.ts';
import { type Callers, startCallers, startPeerFronts, startPodProcess } from './processes.ts';
import { createInboxReader, createJobReader } from './receive.ts';
import { type Case, drive, type Measurement, median, type Report, runRounds } from './rounds.ts';
import { openLane, openRawInserter } from './send-calls.ts';
import { actAsPod, startBenchServer } from './server.ts';
import { type Sender, seedTenants } from './tenants.ts';

const BATCH = 50;
const LANES = 2;
const RAW_8 = 'raw insert, 8 clients';

/** How much of each: the bench itself, and a smoke run that only shows that everything still works. */
const FULL = {
  rounds: 5,
  seconds: 1.2,
  warmUpSeconds: 3,
  owners: { narrow: 50, wide: 1000 },
  callers: [1, 16, 64, 256],
};
const QUICK = { rounds: 1, seconds: 0.2, warmUpSeconds: 0.2, owners: { narrow: 2, wide: 3 }, callers: [1, 16] };

/** The bars of the contract, by callers: what our HTTP must reach of each peer's. */
const HTTP_BARS: Record<number, { 'pg-boss': number; 'graphile-worker': number }> = {
  64: { 'pg-boss': 1.6, 'graphile-worker': 1.8 },
  256: { 'pg-boss': 2.4, 'graphile-worker': 2.4 },
};

export async function benchSend({ isQuick }: { isQuick: boolean }): Promise<Report> {
  const size = isQuick ? QUICK : FULL;
  const server = await startBenchServer();
  const closers = [() => server.stop()];
  try {
    const keyRing = makeKeyRing();
    const narrowUrl = await server.makeDatabase('narrow');
    const wideUrl = await server.makeDatabase('wide');
    const inboxUrl = await server.makeDatabase('inboxes');
    const peersUrl = await server.makeDatabase('peers', { isOurs: false });
    const narrow = await seedTenants(narrowUrl, size.owners.narrow, keyRing);
    const wide = await seedTenants(wideUrl, size.owners.wide, keyRing);
    const readers = await seedTenants(inboxUrl, size.owners.narrow, keyRing);
    console.error(`seeded ${narrow.length} and ${wide.length} agents`);

    const inboxReader = createInboxReader(inboxUrl, readers);
    const jobReader = await createJobReader(peersUrl);
    const pod = await startPodProcess(narrowUrl, serializeKeyRing(keyRing));
    const fronts = await startPeerFronts(peersUrl);
    const callers = startCallers(narrow);
    closers.unshift(inboxReader.end, jobReader.end, pod.stop, fronts.stop, callers.stop);

    const cases = [
      ...(await rawCases(narrowUrl, size.seconds)),
      await laneCase(
        `batches of ${BATCH}, ${LANES} lanes, ${narrow.length} agents`,
        narrowUrl,
        narrow,
        size.seconds,
        0.75,
      ),
      await laneCase(`batches of ${BATCH}, ${LANES} lanes, ${wide.length} agents`, wideUrl, wide, size.seconds, 0.55),
      await loneCase(wideUrl, wide, size.seconds),
      { name: 'pg-boss fetch 20 + complete 20, 8 clients', unit: '/s', measure: () => jobReader.measure(size.seconds) },
      {
        name: 'receive 20 + acknowledge 20, 8 clients',
        unit: '/s',
        measure: () => inboxReader.measure(size.seconds),
        peers: [{ name: 'pg-boss fetch 20 + complete 20, 8 clients', atLeast: 0.6 }],
      },
      ...httpCases(callers, { pod: pod.url, fronts: fronts.url }, size),
    ] satisfies Case[];
    await inboxReader.fill();
    await jobReader.fill();
    await warmUp(cases, callers, { pod: pod.url, fronts: fronts.url }, size.warmUpSeconds);

    const results = await runRounds(cases, size.rounds, async () => {
      await inboxReader.fill();
      await jobReader.fill();
      await server.checkpoint();
    });
    return { machine: await describeMachine(narrowUrl, server.directory), results };
  } finally {
    for (const close of closers) await close();
  }
}

async function rawCases(url: string, seconds: number): Promise<Case[]> {
  return await Promise.all(
    [1, 8, 32].map(async (clients) => {
      const inserters = await Promise.all(Array.from({ length: clients }, () => openRawInserter(url)));
      return {
        name: clients === 8 ? RAW_8 : `raw insert, ${clients} ${clients === 1 ? 'client' : 'clients'}`,
        unit: '/s' as const,
        measure: async () => rate(await drive(clients, seconds, (client) => inserters[client]!())),
      };
    }),
  );
}

/** Lanes as a pod has them: what one group sends goes through one lane, so that lanes never wait for each other. */
async function laneCase(name: string, url: string, senders: Sender[], seconds: number, atLeast: number): Promise<Case> {
  const lanes = await Promise.all(
    Array.from({ length: LANES }, (_, lane) =>
      openLane(
        actAsPod(url),
        senders.filter(({ groupId }) => Number.parseInt(groupId.slice(-4), 16) % LANES === lane),
        BATCH,
      ),
    ),
  );
  return {
    name,
    unit: '/s',
    measure: async () => rate(await drive(LANES, seconds, (lane) => lanes[lane]!()), BATCH),
    peers: [{ name: RAW_8, atLeast }],
  };
}

async function loneCase(url: string, senders: Sender[], seconds: number): Promise<Case> {
  const send = await openLane(actAsPod(url), senders, 1);
  return {
    name: 'one lone send, median',
    unit: 'ms',
    measure: async () => ({ figure: median((await drive(1, seconds, () => send())).latencies) }),
    atMost: 3,
  };
}

function httpCases(callers: Callers<CallOrder>, urls: FrontUrls, size: { callers: number[]; seconds: number }): Case[] {
  return size.callers.flatMap((count) => {
    const measure = (url: string) => async () => {
      const { perSecond, latencies } = await callers.call({ url, callers: count, seconds: size.seconds });
      return { figure: perSecond, p50: median(latencies) };
    };
    const named = (what: string) => `HTTP ${count} ${count === 1 ? 'caller' : 'callers'}: ${what}`;
    const bars = HTTP_BARS[count];
    return [
      { name: named('pg-boss send'), unit: '/s', measure: measure(`${urls.fronts}/pg-boss`) },
      { name: named('graphile-worker addJob'), unit: '/s', measure: measure(`${urls.fronts}/graphile-worker`) },
      {
        name: named('posthorn'),
        unit: '/s',
        measure: measure(`${urls.pod}/messaging/v1/send`),
        peers: [
          { name: named('pg-boss send'), atLeast: bars?.['pg-boss'] },
          { name: named('graphile-worker addJob'), atLeast: bars?.['graphile-worker'] },
        ],
      },
    ] satisfies Case[];
  });
}

interface FrontUrls {
  pod: string;
  fronts: string;
}

/** Plans, connections, compiled code and the pod's plans of who writes to whom. */
async function warmUp(cases: Case[], callers: Callers<CallOrder>, urls: FrontUrls, seconds: number): Promise<void> {
  for (const { measure } of cases.filter(({ name }) => !name.startsWith('HTTP'))) await measure();
  for (const url of [`${urls.fronts}/pg-boss`, `${urls.fronts}/graphile-worker`, `${urls.pod}/messaging/v1/send`]) {
    await callers.call({ url, callers: 64, seconds });
  }
}

function rate({ calls, seconds }: { calls: number; seconds: number }, each = 1): Measurement {
  return { figure: (calls * each) / seconds };
}
