-- Task types whose history is not kept: their settled tasks are deleted, and not archived.

-- +goose Up

-- +goose StatementBegin
-- complete_task settles a running task as succeeded inside the caller's own transaction. It has its owner's rights, so
-- a handler's role needs none on the tables; fence and holder are what shows that the caller holds the lease. The archive
-- keeps the task, and its payload up to keep_bytes; null: the task is not kept. False means the lease is lost and the
-- caller must roll back.
create or replace function complete_task(task_id uuid, held_fence bigint, held_holder uuid, keep_bytes integer default 8192) returns boolean
language plpgsql security definer
set search_path from current
as $$
begin
  if keep_bytes is null then
    delete from tasks
    where id = task_id
      and case when status = 'running' then fence = held_fence end
      and holder = held_holder and retry_at < 'infinity';
    return found;
  end if;
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

-- +goose StatementBegin
create or replace function complete_task(task_id uuid, held_fence bigint, held_holder uuid, keep_bytes integer default 8192) returns boolean
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
