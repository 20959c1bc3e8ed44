package lease

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
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
