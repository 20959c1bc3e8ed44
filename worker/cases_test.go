package worker_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/sethvargo/go-retry"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/internal/pgtest"
	"github.com/pgwake/pgwake/lease"
	"github.com/pgwake/pgwake/notify"
	"github.com/pgwake/pgwake/registry"
	"github.com/pgwake/pgwake/worker"
)

// atOnce retries without a wait.
func atOnce() retry.Backoff {
	return retry.BackoffFunc(func() (time.Duration, bool) { return 0, false })
}

var errBoom = errors.New("boom")

func TestOutcomes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		result  error
		status  pgwake.Status
		attempt int
		inTime  time.Duration // queued: until due again; 0: not looked at
		errors  int
		text    string
	}{
		"nil":                  {nil, pgwake.Succeeded, 1, 0, 0, ""},
		"error":                {errBoom, pgwake.Queued, 1, 30 * time.Second, 1, "boom"},
		"snooze":               {pgwake.Snooze(time.Hour), pgwake.Queued, 0, time.Hour, 0, ""},
		"snooze overflow":      {pgwake.Snooze(1<<63 - 1), pgwake.Queued, 0, 0, 0, ""},
		"retry after":          {pgwake.RetryAfter(2*time.Hour, errBoom), pgwake.Queued, 1, 2 * time.Hour, 1, "boom"},
		"wrapped retry after":  {fmt.Errorf("send: %w", pgwake.RetryAfter(2*time.Hour, errBoom)), pgwake.Queued, 1, 2 * time.Hour, 1, "send: boom"},
		"cancel":               {pgwake.Cancel(errBoom), pgwake.Cancelled, 1, 0, 1, "boom"},
		"freeze":               {pgwake.Freeze(errBoom), pgwake.Frozen, 1, 0, 1, "boom"},
		"cancel without cause": {pgwake.Cancel(nil), pgwake.Cancelled, 1, 0, 1, "cancelled"},
		"error without text":   {errors.New(""), pgwake.Queued, 1, 0, 1, "*errors.errorString without a text"},
		"NUL and bad UTF-8":    {errors.New("a\x00b\xffc"), pgwake.Queued, 1, 0, 1, "a\uFFFDb\uFFFDc"},
		"long error":           {errors.New(strings.Repeat("é", 5000)), pgwake.Queued, 1, 0, 1, strings.Repeat("é", 1024)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.handle("case", nil, func(context.Context, *pgwake.Run) error { return c.result })
			w := b.start(worker.Config{})
			id := b.enqueue("case", nil)
			var task *pgwake.TaskInfo
			pgtest.WaitFor(t, 10*time.Second, "settlement", func() bool {
				task = b.task(id)
				return task.FinishedAt != nil
			})
			if task.Status != c.status || task.Attempt != c.attempt || len(task.Errors) != c.errors {
				t.Errorf("got status %s, attempt %d, errors %v", task.Status, task.Attempt, task.Errors)
			}
			if c.text != "" && (task.LastError == nil || *task.LastError != c.text || task.Errors[0].Error != c.text || task.Errors[0].Attempt != 1) {
				t.Errorf("got last error %q, errors %+v, want %q", *task.LastError, task.Errors, c.text)
			}
			if c.inTime > 0 {
				in := task.RetryAt.Sub(*task.FinishedAt)
				if in < c.inTime*89/100 || in > c.inTime*111/100 {
					t.Errorf("due again in %s, want %s with 10 %% jitter", in, c.inTime)
				}
				if !task.DueAt.Equal(*task.RetryAt) {
					t.Errorf("due_at %s, retry_at %s", task.DueAt, task.RetryAt)
				}
			}
			if err := w.stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAttemptsRunOutAndFreeze(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var runs atomic.Int32
	b.handle("fails", &registry.Options{Retry: atOnce, MaxAttempts: 12}, func(_ context.Context, run *pgwake.Run) error {
		runs.Add(1)
		return fmt.Errorf("failure %d", run.Attempt)
	})
	b.start(worker.Config{})
	task := b.await(b.enqueue("fails", nil), pgwake.Frozen)
	if runs.Load() != 12 || task.Attempt != 12 {
		t.Errorf("%d runs, attempt %d, want 12", runs.Load(), task.Attempt)
	}
	if len(task.Errors) != 10 || task.Errors[0].Attempt != 3 || task.Errors[9].Attempt != 12 || task.Errors[9].At.IsZero() {
		t.Errorf("the last ten errors should be kept, got %+v", task.Errors)
	}
	once := b.await(b.enqueue("fails", &pgwake.EnqueueOptions{MaxAttempts: 1}), pgwake.Frozen)
	if once.Attempt != 1 {
		t.Errorf("a task of one attempt ran %d times", once.Attempt)
	}
}

// B05: a requeue by UPDATE wakes another worker, and heartbeats wake nobody.
func TestCaseB05RequeueByUpdateWakes(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ran := make(chan uuid.UUID, 10)
	b.handle("job", nil, func(_ context.Context, run *pgwake.Run) error {
		ran <- run.ID
		return nil
	})
	b.start(worker.Config{})

	postponed := b.enqueue("job", &pgwake.EnqueueOptions{Delay: 24 * time.Hour})
	paused := b.enqueue("job", &pgwake.EnqueueOptions{Delay: 24 * time.Hour})
	queue, err := lease.New(pgwake.Table(pgwake.DefaultSchema))
	if err != nil {
		t.Fatal(err)
	}
	if err := queue.Pause(t.Context(), b.pool, paused.String()); err != nil {
		t.Fatal(err)
	}
	shelved := b.enqueue("job", &pgwake.EnqueueOptions{Delay: 24 * time.Hour})
	b.exec(`update pgwake.tasks set status = 'paused', retry_at = now() - interval '1 s' where id = $1`, shelved)
	frozen := b.enqueue("job", &pgwake.EnqueueOptions{Delay: 24 * time.Hour})
	b.exec(`update pgwake.tasks set status = 'frozen', retry_at = null where id = $1`, frozen)

	wakes := func(what string, id uuid.UUID, act func()) {
		t.Helper()
		b.awaitAsleep()
		start := time.Now()
		act()
		if got := recv(t, ran, what); got != id {
			t.Errorf("%s: %s ran instead of %s", what, got, id)
		}
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("%s: started after %s", what, took)
		}
	}
	wakes("a due time edited to now", postponed, func() {
		b.exec(`update pgwake.tasks set retry_at = now() where id = $1`, postponed)
	})
	wakes("a resumed task", paused, func() {
		if err := queue.Resume(t.Context(), b.pool, paused.String(), time.Time{}); err != nil {
			t.Fatal(err)
		}
	})
	wakes("a paused task put back by SQL, its instant untouched", shelved, func() {
		b.exec(`update pgwake.tasks set status = 'queued' where id = $1`, shelved)
	})
	wakes("a frozen task requeued by SQL", frozen, func() {
		b.exec(`update pgwake.tasks set status = 'queued', retry_at = now(), attempt = 0 where id = $1`, frozen)
	})
}

// awaitAsleep waits until the workers have asked the database for nothing for a while: what they do next, something has
// woken them for.
func (b *bench) awaitAsleep() {
	b.Helper()
	pgtest.WaitFor(b, 10*time.Second, "workers sleep", func() bool {
		return b.count(`
			select count(*) from pg_stat_activity
			where datname = current_database() and application_name like 'pgwake %'
			  and (state <> 'idle' or state_change > clock_timestamp() - interval '150 ms')`) == 0
	})
}

// B05 (a): a task that comes back from a worker that stops wakes another worker.
func TestCaseB05FailureWhileStopping(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		drain   time.Duration // 0: the default
		attempt int           // of the second run
	}{
		"it fails during the drain":    {0, 2},
		"the end of the drain ends it": {50 * time.Millisecond, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			var runs atomic.Int32
			started, release := make(chan struct{}), make(chan struct{})
			returned, again := make(chan time.Time, 1), make(chan int, 1)
			b.handle("job", &registry.Options{Retry: atOnce}, func(ctx context.Context, run *pgwake.Run) error {
				if runs.Add(1) > 1 {
					again <- run.Attempt
					return nil
				}
				close(started)
				select {
				case <-release:
				case <-ctx.Done():
				}
				returned <- time.Now()
				return errBoom
			})
			w1 := b.start(worker.Config{Name: "w1", DrainTimeout: c.drain, Slots: 1})
			id := b.enqueue("job", nil)
			recv(t, started, "first run")
			b.start(worker.Config{Name: "w2"})
			stopped := make(chan error, 1)
			go func() { stopped <- w1.stop() }()
			if c.drain == 0 {
				b.awaitDraining("w1")
				close(release)
			}
			failed := recv(t, returned, "failure")
			if attempt := recv(t, again, "second run"); attempt != c.attempt {
				t.Errorf("the second run is attempt %d, want %d", attempt, c.attempt)
			}
			if took := time.Since(failed); took > 2*time.Second {
				t.Errorf("the second run started after %s", took)
			}
			if err := recv(t, stopped, "stop"); err != nil {
				t.Error(err)
			}
			if task := b.await(id, pgwake.Succeeded); task.Worker == nil || *task.Worker != "w2" {
				t.Errorf("the second run was on %v", task.Worker)
			}
		})
	}
}

