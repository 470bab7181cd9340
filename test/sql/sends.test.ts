import { afterAll, describe, expect, test } from 'vitest';
import { makeCredential } from '../../src/crypto/credentials.ts';
import { makeId } from '../../src/crypto/ids.ts';
import * as functions from '../../src/db/functions.ts';
import {
  type Agent,
  advance,
  createWorld,
  expectInvariants,
  messageStatus,
  newKey,
  type Owner,
  openMessage,
  readInbox,
  sealBatch,
  send,
  sendBatch,
} from '../helpers/world.ts';

const world = await createWorld();
const { app, clock, database } = world;

afterAll(() => expectInvariants(world));

type Trio = [Agent, Agent, Agent];

/** An owner with three agents in one group. */
async function trio(): Promise<{ owner: Owner; agents: Trio; group: functions.GroupView }> {
  const owner = await world.makeOwner();
  const agents = (await owner.agents(3)) as Trio;
  return { owner, agents, group: await owner.group(agents) };
}

/** Everything that a send of an owner may write. */
async function stored(owner: Owner): Promise<unknown> {
  const { rows } = await database.admin.query(
    `select (select jsonb_agg(m order by m.message_id) from posthorn.messages m where m.owner_id = o.owner_id) as messages,
            (select count(*) from posthorn.bodies b where b.owner_id = o.owner_id) as bodies,
            (select count(*) from posthorn.posts p where p.owner_id = o.owner_id) as posts,
            (select count(*) from posthorn.events e where e.owner_id = o.owner_id) as events,
            (select count(*) from posthorn.idempotency_keys k where k.owner_id = o.owner_id) as keys,
            (select jsonb_agg(c order by c.conversation_id) from posthorn.conversations c where c.owner_id = o.owner_id) as conversations,
            (select jsonb_agg(g order by g.group_id) from posthorn.group_counters g where g.owner_id = o.owner_id) as counters,
            (select jsonb_agg(b order by b.agent_id) from posthorn.mailboxes b where b.owner_id = o.owner_id) as mailboxes
       from posthorn.owners o where o.id = $1`,
    [owner.id],
  );
  return rows[0];
}

async function withLimit(name: string, value: number, work: () => Promise<void>): Promise<void> {
  const { rows } = await database.admin.query('select value from posthorn.limits where name = $1', [name]);
  await world.setLimit(name, value);
  try {
    await work();
  } finally {
    await world.setLimit(name, rows[0].value);
  }
}

describe('a pair message', () => {
  test('is stored once, sealed for its recipient, and tells it', async () => {
    const { agents, group } = await trio();
    const [a, b, c] = agents;
    await clock.stop();
    const now = await clock.now();
    const sent = await send(world, { from: a, to: b, body: 'Zażółć 😀' });
    expect(sent).toEqual({
      item: 1,
      outcome: 'queued',
      detail: null,
      conversationId: expect.any(String),
      conversationKind: 'pair',
      groupId: group.id,
      postId: null,
      messageIds: [expect.any(String)],
      createdAt: now,
      expiresAt: new Date(now.getTime() + 86_400_000),
    });
    const [row] = await readInbox(world, b);
    expect(row).toMatchObject({
      id: sent.messageIds![0],
      seq: 1,
      state: 'queued',
      senderAgentId: a.id,
      recipientAgentId: b.id,
      senderLabel: 'agent 0',
      hasMore: false,
      pendingMessages: 1,
      deliveredAt: null,
    });
    expect(await openMessage(world, b, row!)).toBe('Zażółć 😀');
    expect(await readInbox(world, a)).toEqual([]);
    expect(await readInbox(world, c)).toEqual([]);
    const { rows } = await database.admin.query(
      'select seq, kind, subject_id from posthorn.events where agent_id = $1',
      [b.id],
    );
    expect(rows).toEqual([{ seq: 1, kind: 'messaging.pending', subject_id: sent.messageIds![0] }]);
  });

  test('goes on in one conversation, whichever way it is addressed and whoever writes', async () => {
    const { agents, group } = await trio();
    const [a, b, c] = agents;
    const { conversationId } = await send(world, { from: a, to: b });
    for (const item of [
      { from: b, to: a },
      { from: a, to: b, group },
      { from: b, conversation: conversationId! },
      { from: a, to: b, conversation: conversationId! },
      { from: a, to: b, group, conversation: conversationId! },
    ]) {
      expect(await send(world, item)).toMatchObject({
        outcome: 'queued',
        conversationId,
        conversationKind: 'pair',
        groupId: group.id,
      });
    }
    expect((await send(world, { from: a, to: c })).conversationId).not.toBe(conversationId);
    expect((await readInbox(world, a)).map(({ senderAgentId }) => senderAgentId)).toEqual([b.id, b.id]);
  });

  test('with several shared groups needs one to be named', async () => {
    const { owner, agents, group } = await trio();
    const [a, b] = agents;
    const second = await owner.group([a, b]);
    expect(await send(world, { from: a, to: b })).toMatchObject({
      outcome: 'group_required',
      detail: { shared_group_ids: [group.id, second.id].toSorted() },
    });
    expect(await send(world, { from: a, to: b, group: second })).toMatchObject({
      outcome: 'queued',
      groupId: second.id,
    });
    await functions.revokeGroup(app, { credential: owner.session, groupId: group.id });
    expect(await send(world, { from: a, to: b })).toMatchObject({ outcome: 'queued', groupId: second.id });
  });

  test('without a shared group does not reach anybody', async () => {
    const { owner, agents } = await trio();
    const outsider = await owner.agent();
    expect(await send(world, { from: agents[0], to: outsider })).toMatchObject({
      outcome: 'purpose_required',
      detail: null,
    });
    expect(await send(world, { from: outsider, to: agents[0] })).toMatchObject({
      outcome: 'purpose_required',
      detail: null,
    });
  });
});

