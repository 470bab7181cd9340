set local role posthorn_owner;

-- Who did what to which id, content-free. Sends are not here: each message row names its sender,
-- connection and times for as long.
create table posthorn.audit_entries (
  owner_id int not null references posthorn.owners on delete cascade,
  entry_id uuid not null default posthorn.make_id(),
  act text not null constraint act_is_bounded check (char_length(act) between 1 and 40),
  connection_id uuid, -- null: the person at the server
  agent_id uuid,
  subject_id uuid not null,
  occurred_at timestamptz not null,
  primary key (owner_id, entry_id)
);
