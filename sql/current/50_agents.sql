set local role posthorn_engine;

create type posthorn_impl.agent_view as (
  id uuid,
  label text,
  runtime text,
  runtime_version text,
  origin_kind text,
  device_id uuid,
  device_label text,
  installation text,
  created_at timestamptz,
  revoked_at timestamptz,
  presence_kind text,
  client_id text,
  shared_group_ids uuid[]
);

create function posthorn_impl.presence_of(
  p_owner_id int,
  p_agent_id uuid,
  p_now timestamptz
) returns text
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  select case
           when exists (select from posthorn.presence p where p.owner_id = p_owner_id and p.agent_id = p_agent_id and p.present_until > p_now) then 'events'
           when exists (
             select from posthorn.webhooks w
               join posthorn.connections c on c.owner_id = p_owner_id and c.connection_id = w.connection_id and c.expires_at > p_now
              where w.owner_id = p_owner_id and w.agent_id = p_agent_id and w.status = 'active' and w.consecutive_failures < 3) then 'webhook'
         end
$$;
comment on function posthorn_impl.presence_of(int, uuid, timestamptz) is 'How an agent is live: events (it listens), webhook (one that failed fewer than three times in a row, of a connection that has not expired), or null. Never decides what is delivered.';

create function posthorn_impl.view_agents(
  p_owner_id int,
  p_for_agent_id uuid,
  p_ids uuid[],
  p_now timestamptz
) returns setof posthorn_impl.agent_view
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  select a.agent_id, a.label, a.runtime, a.runtime_version, a.origin_kind, c.connection_id, c.label, a.installation, a.created_at, a.revoked_at,
         posthorn_impl.presence_of(p_owner_id, a.agent_id, p_now),
         a.client_id,
         array(
           select mine.group_id
             from posthorn.members mine
             join posthorn.members theirs on theirs.owner_id = p_owner_id and theirs.group_id = mine.group_id and theirs.agent_id = a.agent_id
             join posthorn.groups g on g.owner_id = p_owner_id and g.group_id = mine.group_id and g.revoked_at is null and g.expires_at > p_now
            where mine.owner_id = p_owner_id
              and mine.agent_id = p_for_agent_id
              and p_for_agent_id <> a.agent_id
            order by mine.group_id)
    from unnest(p_ids) with ordinality i(agent_id, position)
    join posthorn.agents a on a.owner_id = p_owner_id and a.agent_id = i.agent_id
    join posthorn.connections c on c.owner_id = p_owner_id and c.connection_id = a.connection_id
   order by i.position
$$;
comment on function posthorn_impl.view_agents(int, uuid, uuid[], timestamptz) is 'Agents as one of them (or the owner, with null) sees them, in the order of the ids given.';

create function posthorn_api.register_agent(
  p_credential bytea,
  p_installation text,
  p_label text,
  p_runtime text,
  p_runtime_version text default null
) returns posthorn_impl.agent_view
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_actor posthorn_impl.proven := posthorn_impl.identify_connection(p_credential);
  v_now timestamptz;
  v_agent_id uuid;
  v_agent posthorn.agents;
