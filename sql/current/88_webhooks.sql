-- Webhooks: readers of the event log, one per agent. Whoever appends events only puts a job into the queue; a worker then
-- turns what the endpoint wants into deliveries and sends them, one at a time. Which is next, when, and what an answer
-- means is decided here; addresses and secrets are sealed, and no transaction is open while a receiver is waited for.
--
-- Locks: mailbox, then webhook, then job. Who appends events holds the mailbox and locks no webhook; workers lock no mailbox.
set local role posthorn_engine;
grant create on schema posthorn_impl to posthorn_enqueuer;
grant usage on schema posthorn_impl to posthorn_enqueuer;

set local role posthorn_queue;
grant usage on schema graphile_worker to posthorn_enqueuer;
grant select, insert, update on graphile_worker._private_jobs to posthorn_enqueuer;
grant select, insert on graphile_worker._private_tasks, graphile_worker._private_job_queues to posthorn_enqueuer;
create policy select_enqueuer on graphile_worker._private_jobs for select to posthorn_enqueuer using (true);
create policy insert_enqueuer on graphile_worker._private_jobs for insert to posthorn_enqueuer
  with check (key like 'webhook:%' and task_id = (select t.id from graphile_worker._private_tasks t where t.identifier = 'webhook__deliver'));
-- add_jobs takes the key from a job that runs
create policy update_enqueuer on graphile_worker._private_jobs for update to posthorn_enqueuer using (key like 'webhook:%')
  with check ((key is null or key like 'webhook:%') and task_id = (select t.id from graphile_worker._private_tasks t where t.identifier = 'webhook__deliver'));
create policy select_enqueuer on graphile_worker._private_tasks for select to posthorn_enqueuer using (true);
create policy insert_enqueuer on graphile_worker._private_tasks for insert to posthorn_enqueuer with check (identifier = 'webhook__deliver');
create policy select_enqueuer on graphile_worker._private_job_queues for select to posthorn_enqueuer using (true);

set local role posthorn_enqueuer;

create function posthorn_impl.add_drains(
  p_webhook_ids uuid[],
  p_waits interval[] default null
) returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_suffix constant text := case when p_waits is null then '' else ':retry' end;
begin
  -- Senders and workers meet at these jobs, and in which order add_jobs locks several is the planner's choice.
  perform pg_advisory_xact_lock(k.lock)
     from (select distinct hashtextextended('webhook:' || w.id || v_suffix, 0) as lock from unnest(p_webhook_ids) w(id) order by lock) k;
  -- Two keys: news never waits for a retry that is hours away, and a retry is not brought forward by news.
  perform graphile_worker.add_jobs(
    array(
      select row('webhook__deliver', json_build_object('webhook_id', w.id), null, now() + coalesce(w.wait, '0'), null,
                 'webhook:' || w.id || v_suffix, null, null)::graphile_worker.job_spec
        from unnest(p_webhook_ids, p_waits) w(id, wait)),
    job_key_preserve_run_at => p_waits is null);
end $$;
comment on function posthorn_impl.add_drains(uuid[], interval[]) is 'Puts a job into the queue for each webhook that delivers what is due: now, or each after its wait. At most one of either kind waits for each.';
revoke execute on function posthorn_impl.add_drains(uuid[], interval[]) from public;
grant execute on function posthorn_impl.add_drains(uuid[], interval[]) to posthorn_engine;

set local role posthorn_engine;
revoke create on schema posthorn_impl from posthorn_enqueuer;

create type posthorn_impl.webhook_view as (
  id uuid,
  agent_id uuid,
  owner_id uuid,
  url_host text,
  sealed_url bytea,
  has_auth_header boolean,
  events text[],
  status text,
  disabled_reason text,
  consecutive_failures int,
  next_attempt_at timestamptz,
  previous_secret_until timestamptz,
  created_at timestamptz,
  updated_at timestamptz,
  last_delivered_at timestamptz
);

create type posthorn_impl.delivery_view as (
  id uuid,
  webhook_id uuid,
  kind text,
  subject_id uuid,
  event_state text,
  state text,
  occurred_at timestamptz,
  created_at timestamptz,
  next_attempt_at timestamptz,
  ended_at timestamptz,
  attempts jsonb
);

-- What a worker needs to make one attempt. Who is given it has the endpoint to itself until the lease ends.
create type posthorn_impl.due_delivery as (
  item int,
  webhook_id uuid,
  delivery_id uuid,
  agent_id uuid,
  owner_id uuid,
  ring_key_id text,
  wrapped_key bytea,
  sealed_url bytea,
  sealed_secret bytea,
  previous_sealed_secret bytea,
  sealed_auth_header bytea,
  kind text,
  occurred_at timestamptz,
  subject_id uuid,
  state text,
  pending_count int,
  group_id uuid,
  conversation_id uuid,
  message_ids uuid[]
);

-- An endpoint that is looked at, and the lease that it is to have.
create type posthorn_impl.endpoint as (
  item int,
  owner_id int,
  webhook_id uuid,
  lease_id uuid
);

create function posthorn_impl.view_webhooks(
  p_owner_id int,
  p_agent_id uuid default null
) returns setof posthorn_impl.webhook_view
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  select w.webhook_id, w.agent_id, o.id, w.url_host, w.sealed_url, w.sealed_auth_header is not null, w.events, w.status, w.disabled_reason, w.consecutive_failures,
         nullif(w.next_attempt_at, '-infinity'), w.previous_until, w.created_at, w.updated_at, w.last_delivered_at
    from posthorn.webhooks w
    join posthorn.owners o on o.owner_id = w.owner_id
   where w.owner_id = p_owner_id
     and (p_agent_id is null or w.agent_id = p_agent_id)
   order by w.webhook_id
$$;
comment on function posthorn_impl.view_webhooks(int, uuid) is 'Registrations without their secrets: of one agent, or of the owner.';

create function posthorn_impl.view_deliveries(
  p_owner_id int,
  p_delivery_ids uuid[]
) returns setof posthorn_impl.delivery_view
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  select d.delivery_id, d.webhook_id, d.kind, d.subject_id, d.event_state, d.state, d.occurred_at, d.created_at,
         case when d.state = 'pending' then greatest(d.next_attempt_at, w.next_attempt_at) end, d.ended_at,
         coalesce((select jsonb_agg(jsonb_build_object('attempted_at', a.attempted_at, 'milliseconds', a.milliseconds, 'http_status', a.http_status, 'problem', a.problem) order by a.attempt)
                     from posthorn.delivery_attempts a
                    where a.owner_id = p_owner_id and a.delivery_id = d.delivery_id), '[]')
    from unnest(p_delivery_ids) with ordinality i(delivery_id, position)
    join posthorn.deliveries d on d.owner_id = p_owner_id and d.delivery_id = i.delivery_id
    join posthorn.webhooks w on w.owner_id = p_owner_id and w.webhook_id = d.webhook_id
   order by i.position
