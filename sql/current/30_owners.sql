set local role posthorn_engine;

create function posthorn_impl.limit_value(
  p_name text
) returns bigint
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  select l.value from posthorn.limits l where l.name = p_name
$$;
comment on function posthorn_impl.limit_value(text) is 'The present value of a limit.';

create function posthorn_impl.record_act(
  p_actor posthorn_impl.proven,
  p_act text,
  p_subject_id uuid,
  p_now timestamptz,
  p_agent_id uuid default null
) returns void
language sql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
  insert into posthorn.audit_entries (owner_id, act, connection_id, agent_id, subject_id, occurred_at)
  values (p_actor.owner_id, p_act, p_actor.connection_id, p_agent_id, p_subject_id, p_now)
$$;
comment on function posthorn_impl.record_act(posthorn_impl.proven, text, uuid, timestamptz, uuid) is 'Writes one audit entry.';

create function posthorn_impl.is_on_page(
  p_is_current boolean,
  p_id uuid,
  p_after uuid,
  p_in_past boolean,
  p_current_only boolean
) returns boolean
language sql
immutable
security invoker
set search_path = pg_catalog, pg_temp
as $$
  select case when p_is_current then not p_in_past and (p_after is null or p_id > p_after)
              else not p_current_only and (not p_in_past or p_after is null or p_id < p_after) end
$$;
comment on function posthorn_impl.is_on_page(boolean, uuid, uuid, boolean, boolean) is 'Whether a row comes behind this place of an owner''s list. Those begin with what is current, by id, and go on with what is past, the latest first: so whatever ends between two pages is on one of them or on both.';

create function posthorn_impl.lock_owner(
  p_owner_id int
) returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  perform 1 from posthorn.owners o where o.owner_id = p_owner_id and o.deleted_at is null for no key update;
  if not found then
    perform posthorn_impl.refuse('unauthorized'); -- the account was deleted while this waited
  end if;
end $$;
comment on function posthorn_impl.lock_owner(int) is 'The first lock of the order owner, group, conversation, mailboxes by id; taken where a cap counts rows of the owner.';

create function posthorn_api.owner_settings(
  p_credential bytea
) returns table (
  id uuid,
  label text,
  automatic_approval boolean,
  sensitive_content_check boolean,
  created_at timestamptz
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_actor posthorn_impl.proven := posthorn_impl.identify_owner(p_credential);
begin
  return query
  select o.id, o.label, o.automatic_approval, o.sensitive_content_check, o.created_at
    from posthorn.owners o
   where o.owner_id = v_actor.owner_id;
end $$;
comment on function posthorn_api.owner_settings(bytea) is 'The owner''s settings.';

create function posthorn_api.change_owner_settings(
  p_credential bytea,
  p_automatic_approval boolean default null,
  p_sensitive_content_check boolean default null
) returns table (
  id uuid,
  label text,
  automatic_approval boolean,
  sensitive_content_check boolean,
  created_at timestamptz
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_actor posthorn_impl.proven := posthorn_impl.identify_owner(p_credential);
begin
  update posthorn.owners o
     set automatic_approval = coalesce(p_automatic_approval, o.automatic_approval),
         sensitive_content_check = coalesce(p_sensitive_content_check, o.sensitive_content_check)
   where o.owner_id = v_actor.owner_id;
  perform posthorn_impl.record_act(v_actor, 'owner.settings', (select o.id from posthorn.owners o where o.owner_id = v_actor.owner_id), posthorn_impl.clock());
  return query select s.* from posthorn_api.owner_settings(p_credential) s;
end $$;
comment on function posthorn_api.change_owner_settings(bytea, boolean, boolean) is 'Changes the settings that are given and answers them all.';

create function posthorn_api.owner_key(
  p_credential bytea
) returns table (
  owner_id uuid,
  ring_key_id text,
  wrapped_key bytea
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_proven posthorn_impl.proven := posthorn_impl.identify_connection(p_credential);
begin
  return query
  select o.id, k.ring_key_id, k.wrapped_key
    from posthorn.owners o
    join posthorn.owner_keys k on k.owner_id = o.owner_id
   where o.owner_id = v_proven.owner_id;
end $$;
comment on function posthorn_api.owner_key(bytea) is 'The owner''s wrapped data key, for the pod to unwrap with its ring.';

create function posthorn_api.ring_keys() returns table (
  ring_key_id text,
  proof bytea
)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  select k.ring_key_id, k.proof from posthorn.ring_keys k order by k.created_at
$$;
comment on function posthorn_api.ring_keys() is 'The keys that a server''s ring must hold, each with a known text sealed under it.';

-- The person at the server.

create function ops.add_ring_key(
  p_ring_key_id text,
  p_proof bytea
) returns void
language sql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
  insert into posthorn.ring_keys (ring_key_id, proof, created_at)
  values (p_ring_key_id, p_proof, posthorn_impl.clock())
  on conflict do nothing
$$;
comment on function ops.add_ring_key(text, bytea) is 'Makes a key of the ring known before owners'' keys are wrapped by it.';

create function ops.create_owner(
  p_label text,
  p_ring_key_id text,
  p_wrapped_key bytea,
  p_id uuid default null
) returns uuid
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_owner_id int := nextval(pg_get_serial_sequence('posthorn.owners', 'owner_id'));
  v_id uuid := coalesce(p_id, posthorn.make_id());
  v_actor posthorn_impl.proven;
begin
  select p.* into v_actor from posthorn_impl.prove(array[int4send(v_owner_id) || decode(posthorn_impl.sign_proof('ticket|' || v_owner_id), 'hex')]) p;
  insert into posthorn.owners (owner_id, id, label, created_at) overriding system value values (v_owner_id, v_id, p_label, posthorn_impl.clock());
  insert into posthorn.owner_keys (owner_id, ring_key_id, wrapped_key) values (v_owner_id, p_ring_key_id, p_wrapped_key);
  perform posthorn_impl.record_act(v_actor, 'owner.create', v_id, posthorn_impl.clock());
  return v_id;
end $$;
comment on function ops.create_owner(text, text, bytea, uuid) is 'Makes an owner with a data key that the caller wrapped for this id; answers the id.';

create function ops.set_limit(
  p_name text,
  p_value bigint
) returns bigint
language plpgsql
volatile
security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
  update posthorn.limits l set value = p_value where l.name = p_name;
  if not found then
    perform posthorn_impl.refuse('not_found', '{"fields": ["name"]}');
  end if;
  return p_value;
end $$;
comment on function ops.set_limit(text, bigint) is 'Changes a limit for the next transaction; outside its range the table''s check refuses.';

grant execute on function posthorn_api.owner_settings(bytea), posthorn_api.change_owner_settings(bytea, boolean, boolean) to posthorn_app, posthorn_admin;
grant execute on function posthorn_api.owner_key(bytea), posthorn_api.ring_keys() to posthorn_app, posthorn_admin;
grant execute on function posthorn_api.ring_keys() to posthorn_jobs;
grant execute on function ops.create_owner(text, text, bytea, uuid), ops.add_ring_key(text, bytea), ops.set_limit(text, bigint) to posthorn_admin;
