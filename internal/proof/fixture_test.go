//go:build unix

package proof_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/internal/pgtest"
	"github.com/pgwake/pgwake/lease"
	"github.com/pgwake/pgwake/migrations"
	"github.com/pgwake/pgwake/registry"
	"github.com/pgwake/pgwake/worker"
)

var full = flag.Bool("full", false, "prove at full size: takes minutes and wants a quiet machine")

// farSweep shows that a task was found by a notification or the due timer.
const farSweep = 10 * time.Minute

// patience is how long anything may take that is sure to come, on a busy machine.
const patience = 30 * time.Second

// sized chooses between the full and the small version's value.
func sized[T any](atFull, small T) T {
	if *full {
		return atFull
	}
	return small
}

// proof is one promise put to the test. The closing line comes last of all, after what the test has cleaned up.
type proof struct {
	*testing.T
	number, goal string

	mu      sync.Mutex // guards figures, which parallel parts add to
	figures []string
}

func prove(t *testing.T, number, goal string) *proof {
	t.Helper()
	if !*full {
		t.Parallel()
	}
	p := &proof{T: t, number: number, goal: goal}
	t.Cleanup(func() {
		if t.Skipped() {
			return
		}
		verdict := "ok"
		if t.Failed() {
			verdict = "short"
		}
		if !*full {
			p.figure("small version: speed not judged")
		}
		fmt.Printf("prove %s: %s (goal %s) %s\n", p.number, strings.Join(p.figures, ", "), p.goal, verdict)
	})
	return p
}

// figure adds to the closing line.
func (p *proof) figure(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.figures = append(p.figures, fmt.Sprintf(format, args...))
}

// timely fails the test if a goal of speed is missed. The small version, which shares the machine with other tests,
// lets it pass.
func (p *proof) timely(ok bool, format string, args ...any) {
	p.Helper()
	if ok {
		return
	}
	if *full {
		p.Errorf(format, args...)
		return
	}
	p.Logf("on a busy machine: "+format, args...)
}

// bench is a database of a test's own, with what the handlers write down and a client.
type bench struct {
	testing.TB
	url    string
	pool   *pgxpool.Pool
	client *pgwake.Client
	queue  *lease.Queue
	reg    *registry.Registry
}

// notesSQL makes the tables in which handlers write down what happened. None has a constraint: nothing but the protocol
// keeps a second effect out.
const notesSQL = `
create schema proof;
create table proof.event (
  task uuid not null, attempt integer not null, worker text not null, what text not null, detail text not null,
  at timestamptz not null default clock_timestamp()
);
create table proof.effect (
  task uuid not null, attempt integer not null, worker text not null, at timestamptz not null default clock_timestamp()
);`

// newBench makes a database on the tests' common server, or, at full size, on a server of its own that commits durably.
func newBench(t testing.TB) *bench {
	t.Helper()
	if *full {
		return newBenchOn(t, migrated(t, pgtest.Server(t).URL("")))
	}
	return newBenchOn(t, pgtest.NewURL(t))
}

func migrated(t testing.TB, url string) string {
	t.Helper()
	if _, err := migrations.Up(t.Context(), url, pgtest.Schema); err != nil {
		t.Fatal(err)
	}
	return url
}

func newBenchOn(t testing.TB, url string) *bench {
	t.Helper()
	b := &bench{TB: t, url: url, pool: newPool(t, url, 10), reg: registry.New()}
	var err error
	if b.client, err = pgwake.NewClient(t.Context(), b.pool, pgwake.ClientConfig{Types: b.reg}); err != nil {
		t.Fatal(err)
	}
	if b.queue, err = lease.New(pgwake.Table(pgtest.Schema)); err != nil {
		t.Fatal(err)
	}
	b.exec(notesSQL)
	return b
}

