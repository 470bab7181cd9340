// docs/benchmarks.md, from the newest results of each bench.
import { readdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { packageRoot } from '../src/package-root.ts';
import { type Report, type Result, tableRows } from './rounds.ts';

export interface Described {
  about: string;
  /** Who stands beside ours, and why that is fair; what limits where a bar is missed. */
  peers: string;
}

type Stored = Report & { name: string; startedAt: string; isQuick: boolean };

/**
 * Writes the page. A bench that was never run in full on this machine is left out.
 *
 * @param directory where the results are, a file for each run
 */
export async function writePage(benches: Record<string, Described>, directory: string): Promise<void> {
  const files = await readdir(directory);
  const sections: string[] = [];
  for (const [name, described] of Object.entries(benches)) {
    const runs = files.filter((file) => file.startsWith(`${name}-`) && file.endsWith('.json')).sort();
    const stored = await Promise.all(
      runs.map(async (file) => JSON.parse(await readFile(join(directory, file), 'utf8')) as Stored),
    );
    const last = stored.findLast(({ isQuick }) => isQuick === false);
    if (last) sections.push(section(name, described, last));
  }
  await writeFile(join(packageRoot, 'docs', 'benchmarks.md'), [INTRODUCTION, ...sections].join('\n'));
}

const INTRODUCTION = `# How fast is it?

Written by \`npm run bench -- --page\` from the newest full run of each bench. Run one with \`npm run bench -- <name>\`.
Figures are medians over rounds in which ours and the peers take turns; ratios are taken within a round, so that what else
the machine does falls on both. Figures of two machines do not compare.
`;

function section(name: string, { about, peers }: Described, { startedAt, machine, results }: Stored): string {
  const { cpus, memory_gib, postgresql, node, fsync_ms } = machine;
  return `## ${name}

${capitalize(about)}. ${peers}

${startedAt.slice(0, 10)}, ${cpus}, ${memory_gib} GiB, fsync ${fsync_ms} ms, PostgreSQL ${postgresql}, Node.js ${node}.

${markdownTable(results)}
`;
}

function markdownTable(results: Result[]): string {
  const [head, ...rows] = tableRows(results);
  return [head!, head!.map(() => '---'), ...rows].map((row) => `| ${row.join(' | ')} |`).join('\n');
}

function capitalize(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
