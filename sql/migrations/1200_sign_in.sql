set local role posthorn_owner;

insert into posthorn.limits (name, value, minimum, maximum, description) values
  ('sessions_per_owner', 20, 1, 1000, 'browsers that one owner is signed in with; the oldest is signed out for a newcomer'),
  ('failed_sign_ins', 20, 1, 1000000, 'sign-ins that fail from one address in 15 minutes before it must wait');

-- A one-time link: it makes a session for whoever opens it first.
create table posthorn.sign_in_links (
  owner_id int not null references posthorn.owners on delete cascade,
  link_id uuid not null default posthorn.make_id(),
  link_hash bytea not null constraint link_hash_is_sha256 check (octet_length(link_hash) = 32),
  created_at timestamptz not null,
  expires_at timestamptz not null,
  primary key (owner_id, link_id),
  constraint links_are_unique_everywhere unique (link_hash)
);

-- How often something was tried from where: addresses are hashed into 65,536 buckets, so that no flood of addresses
-- makes it grow. Unlogged: a crash forgives.
create unlogged table posthorn.attempts (
  act text not null constraint act_is_known check (act = any ('{sign_in,register_client,authorize,ask_device_code}')),
  bucket int not null constraint bucket_has_16_bits check (bucket between 0 and 65535),
  attempts int not null,
  counted_until timestamptz not null,
  primary key (act, bucket)
) with (fillfactor = 50);
