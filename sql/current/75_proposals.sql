-- What agents ask for and the owner decides. Every function here runs under the owner's lock: requests
-- and decisions of one owner are few, and come one after the other. One decision may end other requests,
-- so all mailboxes that any of them could touch are locked before the first is told: a second set of them,
-- locked later, would stand in the way of whoever locks in order.
set local role posthorn_engine;

create type posthorn_impl.proposal_view as (
  id uuid,
  kind text,
  state text,
  reason text,
  is_automatic boolean,
  group_id uuid,
  conversation_id uuid,
  proposer_agent_id uuid,
  agent_ids uuid[],
  name text,
  purpose text,
  project_boundary text,
  duration_hours int,
  held_messages int,
  created_at timestamptz,
  expires_at timestamptz,
  decided_at timestamptz
);

create function posthorn_impl.mail_behind(
  p_owner_id int,
  p_proposal_id uuid,
  p_sender_agent_id uuid
) returns uuid[]
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  select array(
    select m.message_id
      from posthorn.messages m
     where m.owner_id = p_owner_id
       and m.proposal_id = p_proposal_id
       and p_sender_agent_id in (m.sender_agent_id, '00000000-0000-0000-0000-000000000000')
     order by m.message_id)
$$;
comment on function posthorn_impl.mail_behind(int, uuid, uuid) is 'An agent''s messages behind a request; in the owner''s log, under the nil UUID, everybody''s.';

create function posthorn_impl.view_proposals(
  p_owner_id int,
  p_for_agent_id uuid,
  p_ids uuid[],
  p_now timestamptz
) returns setof posthorn_impl.proposal_view
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  select p.proposal_id, p.kind, d.state, p.reason, p.is_automatic, p.group_id, p.conversation_id, p.proposer_agent_id, p.agent_ids,
         case when d.is_open then p.name end, case when d.is_open then p.purpose end, case when d.is_open then p.project_boundary end,
         case when d.is_open then p.duration_hours end,
         case when d.is_open then (
           select count(*)::int from posthorn.messages m where m.owner_id = p_owner_id and m.proposal_id = p.proposal_id and posthorn_impl.present_state(m.state, m.expires_at, p_now) = 'held') end,
         p.created_at, p.expires_at, coalesce(p.decided_at, case when d.state = 'expired' then p.expires_at end)
    from unnest(p_ids) with ordinality i(proposal_id, position)
    join posthorn.proposals p on p.owner_id = p_owner_id and p.proposal_id = i.proposal_id
   cross join lateral (
     select case when p.state = 'pending' and p.expires_at <= p_now then 'expired' else p.state end as state,
            -- before approval the proposer's words and numbers would reach the others by a channel that nobody approved
            p_for_agent_id is null or p_for_agent_id = p.proposer_agent_id or p.state = 'approved' as is_open) d
   order by i.position
$$;
comment on function posthorn_impl.view_proposals(int, uuid, uuid[], timestamptz) is 'Proposals as an agent (or the owner, with null) may see them, with their state by the clock.';

create function posthorn_impl.agents_of_requests(
  p_owner_id int
) returns uuid[]
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  select array(
    select p.proposer_agent_id from posthorn.proposals p where p.owner_id = p_owner_id and p.state = 'pending'
    union
    select x.agent_id
      from posthorn.proposals p
      join posthorn.messages m on m.owner_id = p_owner_id and m.proposal_id = p.proposal_id
     cross join lateral (values (m.sender_agent_id), (m.recipient_agent_id)) x(agent_id)
     where p.owner_id = p_owner_id
       and p.state = 'pending')
$$;
comment on function posthorn_impl.agents_of_requests(int) is 'Whose mailboxes a decision may touch: of everything that waits for the owner, the proposers and both ends of the mail behind it.';

create function posthorn_impl.agents_of_messages(
  p_owner_id int,
  p_message_ids uuid[]
) returns uuid[]
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  select array(
    select distinct x.agent_id
      from posthorn.messages m
     cross join lateral (values (m.sender_agent_id), (m.recipient_agent_id)) x(agent_id)
     where m.owner_id = p_owner_id
       and m.message_id = any (p_message_ids))
$$;
comment on function posthorn_impl.agents_of_messages(int, uuid[]) is 'Both ends of these messages.';

create function posthorn_impl.lock_requests(
  p_owner_id int,
  p_agent_ids uuid[]
) returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_agents uuid[] := posthorn_impl.agents_of_requests(p_owner_id) || p_agent_ids;
begin
  perform posthorn_impl.lock_mailboxes(array_fill(p_owner_id, array[cardinality(v_agents)]), v_agents);
end $$;
comment on function posthorn_impl.lock_requests(int, uuid[]) is 'The last lock of the order for whoever decides about requests of an owner, with further agents that the decision touches. Once per transaction, before the clock is read.';

