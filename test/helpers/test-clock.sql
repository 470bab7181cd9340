-- Loaded into the test template after current/: every session of a test's database sees the same time, which the
-- test moves or stops. Production never holds this schema.
create schema posthorn_test;

create table posthorn_test.clock (
  only_one boolean primary key default true constraint there_is_only_one_clock check (only_one),
  shift interval not null default '0', -- how far it goes ahead of the real time
  stopped_at timestamptz               -- shows this time while set
);
insert into posthorn_test.clock default values;

grant usage on schema posthorn_test to posthorn_engine, posthorn_prover, posthorn_jobs, posthorn_ops, posthorn_admin;
grant select on posthorn_test.clock to posthorn_engine, posthorn_prover, posthorn_jobs, posthorn_ops, posthorn_admin;

create or replace function posthorn_impl.clock() returns timestamptz
language sql
volatile
security invoker
set search_path = ''
as $$
  select coalesce(c.stopped_at, pg_catalog.clock_timestamp() + c.shift) from posthorn_test.clock c
$$;
