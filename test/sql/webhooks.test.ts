import { afterAll, beforeEach, describe, expect, test } from 'vitest';
import { makeCredential } from '../../src/crypto/credentials.ts';
import { makeId } from '../../src/crypto/ids.ts';
import * as functions from '../../src/db/functions.ts';
import {
  type Agent,
  advance,
  createWorld,
  expectInvariants,
  type Owner,
  readInbox,
  refusal,
  send,
  sendBatch,
} from '../helpers/world.ts';

const world = await createWorld();
const { app, clock, database } = world;
const jobs = database.as('posthorn_jobs');
const ops = database.as('posthorn_ops');

for (const name of ['conversation_posts', 'group_posts_per_minute']) await world.setLimit(name, 1_000_000);

let owner: Owner;
let anna: Agent;
let bert: Agent;

beforeEach(async () => {
  await clock.stop();
  owner = await world.makeOwner();
  [anna, bert] = (await owner.agents(2)) as [Agent, Agent];
  await owner.group([anna, bert]);
});
afterAll(async () => {
  await clock.go();
  await expectInvariants(world);
});

type Registration = Omit<Parameters<typeof functions.setWebhook>[1], 'credential' | 'agentId'>;

/** What a pod seals; nobody opens it here. */
const sealed = (text: string) => Buffer.from(text.padEnd(40, '.'));

async function register(agent: Agent, given: Partial<Registration> = {}): Promise<boolean> {
  return await functions.setWebhook(app, {
    credential: agent.credential,
    agentId: agent.id,
    urlHost: 'hooks.example',
    sealedUrl: sealed('url'),
    sealedSecret: sealed('secret'),
    events: ['messaging.pending', 'proposal.decided'],
    ...given,
  });
}

const registrationOf = (agent: Agent) => functions.getWebhook(app, { credential: agent.credential, agentId: agent.id });
const deliveriesOf = (agent: Agent) =>
  functions.listDeliveries(app, { credential: agent.credential, agentId: agent.id });
const statesOf = async (agent: Agent) => (await deliveriesOf(agent)).map(({ state }) => state).sort();

async function claim(webhookId: string, leaseId = makeId()) {
  const [due] = await functions.claimDeliveries(jobs, { webhookIds: [webhookId], leaseIds: [leaseId] });
  return due && { ...due, leaseId };
}

type Due = NonNullable<Awaited<ReturnType<typeof claim>>>;

interface Went {
  status?: number;
  problem?: string;
  retryAfter?: number;
  goesOn?: boolean;
}

async function record(due: Due, { status, problem, retryAfter, goesOn = false }: Went) {
  const rows = await functions.recordAttempts(jobs, {
    webhookIds: [due.webhookId],
    leaseIds: [due.leaseId],
    deliveryIds: [due.deliveryId],
    httpStatuses: [status ?? null],
    problems: [problem ?? null],
    milliseconds: [5],
    retryAfterSeconds: [retryAfter ?? null],
    goOn: [goesOn],
  });
  return rows[0] && { ...rows[0], leaseId: due.leaseId };
}

/** Claims and records until nothing is due; answers how many attempts were made. */
async function attemptAll(webhookId: string, went: Went): Promise<number> {
  let due = await claim(webhookId);
  let attempts = 0;
  for (; due; attempts++) due = await record(due, { ...went, goesOn: true });
  return attempts;
}

async function wakes(from: Agent, to: Agent, count = 1): Promise<string[]> {
  const rows = await sendBatch(
    world,
    Array.from({ length: count }, () => ({ from, to })),
  );
  return rows.flatMap((row) => row.messageIds!);
}

async function jobsOf(webhookId: string): Promise<{ key: string; waits: number }[]> {
  const { rows } = await database.admin.query(
    `select j.key, round(extract(epoch from j.run_at - now()))::int as waits
       from graphile_worker._private_jobs j where j.payload ->> 'webhook_id' = $1 order by j.key`,
    [webhookId],
  );
  return rows;
}

const forgetJobs = () => database.admin.query('delete from graphile_worker._private_jobs');

