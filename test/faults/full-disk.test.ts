import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import { createWriteStream, mkdtempSync, rmSync } from 'node:fs';
import { chmod, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { type OwnServer, startOwnServer } from '../helpers/own-server.ts';
import { startPosthorn, type TestPosthorn } from '../helpers/posthorn.ts';
import { liftLimits, startTraffic } from '../helpers/traffic.ts';

const DISK = '256m';
const POSTS = 30;
const UNAVAILABLE = '503 unavailable, Retry-After 1';

const disk = mountDisk();
let server: OwnServer;
let posthorn: TestPosthorn;
afterAll(async () => {
  await posthorn?.close();
  await server?.remove();
  if (!disk) return;
  execFileSync('umount', [disk]);
  rmSync(disk, { recursive: true });
});

// Only root may mount, and not in every container.
test.skipIf(!disk)(
  'a full disk under the database: 503 meanwhile, and nothing lost or half done when there is room',
  async () => {
    await chmod(disk!, 0o755);
    server = await startOwnServer(disk);
    const { database } = server;
    posthorn = await startPosthorn({ database, pods: 2 });
    await liftLimits(database);
    const owner = await posthorn.owner();
    const agents = await Promise.all(['a', 'b', 'c'].map((label) => owner.agent(label)));
    const { id: groupId } = await owner.group(agents);
    const urls = posthorn.pods.map(({ url }) => url);
    const traffic = await startTraffic({ urls, agents, groupId, database });
    await traffic.more(POSTS);

    const ballast = join(disk!, 'ballast');
    await fill(ballast);
    await traffic.refused(/^503/);
    expect((await fetch(`${urls[0]}/healthz`)).status).toBe(200);
    await rm(ballast);
    await server.stop(); // it may have ended by itself, where it could not write its log
    await server.start();
    await traffic.more(POSTS);
    await traffic.finish();
    expect(new Set(traffic.refusals.map(({ told }) => told))).toEqual(new Set([UNAVAILABLE]));
  },
  180_000,
);

function mountDisk(): string | undefined {
  const folder = mkdtempSync(join(tmpdir(), 'posthorn-disk-'));
  try {
    execFileSync('mount', ['-t', 'tmpfs', '-o', `size=${DISK}`, 'tmpfs', folder], { stdio: 'ignore' });
    return folder;
  } catch {
    rmSync(folder, { recursive: true });
    return undefined;
  }
}

/** Writes until there is no room. */
async function fill(path: string): Promise<void> {
  const file = createWriteStream(path);
  const full = once(file, 'error');
  const block = Buffer.alloc(1 << 20);
  const write = (): void => void file.write(block, (error) => error ?? write());
  write();
  const [error] = await full.catch((thrown) => [thrown]);
  expect((error as NodeJS.ErrnoException).code).toBe('ENOSPC');
}
