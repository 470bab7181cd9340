-- What operators read. Every view runs with the rights of the reader (posthorn_ops), whose column
-- grants leave out labels, bodies and credentials.
set local role posthorn_queue;
grant usage on schema graphile_worker to posthorn_engine, posthorn_ops, posthorn_admin;
grant select (id, task_identifier, run_at, attempts, max_attempts, locked_at, locked_by, created_at, updated_at) on graphile_worker.jobs to posthorn_ops, posthorn_admin;

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
       pg_catalog.pg_indexes_size(s.relid) as index_bytes, s.n_tup_ins as inserted, s.n_tup_del as deleted, s.last_autovacuum, s.last_autoanalyze
  from pg_catalog.pg_stat_all_tables s
 where s.schemaname in ('posthorn', 'graphile_worker');
comment on view ops.tables is 'Size and dead rows of each table, with what was inserted and deleted since statistics began.';

create view ops.proposals with (security_invoker = true) as
select o.id as owner_id, count(*) as pending, coalesce(sum(h.held), 0)::bigint as held_messages, min(p.created_at) as oldest_at, min(p.expires_at) as next_deadline_at
  from posthorn.proposals p
  join posthorn.owners o on o.owner_id = p.owner_id
 cross join lateral (select count(*) as held from posthorn.held_bodies b where b.owner_id = p.owner_id and b.proposal_id = p.proposal_id) h
 where p.state = 'pending'
   and p.expires_at > posthorn_impl.clock()
 group by o.id;
comment on view ops.proposals is 'Requests that wait for their owner, and the messages that they hold.';

create view ops.webhooks with (security_invoker = true) as
select o.id as owner_id, w.webhook_id, w.agent_id, w.events, w.status, w.disabled_reason, w.consecutive_failures, nullif(w.next_attempt_at, '-infinity') as waits_until,
       w.last_delivered_at, d.pending, d.oldest_at, b.event_seq - w.seen_seq as unread_events
  from posthorn.webhooks w
  join posthorn.owners o on o.owner_id = w.owner_id
  join posthorn.mailboxes b on b.owner_id = w.owner_id and b.agent_id = w.agent_id
 cross join lateral (
   select count(*) as pending, min(x.created_at) as oldest_at
     from posthorn.deliveries x
    where x.owner_id = w.owner_id
      and x.webhook_id = w.webhook_id
      and x.state = 'pending') d;
comment on view ops.webhooks is 'Endpoints: their health, what waits to be delivered, and events of the log that they have not seen.';

create view ops.delivery_attempts with (security_invoker = true) as
select coalesce(a.http_status::text, a.problem) as outcome, count(*) as attempts, count(distinct d.webhook_id) as webhooks,
       percentile_cont(0.5) within group (order by a.milliseconds) as median_milliseconds, max(a.attempted_at) as last_at
  from posthorn.delivery_attempts a
  join posthorn.deliveries d on d.owner_id = a.owner_id and d.delivery_id = a.delivery_id
 where a.attempted_at > posthorn_impl.clock() - interval '24 hours'
 group by 1;
comment on view ops.delivery_attempts is 'How attempts of the last 24 hours went: by HTTP status, or by what kept an answer from coming.';

create view ops.deadlines_behind with (security_invoker = true) as
with kept as (
  select make_interval(days => max(l.value) filter (where l.name = 'receipt_days')::int) as receipts,
         make_interval(days => max(l.value) filter (where l.name = 'delivery_days')::int) as deliveries,
         make_interval(days => max(l.value) filter (where l.name = 'event_days')::int) as events
    from posthorn.limits l
)
select d.kind, d.due, posthorn_impl.clock() - d.oldest as behind
  from (select 'message past its deadline' as kind, count(*) as due, min(b.expires_at) as oldest
          from posthorn.bodies b
         where b.expires_at <= posthorn_impl.clock()
         union all
        select 'request past its deadline', count(*), min(p.expires_at)
          from posthorn.proposals p
         where p.state = 'pending' and p.expires_at <= posthorn_impl.clock()
         union all
        select 'receipt to delete', count(*), min(m.created_at + k.receipts)
          from posthorn.messages m cross join kept k
         where m.created_at <= posthorn_impl.clock() - k.receipts and m.state not in ('held', 'queued', 'delivered')
         union all
        select 'post to delete', count(*), min(p.created_at + k.receipts)
          from posthorn.posts p cross join kept k
         where p.created_at <= posthorn_impl.clock() - k.receipts
         union all
        select 'idempotency key to delete', count(*), min(i.created_at + k.receipts)
          from posthorn.idempotency_keys i cross join kept k
         where i.created_at <= posthorn_impl.clock() - k.receipts
         union all
        select 'decided request to delete', count(*), min(p.decided_at + k.receipts)
          from posthorn.proposals p cross join kept k
         where p.decided_at <= posthorn_impl.clock() - k.receipts
         union all
        select 'event to delete', count(*), min(e.occurred_at + k.events)
          from posthorn.events e cross join kept k
         where e.occurred_at <= posthorn_impl.clock() - k.events
         union all
        select 'delivery to delete', count(*), min(d.created_at + k.deliveries)
          from posthorn.deliveries d cross join kept k
         where d.created_at <= posthorn_impl.clock() - k.deliveries
         union all
        select 'account to delete', count(*), min(o.deleted_at)
          from posthorn.owners o
         where o.deleted_at is not null) d;
