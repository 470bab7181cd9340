import { afterAll, beforeAll, expect, test } from 'vitest';
import { makeCredential } from '../../src/crypto/credentials.ts';
import { makeId } from '../../src/crypto/ids.ts';
import * as functions from '../../src/db/functions.ts';
import {
  type Answer,
  callHttp,
  newKey,
  startPosthorn,
  type TestAgent,
  type TestOwner,
  type TestPosthorn,
} from '../helpers/posthorn.ts';

// Everything at once, valid and not, over two pods and by two owners, while the clock jumps and workers sweep. What must
// hold afterwards is asked of the database. POSTHORN_TEST_STORM_SECONDS makes it as long as one likes; the seed is printed.
const SECONDS = Number(process.env.POSTHORN_TEST_STORM_SECONDS ?? 5);
const SEED = Number(process.env.POSTHORN_TEST_STORM_SEED ?? Date.now() % 1_000_000);
const CALLERS = 16;

/** Low, so that every one is met often. */
const LIMITS = {
  conversation_posts: 4,
  group_posts_per_minute: 60,
  inbox_messages: 12,
  held_messages_per_proposal: 3,
  pending_proposals_per_agent: 3,
  pending_proposals_per_owner: 6,
  automatic_approvals_per_day: 5,
  active_groups_per_owner: 9,
};

let posthorn: TestPosthorn;
let sides: Side[];

interface Side {
  owner: TestOwner;
  ownerId: number;
  agents: TestAgent[];
}

/** What was answered with success, to be compared with what is stored. */
const accepted = { pairs: 0, posts: 0 };
const outcomes = new Map<string, number>();
const failures: string[] = [];

beforeAll(async () => {
  posthorn = await startPosthorn({ pods: 2 });
  for (const [name, value] of Object.entries(LIMITS))
    await posthorn.database.admin.query('select ops.set_limit($1, $2)', [name, value]);
  sides = await Promise.all([1, 2].map(makeSide));
});
afterAll(() => posthorn.close());

async function makeSide(): Promise<Side> {
  const owner = await posthorn.owner();
  const agents = [];
  for (let index = 0; index < 7; index++) agents.push(await owner.agent(`agent ${index}`));
  await owner.group(agents.slice(0, 3), 30);
  await owner.group(agents.slice(2, 5), 30);
  const { rows } = await posthorn.database.admin.query('select owner_id from posthorn.owners where id = $1', [
    owner.id,
  ]);
  return { owner, ownerId: rows[0].owner_id, agents };
}

/** The same numbers for the same seed (mulberry32). */
function randomNumbers(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4_294_967_296;
  };
}

const random = randomNumbers(SEED);
const chance = (share: number) => random() < share;
const pick = <T>(items: readonly T[]): T => items[Math.floor(random() * items.length)]!;

function count(outcome: string): void {
  outcomes.set(outcome, (outcomes.get(outcome) ?? 0) + 1);
}

function noteAnswer(act: string, { status, body }: Answer): void {
  count(`${act}: ${body?.error ?? body?.state ?? status}`);
  // what a pod says when plans change faster than it can seal; a failure would have left a line in its log
  const isByDesign = status === 503 && body?.retry_after === 1;
  if (status >= 500 && !isByDesign) failures.push(`${act}: ${status} ${JSON.stringify(body)}`);
}

async function noteCall(act: string, call: Promise<unknown>): Promise<void> {
  try {
    await call;
    count(`${act}: done`);
  } catch (error) {
    const { code, message } = error as { code?: string; message: string };
    count(`${act}: ${message}`);
    // a refusal of ours, or a bound of a table; a deadlock above all is neither
    if (!code?.startsWith('MH') && code !== '23514') failures.push(`${act}: ${code} ${message}`);
  }
}

/** Some id that there is: of this owner, of the other, or of nobody. */
async function someId(table: string, column: string, side: Side): Promise<string> {
  if (chance(0.05)) return makeId();
  const owner = chance(0.05) ? pick(sides) : side;
  const { rows } = await posthorn.database.admin.query(
    `select ${column} as id from posthorn.${table} where owner_id = $1 order by ${column} desc limit 8`,
    [owner.ownerId],
  );
  return rows.length === 0 ? makeId() : pick(rows).id;
}

