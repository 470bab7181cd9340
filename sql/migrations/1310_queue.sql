-- graphile-worker's schema belonged to posthorn_jobs, as which workers log in. Owners may put triggers on their tables,
-- and before PostgreSQL 18 a deferred one runs at commit as whoever sent the message: a worker could become a pod.
do $$
begin
  begin
    create role posthorn_queue nologin; -- owns graphile-worker's schema and nothing else
  exception when duplicate_object or unique_violation then null;
  end;
  if not (select rolsuper from pg_catalog.pg_roles where rolname = current_user) then
    execute format('grant posthorn_queue to %I', current_user);
  end if;
  if to_regnamespace('graphile_worker') is not null then
    -- the schema first: who is to own something in it must be allowed to create there
    alter schema graphile_worker owner to posthorn_queue;
    reassign owned by posthorn_jobs to posthorn_queue;
  end if;
end $$;