comment on view ops.deadlines_behind is 'What workers have yet to tidy, and for how long it has been due. None of it can be read or decided any more.';

create view ops.jobs with (security_invoker = true) as
select j.task_identifier as task,
       count(*) filter (where j.locked_at is null and j.attempts < j.max_attempts and j.run_at <= now()) as waiting,
       count(*) filter (where j.locked_at is null and j.attempts < j.max_attempts and j.run_at > now()) as scheduled,
       count(*) filter (where j.locked_at is not null) as running,
       count(*) filter (where j.locked_at is null and j.attempts >= j.max_attempts) as failed,
       max(j.attempts) as most_attempts,
       min(j.run_at) filter (where j.run_at <= now()) as oldest_at
  from graphile_worker.jobs j
 group by j.task_identifier;
comment on view ops.jobs is 'Jobs of each task: due, scheduled, under way, and those that failed for good. Finished ones leave no row.';

create view ops.workers with (security_invoker = true) as
select h.worker_id, h.heard_at, posthorn_impl.clock() - h.heard_at as silent_for,
       (select count(*) from graphile_worker.jobs j where j.locked_by = h.worker_id) as running
  from posthorn.worker_heartbeats h;
comment on view ops.workers is 'Workers, when each was heard of last and how many jobs it holds; after 30 seconds of silence the others free those.';

create view ops.fenced_bodies with (security_invoker = true) as
select t.relname as table_name, s.n_dead_tup + coalesce(x.n_dead_tup, 0) as dead_rows, greatest(s.last_vacuum, s.last_autovacuum) as last_vacuum,
       greatest(x.last_vacuum, x.last_autovacuum) as last_vacuum_of_large_bodies
  from pg_catalog.pg_class t
  join pg_catalog.pg_stat_all_tables s on s.relid = t.oid
  left join pg_catalog.pg_stat_all_tables x on x.relid = t.reltoastrelid
 where s.schemaname = 'posthorn'
   and t.relname in ('bodies', 'held_bodies');
comment on view ops.fenced_bodies is 'Fenced bodies that no query sees any more and vacuum has yet to remove from the disk, by estimate.';

create view ops.snapshot_holders with (security_invoker = true) as
select x.kind, x.pid, x.role, x.name, x.state, x.running_for, x.transactions_behind
  from (select 'session' as kind, a.pid, a.usename as role, a.application_name as name, a.state, now() - a.xact_start as running_for, age(a.backend_xmin) as transactions_behind
          from pg_catalog.pg_stat_activity a
         where a.datname = current_database() and a.backend_xmin is not null and a.pid <> pg_backend_pid()
         union all
        select 'prepared transaction', null, p.owner, p.gid, null, now() - p.prepared, age(p.transaction)
          from pg_catalog.pg_prepared_xacts p
         where p.database = current_database()
         union all
        select 'replication slot', r.active_pid, null, r.slot_name, case when r.active then 'active' else 'inactive' end, null, greatest(age(r.xmin), age(r.catalog_xmin))
          from pg_catalog.pg_replication_slots r
         where coalesce(r.xmin, r.catalog_xmin) is not null) x
 order by x.transactions_behind desc;
comment on view ops.snapshot_holders is 'Who keeps vacuum from removing what is dead, the oldest first. State and age of others'' sessions show only to members of pg_read_all_stats.';

create view ops.server with (security_invoker = true) as
select s.epoch, s.fenced_up_to is not null as is_being_fenced, s.timeline, s.started_at, pg_catalog.pg_notification_queue_usage() as notify_queue_usage,
       pg_catalog.current_setting('server_version') as postgres_version
  from posthorn.server s;
comment on view ops.server is 'The database itself: its epoch, whether a restore is being fenced, and how full the queue of notifications is, from 0 to 1.';

