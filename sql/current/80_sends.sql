-- Sending. A pod gathers what its callers send into batches (group commit): it plans, seals each copy
-- for its container and recipient, and calls send_messages once. Every rule is decided here, under
-- locks, with one outcome per item, so that one refused item never fails its neighbour.
set local role posthorn_engine;

create type posthorn_impl.send_item as (
  item int,
  owner_id int,
  connection_id uuid,
  agent_id uuid,
  -- as the caller gave them
  recipient_agent_id uuid,
  group_id uuid,
  conversation_id uuid,
  reply_to uuid,
  purpose text,
  name text,
  duration_hours int,
  sensitive boolean,
  -- what the pod sealed for
  planned_group_id uuid,
  planned_generation int,
  hold_id uuid,
  post_id uuid
);

create type posthorn_impl.send_copy as (
  item int,
  recipient_agent_id uuid,
  message_id uuid,
  ciphertext bytea
);

create type posthorn_impl.send_outcome as (
  item int,
  outcome text,
  detail jsonb,
  conversation_id uuid,
  conversation_kind text,
  group_id uuid,
  created_at timestamptz,
  expires_at timestamptz,
  wakes int[]
);

create function posthorn_impl.address_sends(
  p_items posthorn_impl.send_item[],
  p_now timestamptz
) returns table (
  item int,
  outcome text,
  detail jsonb,
  group_id uuid,
  generation int,
  group_expires_at timestamptz,
  recipient_agent_id uuid,
  agent_low uuid,
  agent_high uuid,
  conversation_id uuid,
  conversation_room bigint,
  hold_kind text
)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
rows 50
as $$
#variable_conflict use_column
declare
  c_nil constant uuid := '00000000-0000-0000-0000-000000000000';
  c_renewable constant interval := '7 days';
  v_conversation_posts bigint := posthorn_impl.limit_value('conversation_posts');
