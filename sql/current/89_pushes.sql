-- Pushes: an owner's browsers are notified that requests wait, and of nothing but how many. Whoever makes a request only
-- puts a job into the queue; a worker asks whom to push to, and reports how it went.
--
-- Locks: the owner's, and then the job. Requests, sessions and workers of one owner come one after the other.
set local role posthorn_owner;
drop policy if exists select_all on posthorn.push_subscriptions;
create policy select_all on posthorn.push_subscriptions for select to posthorn_ops using (true);
grant select (owner_id, subscription_id, connection_id, requests_made, requests_told, failures, next_push_at, created_at) on posthorn.push_subscriptions to posthorn_ops;
grant select, insert, delete, update (requests_made, requests_told, failures, next_push_at) on posthorn.push_subscriptions to posthorn_engine;

set local role posthorn_queue;
create policy insert_pushes on graphile_worker._private_jobs for insert to posthorn_enqueuer
  with check (key like 'push:%' and task_id = (select t.id from graphile_worker._private_tasks t where t.identifier = 'push__send'));
-- add_jobs takes the key from a job that runs
create policy update_pushes on graphile_worker._private_jobs for update to posthorn_enqueuer using (key like 'push:%')
  with check ((key is null or key like 'push:%') and task_id = (select t.id from graphile_worker._private_tasks t where t.identifier = 'push__send'));
create policy insert_pushes on graphile_worker._private_tasks for insert to posthorn_enqueuer with check (identifier = 'push__send');

set local role posthorn_engine;
grant create on schema posthorn_impl to posthorn_enqueuer;

set local role posthorn_enqueuer;

create function posthorn_impl.add_push(
  p_owner_id uuid,
  p_wait interval default null
) returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  -- Two keys: news for one browser never waits for another that is to be left alone for a while.
  perform graphile_worker.add_jobs(
    array[row('push__send', json_build_object('owner_id', p_owner_id), null, now() + coalesce(p_wait, '0'), null,
              'push:' || p_owner_id || case when p_wait is null then '' else ':retry' end, null, null)::graphile_worker.job_spec],
    job_key_preserve_run_at => p_wait is null);
end $$;
comment on function posthorn_impl.add_push(uuid, interval) is 'Puts a job into the queue that notifies an owner''s browsers: now, or after a wait. At most one of either kind waits for each owner.';
revoke execute on function posthorn_impl.add_push(uuid, interval) from public;
grant execute on function posthorn_impl.add_push(uuid, interval) to posthorn_engine;

set local role posthorn_engine;
revoke create on schema posthorn_impl from posthorn_enqueuer;

-- What a worker needs to push to one browser.
create type posthorn_impl.due_push as (
  subscription_id uuid,
  ring_key_id text,
  wrapped_key bytea,
  endpoint_hash bytea,
  sealed_subscription bytea,
  requests int,
  waiting int,
  life_seconds int
);

create function posthorn_impl.push_request(
  p_owner_id int
) returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  update posthorn.push_subscriptions s set requests_made = s.requests_made + 1 where s.owner_id = p_owner_id;
  if found then
    perform posthorn_impl.add_push((select o.id from posthorn.owners o where o.owner_id = p_owner_id));
  end if;
end $$;
comment on function posthorn_impl.push_request(int) is 'Has the owner''s browsers told of one more request. Under the owner''s lock.';

create function posthorn_impl.end_pushes(
  p_owner_id int,
  p_connection_ids uuid[]
) returns void
language sql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
  delete from posthorn.push_subscriptions s where s.owner_id = p_owner_id and s.connection_id = any (p_connection_ids)
$$;
comment on function posthorn_impl.end_pushes(int, uuid[]) is 'Forgets the browsers of sessions that end, whose own entries in the log say why.';

create function posthorn_impl.end_pushes_of_ended_sessions(
  p_owner_id int,
  p_now timestamptz
) returns void
language sql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
  select posthorn_impl.end_pushes(p_owner_id, array(
    select s.connection_id
      from posthorn.push_subscriptions s
     where s.owner_id = p_owner_id
       and not exists (
         select from posthorn.connections c
          where c.owner_id = p_owner_id and c.connection_id = s.connection_id and c.revoked_at is null and c.expires_at > p_now)))
$$;
comment on function posthorn_impl.end_pushes_of_ended_sessions(int, timestamptz) is 'Forgets the browsers of sessions that expired, or ended in any other way.';

-- The owner.

create function posthorn_api.add_push_subscription(
  p_credential bytea,
  p_endpoint_hash bytea,
  p_sealed_subscription bytea
) returns uuid
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_actor posthorn_impl.proven := posthorn_impl.identify_owner(p_credential);
  v_now timestamptz;
  v_id uuid;
