// npm run bench -- [name] [--quick] | --list | --page: measures ours next to its peers on one server in one run, prints a table
// and writes JSON to bench/results/. Exits with 1 where a bar is missed.
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { benchConversation } from './conversation.ts';
import { benchGrowth } from './growth.ts';
import { type Described, writePage } from './page.ts';
import { benchPods } from './pods.ts';
import { formatTable, missedBars, type Report } from './rounds.ts';
import { benchSend } from './send.ts';
import { benchSoak } from './soak.ts';
import { benchStart } from './start.ts';
import { benchStreams } from './streams.ts';
import { benchTidy } from './tidy.ts';
import { benchWake } from './wake.ts';
import { benchWebhooks } from './webhooks.ts';

interface Bench extends Described {
  run: (options: { isQuick: boolean }) => Promise<Report>;
}

const QUEUES =
  'pg-boss and graphile-worker are what a team would put on the PostgreSQL that it has; they neither seal, nor check, nor cap.';

const BENCHES: Record<string, Bench> = {
  send: {
    about: 'sends through SQL and HTTP next to raw inserts, pg-boss and graphile-worker; reading next to pg-boss',
    peers: `${QUEUES} Over HTTP they stand behind a front of the same kind that checks the same request.`,
    run: benchSend,
  },
  conversation: {
    about: 'write, read, acknowledge, answer: over HTTP and MCP next to the library calls of pg-boss',
    peers: `${QUEUES} Here they even need no server of their own: the caller's process holds the library.`,
    run: benchConversation,
  },
  tidy: {
    about: 'sends while overdue mail and requests are ended and outdated rows deleted, a month each round',
    peers: 'The peer is the same database without tidying, before and after it.',
    run: benchTidy,
  },
  growth: {
    about: 'what agents do every turn with 10^3 to 10^7 messages stored and 10^5 agents',
    peers: 'The peer is the smallest of the databases, on the same server.',
    run: benchGrowth,
  },
  pods: {
    about: 'one, two and four pods on one database',
    peers: 'The peer is one pod. A share of a core for each stands for machines of their own.',
    run: benchPods,
  },
  streams: {
    about: 'memory of event streams and work for an event, next to a bare node:http server and to nchan',
    peers: 'The bare server writes one frame to every response and knows of nobody; nchan is a module of nginx in C.',
    run: benchStreams,
  },
  wake: {
    about: 'from the commit of a send to the event in a reader, next to a bare NOTIFY',
    peers: 'The bare listener has nobody to prove, nothing to read and nothing to write.',
    run: benchWake,
  },
  webhooks: {
    about: 'deliveries of webhooks next to a bare undici loop; healthy endpoints beside dead ones',
    peers:
      'The loop opens a connection for each request, as whoever looks at each address must; it signs and records nothing.',
    run: benchWebhooks,
  },
  start: {
    about: 'time to ready, the first time and again; memory of a pod idle and after sends',
    peers: 'There is no peer.',
    run: benchStart,
  },
  soak: { about: 'a million sends: memory of each process and dead rows', peers: 'There is no peer.', run: benchSoak },
};

const RESULTS = join(import.meta.dirname, 'results');

const { values, positionals } = parseArgs({
  options: {
    list: { type: 'boolean', default: false },
    quick: { type: 'boolean', default: false },
    page: { type: 'boolean', default: false },
  },
  allowPositionals: true,
});

if (values.list) {
  for (const [name, { about }] of Object.entries(BENCHES)) console.log(`${name.padEnd(14)}${about}`);
} else if (values.page) {
  await writePage(BENCHES, RESULTS);
} else {
  for (const name of positionals.length > 0 ? positionals : Object.keys(BENCHES)) await runBench(name, values.quick);
}

async function runBench(name: string, isQuick: boolean): Promise<void> {
  const bench = BENCHES[name];
  if (!bench) {
    console.error(`There is no bench ${name}. --list names them.`);
    process.exitCode = 2;
    return;
  }
  const startedAt = new Date();
  const report = await bench.run({ isQuick });
  const missed = isQuick ? [] : missedBars(report.results);
  const { cpus, memory_gib, postgresql, node, fsync_ms } = report.machine;
  console.log(`\n${name}, ${startedAt.toISOString()}${isQuick ? ', quick: these figures mean nothing' : ''}`);
  console.log(`${cpus}, ${memory_gib} GiB, fsync ${fsync_ms} ms, PostgreSQL ${postgresql}, Node ${node}\n`);
  console.log(formatTable(report.results));
  for (const line of missed) console.log(`\nBAR MISSED: ${line}`);
  await writeReport({ name, startedAt, isQuick, ...report });
  if (missed.length > 0) process.exitCode = 1;
}

async function writeReport(report: Report & { name: string; startedAt: Date; isQuick: boolean }): Promise<void> {
  await mkdir(RESULTS, { recursive: true });
  const path = join(RESULTS, `${report.name}-${report.startedAt.toISOString().replaceAll(/[:.]/g, '-')}.json`);
  await writeFile(path, `${JSON.stringify(report, null, 2)}\n`);
  console.log(`\nWritten to ${path}`);
}
