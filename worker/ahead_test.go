package worker_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/internal/pgtest"
	"github.com/pgwake/pgwake/internal/wait"
	"github.com/pgwake/pgwake/registry"
	"github.com/pgwake/pgwake/worker"
)

// behindABlocker starts a worker with one slot and many quick tasks, one of which blocks until it is released, or its
// context ends. It returns when that one runs and others, claimed ahead, wait behind it.
func (b *bench) behindABlocker(tasks int) (w *running, release func(), ran *atomic.Int64) {
	b.Helper()
	ran = &atomic.Int64{}
	blocked, released := make(chan struct{}), make(chan struct{})
	b.handle("quick", nil, func(ctx context.Context, run *pgwake.Run) error {
		if string(run.RawPayload) != "{}" && run.Attempt == 1 {
			close(blocked)
			select {
			case <-released:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		ran.Add(1)
		return nil
	})
	b.exec(`insert into pgwake.tasks (type, payload, retry_at)
		select 'quick', case when n = $1 / 2 then '{"block": true}' else '{}' end::jsonb, now() - interval '1 h' + n * interval '1 ms'
		from generate_series(1, $1) as n`, tasks)
	w = b.run(worker.Config{Slots: 1})
	recv(b, blocked, "the task that blocks")
	if n := b.count(`select count(*) from pgwake.tasks where status = 'running'`); n < 2 {
		b.Fatalf("%d tasks are claimed: none ahead", n)
	}
	return w, func() { close(released) }, ran
}

// Tasks that were claimed ahead and wait for a slot that does not come free go to whoever has one.
func TestClaimedAheadGoesBack(t *testing.T) {
	t.Parallel()
	const tasks = 4000
	b := newBench(t)
	_, release, ran := b.behindABlocker(tasks)
	other := b.run(worker.Config{Slots: 1})
	other.await("all others run elsewhere", func() bool { return ran.Load() == tasks-1 })
	release()
	pgtest.WaitFor(t, 20*time.Second, "all are settled", func() bool {
		return b.count(`select count(*) from pgwake.task_archive where status = 'succeeded'`) == tasks
	})
	if n := ran.Load(); n != tasks {
		t.Errorf("%d runs of %d tasks", n, tasks)
	}
	if n := b.count(`select count(*) from pgwake.task_archive where attempt <> 1`); n > 0 {
		t.Errorf("%d tasks were charged for having waited", n)
	}
}

// A worker that stops gives back what it has claimed ahead, with no attempt spent.
func TestClaimedAheadAtStop(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	w, release, _ := b.behindABlocker(4000)
	defer release()
	stopped := make(chan error, 1)
	go func() { stopped <- w.stop() }()
	pgtest.WaitFor(t, 10*time.Second, "only the one that runs is claimed", func() bool {
		return b.count(`select count(*) from pgwake.tasks where status = 'running'`) == 1
	})
	if n := b.count(`select count(*) from pgwake.tasks where status = 'queued' and (attempt <> 0 or holder is not null)`); n > 0 {
		t.Errorf("%d tasks given back are charged or still held", n)
	}
}

// Of a type whose runs take long no more is claimed than there are slots for, however much is due.
func TestSlowTypesAreNotClaimedAhead(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var most atomic.Int64
	b.handle("slow", nil, func(ctx context.Context, _ *pgwake.Run) error {
		var n int64
		if err := b.pool.QueryRow(ctx, `select count(*) from pgwake.tasks where status = 'running'`).Scan(&n); err != nil {
			return err
		}
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		return wait.For(ctx, 40*time.Millisecond)
	})
	b.exec(`insert into pgwake.tasks (type) select 'slow' from generate_series(1, 100)`)
	const slots = 4
	w := b.run(worker.Config{Slots: slots})
	w.await("all have run", func() bool { return b.count(`select count(*) from pgwake.tasks`) == 0 })
	// A run that has ended stays claimed until it is settled.
	if n := most.Load(); n > 2*slots {
		t.Errorf("%d tasks were claimed at once, with %d slots", n, slots)
	}
}

// Of a type without history nothing is left when it is done, however that is; what is frozen stays.
func TestNoHistory(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.handle("fleeting", &registry.Options{NoHistory: true}, func(ctx context.Context, run *pgwake.Run) error {
		switch string(run.RawPayload) {
		case `"cancel"`:
			return pgwake.Cancel(context.Canceled)
		case `"freeze"`:
			return pgwake.Freeze(context.Canceled)
		case `"complete"`:
			tx, err := b.pool.Begin(ctx)
			if err != nil {
				return err
			}
			defer tx.Rollback(ctx)
			if err := run.CompleteTx(ctx, tx); err != nil {
				return err
			}
			return tx.Commit(ctx)
		}
		return nil
	})
	b.start(worker.Config{})
	b.exec(`insert into pgwake.tasks (type, payload) select 'fleeting', to_jsonb(p) from unnest(array['succeed', 'cancel', 'complete', 'freeze']) as p`)
	pgtest.WaitFor(t, 20*time.Second, "all are settled", func() bool {
		return b.count(`select count(*) from pgwake.tasks where status in ('queued', 'running')`) == 0
	})
	if live, kept := b.count(`select count(*) from pgwake.tasks where status = 'frozen'`), b.count(`select count(*) from pgwake.task_archive`); live != 1 || kept != 0 {
		t.Errorf("%d frozen, want 1; %d archived, want 0", live, kept)
	}
}

// A row that commits long after it was due is started at once, although claims begin behind it.
func TestLateRowIsTold(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ran := make(chan string, 100)
	b.handle("t", nil, func(_ context.Context, run *pgwake.Run) error {
		ran <- string(run.RawPayload)
		return nil
	})
	b.start(worker.Config{})
	for range 3 { // so that there is a mark
		b.enqueue("t", nil)
		recv(t, ran, "a task")
	}
	listener, err := b.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Release()
	if _, err := listener.Exec(t.Context(), `do $$ begin execute format('listen %I', 'pgwake_' || md5('pgwake.tasks') || '_late'); end $$`); err != nil {
		t.Fatal(err)
	}
	b.exec(`insert into pgwake.tasks (type, payload, retry_at) values
		('t', '1', now() - interval '90 s'), ('t', '2', now() - interval '95 min'), ('t', '3', now() - interval '30 s'), ('t', '4', now())`)
	for range 4 {
		recv(t, ran, "a task that is late")
	}
	for _, want := range []time.Duration{90 * time.Second, 0, 30 * time.Second} {
		n, err := listener.Conn().WaitForNotification(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var typ string
		var since int64
		if _, err := fmt.Sscan(n.Payload, &typ, &since); err != nil || typ != "t" {
			t.Fatalf("told %q: %v", n.Payload, err)
		}
		if want == 0 {
			if since != 0 {
				t.Errorf("told since %d, want 0: long ago", since)
			}
			continue
		}
		if age := time.Since(time.Unix(since, 0)); age < want || age > want+61*time.Second {
			t.Errorf("told to be %s late, is %s", age, want)
		}
	}
	if _, err := listener.Exec(t.Context(), `unlisten *`); err != nil {
		t.Fatal(err)
	}
}
