import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import {
  approveProposal,
  changeOwnerSettings,
  denyProposal,
  liftDenial,
  renewGroup,
  revokeAgent,
  revokeConnection,
  revokeGroup,
} from '../../src/db/functions.ts';
import { newKey, startPosthorn, type TestAgent, type TestOwner, type TestPosthorn } from '../helpers/posthorn.ts';

let posthorn: TestPosthorn;
let owner: TestOwner;

beforeAll(async () => {
  posthorn = await startPosthorn({ pods: 2 });
});
afterAll(async () => {
  expect((await posthorn.database.admin.query('select * from ops.invariants')).rows).toEqual([]);
  await posthorn.close();
});

const say = (fields: object) => ({ body: 'hello', idempotency_key: newKey(), ...fields });

/** Two agents of a fresh owner, so that no test uses up another's limits. */
async function strangers(count = 2): Promise<TestAgent[]> {
  owner = await posthorn.owner();
  return await Promise.all(Array.from({ length: count }, (_, index) => owner.agent(`agent ${index}`)));
}

const approve = (proposalId: string, edits: object = {}) =>
  owner.act((db, credential) => approveProposal(db, { credential, proposalId, ...edits }));
const deny = (proposalId: string) => owner.act((db, credential) => denyProposal(db, { credential, proposalId }));
const status = (agent: TestAgent, messageId: string) =>
  agent.call('GET', `/messages/${messageId}?agent_id=${agent.id}`).then(({ body }) => body.state);
const proposal = (agent: TestAgent, id: string) => agent.call('GET', `/proposals/${id}?agent_id=${agent.id}`);
const received = async (agent: TestAgent) =>
  (await agent.receive()).body.messages.map((message: { body: string }) => message.body);
const moveClock = (interval: string) =>
  posthorn.database.admin.query(`update posthorn_test.clock set shift = shift + $1::interval`, [interval]);

test('a send without a collaboration asks the owner and is held until approval', async () => {
  const [a, b] = (await strangers()) as [TestAgent, TestAgent];
  expect((await a.send(say({ recipient_agent_id: b.id }))).body).toMatchObject({
    error: 'purpose_required',
    retryable: false,
  });

  const message = say({ recipient_agent_id: b.id, purpose: 'Review', body: 'one' });
  const held = await a.send(message);
  expect(held.body).toMatchObject({
    state: 'held',
    group_id: null,
    conversation_id: null,
    conversation_kind: 'pair',
    proposal_id: expect.any(String),
  });
  expect((await a.send(message, 1)).body).toMatchObject({ id: held.body.id, state: 'held', replayed: true });
  const second = await a.send(say({ recipient_agent_id: b.id, purpose: 'Other words', body: 'two' }), 1);
  expect(second.body.proposal_id, 'the same request').toBe(held.body.proposal_id);
  const back = await b.send(say({ recipient_agent_id: a.id, purpose: 'From the other side', body: 'three' }));
  expect(back.body.proposal_id).toBe(held.body.proposal_id);
  expect(await received(b)).toEqual([]);

  expect((await proposal(a, held.body.proposal_id)).body).toMatchObject({
    state: 'pending',
    kind: 'new',
    purpose: 'Review',
    held_messages: 3,
  });
  expect((await proposal(b, held.body.proposal_id)).body, 'its words are not for the other side yet').toMatchObject({
    state: 'pending',
    purpose: null,
    name: null,
  });
  expect((await a.call('GET', `/agents?agent_id=${a.id}`)).body.proposals).toHaveLength(1);
  expect((await b.call('GET', `/status?agent_id=${b.id}`)).body.pending_proposals).toBe(1);

  await approve(held.body.proposal_id, { name: 'Edited', durationHours: 24 });
  expect(await received(b)).toEqual(['one', 'two']);
  expect(await received(a)).toEqual(['three']);
  expect((await proposal(b, held.body.proposal_id)).body).toMatchObject({
    state: 'approved',
    name: 'Edited',
    purpose: 'Review',
    held_messages: 0,
  });
  const { groups } = (await a.call('GET', `/groups?agent_id=${a.id}`)).body;
  expect(groups).toMatchObject([{ name: 'Edited', state: 'active', agent_ids: [a.id, b.id].sort() }]);
  const events = await posthorn.database.admin.query(
    'select kind, state from posthorn.events where agent_id = $1 order by seq',
    [a.id],
  );
  expect(events.rows).toContainEqual({ kind: 'proposal.decided', state: 'queued' });
});

