// Measures cases side by side: every round runs each case once, so that whatever else the machine does falls on
// all of them, and a ratio is taken within its round before the median is taken over the rounds.

import type { Machine } from './machine.ts';

export interface Measurement {
  /** In the unit of its case. */
  figure: number;
  /** The median latency of a call, in milliseconds. */
  p50?: number;
}

export interface Case {
  name: string;
  unit: '/s' | 'ms' | 'µs' | 'KiB' | 'MiB' | '%';
  measure(): Promise<Measurement>;
  /** Cases that this one is compared with; the ratio must reach the bar `atLeast` and stay below the bar `atMost`. */
  peers?: { name: string; atLeast?: number | undefined; atMost?: number | undefined }[];
  /** The bar for the figure itself, in its unit. */
  atMost?: number;
}

export interface Comparison {
  peer: string;
  ratio: number;
  atLeast: number | null;
  atMost: number | null;
}

export interface Result {
  name: string;
  unit: string;
  median: number;
  lowest: number;
  highest: number;
  rounds: number[];
  p50: number | null;
  comparisons: Comparison[];
  atMost: number | null;
}

export interface Report {
  machine: Machine;
  results: Result[];
}

export async function runRounds(cases: Case[], rounds: number, beforeRound: () => Promise<void>): Promise<Result[]> {
  const measured = new Map<string, Measurement[]>(cases.map(({ name }) => [name, []]));
  for (let round = 1; round <= rounds; round++) {
    await beforeRound();
    for (const { name, unit, measure } of cases) {
      const measurement = await measure();
      measured.get(name)?.push(measurement);
      console.error(`round ${round} of ${rounds}: ${name}: ${format(measurement.figure)} ${unit}`);
    }
  }
  return cases.map((one) => summarize(one, measured));
}

function summarize({ name, unit, peers, atMost }: Case, measured: Map<string, Measurement[]>): Result {
  const own = measured.get(name)!.map(({ figure }) => figure);
  const latencies = measured.get(name)!.flatMap(({ p50 }) => p50 ?? []);
  return {
    name,
    unit,
    median: median(own),
    lowest: Math.min(...own),
    highest: Math.max(...own),
    rounds: own,
    p50: latencies.length > 0 ? median(latencies) : null,
    comparisons: (peers ?? []).map(({ name: peer, atLeast, atMost: most }) => {
      const theirs = measured.get(peer);
      if (!theirs) throw new Error(`${name} is compared with ${peer}, which is no case`);
      return {
        peer,
        ratio: median(own.map((figure, round) => figure / theirs[round]!.figure)),
        atLeast: atLeast ?? null,
        atMost: most ?? null,
      };
    }),
    atMost: atMost ?? null,
  };
}

/** What is measured once and compared with nothing. */
export function singleResult({
  name,
  unit,
  figure,
  atMost,
}: {
  name: string;
  unit: string;
  figure: number;
  atMost?: number;
}): Result {
  const all = { median: figure, lowest: figure, highest: figure, rounds: [figure] };
  return { name, unit, ...all, p50: null, comparisons: [], atMost: atMost ?? null };
}

/** Bars that were missed, in words. */
export function missedBars(results: Result[]): string[] {
  return results.flatMap(({ name, unit, median: figure, comparisons, atMost }) => [
    ...comparisons
      .filter(({ ratio, atLeast }) => atLeast !== null && ratio < atLeast)
      .map(({ peer, ratio, atLeast }) => `${name}: ${ratio.toFixed(2)} of ${peer}, the bar is ${atLeast}`),
    ...comparisons
      .filter((comparison) => comparison.atMost !== null && comparison.ratio > comparison.atMost)
      .map(
        (comparison) =>
          `${name}: ${comparison.ratio.toFixed(2)} of ${comparison.peer}, the bar is ${comparison.atMost}`,
      ),
    ...(atMost !== null && figure > atMost ? [`${name}: ${format(figure)} ${unit}, the bar is ${atMost}`] : []),
  ]);
}

/** The head and a row for each case. */
export function tableRows(results: Result[]): string[][] {
  const rows = results.map(({ name, unit, median: figure, lowest, highest, p50, comparisons, atMost }) => [
    name,
    format(figure),
    `${format(lowest)}–${format(highest)}`,
    unit,
    p50 === null ? '' : format(p50),
    [
      ...comparisons.map(
        ({ peer, ratio, atLeast, atMost: most }) =>
          `${ratio.toFixed(2)} of ${peer}${(atLeast ?? most) === null ? '' : ` (bar ${atLeast ?? most})`}`,
      ),
      ...(atMost === null ? [] : [`(bar ${atMost})`]),
    ].join('; '),
  ]);
  return [['case', 'median', 'spread', 'unit', 'p50 ms', 'ratio'], ...rows];
}

export function formatTable(results: Result[]): string {
  const table = tableRows(results);
  const widths = table[0]?.map((_, column) => Math.max(...table.map((row) => row[column]?.length ?? 0))) ?? [];
  return table
    .map((row) =>
      row
        .map((cell, column) =>
          column === 1 || column === 4 ? cell.padStart(widths[column] ?? 0) : cell.padEnd(widths[column] ?? 0),
        )
        .join('  ')
        .trimEnd(),
    )
    .join('\n');
}

function format(figure: number): string {
  return figure >= 100 ? String(Math.round(figure)) : figure.toPrecision(3);
}

export function median(figures: number[]): number {
  const sorted = [...figures].sort((a, b) => a - b);
  const middle = (sorted.length - 1) / 2;
  return ((sorted[Math.floor(middle)] ?? Number.NaN) + (sorted[Math.ceil(middle)] ?? Number.NaN)) / 2;
}

/**
 * Calls `work` from `callers` at once, each again as soon as it has its answer, for a while, or until `isOver`.
 *
 * @returns completed calls, the seconds they took, and the latency of each in milliseconds
 */
export async function drive(
  callers: number,
  seconds: number,
  work: (caller: number) => Promise<unknown>,
  isOver: () => boolean = () => false,
): Promise<{ calls: number; seconds: number; latencies: number[] }> {
  const started = performance.now();
  const end = started + seconds * 1000;
  const latencies: number[] = [];
  await Promise.all(
    Array.from({ length: callers }, async (_, caller) => {
      for (let at = performance.now(); at < end && !isOver(); ) {
        await work(caller);
        const now = performance.now();
        latencies.push(now - at);
        at = now;
      }
    }),
  );
  return { calls: latencies.length, seconds: (performance.now() - started) / 1000, latencies };
}
