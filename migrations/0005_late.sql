-- Workers claim from marks on, so as not to walk over the index entries of tasks that are claimed already, which stay while
-- somebody holds an old snapshot. What appears behind the marks must be told: see type Marks of package lease.

-- +goose Up

-- +goose StatementBegin
-- ring wakes the worker that sleeps, if one does, and tells workers of rows that are late. It runs at commit, as the
-- committing user, for every row that has become runnable. It tries the gate's advisory lock shared; a sleeping worker holds
-- it exclusively. The lock it gets is released only after the row is visible, so a worker that arms, waiting for it, and
-- claims then, sees the row. It qualifies every name and touches no table, so it works for any role and search_path;
-- pinning a search_path would cost 10 % of an insert.
create or replace function ring() returns trigger
language plpgsql
as $$
declare
  channel text;
  age     interval;
begin
  if pg_catalog.pg_try_advisory_xact_lock_shared(
       tg_relid::pg_catalog.int4,
       pg_catalog.hashtext(new.type) operator(pg_catalog.&) 1023)
     and new.retry_at operator(pg_catalog.>=) (pg_catalog.clock_timestamp() operator(pg_catalog.-) interval '1 s')
     or pg_catalog.current_setting('pgwake.wake', true) operator(pg_catalog.=) 'off'
  then
    return null;
  end if;
  channel := 'pgwake_' operator(pg_catalog.||) pg_catalog.md5(tg_table_schema operator(pg_catalog.||) '.' operator(pg_catalog.||) tg_table_name);
  age := pg_catalog.clock_timestamp() operator(pg_catalog.-) new.retry_at;
  if age operator(pg_catalog.>) interval '1 s' then
    -- To the second, the minute, or just long ago: many rows of a transaction are then one notification.
    perform pg_catalog.pg_notify(
      channel operator(pg_catalog.||) '_late',
      new.type operator(pg_catalog.||) ' ' operator(pg_catalog.||) case
        when age operator(pg_catalog.<) interval '1 min' then extract(epoch from pg_catalog.date_trunc('second', new.retry_at))::pg_catalog.int8
        when age operator(pg_catalog.<) interval '1 h' then extract(epoch from pg_catalog.date_trunc('minute', new.retry_at))::pg_catalog.int8
        else 0
      end);
  end if;
  if not pg_catalog.pg_try_advisory_xact_lock_shared(
       tg_relid::pg_catalog.int4,
       pg_catalog.hashtext(new.type) operator(pg_catalog.&) 1023)
  then
    perform pg_catalog.pg_notify(channel, new.type);
  end if;
  return null;
end
$$;
-- +goose StatementEnd

-- A change of priority takes a row to where the mark may be ahead of it.
drop trigger tasks_ring_update on tasks;
create constraint trigger tasks_ring_update
after update of status, retry_at, type, priority on tasks
deferrable initially deferred
for each row
when (
  new.retry_at < statement_timestamp() + interval '60 s'
  and new.status <> 'paused'
  and (
    old.retry_at is null
    or new.retry_at < old.retry_at
    or (new.status = 'queued' and old.status <> 'queued')
    or new.type <> old.type
    or new.priority <> old.priority
  )
)
execute function ring();

-- Under load workers claim one after the other, by a lock on this table, which takes no snapshot.
create table claim_turn ();
comment on table claim_turn is 'Empty: locked by workers that claim one after the other.';

-- Programs of the versions before neither have marks nor mind.

-- +goose Down

drop table claim_turn;

drop trigger tasks_ring_update on tasks;
create constraint trigger tasks_ring_update
after update of status, retry_at, type on tasks
deferrable initially deferred
for each row
when (
  new.retry_at < statement_timestamp() + interval '60 s'
  and new.status <> 'paused'
  and (
    old.retry_at is null
    or new.retry_at < old.retry_at
    or (new.status = 'queued' and old.status <> 'queued')
    or new.type <> old.type
  )
)
execute function ring();

-- +goose StatementBegin
create or replace function ring() returns trigger
language plpgsql
as $$
begin
  if pg_catalog.pg_try_advisory_xact_lock_shared(
       tg_relid::pg_catalog.int4,
       pg_catalog.hashtext(new.type) operator(pg_catalog.&) 1023)
     or pg_catalog.current_setting('pgwake.wake', true) operator(pg_catalog.=) 'off'
  then
    return null;
  end if;
  perform pg_catalog.pg_notify(
    'pgwake_' operator(pg_catalog.||) pg_catalog.md5(tg_table_schema operator(pg_catalog.||) '.' operator(pg_catalog.||) tg_table_name),
    new.type);
  return null;
end
$$;
-- +goose StatementEnd
