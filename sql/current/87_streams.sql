-- Event streams: readers of the event log. A pod holds the sockets; what they may read, how many there may be and
-- when they end is decided here, with their credential proved at every read. The owner's log is read by browsers'
-- sessions, under the nil UUID in place of an agent.
set local role posthorn_engine;

create function posthorn_impl.identify_readers(
  p_credentials bytea[],
  p_agents uuid[]
) returns setof posthorn_impl.identity
language sql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
  select i.item, i.owner_id, i.connection_id, i.kind,
         case when r.is_owner then p_agents[i.item] else i.agent_id end,
         case when r.is_owner and i.problem not in ('unauthorized', 'owner_suspended') then null else i.problem end
    from posthorn_impl.identify(p_credentials, p_agents, 'messaging') i
   cross join lateral (select i.kind = 'session' and p_agents[i.item] = '00000000-0000-0000-0000-000000000000' is true as is_owner) r
$$;
comment on function posthorn_impl.identify_readers(bytea[], uuid[]) is 'Whose logs these callers may read: those of their agents, or the owner''s, which is under the nil UUID and for sessions alone.';

create function posthorn_impl.epoch() returns bigint
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  select s.epoch from posthorn.server s
$$;
comment on function posthorn_impl.epoch() is 'Which history of the event log this is: a restore begins another, and ids of an older one are not continued.';

create function posthorn_impl.commit_leases() returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  perform set_config('synchronous_commit', 'off', true);
end $$;
comment on function posthorn_impl.commit_leases() is 'Lets this transaction commit without waiting for the disk: it writes only leases, which a crash takes along anyway.';

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
   where u.agent_id <> '00000000-0000-0000-0000-000000000000' -- the owner's log is nobody's
   order by u.owner_id, u.agent_id
  on conflict (owner_id, agent_id) do update set present_until = excluded.present_until
$$;
comment on function posthorn_impl.note_presence(int[], uuid[], timestamptz) is 'Shows agents as live for 45 seconds.';

create function posthorn_impl.logs_of(
  p_owner_id int,
  p_agent_ids uuid[]
) returns table (
  agent_id uuid,
  wake_number int,
  event_seq bigint
)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  select b.agent_id, b.wake_number, b.event_seq
    from posthorn.mailboxes b
   where b.owner_id = p_owner_id
     and b.agent_id = any (p_agent_ids)
   union all
  select '00000000-0000-0000-0000-000000000000', o.wake_number, o.event_seq
    from posthorn.owners o
   where o.owner_id = p_owner_id
     and '00000000-0000-0000-0000-000000000000' = any (p_agent_ids)
$$;
comment on function posthorn_impl.logs_of(int, uuid[]) is 'The logs of these agents, and of the owner under the nil UUID: their wake numbers and last events.';

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
  expires_in_ms bigint
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_identities posthorn_impl.identity[] := array(
    select i from posthorn_impl.identify_readers(array_fill(p_credential, array[greatest(1, cardinality(p_agent_ids))]), case when cardinality(p_agent_ids) = 0 then array[null::uuid] else p_agent_ids end) i);
  v_problem text := (select i.problem from unnest(v_identities) i where i.problem is not null order by i.item limit 1);
  v_me posthorn_impl.identity := v_identities[1];
  v_agents uuid[] := array(select distinct i.agent_id from unnest(v_identities) i order by 1);
  v_connection posthorn.connections;
  v_now timestamptz;
  v_kept_since timestamptz;
