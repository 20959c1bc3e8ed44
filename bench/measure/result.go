package measure

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// Result is what became of a workload. All instants but those of Enqueue are by the database's clock.
type Result struct {
	Succeeded, Cancelled, Frozen int
	// Retried is how many tasks ran more than once.
	Retried int
	// Took is the time from the first start to the last settlement, Rate the tasks settled in a second of it.
	Took time.Duration
	Rate float64
	// Enqueue is the call of Enqueue, of a workload with a rate.
	Enqueue Latency
	// Start is from the instant at which a task was due to its start, that of its last run.
	Start Latency
	// Handle is from that start to the settlement: the handler, and the wait to be written.
	Handle Latency
}

// Latency is how long something took: as many of the tasks as its field says took no longer.
type Latency struct {
	P50, P90, P99, Max time.Duration
}

func (l Latency) String() string {
	return fmt.Sprintf("p50 %s, p90 %s, p99 %s, max %s", short(l.P50), short(l.P90), short(l.P99), short(l.Max))
}

func short(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }

// String is a few lines for people.
func (r *Result) String() string {
	text := fmt.Sprintf("%d tasks in %s, %.0f/s: %d succeeded, %d cancelled, %d frozen, %d retried\n",
		r.Succeeded+r.Cancelled+r.Frozen, short(r.Took), r.Rate, r.Succeeded, r.Cancelled, r.Frozen, r.Retried)
	if r.Enqueue != (Latency{}) {
		text += fmt.Sprintf("enqueue  %s\n", r.Enqueue)
	}
	return text + fmt.Sprintf("start    %s\nhandle   %s\n", r.Start, r.Handle)
}

// leftSQL counts the live tasks of the run $1 that a worker would still run. It reads the whole table of live tasks.
const leftSQL = `
select count(*)
from %s
where metadata @> jsonb_build_object('` + mark + `', $1::text) and status in ('queued', 'running')`

// wait returns when no task is left to be run. The more tasks there are, the more a look costs, and the less often it looks.
func (m *measuring) wait(ctx context.Context) error {
	for {
		looked := time.Now()
		var left int
		if err := m.pool.QueryRow(ctx, m.sql(leftSQL, "tasks"), m.id).Scan(&left); err != nil || left == 0 {
			return err
		}
		if err := rest(ctx, max(20*time.Millisecond, 20*time.Since(looked))); err != nil {
			return fmt.Errorf("%d tasks are left: %w", left, err)
		}
	}
}

func (m *measuring) sql(text, object string) string {
	return fmt.Sprintf(text, pgx.Identifier{m.Worker.Schema, object}.Sanitize())
}

// resultSQL sums up the tasks of the run $1, live or archived: numbers, the seconds from first start to last settlement,
// and percentiles of start and run, in seconds.
const resultSQL = `
select
  count(*) filter (where status = 'succeeded'), count(*) filter (where status = 'cancelled'), count(*) filter (where status = 'frozen'),
  count(*) filter (where attempt > 1),
  coalesce(extract(epoch from max(finished_at) - min(started_at)), 0)::float8,
  percentile_disc(array[0.5, 0.9, 0.99, 1]) within group (order by extract(epoch from started_at - due_at)::float8),
  percentile_disc(array[0.5, 0.9, 0.99, 1]) within group (order by extract(epoch from finished_at - started_at)::float8)
from %s
where metadata @> jsonb_build_object('` + mark + `', $1::text)`

func (m *measuring) result(ctx context.Context) (*Result, error) {
	var r Result
	var took float64
	var start, handle []float64
	err := m.pool.QueryRow(ctx, m.sql(resultSQL, "all_tasks"), m.id).
		Scan(&r.Succeeded, &r.Cancelled, &r.Frozen, &r.Retried, &took, &start, &handle)
	if err != nil {
		return nil, err
	}
	r.Took = seconds(took)
	if took > 0 {
		r.Rate = float64(r.Succeeded+r.Cancelled+r.Frozen) / took
	}
	r.Start, r.Handle = latency(start), latency(handle)
	if n := len(m.calls); n > 0 {
		slices.Sort(m.calls)
		at := func(share float64) time.Duration { return m.calls[min(int(share*float64(n)), n-1)] }
		r.Enqueue = Latency{at(0.5), at(0.9), at(0.99), at(1)}
	}
	return &r, nil
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func latency(percentiles []float64) Latency {
	if len(percentiles) < 4 {
		return Latency{}
	}
	p := percentiles
	return Latency{seconds(p[0]), seconds(p[1]), seconds(p[2]), seconds(p[3])}
}
