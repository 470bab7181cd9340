-- What OAuth clients hold, and what it proves. The library that speaks OAuth to them runs in the pods; who may make
-- which token is decided here: the grant by the owner's session, each token by the one before it.
set local role posthorn_owner;
drop policy if exists select_presented on posthorn.grant_tokens;
create policy select_presented on posthorn.grant_tokens for select to posthorn_prover
  using (token_hash = any ((select current_setting('posthorn.presented', true))::bytea[]));
grant select (owner_id, token_hash, connection_id, kind, connection_kind, scopes, agent_id, consumed_at, expires_at) on posthorn.grant_tokens to posthorn_prover;
grant select, insert, delete on posthorn.grant_tokens to posthorn_engine;
grant update (agent_id, consumed_at, successor_hash, expires_at) on posthorn.grant_tokens to posthorn_engine;
grant select, insert, update (agent_id) on posthorn.oauth_grants to posthorn_engine;
grant select, insert, delete, update (payload, uid_hash, user_code_hash, consumed_at, expires_at) on posthorn.oauth_records to posthorn_engine;
grant select, insert on posthorn.server_secrets to posthorn_engine;
grant select, update (ring_key_id, sealed) on posthorn.server_secrets to posthorn_admin;

set local role posthorn_prover;

create function posthorn_impl.prove_grant_token(
  p_token_hash bytea
) returns table (
  owner_id int,
  connection_id uuid,
  kind text,
  connection_kind text,
  consumed_at timestamptz,
  expires_at timestamptz
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_token posthorn.grant_tokens;
begin
  perform set_config('posthorn.presented', array[p_token_hash]::text, true);
  select t.owner_id, t.connection_id, t.kind, t.connection_kind, t.consumed_at, t.expires_at
    into v_token.owner_id, v_token.connection_id, v_token.kind, v_token.connection_kind, v_token.consumed_at, v_token.expires_at
    from posthorn.grant_tokens t
    join posthorn.owners o on o.owner_id = t.owner_id and o.deleted_at is null
   where t.token_hash = p_token_hash;
  perform set_config('posthorn.presented', '{}', true);
  perform posthorn_impl.admit_owners(array_remove(array[v_token.owner_id], null));
  if v_token.owner_id is not null then
    return query select v_token.owner_id, v_token.connection_id, v_token.kind, v_token.connection_kind, v_token.consumed_at, v_token.expires_at;
  end if;
end $$;
comment on function posthorn_impl.prove_grant_token(bytea) is 'Turns a code or token into its owner and grant, whom this transaction may then see, also after it was used or has expired; no row for an unknown one. [nullable: consumed_at]';
grant execute on function posthorn_impl.prove_grant_token(bytea) to posthorn_engine;

set local role posthorn_engine;

create function posthorn_impl.move_reach_of_grants(
  p_owner_id int,
  p_agent_id uuid
) returns void
language sql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
  update posthorn.agents a
     set reachable_until = (
           select coalesce(max(least(c.expires_at, coalesce(c.revoked_at, 'infinity'))), a.created_at)
             from posthorn.oauth_grants g
             join posthorn.connections c on c.owner_id = p_owner_id and c.connection_id = g.connection_id
            where g.owner_id = p_owner_id
              and g.agent_id = p_agent_id)
   where a.owner_id = p_owner_id
     and a.agent_id = p_agent_id
$$;
comment on function posthorn_impl.move_reach_of_grants(int, uuid) is 'Keeps agents.reachable_until with the last end of the grants that act as the agent.';

create function posthorn_impl.set_grant_agent(
  p_owner_id int,
  p_connection_id uuid,
  p_agent_id uuid
) returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  update posthorn.oauth_grants g set agent_id = p_agent_id where g.owner_id = p_owner_id and g.connection_id = p_connection_id;
  update posthorn.grant_tokens t set agent_id = p_agent_id where t.owner_id = p_owner_id and t.connection_id = p_connection_id and t.kind = 'access';
  perform posthorn_impl.move_reach_of_grants(p_owner_id, p_agent_id);
end $$;
comment on function posthorn_impl.set_grant_agent(int, uuid, uuid) is 'Says which agent a grant acts as. Under the owner''s lock.';

create function posthorn_impl.insert_client_agent(
  p_actor posthorn_impl.proven,
  p_connection_id uuid,
  p_label text,
  p_now timestamptz
) returns uuid
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_id uuid;
begin
  if (select count(*) from posthorn.agents a where a.owner_id = p_actor.owner_id and a.revoked_at is null) >= posthorn_impl.limit_value('agents_per_owner') then
    return null;
  end if;
  insert into posthorn.agents (owner_id, connection_id, installation, origin_kind, label, runtime, client_id, reachable_until, created_at)
  select p_actor.owner_id, p_connection_id, 'oauth', 'oauth', p_label, 'other', g.client_id, p_now, p_now
    from posthorn.oauth_grants g
   where g.owner_id = p_actor.owner_id
     and g.connection_id = p_connection_id
  returning agent_id into v_id;
  insert into posthorn.mailboxes (owner_id, agent_id) values (p_actor.owner_id, v_id);
  perform posthorn_impl.record_act(p_actor, 'agent.register', v_id, p_now, v_id);
  return v_id;
end $$;
comment on function posthorn_impl.insert_client_agent(posthorn_impl.proven, uuid, text, timestamptz) is 'Makes an agent for the client of a grant; null where the owner has as many as may be.';

create function posthorn_impl.bind_agent(
  p_caller posthorn_impl.proven
) returns uuid
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_grant posthorn.oauth_grants;
  v_agent_id uuid;
begin
  perform 1 from posthorn.owners o where o.owner_id = p_caller.owner_id and o.deleted_at is null for no key update;
  select g.* into v_grant from posthorn.oauth_grants g where g.owner_id = p_caller.owner_id and g.connection_id = p_caller.connection_id;
  if v_grant.agent_id is not null or v_grant.connection_id is null then
    return v_grant.agent_id; -- another call was first
  end if;
  select a.agent_id into v_agent_id
    from posthorn.agents a
   where a.owner_id = p_caller.owner_id
     and a.client_id = v_grant.client_id
   order by a.created_at, a.agent_id
   limit 1;
  if v_agent_id is null then
    v_agent_id := posthorn_impl.insert_client_agent(
      p_caller, p_caller.connection_id,
      (select c.label from posthorn.connections c where c.owner_id = p_caller.owner_id and c.connection_id = p_caller.connection_id), posthorn_impl.clock());
  end if;
  if v_agent_id is not null then
    perform posthorn_impl.set_grant_agent(p_caller.owner_id, p_caller.connection_id, v_agent_id);
  end if;
  return v_agent_id;
end $$;
comment on function posthorn_impl.bind_agent(posthorn_impl.proven) is 'The agent that a grant acts as, made now if there is none yet: the one of its client. Null where the owner has as many agents as may be.';

create function posthorn_impl.bind_agents(
  p_proven posthorn_impl.proven[],
  p_scope text
) returns posthorn_impl.proven[]
language sql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
  select array(
    select row(p.item, p.owner_id, p.connection_id, p.kind, p.scopes,
               case when p.kind = 'oauth' and p.bound_agent_id is null and p_scope = any (p.scopes)
                    then posthorn_impl.bind_agent(row(p.item, p.owner_id, p.connection_id, p.kind, p.scopes, null)::posthorn_impl.proven)
                    else p.bound_agent_id end)::posthorn_impl.proven
      from (select u.* from unnest(p_proven) u order by u.owner_id, u.connection_id offset 0) p) -- owners are locked in order
$$;
comment on function posthorn_impl.bind_agents(posthorn_impl.proven[], text) is 'The same callers, each grant among them with the agent that it acts as.';

create function posthorn_api.create_oauth_grant(
  p_credential bytea,
  p_kind text,
  p_label text,
  p_client_id text,
  p_client_host text,
  p_scopes text[],
  p_agent_id uuid default null,
  p_new_agent_label text default null
) returns uuid
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_actor posthorn_impl.proven := posthorn_impl.identify_owner(p_credential);
  v_now timestamptz;
  v_id uuid;
  v_agent_id uuid;
begin
  if p_kind not in ('oauth', 'device') then
    perform posthorn_impl.refuse('invalid_request', '{"fields": ["kind"]}');
  end if;
  perform posthorn_impl.lock_owner(v_actor.owner_id);
  v_now := posthorn_impl.clock();
  if p_agent_id is not null and not exists (
    select from posthorn.agents a where a.owner_id = v_actor.owner_id and a.agent_id = p_agent_id and a.client_id = p_client_id
  ) then
    perform posthorn_impl.refuse('not_found');
  end if;
  -- A credential that nobody holds: it is its tokens that are presented. It ends at once unless the client fetches one.
  v_id := posthorn_impl.insert_connection(
    v_actor, p_kind, p_label, p_scopes, sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())), v_now + interval '10 minutes');
  insert into posthorn.oauth_grants (owner_id, connection_id, client_id, client_host) values (v_actor.owner_id, v_id, p_client_id, p_client_host);
  if p_kind = 'oauth' then
    if p_new_agent_label is not null then
      v_agent_id := posthorn_impl.insert_client_agent(v_actor, v_id, p_new_agent_label, v_now);
      if v_agent_id is null then
        perform posthorn_impl.refuse('limit_reached', '{"limit": "agents_per_owner"}');
      end if;
    else
      -- by default the one that the client had before, if it had one
      v_agent_id := coalesce(p_agent_id, (
        select a.agent_id from posthorn.agents a where a.owner_id = v_actor.owner_id and a.client_id = p_client_id order by a.created_at, a.agent_id limit 1));
    end if;
    if v_agent_id is not null then
      perform posthorn_impl.set_grant_agent(v_actor.owner_id, v_id, v_agent_id);
    end if;
  end if;
  -- a registered client that was consented to stays
  update posthorn.oauth_records r set expires_at = 'infinity' where r.model = 'Client' and r.id_hash = sha256(convert_to(p_client_id, 'UTF8'));
  return v_id;
