import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { hashCredential } from '../../src/crypto/credentials.ts';
import {
  approveProposal,
  changeOwnerSettings,
  deleteAccount,
  deleteOutdated,
  denyProposal,
  expireProposals,
  exportAccount,
  readEvents,
  revokeConnection,
  signOut,
} from '../../src/db/functions.ts';
import { OWNER_LOG } from '../../src/events/event-content.ts';
import { decodeEventId } from '../../src/events/event-id.ts';
import type { Browser } from '../helpers/browser.ts';
import { openStream, type StreamEvent, type TestStream } from '../helpers/event-stream.ts';
import { signIn } from '../helpers/oauth.ts';
import { newKey, startPosthorn, type TestAgent, type TestOwner, type TestPosthorn } from '../helpers/posthorn.ts';

const PATH = '/owner/v1/events';

let posthorn: TestPosthorn;
let owner: TestOwner;
let browser: Browser;
const open: TestStream[] = [];

beforeAll(async () => {
  posthorn = await startPosthorn({ pods: 2, publicUrl: 'https://posthorn.example' });
  owner = await posthorn.owner();
  browser = await signInTo(owner);
});
afterEach(async () => {
  for (const stream of open.splice(0)) stream.close();
});
afterAll(async () => {
  const { rows } = await posthorn.database.as('posthorn_ops').query('select * from ops.invariants');
  expect(rows).toEqual([]);
  await posthorn.close();
});

/** Both pods stand behind one address, as browsers know it. */
const signInTo = (whom: TestOwner) => signIn(whom, 'https://posthorn.example', posthorn.pods[0]!.url);

const sessionOf = ({ cookies }: Browser) => [...cookies].find(([name]) => name.endsWith('posthorn_session'))![1].value;
const cookieOf = (some: Browser) => ({ cookie: `__Host-posthorn_session=${sessionOf(some)}` });

async function stream(
  options: { of?: Browser; pod?: number; last?: string; query?: string } = {},
): Promise<TestStream> {
  const { of = browser, pod = 0, last, query = '' } = options;
  const opened = await openStream(posthorn.pods[pod]!.url, cookieOf(of), PATH + query, last);
  open.push(opened);
  return opened;
}

const admin = (sql: string, values?: unknown[]) => posthorn.database.admin.query(sql, values);
const kinds = (events: StreamEvent[]) => events.map(({ event }) => event);
const ofKind = (kind: string) => (events: StreamEvent[]) => events.filter(({ event }) => event === kind);
const created = ofKind('proposal.created');
const decided = ofKind('proposal.decided');
const about = (events: StreamEvent[]) => events.map(({ data }) => data.proposal_id);

/** A message that is held: its agents share no collaboration. Answers the request's id. */
async function ask(from: TestAgent, to: TestAgent, pod = 0): Promise<string> {
  const body = { recipient_agent_id: to.id, body: 'words of a body', purpose: 'words of a purpose' };
  const sent = await from.send({ ...body, idempotency_key: newKey() }, pod);
  expect(sent.body).toMatchObject({ state: 'held' });
  return sent.body.proposal_id;
}

async function pair(of = owner): Promise<[TestAgent, TestAgent]> {
  return [await of.agent('a'), await of.agent('b')];
}

/** What the log holds, as `kind subject`, in its order. */
async function readLog(of: TestOwner): Promise<{ seq: number; kind: string; subject: string }[]> {
  const { rows } = await admin(
    `select e.seq::int, e.kind, e.subject_id as subject from posthorn.events e join posthorn.owners o using (owner_id)
      where o.id = $1 and e.agent_id = $2 order by e.seq`,
    [of.id, OWNER_LOG],
  );
  return rows;
}

