-- What operators read. Every view runs with the rights of the reader (posthorn_ops), whose column
-- grants leave out labels, bodies and credentials.
set local role posthorn_engine;

create view ops.limits with (security_invoker = true) as
select l.name, l.value, l.minimum, l.maximum, l.description from posthorn.limits l;
comment on view ops.limits is 'Every limit with its present value and sane range.';

create view ops.inboxes with (security_invoker = true) as
select o.id as owner_id, b.agent_id, b.unfenced as unfenced_messages, x.oldest_at, posthorn_impl.clock() - x.oldest_at as oldest_age, x.past_deadline
  from posthorn.mailboxes b
  join posthorn.owners o on o.owner_id = b.owner_id
 cross join lateral (
   select min(m.created_at) as oldest_at, count(*) filter (where y.expires_at <= posthorn_impl.clock()) as past_deadline
     from posthorn.bodies y
     join posthorn.messages m on m.owner_id = y.owner_id and m.message_id = y.message_id
    where y.owner_id = b.owner_id
      and y.recipient_agent_id = b.agent_id) x;
comment on view ops.inboxes is 'Depth and age of each inbox, and what waits there past its deadline.';

create view ops.connections with (security_invoker = true) as
select o.id as owner_id, c.connection_id, c.kind, c.scopes, c.created_at, nullif(c.expires_at, 'infinity') as expires_at, c.last_used_at, c.revoked_at
  from posthorn.connections c
  join posthorn.owners o on o.owner_id = c.owner_id;
comment on view ops.connections is 'Connections with their scopes and ends.';

create view ops.owners with (security_invoker = true) as
select o.id as owner_id, o.created_at, o.suspended_at,
       (select count(*) from posthorn.agents a where a.owner_id = o.owner_id and a.revoked_at is null) as agents,
       (select count(*) from posthorn.groups g where g.owner_id = o.owner_id and g.revoked_at is null and g.expires_at > posthorn_impl.clock()) as active_groups
  from posthorn.owners o;
comment on view ops.owners is 'Owners and how much they have.';

create view ops.tables with (security_invoker = true) as
select s.relname as table_name, s.n_live_tup as live_rows, s.n_dead_tup as dead_rows, pg_catalog.pg_total_relation_size(s.relid) as total_bytes,
       s.last_autovacuum, s.last_autoanalyze
  from pg_catalog.pg_stat_all_tables s
 where s.schemaname = 'posthorn';
comment on view ops.tables is 'Size and dead rows of each table.';

create view ops.invariants with (security_invoker = true) as
select 'inbox counter differs from bodies' as broken, b.owner_id, b.agent_id as subject_id
  from posthorn.mailboxes b
 where b.unfenced <> (select count(*) from posthorn.bodies x where x.owner_id = b.owner_id and x.recipient_agent_id = b.agent_id)
union all
select 'body without a message that can be read', x.owner_id, x.message_id
  from posthorn.bodies x
  left join posthorn.messages m on m.owner_id = x.owner_id and m.message_id = x.message_id and m.recipient_agent_id = x.recipient_agent_id and m.seq = x.seq
 where m.state is null
    or m.state not in ('queued', 'delivered')
union all
select 'message that should be readable has no body', m.owner_id, m.message_id
  from posthorn.messages m
 where m.state in ('queued', 'delivered')
   and not exists (select from posthorn.bodies x where x.owner_id = m.owner_id and x.recipient_agent_id = m.recipient_agent_id and x.seq = m.seq)
union all
select 'event log has a gap', b.owner_id, b.agent_id
  from posthorn.mailboxes b
 cross join lateral (
   select count(*) as n, min(e.seq) as first, max(e.seq) as last
     from posthorn.events e
    where e.owner_id = b.owner_id
      and e.agent_id = b.agent_id
      -- a sweep deletes older ones in no order
      and e.occurred_at > posthorn_impl.clock() - make_interval(days => (select l.value::int from posthorn.limits l where l.name = 'event_days'))) e
 where coalesce(e.last, b.event_seq) <> b.event_seq
    or (e.n > 0 and e.last - e.first + 1 <> e.n)