begin
  if not v_actor.scopes @> array['messaging'] then
    perform posthorn_impl.refuse('scope_required');
  end if;
  if v_actor.kind not in ('service', 'device', 'oauth') then
    perform posthorn_impl.refuse('person_required');
  end if;
  if v_actor.kind <> 'oauth' and p_installation is null then
    perform posthorn_impl.refuse('invalid_request', '{"fields": ["installation"]}');
  end if;
  perform posthorn_impl.lock_owner(v_actor.owner_id);
  if v_actor.kind = 'oauth' then -- acts as exactly one agent, whatever it calls its installation
    v_agent_id := posthorn_impl.bind_agent(v_actor);
    if v_agent_id is null then
      perform posthorn_impl.refuse('limit_reached', '{"limit": "agents_per_owner"}');
    end if;
  end if;
  v_now := posthorn_impl.clock();
  perform posthorn_impl.require_live_caller(row(1, v_actor.owner_id, v_actor.connection_id, v_actor.kind, null, null)::posthorn_impl.identity, v_now);
  select a.* into v_agent
    from posthorn.agents a
   where a.owner_id = v_actor.owner_id
     and case when v_agent_id is null then a.connection_id = v_actor.connection_id and a.installation = p_installation else a.agent_id = v_agent_id end
     for no key update;
  if v_agent.revoked_by = 'owner' then
    perform posthorn_impl.refuse('agent_revoked');
  end if;
  if v_agent.agent_id is null or v_agent.revoked_at is not null then
    if (select count(*) from posthorn.agents a where a.owner_id = v_actor.owner_id and a.revoked_at is null)
       >= posthorn_impl.limit_value('agents_per_owner') then
      perform posthorn_impl.refuse('limit_reached', '{"limit": "agents_per_owner"}');
    end if;
  end if;
  if v_agent.agent_id is null then
    insert into posthorn.agents (owner_id, connection_id, installation, origin_kind, label, runtime, runtime_version, reachable_until, created_at)
    select v_actor.owner_id, v_actor.connection_id, p_installation, v_actor.kind, p_label, p_runtime, p_runtime_version,
           least(c.expires_at, coalesce(c.revoked_at, 'infinity')), v_now
      from posthorn.connections c
     where c.owner_id = v_actor.owner_id
       and c.connection_id = v_actor.connection_id
    returning * into v_agent;
    insert into posthorn.mailboxes (owner_id, agent_id) values (v_actor.owner_id, v_agent.agent_id);
    perform posthorn_impl.record_act(v_actor, 'agent.register', v_agent.agent_id, v_now, v_agent.agent_id);
  elsif (v_agent.label, v_agent.runtime, v_agent.runtime_version, v_agent.revoked_at) is distinct from (p_label, p_runtime, p_runtime_version, null::timestamptz) then
    update posthorn.agents a
       set label = p_label,
           runtime = p_runtime,
           runtime_version = p_runtime_version,
           revoked_at = null,
           revoked_by = null
     where a.owner_id = v_actor.owner_id
       and a.agent_id = v_agent.agent_id;
    perform posthorn_impl.record_act(v_actor, 'agent.update', v_agent.agent_id, v_now, v_agent.agent_id);
  end if;
  return (select v from posthorn_impl.view_agents(v_actor.owner_id, null, array[v_agent.agent_id], v_now) v);
end $$;
comment on function posthorn_api.register_agent(bytea, text, text, text, text) is 'Makes or updates the agent of this connection and installation; raises agent_revoked while the owner keeps it out. [nullable: runtime_version, revoked_at, presence_kind, client_id]';

create function posthorn_api.list_agents(
  p_credential bytea,
  p_agent_id uuid default null,
  p_after uuid default null,
  p_limit int default 100
) returns setof posthorn_impl.agent_view
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_me posthorn_impl.identity := posthorn_impl.identify_agent(p_credential, p_agent_id);
begin
  return query
  select v.*
    from posthorn_impl.view_agents(v_me.owner_id, v_me.agent_id, array(
           select a.agent_id
             from posthorn.agents a
            where a.owner_id = v_me.owner_id
              and a.revoked_at is null
              and a.agent_id <> v_me.agent_id
              and (p_after is null or a.agent_id > p_after)
            order by a.agent_id
            limit p_limit), posthorn_impl.clock()) v;
end $$;
comment on function posthorn_api.list_agents(bytea, uuid, uuid, int) is 'Every other agent of the owner that is not revoked, by id, with the active groups shared with the caller. [nullable: runtime_version, revoked_at, presence_kind, client_id]';