test('begins with what waits, and then tells of requests and decisions through any pod, without content', async () => {
  const mine = await posthorn.owner();
  const own = await signInTo(mine);
  const [a, b] = await pair(mine);
  const [c] = await pair(mine);
  const before = await ask(a, b);
  const reader = await stream({ of: own, pod: 1 });
  expect(reader.headers).toMatchObject({
    'content-type': 'text/event-stream; charset=utf-8',
    'x-accel-buffering': 'no',
    'cache-control': 'no-store, no-transform',
    'x-content-type-options': 'nosniff',
  });
  expect(reader.headers['access-control-allow-origin']).toBeUndefined();
  const [snapshot] = await reader.until((events) => events.length > 0);
  expect(snapshot).toEqual({ event: 'snapshot', id: expect.any(String), data: { proposal_ids: [before] } });

  const asked = await ask(c, b);
  const [told] = created(await reader.until((all) => created(all).length === 1));
  expect(told!.data).toEqual({
    type: 'proposal.created',
    occurred_at: expect.any(String),
    proposal_id: asked,
    agent_ids: [b.id, c.id].toSorted(),
  });

  await mine.act((db, credential) => denyProposal(db, { credential, proposalId: asked }));
  await mine.act((db, credential) => approveProposal(db, { credential, proposalId: before }));
  const ends = decided(await reader.until((all) => decided(all).length === 2));
  expect(ends.map(({ data }) => [data.proposal_id, data.state, data.message_ids.length, data.agent_id])).toEqual([
    [asked, 'denied', 1, undefined],
    [before, 'queued', 1, undefined],
  ]);
  expect(JSON.stringify(reader.events)).not.toContain('words');
});

test('tells once of each request, however it was made; and of what nobody was asked, its approval alone', async () => {
  const mine = await posthorn.owner();
  const reader = await stream({ of: await signInTo(mine) });
  await reader.until((events) => events.length > 0);
  const [a, b] = await pair(mine);
  const propose = { agent_id: a.id, kind: 'new', peer_agent_ids: [b.id], purpose: 'To talk' };
  const proposed = (await a.call('POST', '/proposals', propose)).body.id;
  expect((await a.call('POST', '/proposals', propose, 1)).body).toMatchObject({ id: proposed, replayed: true });
  expect(await ask(b, a)).toBe(proposed); // one more message behind the same request
  await mine.act((db, credential) => changeOwnerSettings(db, { credential, automaticApproval: true }));
  const [c, d] = await pair(mine);
  const through = await c.send({ recipient_agent_id: d.id, body: 'x', purpose: 'Y', idempotency_key: newKey() }, 1);
  expect(through.body).toMatchObject({ auto_approved: true });
  const events = await reader.until((all) => all.length === 3);
  expect(kinds(events)).toEqual(['snapshot', 'proposal.created', 'proposal.decided']);
  expect(about(events.slice(1))).toEqual([proposed, through.body.proposal_id]);
});

test('tells of a request whose time ran out', async () => {
  const mine = await posthorn.owner();
  const [a, b] = await pair(mine);
  const reader = await stream({ of: await signInTo(mine), pod: 1 });
  await reader.until((events) => events.length > 0);
  const asked = await ask(a, b);
  await admin('update posthorn.proposals set expires_at = clock_timestamp() where proposal_id = $1', [asked]);
  while ((await expireProposals(posthorn.database.as('posthorn_jobs'))) > 0);
  const [told] = decided(await reader.until((all) => decided(all).length === 1));
  expect(told!.data).toMatchObject({ proposal_id: asked, state: 'expired' });
});

test('sixteen writers on two pods leave no gap, and every reader hears all in one order', {
  timeout: 60_000,
}, async () => {
  const mine = await posthorn.owner();
  for (const limit of ['pending_proposals_per_owner', 'pending_proposals_per_agent'])
    await admin('select ops.set_limit($1, 1000)', [limit]);
  const own = await signInTo(mine);
  const agents = await Promise.all(Array.from({ length: 16 }, (_, index) => mine.agent(`w${index}`)));
  const readers = [await stream({ of: own }), await stream({ of: own, pod: 1 })];
  for (const reader of readers) await reader.until((events) => events.length > 0);
  // each with the three behind it in the ring; every third is decided at once
  await Promise.all(
    agents.map(async (agent, index) => {
      for (const step of [1, 2, 3]) {
        const id = await ask(agent, agents[(index + step) % 16]!, (index + step) % 2);
        if (step === 3) await mine.act((db, credential) => denyProposal(db, { credential, proposalId: id }));
      }
    }),
  );
  const log = await readLog(mine);
  expect(log.map(({ seq }) => seq)).toEqual(Array.from({ length: 64 }, (_, index) => index + 1));
  expect(new Set(log.map(({ kind, subject }) => `${kind} ${subject}`)).size).toBe(64);
  for (const reader of readers) {
    const events = (await reader.until((all) => all.length === 65)).slice(1);
    expect(events.map(({ id }) => decodeEventId(id!)!.place.seqs)).toEqual(log.map(({ seq }) => [seq]));
    expect(events.map(({ event, data }) => [event, data.proposal_id])).toEqual(
      log.map((each) => [each.kind, each.subject]),
    );
  }
});

