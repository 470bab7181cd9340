set local role posthorn_owner;

-- A thread has the nil UUID in place of its two agents: equality can use the unique index,
-- "is not distinct from" could not.
create table posthorn.conversations (
  owner_id int not null,
  conversation_id uuid not null default posthorn.make_id(),
  kind text not null constraint kind_is_known check (kind in ('pair', 'group')),
  group_id uuid not null,
  generation int not null,
  agent_low uuid not null,
  agent_high uuid not null,
  posts int not null default 0,
  continuations int not null default 0,
  created_at timestamptz not null,
  primary key (owner_id, conversation_id),
  foreign key (owner_id, group_id) references posthorn.groups on delete cascade,
  constraint one_conversation_per_generation_and_pair unique (owner_id, group_id, generation, agent_low, agent_high),
  constraint a_pair_is_ordered_and_a_thread_is_nil check (
    case kind when 'pair' then agent_low < agent_high else agent_low = agent_high and agent_low = '00000000-0000-0000-0000-000000000000' end)
) with (fillfactor = 70);

create table posthorn.posts (
  owner_id int not null,
  post_id uuid not null,
  conversation_id uuid not null,
  sender_agent_id uuid not null,
  message_ids uuid[] not null constraint a_post_has_1_to_15_copies check (cardinality(message_ids) between 1 and 15),
  created_at timestamptz not null,
  primary key (owner_id, post_id)
);

-- Receipts. No column that changes is indexed, so a state change is a HOT update. Foreign keys are
-- two, since each costs about 8 microseconds a row; ops.invariants checks what the others would.
create table posthorn.messages (
  owner_id int not null,
  message_id uuid not null,
  state text not null,
  recipient_agent_id uuid not null,
  seq bigint not null,
  sender_agent_id uuid not null,
  connection_id uuid not null,
  group_id uuid not null,
  conversation_id uuid not null,
  post_id uuid,
  reply_to uuid,
  created_at timestamptz not null,
  expires_at timestamptz not null,
  delivered_at timestamptz,
  admitted_at timestamptz,
  acknowledged_at timestamptz,
  processed_at timestamptz,
  replied_at timestamptz,
  ended_at timestamptz,
  primary key (owner_id, message_id),
  foreign key (owner_id, conversation_id) references posthorn.conversations,
  foreign key (owner_id, recipient_agent_id) references posthorn.agents,
  constraint state_is_known check (state in ('held', 'queued', 'delivered', 'acknowledged', 'replied', 'denied', 'expired', 'revoked'))
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);

-- What a state may become; whatever is not here changes nothing.
create table posthorn.message_transitions (
  from_state text not null,
  to_state text not null,
  primary key (from_state, to_state)
);
insert into posthorn.message_transitions (from_state, to_state) values
  ('held', 'queued'), ('held', 'denied'), ('held', 'expired'), ('held', 'revoked'),
  ('queued', 'delivered'), ('queued', 'acknowledged'), ('queued', 'replied'), ('queued', 'expired'), ('queued', 'revoked'),
  ('delivered', 'acknowledged'), ('delivered', 'replied'), ('delivered', 'expired'), ('delivered', 'revoked'),
  ('acknowledged', 'replied');

-- A body exists exactly while its message can be read, so its key is the inbox index and fencing is
-- a delete. A client reads it in order of seq.
create table posthorn.bodies (
  owner_id int not null,
  recipient_agent_id uuid not null,
  seq bigint not null,
  message_id uuid not null,
  expires_at timestamptz not null,
  ciphertext bytea not null constraint ciphertext_is_bounded check (octet_length(ciphertext) between 30 and 80100),
  primary key (owner_id, recipient_agent_id, seq)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);
-- Ciphertext does not compress.
alter table posthorn.bodies alter column ciphertext set storage external;