describe('a post', () => {
  test('reaches every other member in copies sealed apart, once', async () => {
    const { agents, group } = await trio();
    const [a, b, c] = agents;
    const post = await send(world, { from: a, group, body: 'to all' });
    expect(post).toMatchObject({
      outcome: 'queued',
      conversationKind: 'group',
      groupId: group.id,
      postId: expect.any(String),
    });
    const copies = await functions.postStatus(app, { credential: a.credential, agentId: a.id, postId: post.postId! });
    expect(copies.map(({ id, recipientAgentId, postId, state }) => ({ id, recipientAgentId, postId, state }))).toEqual(
      [b.id, c.id].toSorted().map((recipientAgentId, index) => ({
        id: post.messageIds![index],
        recipientAgentId,
        postId: post.postId,
        state: 'queued',
      })),
    );
    for (const reader of [b, c]) {
      const [row] = await readInbox(world, reader);
      expect(await openMessage(world, reader, row!)).toBe('to all');
      expect(row).toMatchObject({ postId: post.postId, conversationKind: 'group', senderAgentId: a.id });
    }
    expect(await readInbox(world, a)).toEqual([]);
    const thread = await send(world, { from: b, conversation: post.conversationId! });
    expect(thread).toMatchObject({ outcome: 'queued', conversationId: post.conversationId, conversationKind: 'group' });
    expect(thread.messageIds).toHaveLength(2);
  });

  test('goes to those who can be reached, present or not, and to nobody if there is none', async () => {
    const { owner, agents, group } = await trio();
    const [a, b, c] = agents;
    await functions.revokeConnection(app, { credential: owner.session, connectionId: b.connection.id });
    expect((await send(world, { from: a, group })).messageIds).toHaveLength(1);
    await functions.revokeConnection(app, { credential: owner.session, connectionId: c.connection.id });
    expect(await send(world, { from: a, group })).toMatchObject({ outcome: 'recipient_unavailable', messageIds: [] });
    expect(await send(world, { from: a, to: b })).toMatchObject({ outcome: 'recipient_unavailable', messageIds: [] });
  });

  test('to a group of sixteen makes fifteen copies', async () => {
    const owner = await world.makeOwner();
    const agents = await owner.agents(16);
    const group = await owner.group(agents);
    expect((await send(world, { from: agents[0]!, group })).messageIds).toHaveLength(15);
  });

  test('fails whole when one inbox is full', async () => {
    const { owner, agents, group } = await trio();
    const [a, b, c] = agents;
    await withLimit('inbox_messages', 1, async () => {
      await send(world, { from: a, to: b });
      const before = await stored(owner);
      expect(await send(world, { from: a, group })).toMatchObject({
        outcome: 'queue_full',
        detail: { recipient_agent_ids: [b.id] },
      });
      expect(await stored(owner)).toEqual({ ...(before as object), conversations: expect.anything() });
      expect(await readInbox(world, c)).toEqual([]);
      await advance(world, b, 'acknowledged', [(await readInbox(world, b))[0]!.id]);
      expect(await send(world, { from: a, group })).toMatchObject({ outcome: 'queued' });
      expect(await send(world, { from: a, group })).toMatchObject({
        outcome: 'queue_full',
        detail: { recipient_agent_ids: [b.id, c.id].toSorted() },
      });
    });
  });
});

