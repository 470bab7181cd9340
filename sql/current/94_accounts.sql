-- Suspending, exporting and deleting an account.
set local role posthorn_engine;

create function ops.suspend_owner(
  p_owner_id uuid
) returns void
language plpgsql
volatile
security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  v_owner_id int;
begin
  update posthorn.owners o
     set suspended_at = coalesce(o.suspended_at, posthorn_impl.clock())
   where o.id = p_owner_id
     and o.deleted_at is null
  returning o.owner_id into v_owner_id;
  if not found then
    perform posthorn_impl.refuse('not_found');
  end if;
  insert into posthorn.audit_entries (owner_id, act, subject_id, occurred_at) values (v_owner_id, 'owner.suspend', p_owner_id, posthorn_impl.clock());
  perform pg_notify('posthorn', '*'); -- every stream asks again, and theirs end
end $$;
comment on function ops.suspend_owner(uuid) is 'Every call of the owner''s connections is refused with owner_suspended from now on; nothing is lost.';

create function ops.resume_owner(
  p_owner_id uuid
) returns void
language plpgsql
volatile
security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  v_owner_id int;
begin
  update posthorn.owners o set suspended_at = null where o.id = p_owner_id and o.deleted_at is null returning o.owner_id into v_owner_id;
  if not found then
    perform posthorn_impl.refuse('not_found');
  end if;
  insert into posthorn.audit_entries (owner_id, act, subject_id, occurred_at) values (v_owner_id, 'owner.resume', p_owner_id, posthorn_impl.clock());
end $$;
comment on function ops.resume_owner(uuid) is 'Lifts a suspension.';

