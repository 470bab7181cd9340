-- Revoking a connection: an act of the owner that reaches agents, groups and mail.
set local role posthorn_engine;

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
  v_now timestamptz;
  v_connections uuid[];
  v_agents uuid[];
  v_groups uuid[];
  v_ended uuid[];
  v_locked uuid[];
begin
  perform posthorn_impl.lock_owner(v_actor.owner_id);
  v_connections := array(
    select c.connection_id
      from posthorn.connections c
     where c.owner_id = v_actor.owner_id
       and (c.connection_id = p_connection_id or c.parent_connection_id = p_connection_id));
  if not p_connection_id = any (v_connections) then
    perform posthorn_impl.refuse('not_found');
  end if;
  v_agents := array(
    select a.agent_id from posthorn.agents a where a.owner_id = v_actor.owner_id and a.connection_id = any (v_connections)
    union
    select c.agent_id from posthorn.connections c where c.owner_id = v_actor.owner_id and c.connection_id = any (v_connections) and c.agent_id is not null);
  v_groups := posthorn_impl.lock_groups_of(v_actor.owner_id, v_agents);
  -- streams of other pods look, and find their credential dead
  perform posthorn_impl.wake_agents(v_actor.owner_id, v_agents);
  -- nobody will read what waits for its agents, and what it queued must not start any more
  v_ended := array(
    select b.message_id
      from posthorn.bodies b
      join posthorn.agents a on a.owner_id = v_actor.owner_id and a.agent_id = b.recipient_agent_id
     where b.owner_id = v_actor.owner_id
       and a.connection_id = any (v_connections)
    union
    select h.message_id
      from posthorn_impl.held_of(v_actor.owner_id, v_agents) h
      join posthorn.messages m on m.owner_id = v_actor.owner_id and m.message_id = h.message_id
      join posthorn.agents a on a.owner_id = v_actor.owner_id and a.agent_id = m.recipient_agent_id
     where a.connection_id = any (v_connections)
        or m.connection_id = any (v_connections)
    union
    select m.message_id from posthorn_impl.unfenced_in_groups(v_actor.owner_id, v_groups) m where m.connection_id = any (v_connections) and m.state = 'queued');
  -- with those of its agents, whose webhooks end
  v_locked := v_agents || posthorn_impl.agents_of_messages(v_actor.owner_id, v_ended) || array(
    select w.agent_id from posthorn.webhooks w where w.owner_id = v_actor.owner_id and w.connection_id = any (v_connections));
  perform posthorn_impl.lock_mailboxes(array_fill(v_actor.owner_id, array[cardinality(v_locked)]), v_locked);
  v_now := posthorn_impl.clock();
  update posthorn.connections c
     set revoked_at = v_now
   where c.owner_id = v_actor.owner_id
     and c.connection_id = any (v_connections)
     and c.revoked_at is null;
  perform posthorn_impl.delete_webhooks(
    v_actor.owner_id, array(select a.agent_id from posthorn.agents a where a.owner_id = v_actor.owner_id and a.connection_id = any (v_connections)), v_connections);
  perform posthorn_impl.end_messages(v_actor.owner_id, v_ended, 'revoked', v_now);
  perform posthorn_impl.record_act(v_actor, 'connection.revoke', c, v_now) from unnest(v_connections) c;
  return (select v from posthorn_impl.view_connections(v_actor.owner_id, array[p_connection_id]) v);
end $$;
comment on function posthorn_api.revoke_connection(bytea, uuid) is 'Ends a connection and its children for good, and fences the mail that only they could read or were about to deliver. [nullable: parent_connection_id, agent_id, expires_at, last_used_at, revoked_at]';
grant execute on function posthorn_api.revoke_connection(bytea, uuid) to posthorn_app, posthorn_admin;