test('a denial fences, and the same agents cannot ask again for 24 hours unless the owner lifts it', async () => {
  const [a, b] = (await strangers()) as [TestAgent, TestAgent];
  const held = await a.send(say({ recipient_agent_id: b.id, purpose: 'Please' }));
  await deny(held.body.proposal_id);
  expect(await status(a, held.body.id)).toBe('denied');
  expect(
    (await posthorn.database.admin.query('select from posthorn.held_bodies where message_id = $1', [held.body.id]))
      .rowCount,
  ).toBe(0);
  expect((await b.send(say({ recipient_agent_id: a.id, purpose: 'Again' }))).body.error).toBe('recently_denied');
  await expect(approve(held.body.proposal_id)).rejects.toMatchObject({ code: 'MHADC' });
  await owner.act((db, credential) => liftDenial(db, { credential, proposalId: held.body.proposal_id }));
  expect((await b.send(say({ recipient_agent_id: a.id, purpose: 'Again' }))).body.state).toBe('held');
});

test('a request past its time is expired by the clock, everywhere, with no worker', async () => {
  const [a, b] = (await strangers()) as [TestAgent, TestAgent];
  const held = await a.send(say({ recipient_agent_id: b.id, purpose: 'Quick' }));
  await moveClock('24 hours 1 millisecond');
  await expect(approve(held.body.proposal_id)).rejects.toMatchObject({ code: 'MHEXP' });
  await expect(deny(held.body.proposal_id)).rejects.toMatchObject({ code: 'MHEXP' });
  expect((await proposal(a, held.body.proposal_id)).body.state).toBe('expired');
  expect(await status(a, held.body.id)).toBe('expired');
  const again = await a.send(say({ recipient_agent_id: b.id, purpose: 'Quick' }));
  expect(again.body.state).toBe('held');
  expect(again.body.proposal_id).not.toBe(held.body.proposal_id);
});

test('one decision wins', async () => {
  for (let round = 0; round < 10; round++) {
    const [a, b] = (await strangers()) as [TestAgent, TestAgent];
    const held = await a.send(say({ recipient_agent_id: b.id, purpose: 'Race' }));
    const decisions = await Promise.allSettled([
      approve(held.body.proposal_id),
      approve(held.body.proposal_id),
      deny(held.body.proposal_id),
    ]);
    expect(decisions.filter(({ status }) => status === 'fulfilled')).toHaveLength(1);
    const { state } = (await proposal(a, held.body.proposal_id)).body;
    expect(await received(b)).toHaveLength(state === 'approved' ? 1 : 0);
  }
});

test('limits: five requests an agent, twenty held messages a request', async () => {
  const [a, ...others] = (await strangers(7)) as [TestAgent, ...TestAgent[]];
  const answers = [];
  for (const other of others) answers.push((await a.send(say({ recipient_agent_id: other.id, purpose: 'Many' }))).body);
  expect(answers.map(({ state, error }) => state ?? error)).toEqual([
    'held',
    'held',
    'held',
    'held',
    'held',
    'proposal_limit',
  ]);
  for (let index = 0; index < 19; index++)
    expect((await a.send(say({ recipient_agent_id: others[0]!.id, purpose: 'More' }))).body.state).toBe('held');
  expect((await a.send(say({ recipient_agent_id: others[0]!.id, purpose: 'More' }))).body.error).toBe(
    'conversation_capped',
  );
});

