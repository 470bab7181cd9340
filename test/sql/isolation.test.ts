import { randomBytes } from 'node:crypto';
import { join } from 'node:path';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { hashCredential, makeCredential } from '../../src/crypto/credentials.ts';
import { makeId } from '../../src/crypto/ids.ts';
import * as functions from '../../src/db/functions.ts';
import { migrate } from '../../src/db/migrate.ts';
import { createPool, withClient } from '../../src/db/pool.ts';
import { packageRoot } from '../../src/package-root.ts';
import { createTestDatabase } from '../helpers/database.ts';
import {
  type Agent,
  advance,
  type Connection,
  createWorld,
  expectInvariants,
  inTransaction,
  messageStatus,
  newKey,
  type Owner,
  readInbox,
  refusal,
  refusals,
  type Send,
  sealBatch,
  send,
  sendBatch,
} from '../helpers/world.ts';

// Two owners, each with two groups, an outsider and a revoked agent, and something in every table.
const world = await createWorld();
const { app, database } = world;
const engine = database.as('posthorn_engine');

interface Side {
  owner: Owner;
  ownerId: number;
  device: Connection;
  anna: Agent;
  bert: Agent;
  outsider: Agent;
  revoked: Agent;
  group: functions.GroupView;
  otherGroup: functions.GroupView;
  conversation: string;
  message: string;
  post: string;
  /** Between bert and carl: anna is no member. */
  otherConversation: string;
  /** Anna's request to talk with the outsider, with a message behind it. */
  proposal: string;
  held: string;
  /** One that bert and the outsider are in alone. */
  otherProposal: string;
  /** An app that the owner consented to, its agent, and the hash of the code that it was given. */
  grant: string;
  app: string;
  code: Buffer;
  /** Event streams, of anna and of bert. */
  stream: string;
  otherStream: string;
  /** Anna's, with one delivery that failed. */
  webhook: string;
  delivery: string;
  passkey: string;
  account: string;
}

const APP = {
  kind: 'oauth',
  label: 'planted label',
  clientId: 'app',
  clientHost: 'app.example',
  scopes: ['messaging'],
};
const TOKEN = { payload: Buffer.from('planted payload'), scopes: [], seconds: 600 };

let ours: Side;
let theirs: Side;

beforeAll(async () => {
  [ours, theirs] = [await makeSide(), await makeSide()];
});

afterAll(() => expectInvariants(world));

async function makeSide(): Promise<Side> {
  const owner = await world.makeOwner();
  const device = await owner.connect({ kind: 'device' });
  const anna = await device.agent('anna', 'planted label');
  const [bert, carl, outsider, revoked] = (await owner.agents(4)) as [Agent, Agent, Agent, Agent];
  const group = await owner.group([anna, bert, carl]);
  const otherGroup = await owner.group([carl, outsider]);
  const sent = await send(world, { from: anna, to: bert, body: 'planted body' });
  const posted = await send(world, { from: bert, group });
  const elsewhere = await send(world, { from: bert, to: carl });
  await send(world, { from: carl, group: otherGroup });
  const held = await send(world, { from: anna, to: outsider, body: 'planted body', purpose: 'planted purpose' });
  const otherHeld = await send(world, { from: bert, to: outsider, purpose: 'planted purpose' });
  await functions.mintChildConnection(app, {
    credential: device.credential,
    agentId: anna.id,
    label: 'child',
    credentialHash: makeCredential('child').hash,
  });
  const grant = await functions.createOauthGrant(app, {
    credential: owner.session,
    ...APP,
    newAgentLabel: 'planted label',
  });
  const code = randomBytes(32);
  await functions.addGrantToken(app, {
    proof: owner.session,
    connectionId: grant,
    kind: 'code',
    tokenHash: code,
    ...TOKEN,
  });
  const [client] = await functions.listClientAgents(app, { credential: owner.session, clientId: APP.clientId });
  await owner.act((db, credential) => functions.createSignInLink(db, { credential, linkHash: randomBytes(32) }));
  const browser = { endpointHash: randomBytes(32), sealedSubscription: randomBytes(300) };
  await functions.addPushSubscription(app, { credential: owner.session, ...browser });
  await functions.revokeAgent(app, { credential: owner.session, agentId: revoked.id });
  const [stream, otherStream] = [makeId(), makeId()];
  for (const [streamId, { credential, id }] of [
    [stream, anna],
    [otherStream, bert],
  ] as const)
    await functions.openStream(app, { credential, streamId, podId: makeId(), agentIds: [id] });
  const { rows } = await database.admin.query('select owner_id from posthorn.owners where id = $1', [owner.id]);
  const { webhook, delivery } = await makeWebhook(anna);
  return {
    passkey: await makePasskey(owner.session),
    account: await makeAccount(owner.session),
    webhook,
    delivery,
    owner,
    ownerId: rows[0].owner_id,
    device,
    anna,
    bert,
    outsider,
    revoked,
    group,
    otherGroup,
    conversation: sent.conversationId!,
    message: sent.messageIds![0]!,
    post: posted.postId!,
    otherConversation: elsewhere.conversationId!,
    proposal: proposalOf(held),
    held: held.messageIds![0]!,
    otherProposal: proposalOf(otherHeld),
    grant,
    app: client!.agentId,
    code,
    stream,
    otherStream,
  };
}

async function makeWebhook({ credential, id: agentId }: Agent): Promise<{ webhook: string; delivery: string }> {
  const sealed = randomBytes(40);
  await functions.setWebhook(app, {
    credential,
    agentId,
    urlHost: 'hooks.example',
    sealedUrl: sealed,
    sealedSecret: sealed,
    events: ['messaging.pending'],
  });
  const { id: webhook } = await functions.getWebhook(app, { credential, agentId });
  await functions.testWebhook(app, { credential, agentId });
  const jobs = database.as('posthorn_jobs');
  const lease = makeId();
  const [due] = await functions.claimDeliveries(jobs, { webhookIds: [webhook], leaseIds: [lease] });
  await functions.recordAttempts(jobs, {
    webhookIds: [webhook],
    leaseIds: [lease],
    deliveryIds: [due!.deliveryId],
    httpStatuses: [500],
    problems: [null],
    milliseconds: [1],
    retryAfterSeconds: [null],
    goOn: [true],
  });
  return { webhook, delivery: due!.deliveryId };
}

async function makePasskey(credential: Buffer): Promise<string> {
  const [challengeHash, handleHash, credentialId] = [randomBytes(32), randomBytes(32), randomBytes(32)];
  await functions.beginPasskey(app, { credential, challengeHash, handleHash });
  const key = { publicKey: randomBytes(77), signCount: 0, label: 'planted label' };
  return (await functions.addPasskey(app, { credential, challengeHash, credentialId, ...key })).id;
}

async function makeAccount(credential: Buffer): Promise<string> {
  const [stateHash, subjectHash] = [randomBytes(32), randomBytes(32)];
  await functions.beginOpenidAccount(app, { credential, stateHash });
  const said = { issuer: 'https://login.example', label: 'planted label' };
  return (await functions.addOpenidAccount(app, { credential, stateHash, subjectHash, ...said })).id;
}

function proposalOf({ outcome, detail }: functions.SendMessagesRow): string {
  expect(outcome).toBe('held');
  return (detail as { proposal_id: string }).proposal_id;
}

/** What workers call and pods may not. */
const WORKERS_OWN = [
  'beat_worker',
  'claim_deliveries',
  'claim_pushes',
  'delete_deleted_accounts',
  'delete_expired_credentials',
  'delete_outdated',
  'end_worker',
  'expire_messages',
  'expire_proposals',
  'record_attempts',
  'record_push',
];

async function tables(...schemas: string[]): Promise<string[]> {
  const { rows } = await database.admin.query(
    `select c.oid::regclass::text as name from pg_class c
      where c.relnamespace = any ($1::regnamespace[]) and c.relkind in ('r', 'v') order by 1`,
    [schemas],
  );
  return rows.map((row) => row.name);
}

async function tenantTables(): Promise<string[]> {
  const shared = [
    'attempts',
    'challenges',
    'limits',
    'message_transitions',
    'oauth_records',
    'proposal_transitions',
    'ring_keys',
    'server',
    'server_secrets',
    'worker_heartbeats',
  ];
  return (await tables('posthorn')).filter((name) => !shared.includes(name.replace('posthorn.', '')));
}

/** Of each table, a hash over its rows. */
async function snapshot(): Promise<Record<string, string>> {
  const hashes: Record<string, string> = {};
  for (const table of await tables('posthorn')) {
    const { rows } = await database.admin.query(
      `select coalesce(md5(string_agg(t::text, E'\\n' order by t::text)), 'empty') as hash from ${table} t`,
    );
    hashes[table] = rows[0].hash;
  }
  return hashes;
}

