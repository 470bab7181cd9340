-- Roles and schemas. Roles belong to the whole cluster, so each is made only where it is missing.
do $$
declare
  v_role text;
begin
  foreach v_role in array array[
    'posthorn_owner',   -- owns the tables; nobody logs in as it
    'posthorn_engine',  -- owns the functions; under row level security like everybody else
    'posthorn_prover',  -- turns credentials into owners; the only reader of the secret that signs proofs
    'posthorn_admin'    -- the person at the server: makes owners, acts as one, changes limits
  ] loop
    begin
      execute format('create role %I nologin', v_role);
    exception when duplicate_object or unique_violation then null;
    end;
  end loop;

  foreach v_role in array array[
    'posthorn_app',     -- the pods: may call posthorn_api and nothing else
    'posthorn_jobs',    -- the workers
    'posthorn_ops'      -- operators: read-only views
  ] loop
    begin
      execute format('create role %I login', v_role);
    exception when duplicate_object or unique_violation then null;
    end;
  end loop;

  -- The migrating role makes objects for these roles, so it must be able to become them.
  if not (select rolsuper from pg_catalog.pg_roles where rolname = current_user) then
    foreach v_role in array array['posthorn_owner', 'posthorn_engine', 'posthorn_prover', 'posthorn_admin', 'posthorn_app', 'posthorn_jobs', 'posthorn_ops'] loop
      execute format('grant %I to %I', v_role, current_user);
    end loop;
  end if;

  -- A temporary table or type could stand in front of the real one inside a definer function.
  execute format('revoke temporary on database %I from public', current_database());
  execute format('grant connect on database %I to posthorn_app, posthorn_jobs, posthorn_ops', current_database());
end $$;

create schema posthorn authorization posthorn_owner;
create schema posthorn_secret authorization posthorn_prover;

grant usage on schema posthorn to posthorn_engine, posthorn_prover, posthorn_jobs, posthorn_ops, posthorn_admin;

alter default privileges for role posthorn_owner revoke execute on functions from public;
alter default privileges for role posthorn_engine revoke execute on functions from public;
alter default privileges for role posthorn_prover revoke execute on functions from public;
