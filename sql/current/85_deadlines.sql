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
  -- Reads all that is unfenced: 20 ms for 100,000 messages, 1.5 s for 2,000,000, once a minute. An index would cost
  -- every send an entry.
  select array_agg(d.owner_id), array_agg(d.message_id) into v_owners, v_message_ids
    from (select b.owner_id, b.message_id from posthorn.bodies b where b.expires_at <= v_now limit p_limit) d;
  return case when v_owners is null then 0 else posthorn_impl.expire_owners_messages(v_owners, v_message_ids) end;
end $$;
comment on function posthorn_api.expire_messages(int) is 'Ends a batch of messages that are past their deadline; answers how many. Runs as the worker, who sees of all owners only what is due.';

grant execute on function posthorn_impl.expire_owners_messages(int[], uuid[]), posthorn_api.expire_messages(int) to posthorn_jobs;
