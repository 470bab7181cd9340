import { afterAll, describe, expect, test } from 'vitest';
import { makeId } from '../../src/crypto/ids.ts';
import * as functions from '../../src/db/functions.ts';
import {
  type Agent,
  advance,
  createWorld,
  expectInvariants,
  type Level,
  messageStatus,
  type Owner,
  openMessage,
  readInbox,
  refusal,
  send,
} from '../helpers/world.ts';

const world = await createWorld();
const { app, clock, database } = world;

afterAll(() => expectInvariants(world));

async function pair(): Promise<{ owner: Owner; a: Agent; b: Agent; group: functions.GroupView }> {
  const owner = await world.makeOwner();
  const [a, b] = (await owner.agents(2)) as [Agent, Agent];
  return { owner, a, b, group: await owner.group([a, b]) };
}

/** Mail from a to b. */
async function mail(
  count = 1,
  body?: string,
): Promise<{ owner: Owner; a: Agent; b: Agent; group: functions.GroupView; ids: string[]; conversationId: string }> {
  const between = await pair();
  const ids: string[] = [];
  let conversationId = '';
  for (let index = 0; index < count; index++) {
    const sent = await send(world, { from: between.a, to: between.b, body });
    ids.push(...sent.messageIds!);
    conversationId = sent.conversationId!;
  }
  return { ...between, ids, conversationId };
}

const eventsOf = async (
  agent: Agent,
): Promise<{ seq: number; kind: string; subject_id: string; state: string | null }[]> =>
  (
    await database.admin.query(
      'select seq, kind, subject_id, state from posthorn.events where agent_id = $1 order by seq',
      [agent.id],
    )
  ).rows;

const hasBody = async (id: string): Promise<boolean> =>
  (await database.admin.query('select from posthorn.bodies where message_id = $1', [id])).rowCount === 1;

describe('states move along the table and in no other way', () => {
  type Mail = Awaited<ReturnType<typeof mail>>;

  /** How a message comes into a state. `held` and `denied` come with proposals. */
  const INTO: Record<string, (mail: Mail) => Promise<unknown>> = {
    queued: async () => {},
    delivered: ({ b, ids }) => advance(world, b, 'delivered', ids),
    acknowledged: ({ b, ids }) => advance(world, b, 'acknowledged', ids),
    replied: ({ b, ids, conversationId }) => send(world, { from: b, conversation: conversationId, replyTo: ids[0] }),
    revoked: ({ owner, group }) => functions.revokeGroup(app, { credential: owner.session, groupId: group.id }),
    expired: async () => {
      await clock.advance('24 hours');
      await functions.expireMessages(database.as('posthorn_jobs'), { limit: 1_000 });
    },
  };
  /** What tries to move it on, whatever state it is in. */
  const BY: Record<string, (mail: Mail) => Promise<unknown>> = { ...INTO };
  delete BY.queued;

  test('every pair of states', async () => {
    const { rows } = await database.admin.query('select from_state, to_state from posthorn.message_transitions');
    const allowed = new Set(rows.map((row) => `${row.from_state} ${row.to_state}`));
    for (const [from, arrive] of Object.entries(INTO)) {
      for (const [to, move] of Object.entries(BY)) {
        const message = await mail();
        const [id] = message.ids;
        await arrive(message);
        const before = await messageStatus(world, message.a, id!);
        expect(before.state, `into ${from}`).toBe(from);
        const events = (await eventsOf(message.a)).length;
        await move(message);
        const after = await messageStatus(world, message.a, id!);
        const isAllowed = allowed.has(`${from} ${to}`);
        expect(after.state, `${from} by ${to}`).toBe(isAllowed ? to : from);
        if (!isAllowed) expect(after, `${from} by ${to}`).toEqual(before);
        const told = (await eventsOf(message.a)).slice(events).filter((event) => event.subject_id === id);
        expect(
          told.map((event) => event.state),
          `${from} by ${to}`,
        ).toEqual(isAllowed ? [to] : []);
        expect(await hasBody(id!), `${from} by ${to}`).toBe(['queued', 'delivered'].includes(after.state));
      }
    }
  });

  test('the table is the one of the contract', async () => {
    const { rows } = await database.admin.query(
      `select from_state as from, array_agg(to_state order by to_state) as to from posthorn.message_transitions group by 1 order by 1`,
    );
    expect(rows).toEqual([
      { from: 'acknowledged', to: ['replied'] },
      { from: 'delivered', to: ['acknowledged', 'expired', 'replied', 'revoked'] },
      { from: 'held', to: ['denied', 'expired', 'queued', 'revoked'] },
      { from: 'queued', to: ['acknowledged', 'delivered', 'expired', 'replied', 'revoked'] },
    ]);
  });
});

