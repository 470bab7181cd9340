import { pino } from 'pino';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { startPod } from '../../src/pod.ts';
import { hasPooler, startPooler } from '../helpers/pooler.ts';
import { newKey, startPosthorn, type TestAgent, type TestPosthorn } from '../helpers/posthorn.ts';

const READS = 1_000;
const CALLERS = 20;

describe.skipIf(!hasPooler)('behind PgBouncer in transaction mode', () => {
  let posthorn: TestPosthorn;
  let pooler: Awaited<ReturnType<typeof startPooler>>;

  beforeAll(async () => {
    posthorn = await startPosthorn();
    pooler = await startPooler(posthorn.database.url);
  });
  afterAll(async () => {
    await pooler.stop();
    await posthorn.close();
  });

  test('1,000 interleaved reads of two owners show no foreign row, and wakes arrive over the direct connection', async () => {
    const log = pino({ enabled: false });
    const pod = await startPod({
      databaseUrl: pooler.url,
      listenUrl: posthorn.database.url,
      publicUrl: undefined,
      host: '127.0.0.1',
      port: 0,
      keyRing: posthorn.ring,
      readKeyRing: async () => posthorn.ring,
      log,
    });
    posthorn.pods.push(pod);
    const pairs = await Promise.all([1, 2].map(() => makePair()));
    const mine = pairs.map((pair) => new Set(pair.flatMap((agent) => [agent.id])));
    for (const [a, b] of pairs)
      await a.send({ recipient_agent_id: b.id, body: `for ${b.id}`, idempotency_key: newKey() }, 1);

    let read = 0;
    async function caller(number: number): Promise<void> {
      while (read < READS) {
        const which = (read++ + number) % 2;
        const [, b] = pairs[which]!;
        const listed = await b.call('GET', `/agents?agent_id=${b.id}`, undefined, 1);
        const received = await b.receive({}, 1);
        expect(
          listed.body.agents.map((agent: { id: string }) => agent.id).every((id: string) => mine[which]!.has(id)),
        ).toBe(true);
        expect(received.body.messages.map((message: { body: string }) => message.body)).toEqual([`for ${b.id}`]);
      }
    }
    await Promise.all(Array.from({ length: CALLERS }, (_, number) => caller(number)));

    const [a, b] = pairs[0]!;
    await b.ack(
      (await b.receive({}, 1)).body.messages.map((message: { id: string }) => message.id),
      {},
      1,
    );
    const waiting = b.receive({ wait_seconds: 25 }, 1);
    await b.call('GET', `/status?agent_id=${b.id}`, undefined, 1);
    const sent = await a.send({ recipient_agent_id: b.id, body: 'wake', idempotency_key: newKey() });
    expect((await waiting).body.messages.map((message: { id: string }) => message.id)).toEqual([sent.body.id]);
  }, 120_000);

  async function makePair(): Promise<[TestAgent, TestAgent]> {
    const owner = await posthorn.owner();
    const pair: [TestAgent, TestAgent] = [await owner.agent('a'), await owner.agent('b')];
    await owner.group(pair);
    return pair;
  }
});
