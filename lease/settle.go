package lease

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// Settlement is the end of one run: the state the row moves to.
type Settlement struct {
	Lease   *Lease
	Status  string          // one of the table's states
	Delay   time.Duration   // queued: until it is due again
	Unspent bool            // the run does not count as an attempt
	Started bool            // the run had begun: its worker was there to the end of it
	Discard bool            // final states: the row is deleted, and not archived
	Error   string          // becomes the last error; empty: none
	Entry   json.RawMessage // an object, appended with the time as "at" to the list of errors, of which the last 10 are kept; nil: none
}

// settledErrors appends the entry and keeps the last ten. What is no list is replaced by one.
const settledErrors = `
  case
    when h.entry is null then t.{{q .Errors}}
    when jsonb_typeof(t.{{q .Errors}}) is distinct from 'array' then jsonb_build_array(h.entry || jsonb_build_object('at', clock_timestamp()))
    when jsonb_array_length(t.{{q .Errors}}) >= 10 then (t.{{q .Errors}} - 0) || (h.entry || jsonb_build_object('at', clock_timestamp()))
    else t.{{q .Errors}} || (h.entry || jsonb_build_object('at', clock_timestamp()))
  end`

// settleSQL ends runs: final ones move to the archive, if there is one, all others are updated in place. It locks first,
// as lockHeld says, and returns the keys it settled. "key = any (array (…))" keeps the two updates on the primary key. The
// joins are best done by hash; a session in which enable_nestloop is off makes sure of it whatever the statistics say.
// SettledLock is tried last and once, so that it is held for no longer than the commit takes; refused, it adds a null.
const settleSQL = `
with held as (
  select t.key, i.status, i.delay, i.unspent, i.started, i.discard, i.error, i.entry
  from (
    select i.*
    from unnest(
      @keys::text[]::{{.KeyType}}[], @fences::bigint[], @statuses::text[], @delays::interval[],
      @unspent::integer[], @started::boolean[], @discards::boolean[], @errors::text[], @entries::text[]::jsonb[]
    ) as i(key, fence, status, delay, unspent, started, discard, error, entry)
    order by i.key
  ) as i` + lockHeld + `
),
{{if .Archive}}
moved as (
  delete from {{.Name.Sanitize}} as t
  using held as h
  where t.{{q .Key}} = any (array (select key from held where status in ({{lits .States.Final}})))
    and t.{{q .Key}} = h.key
  returning
    t.*, h.discard, h.status as settled_status, h.error as settled_error, h.unspent as settled_unspent
    {{if .Errors}}, ` + settledErrors + ` as settled_errors{{end}}
),
archived as (
  insert into {{.Archive.Name.Sanitize}} (
    {{q .Status}}
    {{if .Attempt}}, {{q .Attempt}}{{end}}
    {{if .FinishedAt}}, {{q .FinishedAt}}{{end}}
    {{if .LastError}}, {{q .LastError}}{{end}}
    {{if .Errors}}, {{q .Errors}}{{end}}
    , {{cols .Archive.Columns}}
  )
  select
    t.settled_status
    {{if .Attempt}}, greatest(t.{{q .Attempt}} - t.settled_unspent, 0){{end}}
    {{if .FinishedAt}}, clock_timestamp(){{end}}
    {{if .LastError}}, coalesce(t.settled_error, t.{{q .LastError}}){{end}}
    {{if .Errors}}, t.settled_errors{{end}}
    , {{exprs .Archive.Values}}
  from moved as t
  where not t.discard
),
{{end}}
kept as (
  update {{.Name.Sanitize}} as t
  set
    {{q .Status}} = h.status,
    {{q .RetryAt}} = case when h.status = {{lit .States.Queued}} then clock_timestamp() + h.delay end
    {{if .DueAt}}, {{q .DueAt}} = case when h.status = {{lit .States.Queued}} then clock_timestamp() + h.delay else t.{{q .DueAt}} end{{end}}
    {{if .Holder}}, {{q .Holder}} = null{{end}}
    {{if .Attempt}}, {{q .Attempt}} = greatest(t.{{q .Attempt}} - h.unspent, 0){{end}}
    {{if .Lost}}, {{q .Lost}} = case when h.started then 0 else t.{{q .Lost}} end{{end}}
    {{if .FinishedAt}}, {{q .FinishedAt}} = clock_timestamp(){{end}}
    {{if .LastError}}, {{q .LastError}} = coalesce(h.error, t.{{q .LastError}}){{end}}
    {{if .Errors}}, {{q .Errors}} = ` + settledErrors + `{{end}}
  from held as h
  where t.{{q .Key}} = any (array (select key from held {{if .Archive}}where status not in ({{lits .States.Final}}){{end}}))
    and t.{{q .Key}} = h.key
  returning t.{{q .Key}}::text
)
select * from kept
{{if .Archive}}union all select t.{{q .Key}}::text from moved as t{{end}}
{{if .SettledLock}}union all select null where not pg_try_advisory_xact_lock_shared({{.SettledLock}}){{end}}`