$$;
comment on function posthorn_impl.view_deliveries(int, uuid[]) is 'Deliveries with their attempts, in the order of the ids given.';

create function posthorn_impl.drain_webhooks(
  p_wake_numbers int[]
) returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_owners int[] := posthorn_impl.proved_owners();
  v_live int[];
  v_webhooks uuid[];
begin
  select array_agg(w.wake_number), array_agg(w.webhook_id) into v_live, v_webhooks
    from posthorn.webhooks w
   where w.owner_id = any (v_owners)
     and w.wake_number = any (p_wake_numbers)
     and w.status = 'active';
  if v_webhooks is not null then
    perform posthorn_impl.add_drains(v_webhooks);
  end if;
  if cardinality(v_live) is distinct from cardinality(p_wake_numbers) then
    -- A worker that disabled one left this to whoever holds the mailbox. None can become active meanwhile: that takes it.
    update posthorn.mailboxes b
       set webhook_events = null
     where b.owner_id = any (v_owners)
       and b.wake_number = any (p_wake_numbers)
       and (v_live is null or b.wake_number <> all (v_live));
  end if;
end $$;
comment on function posthorn_impl.drain_webhooks(int[]) is 'Starts the deliveries of the webhooks of these mailboxes, which the caller holds and has appended events to.';

create function posthorn_impl.delete_webhooks(
  p_owner_id int,
  p_agent_ids uuid[],
  p_connection_ids uuid[]
) returns int
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_agents uuid[];
begin
  with deleted as (
    delete from posthorn.webhooks w
     where w.owner_id = p_owner_id
       and (w.agent_id = any (p_agent_ids) or w.connection_id = any (p_connection_ids))
    returning w.agent_id
  )
  select array_agg(d.agent_id) into v_agents from deleted d;
  update posthorn.mailboxes b set webhook_events = null where b.owner_id = p_owner_id and b.agent_id = any (v_agents);
  return coalesce(cardinality(v_agents), 0);
end $$;
comment on function posthorn_impl.delete_webhooks(int, uuid[], uuid[]) is 'Removes the endpoints of agents and those that connections registered, with their deliveries; answers how many. The caller holds the mailboxes.';

create function posthorn_impl.max_attempts() returns int
language sql
immutable
security invoker
set search_path = pg_catalog, pg_temp
as $$
  select 12
$$;
comment on function posthorn_impl.max_attempts() is 'How often a delivery is attempted, and how many failures in a row disable its endpoint.';

create function posthorn_impl.read_logs(
  p_endpoints posthorn_impl.endpoint[],
  p_most int,
  p_now timestamptz
) returns void
language sql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
  with wanted as materialized (
    select w.owner_id, w.webhook_id, e.seq, e.kind, e.subject_id, e.state, e.occurred_at
      from unnest(p_endpoints) p
      join posthorn.webhooks w on w.owner_id = p.owner_id and w.webhook_id = p.webhook_id
     cross join lateral (
       select x.*
         from posthorn.events x
        where x.owner_id = p.owner_id
          and x.agent_id = w.agent_id
          and x.seq > w.seen_seq
          and x.kind = any (w.events)
        order by x.seq
        limit p_most) e
  ), made as (
    insert into posthorn.deliveries (owner_id, webhook_id, event_seq, kind, subject_id, event_state, occurred_at, attempts_allowed, next_attempt_at, created_at)
    select e.owner_id, e.webhook_id, e.seq, e.kind, e.subject_id, e.state, e.occurred_at, posthorn_impl.max_attempts(), p_now, p_now
      from wanted e
     order by e.owner_id, e.webhook_id, e.seq
  )
  update posthorn.webhooks w
     set seen_seq = r.seq
    from (
      select p.owner_id, p.webhook_id, case when i.events = p_most then i.seq else l.seq end as seq
        from unnest(p_endpoints) p
        join posthorn.webhooks k on k.owner_id = p.owner_id and k.webhook_id = p.webhook_id
       cross join lateral (
         select count(*) as events, max(e.seq) as seq from wanted e where e.owner_id = p.owner_id and e.webhook_id = p.webhook_id) i
       cross join lateral (
         select x.seq from posthorn.events x where x.owner_id = p.owner_id and x.agent_id = k.agent_id order by x.seq desc limit 1) l) r
   where w.owner_id = r.owner_id
     and w.webhook_id = r.webhook_id
     and w.seen_seq < r.seq
$$;
comment on function posthorn_impl.read_logs(posthorn_impl.endpoint[], int, timestamptz) is 'Makes deliveries of the events that these endpoints have not seen and want, at most so many for each (null: all). Their rows are locked.';

create function posthorn_impl.end_deliveries(
  p_owner_id int,
  p_webhook_id uuid,
  p_kept_kinds text[],
  p_now timestamptz
) returns void
language sql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
  update posthorn.deliveries d
     set state = 'ended',
         ended_at = p_now
   where d.owner_id = p_owner_id
     and d.webhook_id = p_webhook_id
     and d.state = 'pending'
     and d.kind <> all (p_kept_kinds)
$$;
comment on function posthorn_impl.end_deliveries(int, uuid, text[], timestamptz) is 'Ends what waits, except what is of these kinds: the endpoint was disabled or registered anew.';