union all
select 'post counter differs from messages', c.owner_id, c.conversation_id
  from posthorn.conversations c
 where c.posts <> (select count(distinct coalesce(m.post_id, m.message_id)) from posthorn.messages m where m.owner_id = c.owner_id and m.conversation_id = c.conversation_id and m.seq is not null)
   and not exists (select from posthorn.messages m where m.owner_id = c.owner_id and m.created_at < posthorn_impl.clock() - interval '29 days')
union all
select 'receipt names a message that is not there', k.owner_id, i
  from posthorn.idempotency_keys k
 cross join lateral unnest(k.message_ids) i
 where k.created_at > posthorn_impl.clock() - interval '29 days'
   and not exists (select from posthorn.messages m where m.owner_id = k.owner_id and m.message_id = i and m.sender_agent_id = k.agent_id)
union all
select 'post names a message that is not there', p.owner_id, p.post_id
  from posthorn.posts p
 cross join lateral unnest(p.message_ids) i
 where p.created_at > posthorn_impl.clock() - interval '29 days'
   and not exists (select from posthorn.messages m where m.owner_id = p.owner_id and m.message_id = i and m.post_id = p.post_id)
union all
select 'held message without a body', m.owner_id, m.message_id
  from posthorn.messages m
 where m.state = 'held'
   and not exists (select from posthorn.held_bodies h where h.owner_id = m.owner_id and h.proposal_id = m.proposal_id and h.message_id = m.message_id)
union all
select 'held body without a held message', h.owner_id, h.message_id
  from posthorn.held_bodies h
 where not exists (select from posthorn.messages m where m.owner_id = h.owner_id and m.message_id = h.message_id and m.proposal_id = h.proposal_id and m.state = 'held')
union all
select 'held message behind no pending request', m.owner_id, m.message_id
  from posthorn.messages m
 where m.state = 'held'
   and not exists (
     select from posthorn.proposals p
      where p.owner_id = m.owner_id and p.proposal_id = m.proposal_id and p.state = 'pending' and p.expires_at = m.expires_at
        and p.agent_ids @> array[m.sender_agent_id, m.recipient_agent_id])
union all
select 'final state without an end, or an end without one', m.owner_id, m.message_id
  from posthorn.messages m
 where (m.state in ('replied', 'denied', 'expired', 'revoked')) <> (m.ended_at is not null)
union all
select 'message is not in a conversation of its group and its two ends', m.owner_id, m.message_id
  from posthorn.messages m
  left join posthorn.conversations c on c.owner_id = m.owner_id and c.conversation_id = m.conversation_id
 where (m.seq is not null or m.conversation_id is not null)
   and (c.group_id is distinct from m.group_id
        or (c.kind = 'pair') <> (m.post_id is null)
        or (c.kind = 'pair' and (c.agent_low, c.agent_high) <> (least(m.sender_agent_id, m.recipient_agent_id), greatest(m.sender_agent_id, m.recipient_agent_id))))
union all
select 'body that outlives its message, its group or its reader', x.owner_id, x.message_id
  from posthorn.bodies x
  join posthorn.messages m on m.owner_id = x.owner_id and m.message_id = x.message_id
  join posthorn.groups g on g.owner_id = x.owner_id and g.group_id = m.group_id
  join posthorn.agents a on a.owner_id = x.owner_id and a.agent_id = x.recipient_agent_id
 where x.expires_at <> m.expires_at
    or m.expires_at > g.expires_at
    or g.revoked_at is not null
    or a.revoked_at is not null
union all
select 'request approved after its deadline, or without a group', p.owner_id, p.proposal_id
  from posthorn.proposals p
 where p.state = 'approved'
   and (p.decided_at >= p.expires_at or p.group_id is null)
union all
select 'group with a revoked member, or with fewer than two', g.owner_id, g.group_id
  from posthorn.groups g
 where exists (
         select from posthorn.members m join posthorn.agents a on a.owner_id = m.owner_id and a.agent_id = m.agent_id
          where m.owner_id = g.owner_id and m.group_id = g.group_id and a.revoked_at is not null)
    or (g.revoked_at is null and (select count(*) from posthorn.members m where m.owner_id = g.owner_id and m.group_id = g.group_id) < 2);
comment on view ops.invariants is 'Empty, or something is broken: what functions hold without a constraint.';

grant select on all tables in schema ops to posthorn_ops;
