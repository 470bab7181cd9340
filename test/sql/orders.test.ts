import type pg from 'pg';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import * as functions from '../../src/db/functions.ts';
import type { Queryable } from '../../src/db/pool.ts';
import { fillConversation, holdAgain, holdMessage, storedMessage, sweep, type Waiting } from '../helpers/requests.ts';
import {
  type Agent,
  createWorld,
  expectInvariants,
  messageStatus,
  type Owner,
  openMessage,
  readInbox,
  sealBatch,
} from '../helpers/world.ts';

// Two acts at once, in both orders: the first is done but not committed when the second begins. So each order that two
// pods could meet in is a step of its own, and none depends on luck.
const world = await createWorld();
const { app, database } = world;

beforeEach(() => world.setLimit('conversation_posts', 2));
afterEach(() => expectInvariants(world));

type Kind = 'new' | 'renew' | 'continue';

async function makeRequest(kind: Kind): Promise<Waiting> {
  if (kind === 'new') return await holdMessage(world);
  if (kind === 'continue') return await holdAgain(world, await fillConversation(world, 2));
  const owner = await world.makeOwner();
  const [sender, recipient] = (await owner.agents(2)) as [Agent, Agent];
  await owner.group([sender, recipient], { hours: 1 });
  await world.clock.advance('61 minutes');
  return await holdAgain(world, { owner, sender, recipient });
}

const viewOf = async ({ owner, proposalId }: Waiting) =>
  (await functions.listOwnerProposals(app, { credential: owner.session })).find(({ id }) => id === proposalId)!;

/** An act and how it went: `done`, or the code of its refusal or outcome. */
type Act = (db: Queryable, request: Waiting) => Promise<string>;

const done = (work: Promise<unknown>): Promise<string> =>
  work.then(
    () => 'done',
    ({ code, message }) => (code.startsWith('MH') ? message : code),
  );

const session = ({ owner }: { owner: Owner }) => ({ credential: owner.session });
const groupOf = async (request: Waiting) => (await viewOf(request)).groupId!;

const ACTS = {
  approve: (db, request) =>
    done(functions.approveProposal(db, { ...session(request), proposalId: request.proposalId })),
  deny: (db, request) => done(functions.denyProposal(db, { ...session(request), proposalId: request.proposalId })),
  'revoke the recipient': (db, request) =>
    done(functions.revokeAgent(db, { ...session(request), agentId: request.recipient.id })),
  'revoke the sender': (db, request) =>
    done(functions.revokeAgent(db, { ...session(request), agentId: request.sender.id })),
  "revoke the sender's connection": (db, request) =>
    done(functions.revokeConnection(db, { ...session(request), connectionId: request.sender.connection.id })),
  'revoke the group': async (db, request) =>
    done(functions.revokeGroup(db, { ...session(request), groupId: await groupOf(request) })),
  'renew the group': async (db, request) =>
    done(functions.renewGroup(db, { ...session(request), groupId: await groupOf(request) })),
  'delete the account': (db, request) => done(functions.deleteAccount(db, session(request))),
  'hold one more': async (db, { sender, recipient }) => {
    const [outcome] = await functions.sendMessages(
      db,
      await sealBatch(world, [{ from: sender, to: recipient, purpose: 'More' }]),
    );
    return outcome!.outcome;
  },
} satisfies Record<string, Act>;
type ActName = keyof typeof ACTS;

/** Resolves when this session waits for a lock, or `work` is over. */
async function untilWaiting(pid: number, work: Promise<unknown>): Promise<void> {
  let isOver = false;
  const over = work.finally(() => {
    isOver = true;
  });
  over.catch(() => {});
  while (!isOver) {
    const { rows } = await database.admin.query('select cardinality(pg_blocking_pids($1)) > 0 as waits', [pid]);
    if (rows[0].waits) return;
  }
}

async function pidOf(client: pg.PoolClient): Promise<number> {
  return (await client.query('select pg_backend_pid() as pid')).rows[0].pid;
}

/** Does the first act, and while it is not yet committed begins the second, which must wait for it. */
async function inOrder(request: Waiting, first: ActName, second: ActName): Promise<[string, string]> {
  const [one, other] = [await app.connect(), await app.connect()];
  try {
    const pid = await pidOf(other);
    await one.query('begin');
    const firstOutcome = await ACTS[first](one, request);
    const begun = ACTS[second](other, request);
    await untilWaiting(pid, begun);
    await one.query('commit');
    return [firstOutcome, await begun];
  } finally {
    one.release();
    other.release();
  }
}

interface Order {
  kind: Kind;
  first: ActName;
  second: ActName;
  outcomes: [string, string];
  state: string;
  reason?: string;
  message: string;
}

