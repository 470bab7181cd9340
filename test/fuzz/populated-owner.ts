import { denyProposal } from '../../src/db/functions.ts';
import type { Browser } from '../helpers/browser.ts';
import { signIn } from '../helpers/oauth.ts';
import { newKey, type TestAgent, type TestPosthorn } from '../helpers/posthorn.ts';
import { MARK } from './hostile.ts';

/** An owner with something of each kind, so that generated calls meet what there is. */
export interface PopulatedOwner {
  /** Who calls: an agent of a paired device, with a webhook. */
  caller: TestAgent;
  /** Where the owner is signed in. */
  browser: Browser;
  /** Ids by what they are of; the first of each is the one of most use. */
  ids: Record<Kind, string[]>;
}

export type Kind =
  | 'agent'
  | 'group'
  | 'conversation'
  | 'message'
  | 'received'
  | 'post'
  | 'proposal'
  | 'denied'
  | 'connection'
  | 'webhook'
  | 'delivery';

export async function populateOwner(posthorn: TestPosthorn): Promise<PopulatedOwner> {
  const owner = await posthorn.owner(`${MARK} owner`);
  const caller = await owner.agent(`${MARK} caller`, { kind: 'device' });
  const [peer, third, fourth] = [
    await owner.agent(`${MARK} peer`),
    await owner.agent('third'),
    await owner.agent('4th'),
  ];
  const group = await owner.group([caller, peer]);
  const words = () => ({ body: `${MARK} body`, purpose: `${MARK} purpose`, idempotency_key: newKey() });
  const sent = await caller.send({ ...words(), recipient_agent_id: peer.id });
  const received = await peer.send({ ...words(), recipient_agent_id: caller.id });
  const post = await caller.send({ ...words(), group_id: group.id });
  const held = await caller.send({ ...words(), recipient_agent_id: third.id });
  const denied = await caller.send({ ...words(), recipient_agent_id: fourth.id });
  await owner.act((db, credential) => denyProposal(db, { credential, proposalId: denied.body.proposal_id }));
  const hook = await caller.call('PUT', '/webhook', { agent_id: caller.id, url: 'https://hooks.example.com/wake' });
  const delivery = await caller.call('POST', '/webhook/test', { agent_id: caller.id });
  const stranger = await (await posthorn.owner()).agent('stranger');
  return {
    caller,
    browser: await signIn(owner, posthorn.pods[0]!.url),
    ids: {
      agent: [peer.id, third.id, fourth.id, stranger.id],
      group: [group.id],
      conversation: [sent.body.conversation_id, post.body.conversation_id],
      message: [sent.body.id, received.body.id, held.body.id, post.body.messages[0].id],
      received: [received.body.id],
      post: [post.body.post_id],
      proposal: [held.body.proposal_id],
      denied: [denied.body.proposal_id],
      connection: [peer.connectionId, stranger.connectionId],
      webhook: [hook.body.id],
      delivery: [delivery.body.id],
    },
  };
}
