-- Settled tasks, partitioned by the UTC day of settlement: history is dropped a day at a time, not deleted row by row.
-- There is no DEFAULT partition: it would forbid detaching others concurrently, and once it holds a row of a day that
-- day's partition can no longer be made. Partitions are made ahead of time instead, and on demand.

-- +goose Up

create table task_archive (
  id            uuid not null,
  type          text collate "C" not null,
  status        text collate "C" not null,
  due_at        timestamptz not null,
  priority      smallint not null,
  attempt       integer not null,
  max_attempts  integer,
  fence         bigint not null,
  worker        text,
  unique_key    text collate "C",
  payload       jsonb,
  payload_bytes integer not null,
  metadata      jsonb not null,
  created_at    timestamptz not null,
  started_at    timestamptz,
  finished_at   timestamptz not null,
  last_error    text,
  errors        jsonb not null,
  primary key (id, finished_at)
) partition by range (finished_at);

comment on table task_archive is 'Settled tasks by day of settlement.';
comment on column task_archive.payload is 'Null where it was larger than the archive keeps; payload_bytes has its size.';

-- +goose StatementBegin
-- ensure_partitions makes the partitions of the archive for today and the days ahead that are missing, and returns how
-- many it made. A partition is created on its own and then attached: that waits for nobody, where PARTITION OF would
-- wait for every reader and make every settlement wait behind it. Its bounds go through text, hence the pinned style:
-- others abbreviate the time zone, and "IST" is written for Kolkata and read as Jerusalem.
create function ensure_partitions(days_ahead integer default 14) returns integer
language plpgsql security definer
set search_path from current
set datestyle = 'ISO'
set lock_timeout = '2s'
as $$
declare
  today date := (clock_timestamp() at time zone 'utc')::date;
  day   date;
  part  text;
  made  integer := 0;
begin
  -- The usual case takes no lock.
  if not exists (
    select from generate_series(0, days_ahead) as d
    where to_regclass('task_archive_' || to_char(today + d, 'YYYYMMDD')) is null
  ) then
    return 0;
  end if;
  -- One session at a time. Not an advisory lock: only one on a relation makes this session see what others made since
  -- the look above. It is the lock that attaching takes, and readers and writers do not mind it.
  lock table only task_archive in share update exclusive mode;
  for day in select today + d from generate_series(0, days_ahead) as d loop
    part := 'task_archive_' || to_char(day, 'YYYYMMDD');
    continue when to_regclass(part) is not null;
    execute format('create table %I (like task_archive including all)', part);
    execute format('alter table task_archive attach partition %I for values from (%L) to (%L)',
      part, day::timestamp at time zone 'utc', (day + 1)::timestamp at time zone 'utc');
    made := made + 1;
  end loop;
  return made;
end
$$;
-- +goose StatementEnd

select ensure_partitions();

-- +goose StatementBegin
-- complete_task settles a running task as succeeded inside the caller's own transaction. It has its owner's rights, so
-- a handler's role needs none on the tables; fence and holder are what shows that the caller holds the lease. False
-- means the lease is lost and the caller must roll back.
create function complete_task(task_id uuid, held_fence bigint, held_holder uuid, keep_bytes integer default 8192) returns boolean
language plpgsql security definer
set search_path from current
as $$
begin
  if to_regclass('task_archive_' || to_char(clock_timestamp() at time zone 'utc', 'YYYYMMDD')) is null then
    perform ensure_partitions();
  end if;
  with settled as (
    delete from tasks
    where id = task_id
      -- The case hides the status from the planner, which would walk the index of leases if it thinks the table empty.
      and case when status = 'running' then fence = held_fence end
      and holder = held_holder and retry_at < 'infinity'
    returning *
  )
  insert into task_archive (
    id, type, status, due_at, priority, attempt, max_attempts, fence, worker, unique_key,
    payload, payload_bytes, metadata, created_at, started_at, finished_at, last_error, errors)
  select
    id, type, 'succeeded', due_at, priority, attempt, max_attempts, fence, worker, unique_key,
    case when pg_column_size(payload) <= keep_bytes then payload end, pg_column_size(payload), metadata,
    created_at, started_at, clock_timestamp(), last_error, errors
  from settled;
  return found;
end
$$;
-- +goose StatementEnd

-- +goose Down
drop function complete_task(uuid, bigint, uuid, integer);
drop function ensure_partitions(integer);
drop table task_archive;
