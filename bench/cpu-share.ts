// A share of a core for one process, by a control group: pods that share this machine's cores with their database and
// their callers would otherwise say nothing about pods on machines of their own.
import { existsSync } from 'node:fs';
import { mkdir, rmdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';

/** Short, since a process that used its share stands still for the rest of it. */
const PERIOD_MICROSECONDS = 10_000;

const ROOT = '/sys/fs/cgroup';

/**
 * Lets a process use no more than this share of one core.
 *
 * @returns how to remove the group when the process is gone
 * @throws Error where this process may not make control groups
 */
export async function limitCpu(pid: number, share: number): Promise<() => Promise<void>> {
  const quota = Math.round(share * PERIOD_MICROSECONDS);
  const isUnified = existsSync(join(ROOT, 'cgroup.controllers'));
  const group = join(ROOT, isUnified ? '' : 'cpu', `posthorn-bench-${pid}`);
  await mkdir(group);
  if (isUnified) {
    await writeFile(join(group, 'cpu.max'), `${quota} ${PERIOD_MICROSECONDS}`);
  } else {
    await writeFile(join(group, 'cpu.cfs_period_us'), String(PERIOD_MICROSECONDS));
    await writeFile(join(group, 'cpu.cfs_quota_us'), String(quota));
  }
  await writeFile(join(group, 'cgroup.procs'), String(pid));
  return () => rmdir(group);
}
