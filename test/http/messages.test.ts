import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { renewGroup, revokeConnection, revokeGroup } from '../../src/db/functions.ts';
import { newKey, startPosthorn, type TestAgent, type TestOwner, type TestPosthorn } from '../helpers/posthorn.ts';

// Two pods: what one was told, the other must know.
let posthorn: TestPosthorn;
let owner: TestOwner;

beforeAll(async () => {
  posthorn = await startPosthorn({ pods: 2 });
  owner = await posthorn.owner();
});
afterAll(async () => {
  expect((await posthorn.database.admin.query('select * from ops.invariants')).rows).toEqual([]);
  await posthorn.close();
});

async function team(size: number): Promise<{ agents: TestAgent[]; groupId: string }> {
  const agents = await Promise.all(Array.from({ length: size }, (_, index) => owner.agent(`agent ${index}`)));
  return { agents, groupId: (await owner.group(agents)).id };
}

const say = (fields: object) => ({ body: 'hello', idempotency_key: newKey(), ...fields });

test('a message from send to reply, across two pods', async () => {
  const { agents } = await team(2);
  const [a, b] = agents as [TestAgent, TestAgent];
  const body = 'Ready for review ✅ \\u0000 is six characters\nsecond line';
  const sent = await a.send(say({ recipient_agent_id: b.id, body }));
  expect([sent.status, sent.body.state, sent.body.conversation_kind]).toEqual([201, 'queued', 'pair']);

  const first = await b.receive({}, 1);
  expect(first.body).toMatchObject({ has_more: false, next_cursor: null, pending_messages: 1 });
  expect(first.body.messages).toMatchObject([
    {
      id: sent.body.id,
      state: 'delivered',
      body,
      content_trust: 'untrusted_peer',
      sender: { id: a.id, label: 'agent 0', name: null },
    },
  ]);
  expect((await b.receive()).body.messages, 'comes again until acknowledged').toHaveLength(1);
  expect((await a.call('GET', `/messages/${sent.body.id}?agent_id=${a.id}`)).body.state).toBe('delivered');

  const admitted = await b.ack([sent.body.id], { delivery: 'admitted' });
  expect(admitted.body.messages[0]).toMatchObject({ state: 'delivered', admitted_at: expect.any(String) });
  expect((await b.receive()).body.messages, 'admitting keeps the body').toHaveLength(1);

  const acknowledged = await b.ack([sent.body.id, a.id]);
  expect(acknowledged.body.messages).toMatchObject([
    { id: sent.body.id, state: 'acknowledged' },
    { id: a.id, state: 'not_found' },
  ]);
  expect((await b.receive({}, 1)).body.messages).toEqual([]);

  const reply = await b.send(say({ conversation_id: sent.body.conversation_id, reply_to: sent.body.id }), 1);
  expect([reply.status, reply.body.recipient_agent_id, reply.body.reply_to]).toEqual([201, a.id, sent.body.id]);
  expect((await a.call('GET', `/messages/${sent.body.id}?agent_id=${a.id}`)).body).toMatchObject({
    state: 'replied',
    replied_at: expect.any(String),
  });
});

test('an id in capitals is the same id: what was sent to it can be read', async () => {
  const { agents, groupId } = await team(2);
  const [a, b] = agents as [TestAgent, TestAgent];
  await a.send(say({ recipient_agent_id: b.id, group_id: groupId })); // from now on the pod knows the way by itself
  const sent = await a.send(say({ recipient_agent_id: b.id.toUpperCase(), group_id: groupId }));
  expect([sent.status, sent.body.recipient_agent_id]).toEqual([201, b.id]);
  const { body } = await b.receive();
  expect(body.messages.map((message: { body: string }) => message.body)).toEqual(['hello', 'hello']);
});

test('the same key gives the same receipt from any pod, other content a conflict', async () => {
  const { agents, groupId } = await team(3);
  const [a, b] = agents as [TestAgent, TestAgent];
  const pair = say({ recipient_agent_id: b.id, body: 'once' });
  const first = await a.send(pair);
  const again = await a.send(Object.fromEntries(Object.entries(pair).reverse()), 1);
  expect([again.status, again.body]).toEqual([200, { ...first.body, replayed: true }]);
  for (const other of [
    { body: 'twice' },
    { recipient_agent_id: agents[2]!.id },
    { recipient_agent_id: undefined, group_id: groupId },
  ]) {
    expect((await a.send({ ...pair, ...other }, 1)).body.error).toBe('idempotency_conflict');
  }
  const post = say({ group_id: groupId, body: 'to all' });
  const posted = await a.send(post);
  expect([posted.body.conversation_kind, posted.body.recipient_agent_ids.length]).toEqual(['group', 2]);
  expect((await a.send(post, 1)).body).toEqual({ ...posted.body, replayed: true });
});

