set local role posthorn_engine;

create type posthorn_impl.group_view as (
  id uuid,
  name text,
  purpose text,
  project_boundary text,
  generation int,
  state text,
  approved_at timestamptz,
  expires_at timestamptz,
  agent_ids uuid[]
);

create function posthorn_impl.view_groups(
  p_owner_id int,
  p_ids uuid[],
  p_now timestamptz
) returns setof posthorn_impl.group_view
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  select g.group_id, g.name, g.purpose, g.project_boundary, g.generation,
         case when g.revoked_at is not null then 'revoked' when g.expires_at <= p_now then 'expired' else 'active' end,
         g.approved_at, g.expires_at,
         array(select m.agent_id from posthorn.members m where m.owner_id = p_owner_id and m.group_id = g.group_id order by m.agent_id)
    from unnest(p_ids) with ordinality i(group_id, position)
    join posthorn.groups g on g.owner_id = p_owner_id and g.group_id = i.group_id
   order by i.position
$$;
comment on function posthorn_impl.view_groups(int, uuid[], timestamptz) is 'Groups with their state by the clock and the agents still in them, in the order of the ids given.';

create function posthorn_impl.lock_groups(
  p_owner_id int,
  p_group_ids uuid[]
) returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  perform 1
     from posthorn.group_counters g
    where g.owner_id = p_owner_id
      and g.group_id = any (p_group_ids)
    order by g.group_id
      for no key update;
end $$;
comment on function posthorn_impl.lock_groups(int, uuid[]) is 'The second lock of the order: whoever holds it decides alone about a group, its conversations and its rate.';

create function posthorn_impl.lock_groups_of(
  p_owner_id int,
  p_agent_ids uuid[]
) returns uuid[]
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_groups uuid[] := array(
    select distinct m.group_id from posthorn.members m where m.owner_id = p_owner_id and m.agent_id = any (p_agent_ids));
begin
  perform posthorn_impl.lock_groups(p_owner_id, v_groups);
  return v_groups;
end $$;
comment on function posthorn_impl.lock_groups_of(int, uuid[]) is 'Locks every group of these agents and answers them. Under the owner''s lock, since that one guards membership.';

create function posthorn_impl.unfenced_in_groups(
  p_owner_id int,
  p_group_ids uuid[]
) returns setof posthorn.messages
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  -- at most a full inbox for each member; an owner's revocations are rare, an index for them would
  -- be paid by every send
  select m.*
    from posthorn.bodies b
    join posthorn.messages m on m.owner_id = p_owner_id and m.message_id = b.message_id
   where b.owner_id = p_owner_id
     and b.recipient_agent_id in (select x.agent_id from posthorn.members x where x.owner_id = p_owner_id and x.group_id = any (p_group_ids))
     and m.group_id = any (p_group_ids)
$$;
comment on function posthorn_impl.unfenced_in_groups(int, uuid[]) is 'Messages of these groups whose bodies can still be read.';

create function posthorn_impl.insert_group(
  p_actor posthorn_impl.proven,
  p_name text,
  p_purpose text,
  p_project_boundary text,
  p_duration_hours int,
  p_agent_ids uuid[]
) returns uuid
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz;
  v_agents uuid[] := array(select distinct a from unnest(p_agent_ids) a order by a);
  v_id uuid;
begin
  if cardinality(v_agents) not between 2 and 16 then
    perform posthorn_impl.refuse('invalid_request', '{"fields": ["agent_ids"]}');
  end if;
  perform posthorn_impl.lock_owner(p_actor.owner_id);
  v_now := posthorn_impl.clock();
  if (select count(*) from posthorn.agents a where a.owner_id = p_actor.owner_id and a.agent_id = any (v_agents)) < cardinality(v_agents) then
    perform posthorn_impl.refuse('not_found', '{"fields": ["agent_ids"]}');
  end if;
  if exists (select from posthorn.agents a where a.owner_id = p_actor.owner_id and a.agent_id = any (v_agents) and a.revoked_at is not null) then
    perform posthorn_impl.refuse('invalid_request', '{"fields": ["agent_ids"]}');
  end if;
  if (select count(*) from posthorn.groups g where g.owner_id = p_actor.owner_id and g.revoked_at is null and g.expires_at > v_now)
     >= posthorn_impl.limit_value('active_groups_per_owner') then
    perform posthorn_impl.refuse('limit_reached', '{"limit": "active_groups_per_owner"}');
  end if;
  insert into posthorn.groups (owner_id, name, purpose, project_boundary, duration_hours, created_at, approved_at, expires_at)
  values (p_actor.owner_id, p_name, p_purpose, p_project_boundary, p_duration_hours, v_now, v_now, v_now + make_interval(hours => p_duration_hours))
  returning group_id into v_id;
  insert into posthorn.group_counters (owner_id, group_id) values (p_actor.owner_id, v_id);
  insert into posthorn.members (owner_id, group_id, agent_id) select p_actor.owner_id, v_id, a from unnest(v_agents) a;
  perform posthorn_impl.record_act(p_actor, 'group.create', v_id, v_now);
  return v_id;