describe('firing', () => {
  test('a send to an agent without a webhook puts no job into the queue, and one to an agent with one puts one', async () => {
    await forgetJobs();
    await wakes(anna, bert, 3);
    const all = async () => (await database.admin.query('select key from graphile_worker._private_jobs')).rows;
    expect(await all()).toEqual([]);
    await register(bert);
    const { id } = await registrationOf(bert);
    await wakes(anna, bert, 3);
    await wakes(anna, bert);
    expect(await all()).toEqual([{ key: `webhook:${id}` }]);
  });

  test('only what the filter names puts one', async () => {
    await register(anna);
    const { id } = await registrationOf(anna);
    const [message] = await wakes(anna, bert);
    await forgetJobs();
    await advance(world, bert, 'acknowledged', [message!]); // tells anna message.state
    expect(await jobsOf(id)).toEqual([]);
    await register(anna, { events: ['message.state'] });
    await forgetJobs();
    const [second] = await wakes(anna, bert);
    await advance(world, bert, 'acknowledged', [second!]);
    expect((await jobsOf(id)).map(({ key }) => key)).toEqual([`webhook:${id}`]);
    const due = await claim(id);
    expect(due).toMatchObject({ kind: 'message.state', state: 'acknowledged', messageIds: [second] });
  });

  test('mail that was held fires at its approval', async () => {
    const carl = await owner.agent('carl');
    await register(carl);
    await register(anna);
    const [toCarl, toAnna] = [await registrationOf(carl), await registrationOf(anna)];
    const held = await send(world, { from: anna, to: carl, purpose: 'To test' });
    expect(await claim(toCarl.id)).toBeUndefined();
    const { proposal_id: proposalId } = held.detail as { proposal_id: string };
    await forgetJobs();
    await owner.act((db, credential) => functions.approveProposal(db, { credential, proposalId }));
    expect(await jobsOf(toCarl.id)).toHaveLength(1);
    expect(await jobsOf(toAnna.id)).toHaveLength(1);
    expect(await claim(toCarl.id)).toMatchObject({
      kind: 'messaging.pending',
      messageIds: held.messageIds,
      pendingCount: 1,
    });
    expect(await claim(toAnna.id)).toMatchObject({
      kind: 'proposal.decided',
      subjectId: proposalId,
      state: 'queued',
      messageIds: held.messageIds,
    });
  });

  test('a message is one delivery, in the order of the log, however often a worker looks', async () => {
    await register(bert);
    const { id } = await registrationOf(bert);
    const messages = await wakes(anna, bert, 5);
    const first = (await claim(id))!;
    expect(first.messageIds).toEqual([messages[0]]);
    expect(await claim(id), 'leased').toBeUndefined();
    let due: Due | undefined = first;
    const seen: (string | undefined)[] = [];
    while (due) {
      seen.push(due.messageIds![0]);
      expect(due.pendingCount).toBe(5);
      due = await record(due, { status: 200, goesOn: true });
    }
    expect(seen).toEqual(messages);
    expect(await statesOf(bert)).toEqual(Array(5).fill('delivered'));
    expect(await registrationOf(bert)).toMatchObject({ consecutiveFailures: 0, lastDeliveredAt: await clock.now() });
    const inbox = await readInbox(world, bert);
    expect(
      inbox.map(({ state }) => state),
      'a 2xx marks nothing delivered',
    ).toEqual(Array(5).fill('queued'));
  });

  test('a wake whose message was read ends as skipped, one that was delivered does not', async () => {
    await register(bert);
    const { id } = await registrationOf(bert);
    const [read, taken, expired] = await wakes(anna, bert, 3);
    await advance(world, bert, 'acknowledged', [read!]);
    await advance(world, bert, 'delivered', [taken!]);
    const due = (await claim(id))!;
    expect(due.messageIds).toEqual([taken]);
    await clock.advance('25 hours');
    await record(due, { status: 500 });
    expect(await statesOf(bert)).toEqual(['pending', 'pending', 'skipped']);
    await clock.advance('1 minute');
    expect(await claim(id)).toBeUndefined();
    expect(await statesOf(bert), String(expired)).toEqual(['skipped', 'skipped', 'skipped']);
  });
});