async function sqlState(query: Promise<unknown>): Promise<string> {
  return await query.then(
    () => 'done',
    (error) => error.code,
  );
}

test('each side has something in every table, or nothing here proves anything', async () => {
  for (const table of await tenantTables()) {
    const { rows } = await database.admin.query(`select owner_id, count(*) from ${table} group by owner_id order by 1`);
    expect(
      rows.map((row) => row.owner_id),
      table,
    ).toEqual([ours.ownerId, theirs.ownerId]);
  }
});

describe("as the pods' role with SQL of one's own", () => {
  test('no table or view of ours can be read or written', async () => {
    const names = await tables('posthorn', 'posthorn_secret', 'ops');
    expect(names.length).toBeGreaterThan(20);
    for (const name of names) {
      const { rows } = await database.admin.query(
        `select attname from pg_attribute where attrelid = $1::regclass and attnum = 1`,
        [name],
      );
      for (const statement of [
        `select from ${name}`,
        `select count(*) from ${name}`,
        `insert into ${name} default values`,
        `update ${name} set ${rows[0].attname} = ${rows[0].attname}`,
        `delete from ${name}`,
        `truncate ${name}`,
      ]) {
        expect(await sqlState(app.query(statement)), statement).toBe('42501');
      }
    }
  });

  test('no inner function and none of the person at the server can be called', async () => {
    const { rows } = await database.admin.query(
      `select p.oid::regproc::text || '(' || coalesce((select string_agg('null::' || t::regtype, ', ' order by n) from unnest(p.proargtypes) with ordinality x(t, n)), '') || ')' as call
         from pg_proc p
        where p.pronamespace in ('ops'::regnamespace, 'posthorn'::regnamespace, 'posthorn_impl'::regnamespace)
           or p.pronamespace = 'posthorn_api'::regnamespace and p.proname = any ($1)`,
      [WORKERS_OWN],
    );
    expect(rows.length).toBeGreaterThan(60);
    for (const name of WORKERS_OWN)
      expect(
        rows.some(({ call }) => call.includes(name)),
        name,
      ).toBe(true);
    for (const { call } of rows) expect(await sqlState(app.query(`select ${call}`)), call).toBe('42501');
  });

  test('it becomes nobody else', async () => {
    for (const role of ['engine', 'enqueuer', 'prover', 'owner', 'admin', 'jobs', 'ops']) {
      // the pool's login is the test's superuser, which may become anybody; so may not what it asked to be
      const { rows } = await app.query(`select pg_has_role('posthorn_app', $1, 'member') as may`, [`posthorn_${role}`]);
      expect(rows, role).toEqual([{ may: false }]);
    }
  });

  test('no setting that it makes shows anything', async () => {
    const hashes = `{${[ours, theirs].map((side) => `"\\\\x${side.anna.credential.toString('hex')}"`).join(',')}}`;
    const before = await snapshot();
    await withClient(app, async (client) => {
      await client.query('begin');
      await functions.authenticate(client, { credential: ours.anna.credential });
      const captured = (await client.query(`select current_setting('posthorn.proof') as proof`)).rows[0].proof;
      await client.query('rollback');
      const forged = [captured, `${'0'.repeat(64)}{${theirs.ownerId}}`, `{${theirs.ownerId}}`, '', 'x'.repeat(10_000)];
      for (const proof of forged) {
        for (const isLocal of [true, false]) {
          await client.query('begin');
          await client.query(`select set_config('posthorn.proof', $1, $2), set_config('posthorn.presented', $3, $2)`, [
            proof,
            isLocal,
            hashes,
          ]);
          const call = functions.authenticate(client, { credential: randomBytes(32) });
          expect(await refusal(call)).toEqual({ code: 'unauthorized', detail: {} });
          await client.query('rollback');
        }
      }
      await client.query('reset all');
    });
    expect(await snapshot()).toEqual(before);
  });

  test('a setting that is no array of credentials fails nobody but its maker, and shows nothing', async () => {
    await withClient(app, async (client) => {
      await client.query(`set posthorn.presented = 'nonsense'`);
      await client.query(`set posthorn.proof = 'nonsense'`);
      expect(await functions.authenticate(client, { credential: ours.anna.credential })).toMatchObject([
        { ownerId: ours.owner.id },
      ]);
      await client.query('reset posthorn.presented');
      await client.query('reset posthorn.proof');
    });
  });

  test('a ticket of the person at the server is worthless in another transaction, to a pod, and for another owner', async () => {
    const ticket = await ours.owner.act(async (_, credential) => credential);
    expect(await refusal(functions.ownerSettings(app, { credential: ticket }))).toMatchObject({ code: 'unauthorized' });
    await inTransaction(database.as('posthorn_admin'), async (db) => {
      expect(await refusal(functions.ownerSettings(db, { credential: ticket }))).toMatchObject({
        code: 'unauthorized',
      });
    });
    await inTransaction(database.as('posthorn_admin'), async (db) => {
      const mine = await functions.actAsOwner(db, { ownerId: ours.owner.id });
      expect(await functions.ownerSettings(db, { credential: mine })).toMatchObject([{ id: ours.owner.id }]);
      const bent = Buffer.concat([Buffer.alloc(4), mine.subarray(4)]);
      bent.writeInt32BE(theirs.ownerId);
      expect(await refusal(functions.ownerSettings(db, { credential: bent }))).toMatchObject({ code: 'unauthorized' });
    });
  });

  test.each(['', '00', 'ff'.repeat(31), 'ff'.repeat(33), '00'.repeat(36), 'ff'.repeat(36), '00'.repeat(1_000)])(
    'bytes that are no credential are unauthorized: %s',
    async (hex) => {
      const credential = Buffer.from(hex, 'hex');
      expect(await refusal(functions.authenticate(app, { credential }))).toEqual({ code: 'unauthorized', detail: {} });
    },
  );

  test('null is no credential', async () => {
    expect(await refusal(app.query('select * from posthorn_api.authenticate(null)'))).toMatchObject({
      code: 'unauthorized',
    });
    expect(await refusal(app.query('select * from posthorn_api.list_owner_agents(null)'))).toMatchObject({
      code: 'unauthorized',
    });
  });
});

describe('types and tables of a temporary schema', () => {
  /** Whether a type or table in a session's own temporary schema is taken for ours with the rights of another role. */
  async function springsTrap(pool: pg.Pool): Promise<boolean> {
    return await withClient(pool, async (client) => {
      await client.query(`
        create temporary sequence sprung; grant all on sequence sprung to public;
        create function pg_temp.spring(anyelement) returns boolean language sql
          as $$ select current_user = 'posthorn_app' or nextval('pg_temp.sprung') > 0 $$`);
      for (const type of ['text', 'bytea', 'uuid', 'jsonb', 'timestamptz', 'int4', 'int8', 'bool', 'interval']) {
        await client.query(`create domain pg_temp.${type} as pg_catalog.${type} check (pg_temp.spring(value))`);
      }
      for (const table of ['owners', 'agents', 'connections', 'messages', 'limits']) {
        await client.query(
          `create temporary table ${table} (owner_id pg_catalog.int4); grant all on ${table} to public`,
        );
      }
      const credential = ours.anna.credential;
      await functions.authenticate(client, { credential }).catch(() => {});
      await functions.ownerSettings(client, { credential: ours.owner.session }).catch(() => {});
      await functions.listAgents(client, { credential, agentId: ours.anna.id }).catch(() => {});
      await functions.readInbox(client, { credential, agentId: ours.anna.id, after: 0, limit: 1 }).catch(() => {});
      await functions
        .planSends(client, {
          credentials: [credential],
          agentIds: [ours.anna.id],
          recipientAgentIds: [ours.bert.id],
          groupIds: [null],
          conversationIds: [null],
        })
        .catch(() => {});
      await functions
        .registerAgent(client, { credential, installation: 'trap', label: 'x', runtime: 'other' })
        .catch(() => {});
      await functions.ownerSettings(client, { credential: randomBytes(32) }).catch(() => {});
      const { rows } = await client.query('select is_called from pg_temp.sprung');
      await client.query('discard temp');
      return rows[0].is_called;
    });
  }

  // A clone and a restored dump lose the database's own revoke, so that here, unlike in a migrated one, it can be tried.
  test('are never taken for ours', async () => {
    expect(await springsTrap(app)).toBe(false);
  });

  test('are, when a function looks for its types with an empty path', async () => {
    await database.admin.query(`alter function posthorn_impl.prove(bytea[]) set search_path = ''`);
    const fresh = createPool({ url: database.url, role: 'posthorn_app', max: 1 });
    try {
      expect(await springsTrap(fresh)).toBe(true);
    } finally {
      await fresh.end();
      await database.admin.query('alter function posthorn_impl.prove(bytea[]) set search_path = pg_catalog, pg_temp');
    }
  });
});

