import { randomBytes } from 'node:crypto';
import { afterAll, beforeEach, describe, expect, test } from 'vitest';
import { makeCredential } from '../../src/crypto/credentials.ts';
import { makeId } from '../../src/crypto/ids.ts';
import * as functions from '../../src/db/functions.ts';
import { type Agent, createWorld, expectInvariants, type Owner, refusal, send } from '../helpers/world.ts';

const world = await createWorld();
const { app, clock, database } = world;
const jobs = database.as('posthorn_jobs');

for (const name of ['pending_proposals_per_owner', 'pending_proposals_per_agent']) await world.setLimit(name, 100);

let owner: Owner;
let anna: Agent;
let bert: Agent;

beforeEach(async () => {
  owner = await world.makeOwner();
  [anna, bert] = (await owner.agents(2)) as [Agent, Agent];
  await database.admin.query('delete from graphile_worker._private_jobs');
});
afterAll(() => expectInvariants(world));

/** A browser of its own, signed in by a link. */
async function signIn(who: Owner, replaces?: Buffer): Promise<Buffer> {
  const { hash } = makeCredential('session');
  const linkHash = randomBytes(32);
  await who.act((db, credential) => functions.createSignInLink(db, { credential, linkHash }));
  const given = { linkHash, sessionHash: hash, label: 'Web browser', bucket: 1, replaces };
  expect(await functions.useSignInLink(app, given)).toBe('signed_in');
  return hash;
}

const switchOn = (credential: Buffer, endpointHash = randomBytes(32)) =>
  functions.addPushSubscription(app, { credential, endpointHash, sealedSubscription: randomBytes(300) });
const claim = (who = owner) => functions.claimPushes(jobs, { ownerId: who.id });
const idsOf = (due: functions.DuePush[]) => due.map(({ subscriptionId }) => subscriptionId).toSorted();

async function record(due: functions.DuePush, httpStatus: number | null, retryAfterSeconds: number | null = null) {
  const { subscriptionId, requests } = due;
  await functions.recordPush(jobs, { ownerId: owner.id, subscriptionId, requests, httpStatus, retryAfterSeconds });
}

const asAnna = () => ({ credential: anna.credential, agentId: anna.id });

/** A request for agents who were asked about never before. */
async function request(count = 1): Promise<string[]> {
  const ids: string[] = [];
  for (let made = 0; made < count; made++) {
    const peer = await owner.agent();
    const proposed = await functions.proposeCollaboration(app, {
      ...asAnna(),
      kind: 'new',
      purpose: 'To test',
      peerAgentIds: [peer.id],
    });
    ids.push(proposed[0]!.proposalId!);
  }
  return ids;
}

/** Jobs of the owner: which of the two kinds, and in how many seconds. */
async function queue(): Promise<{ kind: string; waits: number }[]> {
  const { rows } = await database.admin.query(
    `select replace(j.key, 'push:' || $1, 'push') as kind, greatest(0, round(extract(epoch from j.run_at - now())))::int as waits
       from graphile_worker._private_jobs j join graphile_worker._private_tasks t on t.id = j.task_id
      where t.identifier = 'push__send' and j.payload::jsonb = jsonb_build_object('owner_id', $1) order by 1`,
    [owner.id],
  );
  return rows;
}
const NOW = [{ kind: 'push', waits: 0 }];

async function rowsOf(who = owner): Promise<Record<string, unknown>[]> {
  const { rows } = await database.admin.query(
    `select s.subscription_id, s.requests_made, s.requests_told, s.failures, round(extract(epoch from nullif(s.next_push_at, '-infinity') - posthorn_impl.clock()))::int as waits
       from posthorn.push_subscriptions s join posthorn.owners o on o.owner_id = s.owner_id where o.id = $1 order by 1`,
    [who.id],
  );
  return rows;
}

async function actsOf(subjectId: string): Promise<unknown[]> {
  const { rows } = await database.admin.query(
    `select act, connection_id is null as by_nobody from posthorn.audit_entries where subject_id = $1 order by entry_id`,
    [subjectId],
  );
  return rows;
}

