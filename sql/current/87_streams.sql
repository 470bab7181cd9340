-- Event streams: readers of the event log. A pod holds the sockets; what they may read, how many there may be and
-- when they end is decided here, with their credential proved at every read.
set local role posthorn_engine;

create function posthorn_impl.epoch() returns bigint
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  select s.epoch from posthorn.server s
$$;
comment on function posthorn_impl.epoch() is 'Which history of the event log this is: a restore begins another, and ids of an older one are not continued.';

create function posthorn_impl.stream_is_live(
  p_stream posthorn.streams,
  p_now timestamptz
) returns boolean
language sql
immutable
security invoker
set search_path = pg_catalog, pg_temp
as $$
  -- a lease lapses after 45 seconds, and so does a socket that took nothing for 30
  select p_stream.leased_until > p_now and p_stream.written_at > p_now - interval '30 seconds'
$$;
comment on function posthorn_impl.stream_is_live(posthorn.streams, timestamptz) is 'Whether a stream still holds its slot.';

create function posthorn_impl.note_presence(
  p_owners int[],
  p_agent_ids uuid[],
  p_now timestamptz
) returns void
language sql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
  insert into posthorn.presence (owner_id, agent_id, present_until)
  select distinct u.owner_id, u.agent_id, p_now + interval '45 seconds'
    from unnest(p_owners, p_agent_ids) u(owner_id, agent_id)
   order by u.owner_id, u.agent_id
  on conflict (owner_id, agent_id) do update set present_until = excluded.present_until
$$;
comment on function posthorn_impl.note_presence(int[], uuid[], timestamptz) is 'Shows agents as live for 45 seconds.';