describe('the ladder', () => {
  test('twelve attempts wait 30 seconds, doubling to an hour, each up to a fifth less; then the endpoint is disabled', async () => {
    await register(bert);
    const { id } = await registrationOf(bert);
    await wakes(anna, bert, 3);
    const waits: number[] = [];
    for (let attempt = 1; attempt <= 12; attempt++) {
      const due = (await claim(id))!;
      expect(due, `attempt ${attempt}`).toBeDefined();
      await record(due, { problem: 'timeout', goesOn: true });
      const { consecutiveFailures, nextAttemptAt, status } = await registrationOf(bert);
      expect(consecutiveFailures).toBe(attempt);
      expect(status).toBe(attempt < 12 ? 'active' : 'disabled');
      waits.push((nextAttemptAt!.getTime() - (await clock.now()).getTime()) / 1_000);
      expect(await claim(id), 'while it waits').toBeUndefined();
      await clock.advance('1 hour');
    }
    const ladder = [30, 60, 120, 240, 480, 960, 1_920, 3_600, 3_600, 3_600, 3_600, 3_600];
    for (const [index, most] of ladder.entries()) {
      expect(waits[index]).toBeGreaterThanOrEqual(most * 0.8 - 0.001);
      expect(waits[index]).toBeLessThanOrEqual(most);
    }
    expect(await registrationOf(bert)).toMatchObject({ status: 'disabled', disabledReason: 'delivery_failures' });
    const all = await deliveriesOf(bert);
    expect(all.every(({ state }) => state === 'ended' || state === 'failed')).toBe(true);
    const attempts = all.flatMap((delivery) => delivery.attempts as object[]);
    expect(attempts).toHaveLength(12);
    // the next send finds the endpoint disabled and forgets it
    await forgetJobs();
    await wakes(anna, bert);
    expect(await jobsOf(id)).toEqual([]);
    const { rows } = await database.admin.query('select webhook_events from posthorn.mailboxes where agent_id = $1', [
      bert.id,
    ]);
    expect(rows).toEqual([{ webhook_events: null }]);
  });

  test('a job comes for the time when something is due', async () => {
    await register(bert);
    const { id } = await registrationOf(bert);
    await wakes(anna, bert);
    await forgetJobs();
    await record((await claim(id))!, { status: 503, goesOn: true });
    const [job, ...others] = await jobsOf(id);
    expect(others).toEqual([]);
    expect(job!.key).toBe(`webhook:${id}:retry`);
    expect(job!.waits).toBeGreaterThanOrEqual(23);
    expect(job!.waits).toBeLessThanOrEqual(30);
    // news has a job of its own, which does not bring the retry forward
    await wakes(anna, bert);
    expect((await jobsOf(id)).map(({ key }) => key)).toEqual([`webhook:${id}`, `webhook:${id}:retry`]);
    expect(await claim(id)).toBeUndefined();
  });

  test('a receiver that restarts with 50 wakes pending is probed, not disabled', async () => {
    await register(bert);
    const { id } = await registrationOf(bert);
    await wakes(anna, bert, 50);
    expect(await attemptAll(id, { problem: 'connection' })).toBe(1);
    await clock.advance('30 seconds');
    expect(await attemptAll(id, { problem: 'connection' })).toBe(1);
    await clock.advance('1 minute');
    expect(await registrationOf(bert)).toMatchObject({ status: 'active', consecutiveFailures: 2 });
    expect(await attemptAll(id, { status: 204 })).toBe(50);
    expect(await registrationOf(bert)).toMatchObject({ status: 'active', consecutiveFailures: 0 });
    expect(await statesOf(bert)).toEqual(Array(50).fill('delivered'));
  });

  test.each([
    [{ status: 200 }, 'delivered', 0],
    [{ status: 299 }, 'delivered', 0],
    [{ status: 300 }, 'failed', 1],
    [{ status: 302 }, 'failed', 1],
    [{ status: 400 }, 'failed', 1],
    [{ status: 404 }, 'failed', 1],
    [{ status: 410 }, 'failed', 1],
    [{ status: 408 }, 'pending', 1],
    [{ status: 425 }, 'pending', 1],
    [{ status: 429 }, 'pending', 1],
    [{ status: 500 }, 'pending', 1],
    [{ status: 599 }, 'pending', 1],
    [{ status: 600 }, 'failed', 1],
    [{ problem: 'timeout' }, 'pending', 1],
    [{ problem: 'dns' }, 'pending', 1],
    [{ problem: 'tls' }, 'pending', 1],
    [{ problem: 'connection' }, 'pending', 1],
    [{ problem: 'address_blocked' }, 'pending', 1],
  ])('%j makes a delivery %s', async (went, state, failures) => {
    await register(bert);
    const { id } = await registrationOf(bert);
    await wakes(anna, bert, 2);
    await record((await claim(id))!, went);
    const tried = (await deliveriesOf(bert)).find(({ attempts }) => (attempts as object[]).length === 1)!;
    expect(tried.state).toBe(state);
    expect((await registrationOf(bert)).consecutiveFailures).toBe(failures);
    // after a failure, a final one too, the others wait
    if (failures > 0) expect(await claim(id)).toBeUndefined();
    else expect(await claim(id)).toBeDefined();
  });

  test.each([
    [60, 60],
    [3_600, 3_600],
    // less than the ladder says: a receiver that restarts would use up its attempts in seconds
    [0, 30],
    [1, 30],
    [3_601, 30],
  ])('Retry-After: %d waits %d seconds', async (retryAfter, seconds) => {
    await register(bert);
    const { id } = await registrationOf(bert);
    await wakes(anna, bert);
    await record((await claim(id))!, { status: 429, retryAfter });
    await clock.advance(`${seconds - 1 - (seconds === 30 ? 6 : 0)} seconds`);
    if (seconds > 1) expect(await claim(id)).toBeUndefined();
    await clock.advance(seconds === 30 ? '7 seconds' : '1 second');
    expect(await claim(id)).toBeDefined();
  });

  test('a receiver that asks for a second each time has the whole ladder', async () => {
    await register(bert);
    const { id } = await registrationOf(bert);
    await wakes(anna, bert);
    const since = (await clock.now()).getTime();
    for (let attempt = 1; attempt <= 12; attempt++) {
      await record((await claim(id))!, { status: 503, retryAfter: 1 });
      const [delivery] = await deliveriesOf(bert);
      if (attempt < 12) await clock.stop(new Date(delivery!.nextAttemptAt!.getTime() + 1));
    }
    expect(await registrationOf(bert)).toMatchObject({ status: 'disabled' });
    expect((await clock.now()).getTime() - since).toBeGreaterThan(4 * 3_600_000);
  });

  test('a success between them keeps eleven failures and eleven more from disabling', async () => {
    await register(bert);
    const { id } = await registrationOf(bert);
    for (let round = 0; round < 2; round++) {
      for (let failure = 0; failure < 11; failure++) {
        await wakes(anna, bert);
        await record((await claim(id))!, { status: 404 });
        await clock.advance('1 hour');
      }
      await wakes(anna, bert);
      await record((await claim(id))!, { status: 200 });
    }
    expect(await registrationOf(bert)).toMatchObject({ status: 'active', consecutiveFailures: 0 });
  });
});