describe('as the engine itself, whose functions might have a mistake', () => {
  const grants = (privilege: string, table: string) =>
    database.admin.query(
      `select a.attname from pg_attribute a where a.attrelid = $2::regclass and a.attnum > 0 and not a.attisdropped
          and has_column_privilege('posthorn_engine', a.attrelid, a.attnum, $1) order by a.attnum`,
      [privilege, table],
    );

  async function inRolledBack(work: (client: pg.PoolClient) => Promise<void>): Promise<void> {
    await withClient(engine, async (client) => {
      await client.query('begin');
      try {
        await work(client);
      } finally {
        await client.query('rollback');
      }
    });
  }

  /** What the engine can do to the rows of an owner, in a transaction with some proof, that is rolled back. */
  async function reach(
    prove: (client: pg.PoolClient) => Promise<void>,
    ownerId: number,
  ): Promise<Record<string, string>> {
    const reached: Record<string, string> = {};
    await inRolledBack(async (client) => {
      await prove(client);
      const attempt = async (what: string, statement: string, values: unknown[] = []) => {
        await client.query('savepoint attempt');
        try {
          const { rowCount } = await client.query(statement, values);
          if (rowCount! > 0) reached[what] = `${rowCount} rows`;
        } catch (error) {
          const { code } = error as { code: string };
          // a row that is there already was let through by the policies
          if (code === '23505') reached[what] = 'let through';
          // insufficient_privilege, and what an identity column answers to any update
          else if (code !== '42501' && code !== '428C9') throw error;
        }
        await client.query('rollback to savepoint attempt');
      };
      for (const table of await tenantTables()) {
        const { rows } = await database.admin.query(
          `select to_jsonb(t) as row from ${table} t where owner_id = $1 limit 1`,
          [ownerId],
        );
        await attempt(`select ${table}`, `select from ${table} where owner_id = $1`, [ownerId]);
        await attempt(
          `insert ${table}`,
          `insert into ${table} overriding system value select * from jsonb_populate_record(null::${table}, $1)`,
          [rows[0].row],
        );
        for (const { attname } of (await grants('update', table)).rows) {
          await attempt(
            `update ${table}.${attname}`,
            `update ${table} set ${attname} = ${attname}`.concat(` where owner_id = ${ownerId}`),
          );
        }
        await attempt(`update ${table}.owner_id`, `update ${table} set owner_id = ${ownerId}`);
        await attempt(`delete ${table}`, `delete from ${table} where owner_id = $1`, [ownerId]);
      }
    });
    return reached;
  }

  const proveOurs = async (client: pg.PoolClient) => {
    await client.query('select posthorn_impl.prove($1)', [[ours.anna.credential]]);
  };

  test('without a proof it reaches no row', async () => {
    expect(await reach(async () => {}, ours.ownerId)).toEqual({});
  });

  test("with a proof of one owner it reaches that owner's rows", async () => {
    const reached = await reach(proveOurs, ours.ownerId);
    for (const table of await tenantTables()) {
      expect(reached, table).toHaveProperty([`select ${table}`]);
      expect(reached, table).toHaveProperty([`insert ${table}`], 'let through');
    }
    expect(Object.keys(reached).filter((what) => what.endsWith('.owner_id'))).toEqual([]);
  });

  test("with a proof of one owner it reaches no other's", async () => {
    expect(await reach(proveOurs, theirs.ownerId)).toEqual({});
  });

  // Such a statement reads no column, so that the policy for reading alone would not hold it.
  test('a statement without a where clause stays within the proved owner', async () => {
    const statements: Record<string, string> = {
      agents: `set label = 'x'`,
      bodies: 'set expires_at = now()',
      connections: `set label = 'x'`,
      conversations: 'set posts = 1',
      grant_tokens: 'set consumed_at = now()',
      deliveries: 'set attempts = 9',
      group_counters: `set post_times = '{}', post_counts = '{}'`,
      groups: 'set generation = 9',
      mailboxes: 'set message_seq = 9',
      messages: `set state = 'revoked'`,
      oauth_grants: 'set agent_id = null',
      openid_accounts: 'set last_used_at = now()',
      owners: 'set automatic_approval = false',
      passkeys: 'set sign_count = 9',
      presence: 'set present_until = now()',
      proposals: `set name = 'x'`,
      push_subscriptions: 'set failures = 9',
      streams: 'set leased_until = now()',
      webhooks: 'set consecutive_failures = 9',
    };
    for (const table of await tenantTables()) {
      const name = table.replace('posthorn.', '');
      const { rows } = await database.admin.query(`select count(*) from ${table} where owner_id = $1`, [ours.ownerId]);
      const mayUpdate = (await grants('update', table)).rows.length > 0;
      expect(Object.hasOwn(statements, name), table).toBe(mayUpdate);
      await inRolledBack(async (client) => {
        await proveOurs(client);
        if (mayUpdate)
          expect((await client.query(`update ${table} ${statements[name]}`)).rowCount, table).toBe(rows[0].count);
        const deleted = await client.query(`delete from ${table}`).catch((error) => error);
        if (deleted.code !== '42501') expect(deleted.rowCount, table).toBe(rows[0].count);
      });
    }
  });

  test('a proof of two owners reaches both', async () => {
    const both = async (client: pg.PoolClient) => {
      await client.query('select posthorn_impl.prove($1)', [[ours.anna.credential, theirs.anna.credential]]);
    };
    expect(await reach(both, theirs.ownerId)).toHaveProperty(['select posthorn.messages']);
  });

  test('a forged proof, and one of another transaction or session, reach nothing', async () => {
    const setProof = (proof: string) => async (client: pg.PoolClient) => {
      await client.query(`select set_config('posthorn.proof', $1, true)`, [proof]);
    };
    const captured = await inTransaction(engine, async (db) => {
      await proveOurs(db as pg.PoolClient);
      return (await db.query(`select current_setting('posthorn.proof') as proof`)).rows[0].proof as string;
    });
    expect(captured).toMatch(/^[0-9a-f]{64}\{\d+\}$/);
    for (const proof of [
      captured,
      `${'0'.repeat(64)}{${ours.ownerId}}`,
      `{${ours.ownerId}}`,
      `${captured.slice(0, 64)}{${theirs.ownerId}}`,
    ]) {
      expect(await reach(setProof(proof), ours.ownerId), proof).toEqual({});
    }
  });

  test('a proof is of its own transaction only, also in the same session', async () => {
    await withClient(engine, async (client) => {
      await client.query('begin');
      await proveOurs(client);
      const { rows } = await client.query(
        `select current_setting('posthorn.proof') as proof, (select count(*) from posthorn.agents) as seen`,
      );
      expect(rows[0].seen).toBeGreaterThan(0);
      await client.query('commit');
      await client.query('begin');
      expect((await client.query('select count(*) as seen from posthorn.agents')).rows).toEqual([{ seen: 0 }]);
      await client.query(`select set_config('posthorn.proof', $1, true)`, [rows[0].proof]);
      expect((await client.query('select count(*) as seen from posthorn.agents')).rows).toEqual([{ seen: 0 }]);
      await client.query('rollback');
    });
  });

  test('a proof with one owner more than was proved is none', async () => {
    await inRolledBack(async (client) => {
      await proveOurs(client);
      const { rows } = await client.query(`select current_setting('posthorn.proof') as proof`);
      const widened = rows[0].proof.replace('}', `,${theirs.ownerId}}`);
      await client.query(`select set_config('posthorn.proof', $1, true)`, [widened]);
      expect((await client.query('select count(*) as seen from posthorn.agents')).rows).toEqual([{ seen: 0 }]);
    });
  });

  test('a revoked and an expired credential prove nothing', async () => {
    const connection = await ours.owner.connect();
    await functions.revokeConnection(app, { credential: ours.owner.session, connectionId: connection.id });
    const { rows } = await engine.query('select * from posthorn_impl.prove($1)', [[connection.credential]]);
    expect(rows).toEqual([]);
  });
});