begin
  perform posthorn_impl.lock_owner(v_actor.owner_id);
  v_now := posthorn_impl.clock();
  if not exists (
    select from posthorn.connections c
     where c.owner_id = v_actor.owner_id and c.connection_id = v_actor.connection_id and c.revoked_at is null and c.expires_at > v_now
  ) then
    perform posthorn_impl.refuse('unauthorized'); -- signed out while this waited
  end if;
  perform posthorn_impl.end_pushes_of_ended_sessions(v_actor.owner_id, v_now);
  -- a session is one browser, whose address before is dead
  delete from posthorn.push_subscriptions s
   where s.owner_id = v_actor.owner_id
     and (s.connection_id = v_actor.connection_id or s.endpoint_hash = p_endpoint_hash);
  if (select count(*) from posthorn.push_subscriptions s where s.owner_id = v_actor.owner_id) >= posthorn_impl.limit_value('push_subscriptions_per_owner') then
    perform posthorn_impl.refuse('limit_reached', '{"limit": "push_subscriptions_per_owner"}');
  end if;
  insert into posthorn.push_subscriptions (owner_id, connection_id, endpoint_hash, sealed_subscription, created_at)
  values (v_actor.owner_id, v_actor.connection_id, p_endpoint_hash, p_sealed_subscription, v_now)
  returning subscription_id into v_id;
  perform posthorn_impl.record_act(v_actor, 'push.add', v_id, v_now);
  return v_id;
end $$;
comment on function posthorn_api.add_push_subscription(bytea, bytea, bytea) is 'The browser of this session is notified of requests from now on, at this address in place of the one before; raises limit_reached.';

create function posthorn_api.remove_push_subscription(
  p_credential bytea
) returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_actor posthorn_impl.proven := posthorn_impl.identify_owner(p_credential);
  v_id uuid;
begin
  perform posthorn_impl.lock_owner(v_actor.owner_id);
  delete from posthorn.push_subscriptions s where s.owner_id = v_actor.owner_id and s.connection_id = v_actor.connection_id returning s.subscription_id into v_id;
  if v_id is null then
    return false;
  end if;
  perform posthorn_impl.record_act(v_actor, 'push.remove', v_id, posthorn_impl.clock());
  return true;
end $$;
comment on function posthorn_api.remove_push_subscription(bytea) is 'The browser of this session is notified no more; answers whether it was.';