describe('times stand beside the state', () => {
  test.each<[Level[], object]>([
    [['delivered'], { state: 'delivered', deliveredAt: 1 }],
    [['admitted'], { state: 'queued', admittedAt: 1 }],
    [['delivered', 'admitted'], { state: 'delivered', deliveredAt: 1, admittedAt: 2 }],
    [['acknowledged'], { state: 'acknowledged', acknowledgedAt: 1 }],
    [['processed'], { state: 'acknowledged', acknowledgedAt: 1, processedAt: 1 }],
    [['acknowledged', 'processed'], { state: 'acknowledged', acknowledgedAt: 1, processedAt: 2 }],
    [['processed', 'acknowledged'], { state: 'acknowledged', acknowledgedAt: 1, processedAt: 1 }],
    [['acknowledged', 'admitted'], { state: 'acknowledged', acknowledgedAt: 1, admittedAt: 2 }],
    [
      ['admitted', 'processed', 'admitted', 'processed'],
      { state: 'acknowledged', admittedAt: 1, acknowledgedAt: 2, processedAt: 2 },
    ],
    [['delivered', 'delivered'], { state: 'delivered', deliveredAt: 1 }],
    [['acknowledged', 'delivered'], { state: 'acknowledged', acknowledgedAt: 1 }],
  ])('%j', async (levels, expected) => {
    const { a, b, ids } = await mail();
    await clock.stop();
    const start = (await clock.now()).getTime();
    for (const level of levels) {
      await clock.advance('1 second');
      await advance(world, b, level, ids);
    }
    const { state, ...times } = await messageStatus(world, a, ids[0]!);
    const seconds = Object.fromEntries(
      (['deliveredAt', 'admittedAt', 'acknowledgedAt', 'processedAt', 'repliedAt'] as const)
        .filter((name) => times[name] !== null)
        .map((name) => [name, (times[name]!.getTime() - start) / 1_000]),
    );
    expect({ state, ...seconds }).toEqual(expected);
  });

  test('after a reply, admitted and processed may still be noted', async () => {
    const { a, b, ids, conversationId } = await mail();
    await send(world, { from: b, conversation: conversationId, replyTo: ids[0] });
    await advance(world, b, 'admitted', ids);
    expect(await advance(world, b, 'processed', ids)).toMatchObject([
      { state: 'replied', admittedAt: expect.any(Date), processedAt: expect.any(Date) },
    ]);
    expect((await messageStatus(world, a, ids[0]!)).state).toBe('replied');
  });

  test('past its deadline nothing is noted any more, swept or not', async () => {
    const { a, b, ids } = await mail();
    await advance(world, b, 'delivered', ids);
    await clock.advance('24 hours -1 millisecond');
    expect(await advance(world, b, 'admitted', ids)).toMatchObject([
      { state: 'delivered', admittedAt: expect.any(Date) },
    ]);
    await clock.advance('1 millisecond');
    for (const level of ['acknowledged', 'processed', 'delivered', 'admitted'] as const) {
      expect(await advance(world, b, level, ids)).toMatchObject([
        { state: 'expired', acknowledgedAt: null, processedAt: null },
      ]);
    }
    const swept = await messageStatus(world, a, ids[0]!);
    expect(await functions.expireMessages(database.as('posthorn_jobs'), { limit: 100 })).toBeGreaterThan(0);
    expect(await messageStatus(world, a, ids[0]!)).toEqual(swept);
    expect(await hasBody(ids[0]!)).toBe(false);
    expect((await eventsOf(a)).at(-1)).toMatchObject({ subject_id: ids[0], state: 'expired' });
  });
});