create function posthorn_impl.held_of(
  p_owner_id int,
  p_agent_ids uuid[]
) returns table (
  message_id uuid
)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  select m.message_id
    from posthorn.held_bodies h
    join posthorn.messages m on m.owner_id = p_owner_id and m.message_id = h.message_id
   where h.owner_id = p_owner_id
     and (m.sender_agent_id = any (p_agent_ids) or m.recipient_agent_id = any (p_agent_ids))
$$;
comment on function posthorn_impl.held_of(int, uuid[]) is 'What is held from or for these agents; an owner has at most as many held messages as pending requests times their limit.';

create function posthorn_impl.tell_decided(
  p_owner_id int,
  p_proposal_ids uuid[],
  p_message_state text,
  p_now timestamptz
) returns int[]
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_wakes int[];
begin
  with told as (
    select distinct p.proposal_id, x.agent_id
      from posthorn.proposals p
     cross join lateral (
       select p.proposer_agent_id as agent_id
        union
       select m.sender_agent_id from posthorn.messages m where m.owner_id = p_owner_id and m.proposal_id = p.proposal_id) x
     where p.owner_id = p_owner_id
       and p.proposal_id = any (p_proposal_ids)
  ), counted as (
    update posthorn.mailboxes b
       set event_seq = b.event_seq + t.events
      from (select t.agent_id, count(*)::int as events from told t group by t.agent_id) t
     where b.owner_id = p_owner_id
       and b.agent_id = t.agent_id
    returning b.agent_id, case when 'proposal.decided' = any (b.webhook_events) then -b.wake_number else b.wake_number end as wake_number, b.event_seq - t.events as event_base
  ), logged as (
    insert into posthorn.events (owner_id, agent_id, seq, kind, subject_id, state, occurred_at)
    select p_owner_id, t.agent_id, c.event_base + row_number() over (partition by t.agent_id order by t.proposal_id), 'proposal.decided', t.proposal_id, p_message_state, p_now
      from told t
      join counted c on c.agent_id = t.agent_id
  )
  select array_agg(c.wake_number) into v_wakes from counted c;
  return coalesce(v_wakes, '{}') || posthorn_impl.tell_owner(p_owner_id, 'proposal.decided', p_proposal_ids, p_message_state, p_now);
end $$;
comment on function posthorn_impl.tell_decided(int, uuid[], text, timestamptz) is 'Tells proposers, senders and the owner''s other browsers what became of requests and their mail; answers whom to wake. Owner and mailboxes are locked.';

create function posthorn_impl.close_proposals(
  p_owner_id int,
  p_proposal_ids uuid[],
  p_state text,
  p_message_state text,
  p_reason text,
  p_now timestamptz
) returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_closed uuid[];
begin
  if p_state <> 'expired' then
    -- who comes after the deadline finds what everybody saw since: expired
    perform posthorn_impl.close_proposals(
      p_owner_id,
      array(select p.proposal_id
              from posthorn.proposals p
             where p.owner_id = p_owner_id and p.proposal_id = any (p_proposal_ids) and p.state = 'pending' and p.expires_at <= p_now),
      'expired', 'expired', null, p_now);
  end if;
  with closed as (
    update posthorn.proposals p
       set state = p_state,
           reason = p_reason,
           decided_at = least(p_now, p.expires_at)
     where p.owner_id = p_owner_id
       and p.proposal_id = any (p_proposal_ids)
       and exists (select from posthorn.proposal_transitions t where t.from_state = p.state and t.to_state = p_state)
    returning p.proposal_id
  )
  select array_agg(c.proposal_id) into v_closed from closed c;
  if v_closed is null then
    return;
  end if;
  delete from posthorn.held_bodies h where h.owner_id = p_owner_id and h.proposal_id = any (v_closed);
  update posthorn.messages m
     set state = p_message_state,
         ended_at = p_now
   where m.owner_id = p_owner_id
     and m.proposal_id = any (v_closed)
     and m.state = 'held'
     and exists (select from posthorn.message_transitions t where t.from_state = m.state and t.to_state = p_message_state);
  perform posthorn_impl.wake(posthorn_impl.tell_decided(p_owner_id, v_closed, p_message_state, p_now));
end $$;
comment on function posthorn_impl.close_proposals(int, uuid[], text, text, text, timestamptz) is 'Ends requests without approval and fences what they held. Under lock_requests.';

create function posthorn_impl.supersede_proposals(
  p_owner_id int,
  p_group_ids uuid[],
  p_except_id uuid,
  p_now timestamptz
) returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  perform posthorn_impl.close_proposals(
    p_owner_id,
    array(select p.proposal_id from posthorn.proposals p
           where p.owner_id = p_owner_id and p.group_id = any (p_group_ids) and p.state = 'pending' and p.proposal_id is distinct from p_except_id),
    'denied', 'revoked', 'superseded', p_now);
end $$;
comment on function posthorn_impl.supersede_proposals(int, uuid[], uuid, timestamptz) is 'A group that is renewed or revoked ends what was asked of it.';