create function posthorn_api.export_account(
  p_credential bytea
) returns table (
  kind text,
  content jsonb
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_actor posthorn_impl.proven := posthorn_impl.identify_owner(p_credential);
  v_table text;
begin
  foreach v_table in array array['owners', 'connections', 'oauth_grants', 'agents', 'groups', 'members', 'conversations', 'proposals', 'posts', 'messages', 'events', 'audit_entries', 'webhooks', 'deliveries', 'delivery_attempts', 'push_subscriptions', 'passkeys', 'openid_accounts'] loop
    -- the one place of a dynamic statement: the names are those above
    return query execute format(
      'select %L, to_jsonb(x) - array[''owner_id'', ''credential_hash'', ''sealed_url'', ''sealed_secret'', ''previous_sealed_secret'', ''sealed_auth_header'', ''endpoint_hash'', ''sealed_subscription'', ''handle_hash'', ''credential_id'', ''public_key'', ''subject_hash''] from posthorn.%I x where x.owner_id = $1', v_table, v_table) using v_actor.owner_id;
  end loop;
end $$;
comment on function posthorn_api.export_account(bytea) is 'All that the owner may read: settings, connections, ways to sign in, agents, collaborations, requests, receipts, events, webhooks with their deliveries, browsers that are notified, and the audit log; no body, credential or secret.';

create function posthorn_api.delete_account(
  p_credential bytea
) returns void
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
  perform posthorn_impl.lock_groups(v_actor.owner_id, array(select g.group_id from posthorn.groups g where g.owner_id = v_actor.owner_id));
  -- the key first: whatever is left of a body, here or in a backup, opens for nobody
  delete from posthorn.owner_keys k where k.owner_id = v_actor.owner_id;
  perform posthorn_impl.lock_requests(v_actor.owner_id, array(select b.agent_id from posthorn.mailboxes b where b.owner_id = v_actor.owner_id));
  v_now := posthorn_impl.clock();
  update posthorn.connections c set revoked_at = v_now where c.owner_id = v_actor.owner_id and c.revoked_at is null;
  delete from posthorn.grant_tokens t where t.owner_id = v_actor.owner_id;
  delete from posthorn.sign_in_links l where l.owner_id = v_actor.owner_id;
  delete from posthorn.push_subscriptions s where s.owner_id = v_actor.owner_id;
  delete from posthorn.passkeys k where k.owner_id = v_actor.owner_id;
  delete from posthorn.openid_accounts a where a.owner_id = v_actor.owner_id;
  perform posthorn_impl.close_proposals(
    v_actor.owner_id, array(select p.proposal_id from posthorn.proposals p where p.owner_id = v_actor.owner_id and p.state = 'pending'), 'denied', 'revoked', 'superseded', v_now);
  perform posthorn_impl.end_messages(
    v_actor.owner_id, array(select b.message_id from posthorn.bodies b where b.owner_id = v_actor.owner_id), 'revoked', v_now);
  perform posthorn_impl.delete_webhooks(v_actor.owner_id, array(select w.agent_id from posthorn.webhooks w where w.owner_id = v_actor.owner_id), '{}');
  update posthorn.owners o set deleted_at = v_now, suspended_at = coalesce(o.suspended_at, v_now) where o.owner_id = v_actor.owner_id;
  perform posthorn_impl.wake_agents(v_actor.owner_id, array(select b.agent_id from posthorn.mailboxes b where b.owner_id = v_actor.owner_id)); -- their streams end
  perform posthorn_impl.wake_owner(v_actor.owner_id);
end $$;
comment on function posthorn_api.delete_account(bytea) is 'Ends an account for good: its key is destroyed, its connections are revoked and its mail is fenced at once; a worker removes the rows.';

grant execute on function posthorn_api.export_account(bytea), posthorn_api.delete_account(bytea) to posthorn_app, posthorn_admin;
grant execute on function ops.suspend_owner(uuid), ops.resume_owner(uuid) to posthorn_admin;
grant execute on function posthorn_impl.clock(), posthorn_impl.refuse(text, jsonb) to posthorn_admin;
grant usage on schema posthorn_impl to posthorn_admin;

-- What a worker may see and delete besides: the rows of a deleted account.
set local role posthorn_owner;

do $$
declare
  v_table text;
  v_rule text;
begin
  foreach v_table in array array[
    'owners', 'owner_keys', 'connections', 'agents', 'mailboxes', 'groups', 'group_counters', 'members', 'conversations', 'proposals', 'posts', 'messages',
    'held_bodies', 'bodies', 'events', 'idempotency_keys', 'audit_entries', 'webhooks', 'deliveries', 'delivery_attempts', 'streams', 'presence',
    'sign_in_links', 'oauth_grants', 'grant_tokens', 'push_subscriptions', 'passkeys', 'openid_accounts'] loop
    execute format('drop policy if exists select_deleted on posthorn.%I', v_table);
    execute format('drop policy if exists delete_deleted on posthorn.%I', v_table);
    v_rule := case v_table when 'owners' then 'deleted_at is not null' else 'owner_id in (select o.owner_id from posthorn.owners o where o.deleted_at is not null)' end;
    execute format('create policy select_deleted on posthorn.%I for select to posthorn_jobs using (%s)', v_table, v_rule);
    execute format('create policy delete_deleted on posthorn.%I for delete to posthorn_jobs using (%s)', v_table, v_rule);
    execute format('grant delete, select (owner_id, ctid) on posthorn.%I to posthorn_jobs', v_table);
  end loop;
end $$;
grant select (deleted_at) on posthorn.owners to posthorn_jobs;

set local role posthorn_engine;

create function posthorn_api.delete_deleted_accounts(
  p_limit int
) returns int
language plpgsql
volatile
security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  v_owner_id int := (select o.owner_id from posthorn.owners o where o.deleted_at is not null order by o.owner_id limit 1);
  v_table text;
  v_rows int;
begin
  if v_owner_id is null then
    return 0;
  end if;
  -- those that grow with use first, in batches; the owner's row takes the rest along
  foreach v_table in array array['bodies', 'held_bodies', 'idempotency_keys', 'events', 'posts', 'messages', 'audit_entries', 'streams', 'presence'] loop
    execute format('delete from posthorn.%I x where x.owner_id = $1 and x.ctid = any (array(select y.ctid from posthorn.%I y where y.owner_id = $1 limit $2))', v_table, v_table)
      using v_owner_id, p_limit;
    get diagnostics v_rows = row_count;
    if v_rows > 0 then
      return v_rows;
    end if;
  end loop;
  delete from posthorn.owners o where o.owner_id = v_owner_id;
  return 1;
end $$;
comment on function posthorn_api.delete_deleted_accounts(int) is 'Removes up to p_limit rows of a deleted account; answers how many, 0 when none is left.';
grant execute on function posthorn_api.delete_deleted_accounts(int) to posthorn_jobs;