create function posthorn_api.list_owner_agents(
  p_credential bytea,
  p_limit int default null,
  p_after uuid default null,
  p_in_past boolean default false,
  p_current_only boolean default false
) returns setof posthorn_impl.agent_view
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_actor posthorn_impl.proven := posthorn_impl.identify_owner(p_credential);
begin
  return query
  select v.*
    from posthorn_impl.view_agents(v_actor.owner_id, null, array(
           select a.agent_id
             from posthorn.agents a
            cross join lateral (select a.revoked_at is null as is_current) x
            where a.owner_id = v_actor.owner_id
              and posthorn_impl.is_on_page(x.is_current, a.agent_id, p_after, p_in_past, p_current_only)
            order by x.is_current desc, case when x.is_current then a.agent_id end, a.agent_id desc
            limit p_limit), posthorn_impl.clock()) v;
end $$;
comment on function posthorn_api.list_owner_agents(bytea, int, uuid, boolean, boolean) is 'Agents of the owner, then those that were revoked, the latest first. [nullable: runtime_version, revoked_at, presence_kind, client_id]';

create function posthorn_api.agent_status(
  p_credential bytea,
  p_agent_id uuid default null
) returns table (
  enabled boolean,
  agent_id uuid,
  discoverable_agents int,
  live_peers int,
  presence_kind text,
  pending_messages int,
  pending_proposals int,
  wake_number int,
  webhook_url_host text,
  webhook_events text[],
  webhook_status text,
  webhook_consecutive_failures int,
  webhook_last_delivered_at timestamptz
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_me posthorn_impl.identity;
  v_now timestamptz := posthorn_impl.clock();
begin
  select i.* into v_me from posthorn_impl.identify(array[p_credential], array[p_agent_id], 'messaging', p_binds => false) i;
  -- before registration there is no agent to name, and a suspended owner is told so
  if v_me.problem is not null and v_me.problem not in ('agent_required', 'owner_suspended') then
    perform posthorn_impl.refuse(v_me.problem);
  end if;
  return query
  select v_me.problem is distinct from 'owner_suspended',
         v_me.agent_id,
         (select count(*)::int from posthorn.agents a where a.owner_id = v_me.owner_id and a.revoked_at is null and a.agent_id is distinct from v_me.agent_id),
         (select count(*)::int
            from (select p.agent_id from posthorn.presence p where p.owner_id = v_me.owner_id and p.present_until > v_now
                   union
                  select w.agent_id
                    from posthorn.webhooks w
                    join posthorn.connections c on c.owner_id = v_me.owner_id and c.connection_id = w.connection_id and c.expires_at > v_now
                   where w.owner_id = v_me.owner_id and w.status = 'active' and w.consecutive_failures < 3) l
            join posthorn.agents a on a.owner_id = v_me.owner_id and a.agent_id = l.agent_id and a.revoked_at is null
           where l.agent_id is distinct from v_me.agent_id),
         posthorn_impl.presence_of(v_me.owner_id, v_me.agent_id, v_now),
         coalesce(posthorn_impl.count_pending(v_me.owner_id, v_me.agent_id, v_now), 0),
         (select count(*)::int
            from posthorn.proposals p
           where p.owner_id = v_me.owner_id and p.state = 'pending' and p.expires_at > v_now and p.agent_ids @> array[v_me.agent_id]),
         (select b.wake_number from posthorn.mailboxes b where b.owner_id = v_me.owner_id and b.agent_id = v_me.agent_id),
         w.url_host, w.events, w.status, w.consecutive_failures, w.last_delivered_at
    from (values (v_me.owner_id, v_me.agent_id)) me(owner_id, agent_id)
    left join posthorn.webhooks w on w.owner_id = me.owner_id and w.agent_id = me.agent_id;
end $$;
comment on function posthorn_api.agent_status(bytea, uuid) is 'Counts that an agent asks for every turn, and its webhook in short; without an agent yet, agent_id is null. [nullable: agent_id, presence_kind, wake_number, webhook_url_host, webhook_events, webhook_status, webhook_consecutive_failures, webhook_last_delivered_at]';

create function posthorn_impl.count_pending(
  p_owner_id int,
  p_agent_id uuid,
  p_now timestamptz
) returns int
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  select b.unfenced - (
           -- counted only where there is mail: past its deadline it is no longer pending, swept or not
           select count(*)::int from posthorn.bodies x where x.owner_id = p_owner_id and x.recipient_agent_id = p_agent_id and x.expires_at <= p_now)
    from posthorn.mailboxes b
   where b.owner_id = p_owner_id
     and b.agent_id = p_agent_id
$$;
comment on function posthorn_impl.count_pending(int, uuid, timestamptz) is 'Queued and delivered messages of an inbox that have not expired.';

create function posthorn_impl.end_agent(
  p_actor posthorn_impl.proven,
  p_agent_id uuid,
  p_revoked_by text
) returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz;
  v_groups uuid[];
  v_lonely uuid[];
  v_ended uuid[];
begin
  perform posthorn_impl.lock_owner(p_actor.owner_id);
  v_groups := posthorn_impl.lock_groups_of(p_actor.owner_id, array[p_agent_id]);
  -- what waits for it, and what it queued that nobody took yet
  v_ended := array(
    select b.message_id from posthorn.bodies b where b.owner_id = p_actor.owner_id and b.recipient_agent_id = p_agent_id
    union
    select h.message_id from posthorn_impl.held_of(p_actor.owner_id, array[p_agent_id]) h
    union
    select m.message_id from posthorn_impl.unfenced_in_groups(p_actor.owner_id, v_groups) m where m.sender_agent_id = p_agent_id and m.state = 'queued');
  -- a collaboration of one is none
  v_lonely := array(
    select g.group_id
      from unnest(v_groups) g(group_id)
     where (select count(*) from posthorn.members m where m.owner_id = p_actor.owner_id and m.group_id = g.group_id and m.agent_id <> p_agent_id) < 2);
  v_ended := v_ended || array(select m.message_id from posthorn_impl.unfenced_in_groups(p_actor.owner_id, v_lonely) m);
  perform posthorn_impl.lock_requests(p_actor.owner_id, posthorn_impl.agents_of_messages(p_actor.owner_id, v_ended) || p_agent_id);
  v_now := posthorn_impl.clock();
  update posthorn.agents a
     set revoked_at = v_now,
         revoked_by = p_revoked_by
   where a.owner_id = p_actor.owner_id
     and a.agent_id = p_agent_id
     and a.revoked_at is null;
  if not found then
    return;
  end if;
  perform posthorn_impl.wake_agents(p_actor.owner_id, array[p_agent_id]); -- its streams end
  perform posthorn_impl.delete_webhooks(p_actor.owner_id, array[p_agent_id], '{}');
  delete from posthorn.members m where m.owner_id = p_actor.owner_id and m.agent_id = p_agent_id;
  perform posthorn_impl.record_act(p_actor, 'agent.revoke', p_agent_id, v_now, p_agent_id);
  perform posthorn_impl.close_groups(p_actor, v_lonely, v_now);
  perform posthorn_impl.end_messages(p_actor.owner_id, v_ended, 'revoked', v_now);
  -- nor is the request for one
  perform posthorn_impl.close_proposals(
    p_actor.owner_id,
    array(select p.proposal_id
            from posthorn.proposals p
           where p.owner_id = p_actor.owner_id
             and p.state = 'pending'
             and (p.group_id = any (v_lonely)
                  or (p.agent_ids @> array[p_agent_id]
                      and (p.proposer_agent_id = p_agent_id
                           or (select count(*) from posthorn.agents a where a.owner_id = p_actor.owner_id and a.agent_id = any (p.agent_ids) and a.revoked_at is null) < 2)))),
    'denied', 'revoked', 'superseded', v_now);
end $$;
comment on function posthorn_impl.end_agent(posthorn_impl.proven, uuid, text) is 'Revokes an agent: it leaves its groups, its mail is fenced, and groups of fewer than two end.';

create function posthorn_api.revoke_own_agent(
  p_credential bytea,
  p_agent_id uuid default null
) returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_me posthorn_impl.identity := posthorn_impl.identify_agent(p_credential, p_agent_id);
begin
  if v_me.kind = 'child' then -- it may message as its agent and nothing else
    perform posthorn_impl.refuse('person_required');
  end if;
  perform posthorn_impl.end_agent(row(1, v_me.owner_id, v_me.connection_id, v_me.kind, null, null)::posthorn_impl.proven, v_me.agent_id, 'agent');
end $$;
comment on function posthorn_api.revoke_own_agent(bytea, uuid) is 'An agent takes itself out of service; registering again brings it back.';

create function posthorn_api.revoke_agent(
  p_credential bytea,
  p_agent_id uuid
) returns posthorn_impl.agent_view
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_actor posthorn_impl.proven := posthorn_impl.identify_owner(p_credential);
begin
  if not exists (select from posthorn.agents a where a.owner_id = v_actor.owner_id and a.agent_id = p_agent_id) then
    perform posthorn_impl.refuse('not_found');
  end if;
  perform posthorn_impl.end_agent(v_actor, p_agent_id, 'owner');
  -- stopped by itself before: now it stays stopped
  update posthorn.agents a set revoked_by = 'owner' where a.owner_id = v_actor.owner_id and a.agent_id = p_agent_id;
  return (select v from posthorn_impl.view_agents(v_actor.owner_id, null, array[p_agent_id], posthorn_impl.clock()) v);
end $$;
comment on function posthorn_api.revoke_agent(bytea, uuid) is 'The owner takes an agent out of service until they restore it. [nullable: runtime_version, revoked_at, presence_kind, client_id]';

create function posthorn_api.restore_agent(
  p_credential bytea,
  p_agent_id uuid
) returns posthorn_impl.agent_view
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_actor posthorn_impl.proven := posthorn_impl.identify_owner(p_credential);
  v_now timestamptz;
begin
  perform posthorn_impl.lock_owner(v_actor.owner_id);
  v_now := posthorn_impl.clock();
  if (select count(*) from posthorn.agents a where a.owner_id = v_actor.owner_id and a.revoked_at is null and a.agent_id <> p_agent_id)
     >= posthorn_impl.limit_value('agents_per_owner') then
    perform posthorn_impl.refuse('limit_reached', '{"limit": "agents_per_owner"}');
  end if;
  update posthorn.agents a
     set revoked_at = null,
         revoked_by = null
   where a.owner_id = v_actor.owner_id
     and a.agent_id = p_agent_id;
  if not found then
    perform posthorn_impl.refuse('not_found');
  end if;
  perform posthorn_impl.record_act(v_actor, 'agent.restore', p_agent_id, v_now, p_agent_id);
  return (select v from posthorn_impl.view_agents(v_actor.owner_id, null, array[p_agent_id], v_now) v);
end $$;
comment on function posthorn_api.restore_agent(bytea, uuid) is 'The owner lifts a revocation; the agent joins no group by itself. [nullable: runtime_version, revoked_at, presence_kind, client_id]';

grant execute on function
  posthorn_api.register_agent(bytea, text, text, text, text), posthorn_api.list_agents(bytea, uuid, uuid, int),
  posthorn_api.agent_status(bytea, uuid), posthorn_api.revoke_own_agent(bytea, uuid) to posthorn_app;
grant execute on function
  posthorn_api.list_owner_agents(bytea, int, uuid, boolean, boolean), posthorn_api.revoke_agent(bytea, uuid), posthorn_api.restore_agent(bytea, uuid) to posthorn_app, posthorn_admin;
