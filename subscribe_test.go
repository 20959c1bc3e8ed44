package pgwake

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pgwake/pgwake/internal/pgtest"
	"github.com/pgwake/pgwake/internal/settled"
	"github.com/pgwake/pgwake/lease"
)

var errStopped = errors.New("test stops")

// subscriber is a subscription and what it is told.
type subscriber struct {
	events chan Event
	stop   func() // ends it and waits for that
}

func (b *bundle) subscribe(t *testing.T, c *Client) *subscriber {
	t.Helper()
	s := &subscriber{events: make(chan Event, 100_000)}
	s.stop = subscribeWith(t, c, func(e Event) { s.events <- e })
	return s
}

// subscribeWith runs a subscription until the function returned is called, or the test ends.
func subscribeWith(t *testing.T, c *Client, handle func(Event)) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancelCause(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := c.Subscribe(ctx, handle); !errors.Is(err, errStopped) {
			t.Errorf("subscribe returned %v", err)
		}
	}()
	stop = func() {
		cancel(errStopped)
		<-done
	}
	t.Cleanup(stop)
	return stop
}

// next returns the next event of which is is true, and fails after the time given.
func (s *subscriber) next(t *testing.T, within time.Duration, what string, is func(Event) bool) Event {
	t.Helper()
	limit := time.NewTimer(within)
	defer limit.Stop()
	for {
		select {
		case e := <-s.events:
			if is(e) {
				return e
			}
		case <-limit.C:
			t.Fatalf("no %s within %s", what, within)
		}
	}
}

func (s *subscriber) resync(t *testing.T, within time.Duration) {
	t.Helper()
	s.next(t, within, "resync", func(e Event) bool { return e.Resync })
}

// finish makes a running task, settles it and tells of it if somebody watches, as a worker does. It returns whether
// somebody did.
func (b *bundle) finish(ctx context.Context, status Status) (id uuid.UUID, watched bool, err error) {
	queue, err := lease.New(Table(DefaultSchema))
	if err != nil {
		return id, false, err
	}
	holder := uuid.NewString()
	if err := b.pool.QueryRow(ctx, `insert into pgwake.tasks (type, status, retry_at, fence, holder)
		values ('job', 'running', now() + interval '1 min', 1, $1) returning id`, holder).Scan(&id); err != nil {
		return id, false, err
	}
	done, watched, err := queue.SettleWatched(ctx, b.pool, holder, []lease.Settlement{{
		Lease: &lease.Lease{Key: id.String(), Fence: 1, Holder: holder}, Status: string(status),
	}})
	if err != nil || len(done) != 1 {
		return id, false, fmt.Errorf("settled %v: %w", done, err)
	}
	if watched {
		payload := settled.Encode([]settled.Task{{ID: id, Type: "job", Status: string(status)}})[0]
		_, err = b.pool.Exec(ctx, `select pg_notify($1, $2)`, settled.Channel(DefaultSchema), payload)
	}
	return id, watched, err
}

// told finishes a task and waits until the subscriber is told.
func (b *bundle) told(t *testing.T, s *subscriber) {
	t.Helper()
	pgtest.WaitFor(t, patience, "somebody to keep the gate", func() bool { return b.keeper(t) != 0 })
	id, watched, err := b.finish(t.Context(), Succeeded)
	if err != nil || !watched {
		t.Fatalf("watched %v, %v", watched, err)
	}
	e := s.next(t, patience, "event", func(e Event) bool { return e.ID == id })
	if e != (Event{ID: id, Type: "job", Status: Succeeded}) {
		t.Errorf("event %+v", e)
	}
}

// untold finishes a task, of which nothing should be told.
func (b *bundle) untold(t *testing.T) {
	t.Helper()
	if _, watched, err := b.finish(t.Context(), Succeeded); err != nil || watched {
		t.Errorf("watched %v, %v", watched, err)
	}
}

// sessions counts the sessions of subscribers.
func (b *bundle) sessions(t *testing.T) int {
	t.Helper()
	return one[int](t, b.pool, `select count(*)::int from pg_stat_activity where application_name like 'pgwake subscriber%' and datname = current_database()`)
}

