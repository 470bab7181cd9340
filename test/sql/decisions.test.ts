import type pg from 'pg';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { makeCredential } from '../../src/crypto/credentials.ts';
import * as functions from '../../src/db/functions.ts';
import { createPool } from '../../src/db/pool.ts';
import {
  type Answer,
  newKey,
  startPosthorn,
  type TestAgent,
  type TestOwner,
  type TestPosthorn,
} from '../helpers/posthorn.ts';

// What many ask for at once, over two pods: one wins, and the last place of a cap is given once.
let posthorn: TestPosthorn;
/** As two pods decide: each has connections of its own. */
let pools: pg.Pool[];

beforeAll(async () => {
  posthorn = await startPosthorn({ pods: 2 });
  pools = [0, 1].map(() => createPool({ url: posthorn.database.url, role: 'posthorn_app', max: 10 }));
});
afterAll(async () => {
  expect((await posthorn.database.admin.query('select * from ops.invariants')).rows).toEqual([]);
  await Promise.all(pools.map((pool) => pool.end()));
  await posthorn.close();
});

const admin = () => posthorn.database.admin;
const setLimit = (name: string, value: number) => admin().query('select ops.set_limit($1, $2)', [name, value]);

/** An owner's session, with which every pod may decide. */
async function sessionOf(owner: TestOwner): Promise<Buffer> {
  const { hash } = makeCredential('service');
  await admin().query(
    `insert into posthorn.connections (owner_id, kind, label, credential_hash, scopes, created_at)
     select o.owner_id, 'session', 'session', $2, array['owner'], posthorn_impl.clock() from posthorn.owners o where o.id = $1`,
    [owner.id, hash],
  );
  return hash;
}

const ask = (from: TestAgent, to: TestAgent, pod: number) =>
  from.send({ recipient_agent_id: to.id, purpose: 'Race', body: 'once', idempotency_key: newKey() }, pod);

/** How many answers there are of each state or error. */
function tally(answers: Answer[]): Record<string, number> {
  const counts: Record<string, number> = {};
  for (const { body } of answers) {
    const outcome = body.auto_approved ? 'auto_approved' : (body.error ?? body.state);
    counts[outcome] = (counts[outcome] ?? 0) + 1;
  }
  return counts;
}

/** 32 pairs of these agents, or of one of them with each other one. */
function pairs(agents: TestAgent[]): [TestAgent, TestAgent][] {
  return agents
    .flatMap((from, index) => agents.slice(index + 1).map((to): [TestAgent, TestAgent] => [from, to]))
    .slice(0, 32);
}

test('two approvals and a denial at once, a hundred times: one wins, one group, one delivery', async () => {
  const owner = await posthorn.owner();
  const credential = await sessionOf(owner);
  const [from, to] = [await owner.agent('from'), await owner.agent('to')];
  const won = { approve: 0, deny: 0 };
  for (let round = 0; round < 100; round++) {
    const { proposal_id: proposalId } = (await ask(from, to, round % 2)).body;
    const decide = {
      approve: (pod: number) => functions.approveProposal(pools[pod]!, { credential, proposalId }),
      deny: (pod: number) => functions.denyProposal(pools[pod]!, { credential, proposalId }),
    };
    // who comes first at the database changes from round to round
    const order = [
      ['approve', 0],
      ['deny', 1],
      ['approve', 1],
    ] as const;
    const rotated = [...order.slice(round % 3), ...order.slice(0, round % 3)];
    const decisions = await Promise.allSettled(rotated.map(([act, pod]) => decide[act](pod)));
    const winners = rotated.filter((_, index) => decisions[index]!.status === 'fulfilled');
    expect(winners).toHaveLength(1);
    const [act] = winners[0]!;
    won[act]++;
    const state = act === 'approve' ? 'approved' : 'denied';
    for (const decision of decisions) {
      if (decision.status === 'rejected') {
        expect(decision.reason).toMatchObject({ code: 'MHADC', detail: `{"state": "${state}"}` });
      }
    }

    const pages = await Promise.all([to.receive({}, 0), to.receive({}, 1)]);
    const delivered = new Set(pages.flatMap(({ body }) => body.messages.map((message: { id: string }) => message.id)));
    expect(delivered.size).toBe(act === 'approve' ? 1 : 0);
    const { rows: groups } = await admin().query(
      `select group_id as id, generation from posthorn.groups g join posthorn.owners o using (owner_id) where o.id = $1 and g.revoked_at is null`,
      [owner.id],
    );
    expect(groups).toHaveLength(act === 'approve' ? 1 : 0);
    if (act === 'approve') {
      expect(groups[0].generation).toBe(1);
      await to.ack([...delivered] as string[]);
      await functions.revokeGroup(pools[0]!, { credential, groupId: groups[0].id });
    } else {
      await functions.liftDenial(pools[0]!, { credential, proposalId });
    }
  }
  expect(won.approve + won.deny).toBe(100);
  // both happen, or this shows nothing of a race
  expect(Math.min(won.approve, won.deny)).toBeGreaterThan(0);
}, 120_000);

