import { randomBytes } from 'node:crypto';
import pg from 'pg';
import { afterAll, beforeEach, describe, expect, test } from 'vitest';
import * as functions from '../../src/db/functions.ts';
import { withClient } from '../../src/db/pool.ts';
import { createWorld, expectInvariants, type Owner, refusal, send, sendBatch } from '../helpers/world.ts';

// What a grant and its tokens are worth, and what holds when they are made and ended at once.
const world = await createWorld();
const { app, clock, database } = world;
afterAll(() => expectInvariants(world));

const TOKEN = { payload: Buffer.from('x'), scopes: ['messaging'], seconds: 3_600 };

let owner: Owner;
beforeEach(async () => {
  owner = await world.makeOwner();
});

/** A grant with a code, as after a consent. */
async function makeGrant(of: Owner = owner, clientId = 'app') {
  const id = await functions.createOauthGrant(app, {
    credential: of.session,
    kind: 'oauth',
    label: 'App',
    clientId,
    clientHost: 'app.example',
    scopes: ['messaging'],
  });
  const code = randomBytes(32);
  await functions.addGrantToken(app, { proof: of.session, connectionId: id, kind: 'code', tokenHash: code, ...TOKEN });
  return { id, code };
}

async function makeToken({ id, code }: { id: string; code: Buffer }): Promise<Buffer> {
  const tokenHash = randomBytes(32);
  await functions.addGrantToken(app, { proof: code, connectionId: id, kind: 'access', tokenHash, ...TOKEN });
  return tokenHash;
}

/** A session that begins a transaction and holds what it locks until told. */
async function openTransaction(): Promise<{ client: pg.Client; end(): Promise<void> }> {
  const client = new pg.Client({ connectionString: database.url });
  await client.connect();
  await client.query('begin');
  await client.query('set local role posthorn_app');
  return {
    client,
    async end() {
      await client.query('commit');
      await client.end();
    },
  };
}

/** Resolves when a session of this database waits for a lock. */
async function somebodyWaits(): Promise<void> {
  const waiting = async () => {
    const { rows } = await database.admin.query(
      `select count(*)::int as n from pg_catalog.pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`,
    );
    return rows[0].n as number;
  };
  await expect.poll(waiting, { timeout: 10_000, interval: 10 }).toBe(1);
}

describe('proving', () => {
  test('of other credentials never looks at tokens', async () => {
    const service = await owner.connect();
    await withClient(database.admin, async (client) => {
      await client.query('begin');
      await client.query('revoke select on posthorn.grant_tokens from posthorn_prover');
      const { rows } = await client.query('select kind from posthorn_api.authenticate($1)', [service.credential]);
      expect(rows).toEqual([{ kind: 'service' }]);
      await client.query('savepoint before');
      await expect(client.query('select posthorn_api.authenticate($1)', [randomBytes(32)])).rejects.toMatchObject({
        code: '42501',
      });
      await client.query('rollback');
    });
  });

  test('a code or a refresh token is no access token', async () => {
    const grant = await makeGrant();
    expect(await refusal(functions.authenticate(app, { credential: grant.code }))).toMatchObject({
      code: 'unauthorized',
    });
    const refresh = randomBytes(32);
    await functions.addGrantToken(app, {
      proof: grant.code,
      connectionId: grant.id,
      kind: 'refresh',
      tokenHash: refresh,
      ...TOKEN,
    });
    expect(await refusal(functions.authenticate(app, { credential: refresh }))).toMatchObject({ code: 'unauthorized' });
    expect(await functions.authenticate(app, { credential: await makeToken(grant) })).toMatchObject([
      { kind: 'oauth', connectionId: grant.id, scopes: ['messaging'] },
    ]);
  });

  test('ends with the token by the clock of the database', async () => {
    const credential = await makeToken(await makeGrant());
    await clock.stop();
    await clock.advance('59 minutes 59 seconds');
    expect(await functions.authenticate(app, { credential })).toHaveLength(1);
    await clock.advance('1 second');
    expect(await refusal(functions.authenticate(app, { credential }))).toMatchObject({ code: 'unauthorized' });
    await clock.go();
  });
});

describe('a batch of several owners', () => {
  test('makes the agent of each grant in it, in whatever order, and sends', async () => {
    const owners = [await world.makeOwner(), await world.makeOwner(), await world.makeOwner()];
    const senders = await Promise.all(
      owners.map(async (each) => {
        const credential = await makeToken(await makeGrant(each));
        return { owner: each, credential, peer: await each.agent() };
      }),
    );
    const plans = () =>
      Promise.all(
        [senders, senders.toReversed()].map((batch) =>
          functions
            .agentStatus(app, { credential: batch[0]!.credential })
            .then(() => Promise.all(batch.map(({ credential }) => functions.listAgents(app, { credential })))),
        ),
      );
    await plans();
    const agents = await Promise.all(
      senders.map(async ({ credential, owner: of }) => {
        const [status] = await functions.agentStatus(app, { credential });
        return { id: status!.agentId!, owner: of, credential, connection: undefined as never };
      }),
    );
    for (const [index, agent] of agents.entries()) await agent.owner.group([agent, senders[index]!.peer]);
    const sent = await sendBatch(
      world,
      agents.map((from, index) => ({ from, to: senders[index]!.peer })),
    );
    expect(sent.map(({ outcome }) => outcome)).toEqual(['queued', 'queued', 'queued']);
  });

  test('is not held up by an owner who has as many agents as may be', async () => {
    const credential = await makeToken(await makeGrant());
    await world.setLimit('agents_per_owner', 2);
    const [one, other] = [await owner.agent(), await owner.agent()];
    expect(await refusal(functions.listAgents(app, { credential }))).toMatchObject({ code: 'agent_required' });
    expect(
      await refusal(functions.registerAgent(app, { credential, installation: 'x', label: 'x', runtime: 'x' })),
    ).toMatchObject({ code: 'limit_reached' });
    await owner.group([one, other]);
    expect(await send(world, { from: one, to: other })).toMatchObject({ outcome: 'queued' });
    await world.setLimit('agents_per_owner', 500);
    expect(await functions.listAgents(app, { credential })).toHaveLength(2);
  });
});

