-- graphile-worker's functions belong to posthorn_jobs, as which workers log in. Whoever calls one runs what that role may
-- change, so the call is made by a role that may put jobs into the queue and nothing else.
do $$
begin
  begin
    create role posthorn_enqueuer nologin;
  exception when duplicate_object or unique_violation then null;
  end;
  if not (select rolsuper from pg_catalog.pg_roles where rolname = current_user) then
    execute format('grant posthorn_enqueuer to %I', current_user);
  end if;
end $$;

set local role posthorn_owner;

insert into posthorn.limits (name, value, minimum, maximum, description) values
  ('delivery_days', 30, 1, 3650, 'how long deliveries of webhooks are kept'),
  ('deliveries_paused', 0, 0, 1, 'whether deliveries of webhooks wait, on the whole server');

-- Which events of an agent's log its webhook wants; null without an active one. Here, so that whoever appends events and
-- holds this row anyway need look nowhere else.
alter table posthorn.mailboxes
  add column webhook_events text[] constraint wants_1_to_5_kinds_of_events check (cardinality(webhook_events) between 1 and 5);

create table posthorn.webhooks (
  owner_id int not null,
  webhook_id uuid not null default posthorn.make_id(),
  agent_id uuid not null,
  connection_id uuid not null, -- that registered it last, and takes it along when it is revoked
  wake_number int not null,    -- of the agent's mailbox
  url_host text not null constraint url_host_is_bounded check (char_length(url_host) between 1 and 260),
  -- sealed by a key derived from the owner's data key: a path or query of an address may be a secret, too
  sealed_url bytea not null constraint sealed_url_is_bounded check (octet_length(sealed_url) between 30 and 8221),
  sealed_secret bytea not null constraint sealed_secret_is_bounded check (octet_length(sealed_secret) between 30 and 128),
  sealed_auth_header bytea constraint sealed_auth_header_is_bounded check (octet_length(sealed_auth_header) between 30 and 541),
  -- the secret before, which signs too until its grace is over
  previous_sealed_secret bytea constraint previous_sealed_secret_is_bounded check (octet_length(previous_sealed_secret) between 30 and 128),
  previous_until timestamptz,
  events text[] not null constraint events_are_known check (
    events <@ array['messaging.pending', 'message.state', 'proposal.decided', 'call.updated', 'wakeup.due'] and cardinality(events) between 1 and 5),
  status text not null default 'active' constraint status_is_known check (status in ('active', 'disabled')),
  disabled_reason text constraint disabled_reason_is_known check (disabled_reason in ('owner', 'delivery_failures')),
  consecutive_failures int not null default 0 constraint consecutive_failures_is_not_negative check (consecutive_failures >= 0),
  next_attempt_at timestamptz not null default '-infinity', -- until then it waits after a failure
  seen_seq bigint not null, -- the last event of the agent's log that became a delivery or was passed over
  -- one worker at a time delivers to it
  lease_id uuid,
  leased_until timestamptz not null default '-infinity',
  created_at timestamptz not null,
  updated_at timestamptz not null,
  last_delivered_at timestamptz,
  primary key (owner_id, webhook_id),
  foreign key (owner_id, agent_id) references posthorn.agents on delete cascade,
  constraint one_webhook_per_agent unique (owner_id, agent_id),
  constraint webhook_ids_are_unique unique (webhook_id),
  constraint disabled_for_a_reason check ((status = 'disabled') = (disabled_reason is not null)),
  constraint a_previous_secret_ends check ((previous_sealed_secret is null) = (previous_until is null))
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);
create index webhooks_by_wake_number on posthorn.webhooks (owner_id, wake_number);

-- What is sent to an endpoint, content-free: one row for each event that it wants, with what became of it.
create table posthorn.deliveries (
  owner_id int not null,
  delivery_id uuid not null default posthorn.make_id(),
  webhook_id uuid not null,
  event_seq bigint, -- null for tests and for the wake at a registration
  kind text not null constraint kind_is_known check (kind in ('messaging.pending', 'message.state', 'proposal.decided', 'call.updated', 'wakeup.due', 'webhook.test')),
  subject_id uuid not null,
  event_state text constraint event_state_is_bounded check (char_length(event_state) between 1 and 32),
  occurred_at timestamptz not null,
  state text not null default 'pending' constraint state_is_known check (state in ('pending', 'delivered', 'failed', 'skipped', 'ended')),
  attempts int not null default 0 constraint attempts_is_not_negative check (attempts >= 0),
  attempts_allowed int not null,
  next_attempt_at timestamptz not null,
  created_at timestamptz not null,
  ended_at timestamptz,
  primary key (owner_id, delivery_id),
  foreign key (owner_id, webhook_id) references posthorn.webhooks on delete cascade,
  constraint ended_unless_pending check ((state = 'pending') = (ended_at is null))
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);
create index deliveries_by_webhook on posthorn.deliveries (owner_id, webhook_id, delivery_id);
create index pending_deliveries on posthorn.deliveries (owner_id, webhook_id, next_attempt_at, event_seq) where state = 'pending';
create index pending_tests on posthorn.deliveries (owner_id, webhook_id) where state = 'pending' and kind = 'webhook.test';

-- How each attempt went: never what a receiver answered.
create table posthorn.delivery_attempts (
  owner_id int not null,
  delivery_id uuid not null,
  attempt int not null,
  attempted_at timestamptz not null,
  milliseconds int not null constraint milliseconds_is_not_negative check (milliseconds >= 0),
  http_status int constraint http_status_has_three_digits check (http_status between 100 and 999),
  problem text constraint problem_is_known check (problem in ('address_blocked', 'dns', 'tls', 'timeout', 'connection')),
  primary key (owner_id, delivery_id, attempt),
  foreign key (owner_id, delivery_id) references posthorn.deliveries on delete cascade,
  constraint answered_or_not check ((http_status is null) <> (problem is null))
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);
