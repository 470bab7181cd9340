-- What workers do about deadlines. Truth never waits for them: past its deadline by the clock a message is expired
-- whether or not anybody swept it. They make the stored rows say so, delete the bodies and tell the senders.
set local role posthorn_owner;

-- The one thing that a worker may see of owners it has not proved: which bodies are past their deadline.
drop policy if exists select_jobs on posthorn.bodies;
create policy select_jobs on posthorn.bodies for select to posthorn_jobs
  using (expires_at <= (select posthorn_impl.clock()));
grant select (owner_id, recipient_agent_id, seq, message_id, expires_at) on posthorn.bodies to posthorn_jobs;

reset role;
grant usage on schema posthorn_api, posthorn_impl to posthorn_jobs;

set local role posthorn_engine;
grant execute on function posthorn_impl.clock() to posthorn_jobs;

create function posthorn_impl.expire_owners_messages(
  p_owners int[],
  p_message_ids uuid[]
) returns int
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
as $$
declare
  v_now timestamptz;
  v_due posthorn_impl.advance[];
begin
  -- a statement of its own: policies of the next ones must find the proof made
  perform posthorn_impl.prove(array(
    select int4send(o.owner_id) || decode(posthorn_impl.sign_proof('ticket|' || o.owner_id), 'hex')
      from (select distinct u.owner_id from unnest(p_owners) u(owner_id)) o));
  perform posthorn_impl.lock_mailboxes_of(p_owners, p_message_ids);
  v_now := posthorn_impl.clock();
  -- looked at again under the locks, so that whoever calls this can end nothing before its time
  v_due := array(
    select row(m.owner_id, m.message_id, 'expired', false, false)::posthorn_impl.advance
      from unnest(p_owners, p_message_ids) i(owner_id, message_id)
      join posthorn.messages m on m.owner_id = i.owner_id and m.message_id = i.message_id
     where m.state <> 'expired'
       and posthorn_impl.present_state(m.state, m.expires_at, v_now) = 'expired');
  perform posthorn_impl.wake(posthorn_impl.advance_messages(v_due, v_now));
  return cardinality(v_due);
end $$;
comment on function posthorn_impl.expire_owners_messages(int[], uuid[]) is 'Ends those of these messages that are past their deadline and not yet marked so; answers how many. The only lock it takes is the last of the order, and all of it at once.';

create function posthorn_api.expire_messages(
  p_limit int
) returns int
language plpgsql
volatile
security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz := posthorn_impl.clock();
  v_owners int[];
  v_message_ids uuid[];
begin
  select array_agg(d.owner_id), array_agg(d.message_id) into v_owners, v_message_ids
    from (select b.owner_id, b.message_id from posthorn.bodies b where b.expires_at <= v_now limit p_limit) d;
  return case when v_owners is null then 0 else posthorn_impl.expire_owners_messages(v_owners, v_message_ids) end;
end $$;
comment on function posthorn_api.expire_messages(int) is 'Ends a batch of messages that are past their deadline; answers how many. Runs as the worker, who sees of all owners only what is due.';

grant execute on function posthorn_impl.expire_owners_messages(int[], uuid[]), posthorn_api.expire_messages(int) to posthorn_jobs;

-- Requests to the owner. One owner a call: their lock comes before mailboxes, and a worker that held mailboxes of one
-- owner while it waits for the next would stand in the way of senders.
set local role posthorn_owner;

drop policy if exists select_jobs on posthorn.proposals;
create policy select_jobs on posthorn.proposals for select to posthorn_jobs
  using (state = 'pending' and expires_at <= (select posthorn_impl.clock()));
grant select (owner_id, state, expires_at) on posthorn.proposals to posthorn_jobs;

set local role posthorn_engine;

create function posthorn_impl.expire_owner_proposals(
  p_owner_id int
) returns int
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  c_batch constant int := 100; -- however far an operator raises the limits
  v_now timestamptz;
  v_due uuid[];
begin
  perform posthorn_impl.prove(array[int4send(p_owner_id) || decode(posthorn_impl.sign_proof('ticket|' || p_owner_id), 'hex')]);
  perform posthorn_impl.lock_owner(p_owner_id);
  v_now := posthorn_impl.clock();
  if not exists (select from posthorn.proposals p where p.owner_id = p_owner_id and p.state = 'pending' and p.expires_at <= v_now) then
    return 0; -- another worker was here, or the owner was quicker
  end if;
  perform posthorn_impl.lock_requests(p_owner_id, '{}');
  v_now := posthorn_impl.clock();
  v_due := array(
    select p.proposal_id from posthorn.proposals p where p.owner_id = p_owner_id and p.state = 'pending' and p.expires_at <= v_now order by p.expires_at limit c_batch);
  perform posthorn_impl.close_proposals(p_owner_id, v_due, 'expired', 'expired', null, v_now);
  return cardinality(v_due);