create function posthorn_impl.start_webhook(
  p_owner_id int,
  p_agent_id uuid,
  p_is_again boolean,
  p_now timestamptz
) returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_webhook posthorn.webhooks;
begin
  update posthorn.webhooks w
     set status = 'active',
         disabled_reason = null,
         consecutive_failures = 0,
         next_attempt_at = '-infinity',
         seen_seq = b.event_seq,
         -- an attempt under way was for what stood here before: it counts for nothing
         lease_id = null,
         leased_until = '-infinity',
         updated_at = p_now
    from posthorn.mailboxes b
   where w.owner_id = p_owner_id
     and w.agent_id = p_agent_id
     and b.owner_id = p_owner_id
     and b.agent_id = p_agent_id
  returning w.* into v_webhook;
  update posthorn.mailboxes b set webhook_events = v_webhook.events where b.owner_id = p_owner_id and b.agent_id = p_agent_id;
  if not p_is_again then
    return;
  end if;
  -- one fresh wake for all the mail that waits; and what is not asked for any more must not reach a new address
  perform posthorn_impl.end_deliveries(p_owner_id, v_webhook.webhook_id, array_remove(v_webhook.events, 'messaging.pending'), p_now);
  if 'messaging.pending' = any (v_webhook.events) then
    insert into posthorn.deliveries (owner_id, webhook_id, kind, subject_id, occurred_at, attempts_allowed, next_attempt_at, created_at)
    select p_owner_id, v_webhook.webhook_id, 'messaging.pending', x.message_id, p_now, posthorn_impl.max_attempts(), p_now, p_now
      from posthorn.bodies x
     where x.owner_id = p_owner_id
       and x.recipient_agent_id = p_agent_id
       and x.expires_at > p_now
     order by x.seq desc
     limit 1;
  end if;
  update posthorn.deliveries d
     set next_attempt_at = p_now
   where d.owner_id = p_owner_id
     and d.webhook_id = v_webhook.webhook_id
     and d.state = 'pending';
  perform posthorn_impl.add_drains(array[v_webhook.webhook_id]);
end $$;
comment on function posthorn_impl.start_webhook(int, uuid, boolean, timestamptz) is 'Makes an endpoint active with a clean record, from here in the log on. One that was registered before gets one wake if mail is pending, in place of those that waited, and keeps what else waits of the kinds that it still wants. The mailbox is locked.';

create function posthorn_impl.stop_webhook(
  p_webhook posthorn.webhooks,
  p_reason text,
  p_now timestamptz
) returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  update posthorn.webhooks w
     set status = 'disabled',
         disabled_reason = p_reason,
         lease_id = null,
         leased_until = '-infinity',
         updated_at = p_now
   where w.owner_id = p_webhook.owner_id
     and w.webhook_id = p_webhook.webhook_id;
  perform posthorn_impl.end_deliveries(p_webhook.owner_id, p_webhook.webhook_id, '{}', p_now);
end $$;
comment on function posthorn_impl.stop_webhook(posthorn.webhooks, text, timestamptz) is 'Disables an endpoint and ends what waits for it. Its row is locked.';

-- Agents.

