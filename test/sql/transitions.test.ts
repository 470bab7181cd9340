import { afterEach, describe, expect, test } from 'vitest';
import * as functions from '../../src/db/functions.ts';
import {
  approve,
  deny,
  eventsOf,
  fillConversation,
  holdAgain,
  holdMessage,
  proposalOf,
  storedMessage,
  sweep,
  type Waiting,
} from '../helpers/requests.ts';
import {
  type Agent,
  advance,
  createWorld,
  expectInvariants,
  messageStatus,
  openMessage,
  readInbox,
  refusal,
  send,
} from '../helpers/world.ts';

// Every state of a message and of a request, and in each every act that could move it: what the tables of transitions
// allow takes place, and whatever they do not have changes nothing.
const world = await createWorld();
const { app, database } = world;

const allowed = {
  message: await transitions('message_transitions'),
  proposal: await transitions('proposal_transitions'),
};

async function transitions(table: string): Promise<Set<string>> {
  const { rows } = await database.admin.query(`select from_state || ' → ' || to_state as text from posthorn.${table}`);
  return new Set(rows.map((row) => row.text));
}

afterEach(() => expectInvariants(world));

const MESSAGE_STATES = [
  'held',
  'queued',
  'delivered',
  'acknowledged',
  'replied',
  'denied',
  'expired',
  'revoked',
] as const;
type MessageState = (typeof MESSAGE_STATES)[number];

const PROPOSAL_STATES = ['pending', 'approved', 'denied', 'expired'] as const;
type ProposalState = (typeof PROPOSAL_STATES)[number];

const everyPair = <State>(states: readonly State[]) => states.flatMap((from) => states.map((to) => ({ from, to })));

test('the tables of transitions are those of the contract', () => {
  const arrows = (from: string, ...to: string[]) => to.map((state) => `${from} → ${state}`);
  expect([...allowed.message].toSorted()).toEqual(
    [
      ...arrows('held', 'queued', 'denied', 'expired', 'revoked'),
      ...arrows('queued', 'delivered', 'acknowledged', 'replied', 'expired', 'revoked'),
      ...arrows('delivered', 'acknowledged', 'replied', 'expired', 'revoked'),
      ...arrows('acknowledged', 'replied'),
    ].toSorted(),
  );
  expect([...allowed.proposal].toSorted()).toEqual(arrows('pending', 'approved', 'denied', 'expired').toSorted());
});

/** What would take a message to each state. Where it is too late for that, the act is refused or changes nothing. */
const ACTS: Record<MessageState, (message: Waiting) => Promise<unknown>> = {
  held: ({ item }) => send(world, item),
  queued: (message) => quietly(approve(world, message)),
  delivered: ({ recipient, messageId }) => advance(world, recipient, 'delivered', [messageId]),
  acknowledged: ({ recipient, messageId }) => advance(world, recipient, 'acknowledged', [messageId]),
  replied: async ({ recipient, messageId }) => {
    const { conversationId } = await messageStatus(world, recipient, messageId);
    // a message that was never queued is in no conversation, and has nothing that a reply could name
    if (conversationId) await send(world, { from: recipient, conversation: conversationId, replyTo: messageId });
  },
  denied: (message) => quietly(deny(world, message)),
  expired: async () => {
    await world.clock.advance('25 hours');
    await sweep(world);
  },
  revoked: async ({ owner, recipient, sender, messageId }) => {
    const { groupId } = await messageStatus(world, sender, messageId);
    if (groupId) await functions.revokeGroup(app, { credential: owner.session, groupId });
    else await functions.revokeAgent(app, { credential: owner.session, agentId: recipient.id });
  },
};

/** The acts that bring a message that waits to each state. */
const WAYS: Record<MessageState, MessageState[]> = {
  held: [],
  queued: ['queued'],
  delivered: ['queued', 'delivered'],
  acknowledged: ['queued', 'delivered', 'acknowledged'],
  replied: ['queued', 'replied'],
  denied: ['denied'],
  expired: ['queued', 'expired'],
  revoked: ['queued', 'revoked'],
};

