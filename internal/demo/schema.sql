-- What the demo keeps beside pgwake's own tables.
create schema demo;

-- How the crawl is to go: one row, read by every worker when it starts.
create table demo.site (
  seed    text not null,
  robots  text not null,
  gap     interval not null,
  next_at timestamptz not null default now(),
  room    integer not null check (room >= 0)
);
comment on column demo.site.robots is 'The text of robots.txt, empty where the site has none.';
comment on column demo.site.gap is 'Time between two fetches of the whole fleet.';
comment on column demo.site.next_at is 'When the next fetch may start; moved on by every fetch of a site that is not to be hurried.';
comment on column demo.site.room is 'How many more addresses may become known. Whoever adds some locks the row, so the limit is kept exactly.';

-- Every address ever found; each was enqueued once.
create table demo.url (url text primary key);

-- No unique keys from here on: a task that took effect twice must show.
create table demo.page (
  url          text not null,
  status       integer not null,
  content_type text not null,
  error        text,
  bytes        bigint not null,
  sha256       bytea,
  body         bytea
);
comment on column demo.page.status is 'HTTP status; 0: no answer after all attempts.';
comment on column demo.page.error is 'Why there is no body.';
create index page_url on demo.page (url);

create table demo.document (
  url   text not null,
  title text,
  words integer not null,
  links integer not null
);
create index document_url on demo.document (url);

-- One row for each run that was settled, written by the transaction that settled it.
create table demo.effect (
  task_id  uuid not null,
  type     text not null,
  attempt  integer not null,
  fence    bigint not null,
  pid      integer not null,
  worker   text not null,
  started  timestamptz not null,
  finished timestamptz not null
);
comment on column demo.effect.started is 'By the clock of the worker''s machine, like finished.';
create index effect_task on demo.effect (task_id);
