set local role posthorn_owner;

-- The owner has a log, too: in posthorn.events under the nil UUID in place of an agent, numbered by the owner's row, which
-- whoever makes or decides a request holds anyway. Its wake number is one of the mailboxes' numbers, so that one
-- notification names both.
-- The numbers are written into every row, of which a server has a few hundred.
alter table posthorn.owners
  add column event_seq bigint not null default 0,
  -- squawk-ignore adding-field-with-default
  add column wake_number int not null default nextval('posthorn.mailboxes_wake_number_seq');

alter table posthorn.events
  drop constraint kind_is_known,
  -- not valid: what is there satisfied a narrower one, and the log may be long
  add constraint kind_is_known check (kind in (
    'messaging.pending', 'message.state', 'proposal.decided', 'call.updated', 'wakeup.due', 'proposal.created', 'call.input_required')) not valid;
