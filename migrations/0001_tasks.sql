-- Live tasks. A row is here from enqueue until it is settled; then it moves to task_archive, so this table and its
-- indexes stay as small as the backlog. The queue protocol is two columns, status and retry_at: see package lease.

-- +goose Up

-- +goose StatementBegin
-- uuid_v7 makes a time-ordered UUID (RFC 9562 §5.7) on servers that lack uuidv7(), which came with PostgreSQL 18:
-- a random version-4 value with 48 bits of milliseconds laid over its start and the version set to 7.
create function uuid_v7() returns uuid
language sql volatile parallel safe
set search_path from current
as $$
  select encode(
    set_bit(set_bit(
      overlay(uuid_send(gen_random_uuid())
        placing substring(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3)
        from 1 for 6),
      52, 1), 53, 1),
    'hex')::uuid
$$;
-- +goose StatementEnd

create table tasks (
  id           uuid primary key default uuid_v7(),
  type         text collate "C" not null check (octet_length(type) between 1 and 200),
  status       text collate "C" not null default 'queued'
               check (status in ('queued', 'running', 'paused', 'frozen', 'succeeded', 'cancelled')),
  retry_at     timestamptz default now(),
  due_at       timestamptz not null default now(),
  priority     smallint not null default 5 check (priority between 0 and 9),
  attempt      integer not null default 0 check (attempt >= 0),
  max_attempts integer check (max_attempts >= 1),
  lost         smallint not null default 0,
  fence        bigint not null default 0,
  holder       uuid,
  worker       text,
  unique_key   text collate "C" check (octet_length(unique_key) between 1 and 500),
  payload      jsonb not null default '{}',
  metadata     jsonb not null default '{}' check (jsonb_typeof(metadata) = 'object'),
  created_at   timestamptz not null default now(),
  started_at   timestamptz,
  finished_at  timestamptz,
  last_error   text check (char_length(last_error) <= 1024),
  errors       jsonb not null default '[]' check (jsonb_typeof(errors) = 'array'),
  -- A queued or running row without an instant would never be looked at again.
  constraint tasks_retry_at_set check (retry_at is not null or status not in ('queued', 'running', 'paused')),
  -- Few clients can read an infinite instant, and one that a claim returns would fail it. Only a pause is infinite.
  constraint tasks_finite check (
    isfinite(due_at) and isfinite(created_at) and isfinite(started_at) and isfinite(finished_at) and retry_at > '-infinity')
)
-- The table is emptied and refilled all the time: vacuum early and at full speed, and keep the empty pages, since
-- giving them back takes an exclusive lock and leaves the planner with a table of 0 pages.
with (
  vacuum_truncate = off,
  autovacuum_vacuum_scale_factor = 0.01,
  autovacuum_vacuum_threshold = 2000,
  autovacuum_vacuum_insert_scale_factor = 0.2,
  autovacuum_analyze_scale_factor = 0.05,
  autovacuum_vacuum_cost_delay = 0
);

comment on table tasks is 'Live tasks: queued, running, paused and frozen.';
comment on column tasks.retry_at is 'queued: due at; running: leased until; infinity: paused; null: nothing to do until somebody acts.';
comment on column tasks.due_at is 'The planned instant of the current or next run; a lease never overwrites it.';
comment on column tasks.max_attempts is 'Runs allowed; null: what the task type says, 4 by default.';
comment on column tasks.lost is 'Runs in a row that ended with their worker lost.';
comment on column tasks.fence is 'Rises with every claim; a write of an older fence is refused.';
comment on column tasks.holder is 'The worker run that holds the lease.';
comment on column tasks.worker is 'Name of the worker that ran the task last.';
comment on column tasks.errors is 'The last 10 failures: attempt, at, error, stack, worker.';

-- Two partial indexes, so that the ends of leases never lie in the way of a look for due tasks.
create index tasks_due on tasks (type, priority, retry_at, id) where status = 'queued';
create index tasks_leases on tasks (type, retry_at, id) where status = 'running';
-- Every row in this table is live (or frozen, which holds its key too), so the key needs no condition on status.
create unique index tasks_unique_key on tasks (type, unique_key) where unique_key is not null;

-- +goose StatementBegin
-- ring wakes the workers that listen for a table. It runs at commit, as the committing user, for every row that has
-- become runnable; equal notifications of one transaction are one. It qualifies every name and touches no table, so it
-- works for any role and search_path; pinning a search_path would cost 10 % of an insert.
create function ring() returns trigger
language plpgsql
as $$
begin
  if pg_catalog.current_setting('pgwake.wake', true) operator(pg_catalog.=) 'off' then
    return null;
  end if;
  perform pg_catalog.pg_notify(
    'pgwake_' operator(pg_catalog.||) pg_catalog.md5(tg_table_schema operator(pg_catalog.||) '.' operator(pg_catalog.||) tg_table_name),
    new.type);
  return null;
end
$$;
-- +goose StatementEnd

-- Rows due in more than a minute do not ring: a waiting worker reads its next due instant more often than that.
create constraint trigger tasks_ring_insert
after insert on tasks
deferrable initially deferred
for each row
when (new.retry_at < statement_timestamp() + interval '60 s')
execute function ring();

-- Claims, renewals and settlements only move retry_at later or to null: they queue no trigger event.
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
create function refuse_change() returns trigger
language plpgsql
set search_path from current
as $$
begin
  if tg_op = 'INSERT' then
    raise exception 'a task is inserted as queued, not as %', new.status
      using errcode = 'check_violation',
            hint = 'Insert it as queued; workers and operators move it from there.';
  end if;
  raise exception 'created_at of a task cannot be changed'
    using errcode = 'check_violation';
end
$$;
-- +goose StatementEnd

-- After triggers with a condition: they cost nothing when it does not hold, and a before trigger would end COPY's batching.
-- A row in another state that has been claimed or operated on, and so has a fence, comes from a dump: restoring it is fine.
create trigger tasks_insert_queued
after insert on tasks
for each row
when (new.status <> 'queued' and new.fence = 0)
execute function refuse_change();

create trigger tasks_created_at
after update of created_at on tasks
for each row
when (new.created_at is distinct from old.created_at)
execute function refuse_change();

-- +goose Down
drop table tasks;
drop function refuse_change();
drop function ring();
drop function uuid_v7();
