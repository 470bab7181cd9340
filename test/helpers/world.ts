import { randomBytes } from 'node:crypto';
import type pg from 'pg';
import { expect } from 'vitest';
import { makeCredential } from '../../src/crypto/credentials.ts';
import { makeId } from '../../src/crypto/ids.ts';
import { type KeyRing, makeKeyRing, makeRingProof, wrapDataKey } from '../../src/crypto/key-ring.ts';
import { createOwnerKeys, type OwnerKeysOf } from '../../src/crypto/owner-keys.ts';
import { fingerprint, open, seal } from '../../src/crypto/seal.ts';
import * as functions from '../../src/db/functions.ts';
import { type Queryable, withClient } from '../../src/db/pool.ts';
import { createTestDatabase, type TestDatabase } from './database.ts';

// Owners, connections, agents and groups in a database, and the calls of a pod, one function each. What is tested runs
// as posthorn_app, like a pod; fixtures that no function makes yet are the superuser's.

export interface World {
  database: TestDatabase;
  /** What a pod's connections may do. */
  app: pg.Pool;
  ring: KeyRing;
  ownerKeysOf: OwnerKeysOf;
  clock: Clock;
  makeOwner(label?: string): Promise<Owner>;
  /** As the person at the server does it. */
  setLimit(name: string, value: number): Promise<void>;
}

export interface Clock {
  /** Moves the time that every session of the database sees, by an interval such as '61 seconds'. */
  advance(interval: string): Promise<void>;
  /** Stops the time at a moment, or where it is. */
  stop(at?: Date): Promise<void>;
  /** Lets the time go on from where it stands. */
  go(): Promise<void>;
  now(): Promise<Date>;
}

export interface Owner {
  id: string;
  /** A session's credential, with which pods may do what the owner may. */
  session: Buffer;
  /** Does something as the owner, in one transaction of the person at the server. */
  act<T>(work: (db: Queryable, credential: Buffer) => Promise<T>): Promise<T>;
  connect(options?: { kind?: 'service' | 'device'; scopes?: string[]; expiresAt?: Date }): Promise<Connection>;
  /** An agent on a service connection of its own. */
  agent(label?: string): Promise<Agent>;
  agents(count: number): Promise<Agent[]>;
  group(agents: Agent[], options?: { hours?: number }): Promise<functions.GroupView>;
}

export interface Connection {
  id: string;
  token: string;
  credential: Buffer;
  agent(installation?: string, label?: string): Promise<Agent>;
}

export interface Agent {
  id: string;
  owner: Owner;
  credential: Buffer;
  connection: Connection;
}

