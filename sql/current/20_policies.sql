-- Grants and policies of every tenant table, in one shape. "is true" keeps the comparison a filter on
-- rows already found by index: as an index condition it sorts and merges the array at every inner
-- scan (0.85 against 1.00 with 20,000 agents). So every query names owner_id itself.
set local role posthorn_owner;

do $$
declare
  v_table text;
  v_proved constant text := '(owner_id = any ((select posthorn_impl.proved_owners())::int[])) is true';
  v_tenant_tables constant text[] := array[
    'owners', 'owner_keys', 'connections', 'agents', 'mailboxes', 'groups', 'group_counters', 'members', 'conversations',
    'proposals', 'posts', 'messages', 'held_bodies', 'bodies', 'events', 'idempotency_keys', 'audit_entries', 'streams', 'presence',
    'webhooks', 'deliveries', 'delivery_attempts', 'sign_in_links', 'oauth_grants', 'grant_tokens', 'push_subscriptions', 'passkeys', 'openid_accounts'];
begin
  revoke all on all tables in schema posthorn from posthorn_engine, posthorn_prover, posthorn_app, posthorn_jobs, posthorn_ops, posthorn_admin;
  foreach v_table in array v_tenant_tables loop
    execute format('alter table posthorn.%I enable row level security', v_table);
    execute format('alter table posthorn.%I force row level security', v_table);
    execute format('drop policy if exists select_proved on posthorn.%I', v_table);
    execute format('drop policy if exists insert_proved on posthorn.%I', v_table);
    execute format('drop policy if exists update_proved on posthorn.%I', v_table);
    execute format('drop policy if exists delete_proved on posthorn.%I', v_table);
    execute format('create policy select_proved on posthorn.%I for select to posthorn_engine using (%s)', v_table, v_proved);
    execute format('create policy insert_proved on posthorn.%I for insert to posthorn_engine with check (%s)', v_table, v_proved);
    -- An update or delete without a where clause reads no column, so the select policy does not apply to it and these
    -- must say the same. Equal expressions are evaluated once. owner_id is in no update grant: a new row needs no check.
    execute format('create policy update_proved on posthorn.%I for update to posthorn_engine using (%s) with check (true)', v_table, v_proved);
    execute format('create policy delete_proved on posthorn.%I for delete to posthorn_engine using (%s)', v_table, v_proved);
  end loop;
end $$;

-- The root of trust: a connection shows itself to whoever presents its credential's hash.
drop policy if exists select_presented on posthorn.connections;
create policy select_presented on posthorn.connections for select to posthorn_prover
  using (credential_hash = any ((select current_setting('posthorn.presented', true))::bytea[]));
drop policy if exists select_any on posthorn.owners;
create policy select_any on posthorn.owners for select to posthorn_prover using (true);
grant select (owner_id, connection_id, kind, scopes, agent_id, credential_hash, revoked_at, expires_at) on posthorn.connections to posthorn_prover;
grant select (owner_id, id, label, created_at, deleted_at) on posthorn.owners to posthorn_prover;

grant select on posthorn.limits, posthorn.message_transitions, posthorn.proposal_transitions to posthorn_engine, posthorn_ops;
grant select, insert on posthorn.ring_keys to posthorn_engine;
grant select, delete on posthorn.ring_keys to posthorn_admin;
grant select, update (value) on posthorn.limits to posthorn_admin;

grant select, insert on
  posthorn.owners, posthorn.owner_keys, posthorn.connections, posthorn.agents, posthorn.mailboxes, posthorn.groups, posthorn.group_counters,
  posthorn.members, posthorn.conversations, posthorn.proposals, posthorn.posts, posthorn.messages, posthorn.held_bodies, posthorn.bodies, posthorn.events, posthorn.idempotency_keys,
  posthorn.audit_entries to posthorn_engine;
grant select, insert on posthorn.streams, posthorn.presence to posthorn_engine;
grant update (leased_until, written_at), delete on posthorn.streams to posthorn_engine;
grant update (present_until) on posthorn.presence to posthorn_engine;
grant select, insert on posthorn.webhooks, posthorn.deliveries, posthorn.delivery_attempts to posthorn_engine;
grant delete on posthorn.webhooks to posthorn_engine;
grant update (connection_id, url_host, sealed_url, sealed_secret, sealed_auth_header, previous_sealed_secret, previous_until, events, status, disabled_reason, consecutive_failures, next_attempt_at, seen_seq, lease_id, leased_until, updated_at, last_delivered_at) on posthorn.webhooks to posthorn_engine;
grant update (state, attempts, attempts_allowed, next_attempt_at, ended_at) on posthorn.deliveries to posthorn_engine;
grant delete on posthorn.owner_keys, posthorn.members, posthorn.held_bodies, posthorn.bodies, posthorn.idempotency_keys to posthorn_engine;
grant update (automatic_approval, sensitive_content_check, event_seq, suspended_at, deleted_at) on posthorn.owners to posthorn_engine;
grant update (label, credential_hash, expires_at, last_used_at, revoked_at) on posthorn.connections to posthorn_engine;
grant update (label, runtime, runtime_version, reachable_until, revoked_at, revoked_by) on posthorn.agents to posthorn_engine;
grant update (message_seq, event_seq, unfenced, webhook_events) on posthorn.mailboxes to posthorn_engine;
grant update (name, purpose, generation, approved_at, expires_at, revoked_at) on posthorn.groups to posthorn_engine;
grant update (post_times, post_counts) on posthorn.group_counters to posthorn_engine;
grant update (posts, continuations) on posthorn.conversations to posthorn_engine;
grant update (state, reason, is_automatic, group_id, name, purpose, duration_hours, decided_at, lifted_at) on posthorn.proposals to posthorn_engine;
grant update (state, seq, group_id, conversation_id, delivered_at, admitted_at, acknowledged_at, processed_at, replied_at, ended_at, expires_at) on posthorn.messages to posthorn_engine;
grant update (expires_at) on posthorn.bodies to posthorn_engine;

