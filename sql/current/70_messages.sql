-- The life of a message after it was sent. One function moves states; receiving, acknowledging,
-- replying, expiring and revoking all end in it.
set local role posthorn_engine;

create type posthorn_impl.message_view as (
  id uuid,
  conversation_id uuid,
  conversation_kind text,
  post_id uuid,
  group_id uuid,
  sender_agent_id uuid,
  recipient_agent_id uuid,
  reply_to uuid,
  proposal_id uuid,
  state text,
  created_at timestamptz,
  expires_at timestamptz,
  delivered_at timestamptz,
  admitted_at timestamptz,
  acknowledged_at timestamptz,
  processed_at timestamptz,
  replied_at timestamptz
);

create function posthorn_impl.present_state(
  p_state text,
  p_expires_at timestamptz,
  p_now timestamptz
) returns text
language sql
immutable
security invoker
set search_path = pg_catalog, pg_temp
as $$
  select case when p_state in ('held', 'queued', 'delivered') and p_expires_at <= p_now then 'expired' else p_state end
$$;
comment on function posthorn_impl.present_state(text, timestamptz, timestamptz) is 'The state by the clock: past its deadline a message is expired whether or not a sweeper ran.';
grant execute on function posthorn_impl.present_state(text, timestamptz, timestamptz) to posthorn_ops;

create function posthorn_impl.view_messages(
  p_owner_id int,
  p_ids uuid[],
  p_now timestamptz
) returns setof posthorn_impl.message_view
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  select m.message_id, m.conversation_id, case when m.post_id is null then 'pair' else 'group' end, m.post_id, m.group_id, m.sender_agent_id, m.recipient_agent_id, m.reply_to, m.proposal_id,
         posthorn_impl.present_state(m.state, m.expires_at, p_now), m.created_at, m.expires_at,
         m.delivered_at, m.admitted_at, m.acknowledged_at, m.processed_at, m.replied_at
    from unnest(p_ids) with ordinality i(message_id, position)
    join posthorn.messages m on m.owner_id = p_owner_id and m.message_id = i.message_id
   order by i.position
$$;
comment on function posthorn_impl.view_messages(int, uuid[], timestamptz) is 'Receipts in the order of the ids given.';

create function posthorn_impl.wake(
  p_wake_numbers int[]
) returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  -- a payload of 8,000 bytes fails the transaction; one star means: look at everything
  perform pg_notify('posthorn', case when length(p.payload) > 7900 then '*' else p.payload end)
     from (select string_agg(distinct abs(w)::text, ',') as payload from unnest(p_wake_numbers) w) p
    where p.payload is not null;
  -- below zero: a webhook wants what was appended. So a batch that no webhook wants pays for one comparison.
  if 0 > any (p_wake_numbers) then
    perform posthorn_impl.drain_webhooks(array(select distinct -w from unnest(p_wake_numbers) w where w < 0));
  end if;
end $$;
comment on function posthorn_impl.wake(int[]) is 'Tells every pod that these mailboxes changed: one notification for a whole batch. A number below zero also starts the deliveries of the mailbox''s webhook; its row is locked then.';

create function posthorn_impl.wake_agents(
  p_owner_id int,
  p_agent_ids uuid[]
) returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  perform posthorn_impl.wake(array(select b.wake_number from posthorn.mailboxes b where b.owner_id = p_owner_id and b.agent_id = any (p_agent_ids)));
end $$;
comment on function posthorn_impl.wake_agents(int, uuid[]) is 'Makes every pod look at these agents, though their mail did not change.';

create function posthorn_impl.wake_owner(
  p_owner_id int
) returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  perform posthorn_impl.wake(array(select o.wake_number from posthorn.owners o where o.owner_id = p_owner_id));
end $$;
comment on function posthorn_impl.wake_owner(int) is 'Makes every pod look at the owner''s log.';

create function posthorn_impl.tell_owner(
  p_owner_id int,
  p_kind text,
  p_subject_ids uuid[],
  p_state text,
  p_now timestamptz
) returns int
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_wake int;
begin
  with counted as (
    update posthorn.owners o
       set event_seq = o.event_seq + cardinality(p_subject_ids)
     where o.owner_id = p_owner_id
    returning o.wake_number, o.event_seq - cardinality(p_subject_ids) as event_base
  ), logged as (
    insert into posthorn.events (owner_id, agent_id, seq, kind, subject_id, state, occurred_at)
    select p_owner_id, '00000000-0000-0000-0000-000000000000', c.event_base + s.position, p_kind, s.subject_id, p_state, p_now
      from counted c
     cross join unnest(p_subject_ids) with ordinality s(subject_id, position)
  )
  select c.wake_number into v_wake from counted c;
  return v_wake;
