package worker_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/internal/pgtest"
	"github.com/pgwake/pgwake/registry"
	"github.com/pgwake/pgwake/worker"
)

func TestStopWaitsForHandlers(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	started, release := make(chan struct{}), make(chan struct{})
	b.handle("long", nil, func(ctx context.Context, _ *pgwake.Run) error {
		close(started)
		<-release
		return ctx.Err() // nil: the drain does not end it
	})
	w := b.start(worker.Config{})
	id := b.enqueue("long", nil)
	late := make(chan struct{})
	recv(t, started, "run")
	stopped := make(chan error, 1)
	go func() { stopped <- w.stop() }()
	pgtest.WaitFor(t, 10*time.Second, "worker says that it drains", func() bool {
		workers, err := b.client.Inspector().Workers(t.Context(), time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		return len(workers) == 1 && workers[0].Draining
	})
	close(late)
	after := b.enqueue("long", nil) // nobody takes it
	close(release)
	if err := recv(t, stopped, "stop"); err != nil {
		t.Error(err)
	}
	if s := b.task(id).Status; s != pgwake.Succeeded {
		t.Errorf("the running task is %s", s)
	}
	if s := b.task(after).Status; s != pgwake.Queued {
		t.Errorf("the task enqueued during the drain is %s", s)
	}
	if workers, err := b.client.Inspector().Workers(t.Context(), time.Minute); err != nil || len(workers) != 0 {
		t.Errorf("workers left behind: %v, %v", workers, err)
	}
}

func TestStopHandsBackWithoutAnAttempt(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	started, causes := make(chan int, 40), make(chan error, 40)
	b.handle("long", nil, func(ctx context.Context, run *pgwake.Run) error {
		started <- run.Attempt
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return ctx.Err()
	})
	first := b.start(worker.Config{Name: "first", DrainTimeout: 10 * time.Millisecond})
	for range 20 {
		b.enqueue("long", nil)
	}
	for range 20 {
		recv(t, started, "run")
	}
	second := b.start(worker.Config{Name: "second", DrainTimeout: 10 * time.Millisecond})
	if err := first.stop(); err != nil {
		t.Error(err)
	}
	for range 20 {
		if err := recv(t, causes, "cause"); !errors.Is(err, worker.ErrStopping) {
			t.Errorf("cause %v", err)
		}
		if attempt := recv(t, started, "run by the second worker"); attempt != 1 {
			t.Errorf("the interrupted run cost an attempt: now %d", attempt)
		}
	}
	if err := second.stop(); err != nil {
		t.Error(err)
	}
	rows, err := b.client.Inspector().Tasks(t.Context(), pgwake.TaskFilter{})
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range rows {
		if task.Status != pgwake.Queued || task.Attempt != 0 || len(task.Errors) != 0 {
			t.Errorf("handed back as %+v", task)
		}
	}
}

func TestStopNamesDeafHandlers(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	started, release := make(chan struct{}), make(chan struct{})
	b.handle("deaf", nil, func(context.Context, *pgwake.Run) error {
		close(started)
		<-release
		return nil
	})
	w := b.start(worker.Config{DrainTimeout: -1})
	id := b.enqueue("deaf", nil)
	recv(t, started, "run")
	start := time.Now()
	err := w.stop()
	close(release)
	if err == nil || !strings.Contains(err.Error(), id.String()) || !strings.Contains(err.Error(), "deaf") {
		t.Errorf("got %v", err)
	}
	if took := time.Since(start); took > 4*time.Second {
		t.Errorf("stop took %s", took)
	}
	// The lease ends by itself: nobody runs the task beside the deaf handler before that.
	if task := b.task(id); task.Status != pgwake.Running {
		t.Errorf("the task is %s", task.Status)
	}
}

// Workers that are stopped at any moment leave no goroutine, no connection and no task behind.
func TestStartStopStress(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.handle("job", &registry.Options{Retry: atOnce}, func(ctx context.Context, _ *pgwake.Run) error {
		select {
		case <-time.After(time.Duration(rand.IntN(3)) * time.Millisecond):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	var ids []uuid.UUID
	for range 20 {
		for range 5 {
			ids = append(ids, b.enqueue("job", nil))
		}
		w, err := worker.New(b.pool, b.reg, worker.Config{Logger: quiet(), DrainTimeout: 5 * time.Millisecond, Sweep: farSweep})
		if err != nil {
			t.Fatal(err)
		}
		// Not by a deadline, which a dial may notice before its context does.
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Duration(rand.IntN(40))*time.Millisecond, cancel)
		if err := w.Run(ctx); err != nil {
			t.Error(err)
		}
	}
	var running, connections int
	if err := b.pool.QueryRow(t.Context(), `select count(*) filter (where status = 'running') from pgwake.tasks`).Scan(&running); err != nil {
		t.Fatal(err)
	}
	if running > 0 {
		t.Errorf("%d tasks left running", running)
	}
	pgtest.WaitFor(t, 10*time.Second, "connections close", func() bool {
		if err := b.pool.QueryRow(t.Context(), `select count(*) from pg_stat_activity where datname = current_database() and application_name like 'pgwake %'`).Scan(&connections); err != nil {
			t.Fatal(err)
		}
		return connections == 0
	})
	b.start(worker.Config{Logger: quiet()})
	for _, id := range ids {
		b.await(id, pgwake.Succeeded)
	}
}

func TestConnections(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	started, release := make(chan struct{}, 100), make(chan struct{})
	b.handle("job", &registry.Options{Retry: atOnce}, func(context.Context, *pgwake.Run) error {
		started <- struct{}{}
		<-release
		return nil
	})
	count := func() (n int) {
		t.Helper()
		if err := b.pool.QueryRow(t.Context(), `select count(*) from pg_stat_activity where datname = current_database() and application_name like 'pgwake %'`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	b.start(worker.Config{Lease: time.Second})
	if n := count(); n > 2 {
		t.Errorf("an idle worker has %d connections, more than 2", n)
	}
	var ids []uuid.UUID
	for range 20 {
		ids = append(ids, b.enqueue("job", nil))
		recv(t, started, "run")
	}
	pgtest.WaitFor(t, 10*time.Second, "a heartbeat's connection", func() bool { return count() == 3 })
	close(release)
	for _, id := range ids {
		b.await(id, pgwake.Succeeded)
	}
	if n := count(); n > 4 {
		t.Errorf("a busy worker has %d connections, more than 4", n)
	}
}

// A claim that waits for somebody's lock on the table when the worker stops ends on the server, too: committed later, it
// would leave a row claimed for nobody. Not parallel, to tell its goroutines from those of others.
func TestStopWhileAClaimWaits(t *testing.T) {
	b := newBench(t)
	b.handle("job", nil, func(context.Context, *pgwake.Run) error { return nil })
	id := b.enqueue("job", nil)
	tx, err := b.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), `lock table pgwake.tasks in share mode`); err != nil {
		t.Fatal(err)
	}
	others := goleak.IgnoreCurrent()
	w := b.start(worker.Config{DrainTimeout: -1})
	pgtest.WaitFor(t, 10*time.Second, "a claim waits", func() bool {
		return b.count(`select count(*) from pg_locks where relation = 'pgwake.tasks'::regclass and not granted`) == 1
	})
	start := time.Now()
	if err := w.stop(); err != nil {
		t.Error(err)
	}
	if took := time.Since(start); took > 3*time.Second {
		t.Errorf("stop took %s", took)
	}
	if err := goleak.Find(others); err != nil {
		t.Error(err)
	}
	pgtest.WaitFor(t, 5*time.Second, "the server ends the claim", func() bool {
		return b.count(`select count(*) from pg_stat_activity where datname = current_database() and application_name like 'pgwake %'`) == 0
	})
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if task := b.task(id); task.Status != pgwake.Queued || task.Attempt != 0 {
		t.Errorf("with no worker left the task is %s, attempt %d", task.Status, task.Attempt)
	}
}
