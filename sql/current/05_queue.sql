-- What workers may do with graphile-worker's schema: read and write the rows of the queue. They own none of it and may put
-- no trigger there, since sends write to the queue in their own transactions, with the rights of a pod or a person at hand.
set local role posthorn_queue;
grant usage on schema graphile_worker to posthorn_jobs;
grant select on graphile_worker.migrations, graphile_worker.jobs to posthorn_jobs;

do $$
declare
  v_table text;
begin
  foreach v_table in array array['_private_jobs', '_private_job_queues', '_private_tasks', '_private_known_crontabs'] loop
    execute format('grant select, insert, update, delete on graphile_worker.%I to posthorn_jobs', v_table);
    execute format('create policy all_jobs on graphile_worker.%I to posthorn_jobs using (true) with check (true)', v_table);
  end loop;
end $$;
