-- Rotation of the server's key ring: owners' data keys are wrapped anew, one row each, while everything runs. No body
-- is touched.
set local role posthorn_engine;

create function ops.list_ring_keys() returns table (
  ring_key_id text,
  created_at timestamptz,
  owners bigint
)
language sql
stable
security invoker
set search_path = pg_catalog, pg_temp
as $$
  select k.ring_key_id, k.created_at, (select count(*) from posthorn.owner_keys o where o.ring_key_id = k.ring_key_id)
    from posthorn.ring_keys k
   order by k.created_at, k.ring_key_id
$$;
comment on function ops.list_ring_keys() is 'The keys of the ring that were used here, and how many owners depend on each.';

create function ops.owner_keys_to_wrap(
  p_ring_key_id text,
  p_limit int
) returns table (
  owner_id uuid,
  ring_key_id text,
  wrapped_key bytea
)
language sql
stable
security invoker
set search_path = pg_catalog, pg_temp
as $$
  select o.id, k.ring_key_id, k.wrapped_key
    from posthorn.owner_keys k
    join posthorn.owners o on o.owner_id = k.owner_id
   where k.ring_key_id <> p_ring_key_id
   order by k.owner_id
   limit p_limit
$$;
comment on function ops.owner_keys_to_wrap(text, int) is 'Wrapped data keys that do not depend on the given key of the ring yet.';

create function ops.wrap_owner_keys(
  p_owner_ids uuid[],
  p_from_ring_key_ids text[],
  p_ring_key_id text,
  p_wrapped_keys bytea[]
) returns int
language plpgsql
volatile
security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  v_wrapped int;
begin
  update posthorn.owner_keys k
     set ring_key_id = p_ring_key_id,
         wrapped_key = w.wrapped_key
    from unnest(p_owner_ids, p_from_ring_key_ids, p_wrapped_keys) w(id, from_ring_key_id, wrapped_key)
    join posthorn.owners o on o.id = w.id
   where k.owner_id = o.owner_id
     and k.ring_key_id = w.from_ring_key_id; -- two rotations at once do not undo each other
  get diagnostics v_wrapped = row_count;
  return v_wrapped;
end $$;
comment on function ops.wrap_owner_keys(uuid[], text[], text, bytea[]) is 'Replaces wrapped data keys by the same keys wrapped anew, but for those that another rotation has replaced; answers how many.';

create function ops.server_secret_to_wrap(
  p_ring_key_id text
) returns table (
  ring_key_id text,
  sealed bytea
)
language sql
stable
security invoker
set search_path = pg_catalog, pg_temp
as $$
  select s.ring_key_id, s.sealed from posthorn.server_secrets s where s.ring_key_id <> p_ring_key_id
$$;
comment on function ops.server_secret_to_wrap(text) is 'The server''s own secrets, where they do not depend on the given key of the ring yet.';

create function ops.wrap_server_secret(
  p_from_ring_key_id text,
  p_ring_key_id text,
  p_sealed bytea
) returns void
language sql
volatile
security invoker
set search_path = pg_catalog, pg_temp
as $$
  update posthorn.server_secrets s set ring_key_id = p_ring_key_id, sealed = p_sealed where s.ring_key_id = p_from_ring_key_id
$$;
comment on function ops.wrap_server_secret(text, text, bytea) is 'Replaces the server''s secrets by the same ones sealed under another key of the ring.';
grant execute on function ops.server_secret_to_wrap(text), ops.wrap_server_secret(text, text, bytea) to posthorn_admin;

create function ops.forget_ring_keys(
  p_except text
) returns int
language plpgsql
volatile
security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  v_forgotten int;
begin
  delete from posthorn.ring_keys k
   where k.ring_key_id <> p_except
     and not exists (select from posthorn.owner_keys o where o.ring_key_id = k.ring_key_id)
     and not exists (select from posthorn.server_secrets s where s.ring_key_id = k.ring_key_id);
  get diagnostics v_forgotten = row_count;
  return v_forgotten;
end $$;
comment on function ops.forget_ring_keys(text) is 'Lets go of keys that no owner depends on, so that they may leave the ring; answers how many.';

grant execute on function
  ops.list_ring_keys(), ops.owner_keys_to_wrap(text, int), ops.wrap_owner_keys(uuid[], text[], text, bytea[]), ops.forget_ring_keys(text) to posthorn_admin;
