set local role posthorn_owner;

-- Lives with the tables, since column defaults may not depend on schemas that are rebuilt.
-- PostgreSQL 18 has uuidv7(); 15 to 17 do not.
create function posthorn.make_id() returns uuid
language sql
volatile
parallel safe
set search_path = pg_catalog, pg_temp
as $$
  -- 48 bits of milliseconds over a random UUID, then bits 52 and 53 turn version 4 into 7
  select encode(
    set_bit(set_bit(
      overlay(
        uuid_send(gen_random_uuid())
        placing substring(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3)
        from 1 for 6),
      52, 1), 53, 1),
    'hex')::uuid
$$;
comment on function posthorn.make_id() is 'A time-ordered UUID, version 7.';
grant execute on function posthorn.make_id() to posthorn_engine;
