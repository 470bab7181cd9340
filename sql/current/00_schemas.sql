-- The code schemas, made anew whenever a file of this folder changes. They hold no data.
create schema posthorn_api authorization posthorn_engine;
create schema posthorn_impl authorization posthorn_engine;
create schema ops authorization posthorn_engine;

grant usage, create on schema posthorn_impl, ops to posthorn_prover;
grant usage on schema posthorn_api to posthorn_app;
grant usage on schema posthorn_impl to posthorn_owner, posthorn_ops;
grant usage on schema ops to posthorn_ops;
grant usage on schema ops, posthorn_api to posthorn_admin;

set local role posthorn_engine;

create function posthorn_impl.clock() returns timestamptz
language sql
volatile
security invoker
set search_path = pg_catalog, pg_temp
as $$
  select pg_catalog.clock_timestamp()
$$;
comment on function posthorn_impl.clock() is 'The only source of time. Read after the locks of a transaction are held, so that times follow sequences; the test template replaces it.';
grant execute on function posthorn_impl.clock() to posthorn_prover, posthorn_ops;

create function posthorn_impl.refuse(
  p_code text,
  p_detail jsonb default '{}'
) returns void
language plpgsql
volatile
security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  v_sqlstate text := case p_code
    when 'invalid_request' then 'MHINV'
    when 'agent_required' then 'MHAGR'
    when 'invalid_cursor' then 'MHCUR'
    when 'unauthorized' then 'MHUNA'
    when 'scope_required' then 'MHSCO'
    when 'person_required' then 'MHPER'
    when 'agent_revoked' then 'MHARV'
    when 'owner_suspended' then 'MHSUS'
    when 'not_found' then 'MHNFD'
    when 'limit_reached' then 'MHLIM'
    when 'group_unauthorized' then 'MHGUN'
    when 'conversation_frozen' then 'MHFRZ'
    when 'conversation_capped' then 'MHCAP'
    when 'purpose_required' then 'MHPUR'
    when 'proposal_limit' then 'MHPLM'
    when 'recently_denied' then 'MHDEN'
    when 'not_capped' then 'MHNCP'
    when 'renewal_not_open' then 'MHRNO'
    when 'already_decided' then 'MHADC'
    when 'expired' then 'MHEXP'
    when 'unavailable' then 'MHUNV'
    when 'stream_limit' then 'MHSTL'
  end;
begin
  raise exception '%', p_code using errcode = v_sqlstate, detail = p_detail::text;
end $$;
comment on function posthorn_impl.refuse(text, jsonb) is 'Raises the error of a code, with facts for the caller as JSON in DETAIL; sql/errors.md lists them.';
grant execute on function posthorn_impl.refuse(text, jsonb) to posthorn_prover;
