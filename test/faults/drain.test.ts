import { once } from 'node:events';
import { afterAll, expect, test } from 'vitest';
import { makeKeyRing, serializeKeyRing } from '../../src/crypto/key-ring.ts';
import { makeOwner } from '../../src/new-owner.ts';
import { runHere, type ServerProcess, startProcess } from '../helpers/command-line.ts';
import { createTestDatabase } from '../helpers/database.ts';
import { openStream, type TestStream } from '../helpers/event-stream.ts';
import { callHttp } from '../helpers/posthorn.ts';

// POSTHORN_TEST_DRAIN_STREAMS makes it as large as one likes; 2,000 is the full form.
const STREAMS = Number(process.env.POSTHORN_TEST_DRAIN_STREAMS ?? 300);
const AT_ONCE = 20;
const DRAIN_MS = 10_000;

let pod: ServerProcess;
afterAll(() => void pod.child.kill('SIGKILL'));

test(`SIGTERM with ${STREAMS} streams: each is told when to come back, spread out, and the pod exits in time`, async () => {
  const database = await createTestDatabase();
  const ring = makeKeyRing();
  await makeOwner(database.as('posthorn_admin'), ring, 'Owner');
  await database.admin.query(`select ops.set_limit('streams_per_connection', 100000)`);
  const settings = {
    POSTHORN_DATABASE_URL: database.url,
    POSTHORN_KEYRING: serializeKeyRing(ring),
    POSTHORN_PORT: '0',
    POSTHORN_DATA_DIR: '/nowhere',
  };
  pod = await startProcess(['serve'], settings);
  const { url } = pod.ready;
  const { token } = (
    await runHere(['token', 'create', '--label', 'a', '--scope', 'messaging', '--json'], settings)
  ).json();
  const registration = { label: 'a', runtime: 'other', installation: 'a' };
  const { id } = (await callHttp(url, token, 'POST', '/messaging/v1/agents', registration)).body;
  const streams: TestStream[] = [];
  while (streams.length < STREAMS) {
    const some = Array.from({ length: Math.min(AT_ONCE, STREAMS - streams.length) }, () =>
      openStream(url, token, `/messaging/v1/events?agent_id=${id}`),
    );
    streams.push(...(await Promise.all(some)));
  }
  await Promise.all(streams.map((stream) => stream.until((events) => events.length > 0)));

  const startedAt = performance.now();
  pod.child.kill('SIGTERM');
  pod.child.kill('SIGTERM');
  await Promise.all(streams.map(({ ended }) => ended));
  await once(pod.child, 'exit');
  expect(performance.now() - startedAt).toBeLessThan(DRAIN_MS);
  expect(await pod.exited).toBe(0);

  const farewells = streams.map(({ events }) => events.at(-1)!);
  for (const { event, data } of farewells) expect([event, data.reason]).toEqual(['stream.closing', 'draining']);
  const perSecond = new Map<number, number>();
  for (const { data } of farewells) {
    const second = Math.floor(data.retry_ms / 1_000);
    perSecond.set(second, (perSecond.get(second) ?? 0) + 1);
  }
  expect(perSecond.size).toBeGreaterThanOrEqual(5);
  expect(Math.max(...perSecond.values())).toBeLessThan((3 * STREAMS) / perSecond.size);
  expect((await database.admin.query('select from posthorn.streams')).rowCount).toBe(0);
}, 120_000);
