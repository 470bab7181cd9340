import { makeId } from '../crypto/ids.ts';
import type { OwnerKeysOf } from '../crypto/owner-keys.ts';
import { fingerprint, seal } from '../crypto/seal.ts';
import { PosthornError, toPosthornError } from '../errors.ts';
import { metrics } from '../metrics.ts';
import { createRecentMap } from '../recent-map.ts';
import { type PlanSendsRow, planSends, type SendMessagesRow, sendMessages } from './functions.ts';
import { createGroupCommit } from './group-commit.ts';
import type { Queryable } from './pool.ts';

// Two lanes split by group never wait for each other's locks. Unsplit ones reached half the throughput, and more
// than two only make smaller batches.
const LANES = 2;
const BATCH_SIZE = 50;
const QUEUE_LIMIT = 5_000;
/** Sealed copies that may wait in a lane, in bytes: 5,000 posts to 16 agents could be 6 GB. */
const QUEUED_BYTES = 67_108_864;
/** Of each of the three things that are remembered. */
const REMEMBERED = 10_000;
/**
 * Under automatic approval one of many waiting sends wins twenty more posts and makes the plans of all others stale, so
 * that a burst needs two rounds for every twenty.
 */
const PLAN_ATTEMPTS = 64;

export interface Send {
  credential: Buffer;
  agentId: string | null;
  key: string;
  /** The arguments as the caller gave them: what the key stands for. */
  act: Record<string, unknown>;
  recipientAgentId: string | null;
  groupId: string | null;
  conversationId: string | null;
  replyTo: string | null;
  /** For a peer that no collaboration reaches: what the owner is asked. */
  purpose: string | null;
  name: string | null;
  durationHours: number | null;
  body: string;
  /** Whether the sensitive-content check found something; the owner's setting decides in the database. */
  isSensitive: boolean;
}

export interface SendOutcome extends SendMessagesRow {
  senderAgentId: string;
  /** In the order of messageIds. */
  recipientAgentIds: string[];
}

/** What a pod needs to seal: see posthorn_api.plan_sends. Remembered, since send_messages derives it again under its locks. */
type Plan = Omit<PlanSendsRow, 'item' | 'problem'> & Sender;

interface Sender {
  ownerId: string;
  agentId: string;
}

interface SealedSend {
  send: Send;
  plan: Plan;
  fingerprint: Buffer;
  holdId: string | null;
  postId: string | null;
  copies: { recipientAgentId: string; messageId: string; ciphertext: Buffer }[];
}

export interface SendLane {
  /**
   * Sends one message or post.
   *
   * @returns the outcome that the database decided: queued, held, replayed or the code of a refusal
   * @throws PosthornError for what is wrong with the caller, and `unavailable`
   */
  send(send: Send): Promise<SendOutcome>;
  depth(): number;
  idle(): Promise<void>;
}

/** The one way from a pod to posthorn_api.send_messages: plans, seals, and commits in groups. */
export function createSendLane(db: Queryable, ownerKeysOf: OwnerKeysOf): SendLane {
  const plans = createRecentMap<Plan>(REMEMBERED);
  const senders = createRecentMap<Sender>(REMEMBERED);
  const generations = createRecentMap<number>(REMEMBERED);
  const planLane = createGroupCommit({
    lane: 'plans',
    batchSize: BATCH_SIZE,
    queueLimit: QUEUE_LIMIT,
    run: (sends: Send[]) => runPlans(db, sends),
  });
  const lanes = Array.from({ length: LANES }, () =>
    createGroupCommit({
      lane: 'sends',
      batchSize: BATCH_SIZE,
      queueLimit: QUEUE_LIMIT,
      weightLimit: QUEUED_BYTES,
      weigh: (item: SealedSend) => item.copies.reduce((sum, copy) => sum + copy.ciphertext.length, 0),
      run: (items: SealedSend[]) => runSends(db, items),
    }),
  );

  async function askForPlan(send: Send): Promise<Plan> {
    const { item: _, problem, ...row } = await planLane.submit(send);
    if (problem) throw new PosthornError(problem as PosthornError['code']);
    const plan = row as Plan;
    senders.set(senderKey(send), { ownerId: plan.ownerId, agentId: plan.agentId });
    // what is refused or held now may fare better next time
    if (plan.groupId !== null && !plan.isHeld) {
      generations.set(plan.groupId, plan.generation!);
      plans.set(planKey(send), plan);
    }
    return plan;
  }

  /** The same plan as the one before; or, to a peer in a group that is known, the one that follows from earlier ones. */
  function recallPlan(send: Send): Plan | undefined {
    const { groupId, recipientAgentId } = send;
    if (groupId === null || recipientAgentId === null) return plans.get(planKey(send));
    const sender = senders.get(senderKey(send));
    const generation = generations.get(groupId);
    if (!sender || generation === undefined) return undefined;
    return { ...sender, groupId, generation, isPost: false, isHeld: false, recipientAgentIds: [recipientAgentId] };
  }

  async function sendByPlan(send: Send): Promise<SendOutcome> {
    for (let attempt = 1; attempt <= PLAN_ATTEMPTS; attempt++) {
      // one that went stale is asked for, whatever others have taught meanwhile
      const plan = (attempt === 1 && recallPlan(send)) || (await askForPlan(send));
      const sealed = sealSend(send, plan, await ownerKeysOf(plan.ownerId, send.credential));
      const row = await lanes[laneOf(plan.groupId)]!.submit(sealed);
      if (row.outcome !== 'stale_plan') {
        const recipientAgentIds = sealed.copies.map(({ recipientAgentId }) => recipientAgentId);
        return { ...row, senderAgentId: plan.agentId, recipientAgentIds };
      }
      plans.delete(planKey(send));
    }
    throw new PosthornError('unavailable', { retry_after: 1 });
  }

  return {
    async send(send) {
      const stop = metrics.sendSeconds.startTimer();
      try {
        const answer = await sendByPlan(send);
        metrics.sends.inc({ outcome: answer.outcome });
        return answer;
      } catch (error) {
        metrics.sends.inc({ outcome: toPosthornError(error).code });
        throw error;
      } finally {
        stop();
      }
    },
    depth: () => lanes.reduce((sum, lane) => sum + lane.depth(), planLane.depth()),
    async idle() {
      await planLane.idle();
      await Promise.all(lanes.map((lane) => lane.idle()));
    },
  };
}

