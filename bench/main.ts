// npm run bench -- [name] [--quick] | --list: measures ours next to its peers on one server in one run, prints a table
// and writes JSON to bench/results/. Exits with 1 where a bar is missed.
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { formatTable, missedBars, type Report } from './rounds.ts';
import { benchSend } from './send.ts';
import { benchStreams } from './streams.ts';
import { benchTidy } from './tidy.ts';
import { benchWake } from './wake.ts';
import { benchWebhooks } from './webhooks.ts';

interface Bench {
  about: string;
  run: ((options: { isQuick: boolean }) => Promise<Report>) | undefined;
}

const BENCHES: Record<string, Bench> = {
  send: {
    about: 'sends through SQL and HTTP next to raw inserts, pg-boss and graphile-worker; reading next to pg-boss',
    run: benchSend,
  },
  tidy: {
    about: 'sends while overdue mail and requests are ended and outdated rows deleted, a month each round',
    run: benchTidy,
  },
  conversation: { about: 'comes with the full set of measurements', run: undefined },
  growth: { about: 'comes with the full set of measurements', run: undefined },
  pods: { about: 'comes with the full set of measurements', run: undefined },
  streams: {
    about: 'memory of event streams and work for an event, next to a bare node:http server and to nchan',
    run: benchStreams,
  },
  wake: { about: 'from the commit of a send to the event in a reader, next to a bare NOTIFY', run: benchWake },
  webhooks: {
    about: 'deliveries of webhooks next to a bare undici loop; healthy endpoints beside dead ones',
    run: benchWebhooks,
  },
  start: { about: 'comes with the full set of measurements', run: undefined },
};

const { values, positionals } = parseArgs({
  options: { list: { type: 'boolean', default: false }, quick: { type: 'boolean', default: false } },
  allowPositionals: true,
});

if (values.list) {
  for (const [name, { about }] of Object.entries(BENCHES)) console.log(`${name.padEnd(14)}${about}`);
} else {
  for (const name of positionals.length > 0 ? positionals : builtBenches()) await runBench(name, values.quick);
}

function builtBenches(): string[] {
  return Object.keys(BENCHES).filter((name) => BENCHES[name]?.run);
}

async function runBench(name: string, isQuick: boolean): Promise<void> {
  const bench = BENCHES[name];
  if (!bench?.run) {
    console.error(
      bench ? `There is no bench ${name} yet: it ${bench.about}.` : `There is no bench ${name}. --list names them.`,
    );
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
  await writeReport({ name, startedAt, ...report });
  if (missed.length > 0) process.exitCode = 1;
}

async function writeReport(report: Report & { name: string; startedAt: Date }): Promise<void> {
  const directory = join(import.meta.dirname, 'results');
  await mkdir(directory, { recursive: true });
  const path = join(directory, `${report.name}-${report.startedAt.toISOString().replaceAll(/[:.]/g, '-')}.json`);
  await writeFile(path, `${JSON.stringify(report, null, 2)}\n`);
  console.log(`\nWritten to ${path}`);
}
