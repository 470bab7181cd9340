set local role posthorn_engine;

create type posthorn_impl.connection_view as (
  id uuid,
  kind text,
  label text,
  scopes text[],
  parent_connection_id uuid,
  agent_id uuid,
  created_at timestamptz,
  expires_at timestamptz,
  last_used_at timestamptz,
  revoked_at timestamptz,
  client_id text,
  client_host text,
  ended_at timestamptz
);

create function posthorn_impl.view_connections(
  p_owner_id int,
  p_ids uuid[],
  p_now timestamptz
) returns setof posthorn_impl.connection_view
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  select c.connection_id, c.kind, c.label, c.scopes, c.parent_connection_id, coalesce(c.agent_id, g.agent_id), c.created_at,
         nullif(c.expires_at, 'infinity'), c.last_used_at, c.revoked_at, g.client_id, g.client_host,
         least(c.revoked_at, case when c.expires_at <= p_now then c.expires_at end)
    from unnest(p_ids) with ordinality i(connection_id, position)
    join posthorn.connections c on c.owner_id = p_owner_id and c.connection_id = i.connection_id
    left join posthorn.oauth_grants g on g.owner_id = p_owner_id and g.connection_id = c.connection_id
   order by i.position
$$;
comment on function posthorn_impl.view_connections(int, uuid[], timestamptz) is 'Connections as the owner sees them, and when they ended by the clock.';

-- An agent can be reached for as long as the connection that registered it lives, or any grant that acts as it.
create function posthorn_impl.tg_connections__move_reach() returns trigger
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  if new.kind = 'oauth' then
    perform posthorn_impl.move_reach_of_grants(g.owner_id, g.agent_id)
       from posthorn.oauth_grants g
      where g.owner_id = new.owner_id and g.connection_id = new.connection_id and g.agent_id is not null;
    return null;
  end if;
  update posthorn.agents a
     set reachable_until = least(new.expires_at, coalesce(new.revoked_at, 'infinity'))
   where a.owner_id = new.owner_id
     and a.connection_id = new.connection_id;
  return null;
end $$;
comment on function posthorn_impl.tg_connections__move_reach() is 'Keeps agents.reachable_until with the end of their connection, or of the last grant that acts as them.';

create function posthorn_impl.insert_connection(
  p_actor posthorn_impl.proven,
  p_kind text,
  p_label text,
  p_scopes text[],
  p_credential_hash bytea,
  p_expires_at timestamptz,
  p_parent_connection_id uuid default null,
  p_agent_id uuid default null
) returns uuid
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz;
  v_id uuid;
begin
  perform posthorn_impl.lock_owner(p_actor.owner_id);
  v_now := posthorn_impl.clock();
  if p_expires_at <= v_now then
    perform posthorn_impl.refuse('invalid_request', '{"fields": ["expires_at"]}');
  end if;
  -- whoever has too many must be able to sign in to end some; sessions have a limit of their own
  if p_kind <> 'session'
     and (select count(*) from posthorn.connections c where c.owner_id = p_actor.owner_id and c.revoked_at is null and c.expires_at > v_now)
     >= posthorn_impl.limit_value('connections_per_owner') then
    perform posthorn_impl.refuse('limit_reached', '{"limit": "connections_per_owner"}');
  end if;
  insert into posthorn.connections (owner_id, kind, label, credential_hash, scopes, parent_connection_id, agent_id, created_at, expires_at)
  values (p_actor.owner_id, p_kind, p_label, p_credential_hash, p_scopes, p_parent_connection_id, p_agent_id, v_now, coalesce(p_expires_at, 'infinity'))
  returning connection_id into v_id;
  perform posthorn_impl.record_act(p_actor, 'connection.create', v_id, v_now, p_agent_id);
  return v_id;
end $$;
comment on function posthorn_impl.insert_connection(posthorn_impl.proven, text, text, text[], bytea, timestamptz, uuid, uuid) is 'Makes a connection under the owner''s cap; raises limit_reached, invalid_request.';

create function posthorn_api.create_service_connection(
  p_credential bytea,
  p_label text,
  p_scopes text[],
  p_credential_hash bytea,
  p_expires_at timestamptz default null
) returns posthorn_impl.connection_view
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_actor posthorn_impl.proven := posthorn_impl.identify_owner(p_credential);
  v_id uuid;
