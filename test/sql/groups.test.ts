import { afterAll, describe, expect, test } from 'vitest';
import { makeId } from '../../src/crypto/ids.ts';
import * as functions from '../../src/db/functions.ts';
import {
  type Agent,
  advance,
  createWorld,
  expectInvariants,
  messageStatus,
  type Owner,
  readInbox,
  refusal,
  send,
} from '../helpers/world.ts';

const world = await createWorld();
const { app, clock, database } = world;

afterAll(() => expectInvariants(world));

const HOUR_MS = 3_600_000;
const asOwner = (owner: Owner) => ({ credential: owner.session });

async function ownerWith(count: number): Promise<{ owner: Owner; agents: Agent[] }> {
  const owner = await world.makeOwner();
  return { owner, agents: await owner.agents(count) };
}

const create = (owner: Owner, agentIds: string[], change: Partial<Parameters<typeof functions.createGroup>[1]> = {}) =>
  functions.createGroup(app, { ...asOwner(owner), name: 'Build', purpose: 'Ship it', agentIds, ...change });

describe('making a group', () => {
  test('answers what was asked, from now for its hours', async () => {
    const { owner, agents } = await ownerWith(2);
    await clock.stop();
    const now = await clock.now();
    const group = await create(
      owner,
      agents.map(({ id }) => id),
      { projectBoundary: 'repo x', durationHours: 5 },
    );
    expect(group).toEqual({
      id: expect.any(String),
      name: 'Build',
      purpose: 'Ship it',
      projectBoundary: 'repo x',
      generation: 1,
      state: 'active',
      approvedAt: now,
      expiresAt: new Date(now.getTime() + 5 * HOUR_MS),
      agentIds: agents.map(({ id }) => id).toSorted(),
    });
    expect(await functions.listOwnerGroups(app, asOwner(owner))).toEqual([group]);
    const standard = await create(
      owner,
      agents.map(({ id }) => id),
    );
    expect(standard.expiresAt.getTime() - now.getTime()).toBe(168 * HOUR_MS);
    expect(standard.projectBoundary).toBe(null);
  });

  test('takes 2 to 16 different agents', async () => {
    const { owner, agents } = await ownerWith(17);
    const ids = agents.map(({ id }) => id);
    const invalid = { code: 'invalid_request', detail: { fields: ['agent_ids'] } };
    expect(await refusal(create(owner, []))).toEqual(invalid);
    expect(await refusal(create(owner, ids.slice(0, 1)))).toEqual(invalid);
    expect(await refusal(create(owner, [ids[0]!, ids[0]!]))).toEqual(invalid);
    expect(await refusal(create(owner, ids))).toEqual(invalid);
    expect((await create(owner, [ids[0]!, ids[0]!, ids[1]!])).agentIds).toEqual(ids.slice(0, 2).toSorted());
    expect((await create(owner, ids.slice(0, 16))).agentIds).toHaveLength(16);
  });

  test('takes agents of its owner that live, and makes nothing otherwise', async () => {
    const { owner, agents } = await ownerWith(3);
    const stranger = await (await world.makeOwner()).agent();
    await functions.revokeAgent(app, { ...asOwner(owner), agentId: agents[2]!.id });
    const notFound = { code: 'not_found', detail: { fields: ['agent_ids'] } };
    expect(await refusal(create(owner, [agents[0]!.id, stranger.id]))).toEqual(notFound);
    expect(await refusal(create(owner, [agents[0]!.id, makeId()]))).toEqual(notFound);
    expect(await refusal(create(owner, [agents[0]!.id, agents[2]!.id]))).toEqual({
      code: 'invalid_request',
      detail: { fields: ['agent_ids'] },
    });
    expect(await functions.listOwnerGroups(app, asOwner(owner))).toEqual([]);
  });

  test.each([
    ['no hour', { durationHours: 0 }],
    ['721 hours', { durationHours: 721 }],
    ['an empty name', { name: '' }],
    ['a name of 81 code points', { name: '😀'.repeat(81) }],
    ['an empty purpose', { purpose: '' }],
    ['a purpose of 501', { purpose: 'é'.repeat(501) }],
    ['an empty boundary', { projectBoundary: '' }],
    ['a boundary of 501', { projectBoundary: '😀'.repeat(501) }],
  ])('%s is refused', async (_, change) => {
    const { owner, agents } = await ownerWith(2);
    const ids = agents.map(({ id }) => id);
    await create(owner, ids, {
      name: '😀'.repeat(80),
      purpose: 'é'.repeat(500),
      projectBoundary: '😀'.repeat(500),
      durationHours: 720,
    });
    expect(await refusal(create(owner, ids, change))).toEqual({ code: '23514' });
  });

  test('the cap counts active groups and is exact', async () => {
    const { owner, agents } = await ownerWith(2);
    const ids = agents.map(({ id }) => id);
    const full = { code: 'limit_reached', detail: { limit: 'active_groups_per_owner' } };
    await world.setLimit('active_groups_per_owner', 2);
    try {
      const short = await create(owner, ids, { durationHours: 1 });
      const long = await create(owner, ids);
      expect(await refusal(create(owner, ids))).toEqual(full);
      await functions.renewGroup(app, { ...asOwner(owner), groupId: long.id }); // is one of them already
      await clock.advance('1 hour');
      await create(owner, ids);
      expect(await refusal(functions.renewGroup(app, { ...asOwner(owner), groupId: short.id }))).toEqual(full);
      await functions.revokeGroup(app, { ...asOwner(owner), groupId: long.id });
      await functions.renewGroup(app, { ...asOwner(owner), groupId: short.id });
      expect(await refusal(create(owner, ids))).toEqual(full);
    } finally {
      await world.setLimit('active_groups_per_owner', 200);
    }
  });
});