const ORDERS: Order[] = [
  ...(['new', 'renew', 'continue'] as const).flatMap((kind): Order[] => [
    {
      kind,
      first: 'approve',
      second: 'approve',
      outcomes: ['done', 'already_decided'],
      state: 'approved',
      message: 'queued',
    },
    {
      kind,
      first: 'approve',
      second: 'deny',
      outcomes: ['done', 'already_decided'],
      state: 'approved',
      message: 'queued',
    },
    {
      kind,
      first: 'deny',
      second: 'approve',
      outcomes: ['done', 'already_decided'],
      state: 'denied',
      message: 'denied',
    },
    ...(['revoke the recipient', 'revoke the sender'] as const).flatMap((act): Order[] => [
      { kind, first: 'approve', second: act, outcomes: ['done', 'done'], state: 'approved', message: 'revoked' },
      {
        kind,
        first: act,
        second: 'approve',
        outcomes: ['done', 'already_decided'],
        state: 'denied',
        reason: 'superseded',
        message: 'revoked',
      },
    ]),
    // the request itself stays for the owner to decide; what the dead connection sent does not go out
    {
      kind,
      first: 'approve',
      second: "revoke the sender's connection",
      outcomes: ['done', 'done'],
      state: 'approved',
      message: 'revoked',
    },
    {
      kind,
      first: "revoke the sender's connection",
      second: 'approve',
      outcomes: ['done', 'done'],
      state: 'approved',
      message: 'revoked',
    },
    {
      kind,
      first: 'hold one more',
      second: 'approve',
      outcomes: ['held', 'done'],
      state: 'approved',
      message: 'queued',
    },
    // planned as held, and not needed any more: the pod plans again
    {
      kind,
      first: 'approve',
      second: 'hold one more',
      outcomes: ['done', 'stale_plan'],
      state: 'approved',
      message: 'queued',
    },
    {
      kind,
      first: 'deny',
      second: 'hold one more',
      outcomes: ['done', 'recently_denied'],
      state: 'denied',
      message: 'denied',
    },
    {
      kind,
      first: 'approve',
      second: 'delete the account',
      outcomes: ['done', 'done'],
      state: 'approved',
      message: 'revoked',
    },
  ]),
  ...(['renew', 'continue'] as const).flatMap((kind): Order[] => [
    {
      kind,
      first: 'approve',
      second: 'revoke the group',
      outcomes: ['done', 'done'],
      state: 'approved',
      message: 'revoked',
    },
    {
      kind,
      first: 'revoke the group',
      second: 'approve',
      outcomes: ['done', 'already_decided'],
      state: 'denied',
      reason: 'superseded',
      message: 'revoked',
    },
    {
      kind,
      first: 'approve',
      second: 'renew the group',
      outcomes: ['done', 'done'],
      state: 'approved',
      message: 'queued',
    },
    {
      kind,
      first: 'renew the group',
      second: 'approve',
      outcomes: ['done', 'already_decided'],
      state: 'denied',
      reason: 'superseded',
      message: 'revoked',
    },
  ]),
];

describe('a decision and another act at once', () => {
  test.each(ORDERS)(
    '$kind: $first, then $second',
    async ({ kind, first, second, outcomes, state, reason, message }) => {
      const request = await makeRequest(kind);
      expect(await inOrder(request, first, second)).toEqual(outcomes);
      const { rows } = await database.admin.query(
        'select state, reason from posthorn.proposals where proposal_id = $1',
        [request.proposalId],
      );
      expect(rows).toEqual([{ state, reason: reason ?? null }]);
      expect((await storedMessage(world, request.messageId)).state).toBe(message);
    },
  );

  test('a renewal by request and one by the owner make two generations, and mail of the first can be read, not answered', async () => {
    const request = await makeRequest('renew');
    await inOrder(request, 'approve', 'renew the group');
    const [group] = await functions.listOwnerGroups(app, session(request));
    expect(group!.generation).toBe(3);
    const [row] = await readInbox(world, request.recipient);
    expect(await openMessage(world, request.recipient, row!)).toBe('secret');
    const [answer] = await functions.sendMessages(
      app,
      await sealBatch(world, [{ from: request.recipient, conversation: row!.conversationId, replyTo: row!.id }]),
    );
    expect(answer!.outcome).toBe('conversation_frozen');
  });
});

