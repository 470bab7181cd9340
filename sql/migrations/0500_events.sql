set local role posthorn_owner;

-- What an agent should hear of, content-free, in the order it became true.
create table posthorn.events (
  owner_id int not null,
  agent_id uuid not null,
  seq bigint not null,
  kind text not null constraint kind_is_known check (kind in ('messaging.pending', 'message.state', 'proposal.decided', 'call.updated', 'wakeup.due')),
  subject_id uuid not null,
  state text constraint state_is_bounded check (char_length(state) between 1 and 32),
  occurred_at timestamptz not null,
  primary key (owner_id, agent_id, seq)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);