describe('addresses that disagree are refused by name', () => {
  const pair = (agents: Trio) => send(world, { from: agents[0], to: agents[1] });

  test('nobody', async () => {
    const { agents } = await trio();
    expect(await send(world, { from: agents[0] })).toMatchObject({
      outcome: 'invalid_request',
      detail: { fields: ['recipient_agent_id', 'group_id', 'conversation_id'] },
    });
  });

  test('oneself', async () => {
    const { agents, group } = await trio();
    const expected = { outcome: 'invalid_request', detail: { fields: ['recipient_agent_id'] } };
    expect(await send(world, { from: agents[0], to: agents[0] })).toMatchObject(expected);
    expect(await send(world, { from: agents[0], to: agents[0], group })).toMatchObject(expected);
  });

  test('a reply without its conversation', async () => {
    const { agents } = await trio();
    const [a, b] = agents;
    const [replyTo] = (await pair(agents)).messageIds!;
    expect(await send(world, { from: b, to: a, replyTo })).toMatchObject({
      outcome: 'invalid_request',
      detail: { fields: ['reply_to', 'conversation_id'] },
    });
  });

  test('a reply to a message of another conversation', async () => {
    const { agents, group } = await trio();
    const [, b] = agents;
    const [replyTo] = (await pair(agents)).messageIds!;
    const thread = await send(world, { from: agents[2], group });
    expect(await send(world, { from: b, conversation: thread.conversationId!, replyTo })).toMatchObject({
      outcome: 'invalid_request',
      detail: { fields: ['reply_to', 'conversation_id'] },
    });
  });

  test('a reply to what was sent to somebody else, or by oneself', async () => {
    const { agents, group } = await trio();
    const [a, b] = agents;
    const post = await send(world, { from: agents[2], group });
    const copies = await functions.postStatus(app, {
      credential: agents[2].credential,
      agentId: agents[2].id,
      postId: post.postId!,
    });
    const forA = copies.find(({ recipientAgentId }) => recipientAgentId === a.id)!.id;
    expect(await send(world, { from: b, conversation: post.conversationId!, replyTo: forA })).toMatchObject({
      outcome: 'not_found',
    });
    expect(await send(world, { from: agents[2], conversation: post.conversationId!, replyTo: forA })).toMatchObject({
      outcome: 'not_found',
    });
  });

  test('a conversation of another group', async () => {
    const { owner, agents } = await trio();
    const { conversationId } = await pair(agents);
    const other = await owner.group(agents);
    expect(await send(world, { from: agents[0], group: other, conversation: conversationId! })).toMatchObject({
      outcome: 'invalid_request',
      detail: { fields: ['group_id', 'conversation_id'] },
    });
  });

  test('a recipient that is no party of the conversation, or a recipient for a thread', async () => {
    const { agents, group } = await trio();
    const { conversationId } = await pair(agents);
    const thread = await send(world, { from: agents[0], group });
    const expected = { outcome: 'invalid_request', detail: { fields: ['recipient_agent_id', 'conversation_id'] } };
    expect(await send(world, { from: agents[0], to: agents[2], conversation: conversationId! })).toMatchObject(
      expected,
    );
    expect(await send(world, { from: agents[0], to: agents[1], conversation: thread.conversationId! })).toMatchObject(
      expected,
    );
  });

  test('a recipient that is no member of the group', async () => {
    const { owner, agents, group } = await trio();
    const outsider = await owner.agent();
    expect(await send(world, { from: agents[0], to: outsider, group })).toMatchObject({
      outcome: 'invalid_request',
      detail: { fields: ['recipient_agent_id', 'group_id'] },
    });
  });

  test("another pair's conversation does not exist", async () => {
    const { agents } = await trio();
    const { conversationId } = await pair(agents);
    expect(await send(world, { from: agents[2], conversation: conversationId! })).toMatchObject({
      outcome: 'not_found',
    });
  });

  test('a recipient that was revoked cannot be reached, named with its group or not', async () => {
    const { owner, agents, group } = await trio();
    const [a, b] = agents;
    await functions.revokeAgent(app, { credential: owner.session, agentId: b.id });
    expect(await send(world, { from: a, to: b })).toMatchObject({ outcome: 'recipient_unavailable' });
    expect(await send(world, { from: a, to: b, group })).toMatchObject({ outcome: 'recipient_unavailable' });
  });

  test('none of them writes anything', async () => {
    const { owner, agents, group } = await trio();
    const { conversationId } = await pair(agents);
    const before = await stored(owner);
    const [a] = agents;
    await sendBatch(world, [
      { from: a },
      { from: a, to: a },
      { from: a, to: { id: makeId() } },
      { from: a, to: agents[2], conversation: conversationId! },
      { from: a, group, replyTo: makeId() },
      { from: a, to: agents[1], isSensitive: true },
    ]);
    expect(await stored(owner)).toEqual(before);
  });
});

