-- How the owner gets into the web app: a one-time link makes a session, which is a connection like any other and whose
-- credential stands in a cookie. Passkeys (46) and the OpenID provider (47) make the same.
set local role posthorn_owner;
drop policy if exists select_presented on posthorn.sign_in_links;
create policy select_presented on posthorn.sign_in_links for select to posthorn_prover
  using (link_hash = any ((select current_setting('posthorn.presented', true))::bytea[]));
grant select (owner_id, link_hash, expires_at) on posthorn.sign_in_links to posthorn_prover;
grant select, insert, delete on posthorn.sign_in_links to posthorn_engine;
grant select, insert, update (attempts, counted_until) on posthorn.attempts to posthorn_engine;

set local role posthorn_prover;

create function posthorn_impl.prove_link(
  p_link_hash bytea
) returns int
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_owner_id int;
begin
  perform set_config('posthorn.presented', array[p_link_hash]::text, true);
  select l.owner_id into v_owner_id
    from posthorn.sign_in_links l
    join posthorn.owners o on o.owner_id = l.owner_id and o.deleted_at is null
   where l.link_hash = p_link_hash
     and l.expires_at > posthorn_impl.clock();
  perform set_config('posthorn.presented', '{}', true);
  perform posthorn_impl.admit_owners(array_remove(array[v_owner_id], null));
  return v_owner_id;
end $$;
comment on function posthorn_impl.prove_link(bytea) is 'Turns a one-time link that can still be used into its owner, whom this transaction may then see; null for any other.';
grant execute on function posthorn_impl.prove_link(bytea) to posthorn_engine;

set local role posthorn_engine;

create function posthorn_impl.may_attempt(
  p_act text,
  p_bucket int,
  p_limit bigint,
  p_now timestamptz
) returns boolean
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  select not exists (select from posthorn.attempts a where a.act = p_act and a.bucket = p_bucket and a.attempts >= p_limit and a.counted_until > p_now)
$$;
comment on function posthorn_impl.may_attempt(text, int, bigint, timestamptz) is 'Whether an address may try something once more.';

create function posthorn_impl.count_attempt(
  p_act text,
  p_bucket int,
  p_per interval,
  p_now timestamptz
) returns void
language sql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
  insert into posthorn.attempts as a (act, bucket, attempts, counted_until)
  values (p_act, p_bucket, 1, p_now + p_per)
  on conflict (act, bucket) do update
     set attempts = case when a.counted_until <= p_now then 1 else a.attempts + 1 end,
         counted_until = case when a.counted_until <= p_now then excluded.counted_until else a.counted_until end
$$;
comment on function posthorn_impl.count_attempt(text, int, interval, timestamptz) is 'Counts one attempt of an address, in a window that begins with its first.';

create function posthorn_impl.may_sign_in(
  p_bucket int,
  p_now timestamptz
) returns boolean
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  select posthorn_impl.may_attempt('sign_in', p_bucket, posthorn_impl.limit_value('failed_sign_ins'), p_now)
$$;
comment on function posthorn_impl.may_sign_in(int, timestamptz) is 'Whether an address may try to sign in once more, in whatever way.';

create function posthorn_impl.count_failed_sign_in(
  p_bucket int,
  p_now timestamptz
) returns void
language sql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
  select posthorn_impl.count_attempt('sign_in', p_bucket, interval '15 minutes', p_now)
$$;
comment on function posthorn_impl.count_failed_sign_in(int, timestamptz) is 'Counts a sign-in that failed, in whatever way.';

create function ops.create_sign_in_link(
  p_credential bytea,
  p_link_hash bytea
) returns timestamptz
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_actor posthorn_impl.proven := posthorn_impl.identify_owner(p_credential);
  v_now timestamptz := posthorn_impl.clock();
  v_id uuid;
begin
  delete from posthorn.sign_in_links l where l.owner_id = v_actor.owner_id and l.expires_at <= v_now;
  insert into posthorn.sign_in_links (owner_id, link_hash, created_at, expires_at)
  values (v_actor.owner_id, p_link_hash, v_now, v_now + interval '15 minutes')
  returning link_id into v_id;
  perform posthorn_impl.record_act(v_actor, 'link.create', v_id, v_now);
  return v_now + interval '15 minutes';
end $$;
comment on function ops.create_sign_in_link(bytea, bytea) is 'A link, by the hash of its secret, that signs in whoever uses it first within 15 minutes; answers when it ends.';
grant execute on function ops.create_sign_in_link(bytea, bytea) to posthorn_admin;

