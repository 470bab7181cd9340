import { open, rm, stat } from 'node:fs/promises';
import { setTimeout as wait } from 'node:timers/promises';
import { CommandError } from './failure.ts';

/** How long what is done under a lock may take, in milliseconds; after that its holder is dead. */
const STALE_MS = 30_000;
const RETRY_MS = 50;

/** Does something that only one process at a time may do, by a file that marks whose turn it is. */
export async function underLock<T>(path: string, work: () => Promise<T>): Promise<T> {
  const end = Date.now() + 2 * STALE_MS;
  while (!(await tryLock(path))) {
    if (Date.now() > end) throw new CommandError('busy', `Another process holds ${path}. If none runs, remove it.`);
    await removeIfStale(path);
    await wait(RETRY_MS);
  }
  try {
    return await work();
  } finally {
    await rm(path, { force: true });
  }
}

async function tryLock(path: string): Promise<boolean> {
  try {
    await (await open(path, 'wx', 0o600)).close();
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EEXIST') return false;
    throw error;
  }
}

async function removeIfStale(path: string): Promise<void> {
  const found = await stat(path).catch(() => undefined);
  if (found && Date.now() - found.mtimeMs > STALE_MS) await rm(path, { force: true });
}
