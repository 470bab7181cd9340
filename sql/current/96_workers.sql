-- Locks of dead workers. graphile-worker itself frees them after four hours.
set local role posthorn_owner;
grant select, insert, update, delete on posthorn.worker_heartbeats to posthorn_jobs;
grant select on posthorn.worker_heartbeats to posthorn_ops;

set local role posthorn_engine;

create function posthorn_api.beat_worker(
  p_worker_id text
) returns int
language plpgsql
volatile
security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  c_silence constant interval := interval '30 seconds';
  v_now timestamptz := posthorn_impl.clock();
  v_dead text[];
begin
  insert into posthorn.worker_heartbeats (worker_id, heard_at) values (p_worker_id, v_now)
  on conflict (worker_id) do update set heard_at = excluded.heard_at;
  -- one that was never heard of (its heartbeats were lost in a crash of the server, say) gets the same time
  insert into posthorn.worker_heartbeats (worker_id, heard_at)
  select distinct j.locked_by, v_now from graphile_worker.jobs j where j.locked_by is not null
  on conflict do nothing;
  v_dead := array(
    select h.worker_id from posthorn.worker_heartbeats h where h.heard_at < v_now - c_silence for update skip locked);
  if cardinality(v_dead) > 0 then
    perform graphile_worker.force_unlock_workers(v_dead);
    delete from posthorn.worker_heartbeats h where h.worker_id = any (v_dead);
  end if;
  return cardinality(v_dead);
end $$;
comment on function posthorn_api.beat_worker(text) is 'Says that a worker lives and frees the jobs of those not heard of for 30 seconds; answers how many those are. A living one that was taken for dead goes on: every task may run twice.';

create function posthorn_api.end_worker(
  p_worker_id text
) returns void
language sql
volatile
security invoker
set search_path = pg_catalog, pg_temp
as $$
  delete from posthorn.worker_heartbeats h where h.worker_id = p_worker_id
$$;
comment on function posthorn_api.end_worker(text) is 'Says that a worker has ended and holds nothing any more.';

grant execute on function posthorn_api.beat_worker(text), posthorn_api.end_worker(text) to posthorn_jobs;
