set local role posthorn_owner;

create table posthorn.agents (
  owner_id int not null references posthorn.owners on delete cascade,
  agent_id uuid not null default posthorn.make_id(),
  connection_id uuid not null,
  installation text not null constraint installation_is_a_slug check (installation ~ '^[A-Za-z0-9._-]{1,64}$'),
  origin_kind text not null constraint origin_kind_is_known check (origin_kind in ('service', 'device', 'oauth')),
  label text not null constraint label_has_1_to_64_characters check (char_length(label) between 1 and 64) constraint label_is_one_line check (label !~ U&'[\0001-\001F\007F-\009F\2028\2029]'),
  runtime text not null constraint runtime_is_a_slug check (runtime ~ '^[a-z][a-z0-9_-]{0,39}$'),
  runtime_version text constraint runtime_version_has_1_to_40_characters check (char_length(runtime_version) between 1 and 40) constraint runtime_version_is_one_line check (runtime_version !~ U&'[\0001-\001F\007F-\009F\2028\2029]'),
  -- When its connection ends. Kept here so that a send need not look at connections of others:
  -- moved by a trigger on connections.
  reachable_until timestamptz not null default 'infinity',
  created_at timestamptz not null,
  revoked_at timestamptz,
  revoked_by text constraint revoker_is_known check (revoked_by in ('owner', 'agent')),
  primary key (owner_id, agent_id),
  foreign key (owner_id, connection_id) references posthorn.connections on delete cascade,
  constraint one_agent_per_connection_and_installation unique (owner_id, connection_id, installation),
  constraint revoked_by_someone check ((revoked_at is null) = (revoked_by is null))
);

alter table posthorn.connections
  add constraint connections_owner_id_agent_id_fkey foreign key (owner_id, agent_id) references posthorn.agents on delete cascade;
create index connections_by_agent on posthorn.connections (owner_id, agent_id) where agent_id is not null;

-- One narrow row per agent, locked by whoever changes the agent's inbox or event log. Its counters
-- are the gap-free sequences (an identity column lost 1 to 18 % of rows to readers by cursor), and
-- none of them is indexed, so that an update stays HOT. wake_number is short enough that a
-- notification of a whole batch fits into 8,000 bytes.
create table posthorn.mailboxes (
  owner_id int not null,
  agent_id uuid not null,
  wake_number int generated always as identity,
  message_seq bigint not null default 0,
  event_seq bigint not null default 0,
  unfenced int not null default 0 constraint unfenced_is_not_negative check (unfenced >= 0),
  primary key (owner_id, agent_id),
  foreign key (owner_id, agent_id) references posthorn.agents on delete cascade
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);