describe('a job', () => {
  const ways: Record<string, () => Promise<unknown>> = {
    'a proposal': () => request(),
    'a message that is held': () => send(world, { from: anna, to: bert, purpose: 'To test' }),
    async 'a proposal to renew'() {
      const group = await owner.group([anna, bert], { hours: 24 });
      await functions.proposeCollaboration(app, { ...asAnna(), kind: 'renew', groupId: group.id });
    },
    async 'a proposal to continue'() {
      await owner.group([anna, bert]);
      await world.setLimit('conversation_posts', 1);
      const { conversationId } = await send(world, { from: anna, to: bert });
      await functions.proposeCollaboration(app, { ...asAnna(), kind: 'continue', conversationId });
      await world.setLimit('conversation_posts', 20);
    },
  };

  test.each(Object.keys(ways))('comes with %s', async (way) => {
    await switchOn(owner.session);
    await ways[way]!();
    expect(await queue()).toEqual(NOW);
    expect(await claim()).toMatchObject([{ requests: 1, waiting: 1 }]);
  });

  test.each(Object.keys(ways))(
    'does not come with %s that is approved automatically, nor without a browser',
    async (way) => {
      await functions.changeOwnerSettings(app, { credential: owner.session, automaticApproval: true });
      await switchOn(owner.session);
      await ways[way]!();
      expect(await queue()).toEqual([]);
      expect(await rowsOf()).toMatchObject([{ requests_made: 0 }]);
      await functions.changeOwnerSettings(app, { credential: owner.session, automaticApproval: false });
      await functions.removePushSubscription(app, { credential: owner.session });
      [anna, bert] = (await owner.agents(2)) as [Agent, Agent];
      await ways[way]!();
      expect(await queue()).toEqual([]);
    },
  );

  test('does not come with what fails, or waits already', async () => {
    await switchOn(owner.session);
    const nobody = { ...asAnna(), kind: 'new', purpose: 'x', peerAgentIds: [makeId()] };
    await refusal(functions.proposeCollaboration(app, nobody));
    expect(await queue()).toEqual([]);
    const again = { ...asAnna(), kind: 'new', purpose: 'x', peerAgentIds: [bert.id] };
    await functions.proposeCollaboration(app, again);
    await database.admin.query('delete from graphile_worker._private_jobs');
    expect(await functions.proposeCollaboration(app, again)).toMatchObject([{ replayed: true }]);
    expect(await queue()).toEqual([]);
  });

  test('holds the id of the owner and nothing else', async () => {
    await switchOn(owner.session);
    await send(world, { from: anna, to: bert, purpose: 'planted purpose', body: 'planted body' });
    const { rows } = await database.admin.query('select payload from graphile_worker._private_jobs');
    expect(rows).toEqual([{ payload: { owner_id: owner.id } }]);
  });
});

describe('a flood', () => {
  test('of 50 requests is one push at once and one a minute later, with how many wait', async () => {
    await clock.stop();
    const id = await switchOn(owner.session);
    await request();
    const [first] = await claim();
    expect(first).toMatchObject({ subscriptionId: id, waiting: 1 });
    await request(49);
    expect(await queue()).toEqual(NOW);
    expect(await claim(), 'too early').toEqual([]);
    expect((await queue()).find(({ kind }) => kind === 'push:retry')?.waits).toBeGreaterThanOrEqual(58);
    await record(first!, 201);
    await clock.advance('1 minute');
    const [second] = await claim();
    expect(second).toMatchObject({ subscriptionId: id, waiting: 50, requests: 50 });
    await record(second!, 201);
    await clock.advance('1 minute');
    expect(await claim()).toEqual([]);
    expect(await rowsOf()).toMatchObject([{ requests_made: 50, requests_told: 50 }]);
    await clock.go();
  });

  test('of workers that look at once still is one push for each browser', async () => {
    const ids = [await switchOn(owner.session), await switchOn(await signIn(owner))];
    await request();
    const claims = await Promise.all(Array.from({ length: 8 }, () => claim()));
    expect(idsOf(claims.flat())).toEqual(ids.toSorted());
  });
});

describe('nothing is lost', () => {
  test('when a worker dies with it: it is due again after a minute, and then done', async () => {
    await switchOn(owner.session);
    await request();
    const [lost] = await claim();
    expect(await claim(), 'the same job, freed and run again').toEqual([]);
    expect((await queue()).at(-1)).toMatchObject({ kind: 'push:retry' });
    await clock.advance('1 minute');
    const [again] = await claim();
    expect(again!.subscriptionId).toBe(lost!.subscriptionId);
    await record(again!, 201);
    await clock.advance('1 hour');
    expect(await claim()).toEqual([]);
  });

  test('when a request comes while a push is under way', async () => {
    await switchOn(owner.session);
    await request();
    const [first] = await claim();
    await request();
    await record(first!, 201);
    expect(await rowsOf()).toMatchObject([{ requests_made: 2, requests_told: 1 }]);
    await clock.advance('1 minute');
    expect(await claim()).toMatchObject([{ waiting: 2 }]);
  });

  test('when one of two browsers cannot be told: it alone is told again', async () => {
    const id = await switchOn(owner.session);
    const other = await switchOn(await signIn(owner));
    await request();
    for (const due of await claim()) await record(due, due.subscriptionId === id ? 503 : 201);
    await clock.advance('1 minute');
    expect(idsOf(await claim())).toEqual([id]);
    expect(await rowsOf()).toContainEqual(expect.objectContaining({ subscription_id: other, requests_told: 1 }));
  });
});

