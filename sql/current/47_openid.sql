-- Accounts at the operator's OpenID provider. The database cannot check an ID token, so a pod does and is believed, as
-- with a passkey's signature. An account is named by an HMAC of issuer and subject under a secret of the server's, which
-- is sealed under the key ring: whoever runs SQL of their own as posthorn_app, and has no key ring, cannot name one.
-- Nothing here makes an owner, and no e-mail address means anything: the owner ties an account, signed in.
set local role posthorn_owner;
drop policy if exists select_presented on posthorn.openid_accounts;
create policy select_presented on posthorn.openid_accounts for select to posthorn_prover
  using (subject_hash = any ((select current_setting('posthorn.presented', true))::bytea[]));
grant select (owner_id, subject_hash) on posthorn.openid_accounts to posthorn_prover;
grant select, insert, delete, update (last_used_at) on posthorn.openid_accounts to posthorn_engine;

set local role posthorn_prover;

create function posthorn_impl.prove_openid_account(
  p_subject_hash bytea
) returns int
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_owner_id int;
begin
  perform set_config('posthorn.presented', array[p_subject_hash]::text, true);
  select a.owner_id into v_owner_id
    from posthorn.openid_accounts a
    join posthorn.owners o on o.owner_id = a.owner_id and o.deleted_at is null
   where a.subject_hash = p_subject_hash;
  perform set_config('posthorn.presented', '{}', true);
  perform posthorn_impl.admit_owners(array_remove(array[v_owner_id], null));
  return v_owner_id;
end $$;
comment on function posthorn_impl.prove_openid_account(bytea) is 'Turns an account at the provider, by its keyed hash, into the owner who tied it, whom this transaction may then see; null for any other.';
grant execute on function posthorn_impl.prove_openid_account(bytea) to posthorn_engine;

set local role posthorn_engine;

create type posthorn_impl.openid_account_view as (
  id uuid,
  issuer text,
  label text,
  created_at timestamptz,
  last_used_at timestamptz
);

create function posthorn_api.begin_openid_account(
  p_credential bytea,
  p_state_hash bytea
) returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_actor posthorn_impl.proven := posthorn_impl.identify_owner(p_credential);
begin
  if (select count(*) from posthorn.openid_accounts a where a.owner_id = v_actor.owner_id) >= posthorn_impl.limit_value('openid_accounts_per_owner') then
    perform posthorn_impl.refuse('limit_reached', '{"limit": "openid_accounts_per_owner"}');
  end if;
  perform posthorn_impl.make_challenge('connect_openid', p_credential, p_state_hash, interval '15 minutes');
end $$;
comment on function posthorn_api.begin_openid_account(bytea, bytea) is 'Remembers for 15 minutes that this session went to the provider to tie an account; raises limit_reached.';

create function posthorn_api.add_openid_account(
  p_credential bytea,
  p_state_hash bytea,
  p_subject_hash bytea,
  p_issuer text,
  p_label text
) returns posthorn_impl.openid_account_view
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_actor posthorn_impl.proven := posthorn_impl.identify_owner(p_credential);
  v_challenge posthorn.challenges := posthorn_impl.take_challenge('connect_openid', p_credential, p_state_hash);
  v_now timestamptz;
  v_made posthorn_impl.openid_account_view;
begin
  if v_challenge.challenge_hash is null then
    perform posthorn_impl.refuse('expired');
  end if;
  perform posthorn_impl.lock_owner(v_actor.owner_id);
  v_now := posthorn_impl.clock();
  if (select count(*) from posthorn.openid_accounts a where a.owner_id = v_actor.owner_id) >= posthorn_impl.limit_value('openid_accounts_per_owner') then
    perform posthorn_impl.refuse('limit_reached', '{"limit": "openid_accounts_per_owner"}');
  end if;
  insert into posthorn.openid_accounts (owner_id, subject_hash, issuer, label, created_at)
  values (v_actor.owner_id, p_subject_hash, p_issuer, p_label, v_now)
  on conflict do nothing
  returning account_id, issuer, label, created_at, last_used_at into v_made;
  if v_made.id is null then
    perform posthorn_impl.refuse('invalid_request', '{"fields": ["account"]}');
  end if;
  perform posthorn_impl.record_act(v_actor, 'openid.add', v_made.id, v_now);
  return v_made;