create function posthorn_api.open_stream(
  p_credential bytea,
  p_stream_id uuid,
  p_pod_id uuid,
  p_agent_ids uuid[],
  p_succeeds uuid default null
) returns table (
  agent_id uuid,
  wake_number int,
  last_seq bigint,
  first_seq bigint,
  epoch bigint,
  expires_at timestamptz
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_identities posthorn_impl.identity[] := array(
    select i from posthorn_impl.identify(array_fill(p_credential, array[greatest(1, cardinality(p_agent_ids))]), case when cardinality(p_agent_ids) = 0 then array[null::uuid] else p_agent_ids end, 'messaging') i);
  v_problem text := (select i.problem from unnest(v_identities) i where i.problem is not null order by i.item limit 1);
  v_me posthorn_impl.identity := v_identities[1];
  v_agents uuid[] := array(select distinct i.agent_id from unnest(v_identities) i order by 1);
  v_connection posthorn.connections;
  v_now timestamptz;
  v_wakes int[];
begin
  if v_problem is not null then
    perform posthorn_impl.refuse(v_problem);
  end if;
  -- the connection's row is the lock of its slots
  select c.* into v_connection
    from posthorn.connections c
   where c.owner_id = v_me.owner_id
     and c.connection_id = v_me.connection_id
     for no key update;
  v_now := posthorn_impl.clock();
  if v_connection.revoked_at is not null or v_connection.expires_at <= v_now then
    perform posthorn_impl.refuse('unauthorized');
  end if;
  -- a reader that comes back takes the slot of the stream it lost, wherever that one still hangs
  delete from posthorn.streams s
   where s.owner_id = v_me.owner_id
     and s.connection_id = v_me.connection_id
     and (s.stream_id = p_succeeds or not posthorn_impl.stream_is_live(s, v_now));
  if (select count(*) from posthorn.streams s where s.owner_id = v_me.owner_id and s.connection_id = v_me.connection_id)
     >= posthorn_impl.limit_value('streams_per_connection') then
    perform posthorn_impl.refuse('stream_limit');
  end if;
  insert into posthorn.streams (owner_id, stream_id, connection_id, pod_id, agent_ids, opened_at, leased_until, written_at)
  values (v_me.owner_id, p_stream_id, v_me.connection_id, p_pod_id, v_agents, v_now, v_now + interval '45 seconds', v_now);
  perform posthorn_impl.note_presence(array_fill(v_me.owner_id, array[cardinality(v_agents)]), v_agents, v_now);
  if p_succeeds is not null then
    v_wakes := array(select b.wake_number from posthorn.mailboxes b where b.owner_id = v_me.owner_id and b.agent_id = any (v_agents));
    perform posthorn_impl.wake(v_wakes); -- the pod that held the old one looks and finds it gone
  end if;
  return query
  select b.agent_id, b.wake_number, b.event_seq,
         coalesce((select e.seq from posthorn.events e where e.owner_id = b.owner_id and e.agent_id = b.agent_id order by e.seq limit 1), b.event_seq + 1),
         posthorn_impl.epoch(), nullif(v_connection.expires_at, 'infinity')
    from posthorn.mailboxes b
   where b.owner_id = v_me.owner_id
     and b.agent_id = any (v_agents)
   order by b.agent_id;
end $$;
comment on function posthorn_api.open_stream(bytea, uuid, uuid, uuid[], uuid) is 'Takes one of the connection''s slots for a stream over these agents (none: the one it acts as); answers where each agent''s log begins and ends. Raises stream_limit and what is wrong with the caller. [nullable: expires_at]';

create function posthorn_api.renew_streams(
  p_credentials bytea[],
  p_stream_ids uuid[],
  p_written boolean[]
) returns table (
  stream_id uuid,
  problem text
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_proven posthorn_impl.proven[] := array(select p from posthorn_impl.prove(p_credentials) p);
  v_now timestamptz := posthorn_impl.clock();
  v_renewed posthorn.streams[];
begin
  with renewed as (
    update posthorn.streams s
       set leased_until = v_now + interval '45 seconds',
           written_at = case when p_written[p.item] then v_now else s.written_at end
      from unnest(v_proven) p
     where s.owner_id = p.owner_id
       and s.stream_id = p_stream_ids[p.item]
       and s.connection_id = p.connection_id
    returning s.*
  )
  select array_agg(row(r.*)::posthorn.streams) into v_renewed from renewed r;
  perform posthorn_impl.note_presence(array_agg(r.owner_id), array_agg(a), v_now) from unnest(v_renewed) r, unnest(r.agent_ids) a;
  return query
  select u.stream_id,
         case
           when p.owner_id is null then 'unauthorized'
           when exists (select from posthorn.owners o where o.owner_id = p.owner_id and o.suspended_at is not null) then 'owner_suspended'
           when not exists (select from unnest(v_renewed) r where r.stream_id = u.stream_id) then 'replaced'
         end
    from unnest(p_stream_ids) with ordinality u(stream_id, item)
    left join unnest(v_proven) p on p.item = u.item;
end $$;
comment on function posthorn_api.renew_streams(bytea[], uuid[], boolean[]) is 'Renews the leases of a pod''s streams and the presence of their agents, in one statement an interval; answers which must end. [nullable: problem]';

create function posthorn_api.close_streams(
  p_credentials bytea[],
  p_stream_ids uuid[]
) returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_proven posthorn_impl.proven[] := array(select p from posthorn_impl.prove(p_credentials) p);
begin
  delete from posthorn.streams s
   using unnest(v_proven) p
   where s.owner_id = p.owner_id
     and s.stream_id = p_stream_ids[p.item]
     and s.connection_id = p.connection_id;
end $$;
comment on function posthorn_api.close_streams(bytea[], uuid[]) is 'Gives slots back as soon as their streams are gone.';

create function posthorn_api.read_events(
  p_credentials bytea[],
  p_stream_ids uuid[],
  p_agent_ids uuid[],
  p_after bigint[],
  p_limit int
) returns table (
  item int,
  problem text,
  seq bigint,
  kind text,
  subject_id uuid,
  state text,
  occurred_at timestamptz,
  group_id uuid,
  conversation_id uuid,
  message_ids uuid[],
  pending_count int
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  v_identities posthorn_impl.identity[] := array(select i from posthorn_impl.identify(p_credentials, p_agent_ids, 'messaging') i);
  v_now timestamptz := posthorn_impl.clock();
begin
  return query
  select i.item,
         coalesce(i.problem, case when p_stream_ids[i.item] is not null and not exists (
           select from posthorn.streams s where s.owner_id = i.owner_id and s.stream_id = p_stream_ids[i.item]) then 'replaced' end),
         e.seq, e.kind, e.subject_id, e.state, e.occurred_at, e.group_id, e.conversation_id, e.message_ids,
         case when e.kind = 'messaging.pending' then posthorn_impl.count_pending(i.owner_id, i.agent_id, v_now) end
    from unnest(v_identities) i
    left join lateral (
      select x.seq, x.kind, x.subject_id, x.state, x.occurred_at, m.group_id, m.conversation_id,
             case when x.kind in ('messaging.pending', 'message.state') then array[x.subject_id]
                  else array(select h.message_id from posthorn.messages h
                              where h.owner_id = i.owner_id and h.proposal_id = x.subject_id and h.sender_agent_id = i.agent_id order by h.message_id) end as message_ids
        from posthorn.events x
        left join posthorn.messages m on m.owner_id = i.owner_id and m.message_id = x.subject_id and x.kind = 'messaging.pending'
       where x.owner_id = i.owner_id
         and x.agent_id = i.agent_id
         and x.seq > p_after[i.item]
       order by x.seq
       limit p_limit) e on i.problem is null
   order by i.item, e.seq;
end $$;
comment on function posthorn_api.read_events(bytea[], uuid[], uuid[], bigint[], int) is 'The next events of many agents'' logs, each after its sequence number; for a stream also whether it must end. One row with a null seq where there is nothing. [nullable: problem, seq, kind, subject_id, state, occurred_at, group_id, conversation_id, message_ids, pending_count]';

create function posthorn_api.inbox_snapshot(
  p_credential bytea,
  p_agent_id uuid default null
) returns table (
  pending_count int,
  message_ids uuid[],
  proposal_ids uuid[]
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_me posthorn_impl.identity := posthorn_impl.identify_agent(p_credential, p_agent_id);
  v_now timestamptz := posthorn_impl.clock();
begin
  return query
  select coalesce(posthorn_impl.count_pending(v_me.owner_id, v_me.agent_id, v_now), 0),
         array(select b.message_id from posthorn.bodies b
                where b.owner_id = v_me.owner_id and b.recipient_agent_id = v_me.agent_id and b.expires_at > v_now order by b.seq limit 100),
         array(select p.proposal_id from posthorn.proposals p
                where p.owner_id = v_me.owner_id and p.state = 'pending' and p.expires_at > v_now and p.agent_ids @> array[v_me.agent_id] order by p.proposal_id);
end $$;
comment on function posthorn_api.inbox_snapshot(bytea, uuid) is 'What a stream without a past begins with: how much mail waits, up to 100 of its ids, and undecided requests.';

grant execute on function
  posthorn_api.open_stream(bytea, uuid, uuid, uuid[], uuid), posthorn_api.renew_streams(bytea[], uuid[], boolean[]), posthorn_api.close_streams(bytea[], uuid[]),
  posthorn_api.read_events(bytea[], uuid[], uuid[], bigint[], int), posthorn_api.inbox_snapshot(bytea, uuid) to posthorn_app;