describe('acknowledging', () => {
  test('answers each id in the order given, unknown ones and those of others without a state', async () => {
    const { a, b, ids } = await mail(3);
    const elsewhere = await mail();
    const answer = await advance(world, b, 'acknowledged', [ids[2]!, makeId(), ids[0]!, elsewhere.ids[0]!, ids[2]!]);
    expect(answer.map(({ messageId, state }) => [messageId, state])).toEqual([
      [ids[2], 'acknowledged'],
      [expect.any(String), null],
      [ids[0], 'acknowledged'],
      [elsewhere.ids[0], null],
      [ids[2], 'acknowledged'],
    ]);
    expect((await messageStatus(world, elsewhere.b, elsewhere.ids[0]!)).state).toBe('queued');
    expect(await advance(world, a, 'acknowledged', [ids[1]!])).toMatchObject([{ state: null }]); // its sender
    expect((await messageStatus(world, a, ids[1]!)).state).toBe('queued');
  });

  test('of many callers at once keeps them apart', async () => {
    const [one, two] = [await mail(2), await mail(2)];
    const answer = await functions.advanceReceipts(app, {
      credentials: [one.b.credential, Buffer.alloc(32), two.b.credential],
      agentIds: [one.b.id, one.b.id, two.b.id],
      levels: ['acknowledged', 'acknowledged', 'delivered'],
      items: [1, 2, 3, 3, 1],
      messageIds: [one.ids[0]!, one.ids[1]!, two.ids[0]!, one.ids[1]!, two.ids[1]!],
    });
    expect(answer.map(({ item, problem, messageId, state }) => ({ item, problem, messageId, state }))).toEqual(
      expect.arrayContaining([
        { item: 1, problem: null, messageId: one.ids[0], state: 'acknowledged' },
        { item: 2, problem: 'unauthorized', messageId: null, state: null },
        { item: 3, problem: null, messageId: two.ids[0], state: 'delivered' },
        { item: 3, problem: null, messageId: one.ids[1], state: null },
        { item: 1, problem: null, messageId: two.ids[1], state: null },
      ]),
    );
    expect(answer).toHaveLength(5);
  });

  test('the furthest of several levels in one batch wins', async () => {
    const { a, b, ids } = await mail();
    const { credential, id } = b;
    await functions.advanceReceipts(app, {
      credentials: [credential, credential, credential],
      agentIds: [id, id, id],
      levels: ['delivered', 'processed', 'admitted'],
      items: [1, 2, 3],
      messageIds: [ids[0]!, ids[0]!, ids[0]!],
    });
    expect(await messageStatus(world, a, ids[0]!)).toMatchObject({
      state: 'acknowledged',
      admittedAt: expect.any(Date),
      processedAt: expect.any(Date),
    });
  });

  test('an unknown level is refused by name', async () => {
    const { b, ids } = await mail();
    for (const level of ['replied', 'expired', 'queued', '', 'Acknowledged']) {
      expect(await refusal(advance(world, b, level as Level, ids))).toEqual({
        code: 'invalid_request',
        detail: { fields: ['delivery'] },
      });
    }
  });
});