end $$;
comment on function posthorn_api.add_openid_account(bytea, bytea, bytea, text, text) is 'Ties an account at the provider to the owner who is signed in; raises expired for a state that this session was not given or has used, limit_reached, and invalid_request for an account that is tied already, to whomever. [nullable: last_used_at]';

create function posthorn_api.list_openid_accounts(
  p_credential bytea
) returns setof posthorn_impl.openid_account_view
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_actor posthorn_impl.proven := posthorn_impl.identify_owner(p_credential);
begin
  return query
  select a.account_id, a.issuer, a.label, a.created_at, a.last_used_at
    from posthorn.openid_accounts a
   where a.owner_id = v_actor.owner_id
   order by a.account_id;
end $$;
comment on function posthorn_api.list_openid_accounts(bytea) is 'The accounts at OpenID providers that sign the owner in, the oldest first. [nullable: last_used_at]';

create function posthorn_api.remove_openid_account(
  p_credential bytea,
  p_account_id uuid
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
  delete from posthorn.openid_accounts a where a.owner_id = v_actor.owner_id and a.account_id = p_account_id;
  if not found then
    perform posthorn_impl.refuse('not_found');
  end if;
  perform posthorn_impl.record_act(v_actor, 'openid.remove', p_account_id, posthorn_impl.clock());
end $$;
comment on function posthorn_api.remove_openid_account(bytea, uuid) is 'Unties an account; sessions that it began go on. Raises not_found.';

create function posthorn_api.use_openid_account(
  p_state_hash bytea,
  p_browser_hash bytea,
  p_subject_hash bytea,
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
  v_used uuid;
  v_actor posthorn_impl.proven;
begin
  if not posthorn_impl.may_sign_in(p_bucket, v_now) then
    return 'rate_limited';
  end if;
  v_challenge := posthorn_impl.take_challenge('use_openid', p_browser_hash, p_state_hash);
  if v_challenge.challenge_hash is null then
    perform posthorn_impl.count_failed_sign_in(p_bucket, v_now);
    return 'expired';
  end if;
  v_owner_id := posthorn_impl.prove_openid_account(p_subject_hash);
  if v_owner_id is not null then
    perform posthorn_impl.lock_owner(v_owner_id);
    v_now := posthorn_impl.clock();
    update posthorn.openid_accounts a
       set last_used_at = v_now
     where a.owner_id = v_owner_id
       and a.subject_hash = p_subject_hash
    returning a.account_id into v_used; -- untied meanwhile?
  end if;
  if v_used is null then
    perform posthorn_impl.count_failed_sign_in(p_bucket, v_now);
    return 'not_found';
  end if;
  v_actor := posthorn_impl.start_session(v_owner_id, p_session_hash, p_label, p_replaces, v_now);
  perform posthorn_impl.record_act(v_actor, 'openid.use', v_used, v_now);
  return 'signed_in';
end $$;
comment on function posthorn_api.use_openid_account(bytea, bytea, bytea, bytea, text, int, bytea) is 'Makes a session of an account that a pod has seen an ID token of: signed_in. Otherwise expired for a state that this browser was not given or has used, not_found for an account that nobody has tied, and after too many of those from one bucket of addresses rate_limited. The pod is believed that the token was good; that somebody may be named at all, the keyed hash proves.';

grant execute on function
  posthorn_api.begin_openid_account(bytea, bytea), posthorn_api.add_openid_account(bytea, bytea, bytea, text, text),
  posthorn_api.list_openid_accounts(bytea), posthorn_api.remove_openid_account(bytea, uuid),
  posthorn_api.use_openid_account(bytea, bytea, bytea, bytea, text, int, bytea) to posthorn_app;
