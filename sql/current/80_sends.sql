-- Sending. A pod gathers what its callers send into batches (group commit): it plans, seals each copy
-- for its container and recipient, and calls send_messages once. Every rule is decided here, under
-- locks, with one outcome per item, so that one refused item never fails its neighbour.
set local role posthorn_engine;

create type posthorn_impl.send_copy as (
  recipient_agent_id uuid,
  message_id uuid,
  ciphertext bytea
);

create type posthorn_impl.send_item as (
  item int,
  owner_id int,
  connection_id uuid,
  agent_id uuid,
  -- as the caller gave them
  key text,
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
  post_id uuid,
  copies posthorn_impl.send_copy[],
  message_ids uuid[] -- of the copies, in the order of their recipients
);

create type posthorn_impl.send_outcome as (
  item int,
  outcome text,
  detail jsonb,
  conversation_id uuid,
  conversation_kind text,
  group_id uuid,
  post_id uuid,
  message_ids uuid[],
  created_at timestamptz,
  expires_at timestamptz,
  wakes int[]
);

-- Three kinds of join have no place in functions that only look rows up by key. Forbidden, they keep a
-- plan from depending on how large the tables were when it was cached: plans made on a fresh database
-- read whole tables for each batch and made sends 30 times slower until the first ANALYZE.

-- A table that a statement names costs 15 microseconds a call even when no row asks for it, so rare questions
-- are functions: find_groups_between, standing_of, count_expired.

create type posthorn_impl.groups_between as (
  group_ids uuid[],       -- active ones of which both are members
  lapsed_group_id uuid    -- without an active one: that which ended last, if it can still be renewed
);

create function posthorn_impl.find_groups_between(
  p_owner_id int,
  p_agent_id uuid,
  p_peer_agent_id uuid,
  p_now timestamptz
) returns posthorn_impl.groups_between
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_hashjoin = off
set enable_mergejoin = off
set enable_seqscan = off
as $$
declare
  c_renewable constant interval := '7 days';
  v_found posthorn_impl.groups_between;
begin
  select array_agg(x.group_id order by x.group_id) filter (where x.expires_at > p_now),
         (array_agg(x.group_id order by x.expires_at desc))[1]
    into v_found
    from posthorn.members m
    join posthorn.members n on n.owner_id = p_owner_id and n.group_id = m.group_id and n.agent_id = p_peer_agent_id
    join posthorn.groups x on x.owner_id = p_owner_id and x.group_id = m.group_id and x.revoked_at is null and x.expires_at > p_now - c_renewable
   where m.owner_id = p_owner_id
     and m.agent_id = p_agent_id;
  if v_found.group_ids is not null then
    v_found.lapsed_group_id := null;
  end if;
  return v_found;
end $$;
comment on function posthorn_impl.find_groups_between(int, uuid, uuid, timestamptz) is 'The collaborations that two agents share, or else the one that ended last, within the time in which it can be renewed.';

create function posthorn_impl.standing_of(
  p_owner_id int,
  p_agent_id uuid,
  p_now timestamptz
) returns text
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  select case when a.revoked_at is not null then 'revoked' when a.reachable_until <= p_now then 'unreachable' else 'reachable' end
    from posthorn.agents a
   where a.owner_id = p_owner_id
     and a.agent_id = p_agent_id
$$;
comment on function posthorn_impl.standing_of(int, uuid, timestamptz) is 'Whether mail may reach an agent: revoked, unreachable or reachable; null for one that does not exist.';

create function posthorn_impl.count_expired(
  p_owner_id int,
  p_agent_id uuid,
  p_now timestamptz
) returns bigint
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  select count(*) from posthorn.bodies b where b.owner_id = p_owner_id and b.recipient_agent_id = p_agent_id and b.expires_at <= p_now
$$;
comment on function posthorn_impl.count_expired(int, uuid, timestamptz) is 'Messages of an inbox that are past their deadline and not yet swept.';

create function posthorn_impl.address_sends(
  p_items posthorn_impl.send_item[],
  p_now timestamptz
) returns table (
  item int,
  owner_id int,
  connection_id uuid,
  agent_id uuid,
  reply_to uuid,
  planned_group_id uuid,
  planned_generation int,
  hold_id uuid,
  post_id uuid,
  copies posthorn_impl.send_copy[],
  message_ids uuid[],
  refusal text,
  refusal_detail jsonb,
  to_group_id uuid,
  generation int,
  group_expires_at timestamptz,
  to_agent_id uuid,
  agent_low uuid,
  agent_high uuid,
  found_conversation_id uuid,
  conversation_room bigint,
  hold_kind text
)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_hashjoin = off
set enable_mergejoin = off
set enable_seqscan = off
rows 50
as $$
#variable_conflict use_column
declare
  c_nil constant uuid := '00000000-0000-0000-0000-000000000000';
  c_renewable constant interval := '7 days';
  v_conversation_posts bigint := posthorn_impl.limit_value('conversation_posts');
