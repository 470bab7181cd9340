set local role posthorn_prover;

-- The key of the MAC that carries proved owners through a transaction, stored as the two padded
-- halves that HMAC-SHA256 needs, so that a proof costs two sha256 calls and no bit arithmetic.
create table posthorn_secret.proof_key (
  only_one boolean primary key default true constraint there_is_only_one_key check (only_one),
  inner_pad bytea not null constraint inner_pad_is_one_block check (octet_length(inner_pad) = 64),
  outer_pad bytea not null constraint outer_pad_is_one_block check (octet_length(outer_pad) = 64)
);

do $$
declare
  v_key bytea := sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()));
  v_inner bytea := decode(repeat('36', 64), 'hex');
  v_outer bytea := decode(repeat('5c', 64), 'hex');
begin
  for i in 0 .. 31 loop
    v_inner := set_byte(v_inner, i, get_byte(v_inner, i) # get_byte(v_key, i));
    v_outer := set_byte(v_outer, i, get_byte(v_outer, i) # get_byte(v_key, i));
  end loop;
  insert into posthorn_secret.proof_key (inner_pad, outer_pad) values (v_inner, v_outer);
end $$;