describe('a backlog', () => {
  /** Wakes of messages that are gone, due for a minute. */
  const strand = (webhookId: string, count: number) =>
    database.admin.query(
      `insert into posthorn.deliveries (owner_id, webhook_id, event_seq, kind, subject_id, occurred_at, attempts_allowed, next_attempt_at, created_at)
       select w.owner_id, w.webhook_id, n, 'messaging.pending', gen_random_uuid(), m.moment, 12, m.moment - interval '1 minute', m.moment
         from posthorn.webhooks w, generate_series(1, $2::int) n, (select posthorn_impl.clock() as moment) m
        where w.webhook_id = $1`,
      [webhookId, count],
    );
  const skippedOf = async (webhookId: string) => {
    const { rows } = await database.admin.query(
      `select count(*)::int as skipped from posthorn.deliveries where webhook_id = $1 and state = 'skipped'`,
      [webhookId],
    );
    return rows[0].skipped;
  };

  test('of wakes to skip takes several looks, each bounded, and the rest of it goes on', async () => {
    await register(bert);
    const { id } = await registrationOf(bert);
    const [message] = await wakes(anna, bert);
    await strand(id, 2_500);
    await forgetJobs();
    for (const skipped of [1_001, 2_002]) {
      expect(await claim(id)).toBeUndefined();
      expect(await skippedOf(id)).toBe(skipped);
      expect(await jobsOf(id)).toMatchObject([{ key: `webhook:${id}:retry` }]);
      expect((await jobsOf(id))[0]!.waits).toBeLessThanOrEqual(0);
    }
    expect(await claim(id)).toMatchObject({ kind: 'messaging.pending', messageIds: [message] });
    expect(await skippedOf(id)).toBe(2_500);
  });

  test('of wakes to skip keeps no other endpoint of the batch waiting', async () => {
    await register(anna);
    await register(bert);
    const webhookIds = [(await registrationOf(anna)).id, (await registrationOf(bert)).id];
    await strand(webhookIds[0]!, 2_500);
    await wakes(anna, bert);
    const due = await functions.claimDeliveries(jobs, { webhookIds, leaseIds: webhookIds.map(() => makeId()) });
    expect(due.map(({ agentId }) => agentId)).toEqual([bert.id]);
    expect(await skippedOf(webhookIds[0]!)).toBe(1_001);
  });

  test('of events is read in parts; what nobody wants of it, at once', async () => {
    await register(bert, { events: ['proposal.decided'] });
    const { id } = await registrationOf(bert);
    await database.admin.query(
      `with m as (
         update posthorn.mailboxes set event_seq = event_seq + 3000 where agent_id = $1 returning owner_id, agent_id, event_seq - 3000 as base)
       insert into posthorn.events (owner_id, agent_id, seq, kind, subject_id, occurred_at)
       select owner_id, agent_id, base + n, case when n > 1500 then 'proposal.decided' else 'messaging.pending' end, gen_random_uuid(), now()
         from m, generate_series(1, 3000) n`,
      [bert.id],
    );
    const unread = async () =>
      (await ops.query('select pending, unread_events from ops.webhooks where webhook_id = $1', [id])).rows[0];
    const due = (await claim(id))!;
    expect(await unread()).toEqual({ pending: 1_000, unread_events: 500 });
    await record(due, { status: 500 });
    await forgetJobs();
    await claim(id);
    expect(await unread()).toEqual({ pending: 1_500, unread_events: 0 });
  });

  test('that is not read to its end has a job, though nothing is due yet', async () => {
    await register(bert);
    const { id } = await registrationOf(bert);
    await wakes(anna, bert);
    await record((await claim(id))!, { status: 500 });
    await database.admin.query(
      `with m as (
         update posthorn.mailboxes set event_seq = event_seq + 1001 where agent_id = $1 returning owner_id, agent_id, event_seq - 1001 as base)
       insert into posthorn.events (owner_id, agent_id, seq, kind, subject_id, occurred_at)
       select owner_id, agent_id, base + n, 'proposal.decided', gen_random_uuid(), now() from m, generate_series(1, 1001) n`,
      [bert.id],
    );
    await forgetJobs();
    expect(await claim(id)).toBeUndefined();
    expect(await jobsOf(id)).toEqual([{ key: `webhook:${id}:retry`, waits: 0 }]);
    expect(await claim(id)).toBeUndefined();
    expect((await jobsOf(id))[0]!.waits).toBeGreaterThan(20);
  });
});

test('jobs of several endpoints are locked in one order, whoever asks in which', async () => {
  await register(anna);
  await register(bert);
  const ids = [(await registrationOf(anna)).id, (await registrationOf(bert)).id];
  await wakes(anna, bert);
  const drain = 'select posthorn_impl.add_drains($1)';
  await database.admin.query(drain, [ids]);
  const blocked = (count: number) =>
    expect
      .poll(
        async () =>
          (
            await database.admin.query(
              `select count(*)::int as blocked from pg_stat_activity
                where datname = current_database() and cardinality(pg_blocking_pids(pid)) > 0`,
            )
          ).rows[0].blocked,
      )
      .toBe(count);
  const [last] = ids.toSorted().reverse();
  for (const order of [ids.toSorted(), ids.toSorted().reverse()]) {
    const holder = await database.admin.connect();
    try {
      await holder.query('begin');
      await holder.query('select from graphile_worker._private_jobs where key = $1 for update', [`webhook:${last}`]);
      // whoever takes another one first waits for this one, and the next one for that: unless all begin with the same
      const first = database.admin.query(drain, [order.toReversed()]);
      await blocked(1);
      const second = database.admin.query(drain, [order]);
      await blocked(2);
      await holder.query('rollback');
      await Promise.all([first, second]);
    } finally {
      holder.release();
    }
  }
});

