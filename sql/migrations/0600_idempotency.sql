set local role posthorn_owner;

-- One row per act that took effect: the same key and content give its receipt again. A refused act
-- leaves no row. The fingerprint is an HMAC under the owner's key, so that a dump tells nothing of
-- the content.
create table posthorn.idempotency_keys (
  owner_id int not null,
  agent_id uuid not null,
  operation text not null constraint operation_is_known check (operation in ('send_message', 'propose_collaboration')),
  -- a counted repetition in the pattern costs 20 microseconds a key, as much as storing the row
  key text not null constraint key_is_1_to_128_printable_ascii check (octet_length(key) <= 128 and key ~ '^[ -~]+$'),
  fingerprint bytea not null constraint fingerprint_is_sha256 check (octet_length(fingerprint) = 32),
  post_id uuid,
  message_ids uuid[] not null constraint receipt_names_at_most_15_messages check (cardinality(message_ids) <= 15),
  created_at timestamptz not null,
  primary key (owner_id, agent_id, operation, key)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);
