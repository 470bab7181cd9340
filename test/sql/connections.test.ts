import { randomBytes } from 'node:crypto';
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
  readInbox,
  refusal,
  send,
} from '../helpers/world.ts';

const world = await createWorld();
const { app, clock, database } = world;
const owner = await world.makeOwner();
const session = { credential: owner.session };

const DAY_MS = 86_400_000;
const newHash = () => randomBytes(32);

afterAll(() => expectInvariants(world));

const isAuthenticated = (credential: Buffer) =>
  functions.authenticate(app, { credential }).then(
    () => true,
    () => false,
  );

async function mintChild(agent: Agent, expiresAt?: Date) {
  const { hash } = makeCredential('child');
  const { credential } = agent.connection;
  const view = await functions.mintChildConnection(app, {
    credential,
    agentId: agent.id,
    label: 'child',
    credentialHash: hash,
    expiresAt,
  });
  return { ...view, credential: hash };
}

describe('making connections', () => {
  test('a service connection has the label, scopes and end that were asked', async () => {
    await clock.stop();
    const expiresAt = new Date((await clock.now()).getTime() + 1_000);
    const made = await functions.createServiceConnection(app, {
      ...session,
      label: 'CI',
      scopes: ['messaging', 'functions'],
      credentialHash: newHash(),
      expiresAt,
    });
    expect(made).toEqual({
      id: expect.any(String),
      kind: 'service',
      label: 'CI',
      scopes: ['messaging', 'functions'],
      parentConnectionId: null,
      agentId: null,
      clientHost: null,
      clientId: null,
      createdAt: await clock.now(),
      expiresAt,
      lastUsedAt: null,
      revokedAt: null,
      endedAt: null,
    });
    expect((await functions.listConnections(app, session)).find(({ id }) => id === made.id)).toEqual(made);
  });

  test('without an end it lives on', async () => {
    expect(
      (
        await functions.createServiceConnection(app, {
          ...session,
          label: 'CI',
          scopes: ['messaging'],
          credentialHash: newHash(),
        })
      ).expiresAt,
    ).toBe(null);
  });

  test('an end that has passed is refused by name', async () => {
    const expiresAt = await clock.now();
    expect(
      await refusal(
        functions.createServiceConnection(app, {
          ...session,
          label: 'CI',
          scopes: ['messaging'],
          credentialHash: newHash(),
          expiresAt,
        }),
      ),
    ).toEqual({
      code: 'invalid_request',
      detail: { fields: ['expires_at'] },
    });
  });

  test.each([
    ['an unknown scope', { scopes: ['everything'] }],
    ['the scope of sessions', { scopes: ['owner'] }],
    ['no scope', { scopes: [] }],
    ['an empty label', { label: '' }],
    ['a label of 65 characters', { label: '😀'.repeat(65) }],
    ['a hash of another size', { credentialHash: randomBytes(31) }],
  ])('%s is refused', async (_, change) => {
    const given = { ...session, label: '😀'.repeat(64), scopes: ['messaging'], credentialHash: newHash() };
    await functions.createServiceConnection(app, given);
    expect(
      await refusal(functions.createServiceConnection(app, { ...given, credentialHash: newHash(), ...change })),
    ).toEqual({ code: '23514' });
  });

  test('a credential that exists already is refused', async () => {
    const { credential } = await owner.connect();
    expect(
      await refusal(
        functions.createServiceConnection(app, {
          ...session,
          label: 'x',
          scopes: ['messaging'],
          credentialHash: credential,
        }),
      ),
    ).toEqual({ code: '23505' });
  });

  test("the cap counts what lives, is exact, and is the owner's own", async () => {
    const [small, other] = [await world.makeOwner(), await world.makeOwner()];
    const one = await small.connect(); // beside the session
    await world.setLimit('connections_per_owner', 3);
    try {
      const expiresAt = new Date((await clock.now()).getTime() + 1_000);
      await small.connect({ expiresAt });
      expect(await refusal(small.connect())).toEqual({
        code: 'limit_reached',
        detail: { limit: 'connections_per_owner' },
      });
      expect(await refusal(small.connect({ kind: 'device' }))).toMatchObject({ code: 'limit_reached' });
      await other.connect();
      await clock.stop(expiresAt);
      await small.connect(); // in the place of the expired one
      expect(await refusal(small.connect())).toMatchObject({ code: 'limit_reached' });
      await functions.revokeConnection(app, { credential: small.session, connectionId: one.id });
      await small.connect();
      expect(await refusal(small.connect())).toMatchObject({ code: 'limit_reached' });
    } finally {
      await world.setLimit('connections_per_owner', 200);
    }
  });
});

