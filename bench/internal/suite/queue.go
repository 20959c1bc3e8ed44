package suite

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/bench/internal/fleet"
	"github.com/pgwake/pgwake/bench/internal/server"
)

// taskType is that of every task; foreignType that of workers that have nothing to do with it.
const (
	taskType    = fleet.TaskType
	foreignType = "bench.other"
)

// patience is how long anything may take that is sure to come.
const patience = 30 * time.Second

// queue is a database with the processes that serve it.
type queue struct {
	*server.Database
	fleet  fleet.Fleet
	raw    bool
	client *pgwake.Client
	conns  []*pgx.Conn // of clients that enqueue
}

// worker is the job of an idle worker at defaults.
var worker = fleet.Job{Kind: fleet.Worker, Type: taskType}

// rawListener is the job of a process that does the least.
var rawListener = fleet.Job{Kind: fleet.Raw, Type: taskType}

func several(n int, job fleet.Job) []fleet.Job {
	jobs := make([]fleet.Job, n)
	for i := range jobs {
		jobs[i] = job
	}
	return jobs
}

// rawSQL makes the table of raw processes: that of tasks, with the usual trigger.
var rawSQL = []string{
	`create table ` + fleet.RawTable + ` (like ` + server.Schema + `.tasks including all)`,
	`create function bench_ring() returns trigger language plpgsql as
	$$ begin perform pg_catalog.pg_notify('` + fleet.RawChannel + `', new.type); return null; end $$`,
	`create trigger ring after insert on ` + fleet.RawTable + ` for each row execute function bench_ring()`,
}

// queue makes a database, changes it by the statements given, and starts its processes. Both go with the suite.
func (b *bench) queue(ctx context.Context, statements []string, jobs ...fleet.Job) (*queue, error) {
	q := &queue{raw: len(jobs) > 0 && jobs[0].Kind == fleet.Raw}
	if q.raw {
		statements = append(rawSQL, statements...)
	}
	var err error
	if q.Database, err = b.server.Database(ctx); err != nil {
		return nil, err
	}
	b.ends = append(b.ends, q.close)
	if err := q.Exec(ctx, statements...); err != nil {
		return nil, err
	}
	if q.client, err = pgwake.NewClient(ctx, q.Pool, pgwake.ClientConfig{}); err != nil {
		return nil, err
	}
	return q, b.launch(ctx, q, jobs...)
}

// launch starts more processes of a queue.
func (b *bench) launch(ctx context.Context, q *queue, jobs ...fleet.Job) error {
	for i := range jobs {
		jobs[i].URL = q.FleetURL
		jobs[i].Name = fmt.Sprintf("%s %d", jobs[i].Kind, len(q.fleet)+i+1)
	}
	f, err := fleet.Launch(ctx, jobs...)
	if err != nil {
		return err
	}
	b.ends = append(b.ends, func() error {
		if warnings := strings.TrimSpace(f.Log()); warnings != "" {
			b.note("processes said:\n%.1000s", warnings)
		}
		return f.Stop()
	})
	q.fleet = append(q.fleet, f...)
	return nil
}

func (q *queue) usage(ctx context.Context) (server.Usage, error) {
	var pids []int
	for _, p := range q.fleet {
		pids = append(pids, p.PID())
	}
	return q.Usage(ctx, pids...)
}

// rawInsertSQL enqueues a raw row.
const rawInsertSQL = `insert into ` + fleet.RawTable + ` (type, payload, retry_at) values ($1, $2, coalesce($3, now()))`

// enqueue inserts one task, or raw row, on a connection, due at an instant; now if that is zero.
func (q *queue) enqueue(ctx context.Context, conn *pgx.Conn, sent int64, due time.Time) error {
	payload := fmt.Appendf(nil, `{"sent": %d}`, sent)
	if q.raw {
		var at *time.Time
		if !due.IsZero() {
			at = &due
		}
		_, err := conn.Exec(ctx, rawInsertSQL, taskType, payload, at)
		return err
	}
	var opts *pgwake.EnqueueOptions
	if !due.IsZero() {
		opts = &pgwake.EnqueueOptions{DueAt: due}
	}
	_, err := q.client.EnqueueTx(ctx, conn, pgwake.Raw{Type: taskType, JSON: payload}, opts)
	return err
}

// connect returns connections of so many clients that enqueue. They are kept: a fresh one plans its first statement.
func (q *queue) connect(ctx context.Context, n int) (_ []*pgx.Conn, err error) {
	q.conns, err = connect(ctx, q.URL, q.conns, n)
	return q.conns[:min(n, len(q.conns))], err
}

// connect adds connections until there are n, or more.
func connect(ctx context.Context, url string, conns []*pgx.Conn, n int) ([]*pgx.Conn, error) {
	for len(conns) < n {
		c, err := pgx.Connect(ctx, url)
		if err != nil {
			return conns, err
		}
		conns = append(conns, c)
	}
	return conns, nil
}

func (q *queue) close() error {
	for _, c := range q.conns {
		_ = c.Close(context.Background())
	}
	return q.Drop()
}

func (q *queue) started(ctx context.Context, n int) ([]fleet.Start, error) {
	return started(ctx, q.fleet, n)
}

// started collects starts until there are so many, or more. Too few in the time is an error.
func started(ctx context.Context, f fleet.Fleet, n int) ([]fleet.Start, error) {
	var all []fleet.Start
	for limit := time.Now().Add(patience); ; {
		starts, err := f.Starts(ctx)
		if err != nil {
			return nil, err
		}
		all = append(all, starts...)
		switch {
		case len(all) >= n:
			return all, nil
		case time.Now().After(limit):
			return nil, fmt.Errorf("%d of %d tasks have begun %s after the last was enqueued; processes say:\n%s", len(all), n, patience, f.Log())
		}
		if err := rest(ctx, 50*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

const leftSQL = `select count(*) from ` + server.Schema + `.tasks`

// settled waits until no task is left.
func (q *queue) settled(ctx context.Context) error {
	for limit := time.Now().Add(patience); ; {
		left, err := server.Scan[int](ctx, q.Database, leftSQL)
		if err != nil || left == 0 {
			return err
		}
		if time.Now().After(limit) {
			return fmt.Errorf("%d tasks are not settled after %s", left, patience)
		}
		if err := rest(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}