/** A refusal is what many of these acts end in. */
async function quietly(act: Promise<unknown>): Promise<void> {
  await act.catch((error: { code: string }) => expect(['MHADC', 'MHEXP']).toContain(error.code));
}

async function messageIn(state: MessageState): Promise<Waiting> {
  const message = await holdMessage(world);
  for (const act of WAYS[state]) await ACTS[act](message);
  expect((await storedMessage(world, message.messageId)).state).toBe(state);
  return message;
}

async function countersOf(agent: Agent): Promise<{ unfenced: number; seq: number }> {
  const { rows } = await database.admin.query(
    'select unfenced, message_seq::int as seq from posthorn.mailboxes where agent_id = $1',
    [agent.id],
  );
  return rows[0];
}

/** What the recipient can read of one message. */
async function bodiesOf({ recipient, messageId }: Waiting): Promise<string[]> {
  const rows = (await readInbox(world, recipient)).filter((row) => row.id === messageId);
  return await Promise.all(rows.map((row) => openMessage(world, recipient, row)));
}

describe('a message', () => {
  test.each(everyPair(MESSAGE_STATES))('$from, asked to become $to', async ({ from, to }) => {
    const message = await messageIn(from);
    const { sender, recipient, messageId, proposalId } = message;
    const moves = allowed.message.has(`${from} → ${to}`);
    const before = await storedMessage(world, messageId);
    const subjects = [messageId, proposalId];
    const [senderHeard, recipientHeard] = [
      await eventsOf(world, sender, subjects),
      await eventsOf(world, recipient, subjects),
    ];
    const counters = await countersOf(recipient);

    await ACTS[to](message);

    const now = moves ? to : from;
    const isReadable = now === 'queued' || now === 'delivered';
    expect(await storedMessage(world, messageId)).toEqual({
      state: now,
      seq: moves && to === 'queued' ? counters.seq + 1 : before.seq,
      ended: ['replied', 'denied', 'expired', 'revoked'].includes(now),
      bodies: isReadable ? 1 : 0,
      heldBodies: now === 'held' ? 1 : 0,
    });
    expect((await messageStatus(world, sender, messageId)).state).toBe(now);
    const isOut = to === 'revoked' && counters.seq === 0; // without a group to revoke it was the recipient
    if (!isOut) expect(await bodiesOf(message)).toEqual(isReadable ? ['secret'] : []);
    expect((await countersOf(recipient)).unfenced).toBe(isReadable ? 1 : 0);
    expect(await eventsOf(world, sender, subjects)).toEqual([
      ...senderHeard,
      ...(moves ? heardBySender(from, to) : []),
    ]);
    expect(await eventsOf(world, recipient, subjects)).toEqual([
      ...recipientHeard,
      ...(moves && to === 'queued' ? ['messaging.pending'] : []),
    ]);
  });

  /** A decision tells of all that waited behind a request at once; what became of a message alone is told of it alone. */
  function heardBySender(from: MessageState, to: MessageState): string[] {
    if (from !== 'held') return [`message.state ${to}`];
    // the message ends with its reader, and then the request of the agent that is left
    return to === 'revoked' ? ['message.state revoked', 'proposal.decided revoked'] : [`proposal.decided ${to}`];
  }

  test.each((['held', 'queued', 'delivered'] as const).flatMap((from) => MESSAGE_STATES.map((act) => ({ from, act }))))(
    '$from and past its deadline is expired at once, and stays so where it is asked to become $act',
    async ({ from, act }) => {
      const message = await messageIn(from);
      const { sender, messageId } = message;
      const { expiresAt } = await messageStatus(world, sender, messageId);
      const shift = expiresAt.getTime() - (await world.clock.now()).getTime();
      await world.clock.advance(`${shift} milliseconds`);
      const isOut = from === 'held' && act === 'revoked';

      expect((await messageStatus(world, sender, messageId)).state, 'with no sweeper').toBe('expired');
      expect(await bodiesOf(message)).toEqual([]);
      await ACTS[act](message);
      expect((await messageStatus(world, sender, messageId)).state).toBe('expired');
      if (!isOut) expect(await bodiesOf(message)).toEqual([]);
      await sweep(world);
      expect(await storedMessage(world, messageId)).toMatchObject({
        state: 'expired',
        ended: true,
        bodies: 0,
        heldBodies: 0,
      });
      const heard = await eventsOf(world, sender, [messageId, message.proposalId]);
      expect(heard.filter((event) => event.endsWith('denied') || event.endsWith('revoked'))).toEqual([]);
      expect(heard).toContain(
        from === 'held' && act !== 'revoked' ? 'proposal.decided expired' : 'message.state expired',
      );
    },
  );

  test('acknowledged has no deadline, and is replied to after that of its body', async () => {
    const message = await messageIn('acknowledged');
    await ACTS.expired(message);
    expect((await storedMessage(world, message.messageId)).state).toBe('acknowledged');
    await ACTS.replied(message);
    expect((await storedMessage(world, message.messageId)).state).toBe('replied');
  });

  test.each(['admitted', 'processed'] as const)(
    '%s is a time beside the state, noted once and for the recipient alone',
    async (level) => {
      const message = await messageIn('queued');
      const { recipient, sender, messageId } = message;
      expect(await advance(world, sender, level, [messageId])).toMatchObject([{ state: null }]);
      await advance(world, recipient, level, [messageId]);
      const first = await messageStatus(world, recipient, messageId);
      expect(first.state).toBe(level === 'admitted' ? 'queued' : 'acknowledged');
      expect(level === 'admitted' ? first.admittedAt : first.processedAt).toBeInstanceOf(Date);
      await world.clock.advance('1 second');
      await advance(world, recipient, level, [messageId]);
      expect(await messageStatus(world, recipient, messageId)).toEqual(first);
    },
  );

  test.each(['delivered', 'acknowledged', 'admitted', 'processed'] as const)(
    '%s notes nothing of a message that still waits',
    async (level) => {
      const message = await messageIn('held');
      await advance(world, message.recipient, level, [message.messageId]);
      expect(await messageStatus(world, message.sender, message.messageId)).toMatchObject({
        state: 'held',
        deliveredAt: null,
        admittedAt: null,
        acknowledgedAt: null,
        processedAt: null,
      });
    },
  );
});