end $$;
comment on function posthorn_impl.expire_owner_proposals(int) is 'Ends up to 100 of one owner''s requests that are past their deadline, and what they hold; answers how many.';

create function posthorn_api.expire_proposals() returns int
language plpgsql
volatile
security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz := posthorn_impl.clock();
  v_owner_id int := 0;
  v_ended int := 0;
begin
  while v_ended = 0 loop
    select p.owner_id into v_owner_id
      from posthorn.proposals p
     where p.state = 'pending'
       and p.expires_at <= v_now
       and p.owner_id > v_owner_id
     order by p.owner_id
     limit 1;
    exit when not found;
    v_ended := posthorn_impl.expire_owner_proposals(v_owner_id);
  end loop;
  return v_ended;
end $$;
comment on function posthorn_api.expire_proposals() is 'Ends the overdue requests of one owner; answers how many, 0 when none is left.';

grant execute on function posthorn_impl.expire_owner_proposals(int), posthorn_api.expire_proposals() to posthorn_jobs;

-- What is kept no longer. The policies say which rows a worker may see and delete, so that even a wrong query of its
-- own deletes nothing before its time.
create function posthorn_impl.kept_since(
  p_limit text
) returns timestamptz
language sql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
  select posthorn_impl.clock() - make_interval(days => posthorn_impl.limit_value(p_limit)::int)
$$;
comment on function posthorn_impl.kept_since(text) is 'Since when rows are kept, by a limit in days: what is as old or older may go.';
grant execute on function posthorn_impl.kept_since(text) to posthorn_jobs;

set local role posthorn_owner;

do $$
declare
  v_rule record;
begin
  for v_rule in
    select * from (values
      ('idempotency_keys', 'receipt_days', 'created_at', 'true'),
      ('posts', 'receipt_days', 'created_at', 'true'),
      ('messages', 'receipt_days', 'created_at', $c$state not in ('held', 'queued', 'delivered')$c$),
      ('events', 'event_days', 'occurred_at', 'true'),
      ('proposals', 'receipt_days', 'decided_at', $c$state <> 'pending'$c$),
      -- with their attempts; one that waits for longer is stranded
      ('deliveries', 'delivery_days', 'created_at', 'true')
    ) r(table_name, limit_name, time_column, condition)
  loop
    execute format('drop policy if exists select_outdated on posthorn.%I', v_rule.table_name);
    execute format('drop policy if exists delete_outdated on posthorn.%I', v_rule.table_name);
    execute format(
      'create policy select_outdated on posthorn.%I for select to posthorn_jobs using (%s and %I <= (select posthorn_impl.kept_since(%L)))',
      v_rule.table_name, v_rule.condition, v_rule.time_column, v_rule.limit_name);
    -- the same for deleting: a delete without a where clause is not under the select policy
    execute format(
      'create policy delete_outdated on posthorn.%I for delete to posthorn_jobs using (%s and %I <= (select posthorn_impl.kept_since(%L)))',
      v_rule.table_name, v_rule.condition, v_rule.time_column, v_rule.limit_name);
  end loop;
end $$;
grant delete on posthorn.idempotency_keys, posthorn.posts, posthorn.messages, posthorn.events, posthorn.proposals, posthorn.deliveries to posthorn_jobs;
grant select (owner_id, created_at, ctid) on posthorn.idempotency_keys, posthorn.posts, posthorn.messages, posthorn.deliveries to posthorn_jobs;
grant select (state) on posthorn.messages to posthorn_jobs;
grant select (owner_id, occurred_at, ctid) on posthorn.events to posthorn_jobs;
grant select (decided_at, ctid) on posthorn.proposals to posthorn_jobs;

set local role posthorn_engine;

create function posthorn_api.delete_outdated(
  p_table text,
  p_first_page bigint,
  p_pages int
) returns boolean
language plpgsql
volatile
security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  v_end bigint := p_first_page + p_pages;
begin
  if p_table not in ('idempotency_keys', 'posts', 'messages', 'events', 'proposals', 'deliveries') then
    perform posthorn_impl.refuse('invalid_request', '{"fields": ["table"]}');
  end if;
  -- Page by page, since no index knows old rows: one by time would cost every send, and a range index forgets nothing,
  -- so that it leads everywhere once its pages are used again. Which rows go is for the policies to say.
  execute format('delete from posthorn.%I x where x.ctid >= $1 and x.ctid < $2', p_table)
    using format('(%s,0)', p_first_page)::tid, format('(%s,0)', v_end)::tid;
  return v_end < pg_relation_size(format('posthorn.%I', p_table)::regclass) / current_setting('block_size')::int;
end $$;
comment on function posthorn_api.delete_outdated(text, bigint, int) is 'Deletes what is kept no longer from some pages of a table: receipts, keys, posts and decided requests after their days, events and deliveries after theirs. Answers whether more pages follow.';

grant execute on function posthorn_api.delete_outdated(text, bigint, int), posthorn_impl.refuse(text, jsonb) to posthorn_jobs;
