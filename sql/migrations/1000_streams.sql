set local role posthorn_owner;

insert into posthorn.limits (name, value, minimum, maximum, description) values
  ('streams_per_connection', 8, 1, 100000, 'event streams that one connection holds open at a time, over all pods');

-- Open event streams, so that pods count them together. Leases and not facts: a pod that dies takes them along 45
-- seconds later, and a crash of the database empties them, which every stream survives by reconnecting.
create unlogged table posthorn.streams (
  owner_id int not null,
  stream_id uuid not null,
  connection_id uuid not null,
  pod_id uuid not null,
  agent_ids uuid[] not null constraint a_stream_has_1_to_100_agents check (cardinality(agent_ids) between 1 and 100),
  opened_at timestamptz not null,
  leased_until timestamptz not null,
  written_at timestamptz not null,
  primary key (owner_id, stream_id)
) with (fillfactor = 50);
create index streams_by_connection on posthorn.streams (owner_id, connection_id);

-- Who is listening, until when. Never decides what is delivered.
create unlogged table posthorn.presence (
  owner_id int not null,
  agent_id uuid not null,
  present_until timestamptz not null,
  primary key (owner_id, agent_id)
) with (fillfactor = 50);