-- Operators see ids, states, times and counts of every owner: no label, no body, no credential.
do $$
declare
  v_table text;
begin
  foreach v_table in array array['owners', 'owner_keys', 'connections', 'agents', 'mailboxes', 'groups', 'members', 'conversations', 'proposals', 'posts', 'messages', 'held_bodies', 'bodies', 'events', 'idempotency_keys', 'audit_entries', 'webhooks', 'deliveries', 'delivery_attempts'] loop
    execute format('drop policy if exists select_all on posthorn.%I', v_table);
    execute format('create policy select_all on posthorn.%I for select to posthorn_ops using (true)', v_table);
  end loop;
end $$;
grant select (owner_id, id, automatic_approval, sensitive_content_check, event_seq, wake_number, created_at, suspended_at, deleted_at) on posthorn.owners to posthorn_ops;
grant select (ring_key_id, created_at) on posthorn.ring_keys to posthorn_ops;
grant select (owner_id, ring_key_id) on posthorn.owner_keys to posthorn_ops;
grant select (owner_id, connection_id, kind, scopes, parent_connection_id, agent_id, created_at, expires_at, last_used_at, revoked_at) on posthorn.connections to posthorn_ops;
grant select (owner_id, agent_id, connection_id, origin_kind, runtime, reachable_until, created_at, revoked_at, revoked_by) on posthorn.agents to posthorn_ops;
grant select on posthorn.mailboxes, posthorn.members, posthorn.conversations, posthorn.posts, posthorn.messages, posthorn.events, posthorn.audit_entries to posthorn_ops;
grant select (owner_id, group_id, duration_hours, generation, created_at, approved_at, expires_at, revoked_at) on posthorn.groups to posthorn_ops;
grant select (owner_id, recipient_agent_id, seq, message_id, expires_at) on posthorn.bodies to posthorn_ops;
grant select (owner_id, proposal_id, position, message_id) on posthorn.held_bodies to posthorn_ops;
grant select (owner_id, proposal_id, kind, state, reason, is_automatic, proposer_agent_id, agent_ids, group_id, conversation_id, duration_hours, created_at, expires_at, decided_at, lifted_at) on posthorn.proposals to posthorn_ops;
grant select (owner_id, agent_id, operation, post_id, message_ids, created_at) on posthorn.idempotency_keys to posthorn_ops;
-- the host of an address may name somebody's machine: the owner's to see, as labels are
grant select (owner_id, webhook_id, agent_id, events, status, disabled_reason, consecutive_failures, next_attempt_at, wake_number, seen_seq, created_at, updated_at, last_delivered_at) on posthorn.webhooks to posthorn_ops;
grant select on posthorn.deliveries, posthorn.delivery_attempts to posthorn_ops;
grant usage on sequence posthorn.owners_owner_id_seq, posthorn.mailboxes_wake_number_seq to posthorn_engine;

-- The person at the server wraps owners' keys anew. What they see is wrapped: worth nothing without the ring.
drop policy if exists select_admin on posthorn.owner_keys;
drop policy if exists update_admin on posthorn.owner_keys;
create policy select_admin on posthorn.owner_keys for select to posthorn_admin using (true);
create policy update_admin on posthorn.owner_keys for update to posthorn_admin using (true);
grant select, update (ring_key_id, wrapped_key) on posthorn.owner_keys to posthorn_admin;
drop policy if exists select_admin on posthorn.owners;
drop policy if exists update_admin on posthorn.owners;
create policy select_admin on posthorn.owners for select to posthorn_admin using (true);
create policy update_admin on posthorn.owners for update to posthorn_admin using (true);
grant select (owner_id, id, suspended_at, deleted_at), update (suspended_at) on posthorn.owners to posthorn_admin;
grant insert (owner_id, act, subject_id, occurred_at) on posthorn.audit_entries to posthorn_admin;
grant execute on function posthorn.make_id() to posthorn_admin;
drop policy if exists insert_acts on posthorn.audit_entries;
create policy insert_acts on posthorn.audit_entries for insert to posthorn_admin with check (act in ('owner.suspend', 'owner.resume'));