const pod = () => (chance(0.5) ? 0 : 1);
const anAgent = () => {
  const side = pick(sides);
  return { side, agent: pick(side.agents) };
};

async function sendPair(): Promise<void> {
  const { side, agent } = anAgent();
  const to = chance(0.03) ? pick(pick(sides).agents) : pick(side.agents);
  const answer = await agent.send(
    {
      recipient_agent_id: to.id,
      ...(chance(0.7) ? { purpose: chance(0.05) ? 'x'.repeat(501) : 'Storm' } : {}),
      ...(chance(0.2) ? { duration_hours: pick([1, 2, 168, 720]) } : {}),
      ...(chance(0.2) ? { group_id: await someId('groups', 'group_id', side) } : {}),
      body: 'storm',
      idempotency_key: chance(0.1) ? `again ${Math.floor(random() * 10)}` : newKey(),
    },
    pod(),
  );
  if (answer.status === 201) accepted.pairs++;
  noteAnswer('send', answer);
}

async function sendPost(): Promise<void> {
  const { side, agent } = anAgent();
  const answer = await agent.send(
    { group_id: await someId('groups', 'group_id', side), body: 'storm', idempotency_key: newKey() },
    pod(),
  );
  if (answer.status === 201) accepted.posts++;
  noteAnswer('post', answer);
}

async function receiveAndAct(): Promise<void> {
  const { agent } = anAgent();
  const page = await agent.receive({ limit: 5 }, pod());
  noteAnswer('receive', page);
  const messages: { id: string; conversation_id: string; state: string; body: string }[] = page.body.messages ?? [];
  for (const { state, body } of messages) if (state !== 'delivered' || body !== 'storm') failures.push(`read ${state}`);
  if (messages.length === 0) return;
  const { id, conversation_id } = pick(messages);
  if (chance(0.4)) {
    const answer = await agent.send({ conversation_id, reply_to: id, body: 'storm', idempotency_key: newKey() }, pod());
    if (answer.status === 201) {
      if (answer.body.post_id && answer.body.messages) accepted.posts++;
      else accepted.pairs++;
    }
    noteAnswer('reply', answer);
  } else {
    const delivery = pick(['acknowledged', 'admitted', 'processed']);
    noteAnswer(
      'ack',
      await agent.ack(
        messages.slice(0, 1 + Math.floor(random() * 5)).map((one) => one.id),
        { delivery },
        pod(),
      ),
    );
  }
}

async function propose(): Promise<void> {
  const { side, agent } = anAgent();
  const kind = pick(['new', 'new', 'renew', 'continue']);
  const body =
    kind === 'new'
      ? { peer_agent_ids: [pick(side.agents).id, ...(chance(0.5) ? [pick(side.agents).id] : [])], purpose: 'Storm' }
      : kind === 'renew'
        ? { group_id: await someId('groups', 'group_id', side) }
        : { conversation_id: await someId('conversations', 'conversation_id', side) };
  noteAnswer('propose', await agent.call('POST', '/proposals', { agent_id: agent.id, kind, ...body }, pod()));
}

async function look(): Promise<void> {
  const { side, agent } = anAgent();
  const path = pick([
    `/status?agent_id=${agent.id}`,
    `/agents?agent_id=${agent.id}`,
    `/groups?agent_id=${agent.id}`,
    `/proposals?agent_id=${agent.id}`,
    `/proposals/${await someId('proposals', 'proposal_id', side)}?agent_id=${agent.id}`,
    `/messages/${await someId('messages', 'message_id', side)}?agent_id=${agent.id}`,
  ]);
  noteAnswer('look', await agent.call('GET', path, undefined, pod()));
}