describe('devices', () => {
  test('end 90 days after they were last used', async () => {
    const device = await owner.connect({ kind: 'device' });
    const endOf = async () =>
      (await functions.listConnections(app, session)).find(({ id }) => id === device.id)!.expiresAt!.getTime() -
      (await clock.now()).getTime();
    expect(await endOf()).toBe(90 * DAY_MS);
    await clock.advance('12 hours');
    await functions.touchConnections(app, { credentials: [device.credential] });
    expect(await endOf()).toBe(89.5 * DAY_MS); // moved once a day at the most
    await clock.advance('12 hours 1 second');
    expect(
      await functions.touchConnections(app, { credentials: [device.credential, device.credential, randomBytes(32)] }),
    ).toBe(1);
    expect(await endOf()).toBe(90 * DAY_MS);
    await clock.advance('90 days -1 millisecond');
    expect(await isAuthenticated(device.credential)).toBe(true);
    await clock.advance('1 millisecond');
    expect(await isAuthenticated(device.credential)).toBe(false);
    expect(await functions.touchConnections(app, { credentials: [device.credential] })).toBe(0);
  });

  test('being used is noted, and moves the end of no service connection', async () => {
    const service = await owner.connect({ expiresAt: new Date((await clock.now()).getTime() + DAY_MS) });
    await functions.touchConnections(app, { credentials: [service.credential] });
    const seen = (await functions.listConnections(app, session)).find(({ id }) => id === service.id)!;
    expect(seen.lastUsedAt).toEqual(await clock.now());
    expect(seen.expiresAt!.getTime() - (await clock.now()).getTime()).toBe(DAY_MS);
  });
});

describe('rotation', () => {
  test('gives a new credential at once and keeps everything else', async () => {
    const service = await owner.connect();
    const agent = await service.agent();
    const credentialHash = newHash();
    const rotated = await functions.rotateConnection(app, { ...session, connectionId: service.id, credentialHash });
    expect(rotated.id).toBe(service.id);
    expect(await isAuthenticated(service.credential)).toBe(false);
    expect(await functions.agentStatus(app, { credential: credentialHash, agentId: agent.id })).toMatchObject([
      { agentId: agent.id },
    ]);
  });

  test('revives a device that expired, as pairing it again does, but no service connection', async () => {
    const device = await owner.connect({ kind: 'device' });
    const agent = await device.agent();
    const service = await owner.connect({ expiresAt: new Date((await clock.now()).getTime() + 1) });
    await clock.advance('91 days');
    const credentialHash = newHash();
    const rotated = await functions.rotateConnection(app, { ...session, connectionId: device.id, credentialHash });
    expect(rotated.expiresAt!.getTime() - (await clock.now()).getTime()).toBe(90 * DAY_MS);
    expect(await functions.agentStatus(app, { credential: credentialHash, agentId: agent.id })).toMatchObject([
      { agentId: agent.id },
    ]);
    expect(
      await refusal(
        functions.rotateConnection(app, { ...session, connectionId: service.id, credentialHash: newHash() }),
      ),
    ).toMatchObject({ code: 'not_found' });
  });

  test('revives nothing that was revoked, and rotates no session', async () => {
    const service = await owner.connect();
    await functions.revokeConnection(app, { ...session, connectionId: service.id });
    expect(
      await refusal(
        functions.rotateConnection(app, { ...session, connectionId: service.id, credentialHash: newHash() }),
      ),
    ).toMatchObject({ code: 'not_found' });
    const own = (await functions.listConnections(app, session)).find(({ kind }) => kind === 'session')!;
    expect(
      await refusal(functions.rotateConnection(app, { ...session, connectionId: own.id, credentialHash: newHash() })),
    ).toMatchObject({ code: 'not_found' });
  });

  test('an unknown connection is not found', async () => {
    expect(
      await refusal(functions.rotateConnection(app, { ...session, connectionId: makeId(), credentialHash: newHash() })),
    ).toMatchObject({ code: 'not_found' });
  });
});