// awaitDraining waits until the worker says that it has stopped claiming.
func (b *bench) awaitDraining(name string) {
	b.Helper()
	pgtest.WaitFor(b, 10*time.Second, name+" says that it drains", func() bool {
		workers, err := b.client.Inspector().Workers(b.Context(), time.Minute)
		if err != nil {
			b.Fatal(err)
		}
		return slices.ContainsFunc(workers, func(w *pgwake.WorkerInfo) bool { return w.Name == name && w.Draining })
	})
}

// B05: heartbeats, claims and settlements notify nobody.
func TestCaseB05HeartbeatsAreSilent(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	release := make(chan struct{})
	b.handle("long", nil, func(context.Context, *pgwake.Run) error {
		<-release
		return nil
	})
	b.start(worker.Config{Lease: time.Second, Slots: 4})
	b.awaitAsleep() // so that inserts ring
	heard, stop := b.listen()
	ids := []uuid.UUID{b.enqueue("long", nil), b.enqueue("long", nil)}
	recv(t, heard, "notification of an insert")
	recv(t, heard, "notification of an insert")
	before := b.task(ids[0]).RetryAt
	pgtest.WaitFor(t, 20*time.Second, "six renewals", func() bool {
		return b.task(ids[0]).Status == pgwake.Running && b.task(ids[0]).RetryAt.Sub(*before) > 2*time.Second
	})
	close(release)
	for _, id := range ids {
		b.await(id, pgwake.Succeeded)
	}
	stop()
	for payload := range heard {
		t.Errorf("heard a notification %q beside those of the two inserts", payload)
	}
}