test('a message that was queued keeps its place, even for the engine with a proof', async () => {
  await inTransaction(engine, async (db) => {
    await db.query('select posthorn_impl.prove($1)', [[ours.anna.credential]]);
    for (const [column, value] of [
      ['seq', '9999'],
      ['group_id', `'${ours.otherGroup.id}'`],
      ['conversation_id', `'${ours.otherConversation}'`],
    ]) {
      await db.query('savepoint attempt');
      const moved = db.query(
        `update posthorn.messages set ${column} = ${value} where owner_id = $1 and message_id = $2`,
        [ours.ownerId, ours.message],
      );
      expect(await sqlState(moved), column).toBe('23001');
      await db.query('rollback to savepoint attempt');
    }
  });
});

describe("with another owner's ids", () => {
  interface Probe {
    /** The function, and which argument. */
    name: string;
    /** An id of the other owner. */
    foreign: () => string;
    /** One of our own owner that the caller may not use, where there is such a thing. */
    neighbours?: () => string;
    call: (id: string) => Promise<unknown>;
  }

  const anna = () => ({ credential: ours.anna.credential, agentId: ours.anna.id });
  const session = () => ({ credential: ours.owner.session });
  const sendAs = (item: Omit<Send, 'from'> & { from?: Agent }) =>
    sendBatch(world, [{ from: ours.anna, key: newKey(), ...item }]).then((outcomes) =>
      outcomes.map(({ outcome, detail }) => ({ outcome, detail })),
    );
  const asAgent = (id: string): Agent => ({ ...ours.anna, id });

  const OWNER_LISTS = [
    ['list_connections', functions.listConnections],
    ['list_owner_agents', functions.listOwnerAgents],
    ['list_owner_groups', functions.listOwnerGroups],
    ['list_owner_proposals', functions.listOwnerProposals],
    ['list_owner_webhooks', functions.listOwnerWebhooks],
  ] as const;
  const PROBES: Probe[] = [
    {
      name: 'remove_passkey p_passkey_id',
      foreign: () => theirs.passkey,
      call: (passkeyId) => functions.removePasskey(app, { ...session(), passkeyId }),
    },
    {
      name: 'remove_openid_account p_account_id',
      foreign: () => theirs.account,
      call: (accountId) => functions.removeOpenidAccount(app, { ...session(), accountId }),
    },
    {
      name: 'open_stream p_agent_ids',
      foreign: () => theirs.anna.id,
      neighbours: () => ours.bert.id,
      call: (id) =>
        functions.openStream(app, {
          credential: ours.anna.credential,
          streamId: makeId(),
          podId: makeId(),
          agentIds: [ours.anna.id, id],
        }),
    },
    {
      name: 'inbox_snapshots p_agent_ids',
      foreign: () => theirs.anna.id,
      neighbours: () => ours.bert.id,
      call: (id) => functions.inboxSnapshots(app, { credential: ours.anna.credential, agentIds: [id] }),
    },
    {
      name: 'read_events p_agent_ids',
      foreign: () => theirs.anna.id,
      neighbours: () => ours.bert.id,
      call: (id) =>
        functions.readEvents(app, { credentials: [ours.anna.credential], agentIds: [id], after: [0], limit: 10 }),
    },
    {
      name: 'renew_streams p_stream_ids',
      foreign: () => theirs.stream,
      neighbours: () => ours.otherStream,
      call: (id) =>
        functions
          .renewStreams(app, { credentials: [ours.anna.credential], streamIds: [id], written: [true], epoch: 1 })
          .then((rows) => rows.map(({ problem }) => problem)),
    },
    {
      name: 'close_streams p_stream_ids',
      foreign: () => theirs.stream,
      neighbours: () => ours.otherStream,
      call: (id) => functions.closeStreams(app, { credentials: [ours.anna.credential], streamIds: [id] }),
    },
    {
      name: 'agent_status p_agent_id',
      foreign: () => theirs.anna.id,
      neighbours: () => ours.bert.id,
      call: (agentId) => functions.agentStatus(app, { ...anna(), agentId }),
    },
    {
      name: 'list_agents p_agent_id',
      foreign: () => theirs.anna.id,
      neighbours: () => ours.bert.id,
      call: (agentId) => functions.listAgents(app, { ...anna(), agentId }),
    },
    {
      name: 'list_groups p_agent_id',
      foreign: () => theirs.anna.id,
      neighbours: () => ours.bert.id,
      call: (agentId) => functions.listGroups(app, { ...anna(), agentId }),
    },
    {
      name: 'read_inbox p_agent_id',
      foreign: () => theirs.anna.id,
      neighbours: () => ours.bert.id,
      call: (agentId) => functions.readInbox(app, { ...anna(), agentId, after: 0, limit: 10 }),
    },
    {
      name: 'revoke_own_agent p_agent_id',
      foreign: () => theirs.anna.id,
      neighbours: () => ours.bert.id,
      call: (agentId) => functions.revokeOwnAgent(app, { ...anna(), agentId }),
    },
    {
      name: 'message_status p_agent_id',
      foreign: () => theirs.anna.id,
      neighbours: () => ours.bert.id,
      call: (agentId) => functions.messageStatus(app, { ...anna(), agentId, messageId: ours.message }),
    },
    {
      name: 'post_status p_agent_id',
      foreign: () => theirs.anna.id,
      neighbours: () => ours.bert.id,
      call: (agentId) => functions.postStatus(app, { ...anna(), agentId, postId: ours.post }),
    },
    {
      name: 'message_status p_message_id',
      foreign: () => theirs.message,
      call: (messageId) => functions.messageStatus(app, { ...anna(), messageId }),
    },
    {
      name: 'post_status p_post_id',
      foreign: () => theirs.post,
      neighbours: () => ours.post,
      call: (postId) => functions.postStatus(app, { ...anna(), postId }),
    },
    {
      name: 'mint_child_connection p_agent_id',
      foreign: () => theirs.anna.id,
      neighbours: () => ours.bert.id,
      call: (agentId) =>
        functions.mintChildConnection(app, {
          credential: ours.device.credential,
          agentId,
          label: 'x',
          credentialHash: makeCredential('child').hash,
        }),
    },
    {
      name: 'rotate_connection p_connection_id',
      foreign: () => theirs.device.id,
      call: (connectionId) =>
        functions.rotateConnection(app, { ...session(), connectionId, credentialHash: makeCredential('device').hash }),
    },
    {
      name: 'create_oauth_grant p_agent_id',
      foreign: () => theirs.app,
      neighbours: () => ours.anna.id,
      call: (agentId) => functions.createOauthGrant(app, { ...session(), ...APP, agentId }),
    },
    {
      name: 'add_grant_token p_connection_id, with a session',
      foreign: () => theirs.grant,
      neighbours: () => ours.device.id,
      call: (connectionId) =>
        functions.addGrantToken(app, {
          proof: ours.owner.session,
          connectionId,
          kind: 'code',
          tokenHash: Buffer.alloc(32, 1),
          ...TOKEN,
        }),
    },
    {
      name: 'add_grant_token p_connection_id, with a code',
      foreign: () => theirs.grant,
      call: (connectionId) =>
        functions.addGrantToken(app, {
          proof: ours.code,
          connectionId,
          kind: 'access',
          tokenHash: Buffer.alloc(32, 1),
          ...TOKEN,
        }),
    },
    {
      name: 'revoke_oauth_grant p_connection_id',
      foreign: () => theirs.grant,
      call: (connectionId) => functions.revokeOauthGrant(app, { proof: ours.code, connectionId }),
    },
    {
      name: 'revoke_connection p_connection_id',
      foreign: () => theirs.device.id,
      call: (connectionId) => functions.revokeConnection(app, { ...session(), connectionId }),
    },
    {
      name: 'revoke_agent p_agent_id',
      foreign: () => theirs.anna.id,
      call: (agentId) => functions.revokeAgent(app, { ...session(), agentId }),
    },
    {
      name: 'restore_agent p_agent_id',
      foreign: () => theirs.revoked.id,
      call: (agentId) => functions.restoreAgent(app, { ...session(), agentId }),
    },
    {
      name: 'create_group p_agent_ids',
      foreign: () => theirs.anna.id,
      call: (id) => functions.createGroup(app, { ...session(), name: 'x', purpose: 'x', agentIds: [ours.anna.id, id] }),
    },
    {
      name: 'renew_group p_group_id',
      foreign: () => theirs.group.id,
      call: (groupId) => functions.renewGroup(app, { ...session(), groupId }),
    },
    {
      name: 'revoke_group p_group_id',
      foreign: () => theirs.group.id,
      call: (groupId) => functions.revokeGroup(app, { ...session(), groupId }),
    },
    {
      name: 'advance_receipts p_agent_ids',
      foreign: () => theirs.bert.id,
      neighbours: () => ours.bert.id,
      call: (id) => advance(world, asAgent(id), 'acknowledged', [ours.message]).then(withoutIds),
    },
    {
      name: 'advance_receipts p_message_ids',
      foreign: () => theirs.message,
      neighbours: () => ours.message,
      call: (id) => advance(world, ours.anna, 'acknowledged', [id]).then(withoutIds),
    },
    {
      name: 'send_messages p_agent_ids',
      foreign: () => theirs.anna.id,
      neighbours: () => ours.bert.id,
      call: (id) => sendAs({ from: asAgent(id), group: ours.group }),
    },
    {
      name: 'send_messages p_recipient_agent_ids',
      foreign: () => theirs.bert.id,
      call: (id) => sendAs({ to: { id } }),
    },
    {
      name: 'send_messages p_recipient_agent_ids in a group',
      foreign: () => theirs.bert.id,
      call: (id) => sendAs({ to: { id }, group: ours.group }),
    },
    {
      name: 'send_messages p_group_ids',
      foreign: () => theirs.group.id,
      neighbours: () => ours.otherGroup.id,
      call: (id) => sendAs({ group: { id } }),
    },
    {
      name: 'send_messages p_group_ids with a recipient',
      foreign: () => theirs.group.id,
      neighbours: () => ours.otherGroup.id,
      call: (id) => sendAs({ to: ours.bert, group: { id } }),
    },
    {
      name: 'send_messages p_conversation_ids',
      foreign: () => theirs.conversation,
      call: (conversation) => sendAs({ conversation }),
    },
    {
      name: 'send_messages p_replies_to',
      foreign: () => theirs.message,
      neighbours: () => ours.message,
      call: (replyTo) => sendAs({ conversation: ours.conversation, replyTo }),
    },
    {
      name: 'send_messages p_planned_group_ids',
      foreign: () => theirs.group.id,
      call: sealedForAnother('plannedGroupIds'),
    },
    {
      name: 'send_messages p_copy_recipients',
      foreign: () => theirs.bert.id,
      call: sealedForAnother('copyRecipients'),
    },
    {
      name: 'plan_sends p_agent_ids',
      foreign: () => theirs.anna.id,
      neighbours: () => ours.bert.id,
      call: (id) => plan({ agentIds: [id] }),
    },
    {
      name: 'plan_sends p_recipient_agent_ids',
      foreign: () => theirs.bert.id,
      call: (id) => plan({ recipientAgentIds: [id] }),
    },
    {
      name: 'plan_sends p_group_ids',
      foreign: () => theirs.group.id,
      neighbours: () => ours.otherGroup.id,
      call: (id) => plan({ groupIds: [id] }),
    },
    {
      name: 'plan_sends p_conversation_ids',
      foreign: () => theirs.conversation,
      call: (id) => plan({ conversationIds: [id] }),
    },
    {
      name: 'approve_proposal p_proposal_id',
      foreign: () => theirs.proposal,
      call: (proposalId) => functions.approveProposal(app, { ...session(), proposalId }),
    },
    {
      name: 'deny_proposal p_proposal_id',
      foreign: () => theirs.proposal,
      call: (proposalId) => functions.denyProposal(app, { ...session(), proposalId }),
    },
    {
      name: 'lift_denial p_proposal_id',
      foreign: () => theirs.proposal,
      call: (proposalId) => functions.liftDenial(app, { ...session(), proposalId }),
    },
    {
      name: 'list_proposals p_agent_id',
      foreign: () => theirs.anna.id,
      neighbours: () => ours.bert.id,
      call: (agentId) => functions.listProposals(app, { ...anna(), agentId }),
    },
    {
      name: 'list_proposals p_ids',
      foreign: () => theirs.proposal,
      neighbours: () => ours.otherProposal,
      call: (id) => functions.listProposals(app, { ...anna(), ids: [id] }),
    },
    {
      name: 'propose_collaboration p_agent_id',
      foreign: () => theirs.anna.id,
      neighbours: () => ours.bert.id,
      call: (agentId) =>
        functions.proposeCollaboration(app, {
          ...anna(),
          agentId,
          kind: 'new',
          purpose: 'x',
          peerAgentIds: [ours.outsider.id],
        }),
    },
    {
      name: 'propose_collaboration p_peer_agent_ids',
      foreign: () => theirs.bert.id,
      call: (id) =>
        functions.proposeCollaboration(app, {
          ...anna(),
          kind: 'new',
          purpose: 'x',
          peerAgentIds: [ours.outsider.id, id],
        }),
    },
    {
      name: 'propose_collaboration p_group_id',
      foreign: () => theirs.group.id,
      neighbours: () => ours.otherGroup.id,
      call: (groupId) => functions.proposeCollaboration(app, { ...anna(), kind: 'renew', groupId }),
    },
    {
      name: 'propose_collaboration p_conversation_id',
      foreign: () => theirs.conversation,
      neighbours: () => ours.otherConversation,
      call: (conversationId) => functions.proposeCollaboration(app, { ...anna(), kind: 'continue', conversationId }),
    },
    {
      name: 'message_status p_message_id, of a held one',
      foreign: () => theirs.held,
      call: (messageId) => functions.messageStatus(app, { ...anna(), messageId }),
    },
    {
      name: 'advance_receipts p_message_ids, of a held one',
      foreign: () => theirs.held,
      neighbours: () => ours.held,
      call: (id) => advance(world, ours.anna, 'acknowledged', [id]).then(withoutIds),
    },
    {
      name: 'send_messages p_replies_to, of a held one',
      foreign: () => theirs.held,
      neighbours: () => ours.held,
      call: (replyTo) => sendAs({ conversation: ours.conversation, replyTo }),
    },
    ...(
      [
        ['plan_webhook', functions.planWebhook],
        ['get_webhook', functions.getWebhook],
        ['remove_webhook', functions.removeWebhook],
        ['test_webhook', functions.testWebhook],
        ['list_deliveries', functions.listDeliveries],
      ] as const
    ).map(([name, act]) => ({
      name: `${name} p_agent_id`,
      foreign: () => theirs.anna.id,
      neighbours: () => ours.bert.id,
      call: (agentId: string) => act(app, { ...anna(), agentId }),
    })),
    {
      name: 'set_webhook p_agent_id',
      foreign: () => theirs.anna.id,
      neighbours: () => ours.bert.id,
      call: (agentId) =>
        functions.setWebhook(app, {
          ...anna(),
          agentId,
          urlHost: 'other.example',
          sealedUrl: Buffer.alloc(40),
          sealedSecret: Buffer.alloc(40),
          events: ['messaging.pending'],
        }),
    },
    {
      name: 'list_deliveries p_delivery_id',
      foreign: () => theirs.delivery,
      call: (deliveryId) => functions.listDeliveries(app, { ...anna(), deliveryId }),
    },
    {
      name: 'list_deliveries p_before',
      foreign: () => '00000000-0000-0000-0000-000000000000',
      call: () => functions.listDeliveries(app, { ...anna(), before: 'ffffffff-ffff-ffff-ffff-ffffffffffff' }),
    },
    {
      name: 'redeliver p_agent_id',
      foreign: () => theirs.anna.id,
      neighbours: () => ours.bert.id,
      call: (agentId) => functions.redeliver(app, { ...anna(), agentId, deliveryId: ours.delivery }),
    },
    {
      name: 'redeliver p_delivery_id',
      foreign: () => theirs.delivery,
      call: (deliveryId) => functions.redeliver(app, { ...anna(), deliveryId }),
    },
    {
      name: 'redeliver_as_owner p_delivery_id',
      foreign: () => theirs.delivery,
      call: (deliveryId) => functions.redeliverAsOwner(app, { ...session(), deliveryId }),
    },
    {
      name: 'disable_webhook p_webhook_id',
      foreign: () => theirs.webhook,
      call: (webhookId) => functions.disableWebhook(app, { ...session(), webhookId }),
    },
    {
      name: 'lift_webhook p_webhook_id',
      foreign: () => theirs.webhook,
      call: (webhookId) => functions.liftWebhook(app, { ...session(), webhookId }),
    },
    {
      name: 'list_agents p_after',
      foreign: () => 'ffffffff-ffff-ffff-ffff-ffffffffffff',
      call: () => functions.listAgents(app, { ...anna(), after: '00000000-0000-0000-0000-000000000000' }),
    },
    {
      name: 'list_groups p_ids',
      foreign: () => theirs.group.id,
      neighbours: () => ours.otherGroup.id,
      call: (id) => functions.listGroups(app, { ...anna(), ids: [id] }),
    },
    {
      name: 'list_acts p_before',
      foreign: () => '00000000-0000-0000-0000-000000000000',
      call: () => functions.listActs(app, { ...session(), before: 'ffffffff-ffff-ffff-ffff-ffffffffffff' }),
    },
    {
      name: 'request_progress p_proposal_ids',
      foreign: () => theirs.proposal,
      call: (id) => functions.requestProgress(app, { ...session(), proposalIds: [id] }),
    },
    {
      name: 'list_proposals p_before',
      foreign: () => '00000000-0000-0000-0000-000000000000',
      call: () => functions.listProposals(app, { ...anna(), before: 'ffffffff-ffff-ffff-ffff-ffffffffffff' }),
    },
    {
      name: 'list_groups p_after',
      foreign: () => 'ffffffff-ffff-ffff-ffff-ffffffffffff',
      call: () => functions.listGroups(app, { ...anna(), after: '00000000-0000-0000-0000-000000000000' }),
    },
    ...OWNER_LISTS.map(([name, list]) => ({
      name: `${name} p_after`,
      foreign: () => 'ffffffff-ffff-ffff-ffff-ffffffffffff',
      call: () => list(app, { ...session(), after: '00000000-0000-0000-0000-000000000000' }),
    })),
  ];

  /** A pod that seals for our group and then claims that it was for another, or for another recipient. */
  function sealedForAnother(field: 'plannedGroupIds' | 'copyRecipients') {
    return async (id: string) => {
      const batch = await sealBatch(world, [{ from: ours.anna, to: ours.bert, group: ours.group }]);
      const outcomes = await functions.sendMessages(app, { ...batch, [field]: [id] });
      return outcomes.map(({ outcome, detail }) => ({ outcome, detail }));
    };
  }

  async function plan(change: Partial<Parameters<typeof functions.planSends>[1]>) {
    const { credential, agentId } = anna();
    return await functions.planSends(app, {
      credentials: [credential],
      agentIds: [agentId],
      recipientAgentIds: [null],
      groupIds: [null],
      conversationIds: [null],
      ...change,
    });
  }

  function withoutIds(rows: functions.AdvanceReceiptsRow[]) {
    return rows.map(({ messageId: _, ...row }) => row);
  }

  /** What a call answers or is refused with. */
  async function outcome(call: Promise<unknown>): Promise<unknown> {
    return await call.then(
      (value) => ({ value }),
      ({ code, message, detail }) => ({ refusal: { code, message, detail } }),
    );
  }

  test('every argument that takes ids is tried here', async () => {
    const { rows } = await database.admin.query(
      `select p.proname || ' ' || a.name as argument
         from pg_proc p cross join lateral unnest(p.proargnames[: p.pronargs], p.proargtypes::oid[]) a(name, type)
        where p.pronamespace = 'posthorn_api'::regnamespace and a.type in ('uuid'::regtype, 'uuid[]'::regtype) order by 1`,
    );
    // ids that the pod makes: see below
    const made = [
      'open_stream p_pod_id',
      'open_stream p_stream_id',
      'open_stream p_succeeds',
      'send_messages p_copy_message_ids',
      'send_messages p_hold_ids',
      'send_messages p_post_ids',
    ];
    // workers' own: they act for every owner, by what a job names
    const isOfWorkers = (argument: string) => WORKERS_OWN.includes(argument.split(' ')[0]!);
    const tried = new Set(PROBES.map(({ name }) => name.split(',')[0]!.split(' ').slice(0, 2).join(' ')));
    expect(
      rows.map((row) => row.argument).filter((argument) => !made.includes(argument) && !isOfWorkers(argument)),
    ).toEqual([...tried].toSorted());
  });

  test.each(PROBES)(
    '$name: like an id that does not exist, and nothing is written',
    async ({ foreign, neighbours, call }) => {
      const before = await snapshot();
      const unknown = await outcome(call(makeId()));
      expect(await outcome(call(foreign()))).toEqual(unknown);
      if (neighbours) expect(await outcome(call(neighbours()))).toEqual(unknown);
      expect(await snapshot()).toEqual(before);
    },
  );

  test.each(['theirs', "a neighbour's"])('a stream succeeds none of %s, and may have the same id', async (whose) => {
    const id = whose === 'theirs' ? theirs.stream : ours.otherStream;
    const others = () =>
      database.admin.query('select * from posthorn.streams where stream_id = any ($1) order by owner_id, stream_id', [
        [theirs.stream, ours.otherStream],
      ]);
    const before = (await others()).rows;
    const streamId = makeId();
    const { credential } = ours.anna;
    await functions.openStream(app, { credential, streamId, podId: makeId(), agentIds: [ours.anna.id], succeeds: id });
    expect((await others()).rows).toEqual(before);
    await functions.closeStreams(app, { credentials: [credential], streamIds: [streamId] });
  });

  test('an id that a pod makes and another owner has already names two different things', async () => {
    const batch = await sealBatch(world, [{ from: ours.anna, group: ours.group }]);
    const theirsBefore = await theirRows();
    const [sent] = await functions.sendMessages(app, {
      ...batch,
      postIds: [theirs.post],
      copyMessageIds: [theirs.message, ...batch.copyMessageIds.slice(1)],
    });
    expect(sent).toMatchObject({ outcome: 'queued', postId: theirs.post });
    expect(await theirRows()).toEqual(theirsBefore);
    const { senderAgentId } = await messageStatus(world, ours.anna, theirs.message);
    expect(senderAgentId).toBe(ours.anna.id);
    const held = await sealBatch(world, [{ from: ours.anna, to: ours.outsider, purpose: 'x' }]);
    const { rows: holds } = await database.admin.query('select hold_id from posthorn.messages where message_id = $1', [
      theirs.held,
    ]);
    const [waiting] = await functions.sendMessages(app, {
      ...held,
      holdIds: [holds[0].hold_id],
      copyMessageIds: [theirs.held],
    });
    expect(waiting).toMatchObject({ outcome: 'held', detail: { proposal_id: ours.proposal } });
    expect(await theirRows()).toEqual(theirsBefore);
    // and one that the same owner has already changes nothing that was there
    const again = await sealBatch(world, [{ from: ours.anna, group: ours.group }]);
    const oursBefore = await snapshot();
    const taken = functions.sendMessages(app, {
      ...again,
      copyMessageIds: [ours.message, ...again.copyMessageIds.slice(1)],
    });
    expect(await sqlState(taken)).toBe('23505');
    expect(await snapshot()).toEqual(oursBefore);
  });

  async function theirRows() {
    const { rows } = await database.admin.query(
      `select (select jsonb_agg(m order by m) from posthorn.messages m where owner_id = $1) as messages, (select jsonb_agg(p order by p) from posthorn.posts p where owner_id = $1) as posts`,
      [theirs.ownerId],
    );
    return rows[0];
  }

  test('one owner in a batch with another gets its own answer only', async () => {
    const items: Send[] = [
      { from: ours.anna, to: ours.bert, key: 'the same key', body: 'ours' },
      { from: theirs.anna, to: theirs.bert, key: 'the same key', body: 'theirs' },
      { from: { ...ours.anna, credential: randomBytes(32) }, to: ours.bert },
      { from: ours.anna, to: theirs.bert },
      { from: theirs.anna, group: ours.group },
    ];
    const outcomes = await functions.sendMessages(app, await sealBatch(world, items));
    expect(outcomes.map((row) => row.outcome)).toEqual(['queued', 'queued', 'unauthorized', 'not_found', 'not_found']);
    const { rows } = await database.admin.query(
      'select owner_id from posthorn.messages where message_id = any ($1) order by 1',
      [outcomes.flatMap((row) => row.messageIds ?? [])],
    );
    expect(rows).toEqual([{ owner_id: ours.ownerId }, { owner_id: theirs.ownerId }]);
  });

  test('lists show the own side only', async () => {
    const text = JSON.stringify([
      await functions.listAgents(app, anna()),
      await functions.listGroups(app, anna()),
      await functions.listOwnerAgents(app, session()),
      await functions.listOwnerGroups(app, session()),
      await functions.listConnections(app, session()),
      await functions.ownerSettings(app, session()),
      await functions.listProposals(app, anna()),
      await functions.listOwnerProposals(app, session()),
      await functions.listActs(app, session()),
      await functions.requestProgress(app, { ...session(), proposalIds: [theirs.proposal, ours.proposal] }),
      await functions.exportAccount(app, session()),
      await readInbox(world, ours.bert),
    ]);
    for (const id of [
      theirs.proposal,
      theirs.otherProposal,
      theirs.owner.id,
      theirs.anna.id,
      theirs.bert.id,
      theirs.group.id,
      theirs.device.id,
      theirs.conversation,
    ]) {
      expect(text).not.toContain(id);
    }
    expect(text).toContain(ours.bert.id);
  });
});

