import { afterAll, describe, expect, test } from 'vitest';
import * as functions from '../../src/db/functions.ts';
import {
  type Agent,
  advance,
  createWorld,
  expectInvariants,
  messageStatus,
  readInbox,
  refusal,
  send,
} from '../helpers/world.ts';

const world = await createWorld();
const { app, clock, database } = world;

afterAll(() => expectInvariants(world));

const agentOf = (agent: Agent) => ({ credential: agent.credential, agentId: agent.id });
const statusOf = async (agent: Agent) => (await functions.agentStatus(app, agentOf(agent)))[0]!;

describe('registration', () => {
  test('the same connection and installation are the same agent, with what it says last', async () => {
    const owner = await world.makeOwner();
    const { credential } = await owner.connect();
    const first = await functions.registerAgent(app, {
      credential,
      installation: 'a',
      label: 'One',
      runtime: 'codex',
      runtimeVersion: '1.0',
    });
    expect(first).toMatchObject({
      label: 'One',
      runtime: 'codex',
      runtimeVersion: '1.0',
      originKind: 'service',
      installation: 'a',
      revokedAt: null,
      sharedGroupIds: [],
    });
    const again = await functions.registerAgent(app, { credential, installation: 'a', label: 'Two', runtime: 'other' });
    expect(again).toEqual({ ...first, label: 'Two', runtime: 'other', runtimeVersion: null });
    const other = await functions.registerAgent(app, { credential, installation: 'b', label: 'Two', runtime: 'other' });
    expect(other.id).not.toBe(first.id);
    const elsewhere = await functions.registerAgent(app, {
      credential: (await owner.connect()).credential,
      installation: 'a',
      label: 'One',
      runtime: 'other',
    });
    expect(elsewhere.id).not.toBe(first.id);
  });

  test('registering with nothing new writes nothing', async () => {
    const owner = await world.makeOwner();
    const { credential } = await owner.connect();
    const given = { credential, installation: 'a', label: 'One', runtime: 'codex' };
    const first = await functions.registerAgent(app, given);
    const rows = () =>
      database.admin.query(`select xmin::text, to_jsonb(a) from posthorn.agents a where agent_id = $1`, [first.id]);
    const [before, audit] = [(await rows()).rows, await countOf('audit_entries')];
    expect(await functions.registerAgent(app, given)).toEqual(first);
    expect((await rows()).rows).toEqual(before);
    expect(await countOf('audit_entries')).toBe(audit);
  });

  test('many at once are one agent', async () => {
    const { credential } = await (await world.makeOwner()).connect();
    const registered = await Promise.all(
      Array.from({ length: 20 }, () =>
        functions.registerAgent(app, { credential, installation: 'a', label: 'One', runtime: 'other' }),
      ),
    );
    expect(new Set(registered.map(({ id }) => id)).size).toBe(1);
  });

  test('without an installation it is refused by name', async () => {
    const { credential } = await (await world.makeOwner()).connect();
    const call = functions.registerAgent(app, {
      credential,
      installation: null as unknown as string,
      label: 'One',
      runtime: 'other',
    });
    expect(await refusal(call)).toEqual({ code: 'invalid_request', detail: { fields: ['installation'] } });
  });

  test.each([
    ['an installation with a blank', { installation: 'a b' }],
    ['an installation of 65', { installation: 'a'.repeat(65) }],
    ['an empty installation', { installation: '' }],
    ['an empty label', { label: '' }],
    ['a label of 65 code points', { label: '😀'.repeat(65) }],
    ['a runtime with a capital', { runtime: 'Codex' }],
    ['a runtime of 41', { runtime: 'a'.repeat(41) }],
    ['a version of 41', { runtimeVersion: 'é'.repeat(41) }],
    ['an empty version', { runtimeVersion: '' }],
  ])('%s is refused', async (_, change) => {
    const { credential } = await (await world.makeOwner()).connect();
    const longest = {
      credential,
      installation: 'a'.repeat(64),
      label: '😀'.repeat(64),
      runtime: 'a'.repeat(40),
      runtimeVersion: 'é'.repeat(40),
    };
    await functions.registerAgent(app, longest);
    expect(await refusal(functions.registerAgent(app, { ...longest, ...change }))).toEqual({ code: '23514' });
  });

  test('the cap is exact, and counts no revoked agent', async () => {
    const owner = await world.makeOwner();
    const connection = await owner.connect();
    await world.setLimit('agents_per_owner', 3);
    try {
      const agents = [await connection.agent('a'), await connection.agent('b'), await connection.agent('c')] as const;
      expect(await refusal(connection.agent('d'))).toEqual({
        code: 'limit_reached',
        detail: { limit: 'agents_per_owner' },
      });
      await connection.agent('a', 'renamed'); // an update is no new agent
      await functions.revokeOwnAgent(app, agentOf(agents[0]));
      await connection.agent('d');
      expect(await refusal(connection.agent('a'))).toMatchObject({ code: 'limit_reached' });
      await functions.revokeAgent(app, { credential: owner.session, agentId: agents[1].id });
      await connection.agent('a');
      expect(
        await refusal(functions.restoreAgent(app, { credential: owner.session, agentId: agents[1].id })),
      ).toMatchObject({ code: 'limit_reached' });
    } finally {
      await world.setLimit('agents_per_owner', 500);
    }
  });
});