describe('the last place of a cap, asked for by two pairs that share no agent', () => {
  /** The outcomes of both sends; the first is not committed when the second begins. */
  async function sendBoth(owner: Owner): Promise<string[]> {
    const [a, b, c, d] = (await owner.agents(4)) as [Agent, Agent, Agent, Agent];
    const sealed = await Promise.all(
      [
        [a, b],
        [c, d],
      ].map(([from, to]) => sealBatch(world, [{ from: from!, to: to!, purpose: 'Race' }])),
    );
    const [one, other] = [await app.connect(), await app.connect()];
    const pid = await pidOf(other);
    await one.query('begin');
    const [first] = await functions.sendMessages(one, sealed[0]!);
    const second = functions.sendMessages(other, sealed[1]!);
    await untilWaiting(pid, second);
    await one.query('commit');
    one.release();
    const outcomes = [first!.outcome, (await second)[0]!.outcome];
    other.release();
    return outcomes;
  }

  test('of the pending requests of an owner', async () => {
    await world.setLimit('pending_proposals_per_owner', 1);
    expect(await sendBoth(await world.makeOwner())).toEqual(['held', 'proposal_limit']);
    await world.setLimit('pending_proposals_per_owner', 20);
  });

  test('of the automatic approvals of a day', async () => {
    const owner = await world.makeOwner();
    await functions.changeOwnerSettings(app, { ...session({ owner }), automaticApproval: true });
    await world.setLimit('automatic_approvals_per_day', 1);
    expect(await sendBoth(owner)).toEqual(['queued', 'held']);
    await world.setLimit('automatic_approvals_per_day', 50);
  });

  test('of the active groups, where requests are approved automatically', async () => {
    const owner = await world.makeOwner();
    await functions.changeOwnerSettings(app, { ...session({ owner }), automaticApproval: true });
    await world.setLimit('active_groups_per_owner', 1);
    expect(await sendBoth(owner), 'what an approval would refuse waits for the person').toEqual(['queued', 'held']);
    await world.setLimit('active_groups_per_owner', 200);
  });
});

describe('the deadline', () => {
  async function stopBefore(request: Waiting, milliseconds: number): Promise<void> {
    const { expiresAt } = await viewOf(request);
    await world.clock.stop(new Date(expiresAt.getTime() - milliseconds));
  }

  beforeEach(() => sweep(world));
  afterEach(() => world.clock.go());

  test.each(['new', 'renew', 'continue'] as const)(
    '%s: a millisecond before it the owner decides, a millisecond after nobody',
    async (kind) => {
      const [early, late] = [await makeRequest(kind), await makeRequest(kind)];
      await stopBefore(early, 1);
      expect(await ACTS.approve(app, early)).toBe('done');
      await stopBefore(late, -1);
      for (const decide of [ACTS.approve, ACTS.deny]) {
        expect(await decide(app, late)).toBe('expired');
        // by the person at the server too
        const ticket = late.owner.act((db, credential) =>
          decide(db, { ...late, owner: { ...late.owner, session: credential } }),
        );
        expect(await ticket.catch((error) => error.message)).toBe('expired');
      }
      expect((await viewOf(late)).state).toBe('expired');
      expect((await messageStatus(world, late.sender, late.messageId)).state).toBe('expired');
      expect(await readInbox(world, late.recipient)).toEqual([]);
      expect((await storedMessage(world, late.messageId)).state, 'nobody swept').toBe('held');
    },
  );

  test('an approval that waited past it is refused', async () => {
    const request = await makeRequest('new');
    await stopBefore(request, 1);
    const holder = await app.connect();
    const other = await app.connect();
    const pid = await pidOf(other);
    await holder.query('begin');
    // any act of the owner that takes the first lock of the order
    await functions.createGroup(holder, {
      ...session(request),
      name: 'x',
      purpose: 'x',
      agentIds: [request.sender.id, request.recipient.id],
    });
    const approval = ACTS.approve(other, request);
    await untilWaiting(pid, approval);
    await stopBefore(request, -1);
    await holder.query('rollback');
    expect(await approval).toBe('expired');
    holder.release();
    other.release();
  });

  test('an approval just before it wins over the sweeper that waits for it', async () => {
    const request = await makeRequest('new');
    await stopBefore(request, 1);
    const [one, jobs] = [await app.connect(), await database.as('posthorn_jobs').connect()];
    const pid = await pidOf(jobs);
    await one.query('begin');
    expect(await ACTS.approve(one, request)).toBe('done');
    await stopBefore(request, -1);
    const swept = functions.expireProposals(jobs);
    await untilWaiting(pid, swept);
    await one.query('commit');
    expect(await swept).toBe(0);
    expect((await viewOf(request)).state).toBe('approved');
    expect((await storedMessage(world, request.messageId)).state).toBe('queued');
    one.release();
    jobs.release();
  });

  test('the sweeper that was first leaves nothing to approve', async () => {
    const request = await makeRequest('new');
    await stopBefore(request, -1);
    const [jobs, other] = [await database.as('posthorn_jobs').connect(), await app.connect()];
    const pid = await pidOf(other);
    await jobs.query('begin');
    expect(await functions.expireProposals(jobs)).toBe(1);
    const approval = ACTS.approve(other, request);
    await untilWaiting(pid, approval);
    await jobs.query('commit');
    expect(await approval).toBe('expired');
    expect((await storedMessage(world, request.messageId)).state).toBe('expired');
    jobs.release();
    other.release();
  });
});