begin
  v_id := posthorn_impl.insert_connection(v_actor, 'service', p_label, p_scopes, p_credential_hash, p_expires_at);
  return (select v from posthorn_impl.view_connections(v_actor.owner_id, array[v_id], posthorn_impl.clock()) v);
end $$;
comment on function posthorn_api.create_service_connection(bytea, text, text[], bytea, timestamptz) is 'An API token: the caller made the credential and passes its hash. [nullable: parent_connection_id, agent_id, expires_at, last_used_at, revoked_at, client_id, client_host, ended_at]';

create function posthorn_api.pair_device(
  p_credential bytea,
  p_label text,
  p_scopes text[],
  p_credential_hash bytea
) returns posthorn_impl.connection_view
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_actor posthorn_impl.proven := posthorn_impl.identify_owner(p_credential);
  v_id uuid;
begin
  -- 90 days, moved on by use: see touch_connections
  v_id := posthorn_impl.insert_connection(v_actor, 'device', p_label, p_scopes, p_credential_hash, posthorn_impl.clock() + interval '90 days');
  return (select v from posthorn_impl.view_connections(v_actor.owner_id, array[v_id], posthorn_impl.clock()) v);
end $$;
comment on function posthorn_api.pair_device(bytea, text, text[], bytea) is 'A machine that a person confirmed. [nullable: parent_connection_id, agent_id, expires_at, last_used_at, revoked_at, client_id, client_host, ended_at]';

create function posthorn_api.mint_child_connection(
  p_credential bytea,
  p_agent_id uuid,
  p_label text,
  p_credential_hash bytea,
  p_expires_at timestamptz default null
) returns posthorn_impl.connection_view
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_parent posthorn_impl.proven := posthorn_impl.identify_connection(p_credential);
  v_parent_end timestamptz;
  v_id uuid;
begin
  if v_parent.kind <> 'device' then
    perform posthorn_impl.refuse('person_required');
  end if;
  if not v_parent.scopes @> array['messaging'] then
    perform posthorn_impl.refuse('scope_required');
  end if;
  if not exists (
    select from posthorn.agents a
     where a.owner_id = v_parent.owner_id
       and a.agent_id = p_agent_id
       and a.connection_id = v_parent.connection_id
       and a.revoked_at is null
  ) then
    perform posthorn_impl.refuse('not_found');
  end if;
  -- under the owner's lock a revocation of the parent either sees this child or is seen here
  perform posthorn_impl.lock_owner(v_parent.owner_id);
  select c.expires_at into v_parent_end
    from posthorn.connections c
   where c.owner_id = v_parent.owner_id
     and c.connection_id = v_parent.connection_id
     and c.revoked_at is null;
  if not found then
    perform posthorn_impl.refuse('unauthorized');
  end if;
  v_id := posthorn_impl.insert_connection(
    v_parent, 'child', p_label, array['messaging'], p_credential_hash, least(v_parent_end, p_expires_at), v_parent.connection_id, p_agent_id);
  return (select v from posthorn_impl.view_connections(v_parent.owner_id, array[v_id], posthorn_impl.clock()) v);
end $$;
comment on function posthorn_api.mint_child_connection(bytea, uuid, text, bytea, timestamptz) is 'A connection that can only message as one agent of a device, and ends no later than the device; raises person_required from anything but a device. [nullable: expires_at, last_used_at, revoked_at, client_id, client_host, ended_at]';

create function posthorn_api.rotate_connection(
  p_credential bytea,
  p_connection_id uuid,
  p_credential_hash bytea
) returns posthorn_impl.connection_view
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
  update posthorn.connections c
     set credential_hash = p_credential_hash,
         -- pairing a device again starts its 90 days anew
         expires_at = case c.kind when 'device' then v_now + interval '90 days' else c.expires_at end
   where c.owner_id = v_actor.owner_id
     and c.connection_id = p_connection_id
     and c.revoked_at is null
     and (c.kind = 'device' or c.expires_at > v_now)
     and c.kind in ('service', 'device', 'child');
  if not found then
    perform posthorn_impl.refuse('not_found');
  end if;
  -- what a paired machine renewed by itself is an old credential, too
  delete from posthorn.grant_tokens t where t.owner_id = v_actor.owner_id and t.connection_id = p_connection_id;
  -- streams under the old credential end
  perform posthorn_impl.wake_agents(v_actor.owner_id, array(
    select a.agent_id from posthorn.agents a where a.owner_id = v_actor.owner_id and a.connection_id = p_connection_id
     union
    select c.agent_id from posthorn.connections c where c.owner_id = v_actor.owner_id and c.connection_id = p_connection_id and c.agent_id is not null));
  perform posthorn_impl.record_act(v_actor, 'connection.rotate', p_connection_id, v_now);
  return (select v from posthorn_impl.view_connections(v_actor.owner_id, array[p_connection_id], v_now) v);