// listen hears the task table's notifications until stop, which returns when all that were sent before have come.
func (b *bench) listen() (heard chan string, stop func()) {
	b.Helper()
	return b.listenTo(notify.Channel(pgwake.DefaultSchema, "tasks"))
}

func (b *bench) listenTo(channel string) (heard chan string, stop func()) {
	b.Helper()
	conn, err := pgx.ConnectConfig(b.Context(), b.pool.Config().ConnConfig)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := conn.Exec(b.Context(), "listen "+channel); err != nil {
		b.Fatal(err)
	}
	heard = make(chan string, 100_000)
	go func() {
		defer close(heard)
		defer conn.Close(context.Background())
		for {
			n, err := conn.WaitForNotification(context.Background())
			if err != nil || n.Payload == "-- end --" {
				return
			}
			heard <- n.Payload
		}
	}()
	return heard, func() { b.exec("select pg_notify($1, '-- end --')", channel) }
}

// B06: rows of any size and type names of any kind run, and their notifications stay short.
func TestCaseB06LargeRows(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	sizes := make(chan int, 10)
	names := []string{"x", strings.Repeat("n", 63), strings.Repeat("n", 64), strings.Repeat("\U0001F418", 50)}
	for _, name := range names {
		b.handle(name, nil, func(_ context.Context, run *pgwake.Run) error {
			sizes <- len(run.RawPayload)
			return nil
		})
	}
	b.start(worker.Config{})
	for _, size := range []int{7_000, 7_999, 8_000, 1 << 20, 50 << 20} {
		for _, name := range names[:1+len(names)*btoi(size == 8_000)-btoi(size == 8_000)] {
			payload := pgwake.Raw{Type: name, JSON: raw(`"` + strings.Repeat("p", size-2) + `"`)}
			e, err := b.client.Enqueue(t.Context(), payload, nil)
			if err != nil {
				t.Fatal(err)
			}
			if got := recv(t, sizes, "run"); got != size {
				t.Errorf("payload of %d bytes arrived with %d", size, got)
			}
			task := b.await(e.ID, pgwake.Succeeded)
			if kept := task.Payload != nil; kept != (task.PayloadBytes <= pgwake.ArchivedPayload) {
				t.Errorf("payload of %d bytes (%d stored) kept in the archive: %t", size, task.PayloadBytes, kept)
			}
		}
	}
	long := pgwake.Raw{Type: strings.Repeat("n", 201)}
	if _, err := b.client.Enqueue(t.Context(), long, nil); err == nil || !strings.Contains(err.Error(), "200") {
		t.Errorf("a type name of 201 bytes: %v", err)
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// B08: a bulk insert is drained without a sweep, woken once a type and not once a row; stopping in the middle loses
// nothing.
func TestCaseB08BulkInsert(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	const types, each = 50, 200
	var ran atomic.Int64
	for i := range types {
		b.handle(fmt.Sprintf("type-%d", i), nil, func(context.Context, *pgwake.Run) error {
			ran.Add(1)
			return nil
		})
	}
	b.start(worker.Config{Slots: 8, Logger: quiet()})
	heard, stop := b.listen()
	b.exec(`insert into pgwake.tasks (type) select 'type-' || i % $1 from generate_series(1, $2::int) as i`, types, types*each)
	pgtest.WaitFor(t, 60*time.Second, "all rows done", func() bool { return ran.Load() == types*each })
	stop()
	n := 0
	for range heard {
		n++
	}
	if n > types {
		t.Errorf("%d notifications for one statement with %d types", n, types)
	}

	// By COPY, with the worker stopped and another one started in the middle.
	var tasks []pgwake.NewTask
	for i := range types * each {
		tasks = append(tasks, pgwake.NewTask{Payload: pgwake.Raw{Type: fmt.Sprintf("type-%d", i%types)}})
	}
	second := b.start(worker.Config{Slots: 8, Logger: quiet(), Name: "second"})
	if _, err := b.client.EnqueueMany(t.Context(), tasks); err != nil {
		t.Fatal(err)
	}
	pgtest.WaitFor(t, 60*time.Second, "some rows done", func() bool { return ran.Load() > types*each*5/4 })
	if err := second.stop(); err != nil {
		t.Error(err)
	}
	pgtest.WaitFor(t, 60*time.Second, "all rows done", func() bool { return ran.Load() >= 2*types*each })
	pgtest.WaitFor(t, 20*time.Second, "all settled", func() bool {
		counts, err := b.client.Inspector().Counts(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return len(counts) == 0
	})
	if ran.Load() != 2*types*each {
		t.Errorf("%d runs of %d tasks", ran.Load(), 2*types*each)
	}
}

// B13: the late completion of attempt 1 does not close attempt 2.
func TestCaseB13LateCompletion(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	first, second := make(chan struct{}), make(chan struct{})
	started, late := make(chan int, 3), make(chan struct{})
	b.handle("slow", &registry.Options{Timeout: 100 * time.Millisecond, Retry: atOnce}, func(ctx context.Context, run *pgwake.Run) error {
		started <- run.Attempt
		if run.Attempt == 1 {
			<-first // ignores its context
			close(late)
			return nil
		}
		<-second
		return nil
	})
	b.handle("next", nil, func(context.Context, *pgwake.Run) error { return nil })
	w := b.start(worker.Config{Slots: 3})
	id := b.enqueue("slow", nil)
	if recv(t, started, "attempt 1") != 1 || recv(t, started, "attempt 2") != 2 {
		t.Error("attempts out of order")
	}
	if h := w.Health(); h.Stuck != 1 || h.Running != 2 {
		t.Errorf("the handler that ignores its context should be counted as stuck: %+v", h)
	}
	close(first)
	recv(t, late, "late return")
	b.await(b.enqueue("next", nil), pgwake.Succeeded)
	if task := b.task(id); task.Status != pgwake.Running || task.Attempt != 2 {
		t.Errorf("after the late return the task is %s, attempt %d", task.Status, task.Attempt)
	}
	close(second)
	// Attempt 2 took longer than its timeout, too, but returned nil before it was abandoned.
	if task := b.await(id, pgwake.Succeeded); task.Attempt != 2 {
		t.Errorf("attempt %d", task.Attempt)
	}
}

// B13: rows that go away under their handler end its context and harm nobody.
func TestCaseB13RowGone(t *testing.T) {
	t.Parallel()
	for what, statement := range map[string]string{"deleted": `delete from pgwake.tasks`, "truncated": `truncate pgwake.tasks`} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			started, cause := make(chan struct{}), make(chan error, 1)
			b.handle("victim", nil, func(ctx context.Context, _ *pgwake.Run) error {
				close(started)
				<-ctx.Done()
				cause <- context.Cause(ctx)
				return nil
			})
			b.handle("next", nil, func(context.Context, *pgwake.Run) error { return nil })
			b.start(worker.Config{Lease: time.Second})
			b.enqueue("victim", nil)
			recv(t, started, "run")
			b.exec(statement)
			if err := recv(t, cause, "end of context"); !errors.Is(err, lease.ErrLeaseLost) {
				t.Errorf("context ended with %v", err)
			}
			b.await(b.enqueue("next", nil), pgwake.Succeeded)
		})
	}
}

