package worker_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/internal/pgtest"
	"github.com/pgwake/pgwake/internal/settled"
	"github.com/pgwake/pgwake/registry"
	"github.com/pgwake/pgwake/worker"
)

// subscribe returns what a subscription is told after its first resync, and what ends it.
func (b *bench) subscribe() (events <-chan pgwake.Event, stop func()) {
	b.Helper()
	all := make(chan pgwake.Event, 100_000)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := b.client.Subscribe(ctx, func(e pgwake.Event) { all <- e }); !errors.Is(err, context.Canceled) {
			b.Error(err)
		}
	}()
	stop = func() {
		cancel()
		<-done
	}
	b.Cleanup(stop)
	if e := recv(b, all, "first resync"); !e.Resync {
		b.Errorf("first event %+v", e)
	}
	return all, stop
}

// overhear counts what is sent to subscribers while f runs.
func (b *bench) overhear(f func()) (n int) {
	b.Helper()
	heard, stop := b.listenTo(settled.Channel(pgtest.Schema))
	f()
	stop()
	for range heard {
		n++
	}
	return n
}

// gateHeld reports whether somebody makes workers tell what they settle.
func (b *bench) gateHeld() bool {
	b.Helper()
	return b.count(`select count(*) from pg_locks where locktype = 'advisory' and classid = 'pgwake.task_archive'::regclass
		and mode = 'ExclusiveLock' and database = (select oid from pg_database where datname = current_database())`) > 0
}

// However a run ends, it is told, once it is committed.
func TestSettlementsAreTold(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	complete := func(end func(ctx context.Context, tx pgx.Tx) error) registry.Next {
		return func(ctx context.Context, run *pgwake.Run) error {
			tx, err := b.pool.Begin(ctx)
			if err != nil {
				return err
			}
			defer tx.Rollback(ctx)
			if err := run.CompleteTx(ctx, tx); err != nil {
				return err
			}
			return end(ctx, tx)
		}
	}
	returns := func(err error) registry.Next { return func(context.Context, *pgwake.Run) error { return err } }
	cases := map[string]struct {
		handler registry.Next
		status  pgwake.Status
	}{
		"nil":                     {returns(nil), pgwake.Succeeded},
		"error":                   {returns(errBoom), pgwake.Queued},
		"snooze":                  {returns(pgwake.Snooze(time.Hour)), pgwake.Queued},
		"cancel":                  {returns(pgwake.Cancel(errBoom)), pgwake.Cancelled},
		"freeze":                  {returns(pgwake.Freeze(errBoom)), pgwake.Frozen},
		"panic":                   {func(context.Context, *pgwake.Run) error { panic("boom") }, pgwake.Queued},
		"completed":               {complete(func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) }), pgwake.Succeeded},
		"completed, and an error": {complete(func(ctx context.Context, tx pgx.Tx) error { return errors.Join(tx.Commit(ctx), errBoom) }), pgwake.Succeeded},
		"rolled back":             {complete(func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) }), pgwake.Queued},
	}
	for name, c := range cases {
		b.handle(name, nil, c.handler)
	}
	b.start(worker.Config{Logger: quiet()})
	events, _ := b.subscribe()
	for name, c := range cases {
		id := b.enqueue(name, nil)
		if e := recv(t, events, "event of "+name); e != (pgwake.Event{ID: id, Type: name, Status: c.status}) {
			t.Errorf("%s: event %+v, want %s of %s", name, e, c.status, id)
		}
		if task := b.task(id); task.Status != c.status {
			t.Errorf("%s: told %s and is %s", name, c.status, task.Status)
		}
	}
}

// Word of a settlement comes soon, and none is sent when nobody subscribes.
func TestSettlementsAreToldSoonAndOnlyThen(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.handle("job", nil, func(context.Context, *pgwake.Run) error { return nil })
	b.start(worker.Config{})
	silent := func() {
		t.Helper()
		if n := b.overhear(func() {
			for range 20 {
				b.await(b.enqueue("job", nil), pgwake.Succeeded)
			}
		}); n != 0 {
			t.Errorf("%d notifications, and nobody subscribes", n)
		}
	}
	silent()

	events, stop := b.subscribe()
	var late []time.Duration
	for range 21 {
		id := b.enqueue("job", nil)
		event := recv(t, events, "event")
		heard := time.Now()
		if event.ID != id {
			t.Errorf("event %+v, want task %s", event, id)
		}
		late = append(late, heard.Sub(*b.task(id).FinishedAt))
	}
	slices.Sort(late)
	t.Logf("from settlement to event: median %s, most %s", late[10], late[20])
	if late[10] > 100*time.Millisecond {
		t.Errorf("events come %s after the settlement", late[10])
	}

	stop()
	pgtest.WaitFor(t, 10*time.Second, "the gate to be free", func() bool { return !b.gateHeld() })
	silent()
}

// Thousands of settlements are told in few notifications, and every one is: by an event, or by a resync.
func TestBurstIsTold(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.handle("job", nil, func(context.Context, *pgwake.Run) error { return nil })
	events, _ := b.subscribe()
	const n = 3000
	tasks := make([]pgwake.NewTask, n)
	for i := range tasks {
		tasks[i].Payload = pgwake.Raw{Type: "job"}
	}
	enqueued, err := b.client.EnqueueMany(t.Context(), tasks)
	if err != nil {
		t.Fatal(err)
	}
	waiting := make(map[uuid.UUID]bool, n)
	for _, task := range enqueued {
		waiting[task.ID] = true
	}
	told, resyncs := 0, 0
	sent := b.overhear(func() {
		b.start(worker.Config{Slots: 100})
		for len(waiting) > 0 {
			event := recv(t, events, "event")
			if !event.Resync {
				told++
				delete(waiting, event.ID)
				continue
			}
			resyncs++
			rows, _ := b.pool.Query(t.Context(), `select id from pgwake.task_archive`)
			ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
			if err != nil {
				t.Fatal(err)
			}
			for _, id := range ids {
				delete(waiting, id)
			}
		}
	})
	t.Logf("%d events and %d resyncs in %d notifications", told, resyncs, sent)
	if sent > n/10 {
		t.Errorf("%d notifications of %d tasks", sent, n)
	}
}

// Through a pooler in transaction mode a subscription is told to look about every second, and nobody is made to send what
// it cannot hear; with direct sessions it hears what workers settle and announce through the pooler.
func TestSubscribeThroughAPooler(t *testing.T) {
	t.Parallel()
	b, direct := pooled(t, "transaction", "")
	b.handle("job", nil, func(context.Context, *pgwake.Run) error { return nil })
	b.run(worker.Config{Sweep: time.Second})
	events, stop := b.subscribe()
	b.await(b.enqueue("job", nil), pgwake.Succeeded)
	for range 2 {
		if e := recv(t, events, "resync"); !e.Resync {
			t.Errorf("event %+v", e)
		}
	}
	if b.gateHeld() {
		t.Error("the gate is held for somebody who cannot hear")
	}
	stop()

	var err error
	if b.client, err = pgwake.NewClient(t.Context(), b.pool, pgwake.ClientConfig{ListenerURL: direct}); err != nil {
		t.Fatal(err)
	}
	events, _ = b.subscribe()
	id := b.enqueue("job", nil)
	if e := recv(t, events, "event"); e != (pgwake.Event{ID: id, Type: "job", Status: pgwake.Succeeded}) {
		t.Errorf("event %+v, want task %s", e, id)
	}
}