test('what was decided meanwhile, or has expired, is no news', async () => {
  await switchOn(owner.session);
  const [proposalId] = await request();
  await functions.denyProposal(app, { credential: owner.session, proposalId: proposalId! });
  expect(await claim()).toEqual([]);
  expect(await rowsOf()).toMatchObject([{ requests_made: 1, requests_told: 1 }]);
  await request();
  await clock.advance('25 hours');
  expect(await claim()).toEqual([]);
});

test('a browser is told for as long as the request waits', async () => {
  await clock.stop();
  await switchOn(owner.session);
  await request();
  await clock.advance('20 hours');
  const [due] = await claim();
  expect(due!.lifeSeconds).toBe(4 * 3_600);
  await clock.go();
});

describe('how it went', () => {
  test.each([200, 201, 299])('%i: told', async (status) => {
    await switchOn(owner.session);
    await request();
    await record((await claim())[0]!, status);
    expect(await rowsOf()).toMatchObject([{ requests_told: 1, failures: 0 }]);
    expect((await queue()).filter(({ kind }) => kind === 'push:retry')).toEqual([]);
  });

  test.each([404, 410])('%i: the browser is gone, and that is in the log', async (status) => {
    const id = await switchOn(owner.session);
    await request();
    await record((await claim())[0]!, status);
    expect(await rowsOf()).toEqual([]);
    expect(await actsOf(id)).toEqual([
      { act: 'push.add', by_nobody: false },
      { act: 'push.remove', by_nobody: true },
    ]);
  });

  test.each([302, 400, 401, 403, 413])('%i: not tried again, and the browser is told of the next', async (status) => {
    await switchOn(owner.session);
    await request();
    await record((await claim())[0]!, status);
    expect(await rowsOf()).toMatchObject([{ requests_told: 1, failures: 0 }]);
    await request();
    await clock.advance('1 minute');
    expect(await claim()).toMatchObject([{ waiting: 2 }]);
  });

  test.each([null, 408, 425, 429, 500, 503, 599])(
    '%s: tried five times, each time later, then dropped',
    async (status) => {
      await switchOn(owner.session);
      await request();
      for (const [index, most] of [30, 60, 120, 240].entries()) {
        await record((await claim())[0]!, status);
        const [row] = await rowsOf();
        expect(row).toMatchObject({ requests_told: 0, failures: index + 1 });
        expect(row!.waits).toBeLessThanOrEqual(most);
        expect(row!.waits).toBeGreaterThanOrEqual(most * 0.8 - 1);
        expect((await queue()).at(-1)).toMatchObject({ kind: 'push:retry' });
        expect(Math.abs((await queue()).at(-1)!.waits - Number(row!.waits))).toBeLessThanOrEqual(2);
        expect(await claim(), 'while it waits').toEqual([]);
        await clock.advance(`${most} seconds`);
      }
      await record((await claim())[0]!, status);
      expect(await rowsOf()).toMatchObject([{ requests_told: 1, failures: 0 }]);
      await clock.advance('1 day');
      expect(await claim()).toEqual([]);
    },
  );

  test('a push service that says when is asked then, within an hour', async () => {
    await switchOn(owner.session);
    await request();
    await record((await claim())[0]!, 429, 600);
    expect((await rowsOf())[0]!.waits).toBeGreaterThanOrEqual(598);
    await clock.advance('10 minutes');
    await record((await claim())[0]!, 429, 1_000_000);
    expect((await rowsOf())[0]!.waits).toBeLessThanOrEqual(60);
  });

  test('of another owner changes nothing', async () => {
    await switchOn(owner.session);
    await request();
    const [due] = await claim();
    const { id: ownerId } = await world.makeOwner();
    const { subscriptionId, requests } = due!;
    const before = await rowsOf();
    await functions.recordPush(jobs, { ownerId, subscriptionId, requests, httpStatus: 410, retryAfterSeconds: null });
    expect(await rowsOf()).toEqual(before);
  });
});