// finishSQL ends runs by a final state, without a lock before: it waits for rows that somebody has locked, in key order as
// it is given them. The primary key serves it.
const finishSQL = `
with gone as (
  delete from {{.Name.Sanitize}} as t
  using unnest(@keys::text[]::{{.KeyType}}[], @fences::bigint[]) as i(key, fence)
  where t.{{q .Key}} = any (@keys::text[]::{{.KeyType}}[])
    and t.{{q .Key}} = i.key
    and case when t.{{q .Status}} = {{lit .States.Running}} then {{token "t"}} = i.fence end
    {{if .Holder}}and t.{{q .Holder}} = @holder::uuid{{end}}
    and t.{{q .RetryAt}} < 'infinity'
  returning t.*
),
archived as (
  insert into {{.Archive.Name.Sanitize}} (
    {{q .Status}}
    {{if .Attempt}}, {{q .Attempt}}{{end}}
    {{if .FinishedAt}}, {{q .FinishedAt}}{{end}}
    {{if .LastError}}, {{q .LastError}}{{end}}
    {{if .Errors}}, {{q .Errors}}{{end}}
    , {{cols .Archive.Columns}}
  )
  select
    @status
    {{if .Attempt}}, t.{{q .Attempt}}{{end}}
    {{if .FinishedAt}}, clock_timestamp(){{end}}
    {{if .LastError}}, t.{{q .LastError}}{{end}}
    {{if .Errors}}, t.{{q .Errors}}{{end}}
    , {{exprs .Archive.Values}}
  from gone as t
  where not @discard::boolean
)
select t.{{q .Key}}::text from gone as t
{{if .SettledLock}}union all select null where not pg_try_advisory_xact_lock_shared({{.SettledLock}}){{end}}`

// Finish is [Queue.SettleWatched] for runs that all end by one final state of a table with an archive, with nothing else to
// say, and about a third cheaper: it waits for rows that somebody has locked. Run it with a lock_timeout, and settle what
// that refuses.
func (q *Queue) Finish(ctx context.Context, db DB, holder string, leases []*Lease, status string, discard bool) (done []string, watched bool, err error) {
	if q.table.Archive == nil || !slices.Contains(q.table.States.Final, status) {
		return nil, false, fmt.Errorf("finish: state %q is not a final one of a table with an archive", status)
	}
	leases = slices.SortedFunc(slices.Values(leases), func(a, b *Lease) int { return strings.Compare(a.Key, b.Key) })
	keys, fences := tokens(leases)
	rows, err := db.Query(ctx, q.sql.finish.sql, q.sql.finish.args(pgx.NamedArgs{
		"keys": keys, "fences": fences, "holder": holder, "status": status, "discard": discard,
	})...)
	if err != nil {
		return nil, false, fmt.Errorf("finish: %w", err)
	}
	return collectSettled("finish", rows)
}

// Settle ends runs, all outcomes in one statement, and returns the keys of the rows it settled. A row that is missing
// from the answer is lost or locked by somebody at the moment: [Queue.Lost] tells which.
func (q *Queue) Settle(ctx context.Context, db DB, holder string, batch []Settlement) ([]string, error) {
	done, _, err := q.SettleWatched(ctx, db, holder, batch)
	return done, err
}

// SettleWatched is Settle, and reports whether somebody holds Table.SettledLock and is to be told after the commit. If
// not, whoever gets hold of it later sees what was settled.
func (q *Queue) SettleWatched(ctx context.Context, db DB, holder string, batch []Settlement) (done []string, watched bool, err error) {
	n := len(batch)
	keys, fences, statuses := make([]string, n), make([]int64, n), make([]string, n)
	delays, unspent, started := make([]time.Duration, n), make([]int32, n), make([]bool, n)
	discards, texts, entries := make([]bool, n), make([]*string, n), make([]*string, n)
	for i, s := range batch {
		keys[i], fences[i], statuses[i] = s.Lease.Key, s.Lease.Fence, s.Status
		delays[i], started[i], discards[i] = s.Delay, s.Started, s.Discard
		if s.Unspent {
			unspent[i] = 1
		}
		if s.Error != "" {
			texts[i] = &s.Error
		}
		if s.Entry != nil {
			e := string(s.Entry)
			entries[i] = &e
		}
	}
	rows, err := db.Query(ctx, q.sql.settle.sql, q.sql.settle.args(pgx.NamedArgs{
		"keys": keys, "fences": fences, "holder": holder, "statuses": statuses, "delays": delays,
		"unspent": unspent, "started": started, "discards": discards, "errors": texts, "entries": entries,
	})...)
	if err != nil {
		return nil, false, fmt.Errorf("settle: %w", err)
	}
	return collectSettled("settle", rows)
}

// collectSettled reads the keys of settled rows; a null among them says that somebody watches.
func collectSettled(step string, rows pgx.Rows) (done []string, watched bool, err error) {
	var key pgtype.Text
	if _, err := pgx.ForEachRow(rows, []any{&key}, func() error {
		if key.Valid {
			done = append(done, key.String)
		} else {
			watched = true
		}
		return nil
	}); err != nil {
		return nil, false, fmt.Errorf("%s: %w", step, err)
	}
	return done, watched, nil
}