test('two approvals of a renewal and a renewal by the owner at once: each that took place is one generation', async () => {
  const owner = await posthorn.owner();
  const credential = await sessionOf(owner);
  const [from, to] = [await owner.agent('from'), await owner.agent('to')];
  const group = await owner.group([from, to], 1);
  const asked = await from.call('POST', '/proposals', { agent_id: from.id, kind: 'renew', group_id: group.id });
  const proposalId = asked.body.id;
  const decisions = await Promise.allSettled([
    functions.approveProposal(pools[0]!, { credential, proposalId }),
    functions.approveProposal(pools[1]!, { credential, proposalId }),
    functions.renewGroup(pools[0]!, { credential, groupId: group.id }),
  ]);
  const [after] = await functions.listOwnerGroups(pools[0]!, { credential });
  expect(after!.generation).toBe(1 + decisions.filter(({ status }) => status === 'fulfilled').length);
  expect(decisions[2]!.status).toBe('fulfilled');
});

describe('the last place, for 32 at once', () => {
  let owner: TestOwner;
  let agents: TestAgent[];

  beforeEach(async () => {
    await setLimit('pending_proposals_per_agent', 1_000);
    await setLimit('pending_proposals_per_owner', 1_000);
    await setLimit('automatic_approvals_per_day', 50);
    await setLimit('held_messages_per_proposal', 20);
    await setLimit('active_groups_per_owner', 200);
    owner = await posthorn.owner();
  });

  const makeAgents = async (count: number) => {
    agents = await Promise.all(Array.from({ length: count }, (_, index) => owner.agent(`agent ${index}`)));
  };
  const count = async (query: string): Promise<number> => {
    const { rows } = await admin().query(
      `select count(*)::int as count from posthorn.${query} and x.owner_id = (select o.owner_id from posthorn.owners o where o.id = $1)`,
      [owner.id],
    );
    return rows[0].count;
  };
  const sendAll = (addresses: [TestAgent, TestAgent][]) =>
    Promise.all(addresses.map(([from, to], index) => ask(from, to, index % 2)));

  test('of the daily budget of automatic approvals', async () => {
    await makeAgents(9);
    await setLimit('automatic_approvals_per_day', 3);
    await owner.act((db, credential) => functions.changeOwnerSettings(db, { credential, automaticApproval: true }));
    const [first, second, ...rest] = [...pairs(agents), [agents[7]!, agents[8]!] as [TestAgent, TestAgent]];
    expect(tally([await ask(...first!, 0), await ask(...second!, 1)])).toEqual({ auto_approved: 2 });
    expect(tally(await sendAll(rest))).toEqual({ auto_approved: 1, held: rest.length - 1 });
    expect(await count('proposals x where x.is_automatic')).toBe(3);
    expect(await count(`groups x where x.revoked_at is null`)).toBe(3);
    expect(await count(`messages x where x.state = 'queued'`)).toBe(3);
  });

  test("of an owner's pending requests", async () => {
    await makeAgents(9);
    const [first, second, ...rest] = pairs(agents);
    await setLimit('pending_proposals_per_owner', 3);
    expect(tally([await ask(...first!, 0), await ask(...second!, 1)])).toEqual({ held: 2 });
    expect(tally(await sendAll([...rest, ...rest.slice(0, 2)]))).toMatchObject({ proposal_limit: expect.any(Number) });
    expect(await count(`proposals x where x.state = 'pending'`)).toBe(3);
  });

  test("of an agent's pending requests", async () => {
    await makeAgents(9);
    await setLimit('pending_proposals_per_agent', 3);
    const [from, first, second, ...rest] = agents as [TestAgent, TestAgent, TestAgent, ...TestAgent[]];
    expect(tally([await ask(from, first, 0), await ask(from, second, 1)])).toEqual({ held: 2 });
    // each of six asks for five or six messages: one request wins, with all that joins it
    const answers = await sendAll(Array.from({ length: 32 }, (_, index) => [from, rest[index % rest.length]!]));
    const held = answers.filter(({ body }) => body.state === 'held');
    expect(new Set(held.map(({ body }) => body.proposal_id)).size).toBe(1);
    expect(tally(answers)).toEqual({ held: held.length, proposal_limit: 32 - held.length });
    expect(await count(`proposals x where x.state = 'pending'`)).toBe(3);
  });

  test('behind a request', async () => {
    await makeAgents(2);
    const [from, to] = agents as [TestAgent, TestAgent];
    await setLimit('held_messages_per_proposal', 3);
    expect(tally([await ask(from, to, 0), await ask(from, to, 1)])).toEqual({ held: 2 });
    const answers = await sendAll(Array.from({ length: 32 }, (_, index) => (index % 2 ? [from, to] : [to, from])));
    expect(tally(answers)).toEqual({ held: 1, conversation_capped: 31 });
    expect(await count('held_bodies x where true')).toBe(3);
    expect(await count(`messages x where x.state = 'held'`)).toBe(3);
    expect(await count('proposals x where true')).toBe(1);
  });

  test('among the active groups, for requests that are approved at once', async () => {
    await makeAgents(9);
    const answers = await sendAll(pairs(agents));
    expect(tally(answers)).toEqual({ held: 32 });
    await owner.group([agents[7]!, agents[8]!]);
    await setLimit('active_groups_per_owner', 2);
    const credential = await sessionOf(owner);
    const decisions = await Promise.allSettled(
      answers.map(({ body }, index) =>
        functions.approveProposal(pools[index % 2]!, { credential, proposalId: body.proposal_id }),
      ),
    );
    const refused = decisions.flatMap((one) => (one.status === 'rejected' ? [one.reason.code] : []));
    expect(refused).toEqual(Array.from({ length: 31 }, () => 'MHPLM'));
    expect(await count('groups x where true')).toBe(2);
    // nothing of a refused approval stays
    expect(await count(`proposals x where x.state = 'pending'`)).toBe(31);
    expect(await count(`messages x where x.state = 'held'`)).toBe(31);
  });

  test('one request for one set of agents, however many ask at once and in whatever order they name them', async () => {
    await makeAgents(3);
    const asked = await Promise.all(
      Array.from({ length: 32 }, (_, index) => {
        const from = agents[index % 3]!;
        const peers = agents.filter((agent) => agent !== from);
        const peer_agent_ids = (index % 2 ? peers : peers.toReversed()).map((agent) => agent.id);
        return from.call('POST', '/proposals', { agent_id: from.id, peer_agent_ids, purpose: 'Race' }, index % 2);
      }),
    );
    expect(new Set(asked.map(({ body }) => body.id)).size).toBe(1);
    expect(asked.filter(({ body }) => !body.replayed)).toHaveLength(1);
    expect(await count('proposals x where true')).toBe(1);
  });

  test('one conversation for a pair that an approval lets talk while both send on', async () => {
    await makeAgents(2);
    const [from, to] = agents as [TestAgent, TestAgent];
    const { proposal_id: proposalId } = (await ask(from, to, 0)).body;
    const credential = await sessionOf(owner);
    const [, ...answers] = await Promise.all([
      functions.approveProposal(pools[1]!, { credential, proposalId }),
      ...Array.from({ length: 16 }, (_, index) => (index % 2 ? ask(from, to, 0) : ask(to, from, 1))),
    ]);
    // held until the decision, queued from then on; the approval took the first of them along
    expect(tally(answers).held ?? 0).toBeLessThanOrEqual(16);
    expect(Object.keys(tally(answers)).every((outcome) => ['held', 'queued'].includes(outcome))).toBe(true);
    expect(await count('conversations x where true')).toBe(1);
    expect(await count(`messages x where x.state = 'held'`)).toBe(0);
    expect(await count(`messages x where x.state = 'queued'`)).toBe(17);
  });
});