func newPool(t testing.TB, url string, conns int32) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = conns
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// connect opens a session of the test's own.
func (b *bench) connect() *pgx.Conn {
	b.Helper()
	conn, err := pgx.Connect(b.Context(), b.url)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func (b *bench) exec(sql string, args ...any) {
	b.Helper()
	if _, err := b.pool.Exec(b.Context(), sql, args...); err != nil {
		b.Fatalf("%s: %v", sql, err)
	}
}

// count is the one number that a query returns.
func (b *bench) count(sql string, args ...any) int {
	b.Helper()
	return scan[int](b, sql, args...)
}

// scan is the one value that a query returns.
func scan[T any](b *bench, sql string, args ...any) T {
	b.Helper()
	rows, _ := b.pool.Query(b.Context(), sql, args...)
	v, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
	if err != nil {
		b.Fatalf("%s: %v", sql, err)
	}
	return v
}

// list is the column that a query returns.
func list[T any](b *bench, sql string, args ...any) []T {
	b.Helper()
	rows, _ := b.pool.Query(b.Context(), sql, args...)
	v, err := pgx.CollectRows(rows, pgx.RowTo[T])
	if err != nil {
		b.Fatalf("%s: %v", sql, err)
	}
	return v
}

// now is the time by the database's clock.
func (b *bench) now() time.Time {
	b.Helper()
	return scan[time.Time](b, `select clock_timestamp()`)
}

// handle registers a handler for a worker in this process.
func (b *bench) handle(name string, opts *registry.Options, handler registry.Next) {
	b.Helper()
	if err := registry.RegisterRaw(b.reg, name, handler, opts); err != nil {
		b.Fatal(err)
	}
}

// start runs a worker in this process and waits until it listens. It is stopped when the test ends, or by what it
// returns.
func (b *bench) start(pool *pgxpool.Pool, config worker.Config) (w *worker.Worker, stop func()) {
	b.Helper()
	log := &tail{}
	config.Logger = slog.New(slog.NewTextHandler(log, nil))
	w, err := worker.New(pool, b.reg, config)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { // stop waits for it
		defer close(done)
		if err := w.Run(ctx); err != nil {
			b.Errorf("worker: %v", err)
		}
	}()
	stop = func() { cancel(); <-done }
	b.Cleanup(func() {
		stop()
		if b.Failed() {
			b.Logf("the worker's last words:\n%s", log.last(lastWords))
		}
	})
	pgtest.WaitFor(b, patience, "the worker to listen", func() bool { return w.Health().Listening })
	return w, stop
}

// enqueue inserts n tasks of a type with the payload given and returns their ids.
func (b *bench) enqueue(n int, task pgwake.Raw) []uuid.UUID {
	b.Helper()
	tasks := make([]pgwake.NewTask, n)
	for i := range tasks {
		tasks[i].Payload = task
	}
	enqueued, err := b.client.EnqueueMany(b.Context(), tasks)
	if err != nil {
		b.Fatal(err)
	}
	ids := make([]uuid.UUID, n)
	for i, e := range enqueued {
		ids[i] = e.ID
	}
	return ids
}

// await waits until a query returns the number.
func (b *bench) await(want int, what, sql string, args ...any) {
	b.Helper()
	b.awaitWithin(patience, want, what, sql, args...)
}

func (b *bench) awaitWithin(limit time.Duration, want int, what, sql string, args ...any) {
	b.Helper()
	pgtest.WaitFor(b, limit, fmt.Sprintf("%d %s", want, what), func() bool {
		pause(10 * time.Millisecond) // no more than the server has to spare
		return b.count(sql, args...) == want
	})
}

// eventsSQL counts the tasks of which a worker has noted something. Parameters: worker, what.
const eventsSQL = `
select count(distinct e.task)
from proof.event as e
where e.worker = $1 and e.what = $2`

// offset is what to add to this process's clock to get the database's, and how wrong that may be.
func (b *bench) offset() (offset, uncertainty time.Duration) {
	b.Helper()
	uncertainty = time.Hour
	for range 50 {
		sent := time.Now()
		at := b.now()
		if trip := time.Since(sent); trip/2 < uncertainty {
			offset, uncertainty = at.Sub(sent.Add(trip/2)), trip/2
		}
	}
	return offset, uncertainty
}

// recv waits for a value.
func recv[T any](t testing.TB, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("%s did not come", what)
		panic("unreachable")
	}
}

// pause lets time pass where that is part of the load, or of the harm done.
func pause(d time.Duration) { <-time.After(d) }

// times are measurements of one thing.
type times []time.Duration

// at is the smallest measurement that a share of all do not exceed.
func (d times) at(share float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(d))
	return sorted[min(max(int(float64(len(d))*share+0.999999)-1, 0), len(d)-1)]
}

func (d times) max() time.Duration { return d.at(1) }

func (d times) String() string {
	return fmt.Sprintf("p50 %s p99 %s max %s", short(d.at(0.5)), short(d.at(0.99)), short(d.max()))
}

// short is a duration to three digits.
func short(d time.Duration) string {
	switch {
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.2f ms", float64(d)/float64(time.Millisecond))
	case d < time.Second:
		return fmt.Sprintf("%.0f ms", float64(d)/float64(time.Millisecond))
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	text []byte
}

const tailKept = 64 << 10

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	if n := len(t.text) - tailKept; n > 0 {
		t.text = bytes.Clone(t.text[n:])
	}
	return len(b), nil
}

// last is the end of what is kept.
func (t *tail) last(n int) string {
	s := t.String()
	return s[max(len(s)-n, 0):]
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.text))
}