describe('children', () => {
  test('end with their parent at the latest', async () => {
    const device = await owner.connect({ kind: 'device' });
    const agent = await device.agent();
    const parentEnd = (await clock.now()).getTime() + 90 * DAY_MS;
    expect((await mintChild(agent)).expiresAt!.getTime()).toBe(parentEnd);
    expect((await mintChild(agent, new Date(parentEnd + 1))).expiresAt!.getTime()).toBe(parentEnd);
    expect((await mintChild(agent, new Date(parentEnd - 1))).expiresAt!.getTime()).toBe(parentEnd - 1);
    expect(await mintChild(agent)).toMatchObject({
      kind: 'child',
      scopes: ['messaging'],
      parentConnectionId: device.id,
      agentId: agent.id,
    });
    expect(await refusal(mintChild(agent, await clock.now()))).toEqual({
      code: 'invalid_request',
      detail: { fields: ['expires_at'] },
    });
  });

  test('are made by devices alone, for their own agents that live', async () => {
    const service = await owner.agent();
    expect(await refusal(mintChild(service))).toMatchObject({ code: 'person_required' });
    const device = await owner.connect({ kind: 'device' });
    const agent = await device.agent();
    expect(await refusal(mintChild({ ...agent, id: service.id }))).toMatchObject({ code: 'not_found' });
    await functions.revokeAgent(app, { ...session, agentId: agent.id });
    expect(await refusal(mintChild(agent))).toMatchObject({ code: 'not_found' });
    const mute = await owner.connect({ kind: 'device', scopes: ['functions'] });
    expect(await refusal(mintChild({ ...agent, connection: mute }))).toMatchObject({ code: 'scope_required' });
  });

  test('send, read and acknowledge as their agent, which they may leave out', async () => {
    const device = await owner.connect({ kind: 'device' });
    const [agent, peer] = [await device.agent(), await owner.agent()];
    await owner.group([agent, peer]);
    const { credential } = await mintChild(agent);
    const child: Agent = { ...agent, credential };
    expect(await send(world, { from: child, to: peer })).toMatchObject({ outcome: 'queued' });
    const answer = await send(world, { from: peer, to: agent });
    expect(await functions.readInbox(app, { credential, after: 0, limit: 10 })).toMatchObject([
      { id: answer.messageIds![0] },
    ]);
    expect(await advance(world, child, 'acknowledged', answer.messageIds!)).toMatchObject([{ state: 'acknowledged' }]);
  });

  test('die with their parent, and what they queued is fenced', async () => {
    const device = await owner.connect({ kind: 'device' });
    const [agent, peer] = [await device.agent(), await owner.agent()];
    await owner.group([agent, peer]);
    const { credential, id } = await mintChild(agent);
    const sent = await send(world, { from: { ...agent, credential }, to: peer });
    await functions.revokeConnection(app, { ...session, connectionId: device.id });
    expect(await isAuthenticated(credential)).toBe(false);
    expect((await functions.listConnections(app, session)).find((one) => one.id === id)!.revokedAt).toEqual(
      await clock.now(),
    );
    expect(await messageStatus(world, peer, sent.messageIds![0]!)).toMatchObject({ state: 'revoked' });
  });
});

