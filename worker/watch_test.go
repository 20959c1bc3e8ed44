package worker_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/internal/pgtest"
	"github.com/pgwake/pgwake/worker"
)

// No due task waits while a worker with a free slot sleeps, whatever the rate, the transactions and the fleet: far sweep.
func TestNoWakeUpIsLost(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.handle("job", nil, func(context.Context, *pgwake.Run) error {
		if rand.IntN(20) == 0 {
			time.Sleep(time.Duration(rand.IntN(5)) * time.Millisecond)
		}
		return nil
	})
	for i := range 3 {
		b.start(worker.Config{Slots: 1 + 3*i, Name: fmt.Sprint("w", i), Logger: quiet()})
	}
	var writers sync.WaitGroup
	for range 6 {
		writers.Go(func() {
			for range 60 {
				tx, err := b.pool.Begin(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				for range 1 + rand.IntN(4) {
					if _, err := b.client.EnqueueTx(t.Context(), tx, pgwake.Raw{Type: "job"}, nil); err != nil {
						t.Error(err)
					}
				}
				end := tx.Commit
				if rand.IntN(5) == 0 {
					end = tx.Rollback
				}
				if err := end(t.Context()); err != nil {
					t.Error(err)
				}
				if rand.IntN(4) == 0 {
					time.Sleep(time.Duration(rand.IntN(40)) * time.Millisecond)
				}
			}
		})
	}
	writers.Wait()
	pgtest.WaitFor(t, 3*time.Second, "all tasks done", func() bool {
		var n int
		if err := b.pool.QueryRow(t.Context(), `select count(*) from pgwake.tasks`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n == 0
	})
	var late time.Duration
	if err := b.pool.QueryRow(t.Context(), `select max(started_at - due_at) from pgwake.task_archive`).Scan(&late); err != nil {
		t.Fatal(err)
	}
	if late > time.Second {
		t.Errorf("a task started %s after it was due", late)
	}
}

// keeperSQL finds the sessions that are keeper, and those that are armed.
const keeperSQL = `
select coalesce(array_agg(pid) filter (where objid >= 1024 and objid < 2048), '{}'), coalesce(array_agg(pid) filter (where objid < 1024), '{}')
from pg_locks
where locktype = 'advisory' and granted and mode = 'ExclusiveLock'
  and classid = 'pgwake.tasks'::regclass::oid and database = (select oid from pg_database where datname = current_database())`

func (b *bench) keepers() (keepers, armed []int) {
	b.Helper()
	if err := b.pool.QueryRow(b.Context(), keeperSQL).Scan(&keepers, &armed); err != nil {
		b.Fatal(err)
	}
	return keepers, armed
}

// When the keeper's session dies, or the keeper is full, another worker is rung from then on.
func TestKeeperIsSucceeded(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	started, release := make(chan struct{}, 10), make(chan struct{})
	b.handle("job", nil, func(context.Context, *pgwake.Run) error {
		started <- struct{}{}
		<-release
		return nil
	})
	for i := range 3 {
		b.start(worker.Config{Slots: 1, Name: fmt.Sprint("w", i), Logger: quiet()})
	}
	oneArmed := func() bool {
		keepers, armed := b.keepers()
		return len(keepers) == 1 && len(armed) == 1
	}
	pgtest.WaitFor(t, 5*time.Second, "one keeper, armed", oneArmed)

	before, _ := b.keepers()
	b.exec(`select pg_terminate_backend($1)`, before[0])
	pgtest.WaitFor(t, 3*time.Second, "another keeper", func() bool {
		now, armed := b.keepers()
		return len(now) == 1 && len(armed) == 1 && now[0] != before[0]
	})

	// Three workers of one slot: each takes one task and hands over.
	for range 3 {
		at := time.Now()
		b.enqueue("job", nil)
		recv(t, started, "run")
		if took := time.Since(at); took > time.Second {
			t.Errorf("a task started after %s", took)
		}
	}
	pgtest.WaitFor(t, 5*time.Second, "no keeper while all are full", func() bool {
		keepers, _ := b.keepers()
		return len(keepers) == 0
	})
	waiting := b.enqueue("job", nil)
	close(release)
	recv(t, started, "the fourth run")
	b.await(waiting, pgwake.Succeeded)
	pgtest.WaitFor(t, 5*time.Second, "one keeper, armed", oneArmed)
}

// collide returns two task types in the same bucket of the gate.
func (b *bench) collide() (one, two string) {
	b.Helper()
	if err := b.pool.QueryRow(b.Context(), `
		select min(t), max(t)
		from (select 't' || n as t from generate_series(1, 500) as n) as types
		group by hashtext(t) & 1023
		having count(*) = 2
		limit 1`).Scan(&one, &two); err != nil {
		b.Fatal(err)
	}
	return one, two
}

// A keeper that is rung for a type it does not have asks those who have it.
func TestCollidingTypesAreHelped(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	one, two := b.collide()
	keeper, other := benchOn(t, b.pool), benchOn(t, b.pool)
	keeper.handle(one, nil, func(context.Context, *pgwake.Run) error { return nil })
	keeper.start(worker.Config{Name: "keeper", Logger: quiet()})
	pgtest.WaitFor(t, 5*time.Second, "the keeper is armed", func() bool {
		_, armed := b.keepers()
		return len(armed) == 1
	})
	started := make(chan struct{}, 1)
	other.handle(two, nil, func(context.Context, *pgwake.Run) error {
		started <- struct{}{}
		return nil
	})
	other.start(worker.Config{Name: "other", Logger: quiet()})
	for range 5 {
		at := time.Now()
		b.enqueue(two, nil)
		recv(t, started, "run")
		if took := time.Since(at); took > secondLook {
			t.Errorf("started after %s: not by the keeper's word", took)
		}
	}
}

// secondLook is when the first looks behind the keeper's back come.
const secondLook = 100 * time.Millisecond

// A worker with two types, of which others keep one, takes that over when they are gone.
func TestPartOfTheTypesIsTakenOver(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	part, all := benchOn(t, b.pool), benchOn(t, b.pool)
	started := make(chan struct{}, 1)
	nothing := func(context.Context, *pgwake.Run) error { return nil }
	part.handle("a", nil, nothing)
	first := part.start(worker.Config{Name: "part", Logger: quiet()})
	pgtest.WaitFor(t, 5*time.Second, "it is armed", func() bool {
		_, armed := b.keepers()
		return len(armed) == 1
	})
	all.handle("b", nil, nothing)
	all.handle("a", nil, func(context.Context, *pgwake.Run) error {
		started <- struct{}{}
		return nil
	})
	all.start(worker.Config{Name: "all", Logger: quiet()})
	pgtest.WaitFor(t, 5*time.Second, "both are armed", func() bool {
		_, armed := b.keepers()
		return len(armed) == 2
	})
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	at := time.Now()
	b.enqueue("a", nil)
	recv(t, started, "run")
	if took := time.Since(at); took > time.Second {
		t.Errorf("started after %s", took)
	}
}

// One that does not listen is nobody's keeper, and polls until it does.
func TestPollsWhileItCannotListen(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	started := make(chan struct{}, 1)
	b.handle("job", nil, func(context.Context, *pgwake.Run) error {
		started <- struct{}{}
		return nil
	})
	b.run(worker.Config{PollOnly: true})
	for range 3 {
		at := time.Now()
		b.enqueue("job", nil)
		recv(t, started, "run")
		if took := time.Since(at); took > 1500*time.Millisecond {
			t.Errorf("started after %s", took)
		}
	}
	if keepers, armed := b.keepers(); len(keepers)+len(armed) > 0 {
		t.Errorf("keepers %v, armed %v", keepers, armed)
	}
}
