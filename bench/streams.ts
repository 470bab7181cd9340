// What an open event stream weighs and what an event for many streams costs, next to a bare node:http server that writes
// the same frames, and to nchan where Debian's package is installed. Readers are in a process of their own.
import { setTimeout as wait } from 'node:timers/promises';
import pg from 'pg';
import { makeKeyRing, serializeKeyRing } from '../src/crypto/key-ring.ts';
import { describeMachine } from './machine.ts';
import { hasNchan, startNchan } from './nchan.ts';
import { type StreamReaders, startStreamReaders, startStreamServer } from './processes.ts';
import { type Case, type Measurement, median, type Report, runRounds } from './rounds.ts';
import { startBenchServer } from './server.ts';
import type { ServerCost } from './stream-server.ts';
import { type Sender, seedTenants } from './tenants.ts';

const FULL = { rounds: 3, streams: [1_000, 5_000, 10_000], fanOut: 1_000, events: 60, apart: 500 };
const QUICK = { rounds: 1, streams: [40], fanOut: 20, events: 3, apart: 20 };
/** Streams that are opened and closed before the base is taken: code, pools and buffers. */
const WARM_UP = 200;
const AGENTS_PER_OWNER = 20;
/** Until what a closed or opened stream leaves behind for a moment is gone. */
const SETTLE_MS = 1_500;
/** Events for the neighbour beside each event for all: together more than the kernel and the pod hold for one reader. */
const FLOOD = 1_000;
/** The bars of the contract. */
const HEAP_KIB = 10;
const FAN_OUT_CPU = 1.15;
/** Within the noise of this machine: rounds without any neighbour differ by as much. */
const BESIDE_CRAWLER = 1.5;

/** One that serves streams, so that all can be measured alike. */
interface Target {
  url: string;
  path: string;
  tokens(count: number): string[];
  /** One event for every stream. */
  publish(): Promise<void> | void;
  measure(): Promise<ServerCost> | ServerCost;
  stop(): Promise<void>;
}

type Start = () => Promise<Target>;

export async function benchStreams({ isQuick }: { isQuick: boolean }): Promise<Report> {
  const size = isQuick ? QUICK : FULL;
  const server = await startBenchServer();
  const closers = [() => server.stop()];
  try {
    const keyRing = makeKeyRing();
    const url = await server.makeDatabase('streams');
    const senders = await seedTenants(url, Math.max(...size.streams) / AGENTS_PER_OWNER, keyRing);
    const database = new pg.Client({ connectionString: url });
    await database.connect();
    await database.query(`select ops.set_limit('streams_per_connection', 100000)`);
    const frame = await prepareEvent(database, senders[0]!);
    const readers = startStreamReaders();
    closers.unshift(
      () => database.end(),
      () => readers.stop(),
    );

    const raw: Start = async () => {
      const process = await startStreamServer(['raw']);
      return {
        ...process,
        path: '/',
        tokens: (count) => Array(count).fill('none'),
        publish: () => process.publish(frame),
      };
    };
    const ours: Start = async () => {
      const process = await startStreamServer(['posthorn', url, serializeKeyRing(keyRing)]);
      const { agentId, credential } = senders[0]!;
      return {
        ...process,
        path: `/messaging/v1/events?agent_id=${agentId}`,
        tokens: (count) => Array(count).fill(credential),
        publish: () => tell(database, [agentId]),
      };
    };
    const apart: Start = async () => {
      const process = await startStreamServer(['posthorn', url, serializeKeyRing(keyRing)]);
      return {
        ...process,
        path: '/messaging/v1/events?agent_id=AGENT',
        tokens: (count) => senders.slice(0, count).map(({ credential, agentId }) => `${credential} ${agentId}`),
        publish: () =>
          tell(
            database,
            senders.slice(0, size.apart).map(({ agentId }) => agentId),
          ),
      };
    };
    const nchan: Start = async () => {
      const process = await startNchan();
      return {
        ...process,
        path: '/events',
        tokens: (count) => Array(count).fill('none'),
        publish: () => process.publish(frame.slice(frame.indexOf('data: ') + 6).trim()),
      };
    };

    const cases: Case[] = [
      ...size.streams.flatMap((streams) => memoryCases(readers, streams, { raw, ours: apart, nchan })),
      ...cpuCases(readers, size.fanOut, size.events, { raw, ours, nchan }),
      {
        name: `CPU of ${size.apart} events for ${size.apart} agents: posthorn`,
        unit: 'ms',
        measure: () => measureCpu(readers, apart, size.apart, size.events),
      },
      ...neighbourCases(readers, size.fanOut, size.events, ours, {
        sender: senders.at(-1)!,
        flood: (agentId) => flood(database, agentId),
      }),
    ];
    const results = await runRounds(cases, size.rounds, () => server.checkpoint());
    return { machine: await describeMachine(url, server.directory), results };
  } finally {
    for (const close of closers) await close();
  }
}

interface Starts {
  raw: Start;
  ours: Start;
  nchan: Start;
}