// B15: a worker leaves types it does not know alone, and recovers its own.
func TestCaseB15UnknownTypes(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.handle("a", nil, func(context.Context, *pgwake.Run) error { return nil })
	b.start(worker.Config{Name: "knows a", Sweep: 100 * time.Millisecond})

	unknown := b.enqueue("unknown", nil)
	// As left behind by a worker that was killed.
	orphan := b.enqueue("b", &pgwake.EnqueueOptions{UniqueKey: "one"})
	b.exec(`update pgwake.tasks set status = 'running', attempt = 1, holder = gen_random_uuid(), retry_at = now() - interval '1 s' where id = $1`, orphan)
	for range 5 { // several sweeps pass
		b.await(b.enqueue("a", nil), pgwake.Succeeded)
	}
	if task := b.task(unknown); task.Status != pgwake.Queued || task.Attempt != 0 {
		t.Errorf("a task of unknown type is %s, attempt %d", task.Status, task.Attempt)
	}
	if task := b.task(orphan); task.Status != pgwake.Running || task.Attempt != 1 {
		t.Errorf("a lost task of unknown type is %s, attempt %d", task.Status, task.Attempt)
	}
	if _, err := b.client.Enqueue(t.Context(), pgwake.Raw{Type: "b"}, &pgwake.EnqueueOptions{UniqueKey: "one"}); !errors.Is(err, pgwake.ErrDuplicate) {
		t.Errorf("the lost task should hold its key: %v", err)
	}

	// One that knows the type recovers it.
	b2 := benchOn(t, b.pool)
	b2.handle("b", nil, func(context.Context, *pgwake.Run) error { return nil })
	b2.start(worker.Config{Name: "knows b"})
	if task := b.await(orphan, pgwake.Succeeded); task.Attempt != 2 {
		t.Errorf("recovered as attempt %d", task.Attempt)
	}
}