// keeper returns the process of the session that holds the gate, 0 if nobody does.
func (b *bundle) keeper(t *testing.T) int {
	t.Helper()
	return one[int](t, b.pool, `select coalesce(max(pid), 0)::int from pg_locks where locktype = 'advisory' and mode = 'ExclusiveLock' and granted
		and classid = 'pgwake.task_archive'::regclass and objid::bigint < 1024 and database = (select oid from pg_database where datname = current_database())`)
}

func (b *bundle) another(t *testing.T) *Client {
	t.Helper()
	c, err := NewClient(t.Context(), b.pool, ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// All subscriptions of a client share a pair of sessions, which ends with the last. Only while there is one, settlements
// are told.
func TestSubscribe(t *testing.T) {
	t.Parallel()
	b := newBundle(t, ClientConfig{})
	b.untold(t)
	for range 2 { // it can begin anew
		first := b.subscribe(t, b.Client)
		if e := <-first.events; e != (Event{Resync: true}) {
			t.Errorf("first event %+v", e)
		}
		b.told(t, first)
		second := b.subscribe(t, b.Client)
		if e := <-second.events; e != (Event{Resync: true}) {
			t.Errorf("first event of the second %+v", e)
		}
		b.told(t, second)
		first.stop()
		b.told(t, second)
		if n := b.sessions(t); n != 2 {
			t.Errorf("%d sessions, want 2", n)
		}
		second.stop()
		pgtest.WaitFor(t, patience, "sessions closed", func() bool { return b.sessions(t) == 0 })
		b.untold(t)
	}
}

func TestSubscribeWithoutPool(t *testing.T) {
	t.Parallel()
	c, err := NewClient(t.Context(), nil, ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Subscribe(t.Context(), func(Event) {}); !errors.Is(err, errNoPool) {
		t.Error(err)
	}
}

// A panic of the handler reaches the caller of Subscribe, and nothing is left behind.
func TestSubscribeHandlerPanics(t *testing.T) {
	t.Parallel()
	b := newBundle(t, ClientConfig{})
	func() {
		defer func() {
			if v := recover(); v != "boom" {
				t.Errorf("recovered %v", v)
			}
		}()
		_ = b.Subscribe(t.Context(), func(Event) { panic("boom") })
	}()
	pgtest.WaitFor(t, patience, "sessions closed", func() bool { return b.sessions(t) == 0 })
}

// Tasks are settled all the time while subscriptions begin and the keeper of the gate changes: each is seen by the look
// after a resync, or told.
func TestSubscribeMissesNothing(t *testing.T) {
	t.Parallel()
	b := newBundle(t, ClientConfig{})
	const settlers, each = 6, 150
	var mu sync.Mutex
	var all []uuid.UUID
	var begun atomic.Int32
	var settling sync.WaitGroup
	for range settlers {
		settling.Go(func() {
			for range each {
				id, _, err := b.finish(t.Context(), Succeeded)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				all = append(all, id)
				mu.Unlock()
				begun.Add(1)
			}
		})
	}
	type looker struct {
		seen    map[uuid.UUID]bool // guarded by mu
		resyncs int
		told    int
		stop    func()
	}
	var lookers []*looker
	for i := range 8 { // spread over the time of the settling
		pgtest.WaitFor(t, patience, "settlements", func() bool { return int(begun.Load()) >= i*settlers*each/10 })
		l := &looker{seen: map[uuid.UUID]bool{}}
		l.stop = subscribeWith(t, b.another(t), func(e Event) {
			ids := []uuid.UUID{e.ID}
			if e.Resync {
				rows, _ := b.pool.Query(context.Background(), `select id from pgwake.task_archive`)
				var err error
				if ids, err = pgx.CollectRows(rows, pgx.RowTo[uuid.UUID]); err != nil {
					t.Error(err)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			if e.Resync {
				l.resyncs++
			} else {
				l.told++
			}
			for _, id := range ids {
				l.seen[id] = true
			}
		})
		lookers = append(lookers, l)
		if i > 3 {
			lookers[i-4].stop() // often that of the keeper
		}
	}
	settling.Wait()
	for i, l := range lookers[4:] {
		pgtest.WaitFor(t, 5*time.Second, "nothing to be missing", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return !slices.ContainsFunc(all, func(id uuid.UUID) bool { return !l.seen[id] })
		})
		mu.Lock()
		t.Logf("subscriber %d: %d resyncs, %d events", i+4, l.resyncs, l.told)
		mu.Unlock()
	}
}

// Whoever keeps the gate may go at any moment: another takes it, soon if the session was lost, at once if it says so, and
// all look.
func TestSubscribeKeeperGoes(t *testing.T) {
	t.Parallel()
	b := newBundle(t, ClientConfig{})
	first := b.subscribe(t, b.Client)
	first.resync(t, patience)
	second := b.subscribe(t, b.another(t))
	second.resync(t, patience)

	gone := b.keeper(t)
	b.exec(t, `select pg_terminate_backend($1)`, gone)
	killed := time.Now()
	second.resync(t, patience)
	if took := time.Since(killed); took > 2*time.Second {
		t.Errorf("resync %s after the keeper was killed", took)
	}
	first.resync(t, patience) // of its own reconnect, or the call of the new keeper
	if pid := b.keeper(t); pid == gone || pid == 0 {
		t.Errorf("keeper is %d, was %d", pid, gone)
	}
	b.told(t, first)
	b.told(t, second)

	third := b.subscribe(t, b.another(t))
	third.resync(t, patience)
	first.stop()
	second.stop()
	third.resync(t, patience)
	b.told(t, third)
}

// A subscription whose listener was cut off looks when it is back.
func TestSubscribeReconnects(t *testing.T) {
	t.Parallel()
	b := newBundle(t, ClientConfig{})
	s := b.subscribe(t, b.Client)
	s.resync(t, patience)
	b.exec(t, `select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'pgwake subscriber listener' and datname = current_database()`)
	s.resync(t, patience)
	b.told(t, s)
}

// A settlement in flight, begun before anybody subscribed, is followed by a resync.
func TestSubscribeWaitsForSettlementsInFlight(t *testing.T) {
	t.Parallel()
	b := newBundle(t, ClientConfig{})
	tx, err := b.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if !one[bool](t, tx, `select pg_try_advisory_xact_lock_shared(`+settled.Lock(DefaultSchema)+`)`) {
		t.Fatal("somebody subscribes")
	}
	s := b.subscribe(t, b.Client)
	s.resync(t, patience)
	s.resync(t, patience) // one after the other while it is not certain what is told
	if b.keeper(t) != 0 {
		t.Error("the gate was taken while a settlement holds it open")
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	pgtest.WaitFor(t, patience, "the gate to be taken", func() bool { return b.keeper(t) != 0 })
	s.resync(t, patience)
	b.told(t, s)
}

// Where nothing can be heard, there is a resync about every second.
func TestSubscribeDeaf(t *testing.T) {
	t.Parallel()
	b := newBundle(t, ClientConfig{ListenerURL: "postgres://127.0.0.1:1/none"})
	s := b.subscribe(t, b.Client)
	start := time.Now()
	for range 3 {
		s.resync(t, patience)
	}
	if took := time.Since(start); took < 2*time.Second || took > 5*time.Second {
		t.Errorf("three resyncs in %s", took)
	}
	b.untold(t)
}

// What waits for a slow handler is bounded: beyond that it is a resync, and what comes before the first is none of its
// business.
func TestSubscriptionIsBounded(t *testing.T) {
	t.Parallel()
	s := &subscription{wake: make(chan struct{}, 1)}
	some := slices.Repeat([]Event{{Type: "job"}}, 100)
	s.push(some...)
	if got := s.take(); len(got) != 0 {
		t.Errorf("%d events before the first resync", len(got))
	}
	s.push(Event{Resync: true})
	s.push(some...)
	if got := s.take(); len(got) != 101 || !got[0].Resync || got[1].Resync {
		t.Errorf("%d events, want a resync and 100", len(got))
	}
	for range maxEvents/len(some) + 1 {
		s.push(some...)
	}
	if got := s.take(); len(got) != 1 || !got[0].Resync {
		t.Errorf("%d events, want a resync", len(got))
	}
}