describe('revocation', () => {
  test('is final, repeatable, and at once', async () => {
    const service = await owner.connect();
    const first = await functions.revokeConnection(app, { ...session, connectionId: service.id });
    expect(first.revokedAt).toEqual(await clock.now());
    expect(await isAuthenticated(service.credential)).toBe(false);
    await clock.advance('1 minute');
    expect(await functions.revokeConnection(app, { ...session, connectionId: service.id })).toEqual(first);
  });

  test('fences what its agents have not read and what nobody took of theirs; delivered copies stay with their reader', async () => {
    const [gone, peer] = (await owner.agents(2)) as [Agent, Agent];
    await owner.group([gone, peer]);
    const toGone = (await send(world, { from: peer, to: gone })).messageIds![0]!;
    const queued = (await send(world, { from: gone, to: peer })).messageIds![0]!;
    const delivered = (await send(world, { from: gone, to: peer })).messageIds![0]!;
    const acknowledged = (await send(world, { from: gone, to: peer })).messageIds![0]!;
    await advance(world, peer, 'delivered', [delivered]);
    await advance(world, peer, 'acknowledged', [acknowledged]);
    await functions.revokeConnection(app, { ...session, connectionId: gone.connection.id });
    const stateOf = async (id: string) => (await messageStatus(world, peer, id)).state;
    expect([
      await stateOf(toGone),
      await stateOf(queued),
      await stateOf(delivered),
      await stateOf(acknowledged),
    ]).toEqual(['revoked', 'revoked', 'delivered', 'acknowledged']);
    expect((await readInbox(world, peer)).map((row) => row.id)).toEqual([delivered]);
    expect(await send(world, { from: peer, to: gone })).toMatchObject({ outcome: 'recipient_unavailable' });
    expect(await send(world, { from: gone, to: peer })).toMatchObject({ outcome: 'unauthorized' });
  });

  test('of a child leaves its parent, its agent and the mail of others alone', async () => {
    const device = await owner.connect({ kind: 'device' });
    const [agent, peer] = [await device.agent(), await owner.agent()];
    await owner.group([agent, peer]);
    const child = await mintChild(agent);
    const byChild = (await send(world, { from: { ...agent, credential: child.credential }, to: peer })).messageIds![0]!;
    const byParent = (await send(world, { from: agent, to: peer })).messageIds![0]!;
    const toAgent = (await send(world, { from: peer, to: agent })).messageIds![0]!;
    await functions.revokeConnection(app, { ...session, connectionId: child.id });
    const stateOf = async (id: string) => (await messageStatus(world, peer, id)).state;
    expect([await stateOf(byChild), await stateOf(byParent), await stateOf(toAgent)]).toEqual([
      'revoked',
      'queued',
      'queued',
    ]);
    expect(await isAuthenticated(device.credential)).toBe(true);
  });

  test('an agent whose connection expires cannot be reached from that moment, until its device is paired again', async () => {
    const device = await owner.connect({ kind: 'device' });
    const [agent, peer, third] = [await device.agent(), await owner.agent(), await owner.agent()];
    const group = await owner.group([agent, peer, third], { hours: 720 });
    for (let month = 1; month <= 3; month++) await functions.renewGroup(app, { ...session, groupId: group.id });
    await clock.advance('90 days -1 millisecond');
    expect(await send(world, { from: peer, to: agent })).toMatchObject({ outcome: 'queued' });
    await clock.advance('1 millisecond');
    expect(await send(world, { from: peer, to: agent })).toMatchObject({ outcome: 'recipient_unavailable' });
    const post = await send(world, { from: peer, group });
    expect(post.messageIds).toHaveLength(1); // to the third alone
    await functions.rotateConnection(app, { ...session, connectionId: device.id, credentialHash: newHash() });
    expect(await send(world, { from: peer, to: agent })).toMatchObject({ outcome: 'queued' });
  });
});

test('every act of the owner is in the audit, with who did it and to what', async () => {
  const audited = await world.makeOwner();
  const device = await audited.connect({ kind: 'device' });
  const agent = await device.agent();
  const child = await mintChild(agent);
  await functions.rotateConnection(app, {
    credential: audited.session,
    connectionId: device.id,
    credentialHash: newHash(),
  });
  await functions.revokeConnection(app, { credential: audited.session, connectionId: child.id });
  const { rows } = await database.admin.query(
    `select a.act, a.connection_id is not null as by_connection, a.subject_id from posthorn.audit_entries a
       join posthorn.owners o on o.owner_id = a.owner_id where o.id = $1 order by a.occurred_at, a.entry_id`,
    [audited.id],
  );
  expect(rows).toEqual([
    { act: 'owner.create', by_connection: false, subject_id: audited.id },
    { act: 'connection.create', by_connection: false, subject_id: device.id },
    { act: 'agent.register', by_connection: true, subject_id: agent.id },
    { act: 'connection.create', by_connection: true, subject_id: child.id },
    { act: 'connection.rotate', by_connection: true, subject_id: device.id },
    { act: 'connection.revoke', by_connection: true, subject_id: child.id },
  ]);
});