create function posthorn_api.list_push_subscriptions(
  p_credential bytea
) returns table (
  endpoint_hash bytea,
  is_mine boolean
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_actor posthorn_impl.proven := posthorn_impl.identify_owner(p_credential);
  v_now timestamptz := posthorn_impl.clock();
begin
  return query
  select s.endpoint_hash, s.connection_id = v_actor.connection_id
    from posthorn.push_subscriptions s
    join posthorn.connections c on c.owner_id = v_actor.owner_id and c.connection_id = s.connection_id and c.revoked_at is null and c.expires_at > v_now
   where s.owner_id = v_actor.owner_id
   order by s.subscription_id;
end $$;
comment on function posthorn_api.list_push_subscriptions(bytea) is 'The owner''s browsers that are notified of requests, by the hash of their addresses, and which is that of this session.';

-- Workers.

set local role posthorn_prover;

create function posthorn_impl.find_owner(
  p_owner_id uuid
) returns int
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  select o.owner_id from posthorn.owners o where o.id = p_owner_id and o.deleted_at is null
$$;
comment on function posthorn_impl.find_owner(uuid) is 'The number of an owner, which jobs do not name; null for none.';
grant execute on function posthorn_impl.find_owner(uuid) to posthorn_engine;

set local role posthorn_engine;

create function posthorn_impl.lock_owner_of_pushes(
  p_owner_id uuid
) returns int
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_owner_id int := posthorn_impl.find_owner(p_owner_id);
begin
  if v_owner_id is null then
    return null;
  end if;
  perform posthorn_impl.prove_owners(array[v_owner_id]);
  perform 1 from posthorn.owners o where o.owner_id = v_owner_id and o.deleted_at is null for no key update;
  return case when found then v_owner_id end;
end $$;
comment on function posthorn_impl.lock_owner_of_pushes(uuid) is 'The number of an owner, whom this transaction may see from now on and has locked; null for none, and for a deleted account.';

create function posthorn_impl.look_for_pushes_again(
  p_owner_id int,
  p_now timestamptz
) returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_next_at timestamptz := (
    select min(s.next_push_at) from posthorn.push_subscriptions s where s.owner_id = p_owner_id and s.requests_told < s.requests_made and s.next_push_at > p_now);
begin
  if v_next_at is not null then
    perform posthorn_impl.add_push((select o.id from posthorn.owners o where o.owner_id = p_owner_id), v_next_at - p_now);
  end if;
end $$;
comment on function posthorn_impl.look_for_pushes_again(int, timestamptz) is 'Puts a job into the queue for the time when the first of the owner''s browsers that must wait may be told.';

create function posthorn_api.claim_pushes(
  p_owner_id uuid
) returns setof posthorn_impl.due_push
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  c_pause constant interval := '1 minute'; -- whatever floods, a browser is told once in so long; longer than an attempt takes
  v_owner_id int := posthorn_impl.lock_owner_of_pushes(p_owner_id);
  v_now timestamptz := posthorn_impl.clock();
  v_waiting int;
  v_life interval;
begin
  if v_owner_id is null or exists (select from posthorn.owners o where o.owner_id = v_owner_id and o.suspended_at is not null) then
    return;
  end if;
  perform posthorn_impl.end_pushes_of_ended_sessions(v_owner_id, v_now);
  select count(*), max(p.expires_at) - v_now into v_waiting, v_life
    from posthorn.proposals p
   where p.owner_id = v_owner_id
     and p.state = 'pending'
     and p.expires_at > v_now;
  if v_waiting = 0 then
    -- decided meanwhile
    update posthorn.push_subscriptions s set requests_told = s.requests_made, failures = 0 where s.owner_id = v_owner_id;
    return;
  end if;
  perform posthorn_impl.look_for_pushes_again(v_owner_id, v_now);
  return query
  with due as (
    -- whoever dies with it has only delayed it: it is due again after the pause
    update posthorn.push_subscriptions s
       set next_push_at = v_now + c_pause
     where s.owner_id = v_owner_id
       and s.requests_told < s.requests_made
       and s.next_push_at <= v_now
    returning s.subscription_id, s.endpoint_hash, s.sealed_subscription, s.requests_made
  )
  select d.subscription_id, k.ring_key_id, k.wrapped_key, d.endpoint_hash, d.sealed_subscription, d.requests_made, v_waiting,
         greatest(1, extract(epoch from v_life))::int
    from due d
    join posthorn.owner_keys k on k.owner_id = v_owner_id;
end $$;
comment on function posthorn_api.claim_pushes(uuid) is 'The owner''s browsers that are to be told now, each at most once a minute, with how many requests wait and for how many seconds the last of them does; and a job for those that must wait. None where no request waits any more or the owner is suspended.';

create function posthorn_api.record_push(
  p_owner_id uuid,
  p_subscription_id uuid,
  p_requests int,
  p_http_status int,
  p_retry_after_seconds int
) returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  c_attempts constant int := 5; -- a push is only a hint: the page shows what waits
  v_owner_id int := posthorn_impl.lock_owner_of_pushes(p_owner_id);
  v_now timestamptz := posthorn_impl.clock();
  v_subscription posthorn.push_subscriptions;
  v_is_over boolean;
begin
  select s.* into v_subscription from posthorn.push_subscriptions s where s.owner_id = v_owner_id and s.subscription_id = p_subscription_id;
  if not found then
    return; -- switched off, or its session ended
  end if;
  if p_http_status in (404, 410) then
    delete from posthorn.push_subscriptions s where s.owner_id = v_owner_id and s.subscription_id = p_subscription_id;
    perform posthorn_impl.record_act(row(1, v_owner_id, null, null, null, null)::posthorn_impl.proven, 'push.remove', p_subscription_id, v_now);
    return;
  end if;
  -- done, or refused for a reason that stays; no answer at all, or one of the others, may be different another time
  v_is_over := coalesce(p_http_status not in (408, 425, 429) and p_http_status not between 500 and 599, false);
  update posthorn.push_subscriptions s
     set requests_told = case when v_is_over or s.failures + 1 >= c_attempts then greatest(s.requests_told, least(p_requests, s.requests_made)) else s.requests_told end,
         failures = case when v_is_over or s.failures + 1 >= c_attempts then 0 else s.failures + 1 end,
         next_push_at = case when v_is_over then s.next_push_at
                             else v_now + greatest(posthorn_impl.wait_after(s.failures + 1), case when p_retry_after_seconds between 1 and 3600 then make_interval(secs => p_retry_after_seconds) end) end
   where s.owner_id = v_owner_id
     and s.subscription_id = p_subscription_id;
  perform posthorn_impl.look_for_pushes_again(v_owner_id, v_now);
end $$;
comment on function posthorn_api.record_push(uuid, uuid, int, int, int) is 'Records how a push went, by the status of the answer (null: none). A browser that is gone is forgotten; a push service that is busy or away is asked again up to four times, after half a minute and longer, or as long as it says. [nullable: p_http_status, p_retry_after_seconds]';

grant execute on function
  posthorn_api.add_push_subscription(bytea, bytea, bytea), posthorn_api.remove_push_subscription(bytea), posthorn_api.list_push_subscriptions(bytea) to posthorn_app;
grant execute on function posthorn_api.claim_pushes(uuid), posthorn_api.record_push(uuid, uuid, int, int, int), posthorn_api.server_secret() to posthorn_jobs;