end $$;
comment on function posthorn_api.create_oauth_grant(bytea, text, text, text, text, text[], uuid, text) is 'The owner''s consent: a connection that a client''s tokens act as, and with it as one agent: a chosen one of the client, a new one, or by default the client''s first. Raises not_found, limit_reached.';

create function posthorn_api.list_client_agents(
  p_credential bytea,
  p_client_id text
) returns table (
  agent_id uuid,
  label text
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_actor posthorn_impl.proven := posthorn_impl.identify_owner(p_credential);
begin
  return query
  select a.agent_id, a.label from posthorn.agents a
   where a.owner_id = v_actor.owner_id and a.client_id = p_client_id
   order by a.created_at, a.agent_id
   limit 50;
end $$;
comment on function posthorn_api.list_client_agents(bytea, text) is 'The agents that a client has with this owner, the first of which its grants act as by default.';

create function posthorn_api.add_grant_token(
  p_proof bytea,
  p_connection_id uuid,
  p_kind text,
  p_token_hash bytea,
  p_payload bytea,
  p_scopes text[],
  p_seconds int
) returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz := posthorn_impl.clock();
  v_end timestamptz := v_now + make_interval(secs => p_seconds);
  v_owner_id int;
  v_proof record;
  v_connection posthorn.connections;
begin
  if p_kind in ('grant', 'code', 'device_code') then
    v_owner_id := (posthorn_impl.identify_owner(p_proof)).owner_id;
  else
    select t.* into v_proof from posthorn_impl.prove_grant_token(p_proof) t;
    if v_proof.owner_id is null
       or v_proof.connection_id <> p_connection_id
       or v_proof.kind not in ('code', 'device_code', 'refresh')
       or v_proof.expires_at <= v_now
       or v_proof.consumed_at <= v_now - interval '60 seconds' then
      perform posthorn_impl.refuse('unauthorized');
    end if;
    v_owner_id := v_proof.owner_id;
  end if;
  -- the lock of the grant: a revocation either ends this token or is seen here
  select c.* into v_connection
    from posthorn.connections c
   where c.owner_id = v_owner_id
     and c.connection_id = p_connection_id
     for no key update;
  if v_connection.connection_id is null
     or v_connection.revoked_at is not null
     or v_connection.expires_at <= v_now
     or not p_scopes <@ v_connection.scopes
     or not exists (select from posthorn.oauth_grants g where g.owner_id = v_owner_id and g.connection_id = p_connection_id) then
    perform posthorn_impl.refuse('unauthorized');
  end if;
  insert into posthorn.grant_tokens (owner_id, token_hash, connection_id, kind, connection_kind, scopes, agent_id, payload, created_at, expires_at)
  select v_owner_id, p_token_hash, p_connection_id, p_kind, v_connection.kind, p_scopes, case p_kind when 'access' then g.agent_id end, p_payload, v_now, v_end
    from posthorn.oauth_grants g
   where g.owner_id = v_owner_id
     and g.connection_id = p_connection_id
  on conflict (token_hash) do nothing; -- the same successor, given a second time
  if p_kind in ('refresh', 'access') and v_end > v_connection.expires_at then
    update posthorn.connections c set expires_at = v_end where c.owner_id = v_owner_id and c.connection_id = p_connection_id;
  end if;
end $$;
comment on function posthorn_api.add_grant_token(bytea, uuid, text, bytea, bytea, text[], int) is 'Stores what a client is given of a grant. A code is proved by the owner''s session; refresh and access tokens by the code or refresh token that the client presented. Raises unauthorized.';

create function posthorn_api.find_grant_token(
  p_kind text,
  p_token_hash bytea
) returns table (
  payload bytea,
  is_consumed boolean
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_now timestamptz := posthorn_impl.clock();
  v_owner_id int := (select t.owner_id from posthorn_impl.prove_grant_token(p_token_hash) t);
begin
  return query
  select t.payload,
         -- a refresh token that was used just now is not used up: processes of one agent share it, and each asks
         t.consumed_at is not null and (t.kind <> 'refresh' or t.consumed_at <= v_now - interval '60 seconds')
    from posthorn.grant_tokens t
   where t.owner_id = v_owner_id
     and t.token_hash = p_token_hash
     and t.kind = p_kind
     and t.expires_at > v_now;
end $$;
comment on function posthorn_api.find_grant_token(text, bytea) is 'A code or token by its hash, while it lives, and whether it was used up.';

create function posthorn_api.consume_grant_token(
  p_token_hash bytea,
  p_successor_hash bytea default null
) returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz := posthorn_impl.clock();
  v_owner_id int := (select t.owner_id from posthorn_impl.prove_grant_token(p_token_hash) t);
begin
  update posthorn.grant_tokens t
     set consumed_at = v_now,
         successor_hash = p_successor_hash
   where t.owner_id = v_owner_id
     and t.token_hash = p_token_hash
     and t.kind <> 'grant' -- its hash is that of a connection's id, which many may read
     and t.consumed_at is null
     and t.expires_at > v_now;
  return found or exists (
    select from posthorn.grant_tokens t
     where t.owner_id = v_owner_id
       and t.token_hash = p_token_hash
       and t.kind = 'refresh'
       and t.successor_hash = p_successor_hash
       and t.consumed_at > v_now - interval '60 seconds');
end $$;
comment on function posthorn_api.consume_grant_token(bytea, bytea) is 'Uses a code or refresh token up: true for one caller of many. A refresh token may be used again for 60 seconds, for the same successor.';

create function posthorn_api.end_grant_token(
  p_token_hash bytea
) returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz := posthorn_impl.clock();
  v_owner_id int := (select t.owner_id from posthorn_impl.prove_grant_token(p_token_hash) t);
begin
  update posthorn.grant_tokens t
     set expires_at = v_now
   where t.owner_id = v_owner_id
     and t.token_hash = p_token_hash
     and t.kind <> 'grant' -- as above
     and t.expires_at > v_now;
end $$;
comment on function posthorn_api.end_grant_token(bytea) is 'Ends one code or token; it is still known as one that was.';

create function posthorn_api.revoke_oauth_grant(
  p_proof bytea,
  p_connection_id uuid
) returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_proof record;
begin
  select t.* into v_proof from posthorn_impl.prove_grant_token(p_proof) t;
  if v_proof.owner_id is null or v_proof.connection_id <> p_connection_id or v_proof.kind = 'grant' then
    perform posthorn_impl.refuse('unauthorized');
  end if;
  perform posthorn_impl.end_connection(row(1, v_proof.owner_id, p_connection_id, v_proof.connection_kind, null, null)::posthorn_impl.proven, p_connection_id);
end $$;
comment on function posthorn_api.revoke_oauth_grant(bytea, uuid) is 'A client that holds, or held, a token of a grant ends it; so does a code or token that is used twice. Raises unauthorized.';

-- Requests under way and registered clients: nobody's yet, so that they stand in no owner's rows.

create function posthorn_api.put_oauth_record(
  p_model text,
  p_id_hash bytea,
  p_payload bytea,
  p_seconds int,
  p_uid_hash bytea default null,
  p_user_code_hash bytea default null
) returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz := posthorn_impl.clock();
  v_end timestamptz := case p_model when 'Client' then v_now + interval '24 hours' else v_now + make_interval(secs => p_seconds) end;
begin
  if p_model = 'Client' then
    -- what another registration removes already is left to it: to wait for each other in different orders is a deadlock
    delete from posthorn.oauth_records r
     where r.model = 'Client'
       and r.id_hash = any (array(
         select x.id_hash
           from posthorn.oauth_records x
          where x.model = 'Client'
            and x.expires_at < 'infinity'
            and x.id_hash in (
              select o.id_hash
                from posthorn.oauth_records o
               where o.model = 'Client' and o.expires_at < 'infinity'
               order by o.created_at desc
              offset posthorn_impl.limit_value('unused_oauth_clients') - 1)
            for update skip locked));
  end if;
  insert into posthorn.oauth_records as r (model, id_hash, payload, uid_hash, user_code_hash, created_at, expires_at)
  values (p_model, p_id_hash, p_payload, p_uid_hash, p_user_code_hash, v_now, v_end)
  on conflict (model, id_hash) do update
     set payload = excluded.payload,
         uid_hash = excluded.uid_hash,
         user_code_hash = excluded.user_code_hash,
         expires_at = case r.model when 'Client' then r.expires_at else excluded.expires_at end;
end $$;
comment on function posthorn_api.put_oauth_record(text, bytea, bytea, int, bytea, bytea) is 'Stores a registered client, for 24 hours unless an owner consents to it, or a request under way.';

create function posthorn_api.find_oauth_record(
  p_model text,
  p_id_hash bytea default null,
  p_uid_hash bytea default null,
  p_user_code_hash bytea default null
) returns table (
  payload bytea,
  consumed_at timestamptz
)
language sql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
  select r.payload, r.consumed_at
    from posthorn.oauth_records r
   where r.model = p_model
     and case when p_id_hash is not null then r.id_hash = p_id_hash
              when p_uid_hash is not null then r.uid_hash = p_uid_hash
              else r.user_code_hash = p_user_code_hash end
     and r.expires_at > posthorn_impl.clock()
$$;
comment on function posthorn_api.find_oauth_record(text, bytea, bytea, bytea) is 'A record by one of its hashes, while it lives. [nullable: consumed_at]';

create function posthorn_api.consume_oauth_record(
  p_model text,
  p_id_hash bytea
) returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  update posthorn.oauth_records r
     set consumed_at = posthorn_impl.clock()
   where r.model = p_model
     and r.id_hash = p_id_hash
     and r.consumed_at is null;
  return found;
end $$;
comment on function posthorn_api.consume_oauth_record(text, bytea) is 'Uses a record up: true for one caller of many.';

create function posthorn_api.delete_oauth_record(
  p_model text,
  p_id_hash bytea
) returns void
language sql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
  delete from posthorn.oauth_records r where r.model = p_model and r.id_hash = p_id_hash
$$;
comment on function posthorn_api.delete_oauth_record(text, bytea) is 'Removes a record.';

create function posthorn_api.count_oauth_attempt(
  p_act text,
  p_bucket int
) returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz := posthorn_impl.clock();
  v_limit bigint := posthorn_impl.limit_value(case p_act when 'register_client' then 'registrations_per_hour' else 'authorizations_per_hour' end);
begin
  if not posthorn_impl.may_attempt(p_act, p_bucket, v_limit, v_now) then
    return false;
  end if;
  perform posthorn_impl.count_attempt(p_act, p_bucket, interval '1 hour', v_now);
  return true;
end $$;
comment on function posthorn_api.count_oauth_attempt(text, int) is 'Whether an address may register a client, or ask for an authorization, once more this hour; counts it.';

create function posthorn_api.server_secret() returns table (
  ring_key_id text,
  sealed bytea
)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  select s.ring_key_id, s.sealed from posthorn.server_secrets s
$$;
comment on function posthorn_api.server_secret() is 'The authorization server''s secrets, sealed under a key of the ring; no row before the first pod has made them.';

create function posthorn_api.keep_server_secret(
  p_ring_key_id text,
  p_sealed bytea
) returns void
language sql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
  insert into posthorn.server_secrets (ring_key_id, sealed) values (p_ring_key_id, p_sealed) on conflict do nothing
$$;
comment on function posthorn_api.keep_server_secret(text, bytea) is 'Keeps the secrets that a pod has made, unless another pod was first.';

grant execute on function
  posthorn_api.create_oauth_grant(bytea, text, text, text, text, text[], uuid, text), posthorn_api.list_client_agents(bytea, text),
  posthorn_api.add_grant_token(bytea, uuid, text, bytea, bytea, text[], int), posthorn_api.find_grant_token(text, bytea),
  posthorn_api.consume_grant_token(bytea, bytea), posthorn_api.end_grant_token(bytea), posthorn_api.revoke_oauth_grant(bytea, uuid),
  posthorn_api.put_oauth_record(text, bytea, bytea, int, bytea, bytea), posthorn_api.find_oauth_record(text, bytea, bytea, bytea),
  posthorn_api.consume_oauth_record(text, bytea), posthorn_api.delete_oauth_record(text, bytea), posthorn_api.count_oauth_attempt(text, int),
  posthorn_api.server_secret(), posthorn_api.keep_server_secret(text, bytea) to posthorn_app;

-- What workers remove: what has ended is worth nothing, swept or not.
create function posthorn_impl.delete_expired_records(
  p_limit int
) returns int
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_deleted int;
  v_more int;
begin
  delete from posthorn.oauth_records r
   where r.ctid = any (array(select o.ctid from posthorn.oauth_records o where o.expires_at <= posthorn_impl.clock() limit p_limit));
  get diagnostics v_deleted = row_count;
  delete from posthorn.challenges c
   where c.ctid = any (array(select o.ctid from posthorn.challenges o where o.expires_at <= posthorn_impl.clock() limit p_limit));
  get diagnostics v_more = row_count;
  return v_deleted + v_more;
end $$;
comment on function posthorn_impl.delete_expired_records(int) is 'Removes up to p_limit records of the authorization server, and up to p_limit challenges, that have ended; answers how many.';

set local role posthorn_owner;
do $$
declare
  v_table text;
begin
  foreach v_table in array array['grant_tokens', 'sign_in_links'] loop
    execute format('drop policy if exists select_outdated on posthorn.%I', v_table);
    execute format('drop policy if exists delete_outdated on posthorn.%I', v_table);
    execute format('create policy select_outdated on posthorn.%I for select to posthorn_jobs using (expires_at <= (select posthorn_impl.clock()))', v_table);
    execute format('create policy delete_outdated on posthorn.%I for delete to posthorn_jobs using (expires_at <= (select posthorn_impl.clock()))', v_table);
    execute format('grant delete, select (owner_id, expires_at, ctid) on posthorn.%I to posthorn_jobs', v_table);
  end loop;
end $$;

set local role posthorn_engine;
create function posthorn_api.delete_expired_credentials(
  p_limit int
) returns int
language plpgsql
volatile
security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  v_deleted int := posthorn_impl.delete_expired_records(p_limit);
  v_more int;
begin
  delete from posthorn.grant_tokens t where t.ctid = any (array(select x.ctid from posthorn.grant_tokens x where x.expires_at <= posthorn_impl.clock() limit p_limit));
  get diagnostics v_more = row_count;
  v_deleted := v_deleted + v_more;
  delete from posthorn.sign_in_links l where l.ctid = any (array(select x.ctid from posthorn.sign_in_links x where x.expires_at <= posthorn_impl.clock() limit p_limit));
  get diagnostics v_more = row_count;
  return v_deleted + v_more;
end $$;
comment on function posthorn_api.delete_expired_credentials(int) is 'Removes tokens, links and records of requests that have ended, up to p_limit of each; answers how many.';
grant execute on function posthorn_impl.delete_expired_records(int), posthorn_api.delete_expired_credentials(int) to posthorn_jobs;
