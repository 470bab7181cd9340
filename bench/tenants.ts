// Owners with agents in groups of five, made by set-based inserts as the superuser: 20,000 agents in seconds.
import { randomBytes } from 'node:crypto';
import pg from 'pg';
import { type KeyRing, makeRingProof, wrapDataKey } from '../src/crypto/key-ring.ts';
import { addRingKey } from '../src/db/functions.ts';

/** An agent of the bench: what it needs to write to another one of its group. */
export interface Sender {
  credential: string;
  credentialHash: Buffer;
  agentId: string;
  groupId: string;
  /** The other four of the group. */
  peers: string[];
}

/** Every conversation exists already, as it does for all but the first message between two agents. */
export async function seedTenants(url: string, owners: number, keyRing: KeyRing): Promise<Sender[]> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  try {
    await client.query(seedStatements(owners));
    await wrapOwnerKeys(client, keyRing);
    await client.query(`
      select ops.set_limit(name, 1000000000)
        from unnest(array['conversation_posts', 'group_posts_per_minute', 'inbox_messages']) name`);
    await client.query('vacuum (analyze)');
    const { rows } = await client.query(`
      select s.credential as "credential", sha256(convert_to(s.credential, 'UTF8')) as "credentialHash", s.agent_id as "agentId", s.group_id as "groupId",
             array_agg(p.agent_id) as "peers"
        from bench.seats s
        join bench.seats p on p.owner_id = s.owner_id and p.group_id = s.group_id and p.agent_id <> s.agent_id
       group by s.credential, s.agent_id, s.group_id
       order by s.agent_id`);
    return rows;
  } finally {
    await client.end();
  }
}

async function wrapOwnerKeys(client: pg.Client, keyRing: KeyRing): Promise<void> {
  await addRingKey(client, { ringKeyId: keyRing.currentId, proof: makeRingProof(keyRing, keyRing.currentId) });
  const { rows } = await client.query<{ id: string }>('select id from posthorn.owners');
  await client.query(
    `insert into posthorn.owner_keys (owner_id, ring_key_id, wrapped_key)
     select o.owner_id, $1, k.wrapped_key
       from unnest($2::uuid[], $3::bytea[]) k(id, wrapped_key)
       join posthorn.owners o on o.id = k.id`,
    [
      keyRing.currentId,
      rows.map(({ id }) => id),
      rows.map(({ id }) => wrapDataKey(keyRing, id, randomBytes(32)).wrappedKey),
    ],
  );
}

export function pick<T>(from: T[]): T {
  const picked = from[Math.floor(Math.random() * from.length)];
  if (picked === undefined) throw new Error('nothing to pick from');
  return picked;
}

const GROUPS_PER_OWNER = 4;
const AGENTS_PER_GROUP = 5;