begin
  return query
  -- a step of its own, since the joins below can use an index only by plain columns
  with target as materialized (
    select i.*, named.conversation_id as named_conversation_id, named.kind as named_kind, named.group_id as named_group_id, named.generation as named_generation,
           named.agent_low as named_low, named.agent_high as named_high, shared.group_ids as shared_group_ids,
           coalesce(i.group_id, named.group_id, case cardinality(shared.group_ids) when 1 then shared.group_ids[1] end, shared.lapsed_group_id) as to_group_id,
           coalesce(i.recipient_agent_id, case when named.kind = 'pair' then case i.agent_id when named.agent_low then named.agent_high else named.agent_low end end) as to_agent_id
      from unnest(p_items) i
      left join posthorn.conversations named on named.owner_id = i.owner_id and named.conversation_id = i.conversation_id
     cross join lateral (
        select case when i.group_id is null and i.conversation_id is null and i.recipient_agent_id is not null
                 then posthorn_impl.find_groups_between(i.owner_id, i.agent_id, i.recipient_agent_id, p_now) end as between_them
        offset 0) x
     cross join lateral (select (x.between_them).group_ids, (x.between_them).lapsed_group_id) shared
  )
  select i.item, i.owner_id, i.connection_id, i.agent_id, i.reply_to, i.planned_group_id, i.planned_generation, i.hold_id, i.post_id, i.copies, i.message_ids,
         r.refusal,
         -- facts beside another refusal would tell of what the caller may not see
         case when r.refusal in ('invalid_request', 'group_required') then
         case
           when i.recipient_agent_id is null and i.group_id is null and i.conversation_id is null then '{"fields": ["recipient_agent_id", "group_id", "conversation_id"]}'
           when i.reply_to is not null and i.conversation_id is null then '{"fields": ["reply_to", "conversation_id"]}'
           when i.recipient_agent_id = i.agent_id then '{"fields": ["recipient_agent_id"]}'
           when i.group_id <> i.named_group_id then '{"fields": ["group_id", "conversation_id"]}'
           when i.named_kind is not null and i.recipient_agent_id is not null and (i.named_kind = 'group' or i.recipient_agent_id not in (i.named_low, i.named_high)) then '{"fields": ["recipient_agent_id", "conversation_id"]}'
           when q.conversation_id <> i.conversation_id then '{"fields": ["reply_to", "conversation_id"]}'
           when cardinality(i.shared_group_ids) > 1 then jsonb_build_object('shared_group_ids', i.shared_group_ids)
           when them.agent_id is null and i.recipient_agent_id is not null and i.group_id is not null then '{"fields": ["recipient_agent_id", "group_id"]}'
         end end,
         i.to_group_id, g.generation, g.expires_at, i.to_agent_id, ends.low, ends.high, found.conversation_id, found.room, held.kind
    from target i
   cross join lateral (
      select case when i.to_agent_id is null then c_nil else least(i.agent_id, i.to_agent_id) end as low,
             case when i.to_agent_id is null then c_nil else greatest(i.agent_id, i.to_agent_id) end as high) ends
    join posthorn.agents a on a.owner_id = i.owner_id and a.agent_id = i.agent_id
    join posthorn.connections c on c.owner_id = i.owner_id and c.connection_id = i.connection_id
    left join posthorn.messages q on q.owner_id = i.owner_id and q.message_id = i.reply_to and q.recipient_agent_id = i.agent_id
    left join posthorn.groups g on g.owner_id = i.owner_id and g.group_id = i.to_group_id
    left join posthorn.members me on me.owner_id = i.owner_id and me.group_id = i.to_group_id and me.agent_id = i.agent_id
    left join posthorn.members them on them.owner_id = i.owner_id and them.group_id = i.to_group_id and them.agent_id = i.to_agent_id
    left join lateral (
      select x.conversation_id, v_conversation_posts * (1 + x.continuations) - x.posts as room
        from posthorn.conversations x
       where x.owner_id = i.owner_id
         and x.group_id = i.to_group_id
         and x.generation = g.generation
         and x.agent_low = ends.low
         and x.agent_high = ends.high) found on true
   cross join lateral (
      -- a pair send that no collaboration carries waits behind a request to the owner
      select case
               when i.to_agent_id is null or cardinality(i.shared_group_ids) > 1 then null
               when i.to_group_id is null then 'new'
               when g.revoked_at is not null then null
               -- the next generation cannot answer this one
               when g.expires_at <= p_now then case when g.expires_at > p_now - c_renewable and i.reply_to is null then 'renew' end
               when found.room < 1 then 'continue'
             end as kind) held
   cross join lateral (
      select
         case
           when a.revoked_at is not null then 'agent_revoked'
           when c.revoked_at is not null or c.expires_at <= p_now then 'unauthorized'
           when i.sensitive then 'sensitive_content'
           when i.recipient_agent_id is null and i.group_id is null and i.conversation_id is null then 'invalid_request'
           when i.reply_to is not null and i.conversation_id is null then 'invalid_request'
           when i.recipient_agent_id = i.agent_id then 'invalid_request'
           -- what the caller may not see does not exist
           when i.conversation_id is not null and (i.named_conversation_id is null or not (case i.named_kind when 'pair' then i.agent_id in (i.named_low, i.named_high) else me.agent_id is not null end)) then 'not_found'
           when i.group_id is not null and me.agent_id is null then 'not_found'
           when i.recipient_agent_id is not null and them.agent_id is null
             and posthorn_impl.standing_of(i.owner_id, i.recipient_agent_id, p_now) is null then 'not_found'
           when i.reply_to is not null and q.message_id is null then 'not_found'
           -- what the caller gave must agree
           when i.group_id <> i.named_group_id then 'invalid_request'
           when i.named_kind = 'group' and i.recipient_agent_id is not null then 'invalid_request'
           when i.named_kind = 'pair' and i.recipient_agent_id not in (i.named_low, i.named_high) then 'invalid_request'
           when q.conversation_id <> i.conversation_id then 'invalid_request'
           when i.to_group_id is null and cardinality(i.shared_group_ids) > 1 then 'group_required'
           when held.kind is distinct from 'renew' and i.to_group_id is not null and (me.agent_id is null or g.revoked_at is not null or g.expires_at <= p_now) then 'group_unauthorized'
           when i.named_generation < g.generation then 'conversation_frozen'
           when i.to_agent_id is not null and them.agent_id is null and i.recipient_agent_id is not null and i.group_id is not null
             and posthorn_impl.standing_of(i.owner_id, i.recipient_agent_id, p_now) in ('reachable', 'unreachable') then 'invalid_request'
           when held.kind is not null
             and (held.kind <> 'new' and them.agent_id is null or posthorn_impl.standing_of(i.owner_id, i.to_agent_id, p_now) is distinct from 'reachable') then 'recipient_unavailable'
           when held.kind = 'new' and i.purpose is null then 'purpose_required'
         end as refusal) r;
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
    select row(i.item, i.owner_id, i.connection_id, i.agent_id, null, p_recipient_agent_ids[i.item], p_group_ids[i.item], p_conversation_ids[i.item],
               null, '', null, null, false, null, null, null, null, null, null)::posthorn_impl.send_item
      from unnest(v_identities) i
     where i.problem is null);