function memoryCases(readers: StreamReaders, streams: number, { raw, ours, nchan }: Starts): Case[] {
  const named = (what: string, whose: string) => `${what} of a stream, ${streams} open: ${whose}`;
  // one opening for both figures
  const measured = new Map<string, number>();
  const heap = (whose: string, start: Start) => async (): Promise<Measurement> => {
    const { heapBytes, residentBytes } = await measureMemory(readers, start, streams);
    measured.set(whose, residentBytes / 1024);
    return { figure: heapBytes / 1024 };
  };
  const resident = (whose: string) => async () => ({ figure: measured.get(whose)! });
  return [
    { name: named('heap', 'node:http'), unit: 'KiB', measure: heap('raw', raw) },
    {
      name: named('heap', 'posthorn'),
      unit: 'KiB',
      measure: heap('ours', ours),
      peers: [{ name: named('heap', 'node:http') }],
      atMost: HEAP_KIB,
    },
    { name: named('memory', 'node:http'), unit: 'KiB', measure: resident('raw') },
    ...(hasNchan
      ? [
          {
            name: named('memory', 'nchan'),
            unit: 'KiB' as const,
            measure: async () => ({ figure: (await measureMemory(readers, nchan, streams)).residentBytes / 1024 }),
          },
        ]
      : []),
    {
      name: named('memory', 'posthorn'),
      unit: 'KiB',
      measure: resident('ours'),
      peers: [{ name: named('memory', 'node:http') }, ...(hasNchan ? [{ name: named('memory', 'nchan') }] : [])],
    },
  ];
}

function cpuCases(readers: StreamReaders, streams: number, events: number, { raw, ours, nchan }: Starts): Case[] {
  const named = (whose: string) => `CPU of an event for ${streams} streams: ${whose}`;
  const measure = (start: Start) => () => measureCpu(readers, start, streams, events);
  return [
    { name: named('node:http'), unit: 'ms', measure: measure(raw) },
    ...(hasNchan ? [{ name: named('nchan'), unit: 'ms' as const, measure: measure(nchan) }] : []),
    {
      name: named('posthorn'),
      unit: 'ms',
      measure: measure(ours),
      peers: [{ name: named('node:http'), atMost: FAN_OUT_CPU }, ...(hasNchan ? [{ name: named('nchan') }] : [])],
    },
  ];
}

interface Neighbour {
  sender: Sender;
  /** Many events for an agent. */
  flood(agentId: string): Promise<void>;
}

/** How long the slowest hundredth of the readers waits, while a neighbour is flooded that reads well, or hardly. */
function neighbourCases(
  readers: StreamReaders,
  streams: number,
  events: number,
  start: Start,
  neighbour: Neighbour,
): Case[] {
  const named = (beside: string) => `99th of 100 to ${streams} streams ${beside}`;
  const measure = (reads?: 'all' | 'a byte a second') => () =>
    measureTail(readers, start, streams, events, neighbour, reads);
  const [alone, hasty, crawling] = ['alone', 'beside one that takes everything', 'beside one at a byte a second'];
  return [
    { name: named(alone!), unit: 'ms', measure: measure() },
    { name: named(hasty!), unit: 'ms', measure: measure('all'), peers: [{ name: named(alone!) }] },
    {
      name: named(crawling!),
      unit: 'ms',
      measure: measure('a byte a second'),
      peers: [{ name: named(hasty!), atMost: BESIDE_CRAWLER }, { name: named(alone!) }],
    },
  ];
}

async function measureTail(
  readers: StreamReaders,
  start: Start,
  streams: number,
  events: number,
  { sender: { agentId, credential }, flood }: Neighbour,
  reads?: 'all' | 'a byte a second',
): Promise<Measurement> {
  const target = await start();
  let cuts = 0;
  try {
    await open(readers, target, streams);
    const path = `/messaging/v1/events?agent_id=${agentId}`;
    if (reads === 'all') await readers.obey({ open: { url: target.url, path, tokens: [credential] } });
    if (reads === 'a byte a second') await readers.obey({ crawl: { url: target.url, path, token: credential } });
    const latencies: number[] = [];
    for (let event = 0; event < events; event++) {
      if (reads) await flood(agentId);
      const publishedAt = performance.timeOrigin + performance.now();
      await target.publish();
      const { arrivedAt } = await readers.obey({ await: { events: streams } });
      latencies.push(...arrivedAt!.map((at) => at - publishedAt));
    }
    const { cuts: counted } = await readers.obey({ close: true });
    cuts = counted!;
    latencies.sort((a, b) => a - b);
    return { figure: latencies[Math.ceil(latencies.length * 0.99) - 1]!, p50: median(latencies) };
  } finally {
    await readers.obey({ close: true });
    await target.stop();
    if (reads === 'a byte a second') console.error(`the crawling reader was cut ${cuts} times`);
  }
}

