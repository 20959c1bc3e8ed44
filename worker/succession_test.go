package worker_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/internal/pgtest"
	"github.com/pgwake/pgwake/worker"
)

// Where a type's locks begin: of the session that is rung, of the keeper and of its deputy. See package notify.
const (
	gateLock   = 0
	keeperLock = 1024
	deputyLock = 2048
)

// frozen plays a worker whose process is stopped: a session that holds locks of the type and does nothing. It returns the
// session's server process.
func (b *bench) frozen(name string, locks ...int) (pid int) {
	b.Helper()
	conn, err := pgx.ConnectConfig(b.Context(), b.pool.Config().ConnConfig)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = conn.Close(context.Background()) })
	var got bool
	if err := conn.QueryRow(b.Context(), `
		select bool_and(pg_try_advisory_lock('pgwake.tasks'::regclass::oid::integer, (hashtext($1) & 1023) + lock)), pg_backend_pid()
		from unnest($2::integer[]) as lock`, name, locks).Scan(&got, &pid); err != nil {
		b.Fatal(err)
	}
	if !got {
		b.Fatalf("the locks of %q are not to be had", name)
	}
	return pid
}

// awaitDeputies waits until so many sessions are deputy of a keeper, and all workers sleep.
func (b *bench) awaitDeputies(n int) {
	b.Helper()
	pgtest.WaitFor(b, soon, "a deputy", func() bool {
		return n == b.count(`
			select count(distinct pid) from pg_locks
			where locktype = 'advisory' and granted and objid >= 2048
			  and classid = 'pgwake.tasks'::regclass::oid and database = (select oid from pg_database where datname = current_database())`)
	})
	b.awaitAsleep()
}

// awaitKeepers waits until the keepers are as wanted.
func (b *bench) awaitKeepers(what string, want func(keepers, armed []int) bool) {
	b.Helper()
	pgtest.WaitFor(b, soon, what, func() bool { return want(b.keepers()) })
}

// sessions are the server processes of the workers.
func (b *bench) sessions() (pids []int) {
	b.Helper()
	rows, _ := b.pool.Query(b.Context(), `
		select pid from pg_stat_activity where datname = current_database() and application_name like 'pgwake %'`)
	pids, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		b.Fatal(err)
	}
	return pids
}

// A deputy that waits for a task of some minutes ahead hears of one that is due now, and starts it in place of a keeper that
// does nothing.
func TestDeputyWithAFarTimerHearsRings(t *testing.T) {
	t.Parallel()
	e := newEdge(t)
	e.frozen("job", gateLock, keeperLock)
	e.enqueue("job", &pgwake.EnqueueOptions{Delay: 5 * time.Minute})
	e.start(worker.Config{})
	e.awaitDeputies(1)
	e.startedWithin(time.Second, e.enqueue("job", nil))
}

// How often a worker looks behind the back of keeper and deputy depends on how many workers are alive. Those that died
// without a goodbye are not among them.
func TestDeadWorkersAreNotOfTheFleet(t *testing.T) {
	t.Parallel()
	const sweep = time.Second
	e := newEdge(t)
	e.exec(`
		insert into pgwake.workers (id, name, version, types, slots, seen_at)
		select gen_random_uuid(), 'dead', 'unknown', '{job}', 1, now() - interval '1 hour' from generate_series(1, 1000)`)
	e.frozen("job", gateLock, keeperLock)
	e.frozen("job", deputyLock)
	e.start(worker.Config{Sweep: sweep})
	e.awaitAsleep()
	e.startedWithin(2*sweep, e.enqueue("job", nil))
}

// A deputy that finds a task at its look behind the keeper's back does not blame a keeper that has followed every ring: the
// task may have come since, and without a ring. Neither loses its sessions.
func TestHealthyKeeperStays(t *testing.T) {
	t.Parallel()
	const (
		after         = 60 * time.Millisecond // a ring, and before the look that it leads to
		secondLookEnd = 300 * time.Millisecond
	)
	e := newEdge(t)
	for i := range 2 {
		e.start(worker.Config{Name: fmt.Sprint("w", i)})
	}
	e.awaitKeepers("one keeper, armed", func(keepers, armed []int) bool { return len(keepers) == 1 && len(armed) == 1 })
	e.awaitDeputies(1)
	before := e.sessions()
	var left []uuid.UUID // came too late for the look: the next ring's
	for range 30 {
		pause := time.After(after)
		e.promptly(append(left, e.enqueue("job", nil))...)
		<-pause
		tx := e.begin(pgx.TxOptions{})
		e.in(tx, `set local pgwake.wake = off`)
		silent := e.enqueueIn(tx)
		e.commit(tx)
		left = nil
		select {
		case id := <-e.started:
			if id != silent {
				t.Errorf("task %s started, which should not", id)
			}
		case <-time.After(secondLookEnd):
			left = append(left, silent)
		}
	}
	now := e.sessions()
	for _, pid := range before {
		if !slices.Contains(now, pid) {
			t.Errorf("session %d of a worker has ended: %v, now %v", pid, before, now)
		}
	}
}