begin
  if v_problem is not null then
    perform posthorn_impl.refuse(v_problem);
  end if;
  perform posthorn_impl.commit_leases();
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
     and s.stream_id = p_succeeds;
  if found then
    perform pg_notify('posthorn', 'stream ' || p_succeeds); -- the pod that holds it asks, and finds it gone
  end if;
  delete from posthorn.streams s
   where s.owner_id = v_me.owner_id
     and s.connection_id = v_me.connection_id
     and not posthorn_impl.stream_is_live(s, v_now);
  if (select count(*) from posthorn.streams s where s.owner_id = v_me.owner_id and s.connection_id = v_me.connection_id)
     >= posthorn_impl.limit_value('streams_per_connection') then
    perform posthorn_impl.refuse('stream_limit');
  end if;
  insert into posthorn.streams (owner_id, stream_id, connection_id, pod_id, agent_ids, opened_at, leased_until, written_at)
  values (v_me.owner_id, p_stream_id, v_me.connection_id, p_pod_id, v_agents, v_now, v_now + interval '45 seconds', v_now);
  perform posthorn_impl.note_presence(array_fill(v_me.owner_id, array[cardinality(v_agents)]), v_agents, v_now);
  -- events are deleted page by page and not in their order, so the log's floor is where nothing is due to go
  v_kept_since := posthorn_impl.kept_since('event_days');
  return query
  select l.agent_id, l.wake_number, l.event_seq,
         coalesce((select e.seq from posthorn.events e
                    where e.owner_id = v_me.owner_id and e.agent_id = l.agent_id and e.occurred_at > v_kept_since order by e.seq limit 1), l.event_seq + 1),
         posthorn_impl.epoch(),
         case when v_connection.expires_at < 'infinity' then extract(epoch from v_connection.expires_at - v_now)::bigint * 1000 end
    from posthorn_impl.logs_of(v_me.owner_id, v_agents) l
   order by l.agent_id;
end $$;
comment on function posthorn_api.open_stream(bytea, uuid, uuid, uuid[], uuid) is 'Takes one of the connection''s slots for a stream over these agents (none: the one it acts as; the nil UUID: the owner''s log, for a session); answers where each agent''s log begins and ends. Raises stream_limit and what is wrong with the caller. [nullable: expires_in_ms]';

