-- What the owner's pages show of the past: acts, receipts and counts, never content.
set local role posthorn_engine;

create function posthorn_api.list_acts(
  p_credential bytea,
  p_before uuid default null,
  p_limit int default 50
) returns table (
  entry_id uuid,
  act text,
  connection_id uuid,
  agent_id uuid,
  subject_id uuid,
  occurred_at timestamptz
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_actor posthorn_impl.proven := posthorn_impl.identify_owner(p_credential);
begin
  return query
  select a.entry_id, a.act, a.connection_id, a.agent_id, a.subject_id, a.occurred_at
    from posthorn.audit_entries a
   where a.owner_id = v_actor.owner_id
     and (p_before is null or a.entry_id < p_before)
   order by a.entry_id desc
   limit least(p_limit, 200);
end $$;
comment on function posthorn_api.list_acts(bytea, uuid, int) is 'Who did what to which id, the latest first; a page goes on before an entry. Without a connection it was the person at the server. [nullable: connection_id, agent_id]';

create function posthorn_api.request_progress(
  p_credential bytea,
  p_proposal_ids uuid[]
) returns table (
  proposal_id uuid,
  may_be_lifted boolean,
  queued int,
  delivered int,
  acknowledged int,
  replied int,
  ended int
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_actor posthorn_impl.proven := posthorn_impl.identify_owner(p_credential);
  v_now timestamptz := posthorn_impl.clock();
begin
  return query
  select p.proposal_id,
         p.state = 'denied' and p.reason is null and p.lifted_at is null and p.decided_at > v_now - interval '24 hours',
         m.queued, m.delivered, m.acknowledged, m.replied, m.ended
    from posthorn.proposals p
   cross join lateral (
     select (count(*) filter (where y.state = 'queued'))::int as queued,
            (count(*) filter (where y.state = 'delivered'))::int as delivered,
            (count(*) filter (where y.state = 'acknowledged'))::int as acknowledged,
            (count(*) filter (where y.state = 'replied'))::int as replied,
            (count(*) filter (where y.state in ('denied', 'expired', 'revoked')))::int as ended
       from posthorn.messages x
      cross join lateral (select posthorn_impl.present_state(x.state, x.expires_at, v_now) as state) y
      where x.owner_id = p.owner_id
        and x.proposal_id = p.proposal_id) m
   where p.owner_id = v_actor.owner_id
     and p.proposal_id = any (p_proposal_ids)
   order by p.proposal_id;
end $$;
comment on function posthorn_api.request_progress(bytea, uuid[]) is 'What became of requests: whether a denial can still be lifted, and how many of the messages that waited are in each state.';

create function posthorn_api.mail_history(
  p_credential bytea,
  p_hours int default 24
) returns table (
  at timestamptz,
  sent int,
  waiting int,
  oldest_seconds int
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_actor posthorn_impl.proven := posthorn_impl.identify_owner(p_credential);
  v_now timestamptz := posthorn_impl.clock();
  v_hours int := least(greatest(p_hours, 1), 168);
  v_start timestamptz := v_now - make_interval(hours => v_hours);
  -- a message waits at most a day for its owner and another for its reader; ids begin with the milliseconds of a pod's
  -- clock, which may be a day off, and are what the primary key is sorted by
  v_oldest timestamptz := v_start - interval '48 hours';
  v_lowest uuid := (lpad(to_hex((extract(epoch from v_oldest - interval '1 day') * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid;
begin
  return query
  with kept as materialized (
    select m.created_at,
           greatest(0, ceil(extract(epoch from m.created_at - v_start) / 3600))::int as first_point,
           least(v_hours, ceil(extract(epoch from least(m.acknowledged_at, m.replied_at, m.ended_at, m.expires_at) - v_start) / 3600) - 1)::int as last_point
      from posthorn.messages m
     where m.owner_id = v_actor.owner_id
       and m.message_id >= v_lowest
       and m.created_at > v_oldest
  ), waited as (
    select g.point, count(*)::int as messages, min(k.created_at) as oldest_at
      from kept k
     cross join lateral generate_series(k.first_point, k.last_point) g(point)
     group by g.point
  ), began as (
    select k.first_point as point, count(*)::int as messages
      from kept k
     where k.created_at > v_start
     group by k.first_point
  )
  select x.moment, coalesce(b.messages, 0), coalesce(w.messages, 0), coalesce(extract(epoch from x.moment - w.oldest_at)::int, 0)
    from generate_series(0, v_hours) g(point)
   cross join lateral (select v_start + make_interval(hours => g.point) as moment) x
    left join waited w on w.point = g.point
    left join began b on b.point = g.point
   order by g.point;
end $$;
comment on function posthorn_api.mail_history(bytea, int) is 'For each of the last hours, up to 168: how many messages were sent in the hour before, how many waited at its end for their owner or reader, and the age of the oldest of those in seconds.';

grant execute on function
  posthorn_api.list_acts(bytea, uuid, int), posthorn_api.request_progress(bytea, uuid[]), posthorn_api.mail_history(bytea, int) to posthorn_app, posthorn_admin;