create function posthorn_api.plan_webhook(
  p_credential bytea,
  p_agent_id uuid default null
) returns table (
  owner_id uuid,
  agent_id uuid
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_me posthorn_impl.identity := posthorn_impl.identify_agent(p_credential, p_agent_id);
begin
  return query select o.id, v_me.agent_id from posthorn.owners o where o.owner_id = v_me.owner_id;
end $$;
comment on function posthorn_api.plan_webhook(bytea, uuid) is 'What a pod must know before it seals a registration: whose key, and which agent it binds to.';

create function posthorn_api.set_webhook(
  p_credential bytea,
  p_url_host text,
  p_sealed_url bytea,
  p_sealed_secret bytea,
  p_events text[],
  p_sealed_auth_header bytea default null,
  p_rotate_secret boolean default false,
  p_grace_seconds int default 3600,
  p_agent_id uuid default null
) returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_me posthorn_impl.identity := posthorn_impl.identify_agent(p_credential, p_agent_id);
  v_actor posthorn_impl.proven := row(1, v_me.owner_id, v_me.connection_id, v_me.kind, null, null);
  v_now timestamptz;
  v_webhook posthorn.webhooks;
  v_id uuid;
begin
  if (p_grace_seconds between 0 and 86400) is not true then
    perform posthorn_impl.refuse('invalid_request', '{"fields": ["grace_seconds"]}');
  end if;
  perform posthorn_impl.lock_mailboxes(array[v_me.owner_id], array[v_me.agent_id]);
  v_now := posthorn_impl.clock();
  perform posthorn_impl.require_live_caller(v_me, v_now);
  select w.* into v_webhook from posthorn.webhooks w where w.owner_id = v_me.owner_id and w.agent_id = v_me.agent_id for no key update;
  if not found then
    insert into posthorn.webhooks (owner_id, agent_id, connection_id, wake_number, url_host, sealed_url, sealed_secret, sealed_auth_header, events, seen_seq, created_at, updated_at)
    select v_me.owner_id, v_me.agent_id, v_me.connection_id, b.wake_number, p_url_host, p_sealed_url, p_sealed_secret, p_sealed_auth_header, p_events, b.event_seq, v_now, v_now
      from posthorn.mailboxes b
     where b.owner_id = v_me.owner_id
       and b.agent_id = v_me.agent_id
    returning webhook_id into v_id;
    perform posthorn_impl.start_webhook(v_me.owner_id, v_me.agent_id, false, v_now);
    perform posthorn_impl.record_act(v_actor, 'webhook.register', v_id, v_now, v_me.agent_id);
    return true;
  end if;
  if v_webhook.status = 'active' then
    -- by the filter that held when they happened
    perform posthorn_impl.read_logs(array[row(1, v_me.owner_id, v_webhook.webhook_id, null)::posthorn_impl.endpoint], null, v_now);
  end if;
  update posthorn.webhooks w
     set connection_id = v_me.connection_id,
         url_host = p_url_host,
         sealed_url = p_sealed_url,
         sealed_auth_header = p_sealed_auth_header,
         events = p_events,
         sealed_secret = case when p_rotate_secret then p_sealed_secret else w.sealed_secret end,
         previous_sealed_secret = case when not p_rotate_secret and w.previous_until > v_now then w.previous_sealed_secret when p_rotate_secret and p_grace_seconds > 0 then w.sealed_secret end,
         previous_until = case when not p_rotate_secret and w.previous_until > v_now then w.previous_until when p_rotate_secret and p_grace_seconds > 0 then v_now + make_interval(secs => p_grace_seconds) end,
         updated_at = v_now
   where w.owner_id = v_me.owner_id
     and w.webhook_id = v_webhook.webhook_id;
  if v_webhook.disabled_reason is distinct from 'owner' then
    perform posthorn_impl.start_webhook(v_me.owner_id, v_me.agent_id, true, v_now);
  end if;
  perform posthorn_impl.record_act(v_actor, case when p_rotate_secret then 'webhook.rotate' else 'webhook.update' end, v_webhook.webhook_id, v_now, v_me.agent_id);
  return p_rotate_secret;
end $$;
comment on function posthorn_api.set_webhook(bytea, text, bytea, bytea, text[], bytea, boolean, int, uuid) is 'Registers the agent''s endpoint, or again: then its record is clean, unless the owner disabled it. Answers whether the given secret is the one that signs from now on; the one before signs too until its grace is over.';

create function posthorn_api.get_webhook(
  p_credential bytea,
  p_agent_id uuid default null
) returns posthorn_impl.webhook_view
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_me posthorn_impl.identity := posthorn_impl.identify_agent(p_credential, p_agent_id);
  v_webhook posthorn_impl.webhook_view;
begin
  select v.* into v_webhook from posthorn_impl.view_webhooks(v_me.owner_id, v_me.agent_id) v;
  if not found then
    perform posthorn_impl.refuse('not_found');
  end if;
  return v_webhook;
end $$;
comment on function posthorn_api.get_webhook(bytea, uuid) is 'The agent''s registration without its secrets; raises not_found where there is none. [nullable: disabled_reason, next_attempt_at, previous_secret_until, last_delivered_at]';

create function posthorn_api.remove_webhook(
  p_credential bytea,
  p_agent_id uuid default null
) returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_me posthorn_impl.identity := posthorn_impl.identify_agent(p_credential, p_agent_id);
  v_id uuid;
begin
  perform posthorn_impl.lock_mailboxes(array[v_me.owner_id], array[v_me.agent_id]);
  select w.webhook_id into v_id from posthorn.webhooks w where w.owner_id = v_me.owner_id and w.agent_id = v_me.agent_id;
  if v_id is null then
    return false;
  end if;
  perform posthorn_impl.delete_webhooks(v_me.owner_id, array[v_me.agent_id], '{}');
  perform posthorn_impl.record_act(row(1, v_me.owner_id, v_me.connection_id, v_me.kind, null, null)::posthorn_impl.proven, 'webhook.remove', v_id, posthorn_impl.clock(), v_me.agent_id);
  return true;
end $$;
comment on function posthorn_api.remove_webhook(bytea, uuid) is 'Deletes the agent''s endpoint and its deliveries; answers whether there was one.';

create function posthorn_impl.require_active(
  p_webhook posthorn.webhooks
) returns uuid
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  if p_webhook.webhook_id is null then
    perform posthorn_impl.refuse('not_found');
  end if;
  if p_webhook.status <> 'active' then
    perform posthorn_impl.refuse('invalid_request', jsonb_build_object('fields', array['webhook'], 'disabled_reason', p_webhook.disabled_reason));
  end if;
  return p_webhook.webhook_id;
end $$;
comment on function posthorn_impl.require_active(posthorn.webhooks) is 'The id of an endpoint that may be sent to; raises not_found where there is none, invalid_request with the reason where it is disabled.';

create function posthorn_impl.find_active_webhook(
  p_caller posthorn_impl.identity
) returns uuid
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_webhook posthorn.webhooks;
begin
  select w.* into v_webhook from posthorn.webhooks w where w.owner_id = p_caller.owner_id and w.agent_id = p_caller.agent_id for no key update;
  return posthorn_impl.require_active(v_webhook);
end $$;
comment on function posthorn_impl.find_active_webhook(posthorn_impl.identity) is 'The caller''s endpoint, locked; raises what require_active does.';

create function posthorn_api.test_webhook(
  p_credential bytea,
  p_agent_id uuid default null
) returns posthorn_impl.delivery_view
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_me posthorn_impl.identity := posthorn_impl.identify_agent(p_credential, p_agent_id);
  v_webhook_id uuid := posthorn_impl.find_active_webhook(v_me);
  v_now timestamptz := posthorn_impl.clock();
  v_id uuid;
begin
  -- one at a time
  select d.delivery_id into v_id
    from posthorn.deliveries d
   where d.owner_id = v_me.owner_id
     and d.webhook_id = v_webhook_id
     and d.state = 'pending'
     and d.kind = 'webhook.test'
   limit 1;
  if v_id is null then
    insert into posthorn.deliveries (owner_id, webhook_id, kind, subject_id, occurred_at, attempts_allowed, next_attempt_at, created_at)
    values (v_me.owner_id, v_webhook_id, 'webhook.test', v_webhook_id, v_now, 1, v_now, v_now)
    returning delivery_id into v_id;
  end if;
  perform posthorn_impl.add_drains(array[v_webhook_id]);
  return (select v from posthorn_impl.view_deliveries(v_me.owner_id, array[v_id]) v);
end $$;
comment on function posthorn_api.test_webhook(bytea, uuid) is 'Sends the endpoint an event of its own, once and at once, which does not count to its health. [nullable: event_state, next_attempt_at, ended_at]';

create function posthorn_api.list_deliveries(
  p_credential bytea,
  p_agent_id uuid default null,
  p_before uuid default null,
  p_limit int default 100,
  p_delivery_id uuid default null
) returns setof posthorn_impl.delivery_view
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_me posthorn_impl.identity := posthorn_impl.identify_agent(p_credential, p_agent_id);
  v_webhook_id uuid := (select w.webhook_id from posthorn.webhooks w where w.owner_id = v_me.owner_id and w.agent_id = v_me.agent_id);
begin
  return query
  select v.*
    from posthorn_impl.view_deliveries(v_me.owner_id, array(
           select d.delivery_id
             from posthorn.deliveries d
            where d.owner_id = v_me.owner_id
              and d.webhook_id = v_webhook_id
              and (p_before is null or d.delivery_id < p_before)
              and (p_delivery_id is null or d.delivery_id = p_delivery_id)
            order by d.delivery_id desc
            limit p_limit)) v;
end $$;
comment on function posthorn_api.list_deliveries(bytea, uuid, uuid, int, uuid) is 'What was or will be sent to the agent''s endpoint, newest first, each with its attempts; or one of them. [nullable: event_state, next_attempt_at, ended_at]';

create function posthorn_impl.deliver_again(
  p_owner_id int,
  p_webhook_id uuid,
  p_delivery_id uuid
) returns posthorn_impl.delivery_view
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  update posthorn.deliveries d
     set state = 'pending',
         attempts_allowed = d.attempts + case d.kind when 'webhook.test' then 1 else posthorn_impl.max_attempts() end,
         next_attempt_at = posthorn_impl.clock(),
         ended_at = null
   where d.owner_id = p_owner_id
     and d.webhook_id = p_webhook_id
     and d.delivery_id = p_delivery_id;
  if not found then
    perform posthorn_impl.refuse('not_found');
  end if;
  perform posthorn_impl.add_drains(array[p_webhook_id]);
  return (select v from posthorn_impl.view_deliveries(p_owner_id, array[p_delivery_id]) v);
end $$;
comment on function posthorn_impl.deliver_again(int, uuid, uuid) is 'Makes a delivery wait anew, under its old id and with as many attempts as a new one.';

create function posthorn_api.redeliver(
  p_credential bytea,
  p_delivery_id uuid,
  p_agent_id uuid default null
) returns posthorn_impl.delivery_view
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_me posthorn_impl.identity := posthorn_impl.identify_agent(p_credential, p_agent_id);
begin
  return posthorn_impl.deliver_again(v_me.owner_id, posthorn_impl.find_active_webhook(v_me), p_delivery_id);
end $$;
comment on function posthorn_api.redeliver(bytea, uuid, uuid) is 'Sends a delivery again, whatever became of it. [nullable: event_state, next_attempt_at, ended_at]';

-- The owner.

create function posthorn_api.list_owner_webhooks(
  p_credential bytea,
  p_limit int default null,
  p_after uuid default null
) returns setof posthorn_impl.webhook_view
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_actor posthorn_impl.proven := posthorn_impl.identify_owner(p_credential);
begin
  return query select v.* from posthorn_impl.view_webhooks(v_actor.owner_id) v where p_after is null or v.id > p_after order by v.id limit p_limit;
end $$;
comment on function posthorn_api.list_owner_webhooks(bytea, int, uuid) is 'The endpoints of all the owner''s agents, by id. [nullable: disabled_reason, next_attempt_at, previous_secret_until, last_delivered_at]';

create function posthorn_impl.lock_owner_webhook(
  p_owner_id int,
  p_webhook_id uuid
) returns posthorn.webhooks
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_webhook posthorn.webhooks;
begin
  select w.* into v_webhook from posthorn.webhooks w where w.owner_id = p_owner_id and w.webhook_id = p_webhook_id;
  perform posthorn_impl.lock_mailboxes(array[p_owner_id], array[v_webhook.agent_id]);
  select w.* into v_webhook from posthorn.webhooks w where w.owner_id = p_owner_id and w.webhook_id = p_webhook_id for no key update;
  if not found then
    perform posthorn_impl.refuse('not_found');
  end if;
  return v_webhook;
end $$;
comment on function posthorn_impl.lock_owner_webhook(int, uuid) is 'An endpoint of the owner, locked with its mailbox; raises not_found.';

create function posthorn_api.disable_webhook(
  p_credential bytea,
  p_webhook_id uuid
) returns posthorn_impl.webhook_view
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_actor posthorn_impl.proven := posthorn_impl.identify_owner(p_credential);
  v_webhook posthorn.webhooks := posthorn_impl.lock_owner_webhook(v_actor.owner_id, p_webhook_id);
  v_now timestamptz := posthorn_impl.clock();
begin
  perform posthorn_impl.stop_webhook(v_webhook, 'owner', v_now);
  update posthorn.mailboxes b set webhook_events = null where b.owner_id = v_actor.owner_id and b.agent_id = v_webhook.agent_id;
  perform posthorn_impl.record_act(v_actor, 'webhook.disable', p_webhook_id, v_now, v_webhook.agent_id);
  return (select v from posthorn_impl.view_webhooks(v_actor.owner_id, v_webhook.agent_id) v);
end $$;
comment on function posthorn_api.disable_webhook(bytea, uuid) is 'The owner stops an endpoint until they lift it; registering again does not. [nullable: disabled_reason, next_attempt_at, previous_secret_until, last_delivered_at]';

create function posthorn_api.lift_webhook(
  p_credential bytea,
  p_webhook_id uuid
) returns posthorn_impl.webhook_view
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_actor posthorn_impl.proven := posthorn_impl.identify_owner(p_credential);
  v_webhook posthorn.webhooks := posthorn_impl.lock_owner_webhook(v_actor.owner_id, p_webhook_id);
  v_now timestamptz := posthorn_impl.clock();
begin
  if v_webhook.status = 'disabled' then
    perform posthorn_impl.start_webhook(v_actor.owner_id, v_webhook.agent_id, true, v_now);
    perform posthorn_impl.record_act(v_actor, 'webhook.lift', p_webhook_id, v_now, v_webhook.agent_id);
  end if;
  return (select v from posthorn_impl.view_webhooks(v_actor.owner_id, v_webhook.agent_id) v);
end $$;
comment on function posthorn_api.lift_webhook(bytea, uuid) is 'The owner lets a disabled endpoint be used again, as if it had been registered again. [nullable: disabled_reason, next_attempt_at, previous_secret_until, last_delivered_at]';

create function posthorn_api.redeliver_as_owner(
  p_credential bytea,
  p_delivery_id uuid
) returns posthorn_impl.delivery_view
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_actor posthorn_impl.proven := posthorn_impl.identify_owner(p_credential);
  v_webhook posthorn.webhooks;
begin
  select w.* into v_webhook
    from posthorn.deliveries d
    join posthorn.webhooks w on w.owner_id = v_actor.owner_id and w.webhook_id = d.webhook_id
   where d.owner_id = v_actor.owner_id
     and d.delivery_id = p_delivery_id
     for no key update of w;
  return posthorn_impl.deliver_again(v_actor.owner_id, posthorn_impl.require_active(v_webhook), p_delivery_id);
end $$;
comment on function posthorn_api.redeliver_as_owner(bytea, uuid) is 'Sends a delivery to an endpoint of the owner again. [nullable: event_state, next_attempt_at, ended_at]';

-- Workers.

-- A job names an endpoint; which owner it belongs to only the prover may look up.
set local role posthorn_owner;
drop policy if exists select_any on posthorn.webhooks;
create policy select_any on posthorn.webhooks for select to posthorn_prover using (true);
grant select (owner_id, webhook_id) on posthorn.webhooks to posthorn_prover;

set local role posthorn_prover;

create function posthorn_impl.owners_of_webhooks(
  p_webhook_ids uuid[]
) returns table (
  item int,
  owner_id int
)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  select u.item::int, w.owner_id
    from unnest(p_webhook_ids) with ordinality u(webhook_id, item)
    join posthorn.webhooks w on w.webhook_id = u.webhook_id
   order by w.owner_id, w.webhook_id, u.item
$$;
comment on function posthorn_impl.owners_of_webhooks(uuid[]) is 'Whose these endpoints are, in the order in which they are locked.';
grant execute on function posthorn_impl.owners_of_webhooks(uuid[]) to posthorn_engine;

set local role posthorn_engine;

create function posthorn_impl.prove_owners(
  p_owners int[]
) returns void
language sql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
  select posthorn_impl.prove(array(
    select int4send(o.owner_id) || decode(posthorn_impl.sign_proof('ticket|' || o.owner_id), 'hex')
      from (select distinct u.owner_id from unnest(p_owners) u(owner_id)) o))
$$;
comment on function posthorn_impl.prove_owners(int[]) is 'Lets this transaction see what belongs to these owners: for what workers do about what they were shown.';

create function posthorn_impl.wait_after(
  p_failures int
) returns interval
language sql
volatile
security invoker
set search_path = pg_catalog, pg_temp
as $$
  -- 30 seconds doubling to an hour; up to a fifth less, so that those that failed together do not come back together
  select make_interval(secs => least(3600, 30 * 2 ^ least(p_failures - 1, 10)) * (0.8 + 0.2 * random()))
$$;
comment on function posthorn_impl.wait_after(int) is 'How long to wait after so many failures, at least one.';

-- Batches of endpoints, by statements that take them all: a policy costs 15 microseconds for each table that a statement
-- names, and one endpoint at a time paid a millisecond for each delivery.

create function posthorn_impl.open_endpoints(
  p_endpoints posthorn_impl.endpoint[],
  p_now timestamptz
) returns posthorn_impl.endpoint[]
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  c_pause constant interval := '60 seconds';
  v_is_paused constant boolean := posthorn_impl.limit_value('deliveries_paused') > 0;
  v_open posthorn_impl.endpoint[];
  v_waiting uuid[];
begin
  -- what an expired connection registered waits for it to be rotated, or for another to register
  select array_agg(p) filter (where h.is_open), array_agg(p.webhook_id) filter (where not h.is_open) into v_open, v_waiting
    from unnest(p_endpoints) p
    join posthorn.webhooks w on w.owner_id = p.owner_id and w.webhook_id = p.webhook_id
    join posthorn.connections c on c.owner_id = p.owner_id and c.connection_id = w.connection_id and c.expires_at > p_now
    join posthorn.owners o on o.owner_id = p.owner_id
   cross join lateral (select o.suspended_at is null and not v_is_paused as is_open) h;
  if v_waiting is not null then
    perform posthorn_impl.add_drains(v_waiting, array_fill(c_pause, array[cardinality(v_waiting)]));
  end if;
  return coalesce(v_open, '{}');
end $$;
comment on function posthorn_impl.open_endpoints(posthorn_impl.endpoint[], timestamptz) is 'Those of these endpoints that may be sent to. Where the owner is suspended or deliveries are paused, a job looks again.';

create function posthorn_impl.choose_deliveries(
  p_endpoints posthorn_impl.endpoint[],
  p_depth int,
  p_now timestamptz
) returns table (
  item int,
  delivery_id uuid
)
language sql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
  with looked as materialized (
    select p.item, p.owner_id, d.delivery_id, d.position, d.is_stale
      from unnest(p_endpoints) p
      join posthorn.webhooks w on w.owner_id = p.owner_id and w.webhook_id = p.webhook_id
     cross join lateral (
       (select x.delivery_id, 0 as position, false as is_stale
          from posthorn.deliveries x
         where x.owner_id = p.owner_id
           and x.webhook_id = p.webhook_id
           and x.state = 'pending'
           and x.kind = 'webhook.test'
           and x.next_attempt_at <= p_now
         limit 1)
        union all
       (select x.delivery_id, row_number() over (order by x.next_attempt_at, x.event_seq),
               x.kind = 'messaging.pending' and not exists (
                 select from posthorn.messages m
                  where m.owner_id = p.owner_id
                    and m.message_id = x.subject_id
                    and posthorn_impl.present_state(m.state, m.expires_at, p_now) in ('queued', 'delivered'))
          from posthorn.deliveries x
         where x.owner_id = p.owner_id
           and x.webhook_id = p.webhook_id
           and x.state = 'pending'
           and x.next_attempt_at <= p_now
           and w.next_attempt_at <= p_now
         order by x.next_attempt_at, x.event_seq
         limit p_depth)) d
  ), first as (
    select distinct on (l.item) l.item, l.delivery_id from looked l where not l.is_stale order by l.item, l.position
  ), skipped as (
    -- nobody needs to be woken for these any more
    update posthorn.deliveries d
       set state = 'skipped',
           ended_at = p_now
      from looked l
     where l.is_stale
       and d.owner_id = l.owner_id
       and d.delivery_id = l.delivery_id
  )
  select f.item, f.delivery_id from first f
$$;
comment on function posthorn_impl.choose_deliveries(posthorn_impl.endpoint[], int, timestamptz) is 'Of each of these endpoints the first of so many due deliveries that somebody needs, tests before all others; wakes among them that nobody needs end as skipped. Their rows are locked.';

create function posthorn_impl.look_again(
  p_endpoints posthorn_impl.endpoint[],
  p_now timestamptz
) returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_ids uuid[];
  v_waits interval[];
begin
  select array_agg(p.webhook_id), array_agg(n.next_at - p_now) into v_ids, v_waits
    from unnest(p_endpoints) p
    join posthorn.webhooks w on w.owner_id = p.owner_id and w.webhook_id = p.webhook_id
   cross join lateral (
     select case when exists (select from posthorn.events e where e.owner_id = p.owner_id and e.agent_id = w.agent_id and e.seq > w.seen_seq) then p_now
                 else (select greatest(d.next_attempt_at, w.next_attempt_at)
                         from posthorn.deliveries d
                        where d.owner_id = p.owner_id
                          and d.webhook_id = p.webhook_id
                          and d.state = 'pending'
                        order by d.next_attempt_at
                        limit 1)
            end as next_at) n
   where n.next_at is not null;
  if v_ids is not null then
    perform posthorn_impl.add_drains(v_ids, v_waits);
  end if;
end $$;
comment on function posthorn_impl.look_again(posthorn_impl.endpoint[], timestamptz) is 'Puts a job into the queue for each of these endpoints that has more to read or to send, for the time when something is due.';

create function posthorn_impl.next_deliveries(
  p_endpoints posthorn_impl.endpoint[],
  p_now timestamptz
) returns setof posthorn_impl.due_delivery
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  c_lease constant interval := '30 seconds'; -- an attempt takes 10
  c_most constant int := 1000; -- to read and to skip in one transaction, which a lane of workers waits for; then another job
  v_open constant posthorn_impl.endpoint[] := posthorn_impl.open_endpoints(p_endpoints, p_now);
  v_left posthorn_impl.endpoint[] := v_open;
  v_depth int;
  v_items int[] := '{}';
  v_deliveries uuid[] := '{}';
begin
  perform posthorn_impl.read_logs(v_open, c_most / greatest(cardinality(v_open), 1), p_now);
  -- nearly always the first is the one; only where it is not, many are looked at
  foreach v_depth in array array[1, c_most] loop
    select v_items || coalesce(array_agg(c.item), '{}'), v_deliveries || coalesce(array_agg(c.delivery_id), '{}') into v_items, v_deliveries
      from posthorn_impl.choose_deliveries(v_left, greatest(v_depth / greatest(cardinality(v_left), 1), 1), p_now) c;
    v_left := array(select p from unnest(v_left) p where p.item <> all (v_items));
  end loop;
  update posthorn.webhooks w
     set lease_id = case when p.item = any (v_items) then p.lease_id end,
         leased_until = case when p.item = any (v_items) then p_now + c_lease else '-infinity' end,
         -- whose grace is over
         previous_sealed_secret = case when w.previous_until > p_now then w.previous_sealed_secret end,
         previous_until = case when w.previous_until > p_now then w.previous_until end
    from unnest(p_endpoints) p
   where w.owner_id = p.owner_id
     and w.webhook_id = p.webhook_id;
  if cardinality(v_left) > 0 then
    perform posthorn_impl.look_again(v_left, p_now);
  end if;
  return query
  select p.item, w.webhook_id, d.delivery_id, w.agent_id, o.id, k.ring_key_id, k.wrapped_key, w.sealed_url, w.sealed_secret,
         w.previous_sealed_secret, w.sealed_auth_header, d.kind, d.occurred_at, d.subject_id, d.event_state,
         case when d.kind = 'messaging.pending' then posthorn_impl.count_pending(w.owner_id, w.agent_id, p_now) end, m.group_id, m.conversation_id,
         case d.kind
           when 'messaging.pending' then array[d.subject_id]
           when 'message.state' then array[d.subject_id]
           when 'proposal.decided' then posthorn_impl.mail_behind(w.owner_id, d.subject_id, w.agent_id)
         end
    from unnest(v_items, v_deliveries) f(item, delivery_id)
    join unnest(v_open) p on p.item = f.item
    join posthorn.webhooks w on w.owner_id = p.owner_id and w.webhook_id = p.webhook_id
    join posthorn.deliveries d on d.owner_id = p.owner_id and d.delivery_id = f.delivery_id
    join posthorn.owners o on o.owner_id = p.owner_id
    join posthorn.owner_keys k on k.owner_id = p.owner_id
    left join posthorn.messages m on m.owner_id = p.owner_id and m.message_id = d.subject_id and d.kind = 'messaging.pending';
end $$;
comment on function posthorn_impl.next_deliveries(posthorn_impl.endpoint[], timestamptz) is 'Of each of these endpoints the delivery to send now, with the endpoint leased for it; or none, and a job for the time when something is due. Their rows are locked.';

create function posthorn_impl.lock_endpoints(
  p_webhook_ids uuid[],
  p_lease_ids uuid[]
) returns posthorn_impl.endpoint[]
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_endpoints posthorn_impl.endpoint[] := array(
    select row(o.item, o.owner_id, p_webhook_ids[o.item], p_lease_ids[o.item])::posthorn_impl.endpoint from posthorn_impl.owners_of_webhooks(p_webhook_ids) o);
begin
  perform posthorn_impl.prove_owners(array(select e.owner_id from unnest(v_endpoints) e));
  perform 1
     from unnest(v_endpoints) e
     join posthorn.webhooks w on w.owner_id = e.owner_id and w.webhook_id = e.webhook_id
    order by w.owner_id, w.webhook_id
      for no key update of w;
  return v_endpoints;
end $$;
comment on function posthorn_impl.lock_endpoints(uuid[], uuid[]) is 'These endpoints with their owners, whom this transaction may see from now on; their rows are locked.';

-- Settings of these two hold for all that they call: plans of looking up by key, made while tables are small or not.

create function posthorn_api.claim_deliveries(
  p_webhook_ids uuid[],
  p_lease_ids uuid[]
) returns setof posthorn_impl.due_delivery
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_hashjoin = off
set enable_mergejoin = off
set enable_seqscan = off
as $$
declare
  v_endpoints posthorn_impl.endpoint[] := posthorn_impl.lock_endpoints(p_webhook_ids, p_lease_ids);
  v_now timestamptz := posthorn_impl.clock();
  v_free posthorn_impl.endpoint[];
  v_leased uuid[];
  v_waits interval[];
begin
  select array_agg(row(e.item, e.owner_id, e.webhook_id, e.lease_id)::posthorn_impl.endpoint) filter (where w.leased_until <= v_now),
         array_agg(e.webhook_id) filter (where w.leased_until > v_now), array_agg(w.leased_until - v_now) filter (where w.leased_until > v_now)
    into v_free, v_leased, v_waits
    from (select distinct on (x.owner_id, x.webhook_id) x.* from unnest(v_endpoints) x order by x.owner_id, x.webhook_id, x.item) e
    join posthorn.webhooks w on w.owner_id = e.owner_id and w.webhook_id = e.webhook_id and w.status = 'active';
  if v_leased is not null then
    -- whoever has it looks again after each delivery; should they have died, this looks after them
    perform posthorn_impl.add_drains(v_leased, v_waits);
  end if;
  if v_free is not null then
    return query select d.* from posthorn_impl.next_deliveries(v_free, v_now) d;
  end if;
end $$;
comment on function posthorn_api.claim_deliveries(uuid[], uuid[]) is 'Of each of these endpoints the delivery to send now, with the endpoint leased for 30 seconds; none where nothing is due or another worker has it. [nullable: previous_sealed_secret, sealed_auth_header, state, pending_count, group_id, conversation_id, message_ids]';

create function posthorn_api.record_attempts(
  p_webhook_ids uuid[],
  p_lease_ids uuid[],
  p_delivery_ids uuid[],
  p_http_statuses int[],
  p_problems text[],
  p_milliseconds int[],
  p_retry_after_seconds int[],
  p_go_on boolean[]
) returns setof posthorn_impl.due_delivery
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_hashjoin = off
set enable_mergejoin = off
set enable_seqscan = off
as $$
declare
  v_endpoints posthorn_impl.endpoint[] := posthorn_impl.lock_endpoints(p_webhook_ids, p_lease_ids);
  v_now timestamptz := posthorn_impl.clock();
  v_webhook posthorn.webhooks;
  v_going posthorn_impl.endpoint[];
  v_stopping uuid[];
begin
  -- the others were registered anew or disabled, or another worker took over
  v_endpoints := array(
    select e
      from unnest(v_endpoints) e
      join posthorn.webhooks w on w.owner_id = e.owner_id and w.webhook_id = e.webhook_id and w.lease_id = e.lease_id and w.status = 'active');
  with attempt as materialized (
    select e.item, e.owner_id, e.webhook_id, a.delivery_id, a.http_status, a.problem, a.milliseconds,
           coalesce(a.http_status between 200 and 299, false) as is_done, r.may_retry,
           case when r.may_retry and a.retry_after_seconds between 1 and 3600 then make_interval(secs => a.retry_after_seconds) end as advice
      from unnest(v_endpoints) e
     cross join lateral (
       select p_delivery_ids[e.item] as delivery_id, p_http_statuses[e.item] as http_status, p_problems[e.item] as problem, p_milliseconds[e.item] as milliseconds,
              p_retry_after_seconds[e.item] as retry_after_seconds) a
     cross join lateral (
       -- no answer at all, or one that says that it may be different another time
       select a.http_status is null or a.http_status in (408, 425, 429) or a.http_status between 500 and 599 as may_retry) r
  ), counted as (
    update posthorn.deliveries d
       set attempts = d.attempts + 1,
           state = case when a.is_done then 'delivered' when a.may_retry and d.attempts + 1 < d.attempts_allowed then 'pending' else 'failed' end,
           ended_at = case when a.may_retry and d.attempts + 1 < d.attempts_allowed then null else v_now end,
           next_attempt_at = case when a.is_done then d.next_attempt_at
                                  else v_now + greatest(a.advice, posthorn_impl.wait_after(d.attempts + 1 - (d.attempts_allowed - posthorn_impl.max_attempts()))) end
      from attempt a
     where d.owner_id = a.owner_id
       and d.delivery_id = a.delivery_id
       and d.webhook_id = a.webhook_id
       and d.state = 'pending'
    returning a.owner_id, a.webhook_id, a.delivery_id, d.attempts, d.kind, a.is_done, a.advice, a.http_status, a.problem, a.milliseconds
  ), logged as (
    insert into posthorn.delivery_attempts (owner_id, delivery_id, attempt, attempted_at, milliseconds, http_status, problem)
    select c.owner_id, c.delivery_id, c.attempts, v_now - make_interval(secs => c.milliseconds / 1000.0), c.milliseconds, c.http_status, c.problem
      from counted c
  ), judged as (
    update posthorn.webhooks w
       set consecutive_failures = case when c.is_done then 0 else w.consecutive_failures + 1 end,
           next_attempt_at = case when c.is_done then '-infinity' else v_now + greatest(c.advice, posthorn_impl.wait_after(w.consecutive_failures + 1)) end,
           last_delivered_at = case when c.is_done then v_now else w.last_delivered_at end
      from counted c
     where w.owner_id = c.owner_id
       and w.webhook_id = c.webhook_id
       and c.kind <> 'webhook.test' -- which tells nothing of the endpoint's health
    returning w.webhook_id, w.consecutive_failures
  )
  select array_agg(j.webhook_id) filter (where j.consecutive_failures >= posthorn_impl.max_attempts()) into v_stopping from judged j;
  if v_stopping is not null then
    for v_webhook in
      select w.* from unnest(v_endpoints) e join posthorn.webhooks w on w.owner_id = e.owner_id and w.webhook_id = e.webhook_id where e.webhook_id = any (v_stopping)
    loop
      -- the mailbox still says that it wants events: whoever appends the next one sees to that, who holds it
      perform posthorn_impl.stop_webhook(v_webhook, 'delivery_failures', v_now);
      perform posthorn_impl.record_act(row(1, v_webhook.owner_id, null, null, null, null)::posthorn_impl.proven, 'webhook.disable', v_webhook.webhook_id, v_now, v_webhook.agent_id);
    end loop;
    v_endpoints := array(select e from unnest(v_endpoints) e where e.webhook_id <> all (v_stopping));
  end if;
  v_going := array(select e from unnest(v_endpoints) e where p_go_on[e.item]);
  if cardinality(v_going) < cardinality(v_endpoints) then
    update posthorn.webhooks w
       set lease_id = null,
           leased_until = '-infinity'
      from unnest(v_endpoints) e
     where w.owner_id = e.owner_id
       and w.webhook_id = e.webhook_id
       and not p_go_on[e.item];
    perform posthorn_impl.add_drains(array(select e.webhook_id from unnest(v_endpoints) e where not p_go_on[e.item]));
  end if;
  if cardinality(v_going) > 0 then
    return query select d.* from posthorn_impl.next_deliveries(v_going, v_now) d;
  end if;
end $$;
comment on function posthorn_api.record_attempts(uuid[], uuid[], uuid[], int[], text[], int[], int[], boolean[]) is 'Records how attempts went, by the lease under which each was claimed, decides what each means for its delivery and its endpoint, and answers the next delivery of each endpoint that goes on; one whose lease was lost is passed over. [nullable: previous_sealed_secret, sealed_auth_header, state, pending_count, group_id, conversation_id, message_ids]';

create function ops.requeue_delivery(
  p_owner_id uuid,
  p_delivery_id uuid
) returns text
language plpgsql
volatile
security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
  return (select r.state from posthorn_api.redeliver_as_owner(ops.act_as_owner(p_owner_id), p_delivery_id) r);
end $$;
comment on function ops.requeue_delivery(uuid, uuid) is 'Sends a delivery of an owner''s endpoint again; answers its state.';

grant execute on function
  posthorn_api.plan_webhook(bytea, uuid), posthorn_api.set_webhook(bytea, text, bytea, bytea, text[], bytea, boolean, int, uuid), posthorn_api.get_webhook(bytea, uuid),
  posthorn_api.remove_webhook(bytea, uuid), posthorn_api.test_webhook(bytea, uuid), posthorn_api.list_deliveries(bytea, uuid, uuid, int, uuid),
  posthorn_api.redeliver(bytea, uuid, uuid) to posthorn_app;
grant execute on function
  posthorn_api.list_owner_webhooks(bytea, int, uuid), posthorn_api.disable_webhook(bytea, uuid), posthorn_api.lift_webhook(bytea, uuid),
  posthorn_api.redeliver_as_owner(bytea, uuid) to posthorn_app, posthorn_admin;
grant execute on function ops.requeue_delivery(uuid, uuid) to posthorn_admin;
grant execute on function
  posthorn_api.claim_deliveries(uuid[], uuid[]), posthorn_api.record_attempts(uuid[], uuid[], uuid[], int[], text[], int[], int[], boolean[]) to posthorn_jobs;