/** A clone of the template with a key ring, and owners as tests ask for them. */
export async function createWorld(): Promise<World> {
  const database = await createTestDatabase();
  const app = database.as('posthorn_app');
  const admin = database.as('posthorn_admin');
  const ring = makeKeyRing();
  await functions.addRingKey(admin, { ringKeyId: ring.currentId, proof: makeRingProof(ring, ring.currentId) });

  async function makeOwner(label = 'Owner'): Promise<Owner> {
    const id = makeId();
    await functions.createOwner(admin, { label, id, ...wrapDataKey(ring, id, randomBytes(32)) });
    const act: Owner['act'] = (work) =>
      inTransaction(admin, async (db) => work(db, await functions.actAsOwner(db, { ownerId: id })));
    const session = makeCredential('service').hash;
    await database.admin.query(
      `insert into posthorn.connections (owner_id, kind, label, credential_hash, scopes, created_at)
       select o.owner_id, 'session', 'session', $2, array['owner'], posthorn_impl.clock() from posthorn.owners o where o.id = $1`,
      [id, session],
    );
    const owner: Owner = {
      id,
      session,
      act,
      async connect({ kind = 'service', scopes = ['messaging'], expiresAt } = {}) {
        const { token, hash } = makeCredential(kind);
        const given = { label: kind, scopes, credentialHash: hash };
        const { id: connectionId } = await act((db, credential) =>
          kind === 'device'
            ? functions.pairDevice(db, { credential, ...given })
            : functions.createServiceConnection(db, { credential, ...given, expiresAt }),
        );
        return makeConnection(owner, connectionId, token, hash);
      },
      agent: async (name = 'agent') => (await owner.connect()).agent('test', name),
      agents: (count) => Promise.all(Array.from({ length: count }, (_, index) => owner.agent(`agent ${index}`))),
      group: (agents, { hours = 168 } = {}) =>
        act((db, credential) =>
          functions.createGroup(db, {
            credential,
            name: 'Group',
            purpose: 'To test',
            agentIds: agents.map((agent) => agent.id),
            durationHours: hours,
          }),
        ),
    };
    return owner;
  }

  function makeConnection(owner: Owner, id: string, token: string, credential: Buffer): Connection {
    const connection: Connection = {
      id,
      token,
      credential,
      async agent(installation = 'test', label = 'agent') {
        const agent = await functions.registerAgent(app, { credential, installation, label, runtime: 'other' });
        return { id: agent.id, owner, credential, connection };
      },
    };
    return connection;
  }

  return {
    database,
    app,
    ring,
    ownerKeysOf: createOwnerKeys(app, ring),
    clock: {
      async advance(interval) {
        await database.admin.query(
          'update posthorn_test.clock set shift = shift + $1::interval, stopped_at = stopped_at + $1::interval',
          [interval],
        );
      },
      async stop(at) {
        await database.admin.query('update posthorn_test.clock set stopped_at = coalesce($1, posthorn_impl.clock())', [
          at,
        ]);
      },
      async go() {
        await database.admin.query(
          'update posthorn_test.clock set shift = stopped_at - clock_timestamp(), stopped_at = null where stopped_at is not null',
        );
      },
      async now() {
        const { rows } = await database.admin.query('select posthorn_impl.clock() as now');
        return rows[0].now;
      },
    },
    makeOwner,
    async setLimit(name, value) {
      await functions.setLimit(admin, { name, value });
    },
  };
}

export async function inTransaction<T>(pool: pg.Pool, work: (db: Queryable) => Promise<T>): Promise<T> {
  return await withClient(pool, async (client) => {
    await client.query('begin');
    try {
      const answer = await work(client);
      await client.query('commit');
      return answer;
    } catch (error) {
      await client.query('rollback');
      throw error;
    }
  });
}

// The calls of a pod, without its lanes.

export interface Send {
  from: Agent;
  to?: { id: string };
  group?: { id: string };
  conversation?: string;
  replyTo?: string;
  body?: string;
  /** What the owner is asked, where no collaboration reaches the recipient. */
  purpose?: string;
  key?: string;
  isSensitive?: boolean;
}

/** Plans, seals and sends one message or post, as a pod does. */
export async function send(world: World, item: Send): Promise<functions.SendMessagesRow> {
  return (await sendBatch(world, [item]))[0]!;
}

/** The same for many, in one transaction. */
export async function sendBatch(world: World, items: Send[]): Promise<functions.SendMessagesRow[]> {
  return await functions.sendMessages(world.app, await sealBatch(world, items));
}

/** The arguments of posthorn_api.send_messages for these sends, planned now. */
export async function sealBatch(world: World, items: Send[]): Promise<Parameters<typeof functions.sendMessages>[1]> {
  const addresses = {
    credentials: items.map(({ from }) => from.credential),
    agentIds: items.map(({ from }) => from.id),
    recipientAgentIds: items.map(({ to }) => to?.id ?? null),
    groupIds: items.map(({ group }) => group?.id ?? null),
    conversationIds: items.map(({ conversation }) => conversation ?? null),
  };
  const plans = await functions.planSends(world.app, addresses);
  const sealed = await Promise.all(plans.map((plan, index) => sealOne(world, items[index]!, plan, index + 1)));
  const copies = sealed.flatMap((item) => item.copies);
  return {
    ...addresses,
    keys: items.map(({ key }) => key ?? newKey()),
    fingerprints: sealed.map((item) => item.fingerprint),
    repliesTo: items.map(({ replyTo }) => replyTo ?? null),
    purposes: items.map(({ purpose }) => purpose ?? null),
    names: items.map(() => null),
    durationsHours: items.map(() => null),
    sensitive: items.map(({ isSensitive }) => isSensitive ?? false),
    plannedGroupIds: plans.map((plan) => plan.groupId),
    plannedGenerations: plans.map((plan) => plan.generation),
    holdIds: sealed.map((item) => item.holdId),
    postIds: sealed.map((item) => item.postId),
    copyItems: copies.map((copy) => copy.item),
    copyRecipients: copies.map((copy) => copy.recipientAgentId),
    copyMessageIds: copies.map((copy) => copy.messageId),
    copyCiphertexts: copies.map((copy) => copy.ciphertext),
  };
}

