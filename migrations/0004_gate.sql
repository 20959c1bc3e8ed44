-- The wake gate: a notification is only useful while somebody sleeps, and expensive, because transactions that notify
-- commit one at a time. So the trigger notifies only if a worker has armed the gate of the row's type: see package notify.

-- +goose Up

-- +goose StatementBegin
-- ring wakes the worker that sleeps, if one does. It runs at commit, as the committing user, for every row that has become
-- runnable. It tries the gate's advisory lock shared; a sleeping worker holds it exclusively. The lock it gets is released
-- only after the row is visible, so a worker that arms, waiting for it, and claims then, sees the row. It qualifies every
-- name and touches no table, so it works for any role and search_path; pinning a search_path would cost 10 % of an insert.
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

-- Programs of the versions before do not arm the gate and would not be woken.
create or replace function schema_compatible_from() returns integer
language sql immutable
as 'select 4';

-- +goose Down

create or replace function schema_compatible_from() returns integer
language sql immutable
as 'select 3';

-- +goose StatementBegin
create or replace function ring() returns trigger
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