create function posthorn_impl.start_session(
  p_owner_id int,
  p_session_hash bytea,
  p_label text,
  p_replaces bytea,
  p_now timestamptz
) returns posthorn_impl.proven
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_actor posthorn_impl.proven := row(1, p_owner_id, null, 'session', array['owner'], null);
begin
  -- what this browser was signed in with before ends here, and so do the oldest sessions beyond the limit
  perform posthorn_impl.end_sessions(v_actor, array(
    select c.connection_id from posthorn.connections c where c.owner_id = p_owner_id and c.credential_hash = p_replaces and c.kind = 'session'
    union
    (select c.connection_id
       from posthorn.connections c
      where c.owner_id = p_owner_id and c.kind = 'session' and c.revoked_at is null and c.expires_at > p_now
      order by c.created_at desc, c.connection_id desc
     offset posthorn_impl.limit_value('sessions_per_owner') - 1)), p_now);
  v_actor.connection_id := posthorn_impl.insert_connection(v_actor, 'session', p_label, array['owner'], p_session_hash, p_now + interval '30 days');
  return v_actor;
end $$;
comment on function posthorn_impl.start_session(int, bytea, text, bytea, timestamptz) is 'Signs a browser in as an owner who has proved it, under the owner''s lock; answers the session as who acts.';

create function posthorn_api.use_sign_in_link(
  p_link_hash bytea,
  p_session_hash bytea,
  p_label text,
  p_bucket int,
  p_replaces bytea default null
) returns text
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz := posthorn_impl.clock();
  v_owner_id int;
  v_actor posthorn_impl.proven;
  v_used uuid;
begin
  if not posthorn_impl.may_sign_in(p_bucket, v_now) then
    return 'rate_limited';
  end if;
  v_owner_id := posthorn_impl.prove_link(p_link_hash);
  if v_owner_id is not null then
    perform posthorn_impl.lock_owner(v_owner_id);
    v_now := posthorn_impl.clock();
    delete from posthorn.sign_in_links l
     where l.owner_id = v_owner_id
       and l.link_hash = p_link_hash
       and l.expires_at > v_now
    returning l.link_id into v_used; -- of two at once the second finds nothing
  end if;
  if v_used is null then
    perform posthorn_impl.count_failed_sign_in(p_bucket, v_now);
    return 'not_found';
  end if;
  v_actor := posthorn_impl.start_session(v_owner_id, p_session_hash, p_label, p_replaces, v_now);
  perform posthorn_impl.record_act(v_actor, 'link.use', v_used, v_now);
  return 'signed_in';
end $$;
comment on function posthorn_api.use_sign_in_link(bytea, bytea, text, int, bytea) is 'Makes a session of a one-time link, which is used up: signed_in. Otherwise not_found, and after too many of those from one bucket of addresses rate_limited.';

create function posthorn_impl.end_sessions(
  p_actor posthorn_impl.proven,
  p_connection_ids uuid[],
  p_now timestamptz
) returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_ended uuid[];
begin
  with ended as (
    update posthorn.connections c
       set revoked_at = p_now
     where c.owner_id = p_actor.owner_id
       and c.connection_id = any (p_connection_ids)
       and c.kind = 'session'
       and c.revoked_at is null
    returning c.connection_id
  )
  select array_agg(e.connection_id) into v_ended from ended e;
  perform posthorn_impl.end_pushes(p_actor.owner_id, v_ended);
  perform posthorn_impl.record_act(p_actor, 'connection.revoke', e, p_now) from unnest(v_ended) e;
  if v_ended is not null then
    perform posthorn_impl.wake_owner(p_actor.owner_id); -- their streams end
  end if;
end $$;
comment on function posthorn_impl.end_sessions(posthorn_impl.proven, uuid[], timestamptz) is 'Signs browsers out for good.';

create function posthorn_api.sign_out(
  p_credential bytea,
  p_everywhere boolean
) returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_actor posthorn_impl.proven := posthorn_impl.identify_owner(p_credential);
begin
  perform posthorn_impl.lock_owner(v_actor.owner_id);
  perform posthorn_impl.end_sessions(v_actor, array(
    select c.connection_id
      from posthorn.connections c
     where c.owner_id = v_actor.owner_id and c.kind = 'session' and (p_everywhere or c.connection_id = v_actor.connection_id)), posthorn_impl.clock());
  if p_everywhere then
    delete from posthorn.sign_in_links l where l.owner_id = v_actor.owner_id;
  end if;
end $$;
comment on function posthorn_api.sign_out(bytea, boolean) is 'Ends the session of the call, or every session of the owner and every link that could make one.';

create function posthorn_api.session_owner(
  p_credential bytea
) returns table (
  owner_id uuid,
  connection_id uuid,
  label text
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_actor posthorn_impl.proven := posthorn_impl.identify_owner(p_credential);
begin
  return query select o.id, v_actor.connection_id, o.label from posthorn.owners o where o.owner_id = v_actor.owner_id;
end $$;
comment on function posthorn_api.session_owner(bytea) is 'Who is signed in; raises unauthorized or person_required. [nullable: connection_id]';

grant execute on function
  posthorn_api.use_sign_in_link(bytea, bytea, text, int, bytea), posthorn_api.session_owner(bytea) to posthorn_app;
grant execute on function posthorn_api.sign_out(bytea, boolean) to posthorn_app, posthorn_admin;