describe('a capped conversation', () => {
  async function capped(): Promise<{ a: TestAgent; b: TestAgent; conversationId: string; groupId: string }> {
    const [a, b] = (await strangers()) as [TestAgent, TestAgent];
    const group = await owner.group([a, b]);
    let conversationId = '';
    for (let index = 0; index < 20; index++) {
      const sent = await (index % 2 ? a : b).send(say({ recipient_agent_id: index % 2 ? b.id : a.id }));
      expect(sent.status).toBe(201);
      conversationId = sent.body.conversation_id;
    }
    return { a, b, conversationId, groupId: group.id };
  }

  test('holds the next pair send behind a continuation, which adds twenty posts to the same conversation', async () => {
    const { a, b, conversationId, groupId } = await capped();
    const held = await a.send(say({ recipient_agent_id: b.id, body: 'twenty-first' }));
    expect(held.body).toMatchObject({ state: 'held', conversation_id: conversationId, group_id: groupId });
    expect((await proposal(a, held.body.proposal_id)).body).toMatchObject({
      kind: 'continue',
      conversation_id: conversationId,
    });
    await approve(held.body.proposal_id);
    expect(await received(b)).toContain('twenty-first');
    const next = await a.send(say({ recipient_agent_id: b.id }));
    expect([next.status, next.body.conversation_id]).toEqual([201, conversationId]);
  });

  test('answers not_capped to who asks too early, and conversation_capped to a thread', async () => {
    const [a, b] = (await strangers()) as [TestAgent, TestAgent];
    const group = await owner.group([a, b]);
    const post = await a.send(say({ group_id: group.id }));
    const early = await a.call('POST', '/proposals', {
      agent_id: a.id,
      kind: 'continue',
      conversation_id: post.body.conversation_id,
    });
    expect([early.status, early.body.error]).toEqual([409, 'not_capped']);
    for (let index = 0; index < 19; index++) await a.send(say({ group_id: group.id }));
    const over = await a.send(say({ group_id: group.id }));
    expect(over.body).toMatchObject({ error: 'conversation_capped', conversation_id: post.body.conversation_id });
    const asked = await b.call('POST', '/proposals', {
      agent_id: b.id,
      kind: 'continue',
      conversation_id: post.body.conversation_id,
    });
    expect([asked.status, asked.body.state, asked.body.agent_ids]).toEqual([201, 'pending', [a.id, b.id].sort()]);
    await approve(asked.body.id);
    expect((await a.send(say({ group_id: group.id }))).status).toBe(201);
  });
});

describe('renewal', () => {
  test('a pair send through a group that just expired is held as a renewal', async () => {
    const [a, b] = (await strangers()) as [TestAgent, TestAgent];
    const group = await owner.group([a, b], 1);
    await a.send(say({ recipient_agent_id: b.id }));
    await moveClock('61 minutes');
    expect((await a.send(say({ group_id: group.id }))).body.error, 'a post is never held').toBe('group_unauthorized');
    const held = await a.send(say({ recipient_agent_id: b.id, body: 'after the end' }));
    expect(held.body).toMatchObject({ state: 'held', group_id: null });
    expect((await proposal(b, held.body.proposal_id)).body).toMatchObject({ kind: 'renew', group_id: group.id });
    const view = await approve(held.body.proposal_id);
    expect(view.groupId).toBe(group.id);
    expect(await received(b)).toEqual(['after the end']);
  });

  test('opens 48 hours before the end', async () => {
    const [a, b] = (await strangers()) as [TestAgent, TestAgent];
    const group = await owner.group([a, b], 100);
    const ask = () => a.call('POST', '/proposals', { agent_id: a.id, kind: 'renew', group_id: group.id });
    expect((await ask()).body.error).toBe('renewal_not_open');
    await moveClock('53 hours');
    const asked = await ask();
    expect([asked.status, asked.body.state]).toEqual([201, 'pending']);
    expect((await ask()).body).toMatchObject({ id: asked.body.id, replayed: true });
    // the owner renews by themselves: the request has lost its object
    await owner.act((db, credential) => renewGroup(db, { credential, groupId: group.id }));
    expect((await proposal(a, asked.body.id)).body).toMatchObject({ state: 'denied', reason: 'superseded' });
  });
});

test('what is revoked takes its requests along', async () => {
  const [a, b] = (await strangers()) as [TestAgent, TestAgent];
  const held = await a.send(say({ recipient_agent_id: b.id, purpose: 'Soon gone' }));
  await owner.act((db, credential) => revokeAgent(db, { credential, agentId: b.id }));
  expect(await status(a, held.body.id)).toBe('revoked');
  expect((await proposal(a, held.body.proposal_id)).body).toMatchObject({ state: 'denied', reason: 'superseded' });
  await expect(approve(held.body.proposal_id)).rejects.toMatchObject({ code: 'MHADC' });
});

test('a revoked group ends its continuation', async () => {
  const [a, b] = (await strangers()) as [TestAgent, TestAgent];
  const group = await owner.group([a, b], 10);
  const asked = await a.call('POST', '/proposals', { agent_id: a.id, kind: 'renew', group_id: group.id });
  await owner.act((db, credential) => revokeGroup(db, { credential, groupId: group.id }));
  expect((await proposal(a, asked.body.id)).body).toMatchObject({ state: 'denied', reason: 'superseded' });
});