begin
  return query
  select i.item, i.problem, o.id, i.agent_id, t.to_group_id, t.generation, t.to_agent_id is null, t.hold_kind is not null,
         case when t.hold_kind is not null then array[t.to_agent_id] else array(
           select m.agent_id
             from posthorn.members m
             join posthorn.agents a on a.owner_id = i.owner_id and a.agent_id = m.agent_id and a.revoked_at is null and a.reachable_until > v_now
            where m.owner_id = i.owner_id
              and m.group_id = t.to_group_id
              and m.agent_id <> i.agent_id
              and (t.to_agent_id is null or m.agent_id = t.to_agent_id)
            order by m.agent_id) end
    from unnest(v_identities) i
    left join posthorn.owners o on o.owner_id = i.owner_id
    left join posthorn_impl.address_sends(v_items, v_now) t on t.item = i.item and t.refusal is null
   order by i.item;
end $$;
comment on function posthorn_api.plan_sends(bytea[], uuid[], uuid[], uuid[], uuid[]) is 'What a pod must know before it seals: whose key, which container and which recipients. Decides nothing; an item with no recipient is sent unsealed and refused by name. [nullable: problem, owner_id, agent_id, group_id, generation]';

create function posthorn_impl.lock_sends(
  p_items posthorn_impl.send_item[]
) returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_hashjoin = off
set enable_mergejoin = off
set enable_seqscan = off
as $$
declare
  v_asks posthorn_impl.send_item[] := array(select i from unnest(p_items) i where i.hold_id is not null);
