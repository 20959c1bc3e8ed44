package worker_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/internal/pgtest"
	"github.com/pgwake/pgwake/lease"
	"github.com/pgwake/pgwake/registry"
	"github.com/pgwake/pgwake/worker"
)

// queue is the task table's, for operators.
func (b *bench) queue() *lease.Queue {
	b.Helper()
	queue, err := lease.New(pgwake.Table(pgwake.DefaultSchema))
	if err != nil {
		b.Fatal(err)
	}
	return queue
}

func (b *bench) pause(id uuid.UUID) {
	b.Helper()
	if err := b.queue().Pause(b.Context(), b.pool, id.String()); err != nil {
		b.Fatal(err)
	}
}

// awaitRenewal waits until the ends of running tasks' leases have moved.
func (b *bench) awaitRenewal(ids ...uuid.UUID) {
	b.Helper()
	before := make(map[uuid.UUID]time.Time, len(ids))
	for _, id := range ids {
		before[id] = *b.task(id).RetryAt
	}
	pgtest.WaitFor(b, 10*time.Second, "a renewal", func() bool {
		return !slices.ContainsFunc(ids, func(id uuid.UUID) bool {
			now := b.task(id).RetryAt
			return now == nil || !now.After(before[id])
		})
	})
}

// A pause by plain SQL that touches only retry_at, of a row that runs, is stronger than whatever the run would write.
func TestPlainPauseOfARunningRowStands(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lease time.Duration // 0: so long that no heartbeat finds out first
		end   func(ctx context.Context, b *bench, run *pgwake.Run) error
	}{
		"settlement as failed":    {0, func(context.Context, *bench, *pgwake.Run) error { return errBoom }},
		"settlement as succeeded": {0, func(context.Context, *bench, *pgwake.Run) error { return nil }},
		"CompleteTx": {0, func(ctx context.Context, b *bench, run *pgwake.Run) error {
			err := pgx.BeginFunc(ctx, b.pool, func(tx pgx.Tx) error { return run.CompleteTx(ctx, tx) })
			if !errors.Is(err, lease.ErrLeaseLost) {
				b.Errorf("CompleteTx returns %v", err)
			}
			return err
		}},
		"heartbeat": {time.Second, func(ctx context.Context, b *bench, _ *pgwake.Run) error {
			select {
			case <-ctx.Done():
			case <-time.After(10 * time.Second):
				b.Error("the handler's context goes on")
			}
			if err := context.Cause(ctx); !errors.Is(err, lease.ErrLeaseLost) {
				b.Errorf("the context ended with %v", err)
			}
			return ctx.Err()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			started, paused := make(chan struct{}), make(chan struct{})
			b.handle("job", nil, func(ctx context.Context, run *pgwake.Run) error {
				close(started)
				<-paused
				return c.end(ctx, b, run)
			})
			w := b.start(worker.Config{Lease: c.lease, DrainTimeout: 500 * time.Millisecond})
			id := b.enqueue("job", nil)
			recv(t, started, "run")
			b.exec(`update pgwake.tasks set retry_at = 'infinity' where id = $1`, id)
			close(paused)
			pgtest.WaitFor(t, 15*time.Second, "the handler returns", func() bool { return w.Health().Running == 0 })
			start := time.Now()
			if err := w.stop(); err != nil { // after whatever the run writes
				t.Error(err)
			}
			if took := time.Since(start); took > 2*time.Second {
				t.Errorf("stop took %s: is the settlement taken for one of a locked row?", took)
			}
			var status, at string
			if err := b.pool.QueryRow(t.Context(), `select status, retry_at::text from pgwake.tasks where id = $1`, id).Scan(&status, &at); err != nil {
				t.Fatal(err)
			}
			if status != "running" || at != "infinity" {
				t.Errorf("the row is %s, retry at %s", status, at)
			}
		})
	}
}