end $$;
comment on function posthorn_impl.insert_group(posthorn_impl.proven, text, text, text, int, uuid[]) is 'Makes a group of 2 to 16 agents; raises invalid_request, not_found, limit_reached.';

create function posthorn_api.create_group(
  p_credential bytea,
  p_name text,
  p_purpose text,
  p_agent_ids uuid[],
  p_project_boundary text default null,
  p_duration_hours int default 168
) returns posthorn_impl.group_view
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_actor posthorn_impl.proven := posthorn_impl.identify_owner(p_credential);
  v_id uuid;
begin
  v_id := posthorn_impl.insert_group(v_actor, p_name, p_purpose, p_project_boundary, p_duration_hours, p_agent_ids);
  return (select v from posthorn_impl.view_groups(v_actor.owner_id, array[v_id], posthorn_impl.clock()) v);
end $$;
comment on function posthorn_api.create_group(bytea, text, text, uuid[], text, int) is 'The owner lets 2 to 16 agents talk, for a duration in hours. [nullable: project_boundary]';

create function posthorn_api.renew_group(
  p_credential bytea,
  p_group_id uuid,
  p_duration_hours int default null
) returns posthorn_impl.group_view
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
  perform posthorn_impl.lock_groups(v_actor.owner_id, array[p_group_id]);
  perform posthorn_impl.lock_requests(v_actor.owner_id, '{}');
  v_now := posthorn_impl.clock();
  if not exists (select from posthorn.groups g where g.owner_id = v_actor.owner_id and g.group_id = p_group_id) then
    perform posthorn_impl.refuse('not_found');
  end if;
  if exists (select from posthorn.groups g where g.owner_id = v_actor.owner_id and g.group_id = p_group_id and g.revoked_at is not null) then
    perform posthorn_impl.refuse('invalid_request', '{"fields": ["group_id"]}'); -- revoked is final
  end if;
  if (select count(*) from posthorn.groups g where g.owner_id = v_actor.owner_id and g.revoked_at is null and g.expires_at > v_now and g.group_id <> p_group_id)
     >= posthorn_impl.limit_value('active_groups_per_owner') then
    perform posthorn_impl.refuse('limit_reached', '{"limit": "active_groups_per_owner"}');
  end if;
  if coalesce(p_duration_hours, 1) not between 1 and 720 then
    perform posthorn_impl.refuse('invalid_request', '{"fields": ["duration_hours"]}');
  end if;
  update posthorn.groups g
     set generation = g.generation + 1,
         approved_at = v_now,
         expires_at = greatest(v_now, g.expires_at) + make_interval(hours => coalesce(p_duration_hours, g.duration_hours))
   where g.owner_id = v_actor.owner_id
     and g.group_id = p_group_id;
  perform posthorn_impl.supersede_proposals(v_actor.owner_id, array[p_group_id], null, v_now);
  perform posthorn_impl.record_act(v_actor, 'group.renew', p_group_id, v_now);
  return (select v from posthorn_impl.view_groups(v_actor.owner_id, array[p_group_id], v_now) v);
end $$;
comment on function posthorn_api.renew_group(bytea, uuid, int) is 'A new generation, for the given or the original hours from the later of now and the old expiry; conversations of the old one freeze. [nullable: project_boundary]';

create function posthorn_impl.close_groups(
  p_actor posthorn_impl.proven,
  p_group_ids uuid[],
  p_now timestamptz
) returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  with closed as (
    update posthorn.groups g
       set revoked_at = p_now
     where g.owner_id = p_actor.owner_id
       and g.group_id = any (p_group_ids)
       and g.revoked_at is null
    returning g.group_id
  )
  insert into posthorn.audit_entries (owner_id, act, connection_id, subject_id, occurred_at)
  select p_actor.owner_id, 'group.revoke', p_actor.connection_id, c.group_id, p_now from closed c;