// A lost worker's task does not wait for the end of a standing backlog.
func TestRecoveryUnderBacklog(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	recovered := make(chan time.Time, 1)
	orphan := b.enqueue("job", &pgwake.EnqueueOptions{Delay: time.Hour, Priority: new(9)})
	b.handle("job", nil, func(ctx context.Context, run *pgwake.Run) error {
		if run.ID == orphan {
			recovered <- time.Now()
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
		}
		return ctx.Err()
	})
	b.start(worker.Config{Slots: 2, Lease: time.Second, DrainTimeout: 10 * time.Millisecond, Logger: quiet()})
	b.exec(`insert into pgwake.tasks (type) select 'job' from generate_series(1, 5000)`)
	b.exec(`update pgwake.tasks set status = 'running', attempt = 1, holder = gen_random_uuid(), retry_at = clock_timestamp() + interval '1 s' where id = $1`, orphan)
	ends := time.Now().Add(time.Second)
	if late := recv(t, recovered, "recovery").Sub(ends); late > 1500*time.Millisecond {
		t.Errorf("recovered %s after the lease ended", late)
	}
}

// B17: handlers that hold every connection of the pool do not starve claims and heartbeats.
func TestCaseB17PoolExhausted(t *testing.T) {
	t.Parallel()
	for _, size := range []int32{1, 3, 4} {
		t.Run(fmt.Sprintf("%d connections", size), func(t *testing.T) {
			t.Parallel()
			config := pgtest.New(t).Config()
			config.MaxConns = size
			pool, err := pgxpool.NewWithConfig(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			b := benchOn(t, pool)
			var runs atomic.Int32
			b.handle("greedy", nil, func(ctx context.Context, run *pgwake.Run) error {
				runs.Add(1)
				// A transaction of two leases and a half that also enqueues.
				return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
					if _, err := tx.Exec(ctx, `select pg_sleep(5)`); err != nil {
						return err
					}
					_, err := b.client.EnqueueTx(ctx, tx, pgwake.Raw{Type: "child"}, nil)
					return err
				})
			})
			b.handle("child", nil, func(context.Context, *pgwake.Run) error { return nil })
			w := b.start(worker.Config{Lease: 2 * time.Second, Slots: 10})
			for range size {
				b.enqueue("greedy", nil)
			}
			pgtest.WaitFor(t, 30*time.Second, "runs end", func() bool { return runs.Load() == size && w.Health().Running == 0 })
			if err := w.stop(); err != nil {
				t.Error(err)
			}
			var greedy, children int
			if err := pool.QueryRow(t.Context(), `select count(*) filter (where type = 'greedy' and attempt = 1 and status = 'succeeded'), count(*) filter (where type = 'child') from pgwake.all_tasks`).
				Scan(&greedy, &children); err != nil {
				t.Fatal(err)
			}
			if greedy != int(size) || children != int(size) {
				t.Errorf("%d tasks succeeded at once and made %d children, want %d", greedy, children, size)
			}
		})
	}
}