// A row that was paused and resumed is run a second time by the worker that runs it already. The first run ends within
// two heartbeats, whichever of them is asked about first; the second goes on.
func TestTwoRunsOfOneRowInOneWorker(t *testing.T) {
	t.Parallel()
	const rows, length = 5, 3 * time.Second
	b := newBench(t)
	type event struct {
		id    uuid.UUID
		fence int64
		cause error
	}
	started, ended, release := make(chan event, 2*rows), make(chan event, 2*rows), make(chan struct{})
	b.handle("job", nil, func(ctx context.Context, run *pgwake.Run) error {
		started <- event{id: run.ID, fence: run.Fence}
		select {
		case <-ctx.Done():
			ended <- event{run.ID, run.Fence, context.Cause(ctx)}
		case <-release:
		}
		return ctx.Err()
	})
	w := b.start(worker.Config{Lease: length, Slots: 2 * rows})
	first := map[uuid.UUID]int64{}
	for range rows {
		b.enqueue("job", nil)
		e := recv(t, started, "first run")
		first[e.id] = e.fence
	}
	for id := range first {
		b.pause(id)
		if err := b.queue().Resume(t.Context(), b.pool, id.String(), time.Time{}); err != nil {
			t.Fatal(err)
		}
		recv(t, started, "second run")
	}
	resumed := time.Now()
	for range rows {
		e := recv(t, ended, "end of the first run")
		if first[e.id] != e.fence {
			t.Errorf("the second run of %s ended: %v", e.id, e.cause)
		}
		// Not for want of a renewal: the heartbeat has looked.
		if found := (*lease.LostError)(nil); !errors.As(e.cause, &found) || found.Found == nil {
			t.Errorf("the first run ended with %v", e.cause)
		}
	}
	if took := time.Since(resumed); took > 2*length/3+time.Second { // give or take the load of other tests
		t.Errorf("the first runs ended after %s, more than two heartbeats", took)
	}
	b.awaitRenewal(slices.Collect(maps.Keys(first))...)
	if n := w.Health().Running; n != rows || len(ended) > 0 {
		t.Errorf("%d of %d second runs are left", n, rows)
	}
	close(release)
	for id := range first {
		if task := b.await(id, pgwake.Succeeded); task.Attempt != 2 {
			t.Errorf("attempt %d", task.Attempt)
		}
	}
}

// Handlers that go on after their lease is lost count as stuck until they return.
func TestStuckFallsBackToZero(t *testing.T) {
	t.Parallel()
	const deaf, obedient = 3, 20
	b := newBench(t)
	started, release := make(chan struct{}, deaf+obedient), make(chan struct{})
	end := sync.OnceFunc(func() { close(release) })
	b.handle("deaf", nil, func(context.Context, *pgwake.Run) error {
		started <- struct{}{}
		<-release
		return nil
	})
	b.handle("obedient", nil, func(ctx context.Context, _ *pgwake.Run) error {
		started <- struct{}{}
		<-ctx.Done() // returns while it is being counted
		return ctx.Err()
	})
	w := b.start(worker.Config{Lease: time.Second, Slots: deaf + obedient, Logger: quiet()})
	t.Cleanup(end)
	for range deaf {
		b.enqueue("deaf", nil)
	}
	for range obedient {
		b.enqueue("obedient", nil)
	}
	for range deaf + obedient {
		recv(t, started, "run")
	}
	b.exec(`delete from pgwake.tasks`)
	pgtest.WaitFor(t, 10*time.Second, "only the deaf ones are stuck", func() bool {
		h := w.Health()
		return h.Running == deaf && h.Stuck == deaf
	})
	end()
	pgtest.WaitFor(t, 10*time.Second, "no slot is taken", func() bool { return w.Health().Running == 0 })
	if h := w.Health(); h.Stuck != 0 {
		t.Errorf("%d are stuck, with no slot taken", h.Stuck)
	}
	if err := w.stop(); err != nil {
		t.Error(err)
	}
}

// A suspect, whose worker was lost more than once, runs alone; one that hangs past its timeout lets the next run when it
// is given up, not when it returns.
func TestHangingSuspectHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	started, ran, release := make(chan struct{}), make(chan time.Time, 1), make(chan struct{})
	b.handle("hangs", &registry.Options{Timeout: 10 * time.Millisecond, Retry: registry.Constant(time.Hour)}, func(context.Context, *pgwake.Run) error {
		close(started)
		<-release
		return nil
	})
	b.handle("other", nil, func(context.Context, *pgwake.Run) error {
		ran <- time.Now()
		return nil
	})
	hangs := b.enqueueLost("hangs", "now()")
	w := b.start(worker.Config{Slots: 4})
	t.Cleanup(func() { close(release) })
	recv(t, started, "the one that hangs")
	begun := time.Now()
	other := b.enqueueLost("other", "now()")
	b.await(hangs, pgwake.Queued) // given up 5 s after its timeout
	givenUp := time.Now()
	at := recv(t, ran, "the other suspect")
	if beside := at.Sub(begun); beside < 4*time.Second {
		t.Errorf("the other suspect ran beside the first, after %s", beside)
	}
	if late := at.Sub(givenUp); late > 900*time.Millisecond {
		t.Errorf("the other suspect started %s after the first was given up", late)
	}
	b.await(other, pgwake.Succeeded)
	if h := w.Health(); h.Stuck != 1 || h.Running != 1 {
		t.Errorf("got %+v, want one stuck", h)
	}
}

// enqueueLost makes a task that has lost its worker twice, whose lease ends at the instant given in SQL.
func (b *bench) enqueueLost(name, ends string) uuid.UUID {
	b.Helper()
	id := b.enqueue(name, &pgwake.EnqueueOptions{Delay: time.Hour, MaxAttempts: 10})
	b.exec(`update pgwake.tasks set status = 'running', attempt = 2, lost = 1, holder = gen_random_uuid(), retry_at = `+ends+` where id = $1`, id)
	return id
}