begin
  if cardinality(v_asks) > 0 then
    -- requests to an owner come one after the other, and their lock comes before groups and mailboxes
    perform 1
       from posthorn.owners o
       join (select distinct i.owner_id from unnest(v_asks) i) x on x.owner_id = o.owner_id
      order by o.owner_id
        for no key update of o;
  end if;
  perform 1
     from posthorn.group_counters g
     join (select distinct i.owner_id, i.planned_group_id from unnest(p_items) i) x on x.owner_id = g.owner_id and x.planned_group_id = g.group_id
    order by g.owner_id, g.group_id
      for no key update of g;
  perform 1
     from posthorn.mailboxes b
     join (select i.owner_id, c.recipient_agent_id as agent_id
             from unnest(p_items) i
            cross join lateral unnest(i.copies) c
            union
           -- a reply fences what it answers and tells its sender
           select i.owner_id, x.agent_id
             from unnest(p_items) i
             join posthorn.messages q on q.owner_id = i.owner_id and q.message_id = i.reply_to
            cross join lateral (values (i.agent_id), (q.sender_agent_id)) x(agent_id)
            union
           -- an automatic approval tells the sender, and whoever waits behind a request that it ends
           select i.owner_id, x.agent_id
             from unnest(v_asks) i
            cross join lateral unnest(posthorn_impl.agents_of_requests(i.owner_id) || i.agent_id) x(agent_id)) y
       on y.owner_id = b.owner_id
      and y.agent_id = b.agent_id
    order by b.owner_id, b.agent_id
      for no key update of b;
end $$;
comment on function posthorn_impl.lock_sends(posthorn_impl.send_item[]) is 'The locks of a set of items: the owners that one asks something of, their groups, then the mailboxes that they may touch, each in order.';

