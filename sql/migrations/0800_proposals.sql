set local role posthorn_owner;

insert into posthorn.limits (name, value, minimum, maximum, description) values
  ('proposal_life_seconds', 86400, 1, 2592000, 'how long a request waits for the owner'),
  ('pending_proposals_per_agent', 5, 1, 1000000, 'requests of one agent that wait for the owner'),
  ('pending_proposals_per_owner', 20, 1, 1000000, 'requests that wait for one owner'),
  ('held_messages_per_proposal', 20, 1, 100000, 'messages that wait behind one request'),
  ('automatic_approvals_per_day', 50, 0, 1000000, 'requests of one owner approved automatically in any 24 hours'),
  ('receipt_days', 30, 1, 3650, 'how long receipts and idempotency keys are kept'),
  ('event_days', 7, 1, 3650, 'how long events are kept');

create table posthorn.proposals (
  owner_id int not null references posthorn.owners on delete cascade,
  proposal_id uuid not null default posthorn.make_id(),
  kind text not null constraint kind_is_known check (kind in ('new', 'renew', 'continue')),
  state text not null default 'pending' constraint state_is_known check (state in ('pending', 'approved', 'denied', 'expired')),
  reason text constraint reason_is_known check (reason = any ('{superseded}')),
  is_automatic boolean not null default false,
  proposer_agent_id uuid not null,
  agent_ids uuid[] not null constraint asks_for_2_to_16_agents check (cardinality(agent_ids) between 2 and 16),
  group_id uuid,
  conversation_id uuid,
  name text constraint name_has_1_to_80_characters check (char_length(name) between 1 and 80) constraint name_is_one_line check (name !~ U&'[\0001-\001F\007F-\009F\2028\2029]'),
  purpose text constraint purpose_has_1_to_500_characters check (char_length(purpose) between 1 and 500),
  project_boundary text constraint project_boundary_has_1_to_500_characters check (char_length(project_boundary) between 1 and 500) constraint project_boundary_is_one_line check (project_boundary !~ U&'[\0001-\001F\007F-\009F\2028\2029]'),
  duration_hours int constraint duration_is_1_to_720_hours check (duration_hours between 1 and 720),
  created_at timestamptz not null,
  expires_at timestamptz not null,
  decided_at timestamptz,
  lifted_at timestamptz, -- when the owner allowed a denied member set to ask again
  primary key (owner_id, proposal_id),
  foreign key (owner_id, group_id) references posthorn.groups on delete cascade,
  foreign key (owner_id, conversation_id) references posthorn.conversations on delete cascade,
  foreign key (owner_id, proposer_agent_id) references posthorn.agents on delete cascade,
  constraint decided_unless_pending check ((state = 'pending') = (decided_at is null)),
  constraint a_new_one_has_name_and_purpose check (kind <> 'new' or (name is not null and purpose is not null and duration_hours is not null)),
  constraint a_renewal_names_its_group check (kind <> 'renew' or (group_id is not null and conversation_id is null)),
  constraint a_continuation_names_its_conversation check ((kind = 'continue') = (conversation_id is not null))
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);

-- Two requests for the same thing are one request.
create unique index one_pending_request_per_member_set on posthorn.proposals (owner_id, agent_ids) where state = 'pending' and kind = 'new';
create unique index one_pending_renewal_per_group on posthorn.proposals (owner_id, group_id) where state = 'pending' and kind = 'renew';
create unique index one_pending_continuation_per_conversation on posthorn.proposals (owner_id, conversation_id) where state = 'pending' and kind = 'continue';
create index proposals_by_group on posthorn.proposals (owner_id, group_id) where group_id is not null;
create index proposals_by_conversation on posthorn.proposals (owner_id, conversation_id) where conversation_id is not null;
create index proposals_by_proposer on posthorn.proposals (owner_id, proposer_agent_id);
-- Few at any time: by owner for decisions, read whole for what is past its deadline.
create index pending_proposals on posthorn.proposals (owner_id, expires_at) where state = 'pending';

create table posthorn.proposal_transitions (
  from_state text not null,
  to_state text not null,
  primary key (from_state, to_state)
);
insert into posthorn.proposal_transitions (from_state, to_state) values ('pending', 'approved'), ('pending', 'denied'), ('pending', 'expired');

-- A held message waits for its conversation, so it has no place in an inbox and perhaps no group yet.
alter table posthorn.messages
  alter column seq drop not null,
  alter column group_id drop not null,
  alter column conversation_id drop not null,
  add column proposal_id uuid,
  -- what a held body was sealed for: made by the pod before any group existed, kept for life
  add column hold_id uuid,
  add constraint held_behind_a_proposal check ((hold_id is null) = (proposal_id is null)),
  add constraint in_an_inbox_once_queued check (state in ('held', 'denied', 'expired', 'revoked') or (seq is not null and conversation_id is not null and group_id is not null));
create index messages_by_proposal on posthorn.messages (owner_id, proposal_id) where proposal_id is not null;

-- Bodies that wait for the owner, in the order sent; approval moves them to posthorn.bodies.
create table posthorn.held_bodies (
  owner_id int not null,
  proposal_id uuid not null,
  position int not null constraint position_is_positive check (position > 0),
  message_id uuid not null,
  ciphertext bytea not null constraint ciphertext_is_bounded check (octet_length(ciphertext) between 30 and 80100),
  primary key (owner_id, proposal_id, position),
  foreign key (owner_id, proposal_id) references posthorn.proposals on delete cascade
);
alter table posthorn.held_bodies alter column ciphertext set storage external;

-- What is past its deadline is looked for every minute, among the mail of all owners; the latest deadline is nearly
-- always the last, where an insert into a B-tree is cheap.
create index bodies_by_deadline on posthorn.bodies (expires_at);