// Whoever finds that the keeper of one type does nothing ends its session, and not that of the keeper of another type, who
// has had nothing to do.
func TestKeeperOfAnotherTypeStays(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	healthy, both := benchOn(t, b.pool), benchOn(t, b.pool)
	nothing := func(context.Context, *pgwake.Run) error { return nil }
	healthy.handle("c", nil, nothing)
	healthy.start(worker.Config{Name: "healthy"})
	b.awaitKeepers("one keeper, armed", func(keepers, armed []int) bool { return len(keepers) == 1 && len(armed) == 1 })
	stays, _ := b.keepers()
	goes := b.frozen("b", gateLock, keeperLock)
	started := make(chan struct{}, 1)
	both.handle("b", nil, func(context.Context, *pgwake.Run) error {
		started <- struct{}{}
		return nil
	})
	both.handle("c", nil, nothing)
	both.start(worker.Config{Name: "both"})
	b.awaitDeputies(1)
	b.enqueue("b", nil)
	recv(t, started, "run")
	b.awaitKeepers("another keeper, armed", func(keepers, armed []int) bool {
		return len(keepers) == 2 && len(armed) == 2 && !slices.Contains(keepers, goes)
	})
	if keepers, _ := b.keepers(); !slices.Contains(keepers, stays[0]) {
		t.Errorf("session %d of a healthy keeper has ended: the keepers are %v", stays[0], keepers)
	}
}

// A keeper that is not armed makes nobody ring, so its deputy hears nothing. It sees that the keeper, who should look every
// few milliseconds, does not, and takes over.
func TestKeeperFrozenDisarmedIsSucceeded(t *testing.T) {
	t.Parallel()
	e := newEdge(t)
	e.frozen("job", keeperLock)
	e.start(worker.Config{Sweep: worker.DefaultSweep})
	e.startedWithin(2*time.Second, e.enqueue("job", nil))
	for range 3 {
		e.startedWithin(time.Second, e.enqueue("job", nil))
	}
	e.awaitArmed()
}

// A worker whose session ends while it sleeps is no longer keeper and is not rung. It learns of it without a look.
func TestKeeperNoticesTheEndOfItsSession(t *testing.T) {
	t.Parallel()
	e := newEdge(t)
	e.armed(worker.Config{})
	keepers, _ := e.keepers()
	e.exec(`select pg_terminate_backend($1)`, keepers[0])
	e.awaitKeepers("the end of the session", func(now, _ []int) bool { return !slices.Contains(now, keepers[0]) })
	e.startedWithin(1500*time.Millisecond, e.enqueue("job", nil))
}

// Work for a whole fleet of one slot each is taken up at once, though every worker must be asked by the one before. Not
// parallel: the load of the other tests is more than its time allows for.
func TestRamp(t *testing.T) {
	if testing.Short() {
		t.Skip("starts 40 workers")
	}
	const workers, limit = 40, time.Second
	b := newBench(t)
	started, release := make(chan time.Time, workers), make(chan struct{})
	defer close(release)
	b.handle("job", nil, func(context.Context, *pgwake.Run) error {
		started <- time.Now()
		<-release
		return nil
	})
	for i := range workers {
		b.start(worker.Config{Name: fmt.Sprint("w", i), Slots: 1, Logger: quiet()})
	}
	b.awaitKeepers("one keeper, armed", func(keepers, armed []int) bool { return len(keepers) == 1 && len(armed) == 1 })
	b.awaitDeputies(1)
	tasks := make([]pgwake.NewTask, workers)
	for i := range tasks {
		tasks[i].Payload = pgwake.Raw{Type: "job"}
	}
	at := time.Now()
	if _, err := b.client.EnqueueMany(t.Context(), tasks); err != nil {
		t.Fatal(err)
	}
	var took time.Duration
	for range workers {
		took = max(took, recv(t, started, "run").Sub(at))
	}
	t.Logf("%d workers had started %d tasks after %s", workers, workers, took)
	if took > limit {
		t.Errorf("the last task started after %s, want %s at most", took, limit)
	}
}

// A keeper that looks by itself, since its own type comes too fast, is rung for none of those that share the bucket. Its
// deputy looks after the others.
func TestCollidingTypesWhileTheKeeperLooks(t *testing.T) {
	t.Parallel()
	const limit = 1200 * time.Millisecond
	b := newBench(t)
	one, two := b.collide()
	keeper, other := benchOn(t, b.pool), benchOn(t, b.pool)
	keeper.handle(one, nil, func(context.Context, *pgwake.Run) error { return nil })
	keeper.start(worker.Config{Name: "keeper", Slots: 500, Logger: quiet()}) // never full: it would let go
	b.awaitKeepers("one keeper, armed", func(keepers, armed []int) bool { return len(keepers) == 1 && len(armed) == 1 })
	started := make(chan time.Time, 1)
	other.handle(two, nil, func(context.Context, *pgwake.Run) error {
		started <- time.Now()
		return nil
	})
	other.start(worker.Config{Name: "other", Logger: quiet()})
	b.awaitDeputies(1)
	defer b.stream(one)()
	for range 6 {
		b.awaitKeepers("one keeper, not armed", func(keepers, armed []int) bool { return len(keepers) == 1 && len(armed) == 0 })
		at := time.Now()
		b.enqueue(two, nil)
		if took := recv(t, started, "run").Sub(at); took > limit {
			t.Errorf("started after %s, want %s at most", took, limit)
		}
	}
}

// stream enqueues tasks faster than it is worth to be rung for, until stop, which returns when the last is committed.
func (b *bench) stream(name string) (stop func()) {
	const writers, pause = 6, 2 * time.Millisecond
	ctx, cancel := context.WithCancel(b.Context())
	var all sync.WaitGroup
	for range writers {
		all.Go(func() {
			tick := time.NewTicker(pause)
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				// Not with ctx, whose end would be an error of the last.
				if _, err := b.client.Enqueue(b.Context(), pgwake.Raw{Type: name}, nil); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	return func() {
		cancel()
		all.Wait()
	}
}