/** What one stream adds to its server, in bytes. */
async function measureMemory(
  readers: StreamReaders,
  start: Start,
  streams: number,
): Promise<Pick<ServerCost, 'heapBytes' | 'residentBytes'>> {
  const target = await start();
  try {
    await open(readers, target, Math.min(WARM_UP, streams));
    await readers.obey({ close: true });
    await wait(SETTLE_MS);
    const base = await target.measure();
    await open(readers, target, streams);
    await wait(SETTLE_MS);
    const full = await target.measure();
    return {
      heapBytes: (full.heapBytes - base.heapBytes) / streams,
      residentBytes: (full.residentBytes - base.residentBytes) / streams,
    };
  } finally {
    await readers.obey({ close: true });
    await target.stop();
  }
}

/** What one event for all streams costs its server, in milliseconds of CPU. */
async function measureCpu(readers: StreamReaders, start: Start, streams: number, events: number): Promise<Measurement> {
  const target = await start();
  try {
    await open(readers, target, streams);
    const publish = async (count: number) => {
      for (let event = 0; event < count; event++) {
        await target.publish();
        await readers.obey({ await: { events: streams } });
      }
    };
    await publish(Math.ceil(events / 3));
    const { cpuMsAfterwards } = await target.measure();
    await publish(events);
    return { figure: ((await target.measure()).cpuMs - cpuMsAfterwards) / events };
  } finally {
    await readers.obey({ close: true });
    await target.stop();
  }
}

async function open(readers: StreamReaders, { url, path, tokens }: Target, streams: number): Promise<void> {
  await readers.obey({ open: { url, path, tokens: tokens(streams) } });
}

/** Stores the message that every event is about. @returns a frame of the size of ours */
async function prepareEvent(database: pg.Client, { agentId }: Sender): Promise<string> {
  await database.query(
    `create table bench.message as
     select m.owner_id, a.agent_id, posthorn.make_id() as message_id, m.group_id, c.conversation_id, p.agent_id as sender_agent_id, a.connection_id
       from posthorn.agents a
       join posthorn.members m on m.owner_id = a.owner_id and m.agent_id = a.agent_id
       join posthorn.members p on p.owner_id = m.owner_id and p.group_id = m.group_id and p.agent_id <> m.agent_id
       join posthorn.conversations c on c.owner_id = m.owner_id and c.group_id = m.group_id
        and c.agent_low = least(m.agent_id, p.agent_id) and c.agent_high = greatest(m.agent_id, p.agent_id)
      where p.agent_id = (select min(x.agent_id::text)::uuid from posthorn.members x
                           where x.owner_id = m.owner_id and x.group_id = m.group_id and x.agent_id <> m.agent_id)`,
  );
  await database.query(
    `insert into posthorn.messages (owner_id, message_id, state, recipient_agent_id, seq, sender_agent_id, connection_id, group_id, conversation_id, created_at, expires_at)
     select owner_id, message_id, 'queued', agent_id, 1, sender_agent_id, connection_id, group_id, conversation_id, now(), now() + interval '1 day' from bench.message`,
  );
  const id = Buffer.alloc(60, 'i').toString();
  const data = {
    type: 'messaging.pending',
    agent_id: agentId,
    occurred_at: new Date().toISOString(),
    pending_count: 1,
    group_id: agentId,
    conversation_id: agentId,
    message_ids: [agentId],
  };
  return `id: ${id}\nevent: messaging.pending\ndata: ${JSON.stringify(data)}\n\n`;
}

/** One event for each of these agents, and one notification, as a send makes them. */
async function tell(database: pg.Client, agentIds: string[]): Promise<void> {
  await database.query(
    `with counted as (
       update posthorn.mailboxes b set event_seq = b.event_seq + 1 where b.agent_id = any ($1) returning b.owner_id, b.agent_id, b.wake_number, b.event_seq
     ), told as (
       insert into posthorn.events (owner_id, agent_id, seq, kind, subject_id, occurred_at)
       select c.owner_id, c.agent_id, c.event_seq, 'messaging.pending', m.message_id, now() from counted c join bench.message m on m.owner_id = c.owner_id and m.agent_id = c.agent_id
     )
     select posthorn_impl.wake(array_agg(c.wake_number)) from counted c`,
    [agentIds],
  );
}

/** As many events at once for one agent, of a kind that readers do not count. */
async function flood(database: pg.Client, agentId: string): Promise<void> {
  await database.query(
    `with counted as (
       update posthorn.mailboxes b set event_seq = b.event_seq + $2 where b.agent_id = $1 returning b.owner_id, b.agent_id, b.wake_number, b.event_seq - $2 as base
     ), told as (
       insert into posthorn.events (owner_id, agent_id, seq, kind, subject_id, occurred_at)
       select c.owner_id, c.agent_id, c.base + n, 'wakeup.due', posthorn.make_id(), now() from counted c, generate_series(1, $2::int) n
     )
     select posthorn_impl.wake(array_agg(c.wake_number)) from counted c`,
    [agentId, FLOOD],
  );
}
