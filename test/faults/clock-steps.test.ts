import { existsSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { serializeKeyRing } from '../../src/crypto/key-ring.ts';
import { revokeConnection } from '../../src/db/functions.ts';
import { askApart } from '../helpers/answers.ts';
import { type ServerProcess, startProcess } from '../helpers/command-line.ts';
import { openStream } from '../helpers/event-stream.ts';
import { newKey, startPosthorn, type TestAgent, type TestPosthorn } from '../helpers/posthorn.ts';
import { liftLimits, startTraffic } from '../helpers/traffic.ts';

// Whose clock is wrong is a process of ours; the database's counts, and it is right. Debian's libfaketime shows a process
// another time of day, and leaves its timers alone, as a step of a real clock does.
const POSTS = 20;
const LIBRARY = findLibrary();
const DAYS = { 'a day ahead': 86_400, 'a day behind': -86_400 };

let posthorn: TestPosthorn;
const folder = mkdtempSync(join(tmpdir(), 'posthorn-clock-'));
const offset = join(folder, 'offset');
const pods: ServerProcess[] = [];
afterAll(async () => {
  for (const { child } of pods) child.kill('SIGKILL');
  await Promise.all(pods.map(({ exited }) => exited));
  await posthorn?.close();
  rmSync(folder, { recursive: true });
});

const step = (seconds: number) => writeFileSync(offset, seconds < 0 ? String(seconds) : `+${seconds}`);

test.skipIf(!LIBRARY)(
  'the clock of a pod steps by a day, there and back: no call fails, streams end when and why they should',
  async () => {
    posthorn = await startPosthorn();
    const { database, ring } = posthorn;
    await liftLimits(database);
    step(0);
    const pod = await startProcess(['serve'], {
      POSTHORN_DATABASE_URL: database.url,
      POSTHORN_KEYRING: serializeKeyRing(ring),
      POSTHORN_PORT: '0',
      POSTHORN_DATA_DIR: '/nowhere',
      LD_PRELOAD: LIBRARY!,
      FAKETIME_TIMESTAMP_FILE: offset,
      FAKETIME_NO_CACHE: '1',
      FAKETIME_DONT_FAKE_MONOTONIC: '1',
    });
    pods.push(pod);
    const { url } = pod.ready;
    const owner = await posthorn.owner();
    const agents = await Promise.all(['a', 'b', 'c'].map((label) => owner.agent(label)));
    const { id: groupId } = await owner.group(agents);
    const traffic = await startTraffic({ urls: [url, posthorn.pods[0]!.url], agents, groupId, database });
    const open = (agent: TestAgent) => openStream(url, agent.token, `/messaging/v1/events?agent_id=${agent.id}`);
    const endsAfter = (agent: TestAgent, time: string) =>
      database.admin.query(
        'update posthorn.connections set expires_at = clock_timestamp() + $2::interval where connection_id = $1',
        [agent.connectionId, time],
      );

    for (const [name, seconds] of Object.entries(DAYS)) {
      const [expiring, revoked] = [await owner.agent('expiring'), await owner.agent('revoked')];
      await endsAfter(expiring, '3 seconds');
      await endsAfter(revoked, '1 hour');
      const streams = [await open(expiring), await open(revoked)];
      await Promise.all(streams.map((stream) => stream.until((events) => events.length > 0)));
      step(seconds);
      const ahead = async () => {
        const date = Date.parse((await fetch(`${url}/healthz`)).headers.get('date')!);
        return Math.round((date - Date.now()) / 60_000) * 60;
      };
      await expect.poll(ahead).toBe(seconds); // Node writes the same date for a second
      await traffic.more(POSTS);
      await streams[0]!.ended;
      await owner.act((db, credential) => revokeConnection(db, { credential, connectionId: revoked.connectionId }));
      await streams[1]!.ended;
      expect(
        streams.map(({ events }) => events.at(-1)!.data.reason),
        name,
      ).toEqual(['expired', 'revoked']);
      step(0);
      await traffic.more(POSTS);
    }
    await traffic.finish();
    expect(traffic.refusals).toEqual([]);
  },
  120_000,
);

test.skipIf(!LIBRARY).each(Object.entries(DAYS))(
  'a client whose clock is %s is served as any other',
  async (_, seconds) => {
    posthorn ??= await startPosthorn();
    step(seconds);
    const owner = await posthorn.owner();
    const [a, b] = [await owner.agent('a'), await owner.agent('b')];
    await owner.group([a, b]);
    const as = (agent: TestAgent, ...args: string[]) =>
      askApart(args, {
        POSTHORN_URL: posthorn.pods[0]!.url,
        POSTHORN_TOKEN: agent.token,
        POSTHORN_AGENT_ID: agent.id,
        LD_PRELOAD: LIBRARY!,
        FAKETIME_TIMESTAMP_FILE: offset,
      });
    const key = newKey();
    const send = () =>
      as(a, 'messages', 'send', '--recipient-agent-id', b.id, '--message', 'words', '--idempotency-key', key);
    const { id } = await send();
    expect(await send()).toMatchObject({ id, replayed: true });
    expect((await as(b, 'messages', 'receive')).messages).toMatchObject([{ id, body: 'words' }]);
  },
);

function findLibrary(): string | undefined {
  const root = '/usr/lib';
  const folders = existsSync(root) ? readdirSync(root) : [];
  return folders.map((name) => join(root, name, 'faketime', 'libfaketime.so.1')).find((path) => existsSync(path));
}