create function posthorn_impl.release_held(
  p_owner_id int,
  p_proposal_id uuid,
  p_group_id uuid,
  p_now timestamptz
) returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_life interval := make_interval(secs => posthorn_impl.limit_value('message_life_seconds'));
  v_wakes int[];
begin
  -- a pair that never talked in this generation gets its conversation
  insert into posthorn.conversations (owner_id, kind, group_id, generation, agent_low, agent_high, created_at)
  select distinct p_owner_id, 'pair', g.group_id, g.generation, least(m.sender_agent_id, m.recipient_agent_id), greatest(m.sender_agent_id, m.recipient_agent_id), p_now
    from posthorn.messages m
    join posthorn.groups g on g.owner_id = p_owner_id and g.group_id = p_group_id
   where m.owner_id = p_owner_id
     and m.proposal_id = p_proposal_id
     and m.state = 'held'
  on conflict on constraint one_conversation_per_generation_and_pair do nothing;
  with held as materialized (
    select m.message_id, m.recipient_agent_id, h.position, h.ciphertext, c.conversation_id, least(p_now + v_life, g.expires_at) as ends_at,
           row_number() over (partition by m.recipient_agent_id order by h.position) as place
      from posthorn.held_bodies h
      join posthorn.messages m on m.owner_id = p_owner_id and m.message_id = h.message_id and m.state = 'held'
      join posthorn.groups g on g.owner_id = p_owner_id and g.group_id = p_group_id
      join posthorn.conversations c
        on c.owner_id = p_owner_id
       and c.group_id = g.group_id
       and c.generation = g.generation
       and c.agent_low = least(m.sender_agent_id, m.recipient_agent_id)
       and c.agent_high = greatest(m.sender_agent_id, m.recipient_agent_id)
     where h.owner_id = p_owner_id
       and h.proposal_id = p_proposal_id
  ), counted as (
    -- past a full inbox too: an approval never fails on a cap
    update posthorn.mailboxes b
       set message_seq = b.message_seq + x.messages,
           event_seq = b.event_seq + x.messages,
           unfenced = b.unfenced + x.messages
      from (select h.recipient_agent_id, count(*)::int as messages from held h group by h.recipient_agent_id) x
     where b.owner_id = p_owner_id
       and b.agent_id = x.recipient_agent_id
    returning b.agent_id, case when 'messaging.pending' = any (b.webhook_events) then -b.wake_number else b.wake_number end as wake_number,
              b.message_seq - x.messages as message_base, b.event_seq - x.messages as event_base
  ), placed as materialized (
    select h.*, c.wake_number, c.message_base + h.place as message_seq, c.event_base + h.place as event_seq
      from held h
      join counted c on c.agent_id = h.recipient_agent_id
  ), conversed as (
    update posthorn.conversations c
       set posts = c.posts + x.posts
      from (select p.conversation_id, count(*)::int as posts from placed p group by p.conversation_id) x
     where c.owner_id = p_owner_id
       and c.conversation_id = x.conversation_id
  ), queued as (
    update posthorn.messages m
       set state = 'queued',
           seq = p.message_seq,
           group_id = p_group_id,
           conversation_id = p.conversation_id,
           expires_at = p.ends_at
      from placed p
     where m.owner_id = p_owner_id
       and m.message_id = p.message_id
  ), moved as (
    insert into posthorn.bodies (owner_id, recipient_agent_id, seq, message_id, expires_at, ciphertext)
    select p_owner_id, p.recipient_agent_id, p.message_seq, p.message_id, p.ends_at, p.ciphertext
      from placed p
  ), emptied as (
    delete from posthorn.held_bodies h where h.owner_id = p_owner_id and h.proposal_id = p_proposal_id
  ), told as (
    insert into posthorn.events (owner_id, agent_id, seq, kind, subject_id, occurred_at)
    select p_owner_id, p.recipient_agent_id, p.event_seq, 'messaging.pending', p.message_id, p_now
      from placed p
  )
  select array_agg(p.wake_number) into v_wakes from placed p;
  -- an answer that was held takes effect now
  v_wakes := v_wakes || posthorn_impl.advance_messages(array(
    select distinct row(p_owner_id, m.reply_to, 'replied', false, false)::posthorn_impl.advance
      from posthorn.messages m
     where m.owner_id = p_owner_id
       and m.proposal_id = p_proposal_id
       and m.state = 'queued'
       and m.reply_to is not null), p_now);
  perform posthorn_impl.wake(v_wakes || posthorn_impl.tell_decided(p_owner_id, array[p_proposal_id], 'queued', p_now));
end $$;
comment on function posthorn_impl.release_held(int, uuid, uuid, timestamptz) is 'Queues what an approved request held, in the order sent, each with a fresh life. Under lock_requests.';

