import { cp, mkdtemp, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { serializeKeyRing } from '../../src/crypto/key-ring.ts';
import { packageRoot } from '../../src/package-root.ts';
import { runCommand, type ServerProcess, startProcess } from '../helpers/command-line.ts';
import { createTestDatabase } from '../helpers/database.ts';
import { startPosthorn, type TestPosthorn } from '../helpers/posthorn.ts';
import { liftLimits, startTraffic } from '../helpers/traffic.ts';

const POSTS = 30;
/** Functions are exchanged this often under load. */
const REBUILDS = process.env.POSTHORN_TEST_FAULTS === 'long' ? 50 : 3;

let posthorn: TestPosthorn;
let folder: string;
const pods: ServerProcess[] = [];
afterAll(async () => {
  for (const { child } of pods) child.kill('SIGKILL');
  await Promise.all(pods.map(({ exited }) => exited));
  await posthorn.close();
  await rm(folder, { recursive: true, force: true });
});

test('an upgrade under traffic, old and new pods side by side: no call fails, and the old ones end in good order', async () => {
  const database = await createTestDatabase();
  posthorn = await startPosthorn({ database });
  await liftLimits(database);
  const settings = {
    POSTHORN_DATABASE_URL: database.url,
    POSTHORN_KEYRING: serializeKeyRing(posthorn.ring),
    POSTHORN_PORT: '0',
    POSTHORN_DATA_DIR: '/nowhere',
  };
  const owner = await posthorn.owner();
  const agents = await Promise.all(['a', 'b', 'c'].map((label) => owner.agent(label)));
  const { id: groupId } = await owner.group(agents);
  const old = await startProcess(['serve'], settings);
  pods.push(old);
  const urls = [posthorn.pods[0]!.url, old.ready.url];
  const traffic = await startTraffic({ urls, agents, groupId, database });
  await traffic.more(POSTS);

  folder = await mkdtemp(join(tmpdir(), 'posthorn-newer-'));
  for (const part of ['src', 'sql', 'jobs', 'package.json'])
    await cp(join(packageRoot, part), join(folder, part), { recursive: true });
  await symlink(join(packageRoot, 'node_modules'), join(folder, 'node_modules'));
  const addMigration = (name: string, text: string) => writeFile(join(folder, 'sql', 'migrations', name), text);
  await addMigration(
    '9000_newer.sql',
    'set local role posthorn_owner;\nalter table posthorn.messages add column newer text;\n',
  );
  const newer = join(folder, 'src', 'main.ts');
  for (let rebuild = 0; rebuild < REBUILDS; rebuild++) {
    await writeFile(join(folder, 'sql', 'current', '99_newer.sql'), `-- ${rebuild}\n`);
    expect(await runCommand(['migrate', '--json'], settings, undefined, newer)).toMatchObject({ code: 0 });
    await traffic.more(POSTS / 5);
  }
  expect((await fetch(`${old.ready.url}/readyz`)).status).toBe(200);
  const fresh = await startProcess(['serve'], settings, newer);
  pods.push(fresh);
  urls.push(fresh.ready.url);
  await traffic.more(POSTS);
  urls.splice(1, 1);
  old.child.kill('SIGTERM');
  expect(await old.exited).toBe(0);
  await traffic.more(POSTS);
  await traffic.finish();
  expect(traffic.refusals.map(({ told }) => told).filter((told) => told !== 'no answer')).toEqual([]);

  // a change that older builds cannot live with
  await addMigration('9001_breaking.sql', '--! breaking\nselect 1;\n');
  expect(await runCommand(['migrate', '--json'], settings, undefined, newer)).toMatchObject({ code: 0 });
  expect((await fetch(`${posthorn.pods[0]!.url}/readyz`)).status).toBe(503);
  const refused = await runCommand(['serve', '--json'], settings);
  expect(refused.code).toBe(57);
}, 180_000);