describe('people within one owner', () => {
  test('an outsider of a group learns nothing of it', async () => {
    const { outsider } = ours;
    const asOutsider = { credential: outsider.credential, agentId: outsider.id };
    expect((await functions.listGroups(app, asOutsider)).map((group) => group.id)).toEqual([ours.otherGroup.id]);
    const peers = await functions.listAgents(app, asOutsider);
    expect(peers.flatMap((peer) => peer.sharedGroupIds)).toEqual([ours.otherGroup.id]);
    expect(await refusal(messageStatus(world, outsider, ours.message))).toEqual({ code: 'not_found', detail: {} });
    expect(await refusal(functions.postStatus(app, { ...asOutsider, postId: ours.post }))).toEqual({
      code: 'not_found',
      detail: {},
    });
    const outcomes = await sendBatch(world, [
      { from: outsider, group: ours.group },
      { from: outsider, conversation: ours.conversation },
      { from: outsider, to: ours.bert, group: ours.group },
    ]);
    expect(outcomes.map((row) => row.outcome)).toEqual(['not_found', 'not_found', 'not_found']);
    expect(await readInbox(world, outsider)).not.toContainEqual(expect.objectContaining({ groupId: ours.group.id }));
  });

  test('a member reads only its own copies', async () => {
    const mine = (await readInbox(world, ours.bert)).map((row) => row.id);
    expect(mine).toContain(ours.message);
    const notMine = (await readInbox(world, ours.anna)).map((row) => row.id);
    expect(notMine).not.toContain(ours.message);
    expect(notMine.filter((id) => mine.includes(id))).toEqual([]);
  });

  test('a revoked agent does nothing at all', async () => {
    const { revoked } = ours;
    const asRevoked = { credential: revoked.credential, agentId: revoked.id };
    const before = await snapshot();
    const calls = [
      functions.agentStatus(app, asRevoked),
      functions.listAgents(app, asRevoked),
      functions.listGroups(app, asRevoked),
      functions.readInbox(app, { ...asRevoked, after: 0, limit: 1 }),
      functions.revokeOwnAgent(app, asRevoked),
      functions.messageStatus(app, { ...asRevoked, messageId: ours.message }),
      functions.postStatus(app, { ...asRevoked, postId: ours.post }),
      functions.listProposals(app, asRevoked),
      functions.proposeCollaboration(app, {
        ...asRevoked,
        kind: 'new',
        purpose: 'x',
        peerAgentIds: [ours.bert.id],
      }),
      functions.registerAgent(app, {
        credential: revoked.credential,
        installation: 'test',
        label: 'back',
        runtime: 'other',
      }),
    ];
    for (const refused of await refusals(calls)) expect(refused).toEqual({ code: 'agent_revoked', detail: {} });
    expect(await advance(world, revoked, 'acknowledged', [ours.message])).toMatchObject([
      { problem: 'agent_revoked', state: null },
    ]);
    expect(await send(world, { from: revoked, to: ours.bert })).toMatchObject({ outcome: 'agent_revoked' });
    expect(await snapshot()).toEqual(before);
  });

  test('an expired connection does nothing at all, from its last moment on', async () => {
    const expiresAt = new Date((await world.clock.now()).getTime() + 60_000);
    const connection = await ours.owner.connect({ expiresAt });
    const agent = await connection.agent();
    const asAgent = { credential: agent.credential, agentId: agent.id };
    await world.clock.stop(new Date(expiresAt.getTime() - 1));
    expect(await functions.authenticate(app, asAgent)).toMatchObject([{ connectionId: connection.id }]);
    await world.clock.stop(expiresAt);
    const before = await snapshot();
    const calls = [
      functions.authenticate(app, asAgent),
      functions.agentStatus(app, asAgent),
      functions.listAgents(app, asAgent),
      functions.readInbox(app, { ...asAgent, after: 0, limit: 1 }),
      functions.registerAgent(app, { credential: agent.credential, installation: 'x', label: 'x', runtime: 'other' }),
      functions.ownerKey(app, asAgent),
      functions.listProposals(app, asAgent),
      functions.proposeCollaboration(app, { ...asAgent, kind: 'new', purpose: 'x', peerAgentIds: [ours.bert.id] }),
    ];
    for (const refused of await refusals(calls)) expect(refused).toEqual({ code: 'unauthorized', detail: {} });
    expect(await functions.touchConnections(app, { credentials: [agent.credential] })).toBe(0);
    expect(await send(world, { from: agent, to: ours.bert })).toMatchObject({ outcome: 'unauthorized' });
    expect(await advance(world, agent, 'acknowledged', [ours.message])).toMatchObject([{ problem: 'unauthorized' }]);
    expect(await snapshot()).toEqual(before);
  });

  test('a child acts as its one agent, and does nothing else', async () => {
    const { token, hash } = makeCredential('child');
    const minted = await functions.mintChildConnection(app, {
      credential: ours.device.credential,
      agentId: ours.anna.id,
      label: 'child',
      credentialHash: hash,
    });
    const credential = hashCredential(token);
    const [status] = await functions.agentStatus(app, { credential });
    expect(status).toMatchObject({ agentId: ours.anna.id });
    const calls = [
      functions.registerAgent(app, { credential, installation: 'more', label: 'x', runtime: 'other' }),
      functions.revokeOwnAgent(app, { credential, agentId: ours.anna.id }),
      functions.mintChildConnection(app, {
        credential,
        agentId: ours.anna.id,
        label: 'x',
        credentialHash: makeCredential('child').hash,
      }),
      functions.listConnections(app, { credential }),
      functions.createGroup(app, { credential, name: 'x', purpose: 'x', agentIds: [ours.anna.id, ours.bert.id] }),
      functions.revokeConnection(app, { credential, connectionId: minted.id }),
      functions.approveProposal(app, { credential, proposalId: ours.proposal }),
      functions.deleteAccount(app, { credential }),
    ];
    for (const refused of await refusals(calls)) expect(refused).toMatchObject({ code: 'person_required' });
    const otherInstallation = await ours.device.agent('second');
    expect(await refusal(functions.agentStatus(app, { credential, agentId: otherInstallation.id }))).toMatchObject({
      code: 'not_found',
    });
    expect(await refusal(functions.agentStatus(app, { credential, agentId: ours.bert.id }))).toMatchObject({
      code: 'not_found',
    });
  });

  test.each(['service', 'device'] as const)('a %s connection does nothing of what the owner does', async (kind) => {
    const { credential } = await ours.owner.connect({ kind });
    const before = await snapshot();
    const calls = [
      functions.ownerSettings(app, { credential }),
      functions.changeOwnerSettings(app, { credential, automaticApproval: true }),
      functions.createServiceConnection(app, {
        credential,
        label: 'x',
        scopes: ['messaging'],
        credentialHash: randomBytes(32),
      }),
      functions.pairDevice(app, { credential, label: 'x', scopes: ['messaging'], credentialHash: randomBytes(32) }),
      functions.rotateConnection(app, { credential, connectionId: ours.device.id, credentialHash: randomBytes(32) }),
      functions.listConnections(app, { credential }),
      functions.revokeConnection(app, { credential, connectionId: ours.device.id }),
      functions.listOwnerAgents(app, { credential }),
      functions.revokeAgent(app, { credential, agentId: ours.bert.id }),
      functions.restoreAgent(app, { credential, agentId: ours.revoked.id }),
      functions.createGroup(app, { credential, name: 'x', purpose: 'x', agentIds: [ours.anna.id, ours.bert.id] }),
      functions.renewGroup(app, { credential, groupId: ours.group.id }),
      functions.revokeGroup(app, { credential, groupId: ours.group.id }),
      functions.listOwnerGroups(app, { credential }),
      functions.listOwnerProposals(app, { credential }),
      functions.listActs(app, { credential }),
      functions.requestProgress(app, { credential, proposalIds: [ours.proposal] }),
      functions.mailHistory(app, { credential }),
      functions.approveProposal(app, { credential, proposalId: ours.proposal }),
      functions.denyProposal(app, { credential, proposalId: ours.proposal }),
      functions.liftDenial(app, { credential, proposalId: ours.proposal }),
      functions.addPushSubscription(app, {
        credential,
        endpointHash: randomBytes(32),
        sealedSubscription: randomBytes(300),
      }),
      functions.removePushSubscription(app, { credential }),
      functions.listPushSubscriptions(app, { credential }),
      functions.exportAccount(app, { credential }),
      functions.deleteAccount(app, { credential }),
    ];
    for (const refused of await refusals(calls)) expect(refused).toEqual({ code: 'person_required', detail: {} });
    expect(await snapshot()).toEqual(before);
  });

  test('without the scope, messaging is refused by name', async () => {
    const { credential } = await ours.owner.connect({ scopes: ['functions'] });
    const calls = [
      functions.agentStatus(app, { credential }),
      functions.registerAgent(app, { credential, installation: 'x', label: 'x', runtime: 'other' }),
      functions.listAgents(app, { credential }),
    ];
    for (const refused of await refusals(calls)) expect(refused).toEqual({ code: 'scope_required', detail: {} });
  });

  test('of a suspended owner nobody does anything, and agents are told', async () => {
    const side = await makeSide();
    const person = database.as('posthorn_admin');
    await functions.suspendOwner(person, { ownerId: side.owner.id });
    const asAnna = { credential: side.anna.credential, agentId: side.anna.id };
    expect(await functions.agentStatus(app, asAnna)).toMatchObject([{ enabled: false }]);
    expect(await refusal(functions.readInbox(app, { ...asAnna, after: 0, limit: 1 }))).toEqual({
      code: 'owner_suspended',
      detail: {},
    });
    expect(await refusal(functions.authenticate(app, asAnna))).toEqual({ code: 'owner_suspended', detail: {} });
    expect(await send(world, { from: side.anna, to: side.bert })).toMatchObject({ outcome: 'owner_suspended' });
    expect(await advance(world, side.bert, 'acknowledged', [side.message])).toMatchObject([
      { problem: 'owner_suspended' },
    ]);

    await functions.resumeOwner(person, { ownerId: side.owner.id });
    expect(await send(world, { from: side.anna, to: side.bert })).toMatchObject({ outcome: 'queued' });
    const { rows } = await database.admin.query(
      `select act, connection_id from posthorn.audit_entries where subject_id = $1 and act in ('owner.suspend', 'owner.resume') order by entry_id`,
      [side.owner.id],
    );
    expect(rows).toEqual([
      { act: 'owner.suspend', connection_id: null },
      { act: 'owner.resume', connection_id: null },
    ]);
  });
});

