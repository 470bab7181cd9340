-- Who acts is proved to the database. A call presents the SHA-256 of a credential, or the ticket that
-- ops.act_as_owner made in the same transaction. prove() looks them up once and leaves the owners in a
-- transaction-local setting under a MAC; every policy admits exactly those owners. A pod that sets the
-- setting itself gains nothing, a proof is worthless in another transaction, and nothing outlives one.
set local role posthorn_engine;

create type posthorn_impl.proven as (
  item int,
  owner_id int,
  connection_id uuid,
  kind text,
  scopes text[],
  bound_agent_id uuid
);

create type posthorn_impl.identity as (
  item int,
  owner_id int,
  connection_id uuid,
  kind text,
  agent_id uuid,
  problem text
);

set local role posthorn_prover;

create function posthorn_impl.sign_proof(
  p_subject text
) returns text
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  -- the transaction's start and the backend bind a signature to this transaction
  select encode(sha256(k.outer_pad || sha256(k.inner_pad || convert_to(
           p_subject || '|' || pg_backend_pid() || '|' || extract(epoch from transaction_timestamp()), 'UTF8'))), 'hex')
    from posthorn_secret.proof_key k
$$;
comment on function posthorn_impl.sign_proof(text) is 'HMAC-SHA256 of a subject, valid in this transaction of this backend only.';

create function posthorn_impl.admit_owners(
  p_owner_ids int[]
) returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  perform set_config('posthorn.proof', posthorn_impl.sign_proof('owners|' || p_owner_ids::text) || p_owner_ids::text, true);
end $$;
comment on function posthorn_impl.admit_owners(int[]) is 'Leaves the owners that this transaction may see where policies find them; for those who have proved them.';

create function posthorn_impl.prove(
  p_credentials bytea[]
) returns setof posthorn_impl.proven
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz := posthorn_impl.clock();
  v_proven posthorn_impl.proven[];
  v_owners int[];
  v_is_same_server boolean;
begin
  -- the policy of connections for this role shows only rows whose hash was presented
  perform set_config('posthorn.presented', p_credentials::text, true);
  v_proven := array(
    select row(u.item, c.owner_id, c.connection_id, c.kind, c.scopes, c.agent_id)::posthorn_impl.proven
      from unnest(p_credentials) with ordinality u(credential, item)
      join posthorn.connections c on c.credential_hash = u.credential
     where c.revoked_at is null
       and c.expires_at > v_now
    union all
    select row(u.item, t.owner_id, null, 'session', array['owner'], null)::posthorn_impl.proven
      from unnest(p_credentials) with ordinality u(credential, item)
     cross join lateral (select ('x' || encode(substring(u.credential for 4), 'hex'))::bit(32)::int as owner_id) t
     where octet_length(u.credential) = 36
       and encode(substring(u.credential from 5), 'hex') = posthorn_impl.sign_proof('ticket|' || t.owner_id));
  -- access tokens stand elsewhere: looked up only for what was found nowhere, so that other credentials pay nothing
  if cardinality(v_proven) < cardinality(p_credentials) then
    v_proven := v_proven || array(
      select row(u.item, t.owner_id, t.connection_id, t.connection_kind, t.scopes, t.agent_id)::posthorn_impl.proven
        from unnest(p_credentials) with ordinality u(credential, item)
        join posthorn.grant_tokens t on t.token_hash = u.credential
       where t.kind = 'access'
         and t.expires_at > v_now);
  end if;
  -- what this transaction runs later need not find them
  perform set_config('posthorn.presented', '{}', true);
  select coalesce(array_agg(distinct p.owner_id), '{}'), (select s.started_at = pg_postmaster_start_time() from posthorn.server s)
    into v_owners, v_is_same_server
    from unnest(v_proven) p;
  if not v_is_same_server then
    perform posthorn_impl.require_same_server();
  end if;
  perform posthorn_impl.admit_owners(v_owners);
  return query select p.* from unnest(v_proven) p;
end $$;
comment on function posthorn_impl.prove(bytea[]) is 'Turns presented credentials into the owners that this transaction may see; one row for each valid one.';

create function posthorn_impl.proved_owners() returns int[]
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_proof text := current_setting('posthorn.proof', true);
  v_owners text := substr(v_proof, 65);
begin
  if v_owners is null or v_owners = '' or substr(v_proof, 1, 64) <> posthorn_impl.sign_proof('owners|' || v_owners) then
    return '{}'; -- a forged proof is no proof, and tells its maker nothing
  end if;
  return v_owners::int[];
end $$;
comment on function posthorn_impl.proved_owners() is 'The owners proved in this transaction; what every policy compares with.';

create function ops.act_as_owner(
  p_owner_id uuid
) returns bytea
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_owner_id int;
begin
  select o.owner_id into v_owner_id from posthorn.owners o where o.id = p_owner_id and o.deleted_at is null;
  if not found then
    perform posthorn_impl.refuse('not_found');
  end if;
  return int4send(v_owner_id) || decode(posthorn_impl.sign_proof('ticket|' || v_owner_id), 'hex');
end $$;
comment on function ops.act_as_owner(uuid) is 'A ticket that lets the person at the server act as an owner in this transaction: pass it as p_credential.';

-- owned by the prover, the one role that may see which owners there are
create function ops.list_owners() returns table (
  id uuid,
  label text,
  created_at timestamptz
)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  select o.id, o.label, o.created_at from posthorn.owners o where o.deleted_at is null order by o.owner_id
$$;
comment on function ops.list_owners() is 'Every owner of this server.';

