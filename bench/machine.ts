// What a run was measured on. Figures of two machines do not compare; the ratios of one run do.
import { closeSync, fdatasyncSync, openSync, rmSync, writeSync } from 'node:fs';
import { cpus, totalmem } from 'node:os';
import { join } from 'node:path';
import pg from 'pg';
import { median } from './rounds.ts';

export interface Machine {
  cpus: string;
  memory_gib: number;
  node: string;
  postgresql: string;
  /** Median of writing 8 KiB and flushing it, in milliseconds. */
  fsync_ms: number;
}

export async function describeMachine(url: string, directory: string): Promise<Machine> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  const { rows } = await client.query(`select current_setting('server_version') as version`);
  await client.end();
  return {
    cpus: `${cpus().length} × ${cpus()[0]?.model.trim()}`,
    memory_gib: Math.round(totalmem() / 2 ** 30),
    node: process.version,
    postgresql: rows[0].version,
    fsync_ms: Number(median(probeFsync(join(directory, 'fsync-probe'))).toFixed(3)),
  };
}

function probeFsync(path: string): number[] {
  const page = Buffer.alloc(8192, 1);
  const file = openSync(path, 'w');
  const times = Array.from({ length: 100 }, () => {
    const started = performance.now();
    writeSync(file, page, 0, page.length, 0);
    fdatasyncSync(file);
    return performance.now() - started;
  });
  closeSync(file);
  rmSync(path);
  return times;
}