describe('a browser is told no more', () => {
  const ends: Record<string, (session: Buffer) => Promise<unknown>> = {
    'after it switched it off': (credential) => functions.removePushSubscription(app, { credential }),
    'after it signed out': (credential) => functions.signOut(app, { credential, everywhere: false }),
    'after another signed out everywhere': () =>
      functions.signOut(app, { credential: owner.session, everywhere: true }),
    'after somebody else signed in there': (session) => signIn(owner, session),
    async 'after its session was revoked'(credential) {
      const [{ connectionId }] = (await functions.sessionOwner(app, { credential })) as [functions.SessionOwnerRow];
      await owner.act((db, asOwner) =>
        functions.revokeConnection(db, { credential: asOwner, connectionId: connectionId! }),
      );
    },
    'after its session expired': () =>
      database.admin.query(
        `update posthorn.connections set expires_at = posthorn_impl.clock() where connection_id in (select connection_id from posthorn.push_subscriptions)`,
      ),
    'after the account was deleted': (credential) => functions.deleteAccount(app, { credential }),
  };

  test.each(Object.keys(ends))('%s', async (end) => {
    const session = await signIn(owner);
    await switchOn(session);
    await request();
    await ends[end]!(session);
    expect(await claim()).toEqual([]);
    expect(await rowsOf()).toEqual([]);
  });

  test.each(['after its session was revoked', 'after its session expired'])(
    '%s in the middle of a push',
    async (end) => {
      const session = await signIn(owner);
      await switchOn(session);
      await request();
      const [due] = await claim();
      await ends[end]!(session);
      await record(due!, 503);
      await clock.advance('1 hour');
      expect(await claim()).toEqual([]);
      expect(await rowsOf()).toEqual([]);
    },
  );

  test('while the owner is suspended', async () => {
    await switchOn(owner.session);
    await request();
    const person = database.as('posthorn_admin');
    await functions.suspendOwner(person, { ownerId: owner.id });
    expect(await claim()).toEqual([]);
    await functions.resumeOwner(person, { ownerId: owner.id });
    expect(await claim()).toHaveLength(1);
  });

  test('of nobody: an owner who never was', async () => {
    expect(await functions.claimPushes(jobs, { ownerId: (await world.makeOwner()).id })).toEqual([]);
    expect(await functions.claimPushes(jobs, { ownerId: '00000000-0000-0000-0000-000000000000' })).toEqual([]);
  });
});

describe('switching on', () => {
  test('again in the same browser takes the place of what was there', async () => {
    const first = await switchOn(owner.session);
    const second = await switchOn(owner.session);
    expect((await rowsOf()).map((row) => row.subscription_id)).toEqual([second]);
    expect(await actsOf(first)).toEqual([{ act: 'push.add', by_nobody: false }]);
  });

  test('at an address that another session had takes it over, and leaves other owners alone', async () => {
    const endpoint = randomBytes(32);
    const other = await world.makeOwner();
    await switchOn(other.session, endpoint);
    await switchOn(owner.session, endpoint);
    const session = await signIn(owner);
    const id = await switchOn(session, endpoint);
    expect((await rowsOf()).map((row) => row.subscription_id)).toEqual([id]);
    expect(await rowsOf(other)).toHaveLength(1);
    expect(await functions.listPushSubscriptions(app, { credential: session })).toEqual([
      { endpointHash: endpoint, isMine: true },
    ]);
    expect(await functions.listPushSubscriptions(app, { credential: owner.session })).toEqual([
      { endpointHash: endpoint, isMine: false },
    ]);
  });

  test('goes up to the limit, which sessions that ended do not count to', async () => {
    await world.setLimit('push_subscriptions_per_owner', 2);
    const [one, two, three] = [await signIn(owner), await signIn(owner), await signIn(owner)];
    await switchOn(one);
    await switchOn(two);
    expect(await refusal(switchOn(three))).toEqual({
      code: 'limit_reached',
      detail: { limit: 'push_subscriptions_per_owner' },
    });
    await switchOn(two);
    await functions.signOut(app, { credential: one, everywhere: false });
    await switchOn(three);
    expect(await rowsOf()).toHaveLength(2);
    await world.setLimit('push_subscriptions_per_owner', 20);
  });

  test('tells of no request that waited before', async () => {
    await request();
    await switchOn(owner.session);
    expect(await claim()).toEqual([]);
  });

  test('is refused to whoever is no session, and to one that signs out at the same moment', async () => {
    expect(await refusal(switchOn(anna.credential))).toMatchObject({ code: 'person_required' });
    expect(await refusal(switchOn(randomBytes(32)))).toMatchObject({ code: 'unauthorized' });
    for (let round = 0; round < 5; round++) {
      const session = await signIn(owner);
      await Promise.allSettled([switchOn(session), functions.signOut(app, { credential: session, everywhere: false })]);
      expect(await rowsOf()).toEqual([]);
    }
  });
});

test('the export says that there are browsers, and nothing by which one is reached', async () => {
  const endpointHash = randomBytes(32);
  const sealedSubscription = randomBytes(300);
  const { session: credential } = owner;
  const id = await functions.addPushSubscription(app, { credential, endpointHash, sealedSubscription });
  const lines = await functions.exportAccount(app, { credential });
  expect(lines.find(({ kind }) => kind === 'push_subscriptions')!.content).toMatchObject({ subscription_id: id });
  for (const secret of [endpointHash, sealedSubscription])
    expect(JSON.stringify(lines)).not.toContain(secret.toString('hex').slice(0, 40));
});
