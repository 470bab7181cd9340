-- Passkeys. The database cannot check a signature, so a pod does, and this is the line of trust: the pod is believed that
-- the signature over the challenge was good. What the pod is not believed is whose passkey it was. That is proved by the
-- user handle, 256 random bits that the authenticator alone keeps and gives out when its person has agreed; here is its
-- hash. So whoever runs SQL of their own as posthorn_app, and has seen no answer of an authenticator, becomes nobody.
set local role posthorn_owner;
drop policy if exists select_presented on posthorn.passkeys;
create policy select_presented on posthorn.passkeys for select to posthorn_prover
  using (handle_hash = any ((select current_setting('posthorn.presented', true))::bytea[]));
grant select (owner_id, handle_hash, credential_id) on posthorn.passkeys to posthorn_prover;
grant select, insert, delete, update (sign_count, last_used_at) on posthorn.passkeys to posthorn_engine;
grant select, insert, delete, update (challenge_hash, handle_hash, expires_at) on posthorn.challenges to posthorn_engine;

set local role posthorn_prover;

create function posthorn_impl.prove_passkey(
  p_handle_hash bytea,
  p_credential_id bytea
) returns int
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_owner_id int;
begin
  perform set_config('posthorn.presented', array[p_handle_hash]::text, true);
  select k.owner_id into v_owner_id
    from posthorn.passkeys k
    join posthorn.owners o on o.owner_id = k.owner_id and o.deleted_at is null
   where k.handle_hash = p_handle_hash
     and k.credential_id = p_credential_id;
  perform set_config('posthorn.presented', '{}', true);
  perform posthorn_impl.admit_owners(array_remove(array[v_owner_id], null));
  return v_owner_id;
end $$;
comment on function posthorn_impl.prove_passkey(bytea, bytea) is 'Turns a passkey''s user handle, by hash, and its credential id into its owner, whom this transaction may then see; null for any other pair.';
grant execute on function posthorn_impl.prove_passkey(bytea, bytea) to posthorn_engine;

set local role posthorn_engine;

create type posthorn_impl.passkey_view as (
  id uuid,
  label text,
  created_at timestamptz,
  last_used_at timestamptz
);

-- Challenges, of passkeys and of the OpenID provider.

create function posthorn_impl.make_challenge(
  p_purpose text,
  p_bound_to bytea,
  p_challenge_hash bytea,
  p_lifetime interval,
  p_handle_hash bytea default null
) returns void
language sql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
  insert into posthorn.challenges (bound_to, purpose, challenge_hash, handle_hash, expires_at)
  values (p_bound_to, p_purpose, p_challenge_hash, p_handle_hash, posthorn_impl.clock() + p_lifetime)
  on conflict (bound_to, purpose) do update
     set challenge_hash = excluded.challenge_hash,
         handle_hash = excluded.handle_hash,
         expires_at = excluded.expires_at
$$;
comment on function posthorn_impl.make_challenge(text, bytea, bytea, interval, bytea) is 'Remembers what a session or browser must come back with, in place of what it was to come back with before.';

create function posthorn_impl.take_challenge(
  p_purpose text,
  p_bound_to bytea,
  p_challenge_hash bytea
) returns posthorn.challenges
language sql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
  delete from posthorn.challenges c
   where c.bound_to = p_bound_to
     and c.purpose = p_purpose
     and c.challenge_hash = p_challenge_hash
     and c.expires_at > posthorn_impl.clock()
  returning c.*
$$;
comment on function posthorn_impl.take_challenge(text, bytea, bytea) is 'Uses up a challenge that was made for this purpose and for this session or browser, and has not ended; of two at once the second finds nothing.';

create function posthorn_api.begin_sign_in(
  p_purpose text,
  p_challenge_hash bytea,
  p_browser_hash bytea,
  p_bucket int
) returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz := posthorn_impl.clock();
begin
  if p_purpose is null or p_purpose not in ('use_passkey', 'use_openid') then
    perform posthorn_impl.refuse('invalid_request', '{"fields": ["purpose"]}');
  end if;
  if not posthorn_impl.may_attempt('begin_sign_in', p_bucket, posthorn_impl.limit_value('sign_ins_begun_per_hour'), v_now) then
    return false;
  end if;
  perform posthorn_impl.count_attempt('begin_sign_in', p_bucket, interval '1 hour', v_now);
  -- at a provider one may have to find a second factor first
  perform posthorn_impl.make_challenge(p_purpose, p_browser_hash, p_challenge_hash, case p_purpose when 'use_passkey' then interval '5 minutes' else interval '15 minutes' end);
  return true;