function seedStatements(owners: number): string {
  return `
    create schema bench;

    insert into posthorn.owners (label, created_at)
    select 'bench ' || o, now() from generate_series(1, ${owners}) o;

    -- one connection for each agent, so that a batch proves as many credentials as it has senders
    create table bench.seats as
    select o.owner_id, g.group_id, posthorn.make_id() as agent_id, posthorn.make_id() as connection_id,
           'phs_' || translate(encode(sha256(uuid_send(gen_random_uuid())), 'base64'), '+/=', '-_') as credential
      from posthorn.owners o
     cross join lateral (select o.owner_id, posthorn.make_id() as group_id from generate_series(1, ${GROUPS_PER_OWNER})) g
     cross join generate_series(1, ${AGENTS_PER_GROUP});
    create index on bench.seats (owner_id, group_id);
    analyze bench.seats;

    insert into posthorn.connections (owner_id, connection_id, kind, label, credential_hash, scopes, created_at)
    select owner_id, connection_id, 'service', 'bench', sha256(convert_to(credential, 'UTF8')), '{messaging}', now() from bench.seats;
    insert into posthorn.agents (owner_id, agent_id, connection_id, installation, origin_kind, label, runtime, created_at)
    select owner_id, agent_id, connection_id, 'default', 'service', 'bench', 'bench', now() from bench.seats;
    insert into posthorn.mailboxes (owner_id, agent_id)
    select owner_id, agent_id from bench.seats;

    insert into posthorn.groups (owner_id, group_id, name, purpose, duration_hours, created_at, approved_at, expires_at)
    select distinct owner_id, group_id, 'bench', 'bench', 720, now(), now(), now() + interval '720 hours' from bench.seats;
    insert into posthorn.group_counters (owner_id, group_id)
    select owner_id, group_id from posthorn.groups;
    insert into posthorn.members (owner_id, group_id, agent_id)
    select owner_id, group_id, agent_id from bench.seats;

    insert into posthorn.conversations (owner_id, kind, group_id, generation, agent_low, agent_high, created_at)
    select a.owner_id, 'pair', a.group_id, 1, a.agent_id, b.agent_id, now()
      from bench.seats a
      join bench.seats b on b.owner_id = a.owner_id and b.group_id = a.group_id and b.agent_id > a.agent_id
    union all
    select owner_id, 'group', group_id, 1, '00000000-0000-0000-0000-000000000000', '00000000-0000-0000-0000-000000000000', now()
      from posthorn.groups;

    create table bench.raw (id bigint generated always as identity primary key, body bytea not null);
    alter table bench.raw alter column body set storage external;`;
}

const SEALED_BYTES = 1024 + 29;

/**
 * Tops inboxes up to so many unread messages, from their peers in turn.
 *
 * @param owners only those of the first owners
 */
export async function fillInboxes(url: string, unread: number, owners = 2 ** 31 - 1): Promise<void> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  try {
    await client.query(`
      create temporary table mail as
      select s.owner_id, s.group_id, s.agent_id, b.message_seq + n as seq, posthorn.make_id() as message_id,
             p.agent_id as sender_agent_id, p.connection_id, c.conversation_id
        from bench.seats s
        join posthorn.mailboxes b on b.owner_id = s.owner_id and b.agent_id = s.agent_id
       cross join lateral generate_series(1, ${unread} - b.unfenced) n
       cross join lateral (
         select x.agent_id, x.connection_id
           from bench.seats x
          where x.owner_id = s.owner_id and x.group_id = s.group_id and x.agent_id <> s.agent_id
          order by x.agent_id
         offset n % ${AGENTS_PER_GROUP - 1}
          limit 1) p
        join posthorn.conversations c
          on c.owner_id = s.owner_id and c.group_id = s.group_id and c.generation = 1
         and c.agent_low = least(s.agent_id, p.agent_id) and c.agent_high = greatest(s.agent_id, p.agent_id)
       where s.owner_id <= ${owners};

      insert into posthorn.messages (owner_id, message_id, state, recipient_agent_id, seq, sender_agent_id, connection_id, group_id, conversation_id, created_at, expires_at)
      select owner_id, message_id, 'queued', agent_id, seq, sender_agent_id, connection_id, group_id, conversation_id, now(), now() + interval '1 day' from mail;
      insert into posthorn.bodies (owner_id, recipient_agent_id, seq, message_id, expires_at, ciphertext)
      select owner_id, agent_id, seq, message_id, now() + interval '1 day', decode(repeat('5a', ${SEALED_BYTES}), 'hex') from mail;
      update posthorn.mailboxes
         set message_seq = message_seq + ${unread} - unfenced, unfenced = ${unread}
       where unfenced < ${unread} and owner_id <= ${owners};
      drop table mail`);
    await client.query('vacuum (analyze) posthorn.mailboxes, posthorn.messages, posthorn.bodies');
  } finally {
    await client.end();
  }
}

/**
 * So many messages that were acknowledged yesterday, spread evenly over the agents, with what they left in the log and
 * among the idempotency keys.
 */