describe('reading', () => {
  test('comes again until acknowledged, oldest first, and marks nothing by itself', async () => {
    const { b, ids } = await mail(3);
    expect((await readInbox(world, b)).map(({ id, state }) => [id, state])).toEqual(ids.map((id) => [id, 'queued']));
    expect((await readInbox(world, b)).map(({ state }) => state)).toEqual(['queued', 'queued', 'queued']);
    await advance(world, b, 'delivered', ids.slice(0, 2));
    await advance(world, b, 'admitted', ids.slice(0, 1));
    expect((await readInbox(world, b)).map(({ id }) => id)).toEqual(ids);
    await advance(world, b, 'acknowledged', [ids[1]!]);
    expect((await readInbox(world, b)).map(({ id }) => id)).toEqual([ids[0], ids[2]]);
    expect((await readInbox(world, b))[0]).toMatchObject({ pendingMessages: 2 });
  });

  test('pages end at their limit, and say whether there is more', async () => {
    const { b, ids } = await mail(5);
    const first = await readInbox(world, b, 0, 2);
    expect(first.map(({ id, hasMore }) => [id, hasMore])).toEqual(ids.slice(0, 2).map((id) => [id, true]));
    const second = await readInbox(world, b, first[1]!.seq, 2);
    const third = await readInbox(world, b, second[1]!.seq, 2);
    expect(third.map(({ id, hasMore }) => [id, hasMore])).toEqual([[ids[4], false]]);
    expect(await readInbox(world, b, third[0]!.seq, 2)).toEqual([]);
    expect((await readInbox(world, b, 0, 5)).at(-1)!.hasMore).toBe(false);
  });

  test('pages end at 64 KiB of text, and a larger body comes alone', async () => {
    const { b } = await mail(3, 'x'.repeat(20_000));
    await send(world, { from: { ...b }, to: { id: makeId() } });
    const three = await readInbox(world, b);
    expect(three.map(({ hasMore }) => hasMore)).toEqual([false, false, false]); // 60,000 bytes

    const four = await mail(4, 'é'.repeat(8_192)); // 16 KiB each
    expect(await readInbox(world, four.b)).toHaveLength(4);
    const more = await mail(5, `${'é'.repeat(8_192)}`);
    const page = await readInbox(world, more.b);
    expect(page.map(({ hasMore }) => hasMore)).toEqual([true, true, true, true]);
    const beyond = await mail(4, `${'é'.repeat(8_192)}x`); // one byte more each
    expect(await readInbox(world, beyond.b)).toHaveLength(3);

    const large = await mail(2, '😀'.repeat(20_000)); // 80,000 bytes
    const alone = await readInbox(world, large.b);
    expect(alone.map(({ id, hasMore }) => [id, hasMore])).toEqual([[large.ids[0], true]]);
    expect(await openMessage(world, large.b, alone[0]!)).toBe('😀'.repeat(20_000));
  });

  test('shows nothing past its deadline, at the millisecond', async () => {
    await clock.stop();
    const { b, ids } = await mail();
    await clock.advance('24 hours -1 millisecond');
    expect((await readInbox(world, b)).map(({ id }) => id)).toEqual(ids);
    await clock.advance('1 millisecond');
    expect(await readInbox(world, b)).toEqual([]);
  });
});

describe('status', () => {
  test('of a message: its sender and its recipient, and nobody else', async () => {
    const { owner, a, b, group, ids } = await mail();
    const third = await owner.agent();
    await owner.group([a, b, third]);
    const seen = await messageStatus(world, a, ids[0]!);
    expect(seen).toMatchObject({
      id: ids[0],
      conversationKind: 'pair',
      postId: null,
      groupId: group.id,
      senderAgentId: a.id,
      recipientAgentId: b.id,
      replyTo: null,
      proposalId: null,
      state: 'queued',
    });
    expect(await messageStatus(world, b, ids[0]!)).toEqual(seen);
    expect(await refusal(messageStatus(world, third, ids[0]!))).toEqual({ code: 'not_found', detail: {} });
    expect(await refusal(messageStatus(world, a, makeId()))).toEqual({ code: 'not_found', detail: {} });
  });

  test('of a post: its sender alone; each copy its recipient too', async () => {
    const owner = await world.makeOwner();
    const [a, b, c] = (await owner.agents(3)) as [Agent, Agent, Agent];
    const post = await send(world, { from: a, group: await owner.group([a, b, c]) });
    const statusFor = (agent: Agent) =>
      functions.postStatus(app, { credential: agent.credential, agentId: agent.id, postId: post.postId! });
    const copies = await statusFor(a);
    expect(copies.map(({ id }) => id)).toEqual(post.messageIds);
    expect(await refusal(statusFor(b))).toEqual({ code: 'not_found', detail: {} });
    const forB = copies.find(({ recipientAgentId }) => recipientAgentId === b.id)!;
    expect(await messageStatus(world, b, forB.id)).toEqual(forB);
    expect(await refusal(messageStatus(world, c, forB.id))).toEqual({ code: 'not_found', detail: {} });
    await advance(world, b, 'processed', [forB.id]);
    expect((await statusFor(a)).map(({ id, state }) => [id, state])).toEqual(
      post.messageIds!.map((id) => [id, id === forB.id ? 'acknowledged' : 'queued']),
    );
  });
});

