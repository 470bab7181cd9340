set local role posthorn_owner;

-- Which database these rows belong in. One that finds itself elsewhere was restored from a backup, where bodies that
-- were fenced since may have come back: it answers nobody until they are gone.
create table posthorn.server (
  only_one boolean primary key default true constraint there_is_only_one_server check (only_one),
  system_identifier bigint not null, -- of the cluster, made by initdb
  database_oid bigint not null,
  timeline int not null,
  started_at timestamptz not null,   -- of the postmaster that was recognised last
  epoch bigint not null default 1,
  fenced_up_to int                   -- while a restored database is fenced: the last owner that is done
);

insert into posthorn.server (system_identifier, database_oid, timeline, started_at)
select c.system_identifier, d.oid::bigint, ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int, pg_postmaster_start_time()
  from pg_control_system() c
  join pg_database d on d.datname = current_database();