// B17: sizes that cannot work are refused at start.
func TestImpossibleSizesAreRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.handle("job", nil, func(context.Context, *pgwake.Run) error { return nil })
	for want, config := range map[string]worker.Config{
		"at least 1":     {Slots: -1},
		"at least 1s":    {Lease: time.Millisecond},
		"at least 100ms": {Sweep: time.Millisecond},
		"at least 24h":   {History: time.Hour},
		"at most 200":    {Name: strings.Repeat("n", 201)},
		"without NUL":    {Name: "a\x00"},
	} {
		if _, err := worker.New(b.pool, b.reg, config); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: got %v, want %q", config, err, want)
		}
	}
	if _, err := worker.New(b.pool, registry.New(), worker.Config{}); err == nil {
		t.Error("an empty registry should be refused")
	}
	config := b.pool.Config()
	config.MaxConns = 100_000
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	w, err := worker.New(pool, b.reg, worker.Config{Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "max_connections") {
		t.Errorf("a pool larger than the server: %v", err)
	}
}

// B19: handlers that end in unusual ways fail their run, and free their only slot.
func TestCaseB19UnusualEnds(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ends := map[string]struct {
		end  func()
		text string
	}{
		"panic":              {func() { panic("x") }, "panic: x"},
		"panic nil":          {func() { panic(any(nil)) }, "nil"},
		"panic error":        {func() { panic(errBoom) }, "boom"},
		"panic bad stringer": {func() { panic(badStringer{}) }, "PANIC"},
		"re-panic": {func() {
			defer func() { panic(fmt.Sprint("again: ", recover())) }()
			panic("first")
		}, "again: first"},
		"Goexit":        {runtime.Goexit, "Goexit"},
		"panic NUL":     {func() { panic("a\x00\xff") }, "a\uFFFD\uFFFD"},
		"stack of 1 MB": {func() { deep(5000) }, "deep"},
	}
	for name, e := range ends {
		b.handle(name, &registry.Options{MaxAttempts: 1}, func(context.Context, *pgwake.Run) error {
			e.end()
			return nil
		})
	}
	b.handle("fail now", &registry.Options{MaxAttempts: 1}, func(context.Context, *pgwake.Run) error {
		new(testing.T).FailNow()
		return nil
	})
	ends["fail now"] = struct {
		end  func()
		text string
	}{nil, "Goexit"}
	b.handle("normal", nil, func(context.Context, *pgwake.Run) error { return nil })
	w := b.start(worker.Config{Slots: 1, Logger: quiet()})
	for name, e := range ends {
		id := b.enqueue(name, nil)
		next := b.enqueue("normal", nil)
		start := time.Now()
		b.await(next, pgwake.Succeeded)
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("%s: the next task took %s", name, took)
		}
		task := b.await(id, pgwake.Frozen)
		if task.LastError == nil || !strings.Contains(*task.LastError, e.text) {
			t.Errorf("%s: last error %v, want %q in it", name, task.LastError, e.text)
		}
		if len(task.Errors) != 1 || task.Errors[0].Stack == "" || len(task.Errors[0].Stack) > 10_000 {
			t.Errorf("%s: errors %+v", name, task.Errors)
		}
	}
	if err := w.stop(); err != nil {
		t.Error(err)
	}
}