describe('the end of a group', () => {
  test('is its last moment by the clock, with no sweeper', async () => {
    const { owner, agents } = await ownerWith(2);
    const [a, b] = agents as [Agent, Agent];
    const group = await owner.group(agents, { hours: 1 });
    const sent = (await send(world, { from: a, to: b })).messageIds![0]!;
    await clock.advance('1 hour -1 millisecond');
    expect((await functions.listOwnerGroups(app, asOwner(owner)))[0]!.state).toBe('active');
    expect(await send(world, { from: a, to: b })).toMatchObject({ outcome: 'queued' });
    expect(await send(world, { from: a, group })).toMatchObject({ outcome: 'queued' });
    expect((await messageStatus(world, b, sent)).state).toBe('queued');
    await clock.advance('1 millisecond');
    expect((await functions.listOwnerGroups(app, asOwner(owner)))[0]!.state).toBe('expired');
    // a pair send, through it or not, asks for its renewal
    expect(await send(world, { from: a, to: b })).toMatchObject({ outcome: 'held' });
    expect(await send(world, { from: a, to: b, group })).toMatchObject({ outcome: 'held' });
    expect(await send(world, { from: a, group })).toMatchObject({ outcome: 'group_unauthorized' });
    expect((await messageStatus(world, b, sent)).state).toBe('expired');
    expect(await readInbox(world, b)).toEqual([]);
  });

  test('no message outlives it, and none lives longer than 24 hours', async () => {
    const { owner, agents } = await ownerWith(3);
    const [a, b, c] = agents as [Agent, Agent, Agent];
    await clock.stop();
    const now = (await clock.now()).getTime();
    await owner.group([a, b], { hours: 5 });
    await owner.group([a, c], { hours: 25 });
    expect((await send(world, { from: a, to: b })).expiresAt).toEqual(new Date(now + 5 * HOUR_MS));
    expect((await send(world, { from: a, to: c })).expiresAt).toEqual(new Date(now + 24 * HOUR_MS));
  });
});

describe('renewal', () => {
  test('adds the given or the original hours to the later of now and the old end, and counts a generation', async () => {
    const { owner, agents } = await ownerWith(2);
    await clock.stop();
    const group = await owner.group(agents, { hours: 10 });
    const first = group.expiresAt.getTime();
    const renew = (durationHours?: number) =>
      functions.renewGroup(app, { ...asOwner(owner), groupId: group.id, durationHours });
    expect(await renew()).toEqual({
      ...group,
      generation: 2,
      expiresAt: new Date(first + 10 * HOUR_MS),
      approvedAt: await clock.now(),
    });
    expect(await renew(3)).toMatchObject({ generation: 3, expiresAt: new Date(first + 13 * HOUR_MS) });
    await clock.advance('100 hours');
    const now = await clock.now();
    expect(await renew()).toMatchObject({
      generation: 4,
      state: 'active',
      approvedAt: now,
      expiresAt: new Date(now.getTime() + 10 * HOUR_MS),
    });
  });

  test.each([0, 721, -1])('for %i hours is refused by name', async (durationHours) => {
    const { owner, agents } = await ownerWith(2);
    const group = await owner.group(agents);
    const call = functions.renewGroup(app, { ...asOwner(owner), groupId: group.id, durationHours });
    expect(await refusal(call)).toEqual({ code: 'invalid_request', detail: { fields: ['duration_hours'] } });
  });

  test('freezes the old conversations: their mail is still received and acknowledged, not answered; the thread is fresh', async () => {
    const { owner, agents } = await ownerWith(3);
    const [a, b, c] = agents as [Agent, Agent, Agent];
    const group = await owner.group(agents);
    const pair = await send(world, { from: a, to: b });
    const post = await send(world, { from: a, group });
    const toB = pair.messageIds![0]!;
    await functions.renewGroup(app, { ...asOwner(owner), groupId: group.id });

    expect(await send(world, { from: b, conversation: pair.conversationId!, replyTo: toB })).toMatchObject({
      outcome: 'conversation_frozen',
    });
    expect(await send(world, { from: b, conversation: post.conversationId! })).toMatchObject({
      outcome: 'conversation_frozen',
    });
    expect(await messageStatus(world, b, toB)).toMatchObject({ state: 'queued' });
    expect((await readInbox(world, b)).map(({ id }) => id)).toContain(toB);
    expect(await advance(world, b, 'acknowledged', [toB])).toMatchObject([{ state: 'acknowledged' }]);

    const freshPair = await send(world, { from: b, to: a });
    const freshPost = await send(world, { from: c, group });
    expect(freshPair).toMatchObject({ outcome: 'queued', groupId: group.id });
    expect(freshPost).toMatchObject({ outcome: 'queued' });
    expect([pair.conversationId, post.conversationId]).not.toContain(freshPair.conversationId);
    expect([pair.conversationId, post.conversationId]).not.toContain(freshPost.conversationId);
    expect(await send(world, { from: b, conversation: freshPair.conversationId! })).toMatchObject({
      outcome: 'queued',
    });
  });

  test('revives an expired group and no revoked one', async () => {
    const { owner, agents } = await ownerWith(2);
    const [a, b] = agents as [Agent, Agent];
    const group = await owner.group(agents, { hours: 1 });
    await clock.advance('2 hours');
    await functions.renewGroup(app, { ...asOwner(owner), groupId: group.id });
    expect(await send(world, { from: a, to: b })).toMatchObject({ outcome: 'queued' });
    await functions.revokeGroup(app, { ...asOwner(owner), groupId: group.id });
    expect(await refusal(functions.renewGroup(app, { ...asOwner(owner), groupId: group.id }))).toEqual({
      code: 'invalid_request',
      detail: { fields: ['group_id'] },
    });
  });
});