function senderKey({ credential, agentId }: Send): string {
  return `${credential.toString('base64')}|${agentId}`;
}

function planKey(send: Send): string {
  return `${senderKey(send)}|${send.recipientAgentId}|${send.groupId}|${send.conversationId}`;
}

/** The last digits of a group's id are random in every version that we make. */
function laneOf(groupId: string | null): number {
  return groupId === null ? 0 : Number.parseInt(groupId.slice(-4), 16) % LANES;
}

function sealSend(send: Send, plan: Plan, keys: Awaited<ReturnType<OwnerKeysOf>>): SealedSend {
  const { groupId, agentId: senderAgentId, ownerId } = plan;
  const holdId = plan.isHeld ? makeId() : null;
  const container =
    holdId !== null
      ? { containerKind: 'hold' as const, containerId: holdId }
      : groupId !== null
        ? { containerKind: 'group' as const, containerId: groupId }
        : null;
  const copies =
    container === null
      ? []
      : plan.recipientAgentIds.map((recipientAgentId) => {
          const messageId = makeId();
          const binding = { ownerId, ...container, senderAgentId, recipientAgentId, messageId };
          return { recipientAgentId, messageId, ciphertext: seal(keys, binding, send.body) };
        });
  const postId = plan.isPost && copies.length > 0 ? makeId() : null;
  return { send, plan, fingerprint: fingerprint(keys, send.act), holdId, postId, copies };
}

async function runPlans(db: Queryable, sends: Send[]): Promise<PlanSendsRow[]> {
  return await planSends(db, {
    credentials: sends.map((send) => send.credential),
    agentIds: sends.map((send) => send.agentId),
    recipientAgentIds: sends.map((send) => send.recipientAgentId),
    groupIds: sends.map((send) => send.groupId),
    conversationIds: sends.map((send) => send.conversationId),
  });
}

async function runSends(db: Queryable, items: SealedSend[]): Promise<SendMessagesRow[]> {
  const copies = items.flatMap((item, index) => item.copies.map((copy) => ({ item: index + 1, ...copy })));
  return await sendMessages(db, {
    credentials: items.map(({ send }) => send.credential),
    agentIds: items.map(({ send }) => send.agentId),
    keys: items.map(({ send }) => send.key),
    fingerprints: items.map((item) => item.fingerprint),
    recipientAgentIds: items.map(({ send }) => send.recipientAgentId),
    groupIds: items.map(({ send }) => send.groupId),
    conversationIds: items.map(({ send }) => send.conversationId),
    repliesTo: items.map(({ send }) => send.replyTo),
    purposes: items.map(({ send }) => send.purpose),
    names: items.map(({ send }) => send.name),
    durationsHours: items.map(({ send }) => send.durationHours),
    sensitive: items.map(({ send }) => send.isSensitive),
    plannedGroupIds: items.map(({ plan }) => plan.groupId),
    plannedGenerations: items.map(({ plan }) => plan.generation),
    holdIds: items.map((item) => item.holdId),
    postIds: items.map((item) => item.postId),
    copyItems: copies.map((copy) => copy.item),
    copyRecipients: copies.map((copy) => copy.recipientAgentId),
    copyMessageIds: copies.map((copy) => copy.messageId),
    copyCiphertexts: copies.map((copy) => copy.ciphertext),
  });
}