type badStringer struct{}

func (badStringer) String() string { panic("in String") }

func deep(n int) {
	if n == 0 {
		panic("deep")
	}
	deep(n - 1)
}

// B22: text that PostgreSQL cannot store neither fails an outcome nor a batch.
func TestCaseB22BadText(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	bad := "nul \x00, half \xed\xa0\x80, literal \\u0000"
	b.handle("error", &registry.Options{MaxAttempts: 2, Retry: atOnce}, func(context.Context, *pgwake.Run) error { return errors.New(bad) })
	b.handle("panic", &registry.Options{MaxAttempts: 2, Retry: atOnce}, func(context.Context, *pgwake.Run) error { panic(bad) })
	b.handle("literal", nil, func(_ context.Context, run *pgwake.Run) error {
		if !strings.Contains(string(run.RawPayload), `\\u0000`) {
			return pgwake.Freeze(fmt.Errorf("payload %s", run.RawPayload))
		}
		return nil
	})
	b.start(worker.Config{Logger: quiet()})
	for _, name := range []string{"error", "panic"} {
		task := b.await(b.enqueue(name, nil), pgwake.Frozen)
		if !strings.Contains(*task.LastError, `literal \u0000`) || !strings.Contains(*task.LastError, "nul \uFFFD") {
			t.Errorf("%s: %q", name, *task.LastError)
		}
	}
	e, err := b.client.Enqueue(t.Context(), pgwake.Raw{Type: "literal", JSON: raw(`{"text":"\\u0000"}`)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	b.await(e.ID, pgwake.Succeeded)
}

// B24: attempts near the ends of their range and odd back-offs leave every row with a next run in the bounded future.
func TestCaseB24Attempts(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	policies := map[string]registry.RetryPolicy{
		"default":  nil,
		"hour":     registry.Exponential(time.Hour, 24*time.Hour),
		"negative": registry.Constant(-time.Hour),
		"zero":     registry.Constant(0),
		"huge":     registry.Constant(1<<63 - 1),
	}
	for name, p := range policies {
		b.handle(name, &registry.Options{Retry: p}, func(context.Context, *pgwake.Run) error { return errBoom })
	}
	attempts := []int{0, 1, 39, 63, 64, 311, 32_766, 32_767, 1<<31 - 3, 1<<31 - 2, 1<<31 - 1}
	var ids []uuid.UUID
	for name := range policies {
		for _, attempt := range attempts {
			id := b.enqueue(name, &pgwake.EnqueueOptions{Delay: time.Hour})
			// One run each, so that a wait of 0 does not go on.
			b.exec(`update pgwake.tasks set attempt = $2::integer, max_attempts = least($2::bigint + 2, 2147483647) where id = $1`, id, attempt)
			ids = append(ids, id)
		}
	}
	b.exec(`update pgwake.tasks set retry_at = now()`)
	b.start(worker.Config{Logger: quiet()})
	for _, id := range ids {
		pgtest.WaitFor(t, 20*time.Second, "a run", func() bool { return b.task(id).FinishedAt != nil })
		task := b.task(id)
		if task.Status != pgwake.Queued {
			continue // a wait of 0: the second run froze it
		}
		if in := task.RetryAt.Sub(*task.FinishedAt).Round(time.Millisecond); in < 0 || in > 30*24*time.Hour+time.Minute {
			t.Errorf("%s: next run in %s", task.Type, in)
		}
	}

	// Snoozes neither consume attempts nor inflate them.
	var snoozes atomic.Int32
	b2 := benchOn(t, b.pool)
	b2.handle("snoozes", nil, func(context.Context, *pgwake.Run) error {
		if snoozes.Add(1) <= 300 {
			return pgwake.Snooze(0)
		}
		return nil
	})
	b2.start(worker.Config{Logger: quiet()})
	if task := b.await(b.enqueue("snoozes", nil), pgwake.Succeeded); task.Attempt != 1 {
		t.Errorf("after 300 snoozes the attempt is %d", task.Attempt)
	}
}

// B36: schemas whose names need quoting, two of them in one database.
func TestCaseB36SchemaNames(t *testing.T) {
	t.Parallel()
	url := pgtest.NewEmpty(t)
	names := []string{"Tasks", "tasks", "my-queue", "select", "naïve", `a"b`, "x.y", strings.Repeat("s", 63)}
	ran := make(chan string, 100)
	for _, schema := range names {
		runSchema(t, url, schema, ran)
	}
	for range names {
		recv(t, ran, "run")
	}
	if len(ran) > 0 {
		t.Error("a task ran in more than one schema")
	}
}