test('resumes after any id, by header or query, on any pod; other ids are answered by reset and snapshot', async () => {
  const mine = await posthorn.owner();
  const own = await signInTo(mine);
  const agents = await Promise.all(['a', 'b', 'c', 'd', 'e'].map((label) => mine.agent(label)));
  const first = await stream({ of: own });
  await first.until((events) => events.length > 0);
  const asked: string[] = [];
  for (const [index, peer] of agents.slice(1).entries()) asked.push(await ask(agents[0]!, peer, index % 2));
  const seen = created(await first.until((events) => created(events).length === 4));
  first.close();
  for (const [cut, options] of [
    [0, { pod: 1, last: seen[0]!.id! }],
    [2, { pod: 0, query: `?after=${seen[2]!.id!}` }],
  ] as const) {
    const again = await stream({ of: own, ...options });
    const rest = await again.until((events) => events.length === 3 - cut);
    expect(kinds(rest)).not.toContain('snapshot');
    expect(about(rest)).toEqual(asked.slice(cut + 1));
    again.close();
    await again.ended;
  }
  const ofAnAgent = await openStream(
    posthorn.pods[0]!.url,
    agents[0]!.token,
    `/messaging/v1/events?agent_id=${agents[0]!.id}`,
  );
  open.push(ofAnAgent);
  const [foreign] = await ofAnAgent.until((events) => events.length > 0);
  for (const last of ['rubbish', foreign!.id!]) {
    const again = await stream({ of: own, last });
    const events = await again.until((all) => all.length === 2);
    expect(kinds(events)).toEqual(['reset', 'snapshot']);
    expect(events[1]!.data.proposal_ids.toSorted()).toEqual(asked.toSorted());
    again.close();
  }
});

test('is kept for seven days and deleted with the events of agents; what is older is answered by reset', async () => {
  const mine = await posthorn.owner();
  const own = await signInTo(mine);
  const [a, b] = await pair(mine);
  const [c] = await pair(mine);
  const first = await stream({ of: own });
  await first.until((events) => events.length > 0);
  await ask(a, b);
  await ask(c, b);
  const [old, fresh] = created(await first.until((all) => created(all).length === 2));
  first.close();
  await admin(
    `update posthorn.events e set occurred_at = occurred_at - interval '8 days'
       from posthorn.owners o where o.owner_id = e.owner_id and o.id = $1 and e.agent_id = $2 and e.seq = 1`,
    [mine.id, OWNER_LOG],
  );
  const jobs = posthorn.database.as('posthorn_jobs');
  await deleteOutdated(jobs, { table: 'events', firstPage: 0, pages: 1_000 });
  expect((await readLog(mine)).map(({ seq }) => seq)).toEqual([2]);
  const [snapshot] = first.events;
  const below = await stream({ of: own, last: snapshot!.id! });
  expect(kinds(await below.until((all) => all.length === 2))).toEqual(['reset', 'snapshot']);
  const at = await stream({ of: own, pod: 1, last: old!.id! });
  expect((await at.until((all) => all.length === 1))[0]!.data).toEqual(fresh!.data);
});