describe('automatic approval', () => {
  test('makes the group and queues at once, within a daily budget', async () => {
    const [a, b, c] = (await strangers(3)) as [TestAgent, TestAgent, TestAgent];
    const waiting = await a.send(say({ recipient_agent_id: b.id, purpose: 'Before the switch' }));
    await owner.act((db, credential) => changeOwnerSettings(db, { credential, automaticApproval: true }));
    expect((await a.send(say({ recipient_agent_id: b.id, purpose: 'Joins what waits' }))).body).toMatchObject({
      state: 'held',
      proposal_id: waiting.body.proposal_id,
    });
    const sent = await a.send(say({ recipient_agent_id: c.id, purpose: 'Now', body: 'now', duration_hours: 720 }));
    expect(sent.body).toMatchObject({
      state: 'queued',
      auto_approved: true,
      group_id: expect.any(String),
      conversation_id: expect.any(String),
    });
    expect(await received(c)).toEqual(['now']);
    const { groups } = (await a.call('GET', `/groups?agent_id=${a.id}`)).body;
    const hours = (Date.parse(groups[0].expires_at) - Date.parse(groups[0].approved_at)) / 3_600_000;
    expect(hours, 'no longer than the default').toBe(168);

    await posthorn.database.admin.query("select ops.set_limit('automatic_approvals_per_day', 1)");
    expect((await b.send(say({ recipient_agent_id: c.id, purpose: 'Over budget' }))).body.state).toBe('held');
    await posthorn.database.admin.query("select ops.set_limit('automatic_approvals_per_day', 50)");
  });

  test('answers a proposal as approved, with its group', async () => {
    const [a, b, c] = (await strangers(3)) as [TestAgent, TestAgent, TestAgent];
    await owner.act((db, credential) => changeOwnerSettings(db, { credential, automaticApproval: true }));
    const ask = () =>
      a.call('POST', '/proposals', { agent_id: a.id, peer_agent_ids: [b.id, c.id], name: 'Team', purpose: 'Build' });
    const asked = await ask();
    expect([asked.status, asked.body.state, asked.body.group.agent_ids]).toEqual([
      201,
      'approved',
      [a.id, b.id, c.id].sort(),
    ]);
    expect((await ask()).body, 'the same set already shares it').toMatchObject({
      id: null,
      state: 'approved',
      group: { id: asked.body.group.id },
      replayed: true,
    });
  });
});

test('a request names only what its kind needs, and nothing that it may not see', async () => {
  const [a, b, c] = (await strangers(3)) as [TestAgent, TestAgent, TestAgent];
  const foreign = await owner.group([b, c]);
  const ask = (fields: object) =>
    a.call('POST', '/proposals', { agent_id: a.id, peer_agent_ids: [b.id], purpose: 'Peek', ...fields });
  expect((await ask({ group_id: foreign.id })).body).toMatchObject({ error: 'invalid_request', fields: ['group_id'] });
  expect((await ask({ conversation_id: foreign.id })).body).toMatchObject({
    error: 'invalid_request',
    fields: ['conversation_id'],
  });
  const renew = { kind: 'renew', group_id: foreign.id };
  expect((await ask(renew)).body).toMatchObject({ error: 'invalid_request', fields: ['peer_agent_ids'] });
  expect((await ask({ ...renew, peer_agent_ids: undefined })).body.error).toBe('not_found');
});

test('a connection revoked while its request waits for the lock asks for nothing', async () => {
  const [a, b] = (await strangers()) as [TestAgent, TestAgent];
  const waiting = await owner.act(async (db, credential) => {
    await revokeConnection(db, { credential, connectionId: a.connectionId });
    const answer = a.call('POST', '/proposals', { agent_id: a.id, peer_agent_ids: [b.id], purpose: 'Too late' });
    await expect
      .poll(
        async () =>
          (
            await posthorn.database.admin.query(
              "select from pg_locks l join pg_stat_activity a using (pid) where a.datname = current_database() and not l.granted and l.locktype in ('transactionid', 'tuple')",
            )
          ).rowCount,
      )
      .toBeGreaterThan(0);
    return { answer };
  });
  expect((await waiting.answer).status).toBe(401);
  expect(
    (await posthorn.database.admin.query('select from posthorn.proposals where proposer_agent_id = $1', [a.id]))
      .rowCount,
  ).toBe(0);
});