describe('what revokes mail', () => {
  interface Cause {
    cause: string;
    act: (message: Waiting) => Promise<unknown>;
    /** The states that it finds mail in and ends. */
    ends: MessageState[];
    /** Whose reader is gone, so that nobody can look. */
    endsRecipient?: true;
  }

  const session = ({ owner }: Waiting) => ({ credential: owner.session });
  const CAUSES: Cause[] = [
    {
      cause: 'the owner revokes the recipient',
      act: (m) => functions.revokeAgent(app, { ...session(m), agentId: m.recipient.id }),
      ends: ['held', 'queued', 'delivered'],
      endsRecipient: true,
    },
    {
      cause: 'the recipient goes by itself',
      act: ({ recipient }) =>
        functions.revokeOwnAgent(app, { credential: recipient.credential, agentId: recipient.id }),
      ends: ['held', 'queued', 'delivered'],
      endsRecipient: true,
    },
    {
      cause: 'the owner revokes the connection of the recipient',
      act: (m) => functions.revokeConnection(app, { ...session(m), connectionId: m.recipient.connection.id }),
      ends: ['held', 'queued', 'delivered'],
      endsRecipient: true,
    },
    {
      // delivered copies stay with their reader; here the collaboration of two ends too
      cause: 'the owner revokes the sender of a pair',
      act: (m) => functions.revokeAgent(app, { ...session(m), agentId: m.sender.id }),
      ends: ['held', 'queued', 'delivered'],
    },
    {
      cause: 'the owner revokes the connection of the sender',
      act: (m) => functions.revokeConnection(app, { ...session(m), connectionId: m.sender.connection.id }),
      ends: ['held', 'queued'],
    },
    {
      cause: 'the owner deletes the account',
      act: (m) => functions.deleteAccount(app, session(m)),
      ends: ['held', 'queued', 'delivered'],
      endsRecipient: true,
    },
  ];

  test.each(CAUSES.flatMap((cause) => MESSAGE_STATES.map((from) => ({ ...cause, from }))))(
    '$cause: $from',
    async ({ act, ends, from, endsRecipient }) => {
      const message = await messageIn(from);
      await act(message);
      const now = ends.includes(from) ? 'revoked' : from;
      const isReadable = now === 'queued' || now === 'delivered';
      expect(await storedMessage(world, message.messageId)).toMatchObject({
        state: now,
        bodies: isReadable ? 1 : 0,
        heldBodies: now === 'held' ? 1 : 0,
      });
      if (!endsRecipient) expect(await bodiesOf(message)).toEqual(isReadable ? ['secret'] : []);
    },
  );
});

