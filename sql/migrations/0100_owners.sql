set local role posthorn_owner;

-- One owner is one tenant. The integer never leaves the database: it is first in every key, where
-- four bytes instead of sixteen keep indexes and proofs small.
create table posthorn.owners (
  owner_id int generated always as identity primary key,
  id uuid not null default posthorn.make_id() constraint owner_ids_are_unique unique,
  label text not null constraint label_has_1_to_64_characters check (char_length(label) between 1 and 64) constraint label_is_one_line check (label !~ U&'[\0001-\001F\007F-\009F\2028\2029]'),
  automatic_approval boolean not null default false,
  sensitive_content_check boolean not null default true,
  created_at timestamptz not null,
  suspended_at timestamptz
);

-- Names of the keys of the server's ring that were ever used here, each with a known text sealed under
-- it, so that a server can tell at start whether it holds the right ring. The ring itself is never in
-- the database.
create table posthorn.ring_keys (
  ring_key_id text primary key constraint ring_key_id_has_1_to_64_characters check (char_length(ring_key_id) between 1 and 64),
  proof bytea not null constraint proof_is_bounded check (octet_length(proof) between 16 and 256),
  created_at timestamptz not null
);

-- An owner's data key, wrapped by a key of the ring.
create table posthorn.owner_keys (
  owner_id int primary key references posthorn.owners on delete cascade,
  ring_key_id text not null references posthorn.ring_keys,
  wrapped_key bytea not null constraint wrapped_key_is_bounded check (octet_length(wrapped_key) between 32 and 256)
);

-- Every number that an operator may change; a change takes effect for the next transaction.
create table posthorn.limits (
  name text primary key constraint limit_name_is_bounded check (char_length(name) between 1 and 64),
  value bigint not null,
  minimum bigint not null,
  maximum bigint not null,
  description text not null constraint limit_description_is_bounded check (char_length(description) between 1 and 200),
  constraint value_is_in_range check (value between minimum and maximum)
);

insert into posthorn.limits (name, value, minimum, maximum, description) values
  ('conversation_posts', 20, 1, 1000000000, 'posts in a conversation before it pauses; each continuation adds as many'),
  ('group_posts_per_minute', 30, 1, 1000000000, 'posts of one collaboration in any 60 seconds'),
  ('inbox_messages', 100, 1, 1000000000, 'unfenced messages in one agent''s inbox'),
  ('message_life_seconds', 86400, 1, 2592000, 'life of a queued message, unless its group expires first'),
  ('agents_per_owner', 500, 2, 1000000, 'agents of one owner that are not revoked'),
  ('active_groups_per_owner', 200, 1, 1000000, 'groups of one owner that are neither expired nor revoked'),
  ('connections_per_owner', 200, 1, 1000000, 'connections of one owner that are neither expired nor revoked');