describe('revocation of groups', () => {
  test('is final and repeatable, fences the mail of this group alone, and tells the senders', async () => {
    const { owner, agents } = await ownerWith(3);
    const [a, b] = agents as [Agent, Agent];
    const [ended, other] = [await owner.group(agents), await owner.group(agents)];
    const pair = (await send(world, { from: a, to: b, group: ended })).messageIds![0]!;
    const post = (await send(world, { from: a, group: ended })).messageIds!;
    const kept = (await send(world, { from: a, to: b, group: other })).messageIds![0]!;
    await advance(world, b, 'delivered', [pair]);
    const revoked = await functions.revokeGroup(app, { ...asOwner(owner), groupId: ended.id });
    expect(revoked.state).toBe('revoked');
    expect(await functions.revokeGroup(app, { ...asOwner(owner), groupId: ended.id })).toEqual(revoked);
    const states = await Promise.all(
      [pair, ...post, kept].map(async (id) => (await messageStatus(world, a, id)).state),
    );
    expect(states).toEqual(['revoked', 'revoked', 'revoked', 'queued']);
    expect((await readInbox(world, b)).map(({ id }) => id)).toEqual([kept]);
    expect(await send(world, { from: a, group: ended })).toMatchObject({ outcome: 'group_unauthorized' });
    expect(await send(world, { from: a, to: b })).toMatchObject({ outcome: 'queued', groupId: other.id });
    const { rows } = await database.admin.query(
      `select subject_id from posthorn.events where agent_id = $1 and state = 'revoked' order by subject_id`,
      [a.id],
    );
    expect(rows.map((row) => row.subject_id)).toEqual([pair, ...post].toSorted());
  });

  test('unknown groups are not found', async () => {
    const { owner } = await ownerWith(0);
    for (const call of [functions.revokeGroup, functions.renewGroup]) {
      expect(await refusal(call(app, { ...asOwner(owner), groupId: makeId() }))).toEqual({
        code: 'not_found',
        detail: {},
      });
    }
  });
});

describe('settings and limits', () => {
  test('settings change one by one, and answer all', async () => {
    const owner = await world.makeOwner('Anna');
    expect(await functions.ownerSettings(app, asOwner(owner))).toMatchObject([
      { id: owner.id, label: 'Anna', automaticApproval: false, sensitiveContentCheck: true },
    ]);
    expect(await functions.changeOwnerSettings(app, { ...asOwner(owner), sensitiveContentCheck: false })).toMatchObject(
      [{ automaticApproval: false, sensitiveContentCheck: false }],
    );
    expect(await functions.changeOwnerSettings(app, { ...asOwner(owner), automaticApproval: true })).toMatchObject([
      { automaticApproval: true, sensitiveContentCheck: false },
    ]);
  });

  test('a limit changes for the next transaction, and within its range only', async () => {
    const admin = database.as('posthorn_admin');
    expect(await functions.setLimit(admin, { name: 'inbox_messages', value: 7 })).toBe(7);
    expect(
      (await database.as('posthorn_ops').query(`select value from ops.limits where name = 'inbox_messages'`)).rows,
    ).toEqual([{ value: 7 }]);
    expect(await refusal(functions.setLimit(admin, { name: 'inbox_messages', value: 0 }))).toEqual({ code: '23514' });
    expect(await refusal(functions.setLimit(admin, { name: 'inbox_messages', value: 1_000_000_001 }))).toEqual({
      code: '23514',
    });
    await expect(functions.setLimit(admin, { name: 'nothing', value: 1 })).rejects.toMatchObject({ code: 'MHNFD' });
    await functions.setLimit(admin, { name: 'inbox_messages', value: 100 });
  });
});
