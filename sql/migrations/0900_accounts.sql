set local role posthorn_owner;

-- A deleted account is unreadable at once (its key and bodies are gone) and removed row by row afterwards.
alter table posthorn.owners add column deleted_at timestamptz;