async function sealOne(world: World, send: Send, plan: functions.PlanSendsRow, item: number) {
  if (plan.problem !== null) return { fingerprint: Buffer.alloc(32), holdId: null, postId: null, copies: [] };
  const keys = await world.ownerKeysOf(plan.ownerId!, send.from.credential);
  const { to, group, conversation, replyTo, body = 'Hello' } = send;
  const holdId = plan.isHeld ? makeId() : null;
  const containerId = holdId ?? plan.groupId;
  const recipients = containerId === null ? [] : plan.recipientAgentIds;
  const copies = recipients.map((recipientAgentId) => {
    const messageId = makeId();
    const binding = {
      ownerId: plan.ownerId!,
      containerKind: holdId === null ? ('group' as const) : ('hold' as const),
      containerId: containerId!,
      senderAgentId: plan.agentId!,
      recipientAgentId,
      messageId,
    };
    return { item, recipientAgentId, messageId, ciphertext: seal(keys, binding, body) };
  });
  return {
    fingerprint: fingerprint(keys, { to: to?.id, group: group?.id, conversation, replyTo, body }),
    holdId,
    postId: plan.isPost && copies.length > 0 ? makeId() : null,
    copies,
  };
}

let keys = 0;

/** An idempotency key that no test used before. */
export function newKey(): string {
  return `key ${++keys}`;
}

/** The sealed unfenced messages of an agent. Marks nothing. */
export async function readInbox(world: World, agent: Agent, after = 0, limit = 100): Promise<functions.ReadInboxRow[]> {
  return await functions.readInbox(world.app, { credential: agent.credential, agentId: agent.id, after, limit });
}

/** What a message of the inbox says. */
export async function openMessage(world: World, agent: Agent, row: functions.ReadInboxRow): Promise<string> {
  const { ownerId, holdId, groupId, senderAgentId, recipientAgentId, id: messageId } = row;
  const keys = await world.ownerKeysOf(ownerId, agent.credential);
  const container =
    holdId === null
      ? { containerKind: 'group' as const, containerId: groupId }
      : { containerKind: 'hold' as const, containerId: holdId };
  return open(keys, { ownerId, ...container, senderAgentId, recipientAgentId, messageId }, row.ciphertext);
}

export type Level = 'delivered' | 'admitted' | 'acknowledged' | 'processed';

/** Moves receipts forward and answers them in order; the state is null where a message is not the agent's. */
export async function advance(
  world: World,
  agent: Agent,
  level: Level,
  messageIds: string[],
): Promise<functions.AdvanceReceiptsRow[]> {
  return await functions.advanceReceipts(world.app, {
    credentials: [agent.credential],
    agentIds: [agent.id],
    levels: [level],
    items: messageIds.map(() => 1),
    messageIds,
  });
}

export async function messageStatus(world: World, agent: Agent, messageId: string): Promise<functions.MessageView> {
  return await functions.messageStatus(world.app, { credential: agent.credential, agentId: agent.id, messageId });
}

// What holds at any time.

/** Fails with what ops.invariants shows. Call it at the end of every file that sends. */
export async function expectInvariants(world: World): Promise<void> {
  const { rows } = await world.database.as('posthorn_ops').query('select * from ops.invariants');
  expect(rows).toEqual([]);
}

/** The refusal of a call: its code with its facts, or a SQLSTATE that is not ours. */
export async function refusal(call: Promise<unknown>): Promise<{ code: string; detail?: unknown }> {
  try {
    await call;
  } catch (error) {
    const { code, message, detail } = error as { code: string; message: string; detail?: string };
    return code.startsWith('MH') ? { code: message, detail: JSON.parse(detail ?? '{}') } : { code };
  }
  throw new Error('The call was not refused.');
}

/** The refusals of calls made at once. */
export async function refusals(calls: Promise<unknown>[]): Promise<{ code: string; detail?: unknown }[]> {
  return await Promise.all(calls.map(refusal));
}