describe('replies', () => {
  test('acknowledge and fence what they answer, and tell its sender', async () => {
    const { agents } = await trio();
    const [a, b] = agents;
    const question = await send(world, { from: a, to: b });
    const [id] = question.messageIds!;
    await clock.stop();
    const reply = await send(world, { from: b, conversation: question.conversationId!, replyTo: id });
    const now = await clock.now();
    expect(await messageStatus(world, a, id!)).toMatchObject({
      state: 'replied',
      repliedAt: now,
      acknowledgedAt: now,
      deliveredAt: null,
    });
    expect(await messageStatus(world, a, reply.messageIds![0]!)).toMatchObject({ replyTo: id, state: 'queued' });
    expect(await readInbox(world, b)).toEqual([]);
    const { rows } = await database.admin.query(
      'select kind, subject_id, state from posthorn.events where agent_id = $1 order by seq',
      [a.id],
    );
    expect(rows).toEqual(
      expect.arrayContaining([
        { kind: 'message.state', subject_id: id, state: 'replied' },
        { kind: 'messaging.pending', subject_id: reply.messageIds![0], state: null },
      ]),
    );
  });

  test('keep the time of an earlier acknowledgement, and may come more than once', async () => {
    const { agents } = await trio();
    const [a, b] = agents;
    const question = await send(world, { from: a, to: b });
    const [id] = question.messageIds!;
    await advance(world, b, 'acknowledged', [id!]);
    const acknowledgedAt = await clock.now();
    await clock.advance('1 second');
    const reply = { from: b, conversation: question.conversationId!, replyTo: id };
    await send(world, reply);
    const replied = await messageStatus(world, a, id!);
    expect(replied).toMatchObject({ state: 'replied', acknowledgedAt, repliedAt: await clock.now() });
    await clock.advance('1 second');
    expect(await send(world, reply)).toMatchObject({ outcome: 'queued' });
    expect(await messageStatus(world, a, id!)).toEqual(replied);
  });

  test('to a post answer the own copy and go to the thread', async () => {
    const { agents, group } = await trio();
    const [a, b, c] = agents;
    const post = await send(world, { from: a, group });
    const mine = (await readInbox(world, b))[0]!.id;
    const reply = await send(world, { from: b, conversation: post.conversationId!, replyTo: mine });
    expect(reply.messageIds).toHaveLength(2);
    expect((await messageStatus(world, b, mine)).state).toBe('replied');
    const other = post.messageIds!.find((id) => id !== mine)!;
    expect((await messageStatus(world, c, other)).state).toBe('queued');
  });

  test('that are refused change nothing of what they would answer', async () => {
    const { owner, agents, group } = await trio();
    const [a, b] = agents;
    const question = await send(world, { from: a, group });
    const [copy] = await readInbox(world, b);
    const before = await stored(owner);
    await withLimit('conversation_posts', 1, async () => {
      expect(await send(world, { from: b, conversation: question.conversationId!, replyTo: copy!.id })).toMatchObject({
        outcome: 'conversation_capped',
      });
    });
    expect(await stored(owner)).toEqual(before);
  });

  test('that are held answer nothing before they are queued', async () => {
    const { owner, agents } = await trio();
    const [a, b] = agents;
    const question = await send(world, { from: a, to: b });
    const id = question.messageIds![0]!;
    await withLimit('conversation_posts', 1, async () => {
      const reply = await send(world, { from: b, conversation: question.conversationId!, replyTo: id });
      expect((await messageStatus(world, a, id)).state).toBe('queued');
      const { proposal_id: proposalId } = reply.detail as { proposal_id: string };
      await functions.approveProposal(app, { credential: owner.session, proposalId });
    });
    expect(await messageStatus(world, a, id)).toMatchObject({ state: 'replied', repliedAt: expect.any(Date) });
  });

  test('to what has expired are sent, and leave it expired', async () => {
    const { agents } = await trio();
    const [a, b] = agents;
    const question = await send(world, { from: a, to: b });
    await clock.advance('24 hours');
    expect(
      await send(world, { from: b, conversation: question.conversationId!, replyTo: question.messageIds![0] }),
    ).toMatchObject({ outcome: 'queued' });
    expect(await messageStatus(world, a, question.messageIds![0]!)).toMatchObject({
      state: 'expired',
      repliedAt: null,
    });
  });
});