test('a refused send does not use up its key', async () => {
  const [a, b] = await Promise.all([owner.agent('a'), owner.agent('b')]);
  const message = say({ recipient_agent_id: b.id });
  expect((await a.send(message)).body).toMatchObject({ error: 'purpose_required', retryable: false });
  await owner.group([a, b]);
  expect((await a.send(message)).status).toBe(201);
});

test('several shared groups must be told apart', async () => {
  const { agents, groupId } = await team(2);
  const [a, b] = agents as [TestAgent, TestAgent];
  const second = await owner.group(agents);
  const answer = await a.send(say({ recipient_agent_id: b.id }));
  expect([answer.status, answer.body.error, answer.body.shared_group_ids]).toEqual([
    409,
    'group_required',
    [groupId, second.id].sort(),
  ]);
  expect((await a.send(say({ recipient_agent_id: b.id, group_id: second.id }))).status).toBe(201);
});

test('a receipt is for its two ends, a post for its sender', async () => {
  const { agents, groupId } = await team(3);
  const [a, b, c] = agents as [TestAgent, TestAgent, TestAgent];
  const post = await a.send(say({ group_id: groupId }));
  const copy = post.body.messages.find(
    (message: { recipient_agent_id: string }) => message.recipient_agent_id === b.id,
  );
  const status = (agent: TestAgent, path: string) =>
    agent.call('GET', `${path}?agent_id=${agent.id}`).then((answer) => answer.status);
  expect(
    await Promise.all([
      status(a, `/messages/${copy.id}`),
      status(b, `/messages/${copy.id}`),
      status(c, `/messages/${copy.id}`),
    ]),
  ).toEqual([200, 200, 404]);
  expect(
    await Promise.all([status(a, `/posts/${post.body.post_id}`), status(b, `/posts/${post.body.post_id}`)]),
  ).toEqual([200, 404]);
});

describe('waiting for mail', () => {
  test('ends when mail comes in by another pod', async () => {
    const { agents } = await team(2);
    const [a, b] = agents as [TestAgent, TestAgent];
    const waiting = b.receive({ wait_seconds: 25 }, 1);
    await b.call('GET', `/status?agent_id=${b.id}`, undefined, 1); // answered after the wait began
    const sent = await a.send(say({ recipient_agent_id: b.id }));
    const answer = await waiting;
    expect(answer.body.messages.map((message: { id: string }) => message.id)).toEqual([sent.body.id]);
  });

  test('after a cursor sleeps, though older mail is unacknowledged', async () => {
    const { agents } = await team(2);
    const [a, b] = agents as [TestAgent, TestAgent];
    for (const body of ['one', 'two']) await a.send(say({ recipient_agent_id: b.id, body }));
    const first = await b.receive({ limit: 1 });
    const rest = await b.receive({ after: first.body.next_cursor, limit: 1 });
    expect(rest.body.messages).toHaveLength(1);
    const commits = async () =>
      Number(
        (
          await posthorn.database.admin.query(
            'select xact_commit from pg_stat_database where datname = current_database()',
          )
        ).rows[0].xact_commit,
      );
    const before = await commits();
    const after = Buffer.from('inbox:2').toString('base64url');
    expect((await b.receive({ after, wait_seconds: 2 })).body.messages).toEqual([]);
    // a reader that does not sleep commits thousands in two seconds
    expect((await commits()) - before).toBeLessThan(300);
  });

  test('ends empty at its time', async () => {
    const lonely = await owner.agent('lonely');
    const startedAt = performance.now();
    const answer = await lonely.receive({ wait_seconds: 1 });
    expect(answer.body.messages).toEqual([]);
    expect(performance.now() - startedAt).toBeGreaterThanOrEqual(1_000);
  });
});