describe('a token that is asked for while the grant is ended', () => {
  test('is refused where the end comes first', async () => {
    const grant = await makeGrant();
    const { client, end } = await openTransaction();
    await client.query('select posthorn_api.revoke_connection($1, $2)', [owner.session, grant.id]);
    const asking = refusal(makeToken(grant));
    await somebodyWaits();
    await end();
    expect(await asking).toMatchObject({ code: 'unauthorized' });
  });

  test('is ended with the others where it comes first', async () => {
    const grant = await makeGrant();
    const credential = randomBytes(32);
    const { client, end } = await openTransaction();
    await client.query(`select posthorn_api.add_grant_token($1, $2, 'access', $3, 'x', '{messaging}', 3600)`, [
      grant.code,
      grant.id,
      credential,
    ]);
    const ending = functions.revokeConnection(app, { credential: owner.session, connectionId: grant.id });
    await somebodyWaits();
    await end();
    await ending;
    expect(await refusal(functions.authenticate(app, { credential }))).toMatchObject({ code: 'unauthorized' });
    const { rows } = await database.admin.query('select from posthorn.grant_tokens where connection_id = $1', [
      grant.id,
    ]);
    expect(rows).toEqual([]);
  });
});

describe('a code', () => {
  test('is used up by one of many', async () => {
    const { code } = await makeGrant();
    const answers = await Promise.all(
      Array.from({ length: 8 }, () => functions.consumeGrantToken(app, { tokenHash: code })),
    );
    expect(answers.filter(Boolean)).toHaveLength(1);
    expect(await functions.consumeGrantToken(app, { tokenHash: code, successorHash: randomBytes(32) })).toBe(false);
  });
});

describe('a refresh token', () => {
  test('is used up by many for a minute, as long as all mean the same successor', async () => {
    const { id, code } = await makeGrant();
    const tokenHash = randomBytes(32);
    await functions.addGrantToken(app, { proof: code, connectionId: id, kind: 'refresh', tokenHash, ...TOKEN });
    const successorHash = randomBytes(32);
    const use = (successor = successorHash) =>
      functions.consumeGrantToken(app, { tokenHash, successorHash: successor });
    await clock.stop();
    expect(await Promise.all([use(), use(), use()])).toEqual([true, true, true]);
    expect(await use(randomBytes(32))).toBe(false);
    await clock.advance('59 seconds');
    expect(await use()).toBe(true);
    expect(await functions.findGrantToken(app, { kind: 'refresh', tokenHash })).toMatchObject([{ isConsumed: false }]);
    await clock.advance('1 second');
    expect(await use()).toBe(false);
    expect(await functions.findGrantToken(app, { kind: 'refresh', tokenHash })).toMatchObject([{ isConsumed: true }]);
    const late = { proof: tokenHash, connectionId: id, kind: 'access', tokenHash: randomBytes(32), ...TOKEN };
    expect(await refusal(functions.addGrantToken(app, late))).toMatchObject({ code: 'unauthorized' });
    await clock.go();
  });
});

test('the reach of an agent is that of the last grant that acts as it', async () => {
  const first = await makeGrant();
  const credential = await makeToken(first);
  await functions.listAgents(app, { credential });
  const [status] = await functions.agentStatus(app, { credential });
  const reach = async () => {
    const { rows } = await database.admin.query(
      `select extract(epoch from a.reachable_until - posthorn_impl.clock())::float / 60 as minutes from posthorn.agents a where a.agent_id = $1`,
      [status!.agentId],
    );
    return rows[0].minutes as number;
  };
  expect(await reach()).toBeCloseTo(60, 0);
  const second = await makeGrant();
  const long = randomBytes(32);
  await functions.addGrantToken(app, {
    proof: second.code,
    connectionId: second.id,
    kind: 'refresh',
    tokenHash: long,
    ...TOKEN,
    seconds: 36_000,
  });
  expect(await reach()).toBeCloseTo(600, 0);
  await functions.revokeConnection(app, { credential: owner.session, connectionId: second.id });
  expect(await reach()).toBeCloseTo(60, 0);
  await functions.revokeConnection(app, { credential: owner.session, connectionId: first.id });
  expect(await reach()).toBeLessThanOrEqual(0);
});
