package worker_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/internal/pgtest"
	"github.com/pgwake/pgwake/registry"
	"github.com/pgwake/pgwake/worker"
)

// farSweep proves that a wake-up came from a notification or the due timer.
const farSweep = 10 * time.Minute

// bench is a database of the test's own, with a client and a registry to fill.
type bench struct {
	testing.TB
	pool   *pgxpool.Pool
	client *pgwake.Client
	reg    *registry.Registry
}

func newBench(t testing.TB) *bench {
	t.Helper()
	return benchOn(t, pgtest.New(t))
}

func benchOn(t testing.TB, pool *pgxpool.Pool) *bench {
	t.Helper()
	reg := registry.New()
	client, err := pgwake.NewClient(t.Context(), pool, pgwake.ClientConfig{Types: reg})
	if err != nil {
		t.Fatal(err)
	}
	return &bench{TB: t, pool: pool, client: client, reg: reg}
}

// handle registers a handler by type name.
func (b *bench) handle(name string, opts *registry.Options, handler registry.Next) {
	b.Helper()
	if err := registry.RegisterRaw(b.reg, name, handler, opts); err != nil {
		b.Fatal(err)
	}
}

// running is a worker of the test, stopped at its end at the latest.
type running struct {
	*worker.Worker
	stop  func() error // stops the worker and returns what Run did
	await func(what string, is func() bool)
}

// start runs a worker of what is registered so far and waits until it listens.
func (b *bench) start(config worker.Config) *running {
	b.Helper()
	w := b.run(config)
	w.await("worker listens", func() bool { return w.Health().Listening })
	return w
}

// run runs a worker of what is registered so far.
func (b *bench) run(config worker.Config) *running {
	b.Helper()
	if config.Logger == nil {
		config.Logger = slog.New(slog.NewTextHandler(b.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	if config.Sweep == 0 {
		config.Sweep = farSweep
	}
	w, err := worker.New(b.pool, b.reg, config)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	var result error
	go func() {
		result = w.Run(ctx)
		close(done)
	}()
	stop := func() error {
		cancel()
		<-done
		return result
	}
	b.Cleanup(func() { _ = stop() })
	await := func(what string, is func() bool) {
		b.Helper()
		pgtest.WaitFor(b, 20*time.Second, what, func() bool {
			select {
			case <-done:
				b.Fatalf("worker ended: %v", result)
			default:
			}
			return is()
		})
	}
	return &running{Worker: w, stop: stop, await: await}
}

// enqueue inserts a task with an empty payload.
func (b *bench) enqueue(name string, opts *pgwake.EnqueueOptions) uuid.UUID {
	b.Helper()
	e, err := b.client.Enqueue(b.Context(), pgwake.Raw{Type: name}, opts)
	if err != nil {
		b.Fatal(err)
	}
	return e.ID
}

func (b *bench) exec(sql string, args ...any) {
	b.Helper()
	if _, err := b.pool.Exec(b.Context(), sql, args...); err != nil {
		b.Fatal(err)
	}
}

func (b *bench) task(id uuid.UUID) *pgwake.TaskInfo {
	b.Helper()
	task, err := b.client.Inspector().Task(b.Context(), id)
	if err != nil {
		b.Fatal(err)
	}
	return task
}

// await waits until the task has the status and returns it.
func (b *bench) await(id uuid.UUID, status pgwake.Status) *pgwake.TaskInfo {
	b.Helper()
	var task *pgwake.TaskInfo
	pgtest.WaitFor(b, 20*time.Second, "task is "+string(status), func() bool {
		task = b.task(id)
		return task.Status == status
	})
	return task
}

// recv waits for a value.
func recv[T any](t testing.TB, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(20 * time.Second):
		t.Fatalf("%s did not come", what)
		panic("unreachable")
	}
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func raw(s string) json.RawMessage { return json.RawMessage(s) }
