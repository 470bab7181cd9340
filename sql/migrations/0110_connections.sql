set local role posthorn_owner;

create table posthorn.connections (
  owner_id int not null references posthorn.owners on delete cascade,
  connection_id uuid not null default posthorn.make_id(),
  kind text not null constraint kind_is_known check (kind in ('service', 'device', 'child', 'oauth', 'session')),
  label text not null constraint label_has_1_to_64_characters check (char_length(label) between 1 and 64) constraint label_is_one_line check (label !~ U&'[\0001-\001F\007F-\009F\2028\2029]'),
  -- SHA-256 of the credential; the credential itself is shown once and stored nowhere
  credential_hash bytea not null constraint credential_hash_is_sha256 check (octet_length(credential_hash) = 32),
  scopes text[] not null constraint scopes_are_known check (scopes <@ array['messaging', 'functions', 'execute', 'owner'] and cardinality(scopes) between 1 and 4),
  parent_connection_id uuid,
  agent_id uuid, -- the one agent that a child acts as
  created_at timestamptz not null,
  expires_at timestamptz not null default 'infinity',
  last_used_at timestamptz,
  revoked_at timestamptz,
  primary key (owner_id, connection_id),
  foreign key (owner_id, parent_connection_id) references posthorn.connections on delete cascade,
  constraint credentials_are_unique unique (credential_hash),
  constraint a_child_has_parent_and_agent check ((kind = 'child') = (parent_connection_id is not null) and (kind <> 'child' or agent_id is not null)),
  constraint only_sessions_act_as_owner check (kind = 'session' or not scopes @> array['owner'])
) with (fillfactor = 90);

create index connections_by_parent on posthorn.connections (owner_id, parent_connection_id) where parent_connection_id is not null;