describe('operators', () => {
  const ops = database.as('posthorn_ops');

  test('read every view of theirs, and find no label, body or credential in it', async () => {
    const views = await tables('ops');
    expect(views.length).toBeGreaterThan(5);
    const text = JSON.stringify(
      await Promise.all(views.map(async (view) => (await ops.query(`select * from ${view}`)).rows)),
    );
    expect(text).toContain(ours.owner.id);
    for (const planted of ['planted', ours.anna.credential.toString('hex'), ours.anna.connection.token, 'To test'])
      expect(text).not.toContain(planted);
  });

  test('cannot read what is hidden by going to the tables', async () => {
    for (const hidden of [
      'ciphertext from posthorn.bodies',
      'ciphertext from posthorn.held_bodies',
      'purpose from posthorn.proposals',
      'name from posthorn.proposals',
      'credential_hash from posthorn.connections',
      'label from posthorn.agents',
      'purpose from posthorn.groups',
      'wrapped_key from posthorn.owner_keys',
      'fingerprint from posthorn.idempotency_keys',
      '* from posthorn.bodies',
      '* from posthorn_secret.proof_key',
    ]) {
      expect(await sqlState(ops.query(`select ${hidden}`)), hidden).toBe('42501');
    }
  });

  test('change nothing, and act as nobody', async () => {
    for (const statement of [
      'update posthorn.limits set value = value',
      'delete from posthorn.messages',
      'select ops.act_as_owner(null)',
      `select ops.set_limit('inbox_messages', 5)`,
      'select posthorn_api.ring_keys()',
    ]) {
      expect(await sqlState(ops.query(statement)), statement).toBe('42501');
    }
  });
});