grant execute on function posthorn_impl.prove(bytea[]), posthorn_impl.proved_owners(), posthorn_impl.admit_owners(int[]), posthorn_impl.sign_proof(text) to posthorn_engine;
grant execute on function ops.act_as_owner(uuid), ops.list_owners() to posthorn_admin;

set local role posthorn_engine;

create function posthorn_impl.identify(
  p_credentials bytea[],
  p_agents uuid[],
  p_scope text,
  p_binds boolean default true
) returns setof posthorn_impl.identity
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
declare
  -- a statement of its own: policies of the next one must find the proof made
  v_proven posthorn_impl.proven[] := array(select p from posthorn_impl.prove(p_credentials) p);
begin
  if p_binds and exists (select from unnest(v_proven) p where p.kind = 'oauth' and p.bound_agent_id is null) then
    v_proven := posthorn_impl.bind_agents(v_proven, p_scope);
  end if;
  return query
  -- a step of its own, since the joins below can use an index only by plain columns
  with caller as materialized (
    select u.item::int, p.owner_id, p.connection_id, p.kind, p.scopes, p.bound_agent_id, coalesce(u.agent_id, p.bound_agent_id) as agent_id
      from unnest(p_credentials, p_agents) with ordinality u(credential, agent_id, item)
      left join unnest(v_proven) p on p.item = u.item
  )
  select c.item, c.owner_id, c.connection_id, c.kind, a.agent_id,
         case
           when c.owner_id is null then 'unauthorized'
           when o.suspended_at is not null then 'owner_suspended'
           when not p_scope = any (c.scopes) then 'scope_required'
           when c.agent_id is null then 'agent_required'
           when a.agent_id is null then 'not_found'
           when a.revoked_at is not null then 'agent_revoked'
         end
    from caller c
    left join posthorn.owners o on o.owner_id = c.owner_id
    left join posthorn.agents a
           on a.owner_id = c.owner_id
          and a.agent_id = c.agent_id
          and case when c.bound_agent_id is null then a.connection_id = c.connection_id else a.agent_id = c.bound_agent_id end;
end $$;
comment on function posthorn_impl.identify(bytea[], uuid[], text, boolean) is 'Who each call of a batch is: owner, connection and agent, or the problem. Agents may be null where the connection acts as exactly one; a grant''s is made here unless p_binds says no.';

create function posthorn_impl.identify_agent(
  p_credential bytea,
  p_agent_id uuid
) returns posthorn_impl.identity
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_identity posthorn_impl.identity;
begin
  select i.* into v_identity from posthorn_impl.identify(array[p_credential], array[p_agent_id], 'messaging') i;
  if v_identity.problem is not null then
    perform posthorn_impl.refuse(v_identity.problem);
  end if;
  return v_identity;
end $$;
comment on function posthorn_impl.identify_agent(bytea, uuid) is 'The agent of one call; raises unauthorized, owner_suspended, scope_required, agent_required, not_found or agent_revoked.';

create function posthorn_impl.require_live_caller(
  p_caller posthorn_impl.identity,
  p_now timestamptz
) returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  if not exists (
    select from posthorn.connections c
     where c.owner_id = p_caller.owner_id and c.connection_id = p_caller.connection_id and c.revoked_at is null and c.expires_at > p_now
  ) then
    perform posthorn_impl.refuse('unauthorized');
  end if;
  if exists (select from posthorn.agents a where a.owner_id = p_caller.owner_id and a.agent_id = p_caller.agent_id and a.revoked_at is not null) then
    perform posthorn_impl.refuse('agent_revoked');
  end if;
end $$;
comment on function posthorn_impl.require_live_caller(posthorn_impl.identity, timestamptz) is 'Asks again, under the locks that a call waited for, whether its caller was revoked meanwhile; raises unauthorized, agent_revoked.';

create function posthorn_impl.identify_connection(
  p_credential bytea
) returns posthorn_impl.proven
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_proven posthorn_impl.proven;
begin
  select p.* into v_proven from posthorn_impl.prove(array[p_credential]) p;
  if not found then
    perform posthorn_impl.refuse('unauthorized');
  end if;
  if exists (select from posthorn.owners o where o.owner_id = v_proven.owner_id and o.suspended_at is not null) then
    perform posthorn_impl.refuse('owner_suspended');
  end if;
  return v_proven;
end $$;
comment on function posthorn_impl.identify_connection(bytea) is 'The connection of one call; raises unauthorized or owner_suspended.';

create function posthorn_impl.identify_owner(
  p_credential bytea
) returns posthorn_impl.proven
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_proven posthorn_impl.proven;
begin
  select p.* into v_proven from posthorn_impl.prove(array[p_credential]) p;
  if not found then
    perform posthorn_impl.refuse('unauthorized');
  end if;
  if not v_proven.scopes @> array['owner'] then
    perform posthorn_impl.refuse('person_required');
  end if;
  return v_proven;
end $$;
comment on function posthorn_impl.identify_owner(bytea) is 'The owner of one call, by session or ticket; raises unauthorized or person_required.';

create function posthorn_api.authenticate(
  p_credential bytea
) returns table (
  owner_id uuid,
  connection_id uuid,
  kind text,
  scopes text[]
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_proven posthorn_impl.proven := posthorn_impl.identify_connection(p_credential);
begin
  return query select o.id, v_proven.connection_id, v_proven.kind, v_proven.scopes from posthorn.owners o where o.owner_id = v_proven.owner_id;
end $$;
comment on function posthorn_api.authenticate(bytea) is 'Which connection a credential is; raises unauthorized or owner_suspended. For doors that must answer before an operation runs.';
grant execute on function posthorn_api.authenticate(bytea) to posthorn_app;