begin
  return query
  select i.item,
         case
           when a.revoked_at is not null then 'agent_revoked'
           when c.revoked_at is not null or c.expires_at <= p_now then 'unauthorized'
           when i.sensitive then 'sensitive_content'
           when i.recipient_agent_id is null and i.group_id is null and i.conversation_id is null then 'invalid_request'
           when i.reply_to is not null and i.conversation_id is null then 'invalid_request'
           when i.recipient_agent_id = i.agent_id then 'invalid_request'
           -- what the caller may not see does not exist
           when i.conversation_id is not null and (named.conversation_id is null or not (case named.kind when 'pair' then i.agent_id in (named.agent_low, named.agent_high) else me.agent_id is not null end)) then 'not_found'
           when i.group_id is not null and me.agent_id is null then 'not_found'
           when i.recipient_agent_id is not null and them.agent_id is null
             and not exists (select from posthorn.agents x where x.owner_id = i.owner_id and x.agent_id = i.recipient_agent_id) then 'not_found'
           when i.reply_to is not null and q.message_id is null then 'not_found'
           -- what the caller gave must agree
           when i.group_id <> named.group_id then 'invalid_request'
           when named.kind = 'group' and i.recipient_agent_id is not null then 'invalid_request'
           when named.kind = 'pair' and i.recipient_agent_id not in (named.agent_low, named.agent_high) then 'invalid_request'
           when q.conversation_id <> i.conversation_id then 'invalid_request'
           when to_be.group_id is null and cardinality(shared.group_ids) > 1 then 'group_required'
           when held.kind is distinct from 'renew' and to_be.group_id is not null and (me.agent_id is null or g.revoked_at is not null or g.expires_at <= p_now) then 'group_unauthorized'
           when named.generation < g.generation then 'conversation_frozen'
           when to_be.recipient_agent_id is not null and them.agent_id is null and i.recipient_agent_id is not null and i.group_id is not null
             and exists (select from posthorn.agents x where x.owner_id = i.owner_id and x.agent_id = i.recipient_agent_id and x.revoked_at is null) then 'invalid_request'
           when held.kind is not null and not exists (
             select from posthorn.agents x
              where x.owner_id = i.owner_id and x.agent_id = to_be.recipient_agent_id and x.revoked_at is null and x.reachable_until > p_now
                and (held.kind = 'new' or them.agent_id is not null)) then 'recipient_unavailable'
           when held.kind = 'new' and i.purpose is null then 'purpose_required'
         end,
         case
           when i.recipient_agent_id is null and i.group_id is null and i.conversation_id is null then '{"fields": ["recipient_agent_id", "group_id", "conversation_id"]}'
           when i.reply_to is not null and i.conversation_id is null then '{"fields": ["reply_to", "conversation_id"]}'
           when i.recipient_agent_id = i.agent_id then '{"fields": ["recipient_agent_id"]}'
           when i.group_id <> named.group_id then '{"fields": ["group_id", "conversation_id"]}'
           when named.kind is not null and i.recipient_agent_id is not null and (named.kind = 'group' or i.recipient_agent_id not in (named.agent_low, named.agent_high)) then '{"fields": ["recipient_agent_id", "conversation_id"]}'
           when q.conversation_id <> i.conversation_id then '{"fields": ["reply_to", "conversation_id"]}'
           when cardinality(shared.group_ids) > 1 then jsonb_build_object('shared_group_ids', shared.group_ids)
           when them.agent_id is null and i.recipient_agent_id is not null and i.group_id is not null then '{"fields": ["recipient_agent_id", "group_id"]}'
         end,
         to_be.group_id, g.generation, g.expires_at, to_be.recipient_agent_id, to_be.agent_low, to_be.agent_high, c2.conversation_id, c2.room, held.kind
    from unnest(p_items) i
    join posthorn.agents a on a.owner_id = i.owner_id and a.agent_id = i.agent_id
    join posthorn.connections c on c.owner_id = i.owner_id and c.connection_id = i.connection_id
    left join posthorn.conversations named on named.owner_id = i.owner_id and named.conversation_id = i.conversation_id
    left join posthorn.messages q on q.owner_id = i.owner_id and q.message_id = i.reply_to and q.recipient_agent_id = i.agent_id
    left join lateral (
      -- looked for only where neither group nor conversation is named
      select array_agg(m.group_id order by m.group_id) as group_ids
        from posthorn.members m
        join posthorn.members n on n.owner_id = i.owner_id and n.group_id = m.group_id and n.agent_id = i.recipient_agent_id
        join posthorn.groups x on x.owner_id = i.owner_id and x.group_id = m.group_id and x.revoked_at is null and x.expires_at > p_now
       where i.group_id is null
         and i.conversation_id is null
         and m.owner_id = i.owner_id
         and m.agent_id = i.agent_id) shared on true
    left join lateral (
      -- the collaboration that ended last, if it can still be renewed
      select x.group_id
        from posthorn.members m
        join posthorn.members n on n.owner_id = i.owner_id and n.group_id = m.group_id and n.agent_id = i.recipient_agent_id
        join posthorn.groups x on x.owner_id = i.owner_id and x.group_id = m.group_id and x.revoked_at is null and x.expires_at > p_now - c_renewable
       where i.group_id is null
         and i.conversation_id is null
         and shared.group_ids is null
         and m.owner_id = i.owner_id
         and m.agent_id = i.agent_id
       order by x.expires_at desc
       limit 1) lapsed on true
   cross join lateral (
      select coalesce(i.group_id, named.group_id, case cardinality(shared.group_ids) when 1 then shared.group_ids[1] end, lapsed.group_id) as group_id,
             coalesce(i.recipient_agent_id, case when named.kind = 'pair' then case i.agent_id when named.agent_low then named.agent_high else named.agent_low end end) as recipient_agent_id) d
   cross join lateral (
      select d.group_id, d.recipient_agent_id,
             case when d.recipient_agent_id is null then c_nil else least(i.agent_id, d.recipient_agent_id) end as agent_low,
             case when d.recipient_agent_id is null then c_nil else greatest(i.agent_id, d.recipient_agent_id) end as agent_high) to_be
    left join posthorn.groups g on g.owner_id = i.owner_id and g.group_id = to_be.group_id
    left join posthorn.members me on me.owner_id = i.owner_id and me.group_id = to_be.group_id and me.agent_id = i.agent_id
    left join posthorn.members them on them.owner_id = i.owner_id and them.group_id = to_be.group_id and them.agent_id = to_be.recipient_agent_id
    left join lateral (
      select x.conversation_id, v_conversation_posts * (1 + x.continuations) - x.posts as room
        from posthorn.conversations x
       where x.owner_id = i.owner_id
         and x.group_id = to_be.group_id
         and x.generation = g.generation
         and x.agent_low = to_be.agent_low
         and x.agent_high = to_be.agent_high) c2 on true
   cross join lateral (
      -- a pair send that no collaboration carries waits behind a request to the owner
      select case
               when to_be.recipient_agent_id is null or cardinality(shared.group_ids) > 1 then null
               when to_be.group_id is null then 'new'
               when g.revoked_at is not null then null
               when g.expires_at <= p_now then case when g.expires_at > p_now - c_renewable then 'renew' end
               when c2.room < 1 then 'continue'
             end as kind) held;
end $$;
comment on function posthorn_impl.address_sends(posthorn_impl.send_item[], timestamptz) is 'Where each item goes: group, generation and recipient (null for a post), or the refusal; a kind of hold where the owner must be asked first. Asked without locks to plan and again under locks to decide.';

