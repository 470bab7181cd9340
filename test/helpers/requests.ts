import { expect } from 'vitest';
import * as functions from '../../src/db/functions.ts';
import { type Agent, newKey, type Owner, type Send, send, type World } from './world.ts';

// What agents ask for, what the owner and the workers do about it, and what is stored of it then.

/** Two agents of an owner of their own, a request of the first and a message of it that waits behind. */
export interface Waiting {
  owner: Owner;
  sender: Agent;
  recipient: Agent;
  /** The send, to be made again under the same key. */
  item: Send;
  messageId: string;
  proposalId: string;
}

/** The request that an outcome of a send names. */
export function proposalOf({ outcome, detail }: functions.SendMessagesRow): string {
  expect(outcome).toBe('held');
  return (detail as { proposal_id: string }).proposal_id;
}

/** A message that waits behind the request for a new collaboration. */
export async function holdMessage(world: World): Promise<Waiting> {
  const owner = await world.makeOwner();
  const [sender, recipient] = (await owner.agents(2)) as [Agent, Agent];
  return await holdAgain(world, { owner, sender, recipient });
}

/** One more, between agents that a world has already. */
export async function holdAgain(
  world: World,
  { owner, sender, recipient }: { owner: Owner; sender: Agent; recipient: Agent },
): Promise<Waiting> {
  const item: Send = { from: sender, to: recipient, purpose: 'To test', body: 'secret', key: newKey() };
  const held = await send(world, item);
  return { owner, sender, recipient, item, messageId: held.messageIds![0]!, proposalId: proposalOf(held) };
}

/** A collaboration whose pair conversation is full, so that the next message waits behind a continuation. */
export async function fillConversation(
  world: World,
  posts: number,
): Promise<{ owner: Owner; sender: Agent; recipient: Agent; group: functions.GroupView; conversation: string }> {
  const owner = await world.makeOwner();
  const [sender, recipient] = (await owner.agents(2)) as [Agent, Agent];
  const group = await owner.group([sender, recipient]);
  let conversation = '';
  for (let post = 0; post < posts; post++) {
    const sent = await send(world, { from: sender, to: recipient });
    expect(sent.outcome).toBe('queued');
    conversation = sent.conversationId!;
  }
  return { owner, sender, recipient, group, conversation };
}

export const approve = (world: World, { owner, proposalId }: { owner: Owner; proposalId: string }) =>
  functions.approveProposal(world.app, { credential: owner.session, proposalId });

export const deny = (world: World, { owner, proposalId }: { owner: Owner; proposalId: string }) =>
  functions.denyProposal(world.app, { credential: owner.session, proposalId });

/** What workers do every minute, until nothing is left to do. */
export async function sweep(world: World): Promise<void> {
  const jobs = world.database.as('posthorn_jobs');
  while ((await functions.expireProposals(jobs)) > 0);
  while ((await functions.expireMessages(jobs, { limit: 100 })) > 0);
}

/** What is stored of a message, behind the curtain. */
export interface StoredMessage {
  state: string;
  seq: number | null;
  ended: boolean;
  bodies: number;
  heldBodies: number;
}

export async function storedMessage(world: World, messageId: string): Promise<StoredMessage> {
  const { rows } = await world.database.admin.query(
    `select m.state, m.seq::int, m.ended_at is not null as ended,
            (select count(*)::int from posthorn.bodies b where b.message_id = m.message_id) as bodies,
            (select count(*)::int from posthorn.held_bodies h where h.message_id = m.message_id) as "heldBodies"
       from posthorn.messages m where m.message_id = $1`,
    [messageId],
  );
  return rows[0];
}

/** An agent's events about these ids, each as kind and state. */
export async function eventsOf(world: World, agent: Agent, subjectIds: string[]): Promise<string[]> {
  const { rows } = await world.database.admin.query(
    `select concat_ws(' ', e.kind, e.state) as text from posthorn.events e where e.agent_id = $1 and e.subject_id = any ($2) order by e.seq`,
    [agent.id, subjectIds],
  );
  return rows.map((row) => row.text);
}