end $$;
comment on function posthorn_impl.close_groups(posthorn_impl.proven, uuid[], timestamptz) is 'Revokes groups whose locks are held; the caller ends their messages and requests.';

create function posthorn_api.revoke_group(
  p_credential bytea,
  p_group_id uuid
) returns posthorn_impl.group_view
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_actor posthorn_impl.proven := posthorn_impl.identify_owner(p_credential);
  v_now timestamptz;
  v_messages uuid[];
begin
  perform posthorn_impl.lock_owner(v_actor.owner_id);
  perform posthorn_impl.lock_groups(v_actor.owner_id, array[p_group_id]);
  v_messages := array(select m.message_id from posthorn_impl.unfenced_in_groups(v_actor.owner_id, array[p_group_id]) m);
  perform posthorn_impl.lock_requests(v_actor.owner_id, posthorn_impl.agents_of_messages(v_actor.owner_id, v_messages));
  v_now := posthorn_impl.clock();
  if not exists (select from posthorn.groups g where g.owner_id = v_actor.owner_id and g.group_id = p_group_id) then
    perform posthorn_impl.refuse('not_found');
  end if;
  perform posthorn_impl.close_groups(v_actor, array[p_group_id], v_now);
  perform posthorn_impl.end_messages(v_actor.owner_id, v_messages, 'revoked', v_now);
  perform posthorn_impl.supersede_proposals(v_actor.owner_id, array[p_group_id], null, v_now);
  return (select v from posthorn_impl.view_groups(v_actor.owner_id, array[p_group_id], v_now) v);
end $$;
comment on function posthorn_api.revoke_group(bytea, uuid) is 'Ends a group for good and fences its mail. [nullable: project_boundary]';

create function posthorn_api.list_owner_groups(
  p_credential bytea,
  p_limit int default null,
  p_after uuid default null,
  p_in_past boolean default false,
  p_current_only boolean default false
) returns setof posthorn_impl.group_view
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
  select v.*
    from posthorn_impl.view_groups(v_actor.owner_id, array(
           select g.group_id
             from posthorn.groups g
            cross join lateral (select g.revoked_at is null and g.expires_at > v_now as is_current) x
            where g.owner_id = v_actor.owner_id
              and posthorn_impl.is_on_page(x.is_current, g.group_id, p_after, p_in_past, p_current_only)
            order by x.is_current desc, case when x.is_current then g.group_id end, g.group_id desc
            limit p_limit), v_now) v;
end $$;
comment on function posthorn_api.list_owner_groups(bytea, int, uuid, boolean, boolean) is 'Groups of the owner: the active ones, then those that ended, the latest first. [nullable: project_boundary]';

create function posthorn_api.list_groups(
  p_credential bytea,
  p_agent_id uuid default null,
  p_after uuid default null,
  p_limit int default 100,
  p_ids uuid[] default null,
  p_current_only boolean default false
) returns setof posthorn_impl.group_view
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
    from posthorn_impl.view_groups(v_me.owner_id, array(
           select m.group_id
             from posthorn.members m
             join posthorn.groups g on g.owner_id = v_me.owner_id and g.group_id = m.group_id
            where m.owner_id = v_me.owner_id
              and m.agent_id = v_me.agent_id
              -- one that ended within a week can still be renewed
              and (not p_current_only or (g.revoked_at is null and g.expires_at > posthorn_impl.clock() - interval '7 days'))
              and (p_after is null or m.group_id > p_after)
              and (p_ids is null or m.group_id = any (p_ids))
            order by m.group_id
            limit p_limit), posthorn_impl.clock()) v;
end $$;
comment on function posthorn_api.list_groups(bytea, uuid, uuid, int, uuid[], boolean) is 'The groups that the calling agent is a member of, by id; only those named where ids are given, only those that live or can be renewed where asked. [nullable: project_boundary]';

grant execute on function
  posthorn_api.create_group(bytea, text, text, uuid[], text, int), posthorn_api.renew_group(bytea, uuid, int),
  posthorn_api.revoke_group(bytea, uuid), posthorn_api.list_owner_groups(bytea, int, uuid, boolean, boolean) to posthorn_app, posthorn_admin;
grant execute on function posthorn_api.list_groups(bytea, uuid, uuid, int, uuid[], boolean) to posthorn_app;