create function posthorn_api.plan_sends(
  p_credentials bytea[],
  p_agent_ids uuid[],
  p_recipient_agent_ids uuid[],
  p_group_ids uuid[],
  p_conversation_ids uuid[]
) returns table (
  item int,
  problem text,
  owner_id uuid,
  agent_id uuid,
  group_id uuid,
  generation int,
  is_post boolean,
  is_held boolean,
  recipient_agent_ids uuid[]
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  v_now timestamptz := posthorn_impl.clock();
  v_identities posthorn_impl.identity[] := array(select i from posthorn_impl.identify(p_credentials, p_agent_ids, 'messaging') i);
  v_items posthorn_impl.send_item[] := array(
    select row(i.item, i.owner_id, i.connection_id, i.agent_id, p_recipient_agent_ids[i.item], p_group_ids[i.item], p_conversation_ids[i.item],
               null, '', null, null, false, null, null, null, null)::posthorn_impl.send_item
      from unnest(v_identities) i
     where i.problem is null);
begin
  return query
  select i.item, i.problem, o.id, i.agent_id, t.group_id, t.generation, t.recipient_agent_id is null, t.hold_kind is not null,
         case when t.hold_kind is not null then array[t.recipient_agent_id] else array(
           select m.agent_id
             from posthorn.members m
             join posthorn.agents a on a.owner_id = i.owner_id and a.agent_id = m.agent_id and a.revoked_at is null and a.reachable_until > v_now
            where m.owner_id = i.owner_id
              and m.group_id = t.group_id
              and m.agent_id <> i.agent_id
              and (t.recipient_agent_id is null or m.agent_id = t.recipient_agent_id)
            order by m.agent_id) end
    from unnest(v_identities) i
    left join posthorn.owners o on o.owner_id = i.owner_id
    left join posthorn_impl.address_sends(v_items, v_now) t on t.item = i.item and t.outcome is null
   order by i.item;
end $$;
comment on function posthorn_api.plan_sends(bytea[], uuid[], uuid[], uuid[], uuid[]) is 'What a pod must know before it seals: whose key, which container and which recipients. Decides nothing; an item with no recipient is sent unsealed and refused by name. [nullable: problem, owner_id, agent_id, group_id, generation]';

create function posthorn_impl.apply_sends(
  p_items posthorn_impl.send_item[],
  p_copies posthorn_impl.send_copy[],
  p_now timestamptz
) returns setof posthorn_impl.send_outcome
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
rows 50
as $$
#variable_conflict use_column
declare
  v_group_posts bigint;
  v_inbox bigint;
  v_life interval;
begin
  select max(l.value) filter (where l.name = 'group_posts_per_minute'),
         max(l.value) filter (where l.name = 'inbox_messages'), make_interval(secs => max(l.value) filter (where l.name = 'message_life_seconds'))
    into v_group_posts, v_inbox, v_life
    from posthorn.limits l;
  return query
  with fact as materialized (
    select i.*, t.outcome as refusal, t.detail as refusal_detail, t.group_id as to_group_id, t.generation, t.group_expires_at, t.recipient_agent_id as to_agent_id,
           t.conversation_id as found_conversation_id, t.conversation_room, t.hold_kind,
           v_group_posts - r.posts as rate_room, r.oldest,
           count(*) over (partition by i.owner_id, t.group_id) as group_wanted,
           count(*) over (partition by i.owner_id, t.conversation_id) as conversation_wanted
      from unnest(p_items) i
      join posthorn_impl.address_sends(p_items, p_now) t on t.item = i.item
      left join posthorn.group_counters gc on gc.owner_id = i.owner_id and gc.group_id = t.group_id
      left join lateral (
        select coalesce(sum(x.posts), 0) as posts, min(x.at) as oldest
          from unnest(gc.post_times, gc.post_counts) x(at, posts)
         where x.at > p_now - interval '60 seconds') r on true
  ), copy as materialized (
    -- whom the database expects, beside what the pod sealed
    select f.item, f.owner_id, m.agent_id as recipient_agent_id, c.message_id, c.ciphertext, v_inbox - b.unfenced as room,
           count(*) over (partition by f.owner_id, m.agent_id) as wanted
      from fact f
      join posthorn.members m on m.owner_id = f.owner_id and m.group_id = f.to_group_id and m.agent_id <> f.agent_id and (f.to_agent_id is null or m.agent_id = f.to_agent_id)
      join posthorn.agents a on a.owner_id = f.owner_id and a.agent_id = m.agent_id and a.revoked_at is null and a.reachable_until > p_now
      join posthorn.mailboxes b on b.owner_id = f.owner_id and b.agent_id = m.agent_id
      left join unnest(p_copies) c on c.item = f.item and c.recipient_agent_id = m.agent_id
     where f.refusal is null
  ), roomy as materialized (
    select c.*,
           -- what has expired but was not swept yet takes no room; looked at only near the cap
           c.room + case when c.room < c.wanted then (
             select count(*) from posthorn.bodies x where x.owner_id = c.owner_id and x.recipient_agent_id = c.recipient_agent_id and x.expires_at <= p_now) else 0 end as true_room
      from copy c
  ), addressed as materialized (
    select c.item, count(*) as expected, count(c.message_id) as sealed, min(c.true_room) as room, bool_and(c.wanted <= c.true_room) as fits,
           array_agg(c.recipient_agent_id) filter (where c.true_room < 1) as full_agents
      from roomy c
     group by c.item
  ), given as materialized (
    select c.item, count(*) as copies from unnest(p_copies) c group by c.item
  ), verdict as materialized (
    select f.*, least(p_now + v_life, f.group_expires_at) as ends_at, d.full_agents,
           case
             when f.refusal is not null then f.refusal
             when (f.hold_kind is null) <> (f.hold_id is null) then 'stale_plan'
             when f.hold_kind is not null then case when f.to_group_id is distinct from f.planned_group_id then 'stale_plan' else 'hold' end
             when d.expected is null then 'recipient_unavailable'
             when f.to_group_id is distinct from f.planned_group_id or f.generation is distinct from f.planned_generation
               or d.sealed <> d.expected or n.copies is distinct from d.expected or (f.to_agent_id is null) <> (f.post_id is not null) then 'stale_plan'
             when f.found_conversation_id is null then 'conversation_missing'
             when f.conversation_room < 1 then 'conversation_capped'
             when f.rate_room < 1 then 'rate_limited'
             when d.room < 1 then 'queue_full'
             when f.group_wanted > f.rate_room or f.conversation_wanted > f.conversation_room or not d.fits then 'contended'
             else 'queued'
           end as outcome
      from fact f
      left join addressed d on d.item = f.item
      left join given n on n.item = f.item
  ), taken as materialized (
    -- by a boolean: "outcome = 'queued'" on a CTE is estimated as one row, and the joins below become
    -- nested loops, quadratic in the copies
    select v.* from (select v.*, v.outcome = 'queued' as is_queued from verdict v offset 0) v where v.is_queued
  ), sent as materialized (
    select k.item, k.owner_id, k.agent_id, k.connection_id, k.to_group_id, k.found_conversation_id, k.post_id, k.reply_to, k.ends_at,
           c.recipient_agent_id, c.message_id, c.ciphertext,
           row_number() over (partition by k.owner_id, c.recipient_agent_id order by k.item) as position
      from taken k
      join copy c on c.item = k.item
  ), counted as (
    update posthorn.mailboxes b
       set message_seq = b.message_seq + x.copies,
           event_seq = b.event_seq + x.copies,
           unfenced = b.unfenced + x.copies
      from (select s.owner_id, s.recipient_agent_id, count(*)::int as copies from sent s group by s.owner_id, s.recipient_agent_id) x
     where b.owner_id = x.owner_id
       and b.agent_id = x.recipient_agent_id
    returning b.owner_id, b.agent_id, b.wake_number, b.message_seq - x.copies as message_base, b.event_seq - x.copies as event_base
  ), placed as materialized (
    select s.*, b.wake_number, b.message_base + s.position as message_seq, b.event_base + s.position as event_seq
      from sent s
      join counted b on b.owner_id = s.owner_id and b.agent_id = s.recipient_agent_id
  ), conversed as (
    update posthorn.conversations c
       set posts = c.posts + x.posts
      from (select k.owner_id, k.found_conversation_id, count(*)::int as posts from taken k group by k.owner_id, k.found_conversation_id) x
     where c.owner_id = x.owner_id
       and c.conversation_id = x.found_conversation_id
  ), rated as (
    update posthorn.group_counters g
       set (post_times, post_counts) = (select w.times, w.counts from posthorn_impl.note_posts(g.post_times, g.post_counts, x.posts, v_group_posts, p_now) w)
      from (select k.owner_id, k.to_group_id, count(*)::int as posts from taken k group by k.owner_id, k.to_group_id) x
     where g.owner_id = x.owner_id
       and g.group_id = x.to_group_id
  ), posted as (
    insert into posthorn.posts (owner_id, post_id, conversation_id, sender_agent_id, message_ids, created_at)
    select p.owner_id, p.post_id, p.found_conversation_id, p.agent_id, array_agg(p.message_id order by p.recipient_agent_id), p_now
      from placed p
     where p.post_id is not null
     group by p.owner_id, p.post_id, p.found_conversation_id, p.agent_id
  ), stored as (
    insert into posthorn.messages (owner_id, message_id, state, recipient_agent_id, seq, sender_agent_id, connection_id, group_id, conversation_id, post_id, reply_to, created_at, expires_at)
    select p.owner_id, p.message_id, 'queued', p.recipient_agent_id, p.message_seq, p.agent_id, p.connection_id, p.to_group_id, p.found_conversation_id, p.post_id, p.reply_to, p_now, p.ends_at
      from placed p
  ), sealed as (
    insert into posthorn.bodies (owner_id, recipient_agent_id, seq, message_id, expires_at, ciphertext)
    select p.owner_id, p.recipient_agent_id, p.message_seq, p.message_id, p.ends_at, p.ciphertext
      from placed p
  ), told as (
    insert into posthorn.events (owner_id, agent_id, seq, kind, subject_id, occurred_at)
    select p.owner_id, p.recipient_agent_id, p.event_seq, 'messaging.pending', p.message_id, p_now
      from placed p
  )
  select v.item, v.outcome,
         case v.outcome
           when 'queue_full' then jsonb_build_object('recipient_agent_ids', v.full_agents)
           when 'conversation_capped' then jsonb_build_object('conversation_id', v.found_conversation_id)
           when 'rate_limited' then jsonb_build_object('retry_after', greatest(1, ceil(extract(epoch from v.oldest + interval '60 seconds' - p_now))))
           else v.refusal_detail
         end,
         v.found_conversation_id, case when v.to_agent_id is null then 'group' else 'pair' end, v.to_group_id, p_now, v.ends_at, w.wakes
    from verdict v
    left join (select p.item, array_agg(p.wake_number) as wakes from placed p group by p.item) w on w.item = v.item;
end $$;
comment on function posthorn_impl.apply_sends(posthorn_impl.send_item[], posthorn_impl.send_copy[], timestamptz) is 'Decides and stores a set of items whose keys are claimed and whose groups and mailboxes are locked. Caps are compared with every candidate counted: what fits is stored, what fits not even alone is refused by name, and what lies between is contended, for the caller to try alone.';

create function posthorn_impl.note_posts(
  p_times timestamptz[],
  p_counts int[],
  p_posts int,
  p_limit bigint,
  p_now timestamptz
) returns table (
  times timestamptz[],
  counts int[]
)
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
rows 1
as $$
declare
  v_first int := 1;
  v_last int := cardinality(p_times);
begin
  while v_first <= v_last and p_times[v_first] <= p_now - interval '60 seconds' loop
    v_first := v_first + 1;
  end loop;
  times := p_times[v_first:];
  counts := p_counts[v_first:];
  v_last := cardinality(times);
  -- With a limit raised past 120 the array would grow with it; then posts of one second of the clock
  -- share the latest time among them, which can only make the window stricter, by a second.
  if v_last > 0 and p_limit > 120 and floor(extract(epoch from times[v_last])) = floor(extract(epoch from p_now)) then
    counts[v_last] := counts[v_last] + p_posts;
    times[v_last] := p_now;
  else
    times := times || p_now;
    counts := counts || p_posts;
  end if;
  return next;
end $$;
comment on function posthorn_impl.note_posts(timestamptz[], int[], int, bigint, timestamptz) is 'The rate window of a group after some more posts: times of the last 60 seconds and how many posts each stands for.';

create function posthorn_impl.hold_send(
  p_item posthorn_impl.send_item,
  p_copy posthorn_impl.send_copy
) returns posthorn_impl.send_outcome
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz := posthorn_impl.clock();
  v_actor posthorn_impl.proven := row(1, p_item.owner_id, p_item.connection_id, null, null, p_item.agent_id);
  v_to record;
  v_opened record;
  v_proposal posthorn.proposals;
  v_message posthorn.messages;
  v_code text;
  v_detail text;
begin
  select t.* into v_to from posthorn_impl.address_sends(array[p_item], v_now) t;
  if v_to.outcome is not null or v_to.hold_kind is null then
    -- an item of this batch before it changed what this one asks for
    return row(p_item.item, coalesce(v_to.outcome, 'stale_plan'), v_to.detail, null, null, null, null, null, null)::posthorn_impl.send_outcome;
  end if;
  begin
    select o.* into v_opened
      from posthorn_impl.open_proposal(
        v_actor, p_item.agent_id, v_to.hold_kind,
        case v_to.hold_kind when 'new' then array[v_to.agent_low, v_to.agent_high]
             else array(select m.agent_id from posthorn.members m where m.owner_id = p_item.owner_id and m.group_id = v_to.group_id order by m.agent_id) end,
        v_to.group_id, case v_to.hold_kind when 'continue' then v_to.conversation_id end,
        case v_to.hold_kind when 'new' then coalesce(p_item.name, posthorn_impl.name_for(p_item.owner_id, array[v_to.agent_low, v_to.agent_high])) else p_item.name end,
        p_item.purpose, null,
        case v_to.hold_kind when 'new' then coalesce(p_item.duration_hours, 168) else p_item.duration_hours end) o;
    v_proposal := v_opened.proposal;
    if (select count(*) from posthorn.held_bodies h where h.owner_id = p_item.owner_id and h.proposal_id = v_proposal.proposal_id)
       >= posthorn_impl.limit_value('held_messages_per_proposal') then
      perform posthorn_impl.refuse('conversation_capped', jsonb_build_object('conversation_id', v_to.conversation_id, 'proposal_id', v_proposal.proposal_id));
    end if;
    insert into posthorn.messages (owner_id, message_id, state, recipient_agent_id, sender_agent_id, connection_id, group_id, conversation_id, reply_to, proposal_id, hold_id, created_at, expires_at)
    values (p_item.owner_id, p_copy.message_id, 'held', p_copy.recipient_agent_id, p_item.agent_id, p_item.connection_id,
            case v_to.hold_kind when 'continue' then v_to.group_id end, case v_to.hold_kind when 'continue' then v_to.conversation_id end,
            p_item.reply_to, v_proposal.proposal_id, p_item.hold_id, v_now, v_proposal.expires_at);
    insert into posthorn.held_bodies (owner_id, proposal_id, position, message_id, ciphertext)
    select p_item.owner_id, v_proposal.proposal_id, coalesce(max(h.position), 0) + 1, p_copy.message_id, p_copy.ciphertext
      from posthorn.held_bodies h
     where h.owner_id = p_item.owner_id
       and h.proposal_id = v_proposal.proposal_id;
    if v_opened.is_new then
      perform posthorn_impl.approve_automatically(v_actor, v_proposal);
    end if;
  exception when others then
    -- a refusal of this item undoes what it did and fails nobody else
    if sqlstate not like 'MH%' then
      raise;
    end if;
    get stacked diagnostics v_code = message_text, v_detail = pg_exception_detail;
    return row(p_item.item, v_code, v_detail::jsonb, null, null, null, null, null, null)::posthorn_impl.send_outcome;
  end;
  select m.* into v_message from posthorn.messages m where m.owner_id = p_item.owner_id and m.message_id = p_copy.message_id;
  return row(p_item.item, v_message.state,
             case v_message.state when 'held' then jsonb_build_object('proposal_id', v_proposal.proposal_id)
                  else jsonb_build_object('proposal_id', v_proposal.proposal_id, 'auto_approved', true) end,
             v_message.conversation_id, 'pair', v_message.group_id, v_message.created_at, v_message.expires_at, null)::posthorn_impl.send_outcome;
end $$;
comment on function posthorn_impl.hold_send(posthorn_impl.send_item, posthorn_impl.send_copy) is 'Stores one sealed message behind a request to the owner: held, or queued where the owner approves automatically. Under the locks of owner, group and both mailboxes.';

create function posthorn_api.send_messages(
  p_credentials bytea[],
  p_agent_ids uuid[],
  p_keys text[],
  p_fingerprints bytea[],
  p_recipient_agent_ids uuid[],
  p_group_ids uuid[],
  p_conversation_ids uuid[],
  p_replies_to uuid[],
  p_purposes text[],
  p_names text[],
  p_durations_hours int[],
  p_sensitive boolean[],
  p_planned_group_ids uuid[],
  p_planned_generations int[],
  p_hold_ids uuid[],
  p_post_ids uuid[],
  p_copy_items int[],
  p_copy_recipients uuid[],
  p_copy_message_ids uuid[],
  p_copy_ciphertexts bytea[]
) returns table (
  item int,
  outcome text,
  detail jsonb,
  conversation_id uuid,
  conversation_kind text,
  group_id uuid,
  post_id uuid,
  message_ids uuid[],
  created_at timestamptz,
  expires_at timestamptz
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  v_now timestamptz := posthorn_impl.clock();
  v_identities posthorn_impl.identity[] := array(select i from posthorn_impl.identify(p_credentials, p_agent_ids, 'messaging') i);
  v_items posthorn_impl.send_item[];  -- those whose key this transaction claimed
  v_copies posthorn_impl.send_copy[];
  v_decided posthorn_impl.send_outcome[] := '{}';
  v_undecided int[];
  v_answered posthorn_impl.advance[];
  v_wakes int[];
begin
  -- Claims come first, in the order of their keys, before any other lock: a transaction that waits for
  -- a key in flight elsewhere holds nothing but keys. Claimed in no order they deadlocked 17 times in
  -- 240 calls.
  with known as materialized (
    select i.item, i.owner_id, i.connection_id, i.agent_id, p_keys[i.item] as key,
           p_sensitive[i.item] and o.sensitive_content_check as sensitive,
           row_number() over (partition by i.owner_id, i.agent_id, p_keys[i.item] order by i.item) = 1 as is_first
      from unnest(v_identities) i
      join posthorn.owners o on o.owner_id = i.owner_id
     where i.problem is null
  ), receipt as materialized (
    select c.item, array_agg(c.message_id order by c.recipient_agent_id) as message_ids
      from unnest(p_copy_items, p_copy_recipients, p_copy_message_ids) c(item, recipient_agent_id, message_id)
     group by c.item
  ), claim as (
    insert into posthorn.idempotency_keys (owner_id, agent_id, operation, key, fingerprint, post_id, message_ids, created_at)
    select k.owner_id, k.agent_id, 'send_message', k.key, p_fingerprints[k.item], p_post_ids[k.item], coalesce(r.message_ids, '{}'), v_now
      from known k
      left join receipt r on r.item = k.item
     where k.is_first
     order by k.owner_id, k.agent_id, k.key
    on conflict do nothing
    returning owner_id, agent_id, key
  )
  select array_agg(row(k.item, k.owner_id, k.connection_id, k.agent_id, p_recipient_agent_ids[k.item], p_group_ids[k.item], p_conversation_ids[k.item],
                       p_replies_to[k.item], p_purposes[k.item], p_names[k.item], p_durations_hours[k.item], k.sensitive,
                       p_planned_group_ids[k.item], p_planned_generations[k.item], p_hold_ids[k.item], p_post_ids[k.item])::posthorn_impl.send_item order by k.item)
    into v_items
    from known k
    join claim c on c.owner_id = k.owner_id and c.agent_id = k.agent_id and c.key = k.key
   where k.is_first;

  if v_items is not null then
    -- requests to an owner come one after the other, and their lock comes before groups and mailboxes
    perform 1
       from posthorn.owners o
       join (select distinct i.owner_id from unnest(v_items) i where i.hold_id is not null) x on x.owner_id = o.owner_id
      order by o.owner_id
        for no key update of o;
    perform 1
       from posthorn.group_counters g
       join (select distinct i.owner_id, i.planned_group_id from unnest(v_items) i) x on x.owner_id = g.owner_id and x.planned_group_id = g.group_id
      order by g.owner_id, g.group_id
        for no key update of g;
    v_copies := array(
      select row(c.item, c.recipient_agent_id, c.message_id, c.ciphertext)::posthorn_impl.send_copy
        from unnest(p_copy_items, p_copy_recipients, p_copy_message_ids, p_copy_ciphertexts) c(item, recipient_agent_id, message_id, ciphertext)
        join unnest(v_items) i on i.item = c.item);
    perform 1
       from posthorn.mailboxes b
       join (select i.owner_id, c.recipient_agent_id as agent_id
               from unnest(v_copies) c
               join unnest(v_items) i on i.item = c.item
              union
             -- a reply fences what it answers and tells its sender
             select i.owner_id, x.agent_id
               from unnest(v_items) i
               join posthorn.messages q on q.owner_id = i.owner_id and q.message_id = i.reply_to
              cross join lateral (values (i.agent_id), (q.sender_agent_id)) x(agent_id)
              union
             -- an automatic approval tells the sender
             select i.owner_id, i.agent_id from unnest(v_items) i where i.hold_id is not null) y
         on y.owner_id = b.owner_id
        and y.agent_id = b.agent_id
      order by b.owner_id, b.agent_id
        for no key update of b;
    v_now := posthorn_impl.clock();

    v_decided := array(select d from posthorn_impl.apply_sends(v_items, v_copies, v_now) d);
    -- rare: conversations made on first use; the group's lock keeps others from making them too
    insert into posthorn.conversations (owner_id, kind, group_id, generation, agent_low, agent_high, created_at)
    select distinct i.owner_id, case when t.recipient_agent_id is null then 'group' else 'pair' end, t.group_id, t.generation, t.agent_low, t.agent_high, v_now
      from unnest(v_decided) d
      join unnest(v_items) i on i.item = d.item
      join posthorn_impl.address_sends(v_items, v_now) t on t.item = d.item
     where d.outcome = 'conversation_missing'
    on conflict on constraint one_conversation_per_generation_and_pair do nothing;
    v_undecided := array(select d.item from unnest(v_decided) d where d.outcome = 'conversation_missing');
    if cardinality(v_undecided) > 0 then
      v_decided := array(
        select d from unnest(v_decided) d where d.item <> all (v_undecided)
        union all
        select d from posthorn_impl.apply_sends(array(select i from unnest(v_items) i where i.item = any (v_undecided)), v_copies, v_now) d);
    end if;
    -- rare: what crosses a cap inside this batch, one by one, in order
    v_undecided := array(select d.item from unnest(v_decided) d where d.outcome = 'contended' order by d.item);
    for n in 1 .. cardinality(v_undecided) loop
      v_decided := array(
        select d from unnest(v_decided) d where d.item <> v_undecided[n]
        union all
        select d from posthorn_impl.apply_sends(array(select i from unnest(v_items) i where i.item = v_undecided[n]), v_copies, v_now) d);
    end loop;

    -- rare: what waits for the owner
    v_undecided := array(select d.item from unnest(v_decided) d where d.outcome = 'hold' order by d.item);
    for n in 1 .. cardinality(v_undecided) loop
      v_decided := array(
        select d from unnest(v_decided) d where d.item <> v_undecided[n]
        union all
        select posthorn_impl.hold_send(i, c) from unnest(v_items) i join unnest(v_copies) c on c.item = i.item where i.item = v_undecided[n]);
    end loop;

    v_answered := array(
      select row(i.owner_id, i.reply_to, 'replied', false, false)::posthorn_impl.advance
        from unnest(v_decided) d
        join unnest(v_items) i on i.item = d.item
       where d.outcome = 'queued'
         and i.hold_id is null
         and i.reply_to is not null);
    if cardinality(v_answered) > 0 then
      v_wakes := posthorn_impl.advance_messages(v_answered, v_now);
    end if;

    -- a refusal leaves no claim: the same key may succeed later
    delete from posthorn.idempotency_keys k
     using unnest(v_decided) d
      join unnest(v_items) i on i.item = d.item
     where d.outcome not in ('queued', 'held')
       and k.owner_id = i.owner_id
       and k.agent_id = i.agent_id
       and k.operation = 'send_message'
       and k.key = p_keys[d.item];

    perform posthorn_impl.wake(v_wakes || array(select w from unnest(v_decided) d, unnest(d.wakes) w));
  end if;

  return query
  select d.item, d.outcome, d.detail, d.conversation_id, d.conversation_kind, d.group_id, p_post_ids[d.item],
         array(select c.message_id from unnest(v_copies) c where c.item = d.item order by c.recipient_agent_id), d.created_at, d.expires_at
    from unnest(v_decided) d
  union all
  -- Not claimed here: unknown callers, and keys that were taken before or by an item of this batch. Read
  -- by a statement of its own, whose snapshot shows the winner that a claim waited for.
  select i.item,
         case
           when i.problem is not null then i.problem
           when k.fingerprint = p_fingerprints[i.item] then 'replayed'
           when k.fingerprint is not null then 'idempotency_conflict'
           -- its twin in this batch was refused
           else coalesce((select t.outcome from unnest(v_decided) t join unnest(v_items) x on x.item = t.item
                           where x.owner_id = i.owner_id and x.agent_id = i.agent_id and p_keys[x.item] = p_keys[i.item] and p_fingerprints[x.item] = p_fingerprints[i.item]), 'stale_plan')
         end,
         (select t.detail from unnest(v_decided) t join unnest(v_items) x on x.item = t.item
           where k.key is null and i.problem is null and x.owner_id = i.owner_id and x.agent_id = i.agent_id and p_keys[x.item] = p_keys[i.item]),
         null, null, null, k.post_id, k.message_ids, k.created_at, null
    from unnest(v_identities) i
    left join posthorn.idempotency_keys k
           on k.owner_id = i.owner_id
          and k.agent_id = i.agent_id
          and k.operation = 'send_message'
          and k.key = p_keys[i.item]
          and i.problem is null
   where not exists (select from unnest(v_items) x where x.item = i.item)
  order by 1;
end $$;
comment on function posthorn_api.send_messages(bytea[], uuid[], text[], bytea[], uuid[], uuid[], uuid[], uuid[], text[], text[], int[], boolean[], uuid[], int[], uuid[], uuid[], int[], uuid[], uuid[], bytea[]) is 'Sends a batch: parallel arrays of items, and of copies that name their item by position. One outcome each: queued, held (behind the request in detail), replayed, stale_plan (plan and seal again), or the code of a refusal. The same function with arrays of one serves psql. [nullable: detail, conversation_id, conversation_kind, group_id, post_id, message_ids, created_at, expires_at]';

grant execute on function
  posthorn_api.plan_sends(bytea[], uuid[], uuid[], uuid[], uuid[]),
  posthorn_api.send_messages(bytea[], uuid[], text[], bytea[], uuid[], uuid[], uuid[], uuid[], text[], text[], int[], boolean[], uuid[], int[], uuid[], uuid[], int[], uuid[], uuid[], bytea[]) to posthorn_app;
