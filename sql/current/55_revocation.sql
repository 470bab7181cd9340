-- Revoking a connection: an act of the owner that reaches agents, groups and mail.
set local role posthorn_engine;

create function posthorn_impl.end_connection(
  p_actor posthorn_impl.proven,
  p_connection_id uuid
) returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz;
  v_connections uuid[];
  v_agents uuid[];
  v_silenced uuid[];
  v_groups uuid[];
  v_ended uuid[];
  v_locked uuid[];
begin
  perform posthorn_impl.lock_owner(p_actor.owner_id);
  v_now := posthorn_impl.clock();
  v_connections := array(
    select c.connection_id
      from posthorn.connections c
     where c.owner_id = p_actor.owner_id
       and (c.connection_id = p_connection_id or c.parent_connection_id = p_connection_id));
  if not p_connection_id = any (v_connections) then
    perform posthorn_impl.refuse('not_found');
  end if;
  v_agents := array(
    select a.agent_id from posthorn.agents a where a.owner_id = p_actor.owner_id and a.connection_id = any (v_connections)
    union
    select c.agent_id from posthorn.connections c where c.owner_id = p_actor.owner_id and c.connection_id = any (v_connections) and c.agent_id is not null
    union
    select g.agent_id from posthorn.oauth_grants g where g.owner_id = p_actor.owner_id and g.connection_id = any (v_connections) and g.agent_id is not null);
  -- those whose mail nobody will read: of a grant's agent, unless another grant acts as it too
  v_silenced := array(
    select a.agent_id
      from posthorn.agents a
     where a.owner_id = p_actor.owner_id
       and a.agent_id = any (v_agents)
       and case when a.origin_kind = 'oauth'
                then not exists (
                  select from posthorn.oauth_grants g
                    join posthorn.connections c on c.owner_id = p_actor.owner_id and c.connection_id = g.connection_id and c.revoked_at is null and c.expires_at > v_now
                   where g.owner_id = p_actor.owner_id and g.agent_id = a.agent_id and g.connection_id <> all (v_connections))
                else a.connection_id = any (v_connections) end);
  v_groups := posthorn_impl.lock_groups_of(p_actor.owner_id, v_agents);
  -- streams of other pods look, and find their credential dead
  perform posthorn_impl.wake_agents(p_actor.owner_id, v_agents);
  perform posthorn_impl.wake_owner(p_actor.owner_id); -- those of a browser, too
  -- nobody will read what waits for its agents, and what it queued must not start any more
  v_ended := array(
    select b.message_id
      from posthorn.bodies b
     where b.owner_id = p_actor.owner_id
       and b.recipient_agent_id = any (v_silenced)
    union
    select h.message_id
      from posthorn_impl.held_of(p_actor.owner_id, v_agents) h
      join posthorn.messages m on m.owner_id = p_actor.owner_id and m.message_id = h.message_id
     where m.recipient_agent_id = any (v_silenced)
        or m.connection_id = any (v_connections)
    union
    select m.message_id from posthorn_impl.unfenced_in_groups(p_actor.owner_id, v_groups) m where m.connection_id = any (v_connections) and m.state = 'queued');
  -- with those of its agents, whose webhooks end
  v_locked := v_agents || posthorn_impl.agents_of_messages(p_actor.owner_id, v_ended) || array(
    select w.agent_id from posthorn.webhooks w where w.owner_id = p_actor.owner_id and w.connection_id = any (v_connections));
  perform posthorn_impl.lock_mailboxes(array_fill(p_actor.owner_id, array[cardinality(v_locked)]), v_locked);
  v_now := posthorn_impl.clock();
  update posthorn.connections c
     set revoked_at = v_now
   where c.owner_id = p_actor.owner_id
     and c.connection_id = any (v_connections)
     and c.revoked_at is null;
  delete from posthorn.grant_tokens t where t.owner_id = p_actor.owner_id and t.connection_id = any (v_connections);
  perform posthorn_impl.delete_webhooks(p_actor.owner_id, v_silenced, v_connections);
  perform posthorn_impl.end_pushes(p_actor.owner_id, v_connections);
  perform posthorn_impl.end_messages(p_actor.owner_id, v_ended, 'revoked', v_now);
  perform posthorn_impl.record_act(p_actor, 'connection.revoke', c, v_now) from unnest(v_connections) c;
end $$;
comment on function posthorn_impl.end_connection(posthorn_impl.proven, uuid) is 'Ends a connection, its children and its tokens for good, and fences the mail that only they could read or were about to deliver; raises not_found.';

create function posthorn_api.revoke_connection(
  p_credential bytea,
  p_connection_id uuid
) returns posthorn_impl.connection_view
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_actor posthorn_impl.proven := posthorn_impl.identify_owner(p_credential);
begin
  perform posthorn_impl.end_connection(v_actor, p_connection_id);
  return (select v from posthorn_impl.view_connections(v_actor.owner_id, array[p_connection_id], posthorn_impl.clock()) v);
end $$;
comment on function posthorn_api.revoke_connection(bytea, uuid) is 'Ends a connection and its children for good, and fences the mail that only they could read or were about to deliver. [nullable: parent_connection_id, agent_id, expires_at, last_used_at, revoked_at, client_id, client_host, ended_at]';
grant execute on function posthorn_api.revoke_connection(bytea, uuid) to posthorn_app, posthorn_admin;
