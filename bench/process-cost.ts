// What processes cost, as Linux counts it in /proc.
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

/** Clock ticks of /proc, which are hundredths of a second on every Linux that Node runs on. */
const MS_PER_TICK = 10;

/** The server process of a database folder and all that it started. */
export function postgresProcesses(directory: string): number[] {
  const postmaster = Number(readFileSync(join(directory, 'cluster', 'postmaster.pid'), 'utf8').split('\n')[0]);
  return [postmaster, ...processes().filter((pid) => statOf(pid)?.parent === postmaster)];
}

/** CPU that processes used until now, in milliseconds. */
export function cpuMsOf(pids: number[]): number {
  return pids.reduce((sum, pid) => sum + (statOf(pid)?.cpuMs ?? 0), 0);
}

/** Memory that is the process's own and not shared with others, in MiB. */
export function ownMemoryOf(pid: number): number {
  const kib = /^RssAnon:\s+(\d+) kB/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1];
  return Number(kib) / 1024;
}

function processes(): number[] {
  return readdirSync('/proc').map(Number).filter(Number.isInteger);
}

/** @returns undefined for one that ended meanwhile */
function statOf(pid: number): { parent: number; cpuMs: number } | undefined {
  try {
    // what stands in parentheses is the program's name, which may hold anything
    const fields = readFileSync(`/proc/${pid}/stat`, 'utf8')
      .replace(/^.*\) /s, '')
      .split(' ');
    return { parent: Number(fields[1]), cpuMs: (Number(fields[11]) + Number(fields[12])) * MS_PER_TICK };
  } catch {
    return undefined;
  }
}
