import { join } from 'node:path';
import pg from 'pg';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { startThrowawayServer } from '../../scripts/throwaway-server.ts';
import { hashCredential } from '../../src/crypto/credentials.ts';
import { authenticate, recogniseServer } from '../../src/db/functions.ts';
import { migrate } from '../../src/db/migrate.ts';
import { createLog } from '../../src/log.ts';
import { packageRoot } from '../../src/package-root.ts';
import { startPod } from '../../src/pod.ts';
import { callHttp, newKey, startPosthorn, type TestAgent, type TestPosthorn } from '../helpers/posthorn.ts';

let posthorn: TestPosthorn;

beforeAll(async () => {
  posthorn = await startPosthorn();
});
afterAll(async () => {
  expect((await posthorn.database.admin.query('select * from ops.invariants')).rows).toEqual([]);
  await posthorn.close();
});

const admin = () => posthorn.database.admin;
const server = async () => (await admin().query('select epoch, timeline, started_at from posthorn.server')).rows[0];

interface Mail {
  anna: TestAgent;
  bert: TestAgent;
  queued: string[];
  held: string;
  proposal: string;
}

/** Two agents with three messages between them, and one more that waits for the owner. */
async function mail(): Promise<Mail> {
  const owner = await posthorn.owner();
  const [anna, bert, carl] = await Promise.all(['anna', 'bert', 'carl'].map((label) => owner.agent(label)));
  await owner.group([anna!, bert!]);
  const queued = [];
  for (const body of ['one', 'two', 'three']) {
    queued.push((await anna!.send({ recipient_agent_id: bert!.id, body, idempotency_key: newKey() })).body.id);
  }
  const held = await anna!.send({
    recipient_agent_id: carl!.id,
    body: 'held',
    purpose: 'Please',
    idempotency_key: newKey(),
  });
  return { anna: anna!, bert: bert!, queued, held: held.body.id, proposal: held.body.proposal_id };
}

const states = ({ anna, queued, held }: Mail) =>
  Promise.all(
    [...queued, held].map(async (id) => (await anna.call('GET', `/messages/${id}?agent_id=${anna.id}`)).body.state),
  );

test('a database that finds itself elsewhere answers nobody until every body is fenced', async () => {
  const mails = [await mail(), await mail()];
  const before = await server();
  await admin().query(`update posthorn.server set system_identifier = system_identifier + 1, started_at = '-infinity'`);

  const { anna, bert } = mails[0]!;
  expect((await bert.receive()).body).toMatchObject({ error: 'unavailable', retryable: true });
  expect((await anna.call('GET', `/status?agent_id=${anna.id}`)).status).toBe(503);
  const late = { recipient_agent_id: bert.id, body: 'late', idempotency_key: newKey() };
  expect((await anna.send(late)).status).toBe(503);

  // in steps, each of which may be the last one before a crash
  const answers: string[] = [];
  do {
    expect((await bert.receive()).status, 'not before the end').toBe(503);
    answers.push(await recogniseServer(posthorn.database.as('posthorn_app'), { limit: 3 }));
  } while (answers.at(-1) === 'fencing');
  expect(answers.at(-1)).toBe('fenced');
  expect(answers.length).toBeGreaterThan(3);

  for (const each of mails) {
    expect((await each.bert.receive()).body.messages).toEqual([]);
    expect(await states(each)).toEqual(['revoked', 'revoked', 'revoked', 'revoked']);
    const { body } = await each.anna.call('GET', `/proposals/${each.proposal}?agent_id=${each.anna.id}`);
    expect(body, 'the request itself is still one').toMatchObject({ state: 'pending', held_messages: 0 });
  }
  const told = await admin().query(
    `select count(*)::int as n from posthorn.events where agent_id = $1 and kind = 'message.state' and state = 'revoked'`,
    [anna.id],
  );
  expect(told.rows).toEqual([{ n: 4 }]);
  expect((await server()).epoch).toBe(before.epoch + 1);

  expect((await anna.send(late)).body.state, 'life goes on').toBe('queued');
  expect((await bert.receive()).body.messages).toMatchObject([{ body: 'late' }]);
});

