import { afterAll, beforeEach, describe, expect, test } from 'vitest';
import { createCredentialUse } from '../../src/db/credential-use.ts';
import { createListener } from '../../src/db/listener.ts';
import { createReceiptLane } from '../../src/db/receipt-lane.ts';
import { createSendLane } from '../../src/db/send-lane.ts';
import { parseAllowList } from '../../src/net/allow-list.ts';
import * as messages from '../../src/operations/messages.ts';
import type { Caller, Operation, Services } from '../../src/operations/operation.ts';
import { type Agent, createWorld, expectInvariants, newKey } from '../helpers/world.ts';

// What somebody holds who has the whole database and nothing else.
const world = await createWorld();
const { app, database } = world;
const listener = createListener({
  url: database.url,
  speak: (sql, values) => app.query(sql, values),
  onChange: () => {},
});
const services: Services = {
  pool: app,
  ownerKeysOf: world.ownerKeysOf,
  sendLane: createSendLane(app, world.ownerKeysOf),
  receiptLane: createReceiptLane(app),
  listener,
  credentialUse: createCredentialUse(app, () => {}),
  webhookAllow: parseAllowList(''),
  pushPublicKey: async () => '',
  openid: undefined,
  publicUrl: 'http://127.0.0.1',
};

afterAll(async () => {
  await Promise.all([listener.close(), services.credentialUse.close()]);
  await expectInvariants(world);
});

const BODY = 'The treaty is signed at dawn: złoty świt 🌅';

// biome-ignore lint/suspicious/noExplicitAny: each test says what it expects
async function run(operation: Operation, agent: Agent, input: object): Promise<any> {
  const caller: Caller = { credential: agent.credential, signal: new AbortController().signal };
  return await operation.run(services, caller, operation.input.parse({ agent_id: agent.id, ...input }));
}

const sendTo = (from: Agent, to: Agent, body = BODY) =>
  run(messages.send, from, { recipient_agent_id: to.id, body, idempotency_key: newKey() });

describe('a dump', () => {
  /** Where any of the texts stands, as text or as bytes, in any column of any table. */
  async function find(needles: string[]): Promise<string[]> {
    const forms = needles.flatMap((needle) => {
      const bytes = Buffer.from(needle);
      // base64 at any of its three alignments, less the characters that neighbours change
      const base64 = [0, 1, 2].map((shift) =>
        Buffer.concat([Buffer.alloc(shift), bytes])
          .toString('base64')
          .slice(4, -4),
      );
      return [needle, JSON.stringify(needle).slice(1, -1), bytes.toString('hex'), ...base64];
    });
    const { rows } = await database.admin.query(
      `select c.oid::regclass::text as name from pg_class c
        where c.relkind in ('r', 'm') and c.relnamespace not in ('pg_catalog'::regnamespace, 'information_schema'::regnamespace)`,
    );
    expect(rows.length).toBeGreaterThan(20);
    const found: string[] = [];
    for (const { name } of rows) {
      const { rows: hits } = await database.admin.query(
        `select from ${name} t cross join unnest($1::text[]) n where position(lower(n) in lower(t::text)) > 0 limit 1`,
        [forms],
      );
      if (hits.length > 0) found.push(name);
    }
    return found;
  }

  test('holds no body and no credential, before and after the mail was read', async () => {
    const owner = await world.makeOwner();
    const [a, b, c] = (await owner.agents(3)) as [Agent, Agent, Agent];
    const group = await owner.group([a, b, c]);
    const device = await owner.connect({ kind: 'device' });
    const first = await sendTo(a, b);
    await run(messages.send, a, { group_id: group.id, body: `${BODY}, and again`, idempotency_key: newKey() });
    const needles = [BODY, 'treaty is signed', a.connection.token, device.token];
    expect(await find(needles)).toEqual([]);
    expect((await run(messages.receive, b, {})).messages.map((message: { body: string }) => message.body)).toEqual([
      BODY,
      `${BODY}, and again`,
    ]);
    await run(messages.send, b, {
      conversation_id: first.conversation_id,
      reply_to: first.id,
      body: BODY,
      idempotency_key: newKey(),
    });
    await run(messages.acknowledge, b, { message_ids: [first.id] });
    expect(await find(needles)).toEqual([]);
  });

  test('would be found out if it did', async () => {
    await database.admin.query('create table public.careless (note text, bytes bytea, encoded text)');
    for (const row of [
      `('so: ' || $1::text, null, null)`,
      `(null, convert_to('so: ' || $1::text, 'UTF8'), null)`,
      `(null, null, translate(encode(convert_to('so: ' || $1::text, 'UTF8'), 'base64'), E'\\n', ''))`,
    ]) {
      await database.admin.query(`insert into public.careless values ${row}`, [BODY]);
      expect(await find([BODY])).toEqual(['careless']);
      await database.admin.query('truncate public.careless');
    }
    await database.admin.query('drop table public.careless');
  });

  test('holds no key: of the ring, of an owner, or the one of proofs outside its own table', async () => {
    const { rows } = await database.admin.query('select inner_pad from posthorn_secret.proof_key');
    const found = await find([rows[0].inner_pad.toString('hex').slice(0, 32)]);
    expect(found).toEqual(['posthorn_secret.proof_key']);
    const { rows: wrapped } = await database.admin.query(
      'select octet_length(wrapped_key) as length from posthorn.owner_keys',
    );
    expect(new Set(wrapped.map((row) => row.length))).toEqual(new Set([60])); // nonce, tag and 32 bytes: never the bare key
  });
});

