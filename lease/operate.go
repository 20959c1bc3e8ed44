package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// ErrNotPausable says that a row is not in a state in which it can be paused, or resumed, or is not there.
var ErrNotPausable = errors.New("row cannot be paused or resumed in its state")

// pauseSQL takes a queued or running row out of everybody's hands. Raising the fence is what ends the right of a holder
// to write: without it the next heartbeat or settlement would undo the pause.
const pauseSQL = `
update {{.Name.Sanitize}} as t
set
  {{q .Status}} = {{lit .States.Paused}},
  {{q .RetryAt}} = 'infinity'
  {{if .Fence}}, {{q .Fence}} = {{nextFor "t"}}{{end}}
  {{if .Holder}}, {{q .Holder}} = null{{end}}
where t.{{q .Key}} = @key::text::{{.KeyType}}
  and t.{{q .Status}} in ({{lit .States.Queued}}, {{lit .States.Running}})
returning true`

// Pause keeps a row from being claimed until [Queue.Resume]. A running row's lease is lost to its holder.
func (q *Queue) Pause(ctx context.Context, db DB, key string) error {
	if q.table.States.Paused == "" {
		return fmt.Errorf("pause: table %s has no paused state", q.table.Name.Sanitize())
	}
	return q.operate(ctx, db, "pause", q.sql.pause, pgx.NamedArgs{"key": key})
}

// resumeSQL makes a paused row due at @at, at once if that is null.
const resumeSQL = `
update {{.Name.Sanitize}} as t
set
  {{q .Status}} = {{lit .States.Queued}},
  {{q .RetryAt}} = coalesce(@at::timestamptz, clock_timestamp())
  {{if .DueAt}}, {{q .DueAt}} = coalesce(@at::timestamptz, clock_timestamp()){{end}}
where t.{{q .Key}} = @key::text::{{.KeyType}}
  and t.{{q .Status}} = {{lit .States.Paused}}
returning true`

// Resume makes a paused row due at the instant given; the zero time means at once.
func (q *Queue) Resume(ctx context.Context, db DB, key string, at time.Time) error {
	var due *time.Time
	if !at.IsZero() {
		due = &at
	}
	return q.operate(ctx, db, "resume", q.sql.resume, pgx.NamedArgs{"key": key, "at": due})
}

func (q *Queue) operate(ctx context.Context, db DB, step string, s statement, args pgx.NamedArgs) error {
	rows, err := db.Query(ctx, s.sql, s.args(args)...)
	if err != nil {
		return fmt.Errorf("%s: %w", step, err)
	}
	done, err := pgx.CollectRows(rows, pgx.RowTo[bool])
	if err != nil {
		return fmt.Errorf("%s: %w", step, err)
	}
	if len(done) == 0 {
		return fmt.Errorf("%s %v: %w", step, args["key"], ErrNotPausable)
	}
	return nil
}

const countsSQL = `
select t.{{q .Status}}::text, count(*)
from {{.Name.Sanitize}} as t
group by 1`

// Counts returns the number of rows in each state.
func (q *Queue) Counts(ctx context.Context, db DB) (map[string]int64, error) {
	rows, err := db.Query(ctx, q.sql.counts.sql)
	if err != nil {
		return nil, fmt.Errorf("count: %w", err)
	}
	counts := map[string]int64{}
	var status string
	var n int64
	if _, err := pgx.ForEachRow(rows, []any{&status, &n}, func() error {
		counts[status] = n
		return nil
	}); err != nil {
		return nil, fmt.Errorf("count: %w", err)
	}
	return counts, nil
}