describe('ends within a second, and says why, when', () => {
  let mine: TestOwner;
  let own: Browser;

  /** A stream of a session on the other pod. */
  async function reading(): Promise<TestStream> {
    mine = await posthorn.owner();
    own = await signInTo(mine);
    const reader = await stream({ of: own, pod: 1 });
    await reader.until((events) => events.length > 0);
    return reader;
  }

  async function expectEnd(reader: TestStream, reason: string): Promise<void> {
    const since = performance.now();
    await reader.ended;
    expect(performance.now() - since).toBeLessThan(1_000);
    expect(reader.events.at(-1)).toMatchObject({ event: 'stream.closing', data: { reason } });
  }

  test('the browser signs out, which ends no other', async () => {
    const reader = await reading();
    const other = await stream({ of: await signInTo(mine) });
    await other.until((events) => events.length > 0);
    await signOut(posthorn.database.as('posthorn_app'), {
      credential: hashCredential(sessionOf(own)),
      everywhere: false,
    });
    await expectEnd(reader, 'revoked');
    const [a, b] = await pair(mine);
    await ask(a, b);
    await other.until((all) => created(all).length === 1);
    expect(created(reader.events)).toEqual([]);
    expect((await stream({ of: own })).status).toBe(401);
  });

  test('somebody signs out everywhere', async () => {
    const reader = await reading();
    const elsewhere = await signInTo(mine);
    await signOut(posthorn.database.as('posthorn_app'), {
      credential: hashCredential(sessionOf(elsewhere)),
      everywhere: true,
    });
    await expectEnd(reader, 'revoked');
  });

  test('the session is revoked', async () => {
    const reader = await reading();
    const { rows } = await admin('select connection_id from posthorn.connections where credential_hash = $1', [
      hashCredential(sessionOf(own)),
    ]);
    await mine.act((db, credential) => revokeConnection(db, { credential, connectionId: rows[0].connection_id }));
    await expectEnd(reader, 'revoked');
  });

  test('the session expires', async () => {
    await reading();
    const { rows } = await admin(
      `update posthorn.connections set expires_at = clock_timestamp() + interval '1.5 seconds' where credential_hash = $1 returning expires_at`,
      [hashCredential(sessionOf(own))],
    );
    const reader = await stream({ of: own });
    await reader.ended;
    expect(Date.now() - rows[0].expires_at.getTime()).toBeLessThan(1_000);
    expect(reader.events.at(-1)).toMatchObject({ event: 'stream.closing', data: { reason: 'expired' } });
  });

  test('the owner is suspended', async () => {
    const reader = await reading();
    await admin('select ops.suspend_owner($1)', [mine.id]);
    await expectEnd(reader, 'suspended');
    expect((await stream({ of: own })).status).toBe(403);
  });

  test('the account is deleted', async () => {
    const reader = await reading();
    await mine.act((db, credential) => deleteAccount(db, { credential }));
    await expectEnd(reader, 'revoked');
  });

  test('its reader comes back elsewhere with its id', async () => {
    const reader = await reading();
    await stream({ of: own, last: reader.events[0]!.id! });
    await expectEnd(reader, 'replaced');
  });
});

test('a session holds eight over all pods, beside those of other sessions, and a closed one gives its slot back', async () => {
  const mine = await posthorn.owner();
  const own = await signInTo(mine);
  const streams = await Promise.all(Array.from({ length: 9 }, (_, index) => stream({ of: own, pod: index % 2 })));
  const refused = streams.filter(({ status }) => status === 429);
  expect(refused).toHaveLength(1);
  expect(refused[0]!.headers['retry-after']).toBe('1');
  expect((await stream({ of: await signInTo(mine) })).status).toBe(200);
  streams.find(({ status }) => status === 200)!.close();
  await expect.poll(async () => (await stream({ of: own, pod: 1 })).status).toBe(200);
});