describe('pages', () => {
  test('end at 64 KiB of text and go on from the cursor', async () => {
    const { agents } = await team(2);
    const [a, b] = agents as [TestAgent, TestAgent];
    for (let index = 0; index < 3; index++) await a.send(say({ recipient_agent_id: b.id, body: '😀'.repeat(8_000) }));
    const first = await b.receive();
    expect([first.body.messages.length, first.body.has_more, first.body.pending_messages]).toEqual([2, true, 3]);
    const second = await b.receive({ after: first.body.next_cursor });
    expect([second.body.messages.length, second.body.has_more, second.body.next_cursor]).toEqual([1, false, null]);
  });

  test('of agents and groups go on by cursor', async () => {
    const lister = await (await posthorn.owner()).agent('x');
    expect((await lister.call('GET', `/agents?agent_id=${lister.id}&limit=1`)).body).toMatchObject({
      agents: [],
      next_cursor: null,
    });
    const { agents } = await team(3);
    const seen: string[] = [];
    for (let after = ''; ; ) {
      const { body } = await agents[0]!.call(
        'GET',
        `/agents?agent_id=${agents[0]!.id}&limit=2${after && `&after=${after}`}`,
      );
      seen.push(...body.agents.map((agent: { id: string }) => agent.id));
      if (body.next_cursor === null) break;
      after = body.next_cursor;
    }
    expect(new Set(seen).size).toBe(seen.length);
    expect(seen).toEqual(expect.arrayContaining([agents[1]!.id, agents[2]!.id]));
  });
});

describe('what the owner ends, ends at once and on every pod', () => {
  test('a revoked group fences its mail', async () => {
    const { agents, groupId } = await team(2);
    const [a, b] = agents as [TestAgent, TestAgent];
    const sent = await a.send(say({ recipient_agent_id: b.id }));
    await owner.act((db, credential) => revokeGroup(db, { credential, groupId }));
    expect((await b.receive({}, 1)).body.messages).toEqual([]);
    expect((await a.call('GET', `/messages/${sent.body.id}?agent_id=${a.id}`)).body.state).toBe('revoked');
    expect((await a.send(say({ recipient_agent_id: b.id, group_id: groupId }), 1)).body.error).toBe(
      'group_unauthorized',
    );
  });

  test('a renewed group freezes its conversations and starts fresh ones', async () => {
    const { agents, groupId } = await team(2);
    const [a, b] = agents as [TestAgent, TestAgent];
    const sent = await a.send(say({ recipient_agent_id: b.id }));
    await owner.act((db, credential) => renewGroup(db, { credential, groupId }));
    expect((await b.receive()).body.messages, 'mail of the old generation is still read').toHaveLength(1);
    const stale = await b.send(say({ conversation_id: sent.body.conversation_id, reply_to: sent.body.id }), 1);
    expect([stale.status, stale.body.error]).toEqual([409, 'conversation_frozen']);
    const fresh = await a.send(say({ recipient_agent_id: b.id }), 1);
    expect(fresh.status).toBe(201);
    expect(fresh.body.conversation_id).not.toBe(sent.body.conversation_id);
  });

  test('a revoked connection is refused at its next call, and its mail is fenced', async () => {
    const { agents } = await team(2);
    const [a, b] = agents as [TestAgent, TestAgent];
    const sent = await a.send(say({ recipient_agent_id: b.id }));
    await owner.act((db, credential) => revokeConnection(db, { credential, connectionId: a.connectionId }));
    expect((await a.receive({}, 1)).status).toBe(401);
    expect((await b.receive()).body.messages).toEqual([]);
    expect((await b.call('GET', `/messages/${sent.body.id}?agent_id=${b.id}`)).body.state).toBe('revoked');
    expect((await b.send(say({ recipient_agent_id: a.id }))).body.error).toBe('recipient_unavailable');
  });
});

test('a secret in a body is refused by rule and place, unless the owner switched that off', async () => {
  const { agents } = await team(2);
  const [a, b] = agents as [TestAgent, TestAgent];
  const secret = `ghp_${'A1b2C3d4E5f6'.repeat(3)}`;
  const message = say({ recipient_agent_id: b.id, body: `first line\nuse ${secret}` });
  const answer = await a.send(message);
  expect([answer.status, answer.body.error]).toEqual([422, 'sensitive_content']);
  expect(answer.body).toMatchObject({ rule: expect.any(String), line: 2 });
  expect(JSON.stringify(answer.body)).not.toContain(secret);
  await owner.act((db, credential) =>
    db.query('select from posthorn_api.change_owner_settings($1, p_sensitive_content_check => false)', [credential]),
  );
  expect((await a.send(message)).status).toBe(201);
});