/** Something that only the owner may do, by the person at the server. */
async function decide(act: string, work: (side: Side) => Promise<Parameters<TestOwner['act']>[0]>): Promise<void> {
  const side = pick(sides);
  const act_ = await work(side);
  await noteCall(act, side.owner.act(act_));
}

const decideProposal = () =>
  decide('decide', async (side) => {
    const proposalId = await someId('proposals', 'proposal_id', side);
    const edits = chance(0.2) ? { name: 'Edited', durationHours: pick([1, 5, 720, 721]) } : {};
    if (chance(0.1)) return (db, credential) => functions.liftDenial(db, { credential, proposalId });
    return chance(0.75)
      ? (db, credential) => functions.approveProposal(db, { credential, proposalId, ...edits })
      : (db, credential) => functions.denyProposal(db, { credential, proposalId });
  });

const changeGroup = () =>
  decide('group', async (side) => {
    const groupId = await someId('groups', 'group_id', side);
    if (chance(0.2)) {
      const agentIds = [pick(side.agents).id, pick(side.agents).id, pick(side.agents).id];
      return (db, credential) =>
        functions.createGroup(db, { credential, name: 'x', purpose: 'x', agentIds, durationHours: pick([1, 30]) });
    }
    return chance(0.5)
      ? (db, credential) => functions.renewGroup(db, { credential, groupId, durationHours: pick([null, 1, 30]) })
      : (db, credential) => functions.revokeGroup(db, { credential, groupId });
  });

const changeAgent = () =>
  decide('agent', async (side) => {
    const agentId = pick(side.agents).id;
    // restored more often than revoked, or nobody would be left
    return chance(0.2)
      ? (db, credential) => functions.revokeAgent(db, { credential, agentId })
      : (db, credential) => functions.restoreAgent(db, { credential, agentId });
  });

const changeSettings = () =>
  decide('settings', async () => {
    const automaticApproval = chance(0.4);
    return (db, credential) => functions.changeOwnerSettings(db, { credential, automaticApproval });
  });

/** Its agent goes with a connection that is revoked, and another one comes. */
async function changeConnection(): Promise<void> {
  const side = pick(sides);
  const index = Math.floor(random() * side.agents.length);
  const { connectionId } = side.agents[index]!;
  if (chance(0.5)) {
    const { token, hash: credentialHash } = makeCredential('service');
    await noteCall(
      'rotate',
      side.owner
        .act((db, credential) => functions.rotateConnection(db, { credential, connectionId, credentialHash }))
        .then(() => registerAgain(side, index, token)),
    );
  } else {
    await noteCall(
      'revoke connection',
      side.owner.act((db, credential) => functions.revokeConnection(db, { credential, connectionId })),
    );
    side.agents[index] = await side.owner.agent('newcomer').catch(() => side.agents[index]!);
  }
}

async function registerAgain(side: Side, index: number, token: string): Promise<void> {
  const old = side.agents[index]!;
  const call: TestAgent['call'] = (method, path, body, at = 0) =>
    callHttp(posthorn.pods[at]!.url, token, method, `/messaging/v1${path}`, body);
  const { id } = old;
  side.agents[index] = {
    ...old,
    token,
    call,
    send: (body, at) => call('POST', '/send', { agent_id: id, ...body }, at),
    receive: (body, at) => call('POST', '/receive', { agent_id: id, ...body }, at),
    ack: (messageIds, body, at) => call('POST', '/ack', { agent_id: id, message_ids: messageIds, ...body }, at),
  };
  noteAnswer(
    'register',
    await call('POST', '/agents', { label: 'again', runtime: 'other', installation: 'test' }, pod()),
  );
}

async function sweep(): Promise<void> {
  const jobs = posthorn.database.as('posthorn_jobs');
  await noteCall('sweep', functions.expireProposals(jobs));
  await noteCall('sweep', functions.expireMessages(jobs, { limit: 10 }));
}

const jump = () =>
  noteCall(
    'jump',
    posthorn.database.admin.query('update posthorn_test.clock set shift = shift + $1::interval', [
      `${Math.floor(random() * (chance(0.1) ? 1_800 : 40))} minutes`,
    ]),
  );