describe('caps', () => {
  test('a conversation pauses after its posts, pair and thread each by itself', async () => {
    const { agents, group } = await trio();
    const [a, b, c] = agents;
    await withLimit('conversation_posts', 3, async () => {
      const first = await send(world, { from: a, to: b });
      const { conversationId } = first;
      await send(world, { from: b, to: a });
      expect(await send(world, { from: a, to: b })).toMatchObject({ outcome: 'queued' });
      // a pair's posts wait behind a request to go on, a thread's are refused
      const held = { outcome: 'held', conversationId, detail: { proposal_id: expect.any(String) } };
      expect(await send(world, { from: a, to: b })).toMatchObject(held);
      expect(await send(world, { from: b, conversation: conversationId! })).toMatchObject(held);
      expect(await send(world, { from: a, to: c })).toMatchObject({ outcome: 'queued' });
      for (const from of [a, b, c]) expect(await send(world, { from, group })).toMatchObject({ outcome: 'queued' });
      expect(await send(world, { from: a, group })).toMatchObject({
        outcome: 'conversation_capped',
        detail: { conversation_id: expect.not.stringContaining(conversationId!) },
      });
    });
    expect(await send(world, { from: a, to: b })).toMatchObject({ outcome: 'queued' }); // an operator raised it
  });

  test('acknowledging does not end the pause, and a batch crosses no cap', async () => {
    const { agents } = await trio();
    const [a, b] = agents;
    await withLimit('conversation_posts', 2, async () => {
      const outcomes = await sendBatch(
        world,
        Array.from({ length: 5 }, () => ({ from: a, to: b })),
      );
      // the rest was sealed for the conversation, and must be sealed again to wait for it
      expect(outcomes.map(({ outcome }) => outcome)).toEqual([
        'queued',
        'queued',
        'stale_plan',
        'stale_plan',
        'stale_plan',
      ]);
      await advance(
        world,
        b,
        'acknowledged',
        outcomes.slice(0, 2).flatMap(({ messageIds }) => messageIds!),
      );
      expect(await send(world, { from: b, to: a })).toMatchObject({ outcome: 'held' });
    });
  });

  test('a group has so many posts in any 60 seconds, pairs and thread together, a post once', async () => {
    const { agents, group } = await trio();
    const [a, b, c] = agents;
    await withLimit('group_posts_per_minute', 3, async () => {
      await clock.stop();
      expect(await send(world, { from: a, to: b })).toMatchObject({ outcome: 'queued' });
      await clock.advance('10.5 seconds');
      expect(await send(world, { from: b, group })).toMatchObject({ outcome: 'queued' });
      await clock.advance('20 seconds');
      expect(await send(world, { from: b, to: c })).toMatchObject({ outcome: 'queued' });
      await clock.advance('1 second');
      const at31 = await send(world, { from: c, to: a });
      expect(at31).toMatchObject({ outcome: 'rate_limited', detail: { retry_after: 29 } });
      expect(await send(world, { from: a, group })).toMatchObject({
        outcome: 'rate_limited',
        detail: { retry_after: 29 },
      });
      await clock.advance('28.499 seconds');
      expect(await send(world, { from: c, to: a })).toMatchObject({
        outcome: 'rate_limited',
        detail: { retry_after: 1 },
      });
      await clock.advance('1 millisecond');
      expect(await send(world, { from: c, to: a })).toMatchObject({ outcome: 'queued' });
      expect(await send(world, { from: c, to: a })).toMatchObject({
        outcome: 'rate_limited',
        detail: { retry_after: 11 },
      });
    });
  });

  test('other groups of the same agents have rates of their own', async () => {
    const { owner, agents, group } = await trio();
    const other = await owner.group(agents);
    await withLimit('group_posts_per_minute', 1, async () => {
      const outcomes = await sendBatch(
        world,
        [group, other, group, other].map((one) => ({ from: agents[0], group: one })),
      );
      expect(outcomes.map(({ outcome }) => outcome)).toEqual(['queued', 'queued', 'rate_limited', 'rate_limited']);
    });
  });

  test('refusals, replays and failed posts do not count for the rate', async () => {
    const { agents, group } = await trio();
    const [a, b] = agents;
    await withLimit('group_posts_per_minute', 2, async () => {
      const key = newKey();
      await send(world, { from: a, to: b, key });
      for (let retry = 0; retry < 5; retry++) {
        expect(await send(world, { from: a, to: b, key })).toMatchObject({ outcome: 'replayed' });
        expect(await send(world, { from: a, to: b, isSensitive: true })).toMatchObject({
          outcome: 'sensitive_content',
        });
      }
      expect(await send(world, { from: a, group })).toMatchObject({ outcome: 'queued' });
      expect(await send(world, { from: a, group })).toMatchObject({ outcome: 'rate_limited' });
    });
  });

  test('a rate raised beyond what can be logged one by one never lets more through', async () => {
    const { agents } = await trio();
    const [a, b] = agents;
    await withLimit('conversation_posts', 10_000, () =>
      withLimit('inbox_messages', 10_000, () =>
        withLimit('group_posts_per_minute', 300, async () => {
          await clock.stop();
          let queued = 0;
          for (let second = 0; second < 59; second++) {
            const outcomes = await sendBatch(
              world,
              Array.from({ length: 7 }, () => ({ from: a, to: b })),
            );
            queued += outcomes.filter(({ outcome }) => outcome === 'queued').length;
            await clock.advance('1 second');
          }
          expect(queued).toBe(300);
        }),
      ),
    );
  });

  test('an inbox holds so many unfenced messages, whoever they are from', async () => {
    const { owner, agents, group } = await trio();
    const [a, b, c] = agents;
    const other = await owner.group([b, c]);
    await withLimit('inbox_messages', 3, async () => {
      const [first] = (await send(world, { from: a, to: b })).messageIds!;
      await send(world, { from: c, to: b, group });
      await send(world, { from: c, to: b, group: other });
      const full = { outcome: 'queue_full', detail: { recipient_agent_ids: [b.id] } };
      expect(await send(world, { from: a, to: b })).toMatchObject(full);
      expect(await send(world, { from: c, group: other })).toMatchObject(full);
      await advance(world, b, 'delivered', [first!]);
      await advance(world, b, 'admitted', [first!]);
      expect(await send(world, { from: a, to: b })).toMatchObject(full); // read, but not acknowledged
      await advance(world, b, 'acknowledged', [first!]);
      expect(await send(world, { from: a, to: b })).toMatchObject({ outcome: 'queued' });
      expect(await send(world, { from: a, to: b })).toMatchObject(full);
      expect(await send(world, { from: b, to: a })).toMatchObject({ outcome: 'queued' });
    });
  });

  test('what has expired takes no room, swept or not', async () => {
    const { agents } = await trio();
    const [a, b] = agents;
    await withLimit('inbox_messages', 2, async () => {
      await send(world, { from: a, to: b });
      await send(world, { from: a, to: b });
      await clock.advance('24 hours -1 millisecond');
      expect(await send(world, { from: a, to: b })).toMatchObject({ outcome: 'queue_full' });
      await clock.advance('1 millisecond');
      const outcomes = await sendBatch(
        world,
        Array.from({ length: 3 }, () => ({ from: a, to: b })),
      );
      expect(outcomes.map(({ outcome }) => outcome)).toEqual(['queued', 'queued', 'queue_full']);
    });
  });

  test('the conversation is looked at before the rate, and the rate before the inbox', async () => {
    const { agents } = await trio();
    const [a, b] = agents;
    await send(world, { from: a, to: b });
    await withLimit('inbox_messages', 1, async () => {
      await withLimit('group_posts_per_minute', 1, async () => {
        await withLimit('conversation_posts', 1, async () => {
          expect(await send(world, { from: a, to: b })).toMatchObject({ outcome: 'held' });
        });
        expect(await send(world, { from: a, to: b })).toMatchObject({ outcome: 'rate_limited' });
      });
      expect(await send(world, { from: a, to: b })).toMatchObject({ outcome: 'queue_full' });
    });
  });
});