describe('a ciphertext moved to another row does not open', () => {
  let a: Agent;
  let b: Agent;
  let c: Agent;
  let toB: { id: string };

  beforeEach(async () => {
    const owner = await world.makeOwner();
    [a, b, c] = (await owner.agents(3)) as [Agent, Agent, Agent];
    await owner.group([a, b, c]);
    toB = await sendTo(a, b);
  });

  /** Puts the sealed body of one message into the row of another. */
  const move = (from: { id: string }, to: { id: string }) =>
    database.admin.query(
      `update posthorn.bodies t set ciphertext = s.ciphertext from posthorn.bodies s where t.message_id = $2 and s.message_id = $1`,
      [from.id, to.id],
    );

  /** Nothing was given, and nothing was marked. */
  async function expectUnread(reader: Agent): Promise<void> {
    await expect(run(messages.receive, reader, {})).rejects.toThrow();
    const { rows } = await database.admin.query(
      'select distinct state from posthorn.messages where recipient_agent_id = $1',
      [reader.id],
    );
    expect(rows).toEqual([{ state: 'queued' }]);
  }

  test('of the same pair', async () => {
    await move(await sendTo(a, b), toB);
    await expectUnread(b);
  });

  test('of another recipient, sender or owner', async () => {
    await move(await sendTo(a, c), toB);
    await expectUnread(b);
    await move(await sendTo(c, b), toB);
    await expectUnread(b);
    const stranger = await world.makeOwner();
    const [x, y] = (await stranger.agents(2)) as [Agent, Agent];
    await stranger.group([x, y]);
    await move(await sendTo(x, y), toB);
    await expectUnread(b);
  });

  test('of another group of the same agents', async () => {
    const group = await a.owner.group([a, b]);
    const elsewhere = await run(messages.send, a, {
      recipient_agent_id: b.id,
      group_id: group.id,
      body: BODY,
      idempotency_key: newKey(),
    });
    await move(elsewhere, toB);
    await expectUnread(b);
  });

  test('and one of the row itself opens, when it is put back', async () => {
    const { rows } = await database.admin.query('select ciphertext from posthorn.bodies where message_id = $1', [
      toB.id,
    ]);
    await move(await sendTo(a, c), toB);
    await expectUnread(b);
    await database.admin.query('update posthorn.bodies set ciphertext = $2 where message_id = $1', [
      toB.id,
      rows[0].ciphertext,
    ]);
    expect((await run(messages.receive, b, {})).messages).toMatchObject([
      { id: toB.id, body: BODY, state: 'delivered', content_trust: 'untrusted_peer' },
    ]);
  });

  test('nor does one whose row was made to name another sender', async () => {
    await database.admin.query('update posthorn.messages set sender_agent_id = $2 where message_id = $1', [
      toB.id,
      c.id,
    ]);
    await expectUnread(b);
    await database.admin.query('update posthorn.messages set sender_agent_id = $2 where message_id = $1', [
      toB.id,
      a.id,
    ]);
  });
});