describe('leases', () => {
  test('whoever lost the endpoint records nothing, and its delivery is sent again under the same id', async () => {
    await register(bert);
    const { id } = await registrationOf(bert);
    await wakes(anna, bert);
    const first = (await claim(id))!;
    await forgetJobs();
    expect(await claim(id)).toBeUndefined();
    // should the holder have died, somebody looks when its time is over
    expect(await jobsOf(id)).toEqual([{ key: `webhook:${id}:retry`, waits: 30 }]);
    await clock.advance('31 seconds');
    const second = (await claim(id))!;
    expect(second.deliveryId).toBe(first.deliveryId);
    expect(await record(first, { status: 500, goesOn: true })).toBeUndefined();
    expect(await registrationOf(bert)).toMatchObject({ consecutiveFailures: 0 });
    await record(second, { status: 200 });
    expect(await statesOf(bert)).toEqual(['delivered']);
  });

  test('of two that claim at once one gets it', async () => {
    await register(bert);
    const { id } = await registrationOf(bert);
    await wakes(anna, bert, 3);
    const claims = await Promise.all(Array.from({ length: 5 }, () => claim(id)));
    expect(claims.filter(Boolean)).toHaveLength(1);
  });

  test('endpoints of several owners in one batch keep apart', async () => {
    const stranger = await world.makeOwner();
    const [carl, dora] = (await stranger.agents(2)) as [Agent, Agent];
    await stranger.group([carl, dora]);
    await register(bert);
    await register(dora);
    const ids = [(await registrationOf(bert)).id, (await registrationOf(dora)).id];
    const [toBert] = await wakes(anna, bert);
    const [toDora] = await wakes(carl, dora);
    const lease = makeId();
    const due = await functions.claimDeliveries(jobs, {
      webhookIds: [ids[1]!, makeId(), ids[0]!],
      leaseIds: [lease, lease, lease],
    });
    expect(due.map(({ item, messageIds, agentId }) => [item, messageIds![0], agentId]).sort()).toEqual([
      [1, toDora, dora.id],
      [3, toBert, bert.id],
    ]);
  });
});

describe('registering', () => {
  test('the first answers that its secret signs; again keeps it, unless rotated', async () => {
    expect(await register(bert, { sealedSecret: sealed('first') })).toBe(true);
    expect(await register(bert, { sealedSecret: sealed('second') })).toBe(false);
    await wakes(anna, bert);
    const { id } = await registrationOf(bert);
    expect(await claim(id)).toMatchObject({ sealedSecret: sealed('first'), previousSealedSecret: null });
    expect(await register(bert, { sealedSecret: sealed('third'), rotateSecret: true })).toBe(true);
    expect(await claim(id)).toMatchObject({ sealedSecret: sealed('third'), previousSealedSecret: sealed('first') });
    await clock.advance('3601 seconds');
    expect(await claim(id)).toMatchObject({ sealedSecret: sealed('third'), previousSealedSecret: null });
    await register(bert, { sealedSecret: sealed('fourth'), rotateSecret: true, graceSeconds: 0 });
    expect(await claim(id)).toMatchObject({ sealedSecret: sealed('fourth'), previousSealedSecret: null });
    await register(bert, { sealedSecret: sealed('fifth'), rotateSecret: true, graceSeconds: 86_400 });
    await clock.advance('86399 seconds');
    await wakes(anna, bert);
    expect(await claim(id)).toMatchObject({ sealedSecret: sealed('fifth'), previousSealedSecret: sealed('fourth') });
    for (const graceSeconds of [86_401, -1, null as never])
      expect(await refusal(register(bert, { rotateSecret: true, graceSeconds })), String(graceSeconds)).toEqual({
        code: 'invalid_request',
        detail: { fields: ['grace_seconds'] },
      });
  });

  test('of two first ones at once, one secret is told', async () => {
    const told = await Promise.all([register(bert), register(bert), register(bert)]);
    expect(told.filter(Boolean)).toHaveLength(1);
  });

  test('again, it clears failures and sends one fresh wake for the mail that waits; what was pending stays ended', async () => {
    await register(bert);
    const { id } = await registrationOf(bert);
    const messages = await wakes(anna, bert, 3);
    for (let attempt = 0; attempt < 12; attempt++) {
      await attemptAll(id, { status: 500 });
      await clock.advance('1 hour');
    }
    expect(await registrationOf(bert)).toMatchObject({ status: 'disabled' });
    await register(bert);
    expect(await registrationOf(bert)).toMatchObject({
      id,
      status: 'active',
      disabledReason: null,
      consecutiveFailures: 0,
      nextAttemptAt: null,
    });
    const due = (await claim(id))!;
    expect(due).toMatchObject({ kind: 'messaging.pending', messageIds: [messages[2]], pendingCount: 3 });
    expect(await record(due, { status: 200, goesOn: true })).toBeUndefined();
    expect(await statesOf(bert)).toEqual(['delivered', 'ended', 'ended', 'ended']);
  });

  test('without mail it sends none, and the first time neither', async () => {
    await wakes(anna, bert);
    await register(bert);
    const { id } = await registrationOf(bert);
    expect(await claim(id)).toBeUndefined();
    await register(anna);
    await register(anna);
    expect(await claim((await registrationOf(anna)).id)).toBeUndefined();
  });

  test('again, it keeps a decision that was still to be told', async () => {
    const carl = await owner.agent('carl');
    await register(anna);
    const { id } = await registrationOf(anna);
    const held = await send(world, { from: anna, to: carl, purpose: 'To test' });
    const { proposal_id: proposalId } = held.detail as { proposal_id: string };
    await owner.act((db, credential) => functions.denyProposal(db, { credential, proposalId }));
    await register(anna);
    expect(await claim(id)).toMatchObject({ kind: 'proposal.decided', subjectId: proposalId, state: 'denied' });
  });

  test('again, with another filter, it sends nothing that this does not name', async () => {
    const carl = await owner.agent('carl');
    await register(anna);
    const { id } = await registrationOf(anna);
    const held = await send(world, { from: anna, to: carl, purpose: 'To test' });
    const { proposal_id: proposalId } = held.detail as { proposal_id: string };
    await owner.act((db, credential) => functions.denyProposal(db, { credential, proposalId }));
    await record((await claim(id))!, { status: 500 });
    await register(anna, { events: ['message.state'], urlHost: 'other.example' });
    expect(await claim(id)).toBeUndefined();
    expect(await statesOf(anna)).toEqual(['ended']);
  });

  test('the secret before is stored no longer than its grace', async () => {
    const stored = async () => {
      const { rows } = await database.admin.query(
        'select previous_sealed_secret is not null as secret, previous_until is not null as until from posthorn.webhooks where agent_id = $1',
        [bert.id],
      );
      return rows[0];
    };
    const rotate = async () => {
      await register(bert, { rotateSecret: true });
      expect(await stored()).toEqual({ secret: true, until: true });
    };
    await register(bert);
    await rotate();
    await register(bert);
    expect(await stored(), 'while it lasts').toEqual({ secret: true, until: true });
    await clock.advance('1 hour');
    await register(bert);
    expect(await stored(), 'by a change').toEqual({ secret: false, until: false });
    await rotate();
    await clock.advance('1 hour');
    await claim((await registrationOf(bert)).id);
    expect(await stored(), 'by a look').toEqual({ secret: false, until: false });
  });

  test('an attempt under way for what stood there before counts for nothing', async () => {
    await register(bert);
    const { id } = await registrationOf(bert);
    await wakes(anna, bert);
    const due = (await claim(id))!;
    await register(bert, { urlHost: 'other.example' });
    await record(due, { status: 500 });
    expect(await registrationOf(bert)).toMatchObject({ urlHost: 'other.example', consecutiveFailures: 0 });
  });

  test('the table refuses what the doors should have', async () => {
    expect(await refusal(register(bert, { events: ['messaging.deleted'] }))).toEqual({ code: '23514' });
    expect(await refusal(register(bert, { events: [] }))).toEqual({ code: '23514' });
    expect(await refusal(register(bert, { sealedUrl: Buffer.alloc(8_222) }))).toEqual({ code: '23514' });
    expect(await refusal(register(bert, { sealedAuthHeader: Buffer.alloc(542) }))).toEqual({ code: '23514' });
  });
});