describe('idempotency', () => {
  test('the same key and content give the first receipt again, after everything', async () => {
    const { owner, agents, group } = await trio();
    const [a, b] = agents;
    const key = newKey();
    const first = await send(world, { from: a, to: b, key });
    const replay = { outcome: 'replayed', messageIds: first.messageIds, postId: null, createdAt: first.createdAt };
    const again = () => send(world, { from: a, to: b, key });
    expect(await again()).toMatchObject(replay);
    await advance(world, b, 'acknowledged', first.messageIds!);
    expect(await again()).toMatchObject(replay);
    await withLimit('conversation_posts', 1, async () => expect(await again()).toMatchObject(replay));
    await withLimit('inbox_messages', 1, async () => expect(await again()).toMatchObject(replay));
    await functions.renewGroup(app, { credential: owner.session, groupId: group.id });
    expect(await again()).toMatchObject(replay);
    await functions.revokeGroup(app, { credential: owner.session, groupId: group.id });
    expect(await again()).toMatchObject(replay);
    await functions.revokeAgent(app, { credential: owner.session, agentId: b.id });
    expect(await again()).toMatchObject(replay);
    await clock.advance('29 days');
    expect(await again()).toMatchObject(replay);
  });

  test('a replayed post shows its first recipients, though others joined or left since', async () => {
    const { owner, agents, group } = await trio();
    const [a, b] = agents;
    const key = newKey();
    const first = await send(world, { from: a, group, key });
    await functions.revokeConnection(app, { credential: owner.session, connectionId: b.connection.id });
    expect(await send(world, { from: a, group, key })).toMatchObject({
      outcome: 'replayed',
      postId: first.postId,
      messageIds: first.messageIds,
    });
  });

  test('survives a rotated credential and belongs to the agent', async () => {
    const { owner, agents } = await trio();
    const [a, b, c] = agents;
    const key = newKey();
    const first = await send(world, { from: a, to: b, key });
    expect(await send(world, { from: c, to: b, key })).toMatchObject({ outcome: 'queued' });
    const { hash } = makeCredential('service');
    await functions.rotateConnection(app, {
      credential: owner.session,
      connectionId: a.connection.id,
      credentialHash: hash,
    });
    expect(await send(world, { from: { ...a, credential: hash }, to: b, key })).toMatchObject({
      outcome: 'replayed',
      messageIds: first.messageIds,
    });
  });

  test('the same key with another content, recipient or kind is a conflict, and writes nothing', async () => {
    const { owner, agents, group } = await trio();
    const [a, b, c] = agents;
    const [pairKey, postKey] = [newKey(), newKey()];
    await send(world, { from: a, to: b, key: pairKey, body: 'one' });
    await send(world, { from: a, group, key: postKey, body: 'one' });
    const before = await stored(owner);
    const conflict = { outcome: 'idempotency_conflict' };
    expect(await send(world, { from: a, to: b, key: pairKey, body: 'two' })).toMatchObject(conflict);
    expect(await send(world, { from: a, to: c, key: pairKey, body: 'one' })).toMatchObject(conflict);
    expect(await send(world, { from: a, group, key: pairKey, body: 'one' })).toMatchObject(conflict);
    expect(await send(world, { from: a, to: b, key: postKey, body: 'one' })).toMatchObject(conflict);
    expect(await send(world, { from: a, to: { id: makeId() }, key: pairKey })).toMatchObject(conflict); // before every other rule
    expect(await send(world, { from: a, to: b, key: pairKey, isSensitive: true, body: 'one' })).toMatchObject({
      outcome: 'replayed',
    });
    expect(await stored(owner)).toEqual(before);
  });

  test('a refusal does not use the key up, whatever it was for', async () => {
    const { owner, agents, group } = await trio();
    const [a, b] = agents;
    const key = newKey();
    const mine = { from: a, to: b, key };
    await functions.changeOwnerSettings(app, { credential: owner.session, sensitiveContentCheck: true });
    expect(await send(world, { ...mine, isSensitive: true })).toMatchObject({ outcome: 'sensitive_content' });
    expect(await send(world, { ...mine, to: a })).toMatchObject({ outcome: 'invalid_request' });
    expect(await send(world, { ...mine, conversation: makeId() })).toMatchObject({ outcome: 'not_found' });
    await withLimit('inbox_messages', 1, async () => {
      await send(world, { from: agents[2], to: b });
      expect(await send(world, mine)).toMatchObject({ outcome: 'queue_full' });
      expect(await send(world, { from: a, group, key })).toMatchObject({ outcome: 'queue_full' });
    });
    expect(await send(world, mine)).toMatchObject({ outcome: 'queued' });
    expect(await send(world, mine)).toMatchObject({ outcome: 'replayed' });
  });

  test('twins in one batch: one is sent and the others replay it', async () => {
    const { owner, agents } = await trio();
    const [a, b] = agents;
    const twin = { from: a, to: b, key: newKey() };
    const outcomes = await sendBatch(world, [twin, twin, { ...twin, body: 'other' }, twin]);
    expect(outcomes.map(({ outcome }) => outcome)).toEqual(['queued', 'replayed', 'idempotency_conflict', 'replayed']);
    expect(outcomes[1]!.messageIds).toEqual(outcomes[0]!.messageIds);
    expect(outcomes[3]!.messageIds).toEqual(outcomes[0]!.messageIds);
    expect(((await stored(owner)) as { messages: unknown[] }).messages).toHaveLength(1);
  });

  test('twins of a refused one are refused alike; another content is tried again by the pod', async () => {
    const { agents } = await trio();
    const [a, b] = agents;
    await withLimit('inbox_messages', 1, async () => {
      await send(world, { from: agents[2], to: b });
      const twin = { from: a, to: b, key: newKey() };
      const outcomes = await sendBatch(world, [twin, twin, { ...twin, body: 'other' }]);
      expect(outcomes.map(({ outcome }) => outcome)).toEqual(['queue_full', 'queue_full', 'stale_plan']);
      expect(outcomes[1]!.detail).toEqual({ recipient_agent_ids: [b.id] });
    });
  });
});

