-- What the fleet tells about itself, and the function by which any language enqueues.

-- +goose Up

create table task_types (
  type            text collate "C" primary key check (octet_length(type) between 1 and 200),
  max_attempts    integer check (max_attempts >= 1),
  timeout_seconds double precision check (timeout_seconds >= 0),
  registered_at   timestamptz not null default now(),
  seen_at         timestamptz not null default now()
);
comment on table task_types is 'Task types that workers have registered, as the newest worker has them.';

create table workers (
  id         uuid primary key,
  name       text not null,
  version    text not null,
  types      text[] not null,
  slots      integer not null,
  running    integer not null default 0,
  started_at timestamptz not null default now(),
  seen_at    timestamptz not null default now(),
  draining   boolean not null default false
) with (fillfactor = 50);
comment on table workers is 'Worker processes; seen_at is renewed at every sweep.';

-- One view over live and settled tasks. Infinity, which few clients can read, shows as paused, and attempts that the task
-- does not say as those of its type.
create view all_tasks as
select
  id, type, status, true as live,
  case when retry_at < 'infinity' then retry_at end as retry_at,
  coalesce(retry_at = 'infinity', false) as paused,
  case when status = 'queued' and retry_at < 'infinity' then retry_at else due_at end as due_at,
  priority, attempt,
  coalesce(max_attempts, (select y.max_attempts from task_types as y where y.type = t.type), 4) as max_attempts,
  fence, worker, unique_key,
  payload, pg_column_size(payload) as payload_bytes, metadata,
  created_at, started_at, finished_at, last_error, errors
from tasks as t
union all
select
  id, type, status, false, null, false, due_at,
  priority, attempt,
  coalesce(max_attempts, (select y.max_attempts from task_types as y where y.type = t.type), 4) as max_attempts,
  fence, worker, unique_key,
  payload, payload_bytes, metadata,
  created_at, started_at, finished_at, last_error, errors
from task_archive as t;

-- +goose StatementBegin
-- enqueue inserts a task and returns its id. With a unique key that a live task of the type holds already it returns
-- the id of that task. due_at is the planned instant; without it the task is due after delay, at once by default.
create function enqueue(
  type         text,
  payload      jsonb       default '{}',
  due_at       timestamptz default null,
  delay        interval    default null,
  priority     integer     default 5,
  max_attempts integer     default null,
  unique_key   text        default null,
  metadata     jsonb       default '{}',
  id           uuid        default null
) returns uuid
language plpgsql
set search_path from current
as $$
#variable_conflict use_column
declare
  due  timestamptz := coalesce(enqueue.due_at, case when enqueue.delay is null then now() else clock_timestamp() + enqueue.delay end);
  made uuid;
begin
  loop
    insert into tasks (id, type, payload, retry_at, due_at, priority, max_attempts, unique_key, metadata)
    values (coalesce(enqueue.id, uuid_v7()), enqueue.type, enqueue.payload, due, due, enqueue.priority,
            enqueue.max_attempts, enqueue.unique_key, coalesce(enqueue.metadata, '{}'))
    on conflict (type, unique_key) where unique_key is not null do nothing
    returning tasks.id into made;
    exit when made is not null;
    select t.id into made
    from tasks as t
    where t.type = enqueue.type and t.unique_key = enqueue.unique_key;
    exit when made is not null;
    -- The holder of the key was settled between the two statements: insert again.
  end loop;
  return made;
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- The oldest schema version whose programs can work on this schema; raised by a migration that breaks older ones.
create function schema_compatible_from() returns integer
language sql immutable
as 'select 3';
-- +goose StatementEnd

-- +goose Down
drop function schema_compatible_from();
drop function enqueue(text, jsonb, timestamptz, interval, integer, integer, text, jsonb, uuid);
drop view all_tasks;
drop table workers;
drop table task_types;