describe('the owner', () => {
  const disable = (webhookId: string, credential = owner.session) =>
    functions.disableWebhook(app, { credential, webhookId });

  test('disables for good: registering again changes nothing of that, lifting does', async () => {
    await register(bert);
    const { id } = await registrationOf(bert);
    await wakes(anna, bert);
    await claim(id);
    expect(await disable(id)).toMatchObject({ status: 'disabled', disabledReason: 'owner' });
    expect(await statesOf(bert)).toEqual(['ended']);
    await register(bert, { urlHost: 'other.example' });
    expect(await registrationOf(bert)).toMatchObject({
      status: 'disabled',
      disabledReason: 'owner',
      urlHost: 'other.example',
    });
    await forgetJobs();
    await wakes(anna, bert);
    expect(await jobsOf(id)).toEqual([]);
    expect(await claim(id)).toBeUndefined();
    const refused = { code: 'invalid_request', detail: { fields: ['webhook'], disabled_reason: 'owner' } };
    const { credential, id: agentId } = bert;
    expect(await refusal(functions.testWebhook(app, { credential, agentId }))).toEqual(refused);
    await functions.liftWebhook(app, { credential: owner.session, webhookId: id });
    expect(await claim(id)).toMatchObject({ kind: 'messaging.pending', pendingCount: 2 });
  });

  test('sees hosts and health, and no agent may do what they do', async () => {
    await register(bert);
    const listed = await functions.listOwnerWebhooks(app, { credential: owner.session });
    expect(listed).toMatchObject([{ agentId: bert.id, urlHost: 'hooks.example', status: 'active' }]);
    const { id } = await registrationOf(bert);
    expect(await refusal(disable(id, bert.credential))).toMatchObject({ code: 'person_required' });
    const lift = functions.liftWebhook(app, { credential: bert.credential, webhookId: id });
    expect(await refusal(lift)).toMatchObject({ code: 'person_required' });
    const list = functions.listOwnerWebhooks(app, { credential: bert.credential });
    expect(await refusal(list)).toMatchObject({ code: 'person_required' });
  });

  test("does not find another owner's", async () => {
    const stranger = await world.makeOwner();
    await register(bert);
    const { id } = await registrationOf(bert);
    expect(await refusal(disable(id, stranger.session))).toMatchObject({ code: 'not_found' });
    expect(await functions.listOwnerWebhooks(app, { credential: stranger.session })).toEqual([]);
    const carl = await stranger.agent('carl');
    await register(carl);
    await wakes(anna, bert);
    const due = (await claim(id))!;
    const again = { credential: carl.credential, agentId: carl.id, deliveryId: due.deliveryId };
    expect(await refusal(functions.redeliver(app, again))).toMatchObject({ code: 'not_found' });
    const asOwner = { credential: stranger.session, deliveryId: due.deliveryId };
    expect(await refusal(functions.redeliverAsOwner(app, asOwner))).toMatchObject({ code: 'not_found' });
  });

  test('an operator sends one again', async () => {
    await register(bert);
    const { id } = await registrationOf(bert);
    await wakes(anna, bert);
    await record((await claim(id))!, { status: 404 });
    const [{ id: deliveryId }] = (await deliveriesOf(bert)) as [functions.DeliveryView];
    const admin = database.as('posthorn_admin');
    expect(await functions.requeueDelivery(admin, { ownerId: owner.id, deliveryId })).toBe('pending');
    await clock.advance('30 seconds');
    expect(await claim(id)).toMatchObject({ deliveryId });
  });
});