describe('a plan that is stale', () => {
  const sealed = async (items: Parameters<typeof sealBatch>[1]) => await sealBatch(world, items);

  test('by a renewal, a revocation, a member less: it is refused as stale, or by the rule that now holds', async () => {
    const { owner, agents, group } = await trio();
    const [a, , c] = agents;
    const batch = await sealed([{ from: a, group }]);
    await functions.renewGroup(app, { credential: owner.session, groupId: group.id });
    expect(await functions.sendMessages(app, batch)).toMatchObject([{ outcome: 'stale_plan' }]);
    const second = await sealed([{ from: a, group }]);
    await functions.revokeAgent(app, { credential: owner.session, agentId: c.id });
    expect(await functions.sendMessages(app, second)).toMatchObject([{ outcome: 'stale_plan' }]);
    const third = await sealed([{ from: a, group }]);
    await functions.revokeGroup(app, { credential: owner.session, groupId: group.id });
    expect(await functions.sendMessages(app, third)).toMatchObject([{ outcome: 'group_unauthorized' }]);
  });

  test("by a second shared group: the choice is the caller's again", async () => {
    const { owner, agents } = await trio();
    const [a, b] = agents;
    const batch = await sealed([{ from: a, to: b }]);
    await owner.group([a, b]);
    expect(await functions.sendMessages(app, batch)).toMatchObject([{ outcome: 'group_required' }]);
  });

  test.each([
    ['no copy', () => ({ copyItems: [], copyRecipients: [], copyMessageIds: [], copyCiphertexts: [] })],
    [
      'a copy for an outsider',
      (batch, outsider) => ({
        copyItems: [1, 1],
        copyRecipients: [...batch.copyRecipients, outsider],
        copyMessageIds: [...batch.copyMessageIds, makeId()],
        copyCiphertexts: [...batch.copyCiphertexts, Buffer.alloc(40)],
      }),
    ],
    [
      'two copies for one',
      (batch) => ({
        copyItems: [1, 1],
        copyRecipients: [batch.copyRecipients[0]!, batch.copyRecipients[0]!],
        copyMessageIds: [...batch.copyMessageIds, makeId()],
        copyCiphertexts: [...batch.copyCiphertexts, Buffer.alloc(40)],
      }),
    ],
    ['a copy for an outsider instead', (_, outsider) => ({ copyRecipients: [outsider] })],
    ['a post id for a pair', () => ({ postIds: [makeId()] })],
    ['no group', () => ({ plannedGroupIds: [null] })],
    ['no generation', () => ({ plannedGenerations: [null] })],
  ] as [string, (batch: Awaited<ReturnType<typeof sealed>>, outsider: string) => object][])(
    'with %s nothing is stored',
    async (_, change) => {
      const { owner, agents } = await trio();
      const outsider = await owner.agent();
      const batch = await sealed([{ from: agents[0], to: agents[1] }]);
      const before = await stored(owner);
      expect(await functions.sendMessages(app, { ...batch, ...change(batch, outsider.id) })).toMatchObject([
        { outcome: 'stale_plan' },
      ]);
      expect(await stored(owner)).toEqual(before);
    },
  );

  test.each([0, 29, 80_101])('a ciphertext of %i bytes is refused by the table', async (length) => {
    const { agents } = await trio();
    const batch = await sealed([{ from: agents[0], to: agents[1] }]);
    await expect(
      functions.sendMessages(app, { ...batch, copyCiphertexts: [Buffer.alloc(length)] }),
    ).rejects.toMatchObject({ code: '23514' });
  });
});