describe('nobody else reads it', () => {
  test('not another owner, who hears their own alone', async () => {
    const [mine, theirs] = [await posthorn.owner(), await posthorn.owner()];
    const reader = await stream({ of: await signInTo(theirs), pod: 1 });
    await reader.until((events) => events.length > 0);
    const [a, b] = await pair(mine);
    await ask(a, b);
    const [c, d] = await pair(theirs);
    const asked = await ask(c, d);
    expect(about(created(await reader.until((all) => all.length === 2)))).toEqual([asked]);
  });

  test('not a token of any kind, not without a session, and not a page of another site', async () => {
    const agent = await owner.agent('a');
    const device = await owner.token({ kind: 'device' });
    const { url } = posthorn.pods[0]!;
    const ask = (headers: Record<string, string>, query = '', method = 'GET') =>
      fetch(url + PATH + query, { method, headers, signal: AbortSignal.timeout(5_000) });
    for (const method of ['GET', 'HEAD']) {
      for (const token of [agent.token, device.token, sessionOf(browser)])
        expect((await ask({ authorization: `Bearer ${token}` }, '', method)).status).toBe(403);
      expect((await ask({}, '', method)).status).toBe(401);
      expect((await ask({ cookie: `__Host-posthorn_session=phw_${'x'.repeat(43)}` }, '', method)).status).toBe(401);
      for (const site of ['cross-site', 'same-site'])
        expect((await ask({ ...cookieOf(browser), 'sec-fetch-site': site }, '', method)).status).toBe(403);
      expect((await ask(cookieOf(browser), `?agent_id=${agent.id}`, method)).status).toBe(400);
    }
    expect(await (await ask({ authorization: `Bearer ${agent.token}` })).json()).toMatchObject({
      error: 'person_required',
    });
    const head = await ask(cookieOf(browser), '', 'HEAD');
    expect([head.status, head.headers.get('content-type')]).toEqual([200, 'text/event-stream; charset=utf-8']);
    const options = await ask({ origin: 'https://elsewhere.example' }, '', 'OPTIONS');
    expect([options.status, options.headers.get('allow')]).toEqual([204, 'GET, HEAD, OPTIONS']);
    expect(options.headers.get('access-control-allow-origin')).toBeNull();
    for (const token of [agent.token, sessionOf(browser)])
      expect((await openStream(url, token, `/messaging/v1/events?agent_id=${OWNER_LOG}`)).status).toBe(404);
  });

  test('not raw SQL of a pod', async () => {
    const mine = await posthorn.owner();
    const [a, b] = await pair(mine);
    await ask(a, b);
    const app = posthorn.database.as('posthorn_app');
    for (const sql of [
      'select * from posthorn.events',
      `select posthorn_impl.tell_owner(1, 'proposal.created', '{}', null, now())`,
    ])
      await expect(app.query(sql)).rejects.toMatchObject({ code: '42501' });
    const credentials = [a.token, sessionOf(browser), 'unknown', sessionOf(await signInTo(mine))].map(hashCredential);
    const agentIds = credentials.map(() => OWNER_LOG);
    const rows = await readEvents(app, { credentials, agentIds, after: [0, 0, 0, 0], limit: 10 });
    const log = await readLog(mine);
    expect(rows.filter(({ item }) => item === 1)).toMatchObject([{ problem: expect.any(String), kind: null }]);
    const foreign = rows.filter(({ item }) => item === 2).map(({ subjectId }) => subjectId);
    expect(log.filter(({ subject }) => foreign.includes(subject))).toEqual([]);
    expect(rows.filter(({ item }) => item === 3)).toMatchObject([{ problem: 'unauthorized', kind: null }]);
    expect(rows.filter(({ item }) => item === 4).map(({ kind, subjectId }) => [kind, subjectId])).toEqual(
      log.map(({ kind, subject }) => [kind, subject]),
    );
    // a session reads no log of an agent
    const [of] = await readEvents(app, { credentials: [credentials[3]!], agentIds: [a.id], after: [0], limit: 10 });
    expect(of).toMatchObject({ problem: 'scope_required' });
  });
});

test('it is exported with the account', async () => {
  const mine = await posthorn.owner();
  const [a, b] = await pair(mine);
  const asked = await ask(a, b);
  const lines = await mine.act((db, credential) => exportAccount(db, { credential }));
  const events = lines.filter(({ kind }) => kind === 'events').map(({ content }) => content);
  expect(events).toContainEqual(
    expect.objectContaining({ agent_id: OWNER_LOG, kind: 'proposal.created', subject_id: asked }),
  );
});

test('nobody is shown as live by it', async () => {
  const mine = await posthorn.owner();
  const reader = await stream({ of: await signInTo(mine) });
  await reader.until((events) => events.length > 0);
  const { rows } = await admin(`select * from posthorn.presence where agent_id = $1`, [OWNER_LOG]);
  expect(rows).toEqual([]);
});

test('a pod that stops tells its readers to come back, spread over seconds', async () => {
  const stopping = posthorn.pods.pop()!;
  const opened = await openStream(stopping.url, cookieOf(browser), PATH);
  await opened.until((events) => events.length > 0);
  await stopping.close();
  await opened.ended;
  const { event, data } = opened.events.at(-1)!;
  expect([event, data.reason]).toEqual(['stream.closing', 'draining']);
  expect(data.retry_ms).toBeGreaterThanOrEqual(1_000);
  const next = await stream({ last: opened.events[0]!.id! });
  expect(next.status).toBe(200);
});