create view ops.ring_keys with (security_invoker = true) as
select k.ring_key_id, k.created_at as first_used_at, (select count(*) from posthorn.owner_keys o where o.ring_key_id = k.ring_key_id) as owners
  from posthorn.ring_keys k;
comment on view ops.ring_keys is 'The keys of the ring that this database depends on, by name, and how many owners depend on each.';

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
select 'event log of an owner has a gap', o.owner_id, o.id
  from posthorn.owners o
 cross join lateral (
   select count(*) as n, min(e.seq) as first, max(e.seq) as last
     from posthorn.events e
    where e.owner_id = o.owner_id
      and e.agent_id = '00000000-0000-0000-0000-000000000000'
      and e.occurred_at > posthorn_impl.clock() - make_interval(days => (select l.value::int from posthorn.limits l where l.name = 'event_days'))) e
 where coalesce(e.last, o.event_seq) <> o.event_seq
    or (e.n > 0 and e.last - e.first + 1 <> e.n)
union all
select 'post counter differs from messages', c.owner_id, c.conversation_id
  from posthorn.conversations c
 where c.posts <> (select count(distinct coalesce(m.post_id, m.message_id)) from posthorn.messages m where m.owner_id = c.owner_id and m.conversation_id = c.conversation_id and m.seq is not null)
   and c.created_at > (select posthorn_impl.clock() - make_interval(days => l.value::int) + interval '1 hour' from posthorn.limits l where l.name = 'receipt_days') -- none of its messages was swept
union all
select 'receipt names a message that is not there', k.owner_id, i
  from posthorn.idempotency_keys k
 cross join lateral unnest(k.message_ids) i
 where k.created_at > (select posthorn_impl.clock() - make_interval(days => l.value::int) + interval '1 hour' from posthorn.limits l where l.name = 'receipt_days')
   and not exists (select from posthorn.messages m where m.owner_id = k.owner_id and m.message_id = i and m.sender_agent_id = k.agent_id)
union all
select 'post names a message that is not there', p.owner_id, p.post_id
  from posthorn.posts p
 cross join lateral unnest(p.message_ids) i
 where p.created_at > (select posthorn_impl.clock() - make_interval(days => l.value::int) + interval '1 hour' from posthorn.limits l where l.name = 'receipt_days')
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
select 'mailbox does not say what its webhook wants', w.owner_id, w.webhook_id
  from posthorn.webhooks w
  join posthorn.mailboxes b on b.owner_id = w.owner_id and b.agent_id = w.agent_id
 where w.status = 'active'
   and (b.webhook_events is distinct from w.events or b.wake_number <> w.wake_number or b.event_seq < w.seen_seq)
union all
select 'delivery waits at a disabled webhook', d.owner_id, d.delivery_id
  from posthorn.deliveries d
  join posthorn.webhooks w on w.owner_id = d.owner_id and w.webhook_id = d.webhook_id
 where d.state = 'pending'
   and w.status <> 'active'
union all
select 'group with a revoked member, or with fewer than two', g.owner_id, g.group_id
  from posthorn.groups g
 where exists (
         select from posthorn.members m join posthorn.agents a on a.owner_id = m.owner_id and a.agent_id = m.agent_id
          where m.owner_id = g.owner_id and m.group_id = g.group_id and a.revoked_at is not null)
    or (g.revoked_at is null and (select count(*) from posthorn.members m where m.owner_id = g.owner_id and m.group_id = g.group_id) < 2);
comment on view ops.invariants is 'Empty, or something is broken: what functions hold without a constraint.';

grant select on all tables in schema ops to posthorn_ops;

create function ops.requeue_jobs(
  p_task text default null
) returns int
language plpgsql
volatile
security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
  return (
    select count(*)
      from graphile_worker.reschedule_jobs(array(
        select j.id from graphile_worker.jobs j
         where j.locked_at is null and j.attempts >= j.max_attempts and (p_task is null or j.task_identifier = p_task)), run_at => now(), attempts => 0) r);
end $$;
comment on function ops.requeue_jobs(text) is 'Lets jobs run again that failed for good, of one task or of all; answers how many.';
grant execute on function ops.requeue_jobs(text) to posthorn_admin;

set local role posthorn_queue;
create policy select_all on graphile_worker._private_jobs for select to posthorn_admin using (true);
create policy requeue_failed on graphile_worker._private_jobs for update to posthorn_admin using (locked_at is null and attempts >= max_attempts) with check (true);
grant select, update (run_at, priority, attempts, max_attempts, updated_at) on graphile_worker._private_jobs to posthorn_admin;