describe('what ends with it', () => {
  const left = async () => {
    const { rows } = await database.admin.query(
      `select (select count(*)::int from posthorn.webhooks w where w.agent_id = $1) as webhooks,
              (select count(*)::int from posthorn.deliveries d join posthorn.owners o using (owner_id) where o.id = $2) as deliveries,
              (select webhook_events from posthorn.mailboxes where agent_id = $1) as wanted`,
      [bert.id, owner.id],
    );
    return rows[0];
  };
  const NOTHING = { webhooks: 0, deliveries: 0, wanted: null };

  beforeEach(async () => {
    await register(bert);
    await wakes(anna, bert, 2);
    await record((await claim((await registrationOf(bert)).id))!, { status: 500 });
    expect(await left()).toMatchObject({ webhooks: 1, deliveries: 2 });
  });

  test('removing it', async () => {
    const { credential, id: agentId } = bert;
    expect(await functions.removeWebhook(app, { credential, agentId })).toBe(true);
    expect(await left()).toEqual(NOTHING);
    expect(await functions.removeWebhook(app, { credential, agentId })).toBe(false);
    expect(await refusal(registrationOf(bert))).toMatchObject({ code: 'not_found' });
  });

  test('revoking the agent', async () => {
    await functions.revokeAgent(app, { credential: owner.session, agentId: bert.id });
    expect(await left()).toEqual(NOTHING);
  });

  test('revoking its connection', async () => {
    await functions.revokeConnection(app, { credential: owner.session, connectionId: bert.connection.id });
    expect(await left()).toEqual(NOTHING);
  });

  test('deleting the account', async () => {
    await functions.deleteAccount(app, { credential: owner.session });
    expect(await left()).toEqual(NOTHING);
  });

  test('thirty days, for deliveries and their attempts, stranded ones too', async () => {
    await clock.advance('29 days');
    const sweep = () => functions.deleteOutdated(jobs, { table: 'deliveries', firstPage: 0, pages: 10_000 });
    await sweep();
    expect(await left()).toMatchObject({ deliveries: 2 });
    await clock.advance('1 day');
    await sweep();
    expect(await left()).toMatchObject({ webhooks: 1, deliveries: 0 });
    const { rows } = await database.admin.query(
      `select count(*)::int as attempts from posthorn.delivery_attempts a
        where not exists (select from posthorn.deliveries d where d.owner_id = a.owner_id and d.delivery_id = a.delivery_id)`,
    );
    expect(rows).toEqual([{ attempts: 0 }]);
  });
});

test('a webhook that a child registered ends with the child', async () => {
  const device = await owner.connect({ kind: 'device' });
  const carl = await device.agent('carl');
  const { hash } = makeCredential('child');
  const child = await functions.mintChildConnection(app, {
    credential: device.credential,
    agentId: carl.id,
    label: 'child',
    credentialHash: hash,
  });
  await register({ ...carl, credential: hash });
  await functions.revokeConnection(app, { credential: owner.session, connectionId: child.id });
  expect(await refusal(registrationOf(carl))).toMatchObject({ code: 'not_found' });
});

describe('tests and redeliveries', () => {
  test('a test goes at once, once, and does not count', async () => {
    await register(bert);
    const { id } = await registrationOf(bert);
    await wakes(anna, bert);
    await record((await claim(id))!, { status: 500 });
    const ask = () => functions.testWebhook(app, { credential: bert.credential, agentId: bert.id });
    const asked = await ask();
    expect(asked).toMatchObject({ kind: 'webhook.test', state: 'pending' });
    expect((await ask()).id, 'one at a time').toBe(asked.id);
    const due = (await claim(id))!;
    expect(due).toMatchObject({ deliveryId: asked.id, kind: 'webhook.test', messageIds: null, pendingCount: null });
    expect(await record(due, { problem: 'timeout', goesOn: true })).toBeUndefined();
    expect(await registrationOf(bert)).toMatchObject({ consecutiveFailures: 1 });
    expect(await statesOf(bert)).toEqual(['failed', 'pending']);
  });

  test('a delivery is sent again under its id, with attempts of its own, unless nobody needs the wake any more', async () => {
    await register(bert);
    const { id } = await registrationOf(bert);
    const [message] = await wakes(anna, bert);
    const first = (await claim(id))!;
    await record(first, { status: 200 });
    const again = () =>
      functions.redeliver(app, { credential: bert.credential, agentId: bert.id, deliveryId: first.deliveryId });
    expect(await again()).toMatchObject({ id: first.deliveryId, state: 'pending', endedAt: null });
    const second = (await claim(id))!;
    expect(second.deliveryId).toBe(first.deliveryId);
    await record(second, { status: 500 });
    const [delivery] = await deliveriesOf(bert);
    expect(delivery!.attempts).toMatchObject([{ http_status: 200 }, { http_status: 500 }]);
    await advance(world, bert, 'acknowledged', [message!]);
    await again();
    await clock.advance('30 seconds');
    expect(await claim(id)).toBeUndefined();
    expect(await statesOf(bert)).toEqual(['skipped']);
  });

  test('the log is paged, newest first', async () => {
    await register(bert);
    const { id } = await registrationOf(bert);
    await wakes(anna, bert, 5);
    await claim(id);
    const { credential, id: agentId } = bert;
    const ids = (await deliveriesOf(bert)).map((delivery) => delivery.id);
    expect(ids).toEqual(ids.toSorted().reverse());
    const page = await functions.listDeliveries(app, { credential, agentId, before: ids[1]!, limit: 2 });
    expect(page.map((delivery) => delivery.id)).toEqual(ids.slice(2, 4));
  });
});

