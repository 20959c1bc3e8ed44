package lease

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// ErrLeaseLost says that the row is no longer held under the lease given: it expired and somebody else claimed the row,
// an operator moved it, or it is gone. What the holder did since must not be written.
var ErrLeaseLost = errors.New("lease lost")

// LostError is the [ErrLeaseLost] that says what was found instead.
type LostError struct {
	Key   string
	Fence int64  // the fence of the lost lease
	Found *State // what the row holds now; nil if it is gone
}

func (e *LostError) Error() string {
	if e.Found == nil {
		return fmt.Sprintf("lease lost: row %s is gone, expected fence %d", e.Key, e.Fence)
	}
	return fmt.Sprintf("lease lost: row %s is %s with fence %d, expected fence %d", e.Key, e.Found.Status, e.Found.Fence, e.Fence)
}

// Is makes errors.Is(err, ErrLeaseLost) hold.
func (e *LostError) Is(target error) bool { return target == ErrLeaseLost }

// lockHeld locks the rows that are held under the leases of i, which come in key order, and passes over those that others
// have locked: so one locked row delays no other, and two batches never deadlock. The conditions on status and retry_at
// keep it from undoing a pause. One probe a key, and the case that hides the status, keep the plan on the primary key: if
// the statistics are those of an empty table, a plain join compares every key with every other, and a bare condition on
// status walks the whole index of leases.
const lockHeld = `
  cross join lateral (
    select t.{{q .Key}} as key
    from {{.Name.Sanitize}} as t
    where t.{{q .Key}} = i.key
      and case when t.{{q .Status}} = {{lit .States.Running}} then {{token "t"}} = i.fence end
      {{if .Holder}}and t.{{q .Holder}} = @holder::uuid{{end}}
      and t.{{q .RetryAt}} < 'infinity'
    for update skip locked
  ) as t`

// renewSQL moves the leases of held rows on. See lockHeld for what it locks and the index that serves it.
const renewSQL = `
with held as (
  select t.key
  from (
    select i.key, i.fence
    from unnest(@keys::text[]::{{.KeyType}}[], @fences::bigint[]) as i(key, fence)
    order by i.key
  ) as i` + lockHeld + `
)
update {{.Name.Sanitize}} as t
set {{q .RetryAt}} = greatest(t.{{q .RetryAt}} + interval '1 microsecond', clock_timestamp() + @lease::interval)
where t.{{q .Key}} = any (array (select held.key from held))
returning t.{{q .Key}}::text, {{token "t"}}`

// Renewed is a lease after its renewal.
type Renewed struct {
	Key   string
	Fence int64 // unchanged, except in tables without a fence column, where every lease value is a new token
}

// Renew moves the end of every lease to d from now, in one statement, and returns those it found held. One that is
// missing is not lost yet: somebody may have the row locked. [Queue.States] tells.
func (q *Queue) Renew(ctx context.Context, db DB, holder string, leases []*Lease, d time.Duration) ([]Renewed, error) {
	keys, fences := tokens(leases)
	rows, err := db.Query(ctx, q.sql.renew.sql, q.sql.renew.args(pgx.NamedArgs{"keys": keys, "fences": fences, "holder": holder, "lease": d})...)
	if err != nil {
		return nil, fmt.Errorf("renew: %w", err)
	}
	renewed, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Renewed])
	if err != nil {
		return nil, fmt.Errorf("renew: %w", err)
	}
	return renewed, nil
}

func tokens(leases []*Lease) (keys []string, fences []int64) {
	for _, l := range leases {
		keys, fences = append(keys, l.Key), append(fences, l.Fence)
	}
	return keys, fences
}

// State is what a row holds at the moment.
type State struct {
	Key    string
	Status string
	Fence  int64
	Holder string // empty: nobody
	Leased bool   // its time column holds an instant: neither a pause nor nothing
}

// Held reports whether the row is still running under the lease.
func (s *State) Held(l *Lease, running string) bool {
	return s != nil && s.Leased && s.Status == running && s.Fence == l.Fence && (s.Holder == "" || s.Holder == l.Holder)
}

const stateSQL = `
select
  t.{{q .Key}}::text,
  t.{{q .Status}}::text,
  {{if .Fence}}coalesce({{token "t"}}, 0){{else}}case when isfinite(t.{{q .RetryAt}}) then {{token "t"}} else 0 end{{end}},
  {{if .Holder}}coalesce(t.{{q .Holder}}::text, ''){{else}}''{{end}},
  coalesce(isfinite(t.{{q .RetryAt}}), false)
from {{.Name.Sanitize}} as t
where t.{{q .Key}} = any (@keys::text[]::{{.KeyType}}[])`