export async function fillHistory(url: string, messages: number): Promise<void> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  try {
    // foreign keys and triggers of ten million rows would take longer than all that is measured
    await client.query(`
      set session_replication_role = replica;
      create temporary table correspondents as
      select c.owner_id, c.group_id, c.conversation_id, s.agent_id, s.connection_id, p.agent_id as peer_agent_id, n.messages
        from (select *, count(*) over () as seats, row_number() over (order by agent_id) as place from bench.seats) s
       cross join lateral (
         select x.agent_id from bench.seats x where x.owner_id = s.owner_id and x.group_id = s.group_id and x.agent_id <> s.agent_id limit 1) p
       cross join lateral (select ${messages} / s.seats + (s.place <= ${messages} % s.seats)::int as messages) n
        join posthorn.conversations c
          on c.owner_id = s.owner_id and c.group_id = s.group_id and c.generation = 1
         and c.agent_low = least(s.agent_id, p.agent_id) and c.agent_high = greatest(s.agent_id, p.agent_id);

      insert into posthorn.messages (owner_id, message_id, state, recipient_agent_id, seq, sender_agent_id, connection_id, group_id, conversation_id, created_at, expires_at, acknowledged_at)
      select c.owner_id, posthorn.make_id(), 'acknowledged', c.agent_id, n, c.peer_agent_id, c.connection_id, c.group_id, c.conversation_id, now() - interval '1 day', now(), now() - interval '1 day'
        from correspondents c cross join generate_series(1, c.messages) n;
      insert into posthorn.events (owner_id, agent_id, seq, kind, subject_id, occurred_at)
      select c.owner_id, c.agent_id, n, 'messaging.pending', c.conversation_id, now() - interval '1 day' from correspondents c cross join generate_series(1, c.messages) n;
      insert into posthorn.idempotency_keys (owner_id, agent_id, operation, key, fingerprint, message_ids, created_at)
      select c.owner_id, c.agent_id, 'send_message', gen_random_uuid()::text, sha256('bench'), array[c.conversation_id], now() - interval '1 day'
        from correspondents c cross join generate_series(1, c.messages) n;
      update posthorn.mailboxes b
         set message_seq = c.messages, event_seq = c.messages
        from correspondents c
       where b.owner_id = c.owner_id and b.agent_id = c.agent_id;
      drop table correspondents`);
    await client.query('vacuum (analyze)');
  } finally {
    await client.end();
  }
}

/** So many requests of each owner that are past their deadline, each with a message behind it. */
export async function fillRequests(url: string, requests: number): Promise<void> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  try {
    await client.query(`
      create temporary table requests as
      select p.*, posthorn.make_id() as proposal_id, posthorn.make_id() as message_id
        from (
          select a.owner_id, a.agent_id as low, b.agent_id as high, a.connection_id, row_number() over (partition by a.owner_id order by a.agent_id, b.agent_id) as place
            from bench.seats a
            join bench.seats b on b.owner_id = a.owner_id and b.agent_id > a.agent_id) p
       where p.place <= ${requests};

      insert into posthorn.proposals (owner_id, proposal_id, kind, proposer_agent_id, agent_ids, name, purpose, duration_hours, created_at, expires_at)
      select owner_id, proposal_id, 'new', low, array[low, high], 'bench', 'bench', 168, now() - interval '1 day', now() from requests;
      insert into posthorn.messages (owner_id, message_id, state, recipient_agent_id, sender_agent_id, connection_id, proposal_id, hold_id, created_at, expires_at)
      select owner_id, message_id, 'held', high, low, connection_id, proposal_id, posthorn.make_id(), now() - interval '1 day', now() from requests;
      insert into posthorn.held_bodies (owner_id, proposal_id, position, message_id, ciphertext)
      select owner_id, proposal_id, 1, message_id, decode(repeat('5a', ${SEALED_BYTES}), 'hex') from requests;
      drop table requests`);
    await client.query('vacuum (analyze) posthorn.proposals, posthorn.messages, posthorn.held_bodies');
  } finally {
    await client.end();
  }
}