describe('revocation of agents', () => {
  test('by itself: it may come back as the same agent, into no group', async () => {
    const owner = await world.makeOwner();
    const agents = (await owner.agents(3)) as [Agent, Agent, Agent];
    const group = await owner.group(agents);
    await functions.revokeOwnAgent(app, agentOf(agents[0]));
    expect(await refusal(functions.listGroups(app, agentOf(agents[0])))).toMatchObject({ code: 'agent_revoked' });
    const back = await agents[0].connection.agent();
    expect(back.id).toBe(agents[0].id);
    expect(await functions.listGroups(app, agentOf(back))).toEqual([]);
    expect((await functions.listGroups(app, agentOf(agents[1])))[0]).toMatchObject({
      id: group.id,
      state: 'active',
      agentIds: [agents[1].id, agents[2].id].toSorted(),
    });
  });

  test('by the owner: it stays out until the owner lifts it, also where it left by itself', async () => {
    const owner = await world.makeOwner();
    const [agent, other] = (await owner.agents(2)) as [Agent, Agent];
    const session = { credential: owner.session };
    for (const isGoneAlready of [false, true]) {
      if (isGoneAlready) await functions.revokeOwnAgent(app, agentOf(agent));
      expect((await functions.revokeAgent(app, { ...session, agentId: agent.id })).revokedAt).not.toBe(null);
      expect(await refusal(agent.connection.agent())).toEqual({ code: 'agent_revoked', detail: {} });
      const listed = await functions.listOwnerAgents(app, session);
      expect(listed.map(({ id, revokedAt }) => [id, revokedAt !== null])).toEqual(
        [
          [agent.id, true],
          [other.id, false],
        ].toSorted(),
      );
      expect((await functions.restoreAgent(app, { ...session, agentId: agent.id })).revokedAt).toBe(null);
      expect(await statusOf(agent)).toMatchObject({ agentId: agent.id });
      expect((await agent.connection.agent()).id).toBe(agent.id);
    }
  });

  test('fences its mail and what it queued, ends groups of fewer than two, and tells the senders', async () => {
    const owner = await world.makeOwner();
    const [gone, peer, third] = (await owner.agents(3)) as [Agent, Agent, Agent];
    const [pair, trio] = [await owner.group([gone, peer]), await owner.group([gone, peer, third])];
    const inPair = (await send(world, { from: peer, to: gone, group: pair })).messageIds![0]!;
    const queued = (await send(world, { from: gone, to: peer, group: pair })).messageIds![0]!;
    const post = await send(world, { from: gone, group: trio });
    const byThird = (await send(world, { from: third, to: peer, group: trio })).messageIds![0]!;
    const taken = post.messageIds![0]!;
    const receipt = await messageStatus(world, gone, taken);
    const reader = receipt.recipientAgentId === peer.id ? peer : third;
    const other = reader === peer ? third : peer;
    await advance(world, reader, 'delivered', [taken]);

    await functions.revokeAgent(app, { credential: owner.session, agentId: gone.id });

    expect((await messageStatus(world, peer, inPair)).state).toBe('revoked');
    expect((await messageStatus(world, peer, queued)).state).toBe('revoked');
    expect((await messageStatus(world, reader, taken)).state).toBe('delivered');
    expect((await messageStatus(world, other, post.messageIds![1]!)).state).toBe('revoked');
    expect((await messageStatus(world, peer, byThird)).state).toBe('queued');
    const groups = await functions.listOwnerGroups(app, { credential: owner.session });
    expect(groups.map(({ id, state, agentIds }) => ({ id, state, agentIds }))).toEqual([
      { id: trio.id, state: 'active', agentIds: [peer.id, third.id].toSorted() },
      { id: pair.id, state: 'revoked', agentIds: [peer.id] },
    ]);
    const { rows } = await database.admin.query(
      `select state from posthorn.events where agent_id = $1 and subject_id = $2 order by seq desc limit 1`,
      [peer.id, inPair],
    );
    expect(rows).toEqual([{ state: 'revoked' }]);
  });

  test('again changes nothing', async () => {
    const owner = await world.makeOwner();
    const agent = await owner.agent();
    const first = await functions.revokeAgent(app, { credential: owner.session, agentId: agent.id });
    await clock.advance('1 minute');
    expect(await functions.revokeAgent(app, { credential: owner.session, agentId: agent.id })).toEqual(first);
  });
});