describe('what a pod saw in the body', () => {
  test('is refused unless the owner turned the check off', async () => {
    const { owner, agents } = await trio();
    const item = { from: agents[0], to: agents[1], isSensitive: true };
    expect(await send(world, item)).toMatchObject({ outcome: 'sensitive_content', detail: null });
    await functions.changeOwnerSettings(app, { credential: owner.session, sensitiveContentCheck: false });
    expect(await send(world, item)).toMatchObject({ outcome: 'queued' });
  });
});

test('the keys of callers are 1 to 128 printable ASCII characters', async () => {
  const { agents } = await trio();
  const [from, to] = agents;
  for (const key of [' ', '~'.repeat(128), 'a b!"#'])
    expect(await send(world, { from, to, key })).toMatchObject({ outcome: 'queued' });
  for (const key of ['', '~'.repeat(129), 'é', 'a\tb', 'a\nb', '\u007f']) {
    await expect(send(world, { from, to, key }), JSON.stringify(key)).rejects.toMatchObject({ code: '23514' });
  }
});

test('one refused item fails none of its neighbours, in any order', async () => {
  const { owner, agents, group } = await trio();
  const [a, b, c] = agents;
  const stranger = await owner.agent();
  const outcomes = await sendBatch(world, [
    { from: a },
    { from: a, to: b },
    { from: a, to: stranger },
    { from: b, group },
    { from: { ...c, credential: Buffer.alloc(32) }, to: a },
    { from: c, to: a },
    { from: { ...a, id: c.id }, to: b },
    { from: a, conversation: makeId() },
    { from: b, to: c },
  ]);
  expect(outcomes.map(({ item, outcome }) => [item, outcome])).toEqual([
    [1, 'invalid_request'],
    [2, 'queued'],
    [3, 'purpose_required'],
    [4, 'queued'],
    [5, 'unauthorized'],
    [6, 'queued'],
    [7, 'not_found'],
    [8, 'not_found'],
    [9, 'queued'],
  ]);
});

test('sequences and event logs have no gap, and keep the order of the batch', async () => {
  const { agents, group } = await trio();
  const [a, b, c] = agents;
  const outcomes = await sendBatch(world, [
    { from: a, to: b },
    { from: c, group },
    { from: a },
    { from: a, to: b },
    { from: c, to: b },
    { from: a, group },
  ]);
  const toB = outcomes.flatMap(({ messageIds }) => messageIds ?? []);
  const inbox = await readInbox(world, b);
  expect(inbox.map(({ seq }) => seq)).toEqual([1, 2, 3, 4, 5]);
  expect(inbox.map(({ id }) => id)).toEqual(toB.filter((id) => inbox.some((row) => row.id === id)));
  await advance(
    world,
    b,
    'delivered',
    inbox.slice(0, 2).map(({ id }) => id),
  );
  await advance(
    world,
    b,
    'processed',
    inbox.map(({ id }) => id),
  );
  for (const agent of agents) {
    const { rows } = await database.admin.query('select seq from posthorn.events where agent_id = $1 order by seq', [
      agent.id,
    ]);
    expect(rows.map((row) => row.seq)).toEqual(rows.map((_, index) => index + 1));
    expect(rows.length).toBeGreaterThan(2);
  }
});