create function posthorn_api.renew_streams(
  p_credentials bytea[],
  p_stream_ids uuid[],
  p_written boolean[],
  p_epoch bigint
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
  v_suspended int[] := array(
    select o.owner_id from posthorn.owners o where o.owner_id = any (array(select p.owner_id from unnest(v_proven) p)) and o.suspended_at is not null);
  v_renewed posthorn.streams[];
begin
  perform posthorn_impl.commit_leases();
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
  -- who takes nothing from the socket is not listening either
  perform posthorn_impl.note_presence(array_agg(r.owner_id), array_agg(a), v_now)
     from unnest(v_renewed) r, unnest(r.agent_ids) a
    where posthorn_impl.stream_is_live(r, v_now);
  return query
  select e.stream_id, e.problem
    from (
      select u.stream_id,
             case
               when p.owner_id is null then 'unauthorized'
               when p.owner_id = any (v_suspended) then 'owner_suspended'
               when r.stream_id is null then 'replaced'
               when p_epoch <> posthorn_impl.epoch() then 'other_epoch'
             end as problem
        from unnest(p_stream_ids) with ordinality u(stream_id, item)
        left join unnest(v_proven) p on p.item = u.item
        left join unnest(v_renewed) r on r.stream_id = u.stream_id) e
   where e.problem is not null;
end $$;
comment on function posthorn_api.renew_streams(bytea[], uuid[], boolean[], bigint) is 'Renews the leases of a pod''s streams and the presence of their agents, in one statement an interval; answers which must end, and why: unauthorized, owner_suspended, replaced (its row is gone), other_epoch.';

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
  perform posthorn_impl.commit_leases();
  delete from posthorn.streams s
   using unnest(v_proven) p
   where s.owner_id = p.owner_id
     and s.stream_id = p_stream_ids[p.item]
     and s.connection_id = p.connection_id;
end $$;
comment on function posthorn_api.close_streams(bytea[], uuid[]) is 'Gives slots back as soon as their streams are gone.';

create function posthorn_api.read_events(
  p_credentials bytea[],
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
  pending_count int,
  agent_ids uuid[]
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_hashjoin = off
set enable_mergejoin = off
set enable_seqscan = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
  v_identities posthorn_impl.identity[] := array(select i from posthorn_impl.identify_readers(p_credentials, p_agent_ids) i);
  v_now timestamptz := posthorn_impl.clock();
begin
  return query
  -- By the indexes whatever the statistics say: planned while the log was empty, each page of 60,000 events read them all.
  -- Asked again in the statement that reads, so by the same snapshot: what was committed after a revocation is never
  -- read, not even if both came between the proof and this statement.
  with reader as materialized (
    select i.item, i.owner_id, i.agent_id, p_after[i.item] as after,
           case
             when i.problem is not null then i.problem
             when c.connection_id is null then 'unauthorized'
             when a.revoked_at is not null then 'agent_revoked'
             when o.suspended_at is not null then 'owner_suspended'
           end as problem
      from unnest(v_identities) i
      -- joins: an exists would be planned as a hash over every owner there is
      left join posthorn.connections c
             on c.owner_id = i.owner_id and c.connection_id = i.connection_id and c.credential_hash = p_credentials[i.item]
            and c.revoked_at is null and c.expires_at > v_now
      left join posthorn.agents a on a.owner_id = i.owner_id and a.agent_id = i.agent_id
      left join posthorn.owners o on o.owner_id = i.owner_id
  )
  select r.item, r.problem, e.seq, e.kind, e.subject_id, e.state, e.occurred_at, e.group_id, e.conversation_id, e.message_ids,
         case when e.kind = 'messaging.pending' then posthorn_impl.count_pending(r.owner_id, r.agent_id, v_now) end, e.agent_ids
    from reader r
    left join lateral (
      select x.seq, x.kind, x.subject_id, x.state, x.occurred_at, m.group_id, m.conversation_id,
             case when x.kind in ('messaging.pending', 'message.state') then array[x.subject_id]
                  else posthorn_impl.mail_behind(r.owner_id, x.subject_id, r.agent_id) end as message_ids,
             p.agent_ids
        from posthorn.events x
        left join posthorn.messages m on m.owner_id = r.owner_id and m.message_id = x.subject_id and x.kind = 'messaging.pending'
        left join posthorn.proposals p on p.owner_id = r.owner_id and p.proposal_id = x.subject_id and x.kind = 'proposal.created'
       where x.owner_id = r.owner_id
         and x.agent_id = r.agent_id
         and x.seq > r.after
       order by x.seq
       limit p_limit) e on r.problem is null
   where r.problem is not null or e.seq is not null
   order by r.item, e.seq;
end $$;
comment on function posthorn_api.read_events(bytea[], uuid[], bigint[], int) is 'The next events of many logs, of agents or of owners, each after its sequence number; one row with a problem where the reader may not. Nothing where there is nothing. [nullable: problem, seq, kind, subject_id, state, occurred_at, group_id, conversation_id, message_ids, pending_count, agent_ids]';

create function posthorn_api.inbox_snapshots(
  p_credential bytea,
  p_agent_ids uuid[]
) returns table (
  agent_id uuid,
  last_seq bigint,
  pending_count int,
  message_ids uuid[],
  proposal_ids uuid[]
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_identities posthorn_impl.identity[] := array(
    select i from posthorn_impl.identify_readers(array_fill(p_credential, array[cardinality(p_agent_ids)]), p_agent_ids) i);
  v_problem text := (select i.problem from unnest(v_identities) i where i.problem is not null order by i.item limit 1);
  v_owner_id int := v_identities[1].owner_id;
  v_now timestamptz := posthorn_impl.clock();
begin
  if v_problem is not null then
    perform posthorn_impl.refuse(v_problem);
  end if;
  -- one statement: what the log says up to last_seq is in the counts and ids, and nothing that it says later
  return query
  select l.agent_id, l.event_seq, coalesce(posthorn_impl.count_pending(v_owner_id, l.agent_id, v_now), 0),
         array(select x.message_id from posthorn.bodies x
                where x.owner_id = v_owner_id and x.recipient_agent_id = l.agent_id and x.expires_at > v_now order by x.seq limit 100),
         array(select p.proposal_id from posthorn.proposals p
                where p.owner_id = v_owner_id and p.state = 'pending' and p.expires_at > v_now
                  and (l.agent_id = '00000000-0000-0000-0000-000000000000' or p.agent_ids @> array[l.agent_id]) order by p.proposal_id)
    from posthorn_impl.logs_of(v_owner_id, array(select i.agent_id from unnest(v_identities) i)) l
   order by l.agent_id;
end $$;
comment on function posthorn_api.inbox_snapshots(bytea, uuid[]) is 'What a stream without a past begins with, for each agent: where its log is, how much mail waits, up to 100 of its ids, and undecided requests; for the owner''s log all undecided requests.';

grant execute on function
  posthorn_api.open_stream(bytea, uuid, uuid, uuid[], uuid), posthorn_api.renew_streams(bytea[], uuid[], boolean[], bigint), posthorn_api.close_streams(bytea[], uuid[]),
  posthorn_api.read_events(bytea[], uuid[], bigint[], int), posthorn_api.inbox_snapshots(bytea, uuid[]) to posthorn_app;