const ACTS: [weight: number, act: () => Promise<void>][] = [
  [30, sendPair],
  [8, sendPost],
  [25, receiveAndAct],
  [6, propose],
  [8, look],
  [12, decideProposal],
  [4, changeGroup],
  [4, changeAgent],
  [1, changeConnection],
  [2, changeSettings],
  [3, sweep],
  [2, jump],
];
const WEIGHTED = ACTS.flatMap(([weight, act]) => Array<typeof act>(weight).fill(act));

test(`a storm of ${SECONDS} s with seed ${SEED} leaves everything sound`, {
  timeout: (SECONDS + 60) * 1_000,
}, async () => {
  console.info(`seed ${SEED}`);
  const end = performance.now() + SECONDS * 1_000;
  const storming = async () => {
    while (performance.now() < end && failures.length === 0) await pick(WEIGHTED)();
  };
  await Promise.all(Array.from({ length: CALLERS }, storming));

  const told = [...outcomes].toSorted(([a], [b]) => (a < b ? -1 : 1)).map(([outcome, times]) => `${outcome} ${times}`);
  expect(failures, told.join('\n')).toEqual([]);
  expect(posthorn.log()).not.toContain('"level":50');
  // a storm in which little happened would prove little
  for (const outcome of [
    'send: held',
    'send: queued',
    'decide: done',
    'decide: already_decided',
    'receive: 200',
    'ack: 200',
  ])
    expect(told.join('\n')).toContain(outcome);
  await expectSound();
});

