set local role posthorn_owner;

-- When each worker was last heard of. Unlogged: after a crash of the server every worker is heard of anew.
create unlogged table posthorn.worker_heartbeats (
  worker_id text primary key constraint worker_id_has_1_to_64_characters check (char_length(worker_id) between 1 and 64),
  heard_at timestamptz not null
);