describe('while nothing may be sent', () => {
  test('a suspended owner’s deliveries wait', async () => {
    await register(bert);
    const { id } = await registrationOf(bert);
    await wakes(anna, bert);
    const admin = database.as('posthorn_admin');
    await functions.suspendOwner(admin, { ownerId: owner.id });
    await forgetJobs();
    expect(await claim(id)).toBeUndefined();
    expect(await jobsOf(id)).toEqual([{ key: `webhook:${id}:retry`, waits: 60 }]);
    await functions.resumeOwner(admin, { ownerId: owner.id });
    expect(await claim(id)).toBeDefined();
  });

  test('paused deliveries wait', async () => {
    await register(bert);
    const { id } = await registrationOf(bert);
    await wakes(anna, bert);
    await world.setLimit('deliveries_paused', 1);
    expect(await claim(id)).toBeUndefined();
    await world.setLimit('deliveries_paused', 0);
    expect(await claim(id)).toBeDefined();
  });
});

describe('rights', () => {
  test('workers read no table of it', async () => {
    await register(bert);
    for (const column of ['webhook_id', 'sealed_url', 'sealed_secret', 'sealed_auth_header', 'url_host', 'agent_id'])
      expect(await refusal(jobs.query(`select ${column} from posthorn.webhooks`)), column).toEqual({ code: '42501' });
    for (const table of ['webhooks', 'deliveries', 'delivery_attempts']) {
      expect((await jobs.query(`select count(*)::int as seen from posthorn.${table}`)).rows).toEqual([{ seen: 0 }]);
      expect((await jobs.query(`delete from posthorn.${table}`)).rowCount).toBe(0);
    }
    expect(await refusal(jobs.query('update posthorn.webhooks set status = status'))).toEqual({ code: '42501' });
  });

  test('pods read no table and claim nothing', async () => {
    expect(await refusal(app.query('select * from posthorn.webhooks'))).toEqual({ code: '42501' });
    const claiming = functions.claimDeliveries(app, { webhookIds: [makeId()], leaseIds: [makeId()] });
    expect(await refusal(claiming)).toEqual({ code: '42501' });
  });

  test('the role that fills the queue puts deliveries there, and nothing else', async () => {
    const enqueuer = database.as('posthorn_enqueuer');
    expect(await refusal(enqueuer.query(`select graphile_worker.add_job('messages__expire')`))).toEqual({
      code: '42501',
    });
    expect(await refusal(enqueuer.query('select * from posthorn.webhooks'))).toEqual({ code: '42501' });
  });

  test('operators see health and backlog, and no host, address or secret', async () => {
    await register(bert);
    const { id } = await registrationOf(bert);
    await wakes(anna, bert, 2);
    await record((await claim(id))!, { problem: 'dns' });
    const { rows } = await ops.query('select * from ops.webhooks where webhook_id = $1', [id]);
    expect(rows).toMatchObject([{ status: 'active', consecutive_failures: 1, pending: 2, unread_events: 0 }]);
    expect(Object.keys(rows[0]).filter((name) => /url|host|secret|auth/.test(name))).toEqual([]);
    const { rows: outcomes } = await ops.query(`select * from ops.delivery_attempts where outcome = 'dns'`);
    expect(outcomes).toHaveLength(1);
  });

  test('the export tells of webhooks and holds no secret', async () => {
    await register(bert, { sealedAuthHeader: sealed('header') });
    const rows = await owner.act((db, credential) => functions.exportAccount(db, { credential }));
    const webhook = rows.find(({ kind }) => kind === 'webhooks')!.content as object;
    expect(webhook).toMatchObject({ url_host: 'hooks.example', events: ['messaging.pending', 'proposal.decided'] });
    expect(Object.keys(webhook).filter((name) => name.includes('sealed'))).toEqual([]);
  });
});

test('presence: a webhook that failed fewer than three times in a row is live', async () => {
  const seen = async () => {
    const [peer] = await functions.listAgents(app, { credential: anna.credential, agentId: anna.id });
    const [status] = await functions.agentStatus(app, { credential: anna.credential, agentId: anna.id });
    return [peer!.presenceKind, status!.livePeers];
  };
  expect(await seen()).toEqual([null, 0]);
  await register(bert);
  expect(await seen()).toEqual(['webhook', 1]);
  const { id } = await registrationOf(bert);
  await wakes(anna, bert);
  for (let failure = 1; failure <= 3; failure++) {
    await record((await claim(id))!, { status: 500 });
    expect(await seen()).toEqual(failure < 3 ? ['webhook', 1] : [null, 0]);
    await clock.advance('1 hour');
  }
});

test('an expired connection’s webhook is sent nothing, and is not live', async () => {
  const expiresAt = new Date((await clock.now()).getTime() + 60_000);
  const connection = await owner.connect({ expiresAt });
  const carl = await connection.agent('test', 'carl');
  await owner.group([anna, carl]);
  await register(carl);
  const { id } = await registrationOf(carl);
  await wakes(anna, carl, 2);
  const due = (await claim(id))!;
  const seen = async () => {
    const peers = await functions.listAgents(app, { credential: anna.credential, agentId: anna.id });
    const [status] = await functions.agentStatus(app, { credential: anna.credential, agentId: anna.id });
    return [peers.find((peer) => peer.id === carl.id)!.presenceKind, status!.livePeers];
  };
  expect(await seen()).toEqual(['webhook', 1]);
  await clock.advance('1 minute');
  expect(await seen()).toEqual([null, 0]);
  await forgetJobs();
  expect(await record(due, { status: 200, goesOn: true })).toBeUndefined();
  expect(await claim(id)).toBeUndefined();
  expect(await jobsOf(id)).toEqual([]);
});
