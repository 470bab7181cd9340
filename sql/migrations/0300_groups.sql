set local role posthorn_owner;

create table posthorn.groups (
  owner_id int not null references posthorn.owners on delete cascade,
  group_id uuid not null default posthorn.make_id(),
  name text not null constraint name_has_1_to_80_characters check (char_length(name) between 1 and 80) constraint name_is_one_line check (name !~ U&'[\0001-\001F\007F-\009F\2028\2029]'),
  purpose text not null constraint purpose_has_1_to_500_characters check (char_length(purpose) between 1 and 500),
  project_boundary text constraint project_boundary_has_1_to_500_characters check (char_length(project_boundary) between 1 and 500) constraint project_boundary_is_one_line check (project_boundary !~ U&'[\0001-\001F\007F-\009F\2028\2029]'),
  duration_hours int not null constraint duration_is_1_to_720_hours check (duration_hours between 1 and 720),
  generation int not null default 1 constraint generation_is_positive check (generation > 0),
  created_at timestamptz not null,
  approved_at timestamptz not null,
  expires_at timestamptz not null,
  revoked_at timestamptz,
  primary key (owner_id, group_id)
);

-- The lock of a group and its rate window: when its latest posts were made, newest last.
create table posthorn.group_counters (
  owner_id int not null,
  group_id uuid not null,
  post_times timestamptz[] not null default '{}',
  post_counts int[] not null default '{}',
  primary key (owner_id, group_id),
  foreign key (owner_id, group_id) references posthorn.groups on delete cascade,
  constraint times_and_counts_pair_up check (cardinality(post_times) = cardinality(post_counts)),
  constraint the_window_is_bounded check (cardinality(post_times) <= 200)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);

create table posthorn.members (
  owner_id int not null,
  group_id uuid not null,
  agent_id uuid not null,
  primary key (owner_id, group_id, agent_id),
  foreign key (owner_id, group_id) references posthorn.groups on delete cascade,
  foreign key (owner_id, agent_id) references posthorn.agents on delete cascade
);
create index members_by_agent on posthorn.members (owner_id, agent_id);
