import { beforeAll, expect, test, vi } from 'vitest';
import { makeKeyRing, serializeKeyRing } from '../../src/crypto/key-ring.ts';
import { makeOwner } from '../../src/new-owner.ts';
import { runHere, type Settings, startProcess } from '../helpers/command-line.ts';
import { createTestDatabase, type TestDatabase } from '../helpers/database.ts';
import { type Answer, callHttp } from '../helpers/posthorn.ts';

vi.setConfig({ testTimeout: 120_000 });

const SENDS = 300;
const CALLERS = 30;
const ATTEMPTS = 50;

let database: TestDatabase;
let settings: Settings;

beforeAll(async () => {
  database = await createTestDatabase();
  const ring = makeKeyRing();
  await makeOwner(database.as('posthorn_admin'), ring, 'Owner');
  for (const name of ['conversation_posts', 'group_posts_per_minute', 'inbox_messages']) {
    await database.admin.query('select ops.set_limit($1, 10000)', [name]);
  }
  settings = {
    POSTHORN_DATABASE_URL: database.url,
    POSTHORN_KEYRING: serializeKeyRing(ring),
    POSTHORN_PORT: '0',
    POSTHORN_DATA_DIR: '/nowhere',
  };
});

test('kill -9 of a pod in the middle of 300 keyed sends, each retried, makes exactly 300 messages', async () => {
  const pods = await Promise.all([startProcess(['serve'], settings), startProcess(['serve'], settings)]);
  const urls = pods.map((pod) => pod.ready.url as string);
  const agent = async (label: string) => {
    const { token } = (
      await runHere(['token', 'create', '--label', label, '--scope', 'messaging', '--json'], settings)
    ).json();
    const { body } = await callHttp(urls[1]!, token, 'POST', '/messaging/v1/agents', {
      label,
      runtime: 'other',
      installation: label,
    });
    return { token, id: body.id as string };
  };
  const [a, b] = [await agent('a'), await agent('b')];
  await runHere(
    ['owner', 'groups', 'create', '--name', 'g', '--purpose', 'p', '--agent', a.id, '--agent', b.id, '--json'],
    settings,
  );

  const outcomes: Answer[] = [];
  let next = 0;
  let failures = 0;

  /** Tries the two pods in turn, as a client behind a balancer would, until it has an answer. */
  async function sendUntilAnswered(index: number): Promise<void> {
    const body = {
      agent_id: a.id,
      recipient_agent_id: b.id,
      body: `message ${index}`,
      idempotency_key: `key-${index}`,
    };
    for (let attempt = 0; attempt < ATTEMPTS; attempt++) {
      const answer = await callHttp(urls[(index + attempt) % 2]!, a.token, 'POST', '/messaging/v1/send', body).catch(
        () => null,
      );
      if (answer && answer.status < 300) return void outcomes.push(answer);
      failures++;
    }
    throw new Error(`message ${index} got no answer`);
  }

  async function caller(): Promise<void> {
    while (next < SENDS) {
      const index = next++;
      await sendUntilAnswered(index);
      if (outcomes.length === SENDS / 3) pods[0]!.child.kill('SIGKILL');
    }
  }

  await Promise.all(Array.from({ length: CALLERS }, caller));
  await pods[0]!.exited;
  expect(failures, 'calls that the kill cut off').toBeGreaterThan(0);
  expect(new Set(outcomes.map(({ body }) => body.id)).size).toBe(SENDS);
  const { rows } = await database.admin.query(
    'select count(*)::int as messages, count(distinct seq)::int as places from posthorn.messages',
  );
  expect(rows).toEqual([{ messages: SENDS, places: SENDS }]);
  expect((await database.admin.query('select * from ops.invariants')).rows).toEqual([]);
  pods[1]!.child.kill('SIGTERM');
  expect(await pods[1]!.exited).toBe(0);
});