describe('workers', () => {
  const jobs = database.as('posthorn_jobs');

  test('see nothing of what is not past its time, whatever they ask', async () => {
    for (const table of await tables('posthorn', 'posthorn_secret', 'ops')) {
      if (table === 'posthorn.worker_heartbeats') continue;
      const seen = await jobs.query(`select count(*)::int as seen from ${table}`).then(
        ({ rows }) => rows[0].seen,
        (error) => error.code,
      );
      expect([0, '42501'], table).toContain(seen);
    }
    for (const hidden of [
      'ciphertext from posthorn.bodies',
      'ciphertext from posthorn.held_bodies',
      'purpose from posthorn.proposals',
      'wrapped_key from posthorn.owner_keys',
      'credential_hash from posthorn.connections',
      'sealed_secret from posthorn.webhooks',
      'sealed_subscription from posthorn.push_subscriptions',
      'label from posthorn.agents',
    ]) {
      expect(await sqlState(jobs.query(`select ${hidden}`)), hidden).toBe('42501');
    }
  });

  test('delete nothing before its time, also without a where clause', async () => {
    const before = await snapshot();
    for (const table of await tenantTables())
      expect((await jobs.query(`delete from ${table}`)).rowCount, table).toBe(0);
    expect(await snapshot()).toEqual(before);
  });

  test('change nothing and put nothing in', async () => {
    for (const table of (await tables('posthorn')).filter((name) => name !== 'posthorn.worker_heartbeats')) {
      const { rows } = await database.admin.query(
        `select attname from pg_attribute where attrelid = $1::regclass and attnum = 1`,
        [table],
      );
      const [column] = rows.map((row) => row.attname);
      // or what an identity column answers to any update
      expect(['42501', '428C9'], table).toContain(
        await sqlState(jobs.query(`update ${table} set ${column} = ${column}`)),
      );
      expect(await sqlState(jobs.query(`insert into ${table} default values`)), table).toBe('42501');
      expect(await sqlState(jobs.query(`truncate ${table}`)), table).toBe('42501');
    }
  });

  test('end nothing before its time', async () => {
    const before = await snapshot();
    const { rows } = await jobs.query('select posthorn_impl.expire_owners_messages($1, $2) as ended', [
      [ours.ownerId, theirs.ownerId],
      [ours.message, theirs.message],
    ]);
    expect(rows).toEqual([{ ended: 0 }]);
    const requests = await jobs.query('select posthorn_impl.expire_owner_proposals($1) as ended', [ours.ownerId]);
    expect(requests.rows).toEqual([{ ended: 0 }]);
    for (const table of ['idempotency_keys', 'posts', 'messages', 'events', 'proposals', 'deliveries'])
      expect(await functions.deleteOutdated(jobs, { table, firstPage: 0, pages: 1_000 }), table).toBe(false);
    expect(await functions.deleteDeletedAccounts(jobs, { limit: 1_000 })).toBe(0);
    expect(await snapshot()).toEqual(before);
  });

  test('read nothing with the proof that ending leaves behind', async () => {
    await inTransaction(jobs, async (db) => {
      await db.query('select posthorn_impl.expire_owners_messages($1, $2)', [[ours.ownerId], [ours.message]]);
      for (const table of await tenantTables())
        expect((await db.query(`select count(*)::int as seen from ${table}`)).rows, table).toEqual([{ seen: 0 }]);
    });
  });

  test('delete of a deleted account everything, and of no other anything', async () => {
    const owners = async (table: string) => {
      const { rows } = await database.admin.query(`select distinct owner_id from ${table} order by 1`);
      return rows.map((row) => row.owner_id);
    };
    const before = Object.fromEntries(
      await Promise.all((await tenantTables()).map(async (table) => [table, await owners(table)] as const)),
    );
    const gone = await makeSide();
    await functions.deleteAccount(app, { credential: gone.owner.session });
    for (const table of await tenantTables()) {
      const { rows } = await jobs.query(`select distinct owner_id from ${table}`);
      expect([[], [{ owner_id: gone.ownerId }]], table).toContainEqual(rows);
    }
    while ((await functions.deleteDeletedAccounts(jobs, { limit: 3 })) > 0);
    for (const table of await tenantTables()) expect(await owners(table), table).toEqual(before[table]);
  });
});

test('a migrated database lets nobody of ours make temporary objects', async () => {
  const migrated = await createTestDatabase({ isEmpty: true });
  await migrate({ url: migrated.url, sqlDirectory: join(packageRoot, 'sql'), log: () => {} });
  for (const role of ['app', 'jobs', 'ops']) {
    expect(await sqlState(migrated.as(`posthorn_${role}`).query('create temporary table t (n int)')), role).toBe(
      '42501',
    );
    expect(await sqlState(migrated.as(`posthorn_${role}`).query('create table public.t (n int)')), role).toBe('42501');
  }
});
