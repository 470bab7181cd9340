import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { migrate } from '../../src/db/migrate.ts';
import { ERRORS, SQLSTATES } from '../../src/errors.ts';
import { packageRoot } from '../../src/package-root.ts';
import { createTestDatabase } from '../helpers/database.ts';

// What the catalog must say of every table and function, those to come too. Most queries answer what breaks a rule.
// The database is migrated here and is no clone of the template, since rights on a database are not cloned.
const database = await createTestDatabase({ isEmpty: true });
await migrate({ url: database.url, sqlDirectory: join(packageRoot, 'sql'), log: () => {} });

const ROLES = ['admin', 'app', 'engine', 'enqueuer', 'jobs', 'ops', 'owner', 'prover', 'queue'].map(
  (name) => `posthorn_${name}`,
);
const CODE_SCHEMAS = ['ops', 'posthorn_api', 'posthorn_impl'];
const OUR_SCHEMAS = [...CODE_SCHEMAS, 'posthorn', 'posthorn_secret'];

/** Tables that belong to no owner. */
const SHARED_TABLES = [
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

/** The policies beside the four of each tenant's table and those of operators and workers. */
const OTHER_POLICIES = {
  'audit_entries insert_acts INSERT posthorn_admin': 'suspending leaves an entry like every act',
  'connections select_presented SELECT posthorn_prover': 'a credential shows its own connection: the root of trust',
  'grant_tokens select_presented SELECT posthorn_prover': 'a code or token shows its own row: it proves its owner',
  'openid_accounts select_presented SELECT posthorn_prover':
    'an account at the provider, by a keyed hash, shows its own row: it proves its owner',
  'owner_keys select_admin SELECT posthorn_admin': 'rotation wraps the keys of every owner anew; they are wrapped here',
  'owner_keys update_admin UPDATE posthorn_admin': 'the same',
  'owners select_admin SELECT posthorn_admin': 'the person at the server suspends any owner',
  'owners select_any SELECT posthorn_prover': 'the person at the server may act as any owner',
  'owners update_admin UPDATE posthorn_admin': 'the person at the server suspends any owner',
  'passkeys select_presented SELECT posthorn_prover': 'the handle of a passkey shows its own row: it proves its owner',
  'sign_in_links select_presented SELECT posthorn_prover': 'a one-time link shows its own row: it proves its owner',
  'webhooks select_any SELECT posthorn_prover': 'a job names an endpoint, which tells whose deliveries it is about',
};

/** What workers see of owners whom nobody proved: what is past a deadline, and what is kept no longer. */
const WORKERS_SEE: Record<string, string> = {
  'bodies select_jobs SELECT': '(expires_at <= (select posthorn_impl.clock as clock))',
  'proposals select_jobs SELECT': `state = 'pending'::text and expires_at <= (select posthorn_impl.clock as clock)`,
};
const OUTDATED: Record<string, string> = {
  grant_tokens: 'expires_at <= (select posthorn_impl.clock as clock)',
  sign_in_links: 'expires_at <= (select posthorn_impl.clock as clock)',
  deliveries: `true and created_at <= (select posthorn_impl.kept_since'delivery_days'::text as kept_since)`,
  events: `true and occurred_at <= (select posthorn_impl.kept_since'event_days'::text as kept_since)`,
  idempotency_keys: `true and created_at <= (select posthorn_impl.kept_since'receipt_days'::text as kept_since)`,
  messages: `state <> all array['held'::text, 'queued'::text, 'delivered'::text] and created_at <= (select posthorn_impl.kept_since'receipt_days'::text as kept_since)`,
  posts: `true and created_at <= (select posthorn_impl.kept_since'receipt_days'::text as kept_since)`,
  proposals: `state <> 'pending'::text and decided_at <= (select posthorn_impl.kept_since'receipt_days'::text as kept_since)`,
};

/** What people and agents wrote, and what opens or proves something. */
const HIDDEN_FROM_OPERATORS = [
  'agents.installation',
  'agents.label',
  'agents.runtime_version',
  'bodies.ciphertext',
  'connections.credential_hash',
  'sign_in_links.link_hash',
  'challenges.challenge_hash',
  'challenges.handle_hash',
  'openid_accounts.label',
  'openid_accounts.subject_hash',
  'passkeys.handle_hash',
  'passkeys.label',
  'grant_tokens.payload',
  'grant_tokens.token_hash',
  'oauth_records.payload',
  'server_secrets.sealed',
  'connections.label',
  'groups.name',
  'groups.project_boundary',
  'groups.purpose',
  'idempotency_keys.fingerprint',
  'idempotency_keys.key',
  'owner_keys.wrapped_key',
  'owners.label',
  'proposals.name',
  'proposals.project_boundary',
  'proposals.purpose',
  'held_bodies.ciphertext',
  'ring_keys.proof',
  'push_subscriptions.endpoint_hash',
  'push_subscriptions.sealed_subscription',
  'webhooks.previous_sealed_secret',
  'webhooks.sealed_auth_header',
  'webhooks.sealed_secret',
  'webhooks.sealed_url',
  'webhooks.url_host',
];

/** Whatever comes first in a key or an index is what it can be divided and guarded by. */
const KEYS_WITHOUT_OWNER = {
  bodies_by_deadline: 'workers look among the mail of all owners for what is past its deadline',
  credentials_are_unique: 'looked up before the owner is known; a credential belongs to one owner only',
  handles_are_unique_everywhere: 'looked up before the owner is known; a handle belongs to one passkey only',
  links_are_unique_everywhere: 'looked up before the owner is known',
  owner_ids_are_unique: 'the one id of an owner that leaves the database',
  passkeys_are_unique_everywhere: 'a credential is made for one owner only, whoever claims it',
  subjects_are_unique_everywhere: 'looked up before the owner is known; an account signs in one owner only',
  tokens_are_unique_everywhere: 'looked up before the owner is known; a token belongs to one owner only',
  webhook_ids_are_unique: 'a job names an endpoint and no owner',
};

const FOREIGN_KEYS_WITHOUT_OWNER = {
  owner_keys_ring_key_id_fkey: "the server's ring belongs to no owner",
};

const FOREIGN_KEYS_THAT_RESTRICT = {
  messages_owner_id_conversation_id_fkey: 'a receipt outlives nothing that it names; it goes first',
  messages_owner_id_recipient_agent_id_fkey: 'a receipt outlives nothing that it names; it goes first',
  owner_keys_ring_key_id_fkey: 'a ring key in use cannot be forgotten',
  server_secrets_ring_key_id_fkey: 'a ring key in use cannot be forgotten',
};

/** The answer of a query with one column. */
async function column(sql: string, values: unknown[] = []): Promise<string[]> {
  const { rows } = await database.admin.query(sql, values);
  return rows.map((row) => String(Object.values(row)[0]));
}

const TENANT_TABLES = `
  select c.oid, c.relname, c.relrowsecurity, c.relforcerowsecurity
    from pg_class c
    join pg_attribute a on a.attrelid = c.oid and a.attname = 'owner_id' and not a.attisdropped
   where c.relnamespace = 'posthorn'::regnamespace
     and c.relkind in ('r', 'p')`;

const OUR_FUNCTIONS = `
  select p.*, n.nspname, format('%I.%I', n.nspname, p.proname) as name, pg_get_userbyid(p.proowner) as owner
    from pg_proc p
    join pg_namespace n on n.oid = p.pronamespace
   where n.nspname in ('ops', 'posthorn', 'posthorn_api', 'posthorn_impl', 'posthorn_secret')`;

describe('row level security', () => {
  test('each table belongs to owners or to the list of shared ones', async () => {
    const shared = await column(
      `select c.relname from pg_class c
        where c.relnamespace = 'posthorn'::regnamespace and c.relkind in ('r', 'p') and c.oid not in (select t.oid from (${TENANT_TABLES}) t)
        order by 1`,
    );
    expect(shared).toEqual(SHARED_TABLES);
  });

  test("each tenant's table has it enabled and forced", async () => {
    expect(
      await column(`select t.relname from (${TENANT_TABLES}) t where not (t.relrowsecurity and t.relforcerowsecurity)`),
    ).toEqual([]);
  });

  test("each tenant's table has the four policies of the engine, in one shape", async () => {
    const tables = await column(`select t.relname from (${TENANT_TABLES}) t`);
    const shape = '(owner_id = any (select posthorn_impl.proved_owners as proved_owners::integer[])) is true';
    const expected = tables.flatMap((table) => [
      `${table} delete_proved DELETE | ${shape} | -`,
      `${table} insert_proved INSERT | - | ${shape}`,
      `${table} select_proved SELECT | ${shape} | -`,
      `${table} update_proved UPDATE | ${shape} | true`,
    ]);
    const found = await column(
      `select concat(tablename, ' ', policyname, ' ', cmd, ' | ', coalesce(qual, '-'), ' | ', coalesce(with_check, '-'))
         from pg_policies where schemaname = 'posthorn' and roles = '{posthorn_engine}' and permissive = 'PERMISSIVE'`,
    );
    expect(found.map(withoutParentheses).toSorted()).toEqual(expected.map(withoutParentheses).toSorted());
  });

  test('operators have a policy for reading; whatever else there is has a reason here', async () => {
    const found = await column(
      `select concat_ws(' ', tablename, policyname, cmd, array_to_string(roles, ',')) from pg_policies
        where schemaname = 'posthorn' and roles <> '{posthorn_engine}'
          and roles <> '{posthorn_jobs}'
          and (policyname, cmd, roles, qual) is distinct from ('select_all', 'SELECT', '{posthorn_ops}', 'true') order by 1`,
    );
    expect(found).toEqual(Object.keys(OTHER_POLICIES));
  });

  test('workers see and delete what is past its time and what belongs to a deleted account, and nothing else', async () => {
    const tables = await column(`select t.relname from (${TENANT_TABLES}) t`);
    const ofDeleted = 'owner_id in (select o.owner_id from posthorn.owners o where o.deleted_at is not null)';
    const expected = [
      ...Object.entries(WORKERS_SEE).map(([policy, rule]) => `${policy} | ${rule} | -`),
      ...Object.entries(OUTDATED).flatMap(([table, rule]) => [
        `${table} delete_outdated DELETE | ${rule} | -`,
        `${table} select_outdated SELECT | ${rule} | -`,
      ]),
      ...tables.flatMap((table) => {
        const rule = table === 'owners' ? 'deleted_at is not null' : ofDeleted;
        return [`${table} delete_deleted DELETE | ${rule} | -`, `${table} select_deleted SELECT | ${rule} | -`];
      }),
    ];
    const found = await column(
      `select concat(tablename, ' ', policyname, ' ', cmd, ' | ', coalesce(qual, '-'), ' | ', coalesce(with_check, '-'))
         from pg_policies where schemaname = 'posthorn' and roles = '{posthorn_jobs}'`,
    );
    expect(found.map(withoutParentheses).toSorted()).toEqual(expected.map(withoutParentheses).toSorted());
  });

  test('no policy calls a function for each row', async () => {
    const policies = await column(
      `select concat_ws(' ', tablename, policyname, qual, with_check) from pg_policies where schemaname = 'posthorn'`,
    );
    const bare = policies.filter((policy) =>
      /(posthorn_\w+\.\w+|current_setting)\(/.test(policy.replaceAll(/\( SELECT \w[\w.]*\([^()]*\)/g, '')),
    );
    expect(bare).toEqual([]);
  });

  test('no role of ours passes it by, or may become another', async () => {
    const { rows } = await database.admin.query(
      `select rolname from pg_roles where rolname = any ($1) and (rolsuper or rolbypassrls or rolcreaterole or rolcreatedb or rolreplication)
       union all
       select roleid::regrole || ' to ' || member::regrole from pg_auth_members where member = any ($1::regrole[])`,
      [ROLES],
    );
    expect(rows).toEqual([]);
    expect(await column(`select rolname from pg_roles where rolname like 'posthorn\\_%' order by 1`)).toEqual(ROLES);
  });
});

describe('ownership and rights', () => {
  // Before PostgreSQL 18 a deferred trigger runs at commit as the outer role: one put there by a worker ran as the pod.
  test('those who log in own nothing, create nothing and put triggers nowhere', async () => {
    const found = await column(
      `with logins as (select oid, rolname from pg_roles where rolname = any ('{posthorn_app,posthorn_jobs,posthorn_ops,posthorn_admin,posthorn_enqueuer}'))
       select concat_ws(' ', l.rolname, 'owns', d.classid::regclass, d.objid) from logins l
         join pg_shdepend d on d.refclassid = 'pg_authid'::regclass and d.refobjid = l.oid and d.deptype = 'o'
          and d.dbid = (select oid from pg_database where datname = current_database())
        where d.classid <> 'pg_proc'::regclass or l.rolname <> 'posthorn_enqueuer'
       union all
       select concat_ws(' ', l.rolname, 'creates in', n.nspname) from logins l, pg_namespace n where has_schema_privilege(l.oid, n.oid, 'create')
       union all
       select concat_ws(' ', l.rolname, 'creates schemas') from logins l where has_database_privilege(l.oid, current_database(), 'create, temporary')
       union all
       select concat_ws(' ', l.rolname, 'has triggers on', c.oid::regclass) from logins l, pg_class c
        where c.relkind in ('r', 'p', 'v', 'm', 'f') and has_table_privilege(l.oid, c.oid, 'trigger')`,
    );
    expect(found).toEqual([]);
  });

  test('tables belong to posthorn_owner, the key that signs proofs to the prover, views to the engine', async () => {
    const found = await column(
      `select distinct concat_ws(' ', c.relnamespace::regnamespace, c.relkind, pg_get_userbyid(c.relowner)) from pg_class c
        where c.relnamespace = any ($1::regnamespace[]) order by 1`,
      [OUR_SCHEMAS],
    );
    expect(found).toEqual([
      'ops v posthorn_engine',
      'posthorn S posthorn_owner',
      'posthorn i posthorn_owner',
      'posthorn r posthorn_owner',
      // types of rows
      'posthorn_impl c posthorn_engine',
      'posthorn_secret i posthorn_prover',
      'posthorn_secret r posthorn_prover',
    ]);
  });

  test('pods may read no table, view or sequence, in any column, but the ledger of migrations', async () => {
    const found = await column(
      `select distinct c.oid::regclass from pg_class c
        cross join (values ('select'), ('insert'), ('update'), ('references')) p(privilege)
        where c.relnamespace not in ('pg_catalog'::regnamespace, 'information_schema'::regnamespace)
          and c.relkind in ('r', 'p', 'v', 'm', 'f')
          and has_any_column_privilege('posthorn_app', c.oid, p.privilege)
       union
       select c.oid::regclass from pg_class c
        where c.relkind in ('r', 'p', 'v', 'm', 'f') and c.relnamespace not in ('pg_catalog'::regnamespace, 'information_schema'::regnamespace)
          and has_table_privilege('posthorn_app', c.oid, 'insert, update, delete, truncate, references, trigger')
       union
       select c.oid::regclass from pg_class c
        where case c.relkind when 'S' then has_sequence_privilege('posthorn_app', c.oid, 'usage, select, update') end
       order by 1`,
    );
    expect(found).toEqual(['posthorn_migrations.applied', 'posthorn_migrations.current']);
    expect(
      await column(
        `select c.oid::regclass from pg_class c
          where c.relnamespace = 'posthorn_migrations'::regnamespace and c.relkind = 'r'
            and has_table_privilege('posthorn_app', c.oid, 'insert, update, delete, truncate, references, trigger')`,
      ),
    ).toEqual([]);
  });

  test('pods may call functions of posthorn_api and no other', async () => {
    expect(
      await column(
        `select distinct n.nspname from pg_proc p join pg_namespace n on n.oid = p.pronamespace
          where n.nspname not in ('pg_catalog', 'information_schema')
            and has_function_privilege('posthorn_app', p.oid, 'execute') and has_schema_privilege('posthorn_app', n.oid, 'usage')`,
      ),
    ).toEqual(['posthorn_api']);
  });

  test('workers may call what keeps deadlines, and only delete, where their policies let them', async () => {
    expect(
      await column(
        `select f.name from (${OUR_FUNCTIONS}) f where has_function_privilege('posthorn_jobs', f.oid, 'execute') order by 1`,
      ),
    ).toEqual([
      'posthorn_api.beat_worker',
      'posthorn_api.claim_deliveries',
      'posthorn_api.claim_pushes',
      'posthorn_api.delete_deleted_accounts',
      'posthorn_api.delete_expired_credentials',
      'posthorn_api.delete_outdated',
      'posthorn_api.end_worker',
      'posthorn_api.expire_messages',
      'posthorn_api.expire_proposals',
      'posthorn_api.recognise_server',
      'posthorn_api.record_attempts',
      'posthorn_api.record_push',
      'posthorn_api.ring_keys',
      'posthorn_api.server_secret',
      'posthorn_impl.clock',
      'posthorn_impl.delete_expired_records',
      'posthorn_impl.expire_owner_proposals',
      'posthorn_impl.expire_owners_messages',
      'posthorn_impl.kept_since',
      'posthorn_impl.refuse',
    ]);
    const tables = await column(`select t.relname from (${TENANT_TABLES}) t`);
    expect((await writable('posthorn_jobs')).toSorted()).toEqual(
      [
        ...tables.map((table) => `posthorn.${table} DELETE`),
        'posthorn.worker_heartbeats DELETE',
        'posthorn.worker_heartbeats.heard_at INSERT',
        'posthorn.worker_heartbeats.heard_at UPDATE',
        'posthorn.worker_heartbeats.worker_id INSERT',
        'posthorn.worker_heartbeats.worker_id UPDATE',
      ].toSorted(),
    );
  });

  test('operators call nothing that changes anything, and write nowhere', async () => {
    expect(
      await column(
        `select f.name from (${OUR_FUNCTIONS}) f where has_function_privilege('posthorn_ops', f.oid, 'execute') order by 1`,
      ),
    ).toEqual(['posthorn_impl.clock', 'posthorn_impl.present_state']);
    expect(await writable('posthorn_ops')).toEqual([]);
  });

  test('the person at the server changes limits, suspensions and the wrapping of keys, and everything else by functions', async () => {
    expect((await writable('posthorn_admin')).toSorted()).toEqual([
      ...['act', 'occurred_at', 'owner_id', 'subject_id'].map((name) => `posthorn.audit_entries.${name} INSERT`),
      'posthorn.limits.value UPDATE',
      'posthorn.owner_keys.ring_key_id UPDATE',
      'posthorn.owner_keys.wrapped_key UPDATE',
      'posthorn.owners.suspended_at UPDATE',
      'posthorn.ring_keys DELETE',
      'posthorn.server_secrets.ring_key_id UPDATE',
      'posthorn.server_secrets.sealed UPDATE',
    ]);
    expect(
      await column(
        `select f.name from (${OUR_FUNCTIONS}) f
          where f.nspname not in ('ops', 'posthorn_api') and has_function_privilege('posthorn_admin', f.oid, 'execute') order by 1`,
      ),
      // what functions of theirs, which run with their rights, call; and constraints of the rows that these change
    ).toEqual(['posthorn.make_id', 'posthorn.shows_ink', 'posthorn_impl.clock', 'posthorn_impl.refuse']);
  });

  test('operators read no label, body, credential or key', async () => {
    const hidden = await column(
      `select c.relname || '.' || a.attname from pg_class c
         join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
        where c.relnamespace = 'posthorn'::regnamespace and c.relkind = 'r'
          and not has_column_privilege('posthorn_ops', c.oid, a.attnum, 'select') order by 1`,
    );
    expect(hidden).toEqual(expect.arrayContaining(HIDDEN_FROM_OPERATORS));
    // whatever could hold words or secrets and is not hidden is one of these, whose values are ours
    const readable = await column(
      `select c.relname || '.' || a.attname from pg_class c
         join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
        where c.relnamespace = 'posthorn'::regnamespace and c.relkind = 'r' and a.atttypid in ('text'::regtype, 'bytea'::regtype, 'text[]'::regtype, 'jsonb'::regtype)
          and has_column_privilege('posthorn_ops', c.oid, a.attnum, 'select') order by 1`,
    );
    expect(readable).toEqual([
      'agents.origin_kind',
      'agents.revoked_by',
      'agents.runtime',
      'audit_entries.act',
      'connections.kind',
      'connections.scopes',
      'conversations.kind',
      'deliveries.event_state',
      'deliveries.kind',
      'deliveries.state',
      'delivery_attempts.problem',
      'events.kind',
      'events.state',
      'idempotency_keys.operation',
      'limits.description',
      'limits.name',
      'mailboxes.webhook_events',
      'message_transitions.from_state',
      'message_transitions.to_state',
      'messages.state',
      'owner_keys.ring_key_id',
      'proposal_transitions.from_state',
      'proposal_transitions.to_state',
      'proposals.kind',
      'proposals.reason',
      'proposals.state',
      'ring_keys.ring_key_id',
      'webhooks.disabled_reason',
      'webhooks.events',
      'webhooks.status',
      'worker_heartbeats.worker_id',
    ]);
  });

  test('nothing of ours is open to everybody', async () => {
    expect(
      await column(
        `select f.name from (${OUR_FUNCTIONS}) f
          where exists (select from aclexplode(coalesce(f.proacl, acldefault('f', f.proowner))) a where a.grantee = 0)
         union all
         select c.oid::regclass::text from pg_class c
          where c.relnamespace = any ($1::regnamespace[]) and exists (select from aclexplode(c.relacl) a where a.grantee = 0)
         union all
         select n.nspname from pg_namespace n
          where n.oid = any ($1::regnamespace[]) and exists (select from aclexplode(n.nspacl) a where a.grantee = 0)`,
        [OUR_SCHEMAS],
      ),
    ).toEqual([]);
  });

  test('nobody of ours makes temporary objects, or any in the schemas of others', async () => {
    expect(
      await column(
        `select r from unnest($1::text[]) r where has_database_privilege(r, current_database(), 'temporary, create')`,
        [ROLES],
      ),
    ).toEqual([]);
    const makers = await column(
      `select concat_ws(' ', r, n.nspname) from unnest($1::text[]) r cross join pg_namespace n
        where n.nspname not like 'pg\\_%' and has_schema_privilege(r, n.oid, 'create') and pg_get_userbyid(n.nspowner) <> r order by 1`,
      [ROLES],
    );
    // the prover's own functions stand in the schemas of the engine
    expect(makers).toEqual(['posthorn_prover ops', 'posthorn_prover posthorn_impl']);
  });

  test('nobody moves a row to another owner', async () => {
    expect(
      await column(
        `select concat_ws(' ', r, t.relname) from unnest($1::text[]) r cross join (${TENANT_TABLES}) t
           join pg_attribute a on a.attrelid = t.oid and a.attname = 'owner_id'
          where r <> 'posthorn_owner' and has_column_privilege(r, t.oid, a.attnum, 'update')`,
        [ROLES],
      ),
    ).toEqual([]);
  });

  test('what is written once and for all can be updated by nobody', async () => {
    for (const [table, columns] of Object.entries({
      messages: [
        'message_id',
        'recipient_agent_id',
        'sender_agent_id',
        'connection_id',
        'post_id',
        'reply_to',
        'proposal_id',
        'hold_id',
        'created_at',
      ],
      proposals: [
        'proposal_id',
        'kind',
        'proposer_agent_id',
        'agent_ids',
        'conversation_id',
        'project_boundary',
        'created_at',
        'expires_at',
      ],
      held_bodies: ['proposal_id', 'position', 'message_id', 'ciphertext'],
      bodies: ['message_id', 'recipient_agent_id', 'seq', 'ciphertext'],
      agents: ['agent_id', 'connection_id', 'installation', 'created_at'],
      connections: ['connection_id', 'kind', 'scopes', 'parent_connection_id', 'agent_id', 'created_at'],
      idempotency_keys: ['key', 'fingerprint', 'message_ids', 'post_id'],
      events: ['seq', 'kind', 'subject_id', 'state'],
      audit_entries: ['act', 'subject_id', 'occurred_at'],
      owner_keys: ['owner_id'],
      webhooks: ['webhook_id', 'agent_id', 'wake_number', 'created_at'],
      deliveries: [
        'delivery_id',
        'webhook_id',
        'event_seq',
        'kind',
        'subject_id',
        'event_state',
        'occurred_at',
        'created_at',
      ],
      delivery_attempts: ['delivery_id', 'attempt', 'attempted_at', 'milliseconds', 'http_status', 'problem'],
      push_subscriptions: ['subscription_id', 'connection_id', 'endpoint_hash', 'sealed_subscription', 'created_at'],
    })) {
      for (const name of columns) {
        const writers = await column(
          `select r from unnest($1::text[]) r where r <> 'posthorn_owner' and has_column_privilege(r, $2::regclass, $3, 'update')`,
          [ROLES, `posthorn.${table}`, name],
        );
        expect(writers, `${table}.${name}`).toEqual([]);
      }
    }
  });

  test('a message is placed once: the engine may place a held one, and a trigger guards those that were', async () => {
    const placing = ['conversation_id', 'group_id', 'seq'];
    expect(
      await column(
        `select a.attname || ' ' || r from unnest($1::text[]) r cross join pg_attribute a
          where a.attrelid = 'posthorn.messages'::regclass and a.attname = any ($2) and r <> 'posthorn_owner'
            and has_column_privilege(r, a.attrelid, a.attnum, 'update') order by 1`,
        [ROLES, placing],
      ),
    ).toEqual(placing.map((name) => `${name} posthorn_engine`));
    expect(
      await column(
        `select a.attname from pg_trigger t cross join unnest(t.tgattr) n(attnum)
           join pg_attribute a on a.attrelid = t.tgrelid and a.attnum = n.attnum
          where t.tgname = '_100_keep_place' and t.tgrelid = 'posthorn.messages'::regclass and t.tgenabled = 'O' order by 1`,
      ),
    ).toEqual(placing);
  });
});

describe('functions', () => {
  test('each has a comment that is a sentence', async () => {
    expect(
      await column(
        `select f.oid::regprocedure from (${OUR_FUNCTIONS}) f where coalesce(obj_description(f.oid, 'pg_proc'), '') !~ '^[A-Z][^.]+.*[.\\]]$'`,
      ),
    ).toEqual([]);
    expect(
      await column(
        `select c.oid::regclass from pg_class c where c.relnamespace = 'ops'::regnamespace and c.relkind = 'v' and coalesce(obj_description(c.oid, 'pg_class'), '') !~ '^[A-Z].*\\.$'`,
      ),
    ).toEqual([]);
  });

  // With an empty path the session's temporary schema comes first, and a pod's own type pg_temp.text ran as the prover.
  test('each looks for names in pg_catalog first and in the temporary schema last', async () => {
    expect(
      await column(
        `select f.oid::regprocedure from (${OUR_FUNCTIONS}) f where not coalesce(f.proconfig, '{}') @> array['search_path=pg_catalog, pg_temp']`,
      ),
    ).toEqual([]);
  });

  test('those with the rights of their owner belong to the engine or the prover, and those that fill the queue to nobody else', async () => {
    expect(
      await column(
        `select f.oid::regprocedure || ' of ' || f.owner from (${OUR_FUNCTIONS}) f where f.prosecdef and f.owner not in ('posthorn_engine', 'posthorn_prover') order by 1`,
      ),
    ).toEqual([
      'posthorn_impl.add_drains(uuid[],interval[]) of posthorn_enqueuer',
      'posthorn_impl.add_push(uuid,interval) of posthorn_enqueuer',
    ]);
  });

  test('those of the prover are few, since it reads the key that signs proofs', async () => {
    expect(
      await column(`select f.name from (${OUR_FUNCTIONS}) f where f.owner = 'posthorn_prover' order by 1`),
    ).toEqual([
      'ops.act_as_owner',
      'ops.list_owners',
      'posthorn_impl.admit_owners',
      'posthorn_impl.find_owner',
      'posthorn_impl.find_place',
      'posthorn_impl.owners_after',
      'posthorn_impl.owners_of_webhooks',
      'posthorn_impl.prove',
      'posthorn_impl.prove_grant_token',
      'posthorn_impl.prove_link',
      'posthorn_impl.prove_openid_account',
      'posthorn_impl.prove_passkey',
      'posthorn_impl.proved_owners',
      'posthorn_impl.require_same_server',
      'posthorn_impl.sign_proof',
    ]);
  });

  test('those that write, lock, notify or tell the time are volatile', async () => {
    expect(
      await column(
        `select f.oid::regprocedure from (${OUR_FUNCTIONS}) f
          where f.provolatile <> 'v'
            and f.prosrc ~* '\\m(insert into|update [a-z_.]+ [a-z_]+\\s+set|delete from|pg_notify|set_config|nextval|for no key update|for update|clock_timestamp|gen_random_uuid)\\M'`,
      ),
    ).toEqual([]);
  });

  test('none promises to be calmer than a function that it calls', async () => {
    const rank = `array_position('{i,s,v}', %I.provolatile::text)`;
    expect(
      await column(
        `select distinct f.oid::regprocedure || ' calls ' || g.name from (${OUR_FUNCTIONS}) f join (${OUR_FUNCTIONS}) g
             on f.prosrc ~ ('\\m' || replace(g.name, '.', '\\.') || '\\(')
          where ${rank.replace('%I', 'f')} < ${rank.replace('%I', 'g')}`,
      ),
    ).toEqual([]);
  });

  test('no name stands for two', async () => {
    expect(
      await column(
        `select f.name from (${OUR_FUNCTIONS}) f where f.nspname = any ($1) group by 1 having count(*) > 1`,
        [CODE_SCHEMAS],
      ),
    ).toEqual([]);
  });

  test('arguments are named p_ and names start with a verb or say what they answer', async () => {
    expect(
      await column(
        `select f.oid::regprocedure from (${OUR_FUNCTIONS}) f
          where exists (select from unnest(f.proargnames[: f.pronargs]) a where a !~ '^p_[a-z_]+$') or (f.pronargs > 0 and f.proargnames is null)`,
      ),
    ).toEqual([]);
  });
});

describe('tables', () => {
  test('every text, array and bytea column has an upper bound', async () => {
    expect(
      await column(
        `select c.relname || '.' || a.attname from pg_class c
           join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
           join pg_type t on t.oid = a.atttypid
          where c.relnamespace in ('posthorn'::regnamespace, 'posthorn_secret'::regnamespace) and c.relkind = 'r'
            and (t.typcategory in ('S', 'A') or t.typname in ('bytea', 'json', 'jsonb'))
            -- bounded by a check, or by what it refers to
            and not exists (
              select from pg_constraint k
               where k.conrelid = c.oid and a.attnum = any (k.conkey)
                 and (k.contype = 'f' or (k.contype = 'c' and pg_get_constraintdef(k.oid) ~ '(char_length|octet_length|cardinality|~|ANY|<@)')))
          order by 1`,
      ),
      // filled by a migration alone
    ).toEqual([
      'message_transitions.from_state',
      'message_transitions.to_state',
      'proposal_transitions.from_state',
      'proposal_transitions.to_state',
    ]);
  });

  test('constraints that a caller may meet are sentences', async () => {
    expect(
      await column(
        `select k.conname from pg_constraint k
          where k.connamespace = any ($1::regnamespace[]) and k.contype in ('c', 'u', 'x')
            and (k.conname ~ '^[a-z_]+(_check|_key|_excl)[0-9]*$' and k.conname <> 'there_is_only_one_key' or k.conname !~ '^[a-z0-9]+(_[a-z0-9]+){2,}$')`,
        [OUR_SCHEMAS],
      ),
    ).toEqual([]);
  });

  test("every key and index of a tenant's table starts with its owner", async () => {
    expect(
      await column(
        `select i.indexrelid::regclass::text from pg_index i join (${TENANT_TABLES}) t on t.oid = i.indrelid
           join pg_attribute a on a.attrelid = i.indrelid and a.attnum = i.indkey[0]
          where a.attname <> 'owner_id' order by 1`,
      ),
    ).toEqual(Object.keys(KEYS_WITHOUT_OWNER).map((name) => `posthorn.${name}`));
  });

  test("every reference of a tenant's table starts with its owner, on both sides", async () => {
    expect(
      await column(
        `select k.conname from pg_constraint k join (${TENANT_TABLES}) t on t.oid = k.conrelid
           join pg_attribute a on a.attrelid = k.conrelid and a.attnum = k.conkey[1]
           join pg_attribute b on b.attrelid = k.confrelid and b.attnum = k.confkey[1]
          where k.contype = 'f' and (a.attname <> 'owner_id' or b.attname <> 'owner_id') order by 1`,
      ),
    ).toEqual(Object.keys(FOREIGN_KEYS_WITHOUT_OWNER));
  });

  test('what belongs to a row goes with it', async () => {
    expect(
      await column(
        `select k.conname from pg_constraint k where k.connamespace = 'posthorn'::regnamespace and k.contype = 'f' and k.confdeltype <> 'c' order by 1`,
      ),
    ).toEqual(Object.keys(FOREIGN_KEYS_THAT_RESTRICT));
  });

  test('every reference that cascades has an index to find its rows by', async () => {
    expect(
      await column(
        `select k.conname from pg_constraint k
          where k.connamespace = 'posthorn'::regnamespace and k.contype = 'f' and k.confdeltype = 'c'
            and not exists (
              select from pg_index i where i.indrelid = k.conrelid
                 -- one of part of the rows serves where it leaves out those without a reference
                 and (i.indpred is null or pg_get_expr(i.indpred, i.indrelid) ~ '^\\(\\w+ IS NOT NULL\\)$')
                 and (i.indkey::int2[])[0 : cardinality(k.conkey) - 1] @> k.conkey::int2[])`,
      ),
    ).toEqual([]);
  });

  test('every tenant table that needs no parent row has its owner as parent', async () => {
    expect(
      await column(
        `select t.relname from (${TENANT_TABLES}) t
          where t.relname <> 'owners' and not exists (select from pg_constraint k where k.conrelid = t.oid and k.contype = 'f') order by 1`,
      ),
      // of the hot path: each foreign key costs about 8 microseconds a row, and ops.invariants looks instead; presence
      // and streams are leases in unlogged tables
    ).toEqual(['bodies', 'events', 'idempotency_keys', 'posts', 'presence', 'streams']);
  });

  test('nothing in the tables depends on code, which is dropped and made anew', async () => {
    expect(
      await column(
        `with code as (
           select 'pg_proc'::regclass as classid, p.oid from pg_proc p where p.pronamespace = any ($1::regnamespace[])
           union all select 'pg_class'::regclass, c.oid from pg_class c where c.relnamespace = any ($1::regnamespace[])
           union all select 'pg_type'::regclass, t.oid from pg_type t where t.typnamespace = any ($1::regnamespace[]))
         select distinct pg_describe_object(d.classid, d.objid, d.objsubid) || ' on ' || pg_describe_object(d.refclassid, d.refobjid, d.refobjsubid)
           from pg_depend d join code on code.classid = d.refclassid and code.oid = d.refobjid
          where d.classid not in ('pg_policy'::regclass, 'pg_trigger'::regclass, 'pg_rewrite'::regclass)
            and (d.classid, d.objid) not in (select code.classid, code.oid from code)
            and d.deptype <> 'i'`,
        [CODE_SCHEMAS],
      ),
    ).toEqual([]);
  });

  test('times know their zone, and no column has a type that another server may lack', async () => {
    expect(
      await column(
        `select c.relname || '.' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod) from pg_class c
           join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
          where c.relnamespace = 'posthorn'::regnamespace and c.relkind = 'r'
            and format_type(a.atttypid, a.atttypmod) <> all ('{integer,bigint,text,uuid,bytea,boolean,timestamp with time zone,text[],uuid[],integer[],timestamp with time zone[]}')`,
      ),
    ).toEqual([]);
  });
});

describe('errors', () => {
  interface Documented {
    sqlstate: string;
    code: string;
    status: number;
    retryable: boolean;
  }

  /** The rows of a table of sql/errors.md, by its first column. */
  async function documented(heading: string): Promise<string[][]> {
    const text = await readFile(join(packageRoot, 'sql', 'errors.md'), 'utf8');
    const section = text.split(/^## /m).find((part) => part.startsWith(heading)) ?? '';
    const table = section.split('\n').filter((line) => line.startsWith('| `'));
    return table.map((line) =>
      line
        .split('|')
        .slice(1, -1)
        .map((cell) => cell.trim().replaceAll('`', '')),
    );
  }

  test('every SQLSTATE that is raised is mapped and documented, and the reverse', async () => {
    const raised = await column(
      `select distinct (regexp_matches(f.prosrc, '''(MH[A-Z0-9]{3})''', 'g'))[1] as state from (${OUR_FUNCTIONS}) f order by 1`,
    );
    const rows = await documented('SQLSTATEs');
    expect(raised).toEqual(Object.keys(SQLSTATES).toSorted());
    expect(rows.map((row) => row[0]).toSorted()).toEqual(raised);
  });

  test('what is documented of each SQLSTATE is what the doors answer', async () => {
    const rows: Documented[] = (await documented('SQLSTATEs')).map(([sqlstate = '', code = '', status, retryable]) => ({
      sqlstate,
      code,
      status: Number(status),
      retryable: retryable === 'yes',
    }));
    expect(rows).toEqual(
      rows.map(({ sqlstate }) => {
        const code = SQLSTATES[sqlstate]!;
        return { sqlstate, code, status: ERRORS[code].status, retryable: ERRORS[code].retryable };
      }),
    );
  });

  test('every code that a function raises is known to refuse()', async () => {
    const raised = await column(
      `select distinct (regexp_matches(f.prosrc, 'refuse\\(''([a-z_]+)''', 'g'))[1] from (${OUR_FUNCTIONS}) f order by 1`,
    );
    const { rows } = await database.admin.query(
      `select prosrc from pg_proc where oid = 'posthorn_impl.refuse(text, jsonb)'::regprocedure`,
    );
    const known = [...rows[0].prosrc.matchAll(/when '([a-z_]+)' then '(MH...)'/g)].map(([, code, state]) => ({
      code,
      state,
    }));
    expect(raised.filter((code) => !known.some((one) => one.code === code))).toEqual([]);
    expect(
      known.map(({ code, state }) => [state, code === 'limit_reached' ? 'invalid_request' : code]).toSorted(),
    ).toEqual(Object.entries(SQLSTATES).toSorted());
  });

  test('every outcome of a send is documented, and is a code of the contract where it is a refusal', async () => {
    const { rows } = await database.admin.query(
      `select string_agg(p.prosrc, ' ') as text from pg_proc p
        where p.pronamespace = 'posthorn_impl'::regnamespace and p.proname in ('address_sends', 'apply_sends', 'identify')
           or p.oid::regproc = 'posthorn_api.send_messages'::regproc`,
    );
    const written = new Set([...rows[0].text.matchAll(/(?:then|else) '([a-z_]+)'/g)].map(([, code]) => code));
    // kinds, and what never leaves
    for (const name of ['group', 'pair', 'new', 'renew', 'continue', 'conversation_missing', 'contended', 'hold'])
      written.delete(name);
    // where the owner must be asked, an outcome is the state of the message or what the request is refused with
    written.add('held');
    const asking = await column(
      `select (regexp_matches(f.prosrc, 'refuse\\(''([a-z_]+)''', 'g'))[1] from (${OUR_FUNCTIONS}) f
        where f.name in ('posthorn_impl.hold_send', 'posthorn_impl.open_proposal', 'posthorn_impl.apply_approval')`,
    );
    for (const code of asking) written.add(code);
    const outcomes = await documented('Outcomes of send_messages');
    expect(outcomes.map(([code]) => code).toSorted()).toEqual([...written].toSorted());
    const refusals = outcomes.filter(([code]) => !['queued', 'held', 'replayed', 'stale_plan'].includes(code!));
    expect(refusals.map(([code, status, retryable]) => [code, status, retryable])).toEqual(
      refusals.map(([code]) => {
        const { status, retryable } = ERRORS[code as keyof typeof ERRORS];
        return [code, String(status), retryable ? 'yes' : 'no'];
      }),
    );
  });
});

/** The columns of our tables that a role may write to, and the tables that it may delete from. */
async function writable(role: string): Promise<string[]> {
  return await column(
    `select c.oid::regclass || '.' || a.attname || ' ' || p.privilege from pg_class c
       join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
      cross join (values ('INSERT'), ('UPDATE')) p(privilege)
      where c.relnamespace = any ($2::regnamespace[]) and c.relkind in ('r', 'v') and has_column_privilege($1, c.oid, a.attnum, p.privilege)
     union all
     select c.oid::regclass || ' ' || p.privilege from pg_class c cross join (values ('DELETE'), ('TRUNCATE')) p(privilege)
      where c.relnamespace = any ($2::regnamespace[]) and c.relkind in ('r', 'v') and has_table_privilege($1, c.oid, p.privilege)`,
    [role, OUR_SCHEMAS],
  );
}

/** Majors of PostgreSQL print the same expression with other parentheses. */
function withoutParentheses(expression: string): string {
  return expression.toLowerCase().replaceAll(/[()\s]/g, '');
}