describe('a request', () => {
  type Kind = 'new' | 'renew' | 'continue';
  const KINDS: Kind[] = ['new', 'renew', 'continue'];

  const MAKE: Record<Kind, () => Promise<Waiting>> = {
    new: () => holdMessage(world),
    renew: async () => {
      const owner = await world.makeOwner();
      const [sender, recipient] = (await owner.agents(2)) as [Agent, Agent];
      await owner.group([sender, recipient], { hours: 1 });
      await world.clock.advance('61 minutes');
      return await holdAgain(world, { owner, sender, recipient });
    },
    continue: async () => holdAgain(world, await fillConversation(world, 2)),
  };

  const ACT: Record<ProposalState, (request: Waiting) => Promise<unknown>> = {
    pending: ({ owner, proposalId }) => functions.liftDenial(app, { credential: owner.session, proposalId }),
    approved: (request) => approve(world, request),
    denied: (request) => deny(world, request),
    expired: async () => {
      await world.clock.advance('24 hours');
      await sweep(world);
    },
  };

  async function requestIn(kind: Kind, state: ProposalState): Promise<Waiting> {
    await world.setLimit('conversation_posts', 2);
    const request = await MAKE[kind]();
    if (state !== 'pending') await ACT[state](request);
    expect(await viewOf(request)).toMatchObject({ kind, state });
    return request;
  }

  const viewOf = async ({ owner, proposalId }: Waiting) =>
    (await functions.listOwnerProposals(app, { credential: owner.session })).find(({ id }) => id === proposalId)!;

  /** Collaborations, generations, posts added and decisions on record. */
  async function effects({ owner }: Waiting) {
    const { rows } = await database.admin.query(
      `select (select count(*)::int from posthorn.groups g where g.owner_id = o.owner_id and g.revoked_at is null) as groups,
              (select coalesce(sum(g.generation), 0)::int from posthorn.groups g where g.owner_id = o.owner_id) as generations,
              (select coalesce(sum(c.continuations), 0)::int from posthorn.conversations c where c.owner_id = o.owner_id) as continuations,
              (select count(*)::int from posthorn.audit_entries a where a.owner_id = o.owner_id and a.act in ('proposal.approve', 'proposal.deny')) as decisions
         from posthorn.owners o where o.id = $1`,
      [owner.id],
    );
    return rows[0];
  }

  const OUTCOME: Record<ProposalState, Record<Kind, object>> = {
    pending: { new: {}, renew: {}, continue: {} },
    approved: {
      new: { groups: 1, generations: 1, decisions: 1 },
      renew: { groups: 1, generations: 2, decisions: 1 },
      continue: { groups: 1, generations: 1, continuations: 1, decisions: 1 },
    },
    denied: {
      new: { groups: 0, decisions: 1 },
      renew: { generations: 1, decisions: 1 },
      continue: { continuations: 0, decisions: 1 },
    },
    expired: {
      new: { groups: 0, decisions: 0 },
      renew: { generations: 1, decisions: 0 },
      continue: { continuations: 0, decisions: 0 },
    },
  };

  /** What the mail behind it becomes. */
  const MAIL: Record<ProposalState, MessageState> = {
    pending: 'held',
    approved: 'queued',
    denied: 'denied',
    expired: 'expired',
  };

  test.each(KINDS.flatMap((kind) => everyPair(PROPOSAL_STATES).map((pair) => ({ kind, ...pair }))))(
    '$kind, $from, asked to become $to',
    async ({ kind, from, to }) => {
      const request = await requestIn(kind, from);
      const before = { view: await viewOf(request), effects: await effects(request) };
      const moves = allowed.proposal.has(`${from} → ${to}`);
      const heard = await eventsOf(world, request.sender, [request.proposalId]);

      const refused = await ACT[to](request).then(
        () => null,
        ({ code, message, detail }) => ({ code, message, detail: JSON.parse(detail) }),
      );

      const view = await viewOf(request);
      if (moves) {
        expect(refused).toBeNull();
        expect(view).toMatchObject({ state: to, reason: null, heldMessages: 0, decidedAt: expect.any(Date) });
        expect(await effects(request)).toMatchObject(OUTCOME[to][kind]);
      } else {
        expect(view).toEqual(before.view);
        expect(await effects(request)).toEqual(before.effects);
      }
      const now = moves ? to : from;
      if (now !== 'approved') expect((await storedMessage(world, request.messageId)).state).toBe(MAIL[now]);
      expect(await eventsOf(world, request.sender, [request.proposalId])).toEqual([
        ...heard,
        ...(moves ? [`proposal.decided ${MAIL[to]}`] : []),
      ]);
      if (!moves && (to === 'approved' || to === 'denied')) {
        expect(refused).toMatchObject(
          from === 'expired'
            ? { code: 'MHEXP', message: 'expired' }
            : { code: 'MHADC', message: 'already_decided', detail: { state: from } },
        );
      }
    },
  );

  test.each(KINDS)(
    '%s, past its deadline and not swept: nobody can decide it, and what ends it later calls it expired',
    async (kind) => {
      const request = await requestIn(kind, 'pending');
      const { owner, recipient } = request;
      const { expiresAt } = await viewOf(request);
      await world.clock.stop(new Date(expiresAt.getTime() + 1));
      expect(await refusal(approve(world, request))).toEqual({ code: 'expired', detail: {} });
      expect(await refusal(deny(world, request))).toEqual({ code: 'expired', detail: {} });
      const seen = await viewOf(request);
      expect(seen).toMatchObject({ state: 'expired', decidedAt: seen.expiresAt, heldMessages: 0 });
      await functions.revokeAgent(app, { credential: owner.session, agentId: recipient.id });
      expect(await viewOf(request)).toEqual(seen);
      expect(await storedMessage(world, request.messageId)).toMatchObject({ state: 'expired', heldBodies: 0 });
      await world.clock.go();
    },
  );

  interface Ending {
    cause: string;
    kinds: Kind[];
    act: (request: Waiting) => Promise<unknown>;
  }

  const groupOf = async (request: Waiting) => (await viewOf(request)).groupId!;
  const ENDINGS: Ending[] = [
    {
      cause: 'the owner revokes the group',
      kinds: ['renew', 'continue'],
      act: async (r) => functions.revokeGroup(app, { credential: r.owner.session, groupId: await groupOf(r) }),
    },
    {
      cause: 'the owner renews the group by themselves',
      kinds: ['renew', 'continue'],
      act: async (r) => functions.renewGroup(app, { credential: r.owner.session, groupId: await groupOf(r) }),
    },
    {
      cause: 'the owner revokes one of two agents',
      kinds: KINDS,
      act: (r) => functions.revokeAgent(app, { credential: r.owner.session, agentId: r.recipient.id }),
    },
    {
      cause: 'the proposer goes',
      kinds: KINDS,
      act: ({ sender }) => functions.revokeOwnAgent(app, { credential: sender.credential, agentId: sender.id }),
    },
  ];

  test.each(ENDINGS.flatMap(({ kinds, ...ending }) => kinds.map((kind) => ({ kind, ...ending }))))(
    '$kind ends as superseded where $cause',
    async ({ kind, act }) => {
      const request = await requestIn(kind, 'pending');
      await act(request);
      expect(await viewOf(request)).toMatchObject({ state: 'denied', reason: 'superseded', heldMessages: 0 });
      expect(await storedMessage(world, request.messageId)).toMatchObject({
        state: 'revoked',
        heldBodies: 0,
        bodies: 0,
      });
      expect(await refusal(approve(world, request))).toEqual({ code: 'already_decided', detail: { state: 'denied' } });
      expect((await eventsOf(world, request.sender, [request.proposalId])).at(-1)).toBe('proposal.decided revoked');
    },
  );

  test('superseded is no denial: the same agents may ask again', async () => {
    const request = await requestIn('renew', 'pending');
    await functions.revokeGroup(app, { credential: request.owner.session, groupId: await groupOf(request) });
    const again = await send(world, { from: request.sender, to: request.recipient, purpose: 'Again' });
    expect(proposalOf(again)).not.toBe(request.proposalId);
  });

  test('of three agents lives on when one goes that did not make it, and makes the group of the others', async () => {
    const owner = await world.makeOwner();
    const [first, second, third] = (await owner.agents(3)) as [Agent, Agent, Agent];
    const [asked] = await functions.proposeCollaboration(app, {
      credential: first.credential,
      agentId: first.id,
      kind: 'new',
      peerAgentIds: [second.id, third.id],
      purpose: 'To build',
    });
    await functions.revokeAgent(app, { credential: owner.session, agentId: third.id });
    const approved = await approve(world, { owner, proposalId: asked!.proposalId! });
    expect(approved.state).toBe('approved');
    const [group] = await functions.listOwnerGroups(app, { credential: owner.session });
    expect(group).toMatchObject({ id: approved.groupId, agentIds: [first.id, second.id].toSorted() });
  });

  test('of a renewal ends another request for the group, and the mail behind it', async () => {
    await world.setLimit('conversation_posts', 2);
    const capped = await fillConversation(world, 2);
    const continuation = await holdAgain(world, capped);
    const [asked] = await functions
      .proposeCollaboration(app, {
        credential: capped.recipient.credential,
        agentId: capped.recipient.id,
        kind: 'renew',
        groupId: capped.group.id,
      })
      .catch(() => [null]);
    expect(asked, 'not open yet').toBeNull();
    await world.clock.advance('6 days');
    const late = await holdAgain(world, capped);
    expect(late.proposalId, 'the first one expired').not.toBe(continuation.proposalId);
    const [renewal] = await functions.proposeCollaboration(app, {
      credential: capped.recipient.credential,
      agentId: capped.recipient.id,
      kind: 'renew',
      groupId: capped.group.id,
    });
    await approve(world, { owner: capped.owner, proposalId: renewal!.proposalId! });
    expect(await viewOf(late)).toMatchObject({ state: 'denied', reason: 'superseded' });
    expect((await storedMessage(world, late.messageId)).state).toBe('revoked');
    expect((await storedMessage(world, continuation.messageId)).state).toBe('expired');
  });
});