describe('locks', () => {
  /** Agents in the order of their mailboxes, all in one group. */
  async function four(): Promise<{ owner: Owner; agents: [Agent, Agent, Agent, Agent]; group: functions.GroupView }> {
    const owner = await world.makeOwner();
    const agents = (await owner.agents(4)).toSorted((a, b) => (a.id < b.id ? -1 : 1));
    const group = await owner.group(agents, { hours: 20 });
    return { owner, agents: agents as [Agent, Agent, Agent, Agent], group };
  }

  test('a renewal that ends another request takes all mailboxes in one order, or it would deadlock with an acknowledgement', async () => {
    const { owner, agents, group } = await four();
    const [first, , third, fourth] = agents;
    // an unread message that reaches across: who acknowledges it locks the first mailbox, then the third
    const across = await functions.sendMessages(app, await sealBatch(world, [{ from: third, to: first }]));
    for (let post = 0; post < 2; post++)
      await functions.sendMessages(app, await sealBatch(world, [{ from: third, to: fourth }]));
    const continuation = await holdAgain(world, { owner, sender: third, recipient: fourth });
    expect((await viewOf(continuation)).kind).toBe('continue');
    const [renewal] = await functions.proposeCollaboration(app, {
      credential: first.credential,
      agentId: first.id,
      kind: 'renew',
      groupId: group.id,
    });

    // The last mailbox is taken. Whoever needs it waits with all that comes before it in the order.
    const keeper = await database.admin.connect();
    const [decider, reader] = [await app.connect(), await app.connect()];
    const [deciderPid, readerPid] = [await pidOf(decider), await pidOf(reader)];
    await keeper.query('begin');
    await keeper.query('select from posthorn.mailboxes where agent_id = $1 for update', [fourth.id]);
    const decision = done(
      functions.approveProposal(decider, { credential: owner.session, proposalId: renewal!.proposalId! }),
    );
    await untilWaiting(deciderPid, decision);
    const receipt = done(
      functions.advanceReceipts(reader, {
        credentials: [first.credential],
        agentIds: [first.id],
        levels: ['acknowledged'],
        items: [1],
        messageIds: [across[0]!.messageIds![0]!],
      }),
    );
    await untilWaiting(readerPid, receipt);
    await keeper.query('commit');
    expect(await Promise.all([decision, receipt])).toEqual(['done', 'done']);
    for (const client of [keeper, decider, reader]) client.release();
  });

  test('a continuation that shortens the life of mail locks mailboxes before messages, or it would deadlock with an acknowledgement', async () => {
    const capped = await fillConversation(world, 2);
    const { owner, recipient } = capped;
    const continuation = await holdAgain(world, capped);
    const [unread] = await readInbox(world, recipient);

    // the body is taken: whoever changes it stands in the middle of its work
    const keeper = await database.admin.connect();
    const [decider, reader] = [await app.connect(), await app.connect()];
    const [deciderPid, readerPid] = [await pidOf(decider), await pidOf(reader)];
    await keeper.query('begin');
    await keeper.query('select from posthorn.bodies where message_id = $1 for update', [unread!.id]);
    const decision = done(
      functions.approveProposal(decider, {
        credential: owner.session,
        proposalId: continuation.proposalId,
        durationHours: 1,
      }),
    );
    await untilWaiting(deciderPid, decision);
    const receipt = done(
      functions.advanceReceipts(reader, {
        credentials: [recipient.credential],
        agentIds: [recipient.id],
        levels: ['delivered'],
        items: [1],
        messageIds: [unread!.id],
      }),
    );
    await untilWaiting(readerPid, receipt);
    await keeper.query('commit');
    expect(await Promise.all([decision, receipt])).toEqual(['done', 'done']);
    const shortened = await messageStatus(world, recipient, unread!.id);
    expect(shortened.expiresAt.getTime()).toBeLessThanOrEqual((await world.clock.now()).getTime() + 3_600_000);
    for (const client of [keeper, decider, reader]) client.release();
  });
});
