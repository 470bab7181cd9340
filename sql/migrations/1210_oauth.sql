set local role posthorn_owner;

insert into posthorn.limits (name, value, minimum, maximum, description) values
  ('unused_oauth_clients', 1000, 1, 1000000, 'registered clients that no owner has consented to yet; the oldest makes room for a newcomer'),
  ('registrations_per_hour', 60, 1, 1000000, 'client registrations from one address in an hour'),
  ('authorizations_per_hour', 600, 1, 1000000, 'authorization or device requests from one address in an hour');

-- What the authorization server keeps before anybody has consented: registered clients, and requests and device codes
-- under way. Found by the hash of a secret that stands in no row; the content is sealed under the server's secret.
create table posthorn.oauth_records (
  model text not null constraint model_is_known check (model = any ('{Client,Session,Interaction,DeviceCode,ReplayDetection}')),
  id_hash bytea not null constraint id_hash_is_sha256 check (octet_length(id_hash) = 32),
  payload bytea not null constraint payload_is_bounded check (octet_length(payload) <= 65536),
  uid_hash bytea constraint uid_hash_is_sha256 check (octet_length(uid_hash) = 32),
  user_code_hash bytea constraint user_code_hash_is_sha256 check (octet_length(user_code_hash) = 32),
  created_at timestamptz not null,
  consumed_at timestamptz,
  expires_at timestamptz not null,
  primary key (model, id_hash)
);
create unique index oauth_records_by_uid on posthorn.oauth_records (model, uid_hash) where uid_hash is not null;
create unique index oauth_records_by_user_code on posthorn.oauth_records (model, user_code_hash) where user_code_hash is not null;
create index oauth_records_by_end on posthorn.oauth_records (expires_at) where expires_at < 'infinity';
create index unused_oauth_clients on posthorn.oauth_records (created_at) where model = 'Client' and expires_at < 'infinity';

-- A grant is a connection; this is what it has beside one: which client, and the one agent that it acts as.
create table posthorn.oauth_grants (
  owner_id int not null,
  connection_id uuid not null,
  client_id text not null constraint client_id_has_1_to_512_characters check (char_length(client_id) between 1 and 512),
  client_host text not null constraint client_host_has_1_to_255_characters check (char_length(client_host) between 1 and 255),
  agent_id uuid,
  primary key (owner_id, connection_id),
  foreign key (owner_id, connection_id) references posthorn.connections on delete cascade,
  foreign key (owner_id, agent_id) references posthorn.agents on delete cascade
);
create index oauth_grants_by_agent on posthorn.oauth_grants (owner_id, agent_id) where agent_id is not null;

-- The agents of a client, the first of which new grants act as.
alter table posthorn.agents add column client_id text constraint client_id_has_1_to_512_characters check (char_length(client_id) between 1 and 512);
alter table posthorn.agents add constraint an_agent_of_oauth_has_a_client check ((origin_kind = 'oauth') = (client_id is not null));
create index agents_by_client on posthorn.agents (owner_id, client_id) where client_id is not null;

-- What a client holds of a grant, by hash: each is proved by the one before it, and the first by the owner's session.
create table posthorn.grant_tokens (
  owner_id int not null,
  token_hash bytea not null constraint token_hash_is_sha256 check (octet_length(token_hash) = 32),
  connection_id uuid not null,
  kind text not null constraint kind_is_known check (kind in ('grant', 'code', 'device_code', 'refresh', 'access')),
  -- of an access token, what it proves, so that proving needs no other table
  connection_kind text not null constraint connection_kind_is_known check (connection_kind in ('oauth', 'device')),
  scopes text[] not null constraint scopes_are_known check (scopes <@ array['messaging', 'functions'] and cardinality(scopes) <= 2),
  agent_id uuid,
  payload bytea not null constraint payload_is_bounded check (octet_length(payload) <= 65536),
  created_at timestamptz not null,
  consumed_at timestamptz,
  successor_hash bytea constraint successor_hash_is_sha256 check (octet_length(successor_hash) = 32),
  expires_at timestamptz not null,
  primary key (owner_id, token_hash),
  foreign key (owner_id, connection_id) references posthorn.connections on delete cascade,
  constraint tokens_are_unique_everywhere unique (token_hash)
);
create index grant_tokens_by_connection on posthorn.grant_tokens (owner_id, connection_id);

-- The authorization server's own secrets, made once and shared by all pods; sealed under a key of the ring.
create table posthorn.server_secrets (
  only_one boolean primary key default true constraint there_is_only_one_secret check (only_one),
  ring_key_id text not null references posthorn.ring_keys,
  sealed bytea not null constraint sealed_is_bounded check (octet_length(sealed) between 32 and 4096)
);