create function posthorn_impl.apply_approval(
  p_actor posthorn_impl.proven,
  p_proposal posthorn.proposals,
  p_name text,
  p_purpose text,
  p_duration_hours int,
  p_is_automatic boolean,
  p_now timestamptz
) returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_group_id uuid := p_proposal.group_id;
  v_active bigint := (
    select count(*) from posthorn.groups g
     where g.owner_id = p_actor.owner_id and g.revoked_at is null and g.expires_at > p_now and g.group_id is distinct from p_proposal.group_id);
begin
  if p_proposal.kind <> 'continue' and v_active >= posthorn_impl.limit_value('active_groups_per_owner') then
    perform posthorn_impl.refuse('proposal_limit', '{"limit": "active_groups_per_owner"}');
  end if;
  if p_proposal.kind = 'new' then
    v_group_id := posthorn_impl.insert_group(
      p_actor, coalesce(p_name, p_proposal.name), coalesce(p_purpose, p_proposal.purpose), p_proposal.project_boundary,
      coalesce(p_duration_hours, p_proposal.duration_hours),
      array(select a.agent_id from posthorn.agents a where a.owner_id = p_actor.owner_id and a.agent_id = any (p_proposal.agent_ids) and a.revoked_at is null));
  else
    update posthorn.groups g
       set name = coalesce(p_name, g.name),
           purpose = coalesce(p_purpose, g.purpose),
           generation = g.generation + case p_proposal.kind when 'renew' then 1 else 0 end,
           approved_at = case p_proposal.kind when 'renew' then p_now else g.approved_at end,
           expires_at = case
             when p_proposal.kind = 'renew' then greatest(p_now, g.expires_at) + make_interval(hours => coalesce(p_duration_hours, p_proposal.duration_hours, g.duration_hours))
             when p_duration_hours is not null then p_now + make_interval(hours => p_duration_hours)
             else g.expires_at
           end
     where g.owner_id = p_actor.owner_id
       and g.group_id = v_group_id;
  end if;
  if p_proposal.kind = 'renew' then
    perform posthorn_impl.supersede_proposals(p_actor.owner_id, array[v_group_id], p_proposal.proposal_id, p_now);
  end if;
  if p_proposal.kind = 'continue' then
    if exists (select from posthorn.groups g where g.owner_id = p_actor.owner_id and g.group_id = v_group_id and g.expires_at <= p_now) then
      perform posthorn_impl.refuse('group_unauthorized'); -- only an edited duration gives the posts time to be read
    end if;
    update posthorn.conversations c
       set continuations = c.continuations + 1
     where c.owner_id = p_actor.owner_id
       and c.conversation_id = p_proposal.conversation_id;
    if p_duration_hours is not null then
      perform posthorn_impl.follow_expiry(p_actor.owner_id, v_group_id);
    end if;
  end if;
  update posthorn.proposals p
     set state = 'approved',
         decided_at = p_now,
         is_automatic = p_is_automatic,
         group_id = v_group_id,
         name = coalesce(p_name, p.name),
         purpose = coalesce(p_purpose, p.purpose),
         duration_hours = coalesce(p_duration_hours, p.duration_hours)
   where p.owner_id = p_actor.owner_id
     and p.proposal_id = p_proposal.proposal_id;
  perform posthorn_impl.record_act(p_actor, 'proposal.approve', p_proposal.proposal_id, p_now, case when p_is_automatic then p_proposal.proposer_agent_id end);
  perform posthorn_impl.release_held(p_actor.owner_id, p_proposal.proposal_id, v_group_id, p_now);
end $$;
comment on function posthorn_impl.apply_approval(posthorn_impl.proven, posthorn.proposals, text, text, int, boolean, timestamptz) is 'Everything that an approval does, in one transaction, under the locks of owner and group and lock_requests.';

create function posthorn_impl.follow_expiry(
  p_owner_id int,
  p_group_id uuid
) returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_ends_at timestamptz := (select g.expires_at from posthorn.groups g where g.owner_id = p_owner_id and g.group_id = p_group_id);
  v_messages uuid[] := array(select m.message_id from posthorn_impl.unfenced_in_groups(p_owner_id, array[p_group_id]) m where m.expires_at > v_ends_at);
begin
  update posthorn.messages m set expires_at = v_ends_at where m.owner_id = p_owner_id and m.message_id = any (v_messages);
  update posthorn.bodies b
     set expires_at = v_ends_at
    from posthorn.messages m
   where m.owner_id = p_owner_id
     and m.message_id = any (v_messages)
     and b.owner_id = p_owner_id
     and b.recipient_agent_id = m.recipient_agent_id
     and b.seq = m.seq;
end $$;
comment on function posthorn_impl.follow_expiry(int, uuid) is 'Where a group now ends sooner, its messages do too.';