describe('what an agent sees', () => {
  test('every other agent that is not revoked, in pages, with the active groups they share', async () => {
    const owner = await world.makeOwner();
    const agents = await owner.agents(5);
    const [me, peer, revoked] = agents as [Agent, Agent, Agent];
    const shared = await owner.group([me, peer]);
    const ended = await owner.group([me, peer]);
    await owner.group([peer, agents[3]!]);
    await functions.revokeGroup(app, { credential: owner.session, groupId: ended.id });
    await functions.revokeAgent(app, { credential: owner.session, agentId: revoked.id });
    const others = agents.filter((agent) => agent !== me && agent !== revoked).map(({ id }) => id);
    const listed = await functions.listAgents(app, agentOf(me));
    expect(listed.map(({ id }) => id)).toEqual(others.toSorted());
    expect(listed.map(({ id, sharedGroupIds }) => (id === peer.id ? sharedGroupIds : sharedGroupIds.length))).toEqual(
      others.toSorted().map((id) => (id === peer.id ? [shared.id] : 0)),
    );
    const first = await functions.listAgents(app, { ...agentOf(me), limit: 2 });
    const second = await functions.listAgents(app, { ...agentOf(me), limit: 2, after: first[1]!.id });
    expect([...first, ...second]).toEqual(listed);
  });

  test('its groups, in pages, ended ones too', async () => {
    const owner = await world.makeOwner();
    const [me, peer] = (await owner.agents(2)) as [Agent, Agent];
    const ids = [];
    for (let count = 0; count < 3; count++) ids.push((await owner.group([me, peer], { hours: count + 1 })).id);
    await clock.advance('2 hours');
    const listed = await functions.listGroups(app, agentOf(me));
    expect(listed.map(({ id, state }) => [id, state])).toEqual([
      [ids[0], 'expired'],
      [ids[1], 'expired'],
      [ids[2], 'active'],
    ]);
    const first = await functions.listGroups(app, { ...agentOf(me), limit: 2 });
    expect([...first, ...(await functions.listGroups(app, { ...agentOf(me), limit: 2, after: first[1]!.id }))]).toEqual(
      listed,
    );
  });

  test('its status: counts of peers and of mail that can still be read', async () => {
    const owner = await world.makeOwner();
    const connection = await owner.connect();
    expect(await functions.agentStatus(app, { credential: connection.credential })).toEqual([
      {
        enabled: true,
        agentId: null,
        discoverableAgents: 0,
        livePeers: 0,
        presenceKind: null,
        pendingMessages: 0,
        pendingProposals: 0,
        wakeNumber: null,
        webhookUrlHost: null,
        webhookEvents: null,
        webhookStatus: null,
        webhookConsecutiveFailures: null,
        webhookLastDeliveredAt: null,
      },
    ]);
    const [me, peer, third] = [await connection.agent(), await owner.agent(), await owner.agent()];
    expect(await functions.agentStatus(app, { credential: connection.credential })).toMatchObject([
      { agentId: null, discoverableAgents: 3 },
    ]);
    await owner.group([me, peer, third], { hours: 1 });
    expect(await statusOf(me)).toMatchObject({
      discoverableAgents: 2,
      pendingMessages: 0,
      wakeNumber: expect.any(Number),
    });
    const [first] = (await send(world, { from: peer, to: me })).messageIds!;
    await send(world, { from: third, to: me });
    expect((await statusOf(me)).pendingMessages).toBe(2);
    await advance(world, me, 'delivered', [first!]);
    expect((await statusOf(me)).pendingMessages).toBe(2);
    await advance(world, me, 'acknowledged', [first!]);
    expect((await statusOf(me)).pendingMessages).toBe(1);
    await clock.advance('1 hour');
    expect((await statusOf(me)).pendingMessages).toBe(0);
    expect(await readInbox(world, me)).toEqual([]);
    await functions.revokeAgent(app, { credential: owner.session, agentId: third.id });
    expect(await statusOf(me)).toMatchObject({ discoverableAgents: 1, pendingMessages: 0 });
  });

  test('wake numbers are its own', async () => {
    const owner = await world.makeOwner();
    const numbers = await Promise.all((await owner.agents(4)).map(async (agent) => (await statusOf(agent)).wakeNumber));
    expect(new Set(numbers).size).toBe(4);
  });
});

async function countOf(table: string): Promise<number> {
  return (await database.admin.query(`select count(*) from posthorn.${table}`)).rows[0].count;
}