create function posthorn_impl.apply_sends(
  p_items posthorn_impl.send_item[],
  p_now timestamptz
) returns setof posthorn_impl.send_outcome
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_hashjoin = off
set enable_mergejoin = off
set enable_seqscan = off
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
  with fact as (
    select t.*,
           v_group_posts - r.posts as rate_room, r.oldest,
           count(*) over (partition by t.owner_id, t.to_group_id) as group_wanted,
           count(*) over (partition by t.owner_id, t.to_group_id, t.found_conversation_id) as conversation_wanted -- one sort for both
      from posthorn_impl.address_sends(p_items, p_now) t
      left join posthorn.group_counters gc on gc.owner_id = t.owner_id and gc.group_id = t.to_group_id
      left join lateral (
        select coalesce(sum(x.posts), 0) as posts, min(x.at) as oldest
          from unnest(gc.post_times, gc.post_counts) x(at, posts)
         where x.at > p_now - interval '60 seconds') r on true
  ), copy as (
    -- from here on one row for each copy that the database expects, beside what the pod sealed; one without a recipient for an item that expects none
    select f.item, f.owner_id, f.agent_id, f.connection_id, f.to_group_id, f.to_agent_id, f.found_conversation_id, f.post_id, f.reply_to, f.message_ids,
           f.refusal, f.refusal_detail, f.hold_kind, (f.hold_kind is null) <> (f.hold_id is null) or (f.hold_kind is not null and f.to_group_id is distinct from f.planned_group_id) as is_hold_stale, f.oldest, least(p_now + v_life, f.group_expires_at) as ends_at,
           f.conversation_room, f.rate_room, f.group_wanted, f.conversation_wanted, cardinality(f.copies) as given,
           f.to_group_id is distinct from f.planned_group_id or f.generation is distinct from f.planned_generation or (f.to_agent_id is null) <> (f.post_id is not null) as is_stale,
           e.*, count(*) over (partition by f.owner_id, e.recipient_agent_id) as wanted
      from fact f
      left join lateral (
        select m.agent_id as recipient_agent_id, case when 'messaging.pending' = any (b.webhook_events) then -b.wake_number else b.wake_number end as wake_number,
               b.message_seq as message_base, b.event_seq as event_base, v_inbox - b.unfenced as room,
               c.message_id, c.ciphertext
          from posthorn.members m
          join posthorn.agents a on a.owner_id = f.owner_id and a.agent_id = m.agent_id and a.revoked_at is null and a.reachable_until > p_now
          join posthorn.mailboxes b on b.owner_id = f.owner_id and b.agent_id = m.agent_id
          left join unnest(f.copies) c on c.recipient_agent_id = m.agent_id
         where m.owner_id = f.owner_id
           and m.group_id = f.to_group_id
           and m.agent_id <> f.agent_id
           and (f.to_agent_id is null or m.agent_id = f.to_agent_id)) e on f.refusal is null
  ), roomy as (
    select c.*,
           -- what has expired but was not swept yet takes no room; looked at only near the cap
           c.room + case when c.room < c.wanted then posthorn_impl.count_expired(c.owner_id, c.recipient_agent_id, p_now) else 0 end as true_room
      from copy c
  ), summed as (
    select r.*, count(r.recipient_agent_id) over w as expected, count(r.message_id) over w as sealed, min(r.true_room) over w as least_room,
           bool_and(r.wanted <= r.true_room) over w as fits, array_agg(r.recipient_agent_id) filter (where r.true_room < 1) over w as full_agents,
           array_agg(r.wake_number) over w as wakes, row_number() over w as copy_number
      from roomy r
    window w as (partition by r.item order by r.recipient_agent_id rows between unbounded preceding and unbounded following)
  ), verdict as materialized (
    select s.*,
           case
             when s.refusal is not null then s.refusal
             when s.is_hold_stale then 'stale_plan'
             when s.hold_kind is not null then 'hold'
             when s.expected = 0 then 'recipient_unavailable'
             when s.is_stale or s.sealed <> s.expected or s.given is distinct from s.expected then 'stale_plan'
             when s.found_conversation_id is null then 'conversation_missing'
             when s.conversation_room < 1 then 'conversation_capped'
             when s.rate_room < 1 then 'rate_limited'
             when s.least_room < 1 then 'queue_full'
             when s.group_wanted > s.rate_room or s.conversation_wanted > s.conversation_room or not s.fits then 'contended'
             else 'queued'
           end as outcome
      from summed s
  ), placed as materialized (
    select v.*, v.message_base + v.position as message_seq, v.event_base + v.position as event_seq
      from (select v.*, row_number() over (partition by v.owner_id, v.recipient_agent_id order by v.item) as position from verdict v where v.outcome = 'queued') v
  ), counted as (
    update posthorn.mailboxes b
       set message_seq = b.message_seq + x.copies,
           event_seq = b.event_seq + x.copies,
           unfenced = b.unfenced + x.copies
      from (select p.owner_id, p.recipient_agent_id, count(*)::int as copies from placed p group by p.owner_id, p.recipient_agent_id) x
     where b.owner_id = x.owner_id
       and b.agent_id = x.recipient_agent_id
  ), conversed as (
    update posthorn.conversations c
       set posts = c.posts + x.posts
      from (select p.owner_id, p.found_conversation_id, count(*)::int as posts from placed p where p.copy_number = 1 group by p.owner_id, p.found_conversation_id) x
     where c.owner_id = x.owner_id
       and c.conversation_id = x.found_conversation_id
  ), rated as (
    update posthorn.group_counters g
       set (post_times, post_counts) = (select w.times, w.counts from posthorn_impl.note_posts(g.post_times, g.post_counts, x.posts, v_group_posts, p_now) w)
      from (select p.owner_id, p.to_group_id, count(*)::int as posts from placed p where p.copy_number = 1 group by p.owner_id, p.to_group_id) x
     where g.owner_id = x.owner_id
       and g.group_id = x.to_group_id
  ), posted as (
    insert into posthorn.posts (owner_id, post_id, conversation_id, sender_agent_id, message_ids, created_at)
    select p.owner_id, p.post_id, p.found_conversation_id, p.agent_id, p.message_ids, p_now
      from placed p
     where p.post_id is not null
       and p.copy_number = 1
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
         v.found_conversation_id, case when v.to_agent_id is null then 'group' else 'pair' end, v.to_group_id, v.post_id, coalesce(v.message_ids, '{}'), p_now, v.ends_at,
         case v.outcome when 'queued' then v.wakes end
    from verdict v
   where v.copy_number = 1;
end $$;
comment on function posthorn_impl.apply_sends(posthorn_impl.send_item[], timestamptz) is 'Decides and stores a set of items whose keys are claimed and whose groups and mailboxes are locked. Caps are compared with every candidate counted: what fits is stored, what fits not even alone is refused by name, and what lies between is contended, for the caller to try alone.';

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

create function posthorn_impl.drop_claims(
  p_items posthorn_impl.send_item[]
) returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_hashjoin = off
set enable_mergejoin = off
set enable_seqscan = off
as $$
begin
  delete from posthorn.idempotency_keys k
   using unnest(p_items) i
   where k.owner_id = i.owner_id
     and k.agent_id = i.agent_id
     and k.operation = 'send_message'
     and k.key = i.key;
end $$;
comment on function posthorn_impl.drop_claims(posthorn_impl.send_item[]) is 'Gives up the keys of refused items: the same key may succeed later.';

create function posthorn_impl.hold_send(
  p_item posthorn_impl.send_item
) returns posthorn_impl.send_outcome
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_copy posthorn_impl.send_copy := p_item.copies[1];
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
  if v_to.refusal is not null or v_to.hold_kind is null or p_item.post_id is not null
     or cardinality(p_item.copies) is distinct from 1 or v_copy.recipient_agent_id is distinct from v_to.to_agent_id then
    -- an item of this batch before it changed what this one asks for, or the pod sealed for somebody else
    return row(p_item.item, coalesce(v_to.refusal, 'stale_plan'), v_to.refusal_detail, null, null, null, null, null, null, null, null)::posthorn_impl.send_outcome;
  end if;
  begin
    select o.* into v_opened
      from posthorn_impl.open_proposal(
        v_actor, p_item.agent_id, v_to.hold_kind,
        case v_to.hold_kind when 'new' then array[v_to.agent_low, v_to.agent_high]
             else array(select m.agent_id from posthorn.members m where m.owner_id = p_item.owner_id and m.group_id = v_to.to_group_id order by m.agent_id) end,
        v_to.to_group_id, case v_to.hold_kind when 'continue' then v_to.found_conversation_id end,
        case v_to.hold_kind when 'new' then coalesce(p_item.name, posthorn_impl.name_for(p_item.owner_id, array[v_to.agent_low, v_to.agent_high])) else p_item.name end,
        p_item.purpose, null,
        case v_to.hold_kind when 'new' then coalesce(p_item.duration_hours, 168) else p_item.duration_hours end, v_now) o;
    v_proposal := v_opened.proposal;
    if (select count(*) from posthorn.held_bodies h where h.owner_id = p_item.owner_id and h.proposal_id = v_proposal.proposal_id)
       >= posthorn_impl.limit_value('held_messages_per_proposal') then
      perform posthorn_impl.refuse('conversation_capped', jsonb_build_object('conversation_id', v_to.found_conversation_id, 'proposal_id', v_proposal.proposal_id));
    end if;
    insert into posthorn.messages (owner_id, message_id, state, recipient_agent_id, sender_agent_id, connection_id, group_id, conversation_id, reply_to, proposal_id, hold_id, created_at, expires_at)
    values (p_item.owner_id, v_copy.message_id, 'held', v_copy.recipient_agent_id, p_item.agent_id, p_item.connection_id,
            case v_to.hold_kind when 'continue' then v_to.to_group_id end, case v_to.hold_kind when 'continue' then v_to.found_conversation_id end,
            p_item.reply_to, v_proposal.proposal_id, p_item.hold_id, v_now, v_proposal.expires_at);
    insert into posthorn.held_bodies (owner_id, proposal_id, position, message_id, ciphertext)
    select p_item.owner_id, v_proposal.proposal_id, coalesce(max(h.position), 0) + 1, v_copy.message_id, v_copy.ciphertext
      from posthorn.held_bodies h
     where h.owner_id = p_item.owner_id
       and h.proposal_id = v_proposal.proposal_id;
    if v_opened.is_new then
      perform posthorn_impl.ask_owner(v_actor, v_proposal, v_now);
    end if;
  exception when others then
    -- a refusal of this item undoes what it did and fails nobody else
    if sqlstate not like 'MH%' then
      raise;
    end if;
    get stacked diagnostics v_code = message_text, v_detail = pg_exception_detail;
    return row(p_item.item, v_code, v_detail::jsonb, null, null, null, null, null, null, null, null)::posthorn_impl.send_outcome;
  end;
  select m.* into v_message from posthorn.messages m where m.owner_id = p_item.owner_id and m.message_id = v_copy.message_id;
  return row(p_item.item, v_message.state,
             case v_message.state when 'held' then jsonb_build_object('proposal_id', v_proposal.proposal_id)
                  else jsonb_build_object('proposal_id', v_proposal.proposal_id, 'auto_approved', true) end,
             v_message.conversation_id, 'pair', v_message.group_id, null, p_item.message_ids, v_message.created_at, v_message.expires_at, null)::posthorn_impl.send_outcome;
end $$;
comment on function posthorn_impl.hold_send(posthorn_impl.send_item) is 'Stores one sealed message behind a request to the owner: held, or queued where the owner approves automatically. Under the locks of owner, group and both mailboxes.';

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
  v_known posthorn_impl.identity[] := array(select i from unnest(v_identities) i where i.problem is null);
  v_items posthorn_impl.send_item[] := '{}'; -- those whose key this transaction claimed
  v_decided posthorn_impl.send_outcome[] := '{}';
  v_undecided int[];
  v_answered posthorn_impl.advance[];
  v_wakes int[];
begin
  -- Claims come first, in the order of their keys, before any other lock: a transaction that waits for
  -- a key in flight elsewhere holds nothing but keys. Claimed in no order they deadlocked 17 times in
  -- 240 calls.
  with asked as materialized (
    select i.item, i.owner_id, i.connection_id, i.agent_id, p_keys[i.item] as key,
           row_number() over (partition by i.owner_id, i.agent_id, p_keys[i.item] order by i.item) = 1 as is_first
      from unnest(v_known) i
  ), sealed as materialized (
    select c.item, array_agg(row(c.recipient_agent_id, c.message_id, c.ciphertext)::posthorn_impl.send_copy order by c.recipient_agent_id) as copies,
           array_agg(c.message_id order by c.recipient_agent_id) as message_ids
      from unnest(p_copy_items, p_copy_recipients, p_copy_message_ids, p_copy_ciphertexts) c(item, recipient_agent_id, message_id, ciphertext)
     group by c.item
    having count(*) = count(distinct c.recipient_agent_id) -- sealed twice for somebody counts as not sealed: a stale plan
  ), claim as materialized (
    insert into posthorn.idempotency_keys (owner_id, agent_id, operation, key, fingerprint, post_id, message_ids, created_at)
    select a.owner_id, a.agent_id, 'send_message', a.key, p_fingerprints[a.item], p_post_ids[a.item], coalesce(s.message_ids, '{}'), v_now
      from asked a
      left join sealed s on s.item = a.item
     where a.is_first
     order by a.owner_id, a.agent_id, a.key
    on conflict do nothing
    returning owner_id, agent_id, key
  )
  select array_agg(row(a.item, a.owner_id, a.connection_id, a.agent_id, a.key, p_recipient_agent_ids[a.item], p_group_ids[a.item], p_conversation_ids[a.item], p_replies_to[a.item],
                       p_purposes[a.item], p_names[a.item], p_durations_hours[a.item],
                       p_sensitive[a.item] and (select o.sensitive_content_check from posthorn.owners o where o.owner_id = a.owner_id),
                       p_planned_group_ids[a.item], p_planned_generations[a.item], p_hold_ids[a.item], p_post_ids[a.item], s.copies, s.message_ids)::posthorn_impl.send_item order by a.item)
    into v_items
    from asked a
    join claim c on c.owner_id = a.owner_id and c.agent_id = a.agent_id and c.key = a.key
    left join sealed s on s.item = a.item
   where a.is_first;

  if v_items is not null then
    perform posthorn_impl.lock_sends(v_items);
    v_now := posthorn_impl.clock();
    v_decided := array(select d from posthorn_impl.apply_sends(v_items, v_now) d);

    if exists (select from unnest(v_decided) d where d.outcome <> 'queued') then
      -- conversations are made on first use; the group's lock keeps others from making them too
      v_undecided := array(select d.item from unnest(v_decided) d where d.outcome = 'conversation_missing');
      if cardinality(v_undecided) > 0 then
        insert into posthorn.conversations (owner_id, kind, group_id, generation, agent_low, agent_high, created_at)
        select distinct t.owner_id, case when t.to_agent_id is null then 'group' else 'pair' end, t.to_group_id, t.generation, t.agent_low, t.agent_high, v_now
          from posthorn_impl.address_sends(array(select i from unnest(v_items) i where i.item = any (v_undecided)), v_now) t
        on conflict on constraint one_conversation_per_generation_and_pair do nothing;
        v_decided := array(
          select d from unnest(v_decided) d where d.item <> all (v_undecided)
          union all
          select d from posthorn_impl.apply_sends(array(select i from unnest(v_items) i where i.item = any (v_undecided)), v_now) d);
      end if;
      -- rare: what crosses a cap inside this batch, one by one, in order
      v_undecided := array(select d.item from unnest(v_decided) d where d.outcome = 'contended' order by d.item);
      for n in 1 .. cardinality(v_undecided) loop
        v_decided := array(
          select d from unnest(v_decided) d where d.item <> v_undecided[n]
          union all
          select d from posthorn_impl.apply_sends(array(select i from unnest(v_items) i where i.item = v_undecided[n]), v_now) d);
      end loop;

      -- rare: what waits for the owner
      v_undecided := array(select d.item from unnest(v_decided) d where d.outcome = 'hold' order by d.item);
      for n in 1 .. cardinality(v_undecided) loop
        v_decided := array(
          select d from unnest(v_decided) d where d.item <> v_undecided[n]
          union all
          select posthorn_impl.hold_send(i) from unnest(v_items) i where i.item = v_undecided[n]);
      end loop;

      if exists (select from unnest(v_decided) d where d.outcome not in ('queued', 'held')) then
        perform posthorn_impl.drop_claims(array(select i from unnest(v_items) i join unnest(v_decided) d on d.item = i.item where d.outcome not in ('queued', 'held')));
      end if;
    end if;

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

    perform posthorn_impl.wake(v_wakes || array(select w from unnest(v_decided) d, unnest(d.wakes) w));
  end if;

  if cardinality(v_decided) < cardinality(v_identities) then
    -- Not claimed here: unknown callers, and keys that were taken before or by an item of this batch. Read
    -- by a statement of its own, whose snapshot shows the winner that a claim waited for.
    v_decided := v_decided || array(
      select row(i.item,
             case
               when i.problem is not null then i.problem
               when k.fingerprint = p_fingerprints[i.item] then 'replayed'
               when k.fingerprint is not null then 'idempotency_conflict'
               -- its twin in this batch was refused
               else coalesce((select t.outcome from unnest(v_decided) t join unnest(v_items) x on x.item = t.item
                               where x.owner_id = i.owner_id and x.agent_id = i.agent_id and x.key = p_keys[i.item] and p_fingerprints[x.item] = p_fingerprints[i.item]), 'stale_plan')
             end,
             (select t.detail from unnest(v_decided) t join unnest(v_items) x on x.item = t.item
               where k.key is null and i.problem is null and x.owner_id = i.owner_id and x.agent_id = i.agent_id and x.key = p_keys[i.item]),
             null, null, null, k.post_id, k.message_ids, k.created_at, null, null)::posthorn_impl.send_outcome
        from unnest(v_identities) i
        left join lateral (
          select x.key, x.fingerprint, x.post_id, x.message_ids, x.created_at
            from posthorn.idempotency_keys x
           where i.problem is null
             and x.owner_id = i.owner_id
             and x.agent_id = i.agent_id
             and x.operation = 'send_message'
             and x.key = p_keys[i.item]
           limit 1) k on true
       where not exists (select from unnest(v_items) x where x.item = i.item));
  end if;
  return query
  select d.item, d.outcome, d.detail, d.conversation_id, d.conversation_kind, d.group_id, d.post_id, d.message_ids, d.created_at, d.expires_at
    from unnest(v_decided) d
   order by d.item;
end $$;
comment on function posthorn_api.send_messages(bytea[], uuid[], text[], bytea[], uuid[], uuid[], uuid[], uuid[], text[], text[], int[], boolean[], uuid[], int[], uuid[], uuid[], int[], uuid[], uuid[], bytea[]) is 'Sends a batch: parallel arrays of items, and of copies that name their item by position. One outcome each: queued, held (behind the request in detail), replayed, stale_plan (plan and seal again), or the code of a refusal. The same function with arrays of one serves psql. [nullable: detail, conversation_id, conversation_kind, group_id, post_id, message_ids, created_at, expires_at]';

grant execute on function
  posthorn_api.plan_sends(bytea[], uuid[], uuid[], uuid[], uuid[]),
  posthorn_api.send_messages(bytea[], uuid[], text[], bytea[], uuid[], uuid[], uuid[], uuid[], text[], text[], int[], boolean[], uuid[], int[], uuid[], uuid[], int[], uuid[], uuid[], bytea[]) to posthorn_app;