create function posthorn_impl.pending_proposal(
  p_owner_id int,
  p_proposal_id uuid
) returns table (
  proposal posthorn.proposals,
  decided_at timestamptz
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  perform posthorn_impl.lock_owner(p_owner_id);
  select p.* into proposal from posthorn.proposals p where p.owner_id = p_owner_id and p.proposal_id = p_proposal_id;
  if not found then
    perform posthorn_impl.refuse('not_found');
  end if;
  perform posthorn_impl.lock_groups(p_owner_id, array[proposal.group_id]);
  -- a continuation may shorten the life of all that its group sent
  perform posthorn_impl.lock_requests(p_owner_id, case when proposal.kind = 'continue' then posthorn_impl.agents_of_messages(
    p_owner_id, array(select m.message_id from posthorn_impl.unfenced_in_groups(p_owner_id, array[proposal.group_id]) m)) end);
  if proposal.state in ('approved', 'denied') then
    perform posthorn_impl.refuse('already_decided', jsonb_build_object('state', proposal.state));
  end if;
  -- by the clock, read once and after every lock: a sweeper that has not run changes nothing, nor does a wait
  decided_at := posthorn_impl.clock();
  if proposal.state = 'expired' or proposal.expires_at <= decided_at then
    perform posthorn_impl.refuse('expired');
  end if;
  return next;
end $$;
comment on function posthorn_impl.pending_proposal(int, uuid) is 'A request that can still be decided, and the time of the decision, with every lock that one needs; raises not_found, already_decided, expired.';

create function posthorn_api.approve_proposal(
  p_credential bytea,
  p_proposal_id uuid,
  p_name text default null,
  p_purpose text default null,
  p_duration_hours int default null
) returns posthorn_impl.proposal_view
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_actor posthorn_impl.proven := posthorn_impl.identify_owner(p_credential);
  v_pending record;
begin
  if coalesce(p_duration_hours, 1) not between 1 and 720 then
    perform posthorn_impl.refuse('invalid_request', '{"fields": ["duration_hours"]}');
  end if;
  select p.* into v_pending from posthorn_impl.pending_proposal(v_actor.owner_id, p_proposal_id) p;
  perform posthorn_impl.apply_approval(v_actor, v_pending.proposal, p_name, p_purpose, p_duration_hours, false, v_pending.decided_at);
  return (select v from posthorn_impl.view_proposals(v_actor.owner_id, null, array[p_proposal_id], v_pending.decided_at) v);
end $$;
comment on function posthorn_api.approve_proposal(bytea, uuid, text, text, int) is 'The owner says yes, perhaps with another name, purpose or duration in hours; what was held is queued. Raises already_decided with the state, expired, proposal_limit. [nullable: reason, group_id, conversation_id, name, purpose, project_boundary, duration_hours, held_messages, decided_at]';

create function posthorn_api.deny_proposal(
  p_credential bytea,
  p_proposal_id uuid
) returns posthorn_impl.proposal_view
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_actor posthorn_impl.proven := posthorn_impl.identify_owner(p_credential);
  v_now timestamptz;
begin
  select p.decided_at into v_now from posthorn_impl.pending_proposal(v_actor.owner_id, p_proposal_id) p;
  perform posthorn_impl.close_proposals(v_actor.owner_id, array[p_proposal_id], 'denied', 'denied', null, v_now);
  perform posthorn_impl.record_act(v_actor, 'proposal.deny', p_proposal_id, v_now);
  return (select v from posthorn_impl.view_proposals(v_actor.owner_id, null, array[p_proposal_id], v_now) v);
end $$;
comment on function posthorn_api.deny_proposal(bytea, uuid) is 'The owner says no; what was held is fenced, and the same agents cannot ask again for 24 hours. Raises already_decided with the state, expired. [nullable: reason, group_id, conversation_id, name, purpose, project_boundary, duration_hours, held_messages, decided_at]';

create function posthorn_api.lift_denial(
  p_credential bytea,
  p_proposal_id uuid
) returns posthorn_impl.proposal_view
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_actor posthorn_impl.proven := posthorn_impl.identify_owner(p_credential);
  v_now timestamptz;
begin
  perform posthorn_impl.lock_owner(v_actor.owner_id);
  v_now := posthorn_impl.clock();
  update posthorn.proposals p
     set lifted_at = v_now
   where p.owner_id = v_actor.owner_id
     and p.proposal_id = p_proposal_id
     and p.state = 'denied';
  if not found then
    perform posthorn_impl.refuse('not_found');
  end if;
  perform posthorn_impl.record_act(v_actor, 'proposal.lift', p_proposal_id, v_now);
  return (select v from posthorn_impl.view_proposals(v_actor.owner_id, null, array[p_proposal_id], v_now) v);
end $$;
comment on function posthorn_api.lift_denial(bytea, uuid) is 'Lets a denied member set ask again before its 24 hours are over. [nullable: reason, group_id, conversation_id, name, purpose, project_boundary, duration_hours, held_messages, decided_at]';

create function posthorn_api.list_owner_proposals(
  p_credential bytea,
  p_limit int default null,
  p_after uuid default null,
  p_in_past boolean default false,
  p_current_only boolean default false
) returns setof posthorn_impl.proposal_view
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_actor posthorn_impl.proven := posthorn_impl.identify_owner(p_credential);
  v_now timestamptz := posthorn_impl.clock();
begin
  return query
  select v.*
    from posthorn_impl.view_proposals(v_actor.owner_id, null, array(
           select p.proposal_id
             from posthorn.proposals p
            cross join lateral (select p.state = 'pending' and p.expires_at > v_now as is_current) x
            where p.owner_id = v_actor.owner_id
              and (x.is_current or coalesce(p.decided_at, p.expires_at) > v_now - interval '7 days')
              and posthorn_impl.is_on_page(x.is_current, p.proposal_id, p_after, p_in_past, p_current_only)
            order by x.is_current desc, case when x.is_current then p.proposal_id end, p.proposal_id desc
            limit p_limit), v_now) v;
end $$;
comment on function posthorn_api.list_owner_proposals(bytea, int, uuid, boolean, boolean) is 'What waits for the owner, the longest first, then what was decided in the last 7 days, the latest first. [nullable: reason, group_id, conversation_id, name, purpose, project_boundary, duration_hours, held_messages, decided_at]';

create function posthorn_impl.open_proposal(
  p_actor posthorn_impl.proven,
  p_agent_id uuid,
  p_kind text,
  p_agent_ids uuid[],
  p_group_id uuid,
  p_conversation_id uuid,
  p_name text,
  p_purpose text,
  p_project_boundary text,
  p_duration_hours int,
  p_now timestamptz
) returns table (
  proposal posthorn.proposals,
  is_new boolean
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  select p.* into proposal
    from posthorn.proposals p
   where p.owner_id = p_actor.owner_id
     and p.kind = p_kind
     and p.state = 'pending'
     and case p_kind when 'new' then p.agent_ids = p_agent_ids when 'renew' then p.group_id = p_group_id else p.conversation_id = p_conversation_id end;
  if proposal.proposal_id is not null and proposal.expires_at > p_now then
    is_new := false;
    return next;
    return;
  end if;
  -- one whose time ran out makes room here, swept or not
  perform posthorn_impl.close_proposals(p_actor.owner_id, array_remove(array[proposal.proposal_id], null), 'expired', 'expired', null, p_now);
  if exists (
    select from posthorn.proposals p
     where p.owner_id = p_actor.owner_id
       and p.agent_ids = p_agent_ids
       and p.state = 'denied'
       and p.reason is null
       and p.lifted_at is null
       and p.decided_at > p_now - interval '24 hours'
  ) then
    perform posthorn_impl.refuse('recently_denied');
  end if;
  if (select count(*) from posthorn.proposals p where p.owner_id = p_actor.owner_id and p.proposer_agent_id = p_agent_id and p.state = 'pending' and p.expires_at > p_now)
       >= posthorn_impl.limit_value('pending_proposals_per_agent')
     or (select count(*) from posthorn.proposals p where p.owner_id = p_actor.owner_id and p.state = 'pending' and p.expires_at > p_now)
       >= posthorn_impl.limit_value('pending_proposals_per_owner') then
    perform posthorn_impl.refuse('proposal_limit');
  end if;
  insert into posthorn.proposals (owner_id, kind, proposer_agent_id, agent_ids, group_id, conversation_id, name, purpose, project_boundary, duration_hours, created_at, expires_at)
  values (p_actor.owner_id, p_kind, p_agent_id, p_agent_ids, p_group_id, p_conversation_id, p_name, p_purpose, p_project_boundary, p_duration_hours,
          p_now, p_now + make_interval(secs => posthorn_impl.limit_value('proposal_life_seconds')))
  returning * into proposal;
  perform posthorn_impl.record_act(p_actor, 'proposal.create', proposal.proposal_id, p_now, p_agent_id);
  is_new := true;
  return next;
end $$;
comment on function posthorn_impl.open_proposal(posthorn_impl.proven, uuid, text, uuid[], uuid, uuid, text, text, text, int, timestamptz) is 'The pending request for the same thing, or a new one within the limits; raises recently_denied, proposal_limit. Under lock_requests.';

create function posthorn_impl.ask_owner(
  p_actor posthorn_impl.proven,
  p_proposal posthorn.proposals,
  p_now timestamptz
) returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  c_longest constant int := 168; -- the default duration: a longer one is for the person to give
begin
  if not (select o.automatic_approval from posthorn.owners o where o.owner_id = p_actor.owner_id)
     or (select count(*) from posthorn.proposals p where p.owner_id = p_actor.owner_id and p.is_automatic and p.decided_at > p_now - interval '24 hours')
       >= posthorn_impl.limit_value('automatic_approvals_per_day')
     -- what an approval would refuse waits for the person instead
     or (p_proposal.kind <> 'continue'
         and (select count(*) from posthorn.groups g where g.owner_id = p_actor.owner_id and g.revoked_at is null and g.expires_at > p_now)
           >= posthorn_impl.limit_value('active_groups_per_owner')) then
    perform posthorn_impl.wake(array[posthorn_impl.tell_owner(p_actor.owner_id, 'proposal.created', array[p_proposal.proposal_id], null, p_now)]);
    perform posthorn_impl.push_request(p_actor.owner_id);
    return;
  end if;
  perform posthorn_impl.apply_approval(
    p_actor, p_proposal, null, null,
    case when p_proposal.kind = 'continue' then null
         else least(c_longest, coalesce(p_proposal.duration_hours, (select g.duration_hours from posthorn.groups g where g.owner_id = p_actor.owner_id and g.group_id = p_proposal.group_id))) end,
    true, p_now);
end $$;
comment on function posthorn_impl.ask_owner(posthorn_impl.proven, posthorn.proposals, timestamptz) is 'Puts a request just made before the owner, or approves it if they switched that on and the day''s budget lasts.';

create function posthorn_api.propose_collaboration(
  p_credential bytea,
  p_kind text,
  p_peer_agent_ids uuid[] default '{}',
  p_name text default null,
  p_purpose text default null,
  p_project_boundary text default null,
  p_duration_hours int default null,
  p_group_id uuid default null,
  p_conversation_id uuid default null,
  p_agent_id uuid default null
) returns table (
  proposal_id uuid,
  group_id uuid,
  replayed boolean
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_me posthorn_impl.identity := posthorn_impl.identify_agent(p_credential, p_agent_id);
  v_actor posthorn_impl.proven := row(1, v_me.owner_id, v_me.connection_id, v_me.kind, null, null);
  v_now timestamptz;
  v_agents uuid[];
  v_group_id uuid := case p_kind when 'renew' then p_group_id end;
  v_strange text[];
  v_group posthorn.groups;
  v_conversation posthorn.conversations;
  v_opened record;
begin
  if p_kind not in ('new', 'renew', 'continue') or (p_kind = 'renew' and p_group_id is null) or (p_kind = 'continue' and p_conversation_id is null) then
    perform posthorn_impl.refuse('invalid_request', jsonb_build_object('fields', case p_kind when 'renew' then array['group_id'] when 'continue' then array['conversation_id'] else array['kind'] end));
  end if;
  -- an id that the kind has no use for would be stored unseen
  v_strange := array_remove(array[
    case when p_kind <> 'new' and cardinality(p_peer_agent_ids) > 0 then 'peer_agent_ids' end,
    case when p_kind <> 'renew' and p_group_id is not null then 'group_id' end,
    case when p_kind <> 'continue' and p_conversation_id is not null then 'conversation_id' end], null);
  if cardinality(v_strange) > 0 then
    perform posthorn_impl.refuse('invalid_request', jsonb_build_object('fields', v_strange));
  end if;
  perform posthorn_impl.lock_owner(v_me.owner_id);
  if p_kind = 'new' then
    perform posthorn_impl.lock_requests(v_me.owner_id, array[v_me.agent_id]);
    v_now := posthorn_impl.clock();
    perform posthorn_impl.require_live_caller(v_me, v_now);
    v_agents := array(select distinct a from unnest(p_peer_agent_ids || v_me.agent_id) a order by a);
    if cardinality(v_agents) not between 2 and 16 or v_me.agent_id = any (p_peer_agent_ids) then
      perform posthorn_impl.refuse('invalid_request', '{"fields": ["peer_agent_ids"]}');
    end if;
    if (select count(*) from posthorn.agents a where a.owner_id = v_me.owner_id and a.agent_id = any (v_agents)) < cardinality(v_agents) then
      perform posthorn_impl.refuse('not_found', '{"fields": ["peer_agent_ids"]}');
    end if;
    if exists (select from posthorn.agents a where a.owner_id = v_me.owner_id and a.agent_id = any (v_agents) and a.revoked_at is not null) then
      perform posthorn_impl.refuse('invalid_request', '{"fields": ["peer_agent_ids"]}');
    end if;
    if p_purpose is null then
      perform posthorn_impl.refuse('purpose_required');
    end if;
    select g.* into v_group
      from posthorn.groups g
     where g.owner_id = v_me.owner_id
       and g.revoked_at is null
       and g.expires_at > v_now
       and array(select m.agent_id from posthorn.members m where m.owner_id = v_me.owner_id and m.group_id = g.group_id order by m.agent_id) = v_agents
     order by g.expires_at desc
     limit 1;
    if found then
      return query select null::uuid, v_group.group_id, true;
      return;
    end if;
  else
    if p_kind = 'continue' then
      select c.* into v_conversation from posthorn.conversations c where c.owner_id = v_me.owner_id and c.conversation_id = p_conversation_id;
      v_group_id := v_conversation.group_id;
    end if;
    perform posthorn_impl.lock_groups(v_me.owner_id, array[v_group_id]);
    perform posthorn_impl.lock_requests(v_me.owner_id, array[v_me.agent_id]);
    v_now := posthorn_impl.clock();
    perform posthorn_impl.require_live_caller(v_me, v_now);
    select g.* into v_group from posthorn.groups g where g.owner_id = v_me.owner_id and g.group_id = v_group_id;
    v_agents := array(select m.agent_id from posthorn.members m where m.owner_id = v_me.owner_id and m.group_id = v_group_id order by m.agent_id);
    if v_group.group_id is null or not v_me.agent_id = any (v_agents) or (v_conversation.kind = 'pair' and v_me.agent_id not in (v_conversation.agent_low, v_conversation.agent_high)) then
      perform posthorn_impl.refuse('not_found');
    end if;
    if v_group.revoked_at is not null or (p_kind = 'continue' and v_group.expires_at <= v_now) then
      perform posthorn_impl.refuse('group_unauthorized');
    end if;
    if p_kind = 'renew' and v_now not between v_group.expires_at - interval '48 hours' and v_group.expires_at + interval '7 days' then
      perform posthorn_impl.refuse('renewal_not_open');
    end if;
    if p_kind = 'continue' then
      select c.* into v_conversation from posthorn.conversations c where c.owner_id = v_me.owner_id and c.conversation_id = p_conversation_id;
      if v_conversation.generation < v_group.generation then
        perform posthorn_impl.refuse('conversation_frozen');
      end if;
      if v_conversation.posts < posthorn_impl.limit_value('conversation_posts') * (1 + v_conversation.continuations) then
        perform posthorn_impl.refuse('not_capped');
      end if;
    end if;
  end if;
  select o.* into v_opened
    from posthorn_impl.open_proposal(
      v_actor, v_me.agent_id, p_kind, v_agents, v_group_id, p_conversation_id,
      case p_kind when 'new' then coalesce(p_name, posthorn_impl.name_for(v_me.owner_id, v_agents)) else p_name end, p_purpose, p_project_boundary,
      case p_kind when 'new' then coalesce(p_duration_hours, 168) else p_duration_hours end, v_now) o;
  if v_opened.is_new then
    perform posthorn_impl.ask_owner(v_actor, v_opened.proposal, v_now);
  end if;
  return query
  select p.proposal_id, case when p.state = 'approved' then p.group_id end, not v_opened.is_new
    from posthorn.proposals p
   where p.owner_id = v_me.owner_id
     and p.proposal_id = (v_opened.proposal).proposal_id;
end $$;
comment on function posthorn_api.propose_collaboration(bytea, text, uuid[], text, text, text, int, uuid, uuid, uuid) is 'An agent asks the owner for a new, renewed or continued collaboration. Answers the request (an equal pending one as replayed), and the group where it is approved or there already. [nullable: proposal_id, group_id]';

create function posthorn_impl.name_for(
  p_owner_id int,
  p_agent_ids uuid[]
) returns text
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  select left(string_agg(a.label, ', ' order by a.agent_id), 80) from posthorn.agents a where a.owner_id = p_owner_id and a.agent_id = any (p_agent_ids)
$$;
comment on function posthorn_impl.name_for(int, uuid[]) is 'A name for a collaboration that was asked for without one: its agents'' labels.';

create function posthorn_api.list_proposals(
  p_credential bytea,
  p_agent_id uuid default null,
  p_ids uuid[] default null,
  p_before uuid default null,
  p_limit int default 100
) returns setof posthorn_impl.proposal_view
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_me posthorn_impl.identity := posthorn_impl.identify_agent(p_credential, p_agent_id);
  v_now timestamptz := posthorn_impl.clock();
begin
  return query
  select v.*
    from posthorn_impl.view_proposals(v_me.owner_id, v_me.agent_id, array(
           select p.proposal_id
             from posthorn.proposals p
            where p.owner_id = v_me.owner_id
              and p.agent_ids @> array[v_me.agent_id]
              and case when p_ids is not null then p.proposal_id = any (p_ids)
                       when p.state = 'pending' and p.expires_at > v_now then true
                       else coalesce(p.decided_at, p.expires_at) > v_now - interval '7 days' end
              and (p_before is null or p.proposal_id < p_before)
            order by p.proposal_id desc
            limit p_limit), v_now) v;
end $$;
comment on function posthorn_api.list_proposals(bytea, uuid, uuid[], uuid, int) is 'Requests that the caller is a member of: pending ones and those decided in the last 7 days, newest first, or these ids whenever decided. [nullable: reason, group_id, conversation_id, name, purpose, project_boundary, duration_hours, held_messages, decided_at]';

grant execute on function
  posthorn_api.approve_proposal(bytea, uuid, text, text, int), posthorn_api.deny_proposal(bytea, uuid), posthorn_api.lift_denial(bytea, uuid),
  posthorn_api.list_owner_proposals(bytea, int, uuid, boolean, boolean) to posthorn_app, posthorn_admin;
grant execute on function
  posthorn_api.propose_collaboration(bytea, text, uuid[], text, text, text, int, uuid, uuid, uuid),
  posthorn_api.list_proposals(bytea, uuid, uuid[], uuid, int) to posthorn_app;