end $$;
comment on function posthorn_api.rotate_connection(bytea, uuid, bytea) is 'Gives a connection a new credential and keeps its identity; the old one is dead at once. [nullable: parent_connection_id, agent_id, expires_at, last_used_at, revoked_at, client_id, client_host, ended_at]';

create function posthorn_api.list_connections(
  p_credential bytea,
  p_limit int default null,
  p_after uuid default null,
  p_in_past boolean default false,
  p_current_only boolean default false
) returns setof posthorn_impl.connection_view
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
    from posthorn_impl.view_connections(v_actor.owner_id, array(
           select c.connection_id
             from posthorn.connections c
            cross join lateral (select c.revoked_at is null and c.expires_at > v_now as is_current) x
            where c.owner_id = v_actor.owner_id
              and posthorn_impl.is_on_page(x.is_current, c.connection_id, p_after, p_in_past, p_current_only)
            order by x.is_current desc, case when x.is_current then c.connection_id end, c.connection_id desc
            limit p_limit), v_now) v;
end $$;
comment on function posthorn_api.list_connections(bytea, int, uuid, boolean, boolean) is 'Connections of the owner: those that live, then those that ended, the latest first. [nullable: parent_connection_id, agent_id, expires_at, last_used_at, revoked_at, client_id, client_host, ended_at]';

create function posthorn_api.touch_connections(
  p_credentials bytea[]
) returns int
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz := posthorn_impl.clock();
  v_proven posthorn_impl.proven[] := array(select p from posthorn_impl.prove(p_credentials) p);
  v_touched int;
begin
  with seen as (
    select c.owner_id, c.connection_id
      from posthorn.connections c
      join unnest(v_proven) p on p.owner_id = c.owner_id and p.connection_id = c.connection_id
     where c.revoked_at is null
     order by c.owner_id, c.connection_id
       for no key update of c
  )
  update posthorn.connections c
     set last_used_at = v_now,
         -- moved once a day at the most, since each move touches the connection's agents
         expires_at = case
                        when c.kind = 'device' and c.expires_at < v_now + interval '89 days' then v_now + interval '90 days'
                        when c.kind = 'session' and c.expires_at < v_now + interval '29 days' then v_now + interval '30 days'
                        else c.expires_at
                      end
    from seen s
   where c.owner_id = s.owner_id
     and c.connection_id = s.connection_id;
  get diagnostics v_touched = row_count;
  return v_touched;
end $$;
comment on function posthorn_api.touch_connections(bytea[]) is 'Notes that these credentials were used and slides the expiry of devices and sessions; one call per pod and interval.';

grant execute on function
  posthorn_api.create_service_connection(bytea, text, text[], bytea, timestamptz), posthorn_api.pair_device(bytea, text, text[], bytea),
  posthorn_api.rotate_connection(bytea, uuid, bytea), posthorn_api.list_connections(bytea, int, uuid, boolean, boolean) to posthorn_app, posthorn_admin;
grant execute on function
  posthorn_api.mint_child_connection(bytea, uuid, text, bytea, timestamptz), posthorn_api.touch_connections(bytea[]) to posthorn_app;

grant execute on function posthorn_impl.tg_connections__move_reach() to posthorn_owner;

set local role posthorn_owner;
drop trigger if exists _100_move_reach on posthorn.connections;
create trigger _100_move_reach
  after update of expires_at, revoked_at on posthorn.connections
  for each row
  when (old.expires_at is distinct from new.expires_at or old.revoked_at is distinct from new.revoked_at)
  execute function posthorn_impl.tg_connections__move_reach();