end $$;
comment on function posthorn_impl.tell_owner(int, text, uuid[], text, timestamptz) is 'Appends events to the owner''s log, in the order given; answers whom to wake. Under lock_owner, so that others read them in the order of commits.';

create type posthorn_impl.advance as (
  owner_id int,
  message_id uuid,
  to_state text,      -- null: only the times below
  admitted boolean,
  processed boolean
);

create function posthorn_impl.advance_messages(
  p_advances posthorn_impl.advance[],
  p_now timestamptz
) returns int[]
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_hashjoin = off
set enable_mergejoin = off
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  v_wakes int[];
begin
  with wanted as materialized (
    -- callers of one batch may ask different things of one message: the furthest wins
    select a.owner_id, a.message_id, bool_or(a.admitted) as admitted, bool_or(a.processed) as processed,
           (array_agg(a.to_state order by array_position(array['delivered', 'acknowledged', 'replied', 'denied', 'expired', 'revoked'], a.to_state) desc nulls last))[1] as to_state
      from unnest(p_advances) a
     group by a.owner_id, a.message_id
  ), step as materialized (
    select m.owner_id, m.message_id, m.recipient_agent_id, m.seq, m.sender_agent_id, m.proposal_id, t.to_state, m.state in ('queued', 'delivered') as unfenced, m.state = 'held' as was_held,
           w.admitted and m.admitted_at is null as admitted, w.processed and m.processed_at is null as processed
      from wanted w
      join posthorn.messages m on m.owner_id = w.owner_id and m.message_id = w.message_id
      left join posthorn.message_transitions t
             on t.from_state = m.state
            -- who comes after the deadline finds what everybody saw since: expired
            and t.to_state = case when m.expires_at <= p_now and w.to_state in ('denied', 'revoked') then 'expired' else w.to_state end
            and (t.to_state in ('expired', 'revoked') or m.state = 'acknowledged' or m.expires_at > p_now)
     where t.to_state is not null
        or posthorn_impl.present_state(m.state, m.expires_at, p_now) in ('queued', 'delivered', 'acknowledged', 'replied')
  ), moved as (
    update posthorn.messages m
       set state = coalesce(s.to_state, m.state),
           delivered_at = case when s.to_state = 'delivered' then p_now else m.delivered_at end,
           admitted_at = case when s.admitted then p_now else m.admitted_at end,
           acknowledged_at = case when s.to_state in ('acknowledged', 'replied') then coalesce(m.acknowledged_at, p_now) else m.acknowledged_at end,
           processed_at = case when s.processed then p_now else m.processed_at end,
           replied_at = case when s.to_state = 'replied' then p_now else m.replied_at end,
           ended_at = case when s.to_state in ('replied', 'denied', 'expired', 'revoked') then p_now else m.ended_at end
      from step s
     where m.owner_id = s.owner_id
       and m.message_id = s.message_id
       and (s.to_state is not null or s.admitted or s.processed)
  ), fenced as (
    delete from posthorn.bodies b
     using step s
     where b.owner_id = s.owner_id
       and b.recipient_agent_id = s.recipient_agent_id
       and b.seq = s.seq
       and s.unfenced
       and s.to_state <> 'delivered'
  ), fenced_held as (
    delete from posthorn.held_bodies h
     using step s
     where s.was_held
       and h.owner_id = s.owner_id
       and h.proposal_id = s.proposal_id
       and h.message_id = s.message_id
  ), tally as (
    select x.owner_id, x.agent_id, count(*) filter (where x.is_fenced)::int as fenced, count(x.told_id)::int as told,
           array_agg(x.told_id order by x.seq, x.told_id) filter (where x.told_id is not null) as told_ids,
           array_agg(x.to_state order by x.seq, x.told_id) filter (where x.told_id is not null) as told_states
      from (select s.owner_id, s.recipient_agent_id as agent_id, true as is_fenced, null::uuid as told_id, null as to_state, s.seq from step s where s.unfenced and s.to_state <> 'delivered'
            union all
            select s.owner_id, s.sender_agent_id, false, s.message_id, s.to_state, s.seq from step s where s.to_state is not null) x
     group by x.owner_id, x.agent_id
  ), counted as (
    update posthorn.mailboxes b
       set unfenced = b.unfenced - t.fenced,
           event_seq = b.event_seq + t.told
      from tally t
     where b.owner_id = t.owner_id
       and b.agent_id = t.agent_id
    returning b.owner_id, b.agent_id, case when 'message.state' = any (b.webhook_events) then -b.wake_number else b.wake_number end as wake_number,
              b.event_seq - t.told as event_base, t.told, t.told_ids, t.told_states
  ), told as (
    insert into posthorn.events (owner_id, agent_id, seq, kind, subject_id, state, occurred_at)
    select c.owner_id, c.agent_id, c.event_base + e.position, 'message.state', e.message_id, e.state, p_now
      from counted c
     cross join lateral unnest(c.told_ids, c.told_states) with ordinality e(message_id, state, position)
  )
  select array_agg(c.wake_number) filter (where c.told > 0) into v_wakes from counted c;
  return coalesce(v_wakes, '{}');