describe('the worker', () => {
  const expireMessages = (limit: number) => functions.expireMessages(database.as('posthorn_jobs'), { limit });

  test('ends what is due in batches, of all owners, once', async () => {
    await clock.advance('24 hours');
    await expireMessages(10_000); // what other tests left
    const [one, two] = [await mail(3), await mail(2)];
    await advance(world, one.b, 'delivered', [one.ids[0]!]);
    await clock.advance('24 hours');
    const later = await mail(1);
    const ended = [await expireMessages(4), await expireMessages(4), await expireMessages(4)];
    expect(ended).toEqual([4, 1, 0]);
    for (const [side, id] of [...one.ids.map((id) => [one, id] as const), ...two.ids.map((id) => [two, id] as const)]) {
      expect(
        (await eventsOf(side.a)).filter((event) => event.subject_id === id && event.state === 'expired'),
      ).toHaveLength(1);
    }
    expect((await messageStatus(world, later.a, later.ids[0]!)).state).toBe('queued');
  });

  test('wakes the senders', async () => {
    const { a } = await mail();
    const [before] = await functions.agentStatus(app, { credential: a.credential, agentId: a.id });
    await clock.advance('24 hours');
    const heard = await listen(async () => {
      await expireMessages(100);
    });
    expect(heard.flatMap((payload) => payload.split(',')).map(Number)).toContain(before!.wakeNumber);
  });
});

describe('wakes', () => {
  test('a send wakes its recipients, a receipt its sender, once a batch, and by short payloads', async () => {
    const owner = await world.makeOwner();
    const agents = await owner.agents(4);
    const group = await owner.group(agents);
    const numbers = await Promise.all(
      agents.map(
        async ({ credential, id }) => (await functions.agentStatus(app, { credential, agentId: id }))[0]!.wakeNumber!,
      ),
    );
    let ids: string[] = [];
    const bySend = await listen(async () => {
      ids = (await send(world, { from: agents[0]!, group })).messageIds!;
    });
    expect(
      bySend.map((payload) =>
        payload
          .split(',')
          .map(Number)
          .toSorted((x, y) => x - y),
      ),
    ).toEqual([numbers.slice(1).toSorted((x, y) => x - y)]);
    const mine = (await readInbox(world, agents[1]!))[0]!.id;
    expect(ids).toContain(mine);
    expect(await listen(async () => void (await advance(world, agents[1]!, 'acknowledged', [mine])))).toEqual([
      String(numbers[0]),
    ]);
    expect(await listen(async () => void (await advance(world, agents[1]!, 'acknowledged', [mine])))).toEqual([]);
    expect(await listen(async () => void (await send(world, { from: agents[0]! })))).toEqual([]);
  });

  test('more numbers than a payload holds become one star', async () => {
    const wake = (count: number) =>
      listen(
        async () =>
          void (await database.admin.query(
            'select posthorn_impl.wake(array(select generate_series(1000000000, 1000000000 + $1 - 1)))',
            [count],
          )),
      );
    const [few] = await wake(700);
    expect(few!.split(',')).toHaveLength(700);
    expect(few!.length).toBeLessThan(8_000);
    expect(await wake(800)).toEqual(['*']);
  });
});

/** The notifications of what happens in `work`. */
async function listen(work: () => Promise<void>): Promise<string[]> {
  const client = await database.admin.connect();
  const heard: string[] = [];
  client.on('notification', ({ payload }) => void heard.push(payload ?? ''));
  try {
    await client.query('listen posthorn');
    await work();
    // its own notification comes after those of transactions that committed before
    const done = new Promise<void>((resolve) =>
      client.on('notification', ({ payload }) => payload === 'done' && resolve()),
    );
    await client.query(`notify posthorn, 'done'`);
    await done;
    await client.query('unlisten *');
    return heard.filter((payload) => payload !== 'done');
  } finally {
    client.removeAllListeners('notification');
    client.release();
  }
}