async function expectSound(): Promise<void> {
  const { admin } = posthorn.database;
  expect((await admin.query('select * from ops.invariants')).rows).toEqual([]);
  const { rows } = await admin.query(
    `
    with l as (select jsonb_object_agg(name, value) as limits from posthorn.limits)
    select 'more wait behind a request than may' as broken, h.proposal_id as id
      from posthorn.held_bodies h cross join l group by h.proposal_id, l.limits having count(*) > (l.limits ->> 'held_messages_per_proposal')::int
    union all
    select 'more requests of an agent waited at once than may', p.proposal_id
      from posthorn.proposals p cross join l
     where (select count(*) from posthorn.proposals o
             where o.owner_id = p.owner_id and o.proposer_agent_id = p.proposer_agent_id and o.created_at <= p.created_at and o.proposal_id <= p.proposal_id
               and coalesce(o.decided_at, o.expires_at) > p.created_at) > (l.limits ->> 'pending_proposals_per_agent')::int
    union all
    select 'more requests of an owner waited at once than may', p.proposal_id
      from posthorn.proposals p cross join l
     where (select count(*) from posthorn.proposals o
             where o.owner_id = p.owner_id and o.created_at <= p.created_at and o.proposal_id <= p.proposal_id
               and coalesce(o.decided_at, o.expires_at) > p.created_at) > (l.limits ->> 'pending_proposals_per_owner')::int
    union all
    select 'more automatic approvals in a day than may', p.proposal_id
      from posthorn.proposals p cross join l
     where p.is_automatic
       and (select count(*) from posthorn.proposals o
             where o.owner_id = p.owner_id and o.is_automatic and o.decided_at > p.decided_at - interval '24 hours' and o.decided_at <= p.decided_at)
           > (l.limits ->> 'automatic_approvals_per_day')::int
    union all
    select 'more active groups than may', o.id
      from posthorn.owners o cross join l
     where (select count(*) from posthorn.groups g where g.owner_id = o.owner_id and g.revoked_at is null and g.expires_at > posthorn_impl.clock())
           > (l.limits ->> 'active_groups_per_owner')::int
    union all
    select 'more posts in a conversation than its continuations allow', c.conversation_id
      from posthorn.conversations c cross join l
     where c.posts > (l.limits ->> 'conversation_posts')::int * (1 + c.continuations)
    union all
    select 'inbox past its limit by more than approvals put there', b.agent_id
      from posthorn.mailboxes b cross join l
     where b.unfenced - (select count(*) from posthorn.messages m where m.owner_id = b.owner_id and m.recipient_agent_id = b.agent_id and m.state in ('queued', 'delivered') and m.proposal_id is not null)
           > (l.limits ->> 'inbox_messages')::int
    union all
    select 'request with other than one decision on record', p.proposal_id
      from posthorn.proposals p
     where (select count(*) from posthorn.audit_entries a where a.owner_id = p.owner_id and a.subject_id = p.proposal_id and a.act in ('proposal.approve', 'proposal.deny'))
           <> case when p.state = 'approved' or (p.state = 'denied' and p.reason is null) then 1 else 0 end
    union all
    select 'request with other than one beginning on record', p.proposal_id
      from posthorn.proposals p
     where (select count(*) from posthorn.audit_entries a where a.owner_id = p.owner_id and a.subject_id = p.proposal_id and a.act = 'proposal.create') <> 1
    union all
    select 'group with generations that nobody approved', g.group_id
      from posthorn.groups g
     where g.generation <> 1 + (select count(*) from posthorn.proposals p where p.owner_id = g.owner_id and p.group_id = g.group_id and p.kind = 'renew' and p.state = 'approved')
                             + (select count(*) from posthorn.audit_entries a where a.owner_id = g.owner_id and a.subject_id = g.group_id and a.act = 'group.renew')
    union all
    select 'conversation with continuations that nobody approved', c.conversation_id
      from posthorn.conversations c
     where c.continuations <> (select count(*) from posthorn.proposals p where p.owner_id = c.owner_id and p.conversation_id = c.conversation_id and p.state = 'approved')
    union all
    select 'group that two requests made', g.group_id
      from posthorn.groups g
     where (select count(*) from posthorn.proposals p where p.owner_id = g.owner_id and p.group_id = g.group_id and p.kind = 'new' and p.state = 'approved') > 1
    union all
    select 'held behind a request that was decided otherwise', m.message_id
      from posthorn.messages m join posthorn.proposals p on p.owner_id = m.owner_id and p.proposal_id = m.proposal_id
     where (m.state = 'denied') <> (p.state = 'denied' and p.reason is null and m.state not in ('revoked', 'expired'))
        or (m.seq is not null) and p.state <> 'approved'
    union all
    select 'queued more or less often than its recipient was told', m.message_id
      from posthorn.messages m
     where (select count(*) from posthorn.events e where e.owner_id = m.owner_id and e.agent_id = m.recipient_agent_id and e.subject_id = m.message_id and e.kind = 'messaging.pending')
           <> case when m.seq is null then 0 else 1 end
    union all
    select 'places of an inbox that are not one for each message', b.agent_id
      from posthorn.mailboxes b
     where b.message_seq <> (select count(m.seq) from posthorn.messages m where m.owner_id = b.owner_id and m.recipient_agent_id = b.agent_id)
    union all
    select 'states that were told more than once, or after a final one', e.subject_id
      from posthorn.events e
     where e.kind = 'message.state'
     group by e.owner_id, e.agent_id, e.subject_id
    having count(*) <> count(distinct e.state) or count(*) filter (where e.state in ('replied', 'expired', 'revoked', 'denied')) > 1
    union all
    select 'message of another owner', m.message_id
      from posthorn.messages m
     where not exists (select from posthorn.agents a where a.owner_id = m.owner_id and a.agent_id = m.sender_agent_id)
        or not exists (select from posthorn.agents a where a.owner_id = m.owner_id and a.agent_id = m.recipient_agent_id)
    union all
    select 'earlier event, later time', e.agent_id
      from (select e.agent_id, e.occurred_at < lag(e.occurred_at) over (partition by e.owner_id, e.agent_id order by e.seq) as is_earlier from posthorn.events e) e
     where e.is_earlier`,
  );
  expect(rows).toEqual([]);
  const { rows: sums } = await admin.query(
    `select count(*) filter (where post_id is null)::int as pairs, (select count(*)::int from posthorn.posts) as posts from posthorn.messages`,
  );
  expect(sums).toEqual([accepted]);
}