end $$;
comment on function posthorn_impl.advance_messages(posthorn_impl.advance[], timestamptz) is 'Moves states forward along posthorn.message_transitions, fences and counts what leaves the inbox and tells the senders; answers whom to wake. The caller holds the mailboxes of recipients and senders.';

create function posthorn_impl.lock_mailboxes(
  p_owners int[],
  p_agents uuid[]
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
  perform 1
     from posthorn.mailboxes b
     join (select distinct a.owner_id, a.agent_id from unnest(p_owners, p_agents) a(owner_id, agent_id)) x on x.owner_id = b.owner_id and x.agent_id = b.agent_id
    order by b.owner_id, b.agent_id
      for no key update of b;
end $$;
comment on function posthorn_impl.lock_mailboxes(int[], uuid[]) is 'The last lock of the order.';

create function posthorn_impl.lock_mailboxes_of(
  p_owners int[],
  p_message_ids uuid[]
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
  v_owners int[];
  v_agents uuid[];
begin
  select array_agg(m.owner_id), array_agg(a.agent_id) into v_owners, v_agents
    from unnest(p_owners, p_message_ids) i(owner_id, message_id)
    join posthorn.messages m on m.owner_id = i.owner_id and m.message_id = i.message_id
   cross join lateral (values (m.recipient_agent_id), (m.sender_agent_id)) a(agent_id);
  perform posthorn_impl.lock_mailboxes(v_owners, v_agents);
end $$;
comment on function posthorn_impl.lock_mailboxes_of(int[], uuid[]) is 'The last lock of the order, for the recipients and senders of these messages.';

create function posthorn_impl.end_messages(
  p_owner_id int,
  p_message_ids uuid[],
  p_state text,
  p_now timestamptz
) returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  if cardinality(p_message_ids) > 0 then
    perform posthorn_impl.lock_mailboxes_of(array_fill(p_owner_id, array[cardinality(p_message_ids)]), p_message_ids);
    perform posthorn_impl.wake(posthorn_impl.advance_messages(
      array(select row(p_owner_id, m, p_state, false, false)::posthorn_impl.advance from unnest(p_message_ids) m), p_now));
  end if;
end $$;
comment on function posthorn_impl.end_messages(int, uuid[], text, timestamptz) is 'Fences messages for good, in the transaction of whatever caused it. Once per transaction, or with their mailboxes locked before, so that these are locked in order.';

create function posthorn_api.read_inbox(
  p_credential bytea,
  p_after bigint,
  p_limit int,
  p_agent_id uuid default null
) returns table (
  owner_id uuid,
  seq bigint,
  sender_label text,
  ciphertext bytea,
  has_more boolean,
  pending_messages int,
  hold_id uuid,
  id uuid,
  conversation_id uuid,
  conversation_kind text,
  post_id uuid,
  group_id uuid,
  sender_agent_id uuid,
  recipient_agent_id uuid,
  reply_to uuid,
  proposal_id uuid,
  state text,
  created_at timestamptz,
  expires_at timestamptz,
  delivered_at timestamptz,
  admitted_at timestamptz,
  acknowledged_at timestamptz,
  processed_at timestamptz,
  replied_at timestamptz
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_hashjoin = off
set enable_mergejoin = off
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  v_me posthorn_impl.identity := posthorn_impl.identify_agent(p_credential, p_agent_id);
  v_now timestamptz := posthorn_impl.clock();
  c_overhead constant int := 29;       -- of a sealed body over its text: format, nonce and tag
  c_page_bytes constant int := 65536;  -- more would be cut by a client that was told it had it all
begin
  return query
  with candidate as (
    select b.seq, b.message_id, b.ciphertext
      from posthorn.bodies b
     where b.owner_id = v_me.owner_id
       and b.recipient_agent_id = v_me.agent_id
       and b.seq > p_after
       and b.expires_at > v_now
     order by b.seq
     limit p_limit + 1
  ), weighed as (
    select c.*, row_number() over w as position, sum(octet_length(c.ciphertext) - c_overhead) over w as bytes, count(*) over () as found
      from candidate c
    window w as (order by c.seq)
  ), page as materialized (
    select w.*, count(*) over () < w.found as has_more from weighed w where w.position <= p_limit and (w.bytes <= c_page_bytes or w.position = 1)
  )
  select o.id, p.seq, s.label, p.ciphertext, p.has_more, (select posthorn_impl.count_pending(v_me.owner_id, v_me.agent_id, v_now)), m.hold_id,
         m.message_id, m.conversation_id, case when m.post_id is null then 'pair' else 'group' end, m.post_id, m.group_id, m.sender_agent_id, m.recipient_agent_id, m.reply_to, m.proposal_id,
         m.state, m.created_at, m.expires_at, m.delivered_at, m.admitted_at, m.acknowledged_at, m.processed_at, m.replied_at
    from page p
    join posthorn.messages m on m.owner_id = v_me.owner_id and m.message_id = p.message_id
    join posthorn.agents s on s.owner_id = v_me.owner_id and s.agent_id = m.sender_agent_id
    join posthorn.owners o on o.owner_id = v_me.owner_id
   order by p.seq;
end $$;
comment on function posthorn_api.read_inbox(bytea, bigint, int, uuid) is 'Sealed unfenced messages of the caller after a sequence number, oldest first, at most p_limit and 64 KiB of text. Marks nothing: the pod opens the page first, then calls advance_receipts. [nullable: hold_id, post_id, reply_to, proposal_id, delivered_at, admitted_at, acknowledged_at, processed_at, replied_at]';

create function posthorn_api.advance_receipts(
  p_credentials bytea[],
  p_agent_ids uuid[],
  p_levels text[],
  p_items int[],
  p_message_ids uuid[]
) returns table (
  item int,
  problem text,
  message_id uuid,
  conversation_id uuid,
  conversation_kind text,
  post_id uuid,
  group_id uuid,
  sender_agent_id uuid,
  recipient_agent_id uuid,
  reply_to uuid,
  proposal_id uuid,
  state text,
  created_at timestamptz,
  expires_at timestamptz,
  delivered_at timestamptz,
  admitted_at timestamptz,
  acknowledged_at timestamptz,
  processed_at timestamptz,
  replied_at timestamptz
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_hashjoin = off
set enable_mergejoin = off
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  v_identities posthorn_impl.identity[] := array(select i from posthorn_impl.identify(p_credentials, p_agent_ids, 'messaging') i order by i.item);
  v_owners int[];
  v_ids uuid[];
  v_senders uuid[];
  v_recipients uuid[];
  v_levels text[];
  v_now timestamptz;
begin
  if exists (select from unnest(p_levels) l where l not in ('delivered', 'admitted', 'acknowledged', 'processed')) then
    perform posthorn_impl.refuse('invalid_request', '{"fields": ["delivery"]}');
  end if;
  -- only the recipient moves a receipt
  select array_agg(m.owner_id), array_agg(m.message_id), array_agg(m.sender_agent_id), array_agg(m.recipient_agent_id), array_agg(p_levels[t.item])
    into v_owners, v_ids, v_senders, v_recipients, v_levels
    from unnest(p_items, p_message_ids) t(item, message_id)
   cross join lateral (select (v_identities[t.item]).*) i
    join posthorn.messages m on m.owner_id = i.owner_id and m.message_id = t.message_id and m.recipient_agent_id = i.agent_id
   where i.problem is null;
  if v_ids is not null then
    perform posthorn_impl.lock_mailboxes(v_owners || v_owners, v_recipients || v_senders);
    v_now := posthorn_impl.clock();
    perform posthorn_impl.wake(posthorn_impl.advance_messages(array(
      select row(t.owner_id, t.message_id,
                 case t.level when 'processed' then 'acknowledged' when 'admitted' then null else t.level end,
                 t.level = 'admitted', t.level = 'processed')::posthorn_impl.advance
        from unnest(v_owners, v_ids, v_levels) t(owner_id, message_id, level)), v_now));
  end if;
  return query
  select t.item, null, t.message_id, m.conversation_id, case when m.message_id is not null then case when m.post_id is null then 'pair' else 'group' end end,
         m.post_id, m.group_id, m.sender_agent_id, m.recipient_agent_id, m.reply_to, m.proposal_id,
         case when m.expires_at > v_now then m.state else posthorn_impl.present_state(m.state, m.expires_at, v_now) end, m.created_at, m.expires_at,
         m.delivered_at, m.admitted_at, m.acknowledged_at, m.processed_at, m.replied_at
    from unnest(p_items, p_message_ids) with ordinality t(item, message_id, position)
   cross join lateral (select (v_identities[t.item]).*) i
    left join posthorn.messages m on m.owner_id = i.owner_id and m.message_id = t.message_id and m.recipient_agent_id = i.agent_id
   where i.problem is null
   order by t.position;
  return query
  select i.item, i.problem, null::uuid, null::uuid, null, null::uuid, null::uuid, null::uuid, null::uuid, null::uuid, null::uuid, null,
         null::timestamptz, null::timestamptz, null::timestamptz, null::timestamptz, null::timestamptz, null::timestamptz, null::timestamptz
    from unnest(v_identities) i
   where i.problem is not null
      or i.item <> all (p_items);
end $$;
comment on function posthorn_api.advance_receipts(bytea[], uuid[], text[], int[], uuid[]) is 'Moves receipts of many callers forward at once: each item has a credential, an agent and a level (delivered, admitted, acknowledged, processed), each message names its item. Answers each id with its receipt, null where it is not the caller''s. State and all that follows the id are null for such an id. [nullable: problem, message_id, conversation_id, conversation_kind, post_id, group_id, sender_agent_id, recipient_agent_id, reply_to, proposal_id, state, created_at, expires_at, delivered_at, admitted_at, acknowledged_at, processed_at, replied_at]';

create function posthorn_api.message_status(
  p_credential bytea,
  p_message_id uuid,
  p_agent_id uuid default null
) returns posthorn_impl.message_view
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_me posthorn_impl.identity := posthorn_impl.identify_agent(p_credential, p_agent_id);
  v_message posthorn_impl.message_view;
begin
  select v.* into v_message
    from posthorn_impl.view_messages(v_me.owner_id, array[p_message_id], posthorn_impl.clock()) v
   where v_me.agent_id in (v.sender_agent_id, v.recipient_agent_id);
  if not found then
    perform posthorn_impl.refuse('not_found');
  end if;
  return v_message;
end $$;
comment on function posthorn_api.message_status(bytea, uuid, uuid) is 'A receipt, for its sender and its recipient; raises not_found for anyone else. [nullable: conversation_id, post_id, group_id, reply_to, proposal_id, delivered_at, admitted_at, acknowledged_at, processed_at, replied_at]';

create function posthorn_api.post_status(
  p_credential bytea,
  p_post_id uuid,
  p_agent_id uuid default null
) returns setof posthorn_impl.message_view
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_me posthorn_impl.identity := posthorn_impl.identify_agent(p_credential, p_agent_id);
  v_messages uuid[];
begin
  select p.message_ids into v_messages
    from posthorn.posts p
   where p.owner_id = v_me.owner_id
     and p.post_id = p_post_id
     and p.sender_agent_id = v_me.agent_id;
  if not found then
    perform posthorn_impl.refuse('not_found');
  end if;
  return query select v.* from posthorn_impl.view_messages(v_me.owner_id, v_messages, posthorn_impl.clock()) v;
end $$;
comment on function posthorn_api.post_status(bytea, uuid, uuid) is 'The receipts of a post''s copies, for its sender alone; raises not_found for anyone else. [nullable: post_id, reply_to, proposal_id, delivered_at, admitted_at, acknowledged_at, processed_at, replied_at]';

grant execute on function
  posthorn_api.read_inbox(bytea, bigint, int, uuid), posthorn_api.advance_receipts(bytea[], uuid[], text[], int[], uuid[]),
  posthorn_api.message_status(bytea, uuid, uuid), posthorn_api.post_status(bytea, uuid, uuid) to posthorn_app;

-- A column cannot be granted for some rows only: the engine may place a message, once.
create function posthorn_impl.tg_messages__keep_place() returns trigger
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  raise exception 'a message keeps its place' using errcode = 'restrict_violation';
end $$;
comment on function posthorn_impl.tg_messages__keep_place() is 'Refuses to move a message that was queued to another conversation, group or place in its inbox.';
grant execute on function posthorn_impl.tg_messages__keep_place() to posthorn_owner;

set local role posthorn_owner;
drop trigger if exists _100_keep_place on posthorn.messages;
create trigger _100_keep_place
  before update of seq, group_id, conversation_id on posthorn.messages
  for each row
  when (old.state <> 'held' and (old.seq, old.group_id, old.conversation_id) is distinct from (new.seq, new.group_id, new.conversation_id))
  execute function posthorn_impl.tg_messages__keep_place();
