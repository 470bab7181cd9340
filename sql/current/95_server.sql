-- Whether the database is where it was. Each transaction compares the start of the postmaster with the one that was
-- recognised last, which costs next to nothing; only after a restart it looks closer.
set local role posthorn_engine;

create type posthorn_impl.place as (
  system_identifier bigint,
  database_oid bigint,
  timeline int,
  started_at timestamptz
);

set local role posthorn_prover;

create function posthorn_impl.find_place() returns posthorn_impl.place
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  -- the name of the present log file starts with the timeline, in hexadecimal; pg_control knows it later
  select row(c.system_identifier, d.oid::bigint, ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int, pg_postmaster_start_time())::posthorn_impl.place
    from pg_control_system() c
    join pg_database d on d.datname = current_database()
$$;
comment on function posthorn_impl.find_place() is 'Which cluster and database this is, on which timeline, and since when it runs.';

create function posthorn_impl.require_same_server() returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_place posthorn_impl.place := posthorn_impl.find_place();
begin
  if not exists (
    select from posthorn.server s
     where s.system_identifier = v_place.system_identifier and s.database_oid = v_place.database_oid and s.fenced_up_to is null
  ) then
    perform posthorn_impl.refuse('unavailable', '{"retry_after": 1}');
  end if;
  -- whoever comes first after a restart notes it; the others need not wait for that transaction to end
  update posthorn.server s
     set started_at = v_place.started_at,
         timeline = v_place.timeline,
         epoch = s.epoch + case when s.timeline = v_place.timeline then 0 else 1 end
   where s.only_one = (select x.only_one from posthorn.server x where x.started_at <> v_place.started_at for no key update skip locked);
end $$;
comment on function posthorn_impl.require_same_server() is 'Raises unavailable in a database that was restored elsewhere and is not fenced yet; notes an ordinary restart.';

create function posthorn_impl.owners_after(
  p_owner_id int,
  p_limit int
) returns int[]
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  select array(select o.owner_id from posthorn.owners o where o.owner_id > p_owner_id order by o.owner_id limit p_limit)
$$;
comment on function posthorn_impl.owners_after(int, int) is 'The next owners by number.';

grant execute on function posthorn_impl.find_place(), posthorn_impl.owners_after(int, int) to posthorn_engine;

set local role posthorn_engine;

create function posthorn_api.recognise_server(
  p_limit int
) returns text
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  c_owners_at_once constant int := 100;
  v_place posthorn_impl.place := posthorn_impl.find_place();
  v_server posthorn.server;
  v_owners int[];
  v_message_owners int[];
  v_message_ids uuid[];
  v_now timestamptz;
begin
  select s.* into v_server from posthorn.server s;
  if v_server.fenced_up_to is null and v_server.started_at = v_place.started_at
     and (v_server.system_identifier, v_server.database_oid) = (v_place.system_identifier, v_place.database_oid) then
    return 'known';
  end if;
  select s.* into v_server from posthorn.server s for no key update; -- one process at a time
  if v_server.fenced_up_to is null then
    if (v_server.system_identifier, v_server.database_oid) = (v_place.system_identifier, v_place.database_oid) then
      update posthorn.server s
         set started_at = v_place.started_at,
             timeline = v_place.timeline,
             epoch = s.epoch + case when s.timeline = v_place.timeline then 0 else 1 end;
      return 'known';
    end if;
    perform posthorn_impl.begin_fencing();
    v_server.fenced_up_to := 0;
  end if;
  v_owners := posthorn_impl.owners_after(v_server.fenced_up_to, c_owners_at_once);
  if cardinality(v_owners) = 0 then
    update posthorn.server s
       set system_identifier = v_place.system_identifier,
           database_oid = v_place.database_oid,
           timeline = v_place.timeline,
           started_at = v_place.started_at,
           epoch = s.epoch + 1,
           fenced_up_to = null;
    return 'fenced';
  end if;
  perform posthorn_impl.admit_owners(v_owners);
  select coalesce(array_agg(x.owner_id), '{}'), coalesce(array_agg(x.message_id), '{}') into v_message_owners, v_message_ids
    from (select b.owner_id, b.message_id from posthorn.bodies b where b.owner_id = any (v_owners)
           union all
          select h.owner_id, h.message_id from posthorn.held_bodies h where h.owner_id = any (v_owners)
           limit p_limit) x;
  perform posthorn_impl.lock_mailboxes_of(v_message_owners, v_message_ids);
  v_now := posthorn_impl.clock();
  perform posthorn_impl.wake(posthorn_impl.advance_messages(array(
    select row(m.owner_id, m.message_id, 'revoked', false, false)::posthorn_impl.advance
      from unnest(v_message_owners, v_message_ids) m(owner_id, message_id)), v_now));
  -- a body without a receipt, which only a broken backup has, must not come back either
  delete from posthorn.bodies b using unnest(v_message_owners, v_message_ids) m(owner_id, message_id) where b.owner_id = m.owner_id and b.message_id = m.message_id;
  delete from posthorn.held_bodies h using unnest(v_message_owners, v_message_ids) m(owner_id, message_id) where h.owner_id = m.owner_id and h.message_id = m.message_id;
  if cardinality(v_message_ids) < p_limit then
    update posthorn.server s set fenced_up_to = v_owners[cardinality(v_owners)];
  end if;
  return 'fencing';
end $$;
comment on function posthorn_api.recognise_server(int) is 'Compares this database with the one that it was. Answers known where it is the same; else it fences up to p_limit bodies and answers fencing, to be called again until it answers fenced. Nobody is served meanwhile.';

create function posthorn_impl.begin_fencing() returns void
language sql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
  update posthorn.server s set started_at = '-infinity', fenced_up_to = 0
$$;
comment on function posthorn_impl.begin_fencing() is 'From now on nobody is served until all bodies are fenced.';

create function ops.declare_restored() returns void
language sql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
  select posthorn_impl.begin_fencing()
$$;
comment on function ops.declare_restored() is 'Says that this database was restored to an earlier time: nobody is served until posthorn_api.recognise_server has fenced every body.';

grant execute on function posthorn_api.recognise_server(int) to posthorn_app, posthorn_jobs, posthorn_admin;
grant execute on function ops.declare_restored() to posthorn_admin;

set local role posthorn_owner;
grant select, update on posthorn.server to posthorn_prover, posthorn_engine;
grant select on posthorn.server to posthorn_ops;
