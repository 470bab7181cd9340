set local role posthorn_owner;

insert into posthorn.limits (name, value, minimum, maximum, description) values
  ('push_subscriptions_per_owner', 20, 1, 1000, 'browsers of one owner that are notified when a request waits');

-- Browsers that are notified when a request waits for their owner. Each belongs to the session that switched it on.
create table posthorn.push_subscriptions (
  owner_id int not null,
  subscription_id uuid not null default posthorn.make_id(),
  connection_id uuid not null, -- the session, which takes it along when it ends
  endpoint_hash bytea not null constraint endpoint_hash_is_sha256 check (octet_length(endpoint_hash) = 32),
  -- address and keys, sealed by a key derived from the owner's data key: whoever knows them can write to the browser
  sealed_subscription bytea not null constraint sealed_subscription_is_bounded check (octet_length(sealed_subscription) between 30 and 4096),
  -- how many requests came since it was switched on, and up to which of them it was told or given up on
  requests_made int not null default 0,
  requests_told int not null default 0,
  failures int not null default 0 constraint failures_is_not_negative check (failures >= 0), -- in a row
  next_push_at timestamptz not null default '-infinity', -- until then it waits, after a push or a failure
  created_at timestamptz not null,
  primary key (owner_id, subscription_id),
  foreign key (owner_id, connection_id) references posthorn.connections on delete cascade,
  constraint one_subscription_per_session unique (owner_id, connection_id),
  constraint one_subscription_per_endpoint unique (owner_id, endpoint_hash),
  constraint told_of_no_more_than_were_made check (requests_told between 0 and requests_made)
) with (fillfactor = 80);