end $$;
comment on function posthorn_api.begin_sign_in(text, bytea, bytea, int) is 'Remembers a challenge for a browser that nobody is signed in with: 5 minutes for a passkey, 15 for the provider. False where too many come from its address.';

-- The owner's passkeys.

create function posthorn_api.begin_passkey(
  p_credential bytea,
  p_challenge_hash bytea,
  p_handle_hash bytea
) returns table (
  credential_id bytea
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
  if (select count(*) from posthorn.passkeys k where k.owner_id = v_actor.owner_id) >= posthorn_impl.limit_value('passkeys_per_owner') then
    perform posthorn_impl.refuse('limit_reached', '{"limit": "passkeys_per_owner"}');
  end if;
  perform posthorn_impl.make_challenge('add_passkey', p_credential, p_challenge_hash, interval '5 minutes', p_handle_hash);
  return query select k.credential_id from posthorn.passkeys k where k.owner_id = v_actor.owner_id order by k.passkey_id;
end $$;
comment on function posthorn_api.begin_passkey(bytea, bytea, bytea) is 'Remembers for 5 minutes what this session''s next passkey must sign, and the hash of its user handle. Answers the credentials that an authenticator should not make twice; raises limit_reached.';

create function posthorn_api.add_passkey(
  p_credential bytea,
  p_challenge_hash bytea,
  p_credential_id bytea,
  p_public_key bytea,
  p_sign_count bigint,
  p_label text
) returns posthorn_impl.passkey_view
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_actor posthorn_impl.proven := posthorn_impl.identify_owner(p_credential);
  v_challenge posthorn.challenges := posthorn_impl.take_challenge('add_passkey', p_credential, p_challenge_hash);
  v_now timestamptz;
  v_made posthorn_impl.passkey_view;
begin
  if v_challenge.handle_hash is null then
    perform posthorn_impl.refuse('expired');
  end if;
  perform posthorn_impl.lock_owner(v_actor.owner_id);
  v_now := posthorn_impl.clock();
  if (select count(*) from posthorn.passkeys k where k.owner_id = v_actor.owner_id) >= posthorn_impl.limit_value('passkeys_per_owner') then
    perform posthorn_impl.refuse('limit_reached', '{"limit": "passkeys_per_owner"}');
  end if;
  insert into posthorn.passkeys (owner_id, handle_hash, credential_id, public_key, sign_count, label, created_at)
  values (v_actor.owner_id, v_challenge.handle_hash, p_credential_id, p_public_key, p_sign_count, p_label, v_now)
  on conflict do nothing
  returning passkey_id, label, created_at, last_used_at into v_made;
  if v_made.id is null then
    perform posthorn_impl.refuse('invalid_request', '{"fields": ["passkey"]}');
  end if;
  perform posthorn_impl.record_act(v_actor, 'passkey.add', v_made.id, v_now);
  return v_made;
end $$;
comment on function posthorn_api.add_passkey(bytea, bytea, bytea, bytea, bigint, text) is 'Keeps a passkey whose first answer a pod has checked; raises expired for a challenge that this session was not given or has used, limit_reached, and invalid_request for one that is known already, to whomever. [nullable: last_used_at]';

create function posthorn_api.list_passkeys(
  p_credential bytea
) returns setof posthorn_impl.passkey_view
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_actor posthorn_impl.proven := posthorn_impl.identify_owner(p_credential);
begin
  return query
  select k.passkey_id, k.label, k.created_at, k.last_used_at
    from posthorn.passkeys k
   where k.owner_id = v_actor.owner_id
   order by k.passkey_id;
end $$;
comment on function posthorn_api.list_passkeys(bytea) is 'The owner''s passkeys, the oldest first. [nullable: last_used_at]';

create function posthorn_api.remove_passkey(
  p_credential bytea,
  p_passkey_id uuid
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
  delete from posthorn.passkeys k where k.owner_id = v_actor.owner_id and k.passkey_id = p_passkey_id;
  if not found then
    perform posthorn_impl.refuse('not_found');
  end if;
  perform posthorn_impl.record_act(v_actor, 'passkey.remove', p_passkey_id, posthorn_impl.clock());
end $$;
comment on function posthorn_api.remove_passkey(bytea, uuid) is 'Ends a passkey for good; sessions that it began go on. Raises not_found.';

-- Signing in.

create function posthorn_api.find_passkey(
  p_challenge_hash bytea,
  p_browser_hash bytea,
  p_handle_hash bytea,
  p_credential_id bytea,
  p_bucket int
) returns table (
  outcome text,
  public_key bytea
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_now timestamptz := posthorn_impl.clock();
  v_owner_id int;
begin
  if not posthorn_impl.may_sign_in(p_bucket, v_now) then
    return query select 'rate_limited', null::bytea;
    return;
  end if;
  if exists (
    select from posthorn.challenges c
     where c.bound_to = p_browser_hash and c.purpose = 'use_passkey' and c.challenge_hash = p_challenge_hash and c.expires_at > v_now
  ) then
    v_owner_id := posthorn_impl.prove_passkey(p_handle_hash, p_credential_id);
  end if;
  if v_owner_id is null then
    perform posthorn_impl.count_failed_sign_in(p_bucket, v_now);
    return query select 'not_found', null::bytea;
    return;
  end if;
  return query
  select 'found', k.public_key
    from posthorn.passkeys k
   where k.owner_id = v_owner_id
     and k.handle_hash = p_handle_hash;
end $$;
comment on function posthorn_api.find_passkey(bytea, bytea, bytea, bytea, int) is 'The public key that an answer to this browser''s challenge must be checked with: found. Otherwise not_found, and after too many of those from one bucket of addresses rate_limited. [nullable: public_key]';

create function posthorn_api.use_passkey(
  p_challenge_hash bytea,
  p_browser_hash bytea,
  p_handle_hash bytea,
  p_credential_id bytea,
  p_is_valid boolean,
  p_sign_count bigint,
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
  v_challenge posthorn.challenges;
  v_owner_id int;
  v_passkey posthorn.passkeys;
  v_is_ahead boolean;
  v_actor posthorn_impl.proven;
begin
  if not posthorn_impl.may_sign_in(p_bucket, v_now) then
    return 'rate_limited';
  end if;
  v_challenge := posthorn_impl.take_challenge('use_passkey', p_browser_hash, p_challenge_hash); -- whatever comes of it
  if v_challenge.challenge_hash is not null and p_is_valid then
    v_owner_id := posthorn_impl.prove_passkey(p_handle_hash, p_credential_id);
  end if;
  if v_owner_id is not null then
    perform posthorn_impl.lock_owner(v_owner_id);
    v_now := posthorn_impl.clock();
    select k.* into v_passkey from posthorn.passkeys k where k.owner_id = v_owner_id and k.handle_hash = p_handle_hash; -- removed meanwhile?
    -- those that do not count always say zero; of one that does, a number that was there before is a copy's
    v_is_ahead := p_sign_count > v_passkey.sign_count or (p_sign_count = 0 and v_passkey.sign_count = 0);
  end if;
  if v_is_ahead is not true then
    perform posthorn_impl.count_failed_sign_in(p_bucket, v_now);
    if v_passkey.passkey_id is not null then
      perform posthorn_impl.record_act(row(1, v_owner_id, null, 'session', array['owner'], null)::posthorn_impl.proven, 'passkey.refuse', v_passkey.passkey_id, v_now);
    end if;
    return 'not_found';
  end if;
  update posthorn.passkeys k
     set sign_count = p_sign_count,
         last_used_at = v_now
   where k.owner_id = v_owner_id
     and k.passkey_id = v_passkey.passkey_id;
  v_actor := posthorn_impl.start_session(v_owner_id, p_session_hash, p_label, p_replaces, v_now);
  perform posthorn_impl.record_act(v_actor, 'passkey.use', v_passkey.passkey_id, v_now);
  return 'signed_in';
end $$;
comment on function posthorn_api.use_passkey(bytea, bytea, bytea, bytea, boolean, bigint, bytea, text, int, bytea) is 'Makes a session of a passkey''s answer to this browser''s challenge, which is used up: signed_in. Otherwise not_found, also where the passkey''s counter went back, and after too many of those from one bucket of addresses rate_limited. The pod is believed that the signature was good (p_is_valid); whose passkey it is, the user handle proves.';

grant execute on function
  posthorn_api.begin_sign_in(text, bytea, bytea, int), posthorn_api.begin_passkey(bytea, bytea, bytea),
  posthorn_api.add_passkey(bytea, bytea, bytea, bytea, bigint, text), posthorn_api.list_passkeys(bytea),
  posthorn_api.remove_passkey(bytea, uuid), posthorn_api.find_passkey(bytea, bytea, bytea, bytea, int),
  posthorn_api.use_passkey(bytea, bytea, bytea, bytea, boolean, bigint, bytea, text, int, bytea) to posthorn_app;