// States reads what rows hold; a key that is missing from the answer is gone.
func (q *Queue) States(ctx context.Context, db DB, keys []string) (map[string]*State, error) {
	rows, err := db.Query(ctx, q.sql.state.sql, q.sql.state.args(pgx.NamedArgs{"keys": keys})...)
	if err != nil {
		return nil, fmt.Errorf("read states: %w", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByPos[State])
	if err != nil {
		return nil, fmt.Errorf("read states: %w", err)
	}
	states := make(map[string]*State, len(list))
	for _, s := range list {
		states[s.Key] = s
	}
	return states, nil
}

// Lost reads which of the leases are lost, with what was found in their place. A lease that is still held, only locked
// by somebody at the moment, is not among them.
func (q *Queue) Lost(ctx context.Context, db DB, leases []*Lease) ([]*LostError, error) {
	keys, _ := tokens(leases)
	states, err := q.States(ctx, db, keys)
	if err != nil {
		return nil, err
	}
	var lost []*LostError
	for _, l := range leases {
		if s := states[l.Key]; !s.Held(l, q.table.States.Running) {
			lost = append(lost, &LostError{Key: l.Key, Fence: l.Fence, Found: s})
		}
	}
	return lost, nil
}

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

// requeueSQL gives one held row back, due after @delay. It waits for a lock.
const requeueSQL = `
update {{.Name.Sanitize}} as t
set
  {{q .Status}} = {{lit .States.Queued}},
  {{q .RetryAt}} = clock_timestamp() + @delay::interval
  {{if .DueAt}}, {{q .DueAt}} = clock_timestamp() + @delay::interval{{end}}
  {{if .Holder}}, {{q .Holder}} = null{{end}}
where` + heldRow

// bumpSQL moves the end of one lease to @delay from now, never to an earlier instant. It waits for a lock.
const bumpSQL = `
update {{.Name.Sanitize}} as t
set {{q .RetryAt}} = greatest(t.{{q .RetryAt}} + interval '1 microsecond', clock_timestamp() + @delay::interval)
where` + heldRow

const heldRow = ` t.{{q .Key}} = @key::text::{{.KeyType}}
  and {{token "t"}} = @fence
  {{if .Holder}}and t.{{q .Holder}} = @holder::uuid{{end}}
  and t.{{q .Status}} = {{lit .States.Running}}
  and t.{{q .RetryAt}} < 'infinity'
returning {{token "t"}}`

// Requeue gives a held row back, due again after the delay. The attempt stays spent. [ErrLeaseLost] if it is not held.
func (q *Queue) Requeue(ctx context.Context, db DB, l *Lease, delay time.Duration) error {
	return q.heldRow(ctx, db, "requeue", q.sql.requeue, l, delay)
}

// DefaultBump is how far [Queue.Bump] moves a lease by convention.
const DefaultBump = 10 * time.Second

// Bump makes a lease last at least d from now. [ErrLeaseLost] if the row is not held.
func (q *Queue) Bump(ctx context.Context, db DB, l *Lease, d time.Duration) error {
	return q.heldRow(ctx, db, "bump", q.sql.bump, l, d)
}

func (q *Queue) heldRow(ctx context.Context, db DB, step string, s statement, l *Lease, d time.Duration) error {
	rows, err := db.Query(ctx, s.sql, s.args(pgx.NamedArgs{"key": l.Key, "fence": l.Fence, "holder": l.Holder, "delay": d})...)
	if err != nil {
		return fmt.Errorf("%s: %w", step, err)
	}
	fence, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[int64])
	if errors.Is(err, pgx.ErrNoRows) {
		return q.lost(ctx, db, step, l)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", step, err)
	}
	l.Fence = fence
	return nil
}

func (q *Queue) lost(ctx context.Context, db DB, step string, l *Lease) error {
	states, err := q.States(ctx, db, []string{l.Key})
	if err != nil {
		return fmt.Errorf("%s: %w", step, err)
	}
	return fmt.Errorf("%s: %w", step, &LostError{Key: l.Key, Fence: l.Fence, Found: states[l.Key]})
}

// updateSQL is the guarded update; its set list is made for the columns given.
const updateSQL = `
update {{.Name.Sanitize}} as t
set %s
where` + heldRow

// Update writes columns of a held row that are not the protocol's own, and only while it is held. [ErrLeaseLost] if it
// is not. Column names come from code, never from data.
func (q *Queue) Update(ctx context.Context, db DB, l *Lease, columns map[string]any) error {
	args := pgx.NamedArgs{"key": l.Key, "fence": l.Fence, "holder": l.Holder}
	set := ""
	for _, name := range slices.Sorted(maps.Keys(columns)) { // sorted, for one text a set of columns
		if slices.Contains([]string{q.table.Key, q.table.Status, q.table.RetryAt, q.table.Fence, q.table.Holder}, name) {
			return fmt.Errorf("update: column %q belongs to the protocol", name)
		}
		if set != "" {
			set += ", "
		}
		arg := fmt.Sprintf("set_%d", len(args))
		set += strings.ReplaceAll(quoteColumn(name), "{{", `{{"{{"}}`) + " = @" + arg // it becomes part of a template
		args[arg] = columns[name]
	}
	if set == "" {
		return errors.New("update: no columns given")
	}
	s, err := q.table.statement("update", fmt.Sprintf(updateSQL, set))
	if err != nil {
		return err
	}
	rows, err := db.Query(ctx, s.sql, s.args(args)...)
	if err != nil {
		return fmt.Errorf("update: %w", err)
	}
	n, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return fmt.Errorf("update: %w", err)
	}
	if len(n) == 0 {
		return q.lost(ctx, db, "update", l)
	}
	return nil
}