test('an ordinary restart is noted and fences nothing; a failover advances the epoch besides', async () => {
  const each = await mail();
  const before = await server();
  await admin().query(`update posthorn.server set started_at = started_at - interval '1 hour'`);
  expect((await each.bert.receive()).body.messages).toHaveLength(3);
  expect(await server()).toEqual(before);

  await admin().query(
    `update posthorn.server set started_at = started_at - interval '1 hour', timeline = timeline + 1`,
  );
  expect((await each.bert.receive()).body.messages).toHaveLength(3);
  expect(await server()).toEqual({ ...before, epoch: before.epoch + 1 });
});

test('nobody waits for the transaction that notes a restart', async () => {
  const { anna } = await mail();
  await admin().query(`update posthorn.server set started_at = started_at - interval '1 hour'`);
  const call = { credential: hashCredential(anna.token) };
  const slow = await posthorn.database.as('posthorn_app').connect();
  try {
    await slow.query('begin');
    await authenticate(slow, call);
    const other = await posthorn.database.as('posthorn_app').connect();
    try {
      await other.query(`set lock_timeout = '1s'`);
      await authenticate(other, call);
    } finally {
      other.release(true);
    }
    await slow.query('commit');
  } finally {
    slow.release();
  }
});

test('a dump put into another cluster serves no body of its mail', async () => {
  const each = await mail();
  const elsewhere = await startThrowawayServer();
  const name = `posthorn_test_${Date.now()}_elsewhere`;
  const url = Object.assign(new URL(elsewhere.url), { pathname: `/${name}` }).toString();
  const client = new pg.Client({ connectionString: url });
  try {
    await onServer(elsewhere.url, `create database ${name}`);
    await client.connect();
    await migrate({ url, sqlDirectory: join(packageRoot, 'sql'), log: () => {} });
    await copyTables(admin(), client);
    const pod = await startPod({
      databaseUrl: url,
      listenUrl: url,
      publicUrl: undefined,
      host: '127.0.0.1',
      port: 0,
      keyRing: posthorn.ring,
      log: createLog('warn'),
    });
    const call = (agent: TestAgent, method: string, path: string, body?: object) =>
      callHttp(pod.url, agent.token, method, `/messaging/v1${path}`, body);
    const received = await call(each.bert, 'POST', '/receive', { agent_id: each.bert.id });
    expect(received.body.messages).toEqual([]);
    const { body } = await call(each.anna, 'GET', `/messages/${each.queued[0]}?agent_id=${each.anna.id}`);
    expect(body.state).toBe('revoked');
    const { rows } = await client.query(
      'select (select count(*) from posthorn.bodies) + (select count(*) from posthorn.held_bodies) as bodies',
    );
    expect(rows).toEqual([{ bodies: '0' }]);
    await pod.close();
  } finally {
    await client.end();
    await onServer(elsewhere.url, `drop database if exists ${name} with (force)`);
    await elsewhere.stop();
  }
  expect((await each.bert.receive()).body.messages, 'where it came from').toHaveLength(3);
});

async function onServer(url: string, statement: string): Promise<void> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  await client.query(statement);
  await client.end();
}

/** What pg_dump and pg_restore do with the rows. */
async function copyTables(from: pg.Pool, to: pg.Client): Promise<void> {
  await to.query('set session_replication_role = replica'); // foreign keys come last in a dump
  const { rows } = await from.query(
    `select c.oid::regclass::text as name from pg_catalog.pg_class c
      where c.relnamespace in ('posthorn'::regnamespace, 'posthorn_secret'::regnamespace) and c.relkind = 'r'`,
  );
  await to.query(`truncate ${rows.map(({ name }) => name).join(', ')}`);
  for (const { name } of rows) {
    const { rows: kept } = await from.query(
      `select coalesce(jsonb_agg(to_jsonb(t)), '[]')::text as rows from ${name} t`,
    );
    await to.query(
      `insert into ${name} overriding system value select * from jsonb_populate_recordset(null::${name}, $1::jsonb)`,
      [kept[0].rows],
    );
  }
}
