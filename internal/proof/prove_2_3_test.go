//go:build unix

package proof_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/internal/pgtest"
)

// No task waits for more than a second while a worker has a free slot for it: not at any rate, not after any pause,
// however the transactions end that enqueue. Nor does one when listeners lose their sessions, a second after they have
// new ones. The sweep is far away, and so are the ends of leases.
func TestProve_2_3(t *testing.T) {
	p := prove(t, "2.3", "0 tasks later than 1 s after commit, free slot and, if terminated, reconnect; 0 overtaken; 0 lost")
	s := &soak{bench: newBench(p), p: p}
	s.name = "undisturbed"
	s.run()
	s.name, s.disturbed = "listeners terminated", true
	s.run()
}

// soakClients enqueue at once.
const soakClients = 32

// soak is tasks enqueued in many ways, at changing rates, and run by real processes that keep a log.
type soak struct {
	*bench
	p         *proof
	name      string
	disturbed bool
	archived  int // by the runs before
}

func (s *soak) run() {
	began := time.Now()
	dir := s.TempDir()
	const slots = 20
	var workers []*process
	for i := range sized(4, 2) {
		workers = append(workers, s.launch(job{
			Role: "logged", Name: fmt.Sprintf("%s %d", s.name, i), Slots: slots, Lease: time.Minute, Sweep: farSweep, Drain: patience,
			Work: 4 * time.Millisecond, Log: filepath.Join(dir, fmt.Sprint(i)),
		}))
	}
	for _, w := range workers {
		w.ready()
	}

	orders := make(chan order)
	clients := s.clients(orders)
	terminated := 0
	var disturber sync.WaitGroup
	ctx, calm := context.WithCancel(s.Context())
	defer disturber.Wait()
	defer calm()
	if s.disturbed {
		disturber.Go(func() { terminated = s.disturb(ctx, workers) })
	}
	conductor{orders}.conduct(s.Context(), sized(8, 1), sized(132_000, 2_500))
	close(orders)
	var tasks []committed
	for _, c := range clients {
		<-c.done
		tasks = append(tasks, c.tasks...)
	}
	pgtest.WaitFor(s, 3*time.Minute, "tasks to be done", func() bool {
		pause(50 * time.Millisecond)
		return s.count(`select count(*) from pgwake.tasks`) == 0
	})
	calm()
	disturber.Wait()
	for _, w := range workers {
		w.terminate()
	}
	histories := make([]*history, len(workers))
	for i, w := range workers {
		w.drained(patience)
		histories[i] = readHistory(s, filepath.Join(dir, fmt.Sprint(i)), slots, began)
	}

	s.archived += len(tasks)
	if n := s.count(`select count(*) from pgwake.task_archive where status = 'succeeded' and attempt = 1`); n != s.archived {
		s.Errorf("%s: %d tasks ended after one run, want %d", s.name, n, s.archived)
	}
	v := judge(tasks, histories)
	s.p.figure("%s: %d tasks by %d clients in %s, at most %d/s", s.name, len(tasks), soakClients, time.Since(began).Round(time.Second), busiest(tasks))
	if s.disturbed {
		s.p.figure("%d listeners terminated, %d reconnects", terminated, v.reconnects)
	}
	s.p.figure("waits beside a free slot ≤ %s, %d late, %d overtaken, %d lost, %d run twice", short(max(v.longest, briefly)), v.late, v.overtaken, v.lost, v.again)
	if v.lost+v.again+v.unknown > 0 {
		s.Errorf("%s: %d tasks lost, %d run twice, %d run that were not committed", s.name, v.lost, v.again, v.unknown)
	}
	for _, text := range v.worst {
		s.Logf("%s: %s", s.name, text)
	}
	s.p.timely(v.late == 0, "%s: %d tasks started late", s.name, v.late)
	s.p.timely(v.overtaken == 0, "%s: %d tasks started more than 1 s after one that was due after them", s.name, v.overtaken)
	if s.disturbed && terminated > 0 && v.reconnects == 0 {
		s.Errorf("no listener reconnected: the experiment does not work")
	}
}

// disturb ends the sessions of listeners at random moments, of one worker or of all.
func (s *soak) disturb(ctx context.Context, workers []*process) (n int) {
	for ctx.Err() == nil {
		pattern := "%"
		if rand.IntN(5) > 0 {
			pattern = workers[rand.IntN(len(workers))].name
		}
		rows, _ := s.pool.Query(ctx, `
			select pg_terminate_backend(pid) from pg_stat_activity
			where datname = current_database() and application_name like $1`, workerSessions+pattern+" listener")
		for rows.Next() {
			n++
		}
		if rows.Err() != nil && ctx.Err() == nil {
			s.Errorf("terminate listeners: %v", rows.Err())
			return n
		}
		select {
		case <-time.After(100*time.Millisecond + rand.N(sized(3*time.Second, time.Second))):
		case <-ctx.Done():
		}
	}
	return n
}

// busiest is the most tasks committed in one second.
func busiest(tasks []committed) (most int) {
	n := map[int64]int{}
	for _, t := range tasks {
		n[t.at/int64(time.Second)]++
	}
	for _, k := range n {
		most = max(most, k)
	}
	return most
}

// order is what a client is to do next.
type order struct {
	way  way
	n    int           // tasks
	hold time.Duration // from insert to commit
}

type way int

const (
	alone       way = iota // one task, autocommit
	long                   // a transaction that goes on long after the insert
	rolledBack             // a transaction that comes to nothing
	savepoint              // a transaction of which a part comes to nothing
	bulk                   // many tasks at once
	waysOfOrder = 4        // the first ones, in any mixture
)

// conductor gives orders to the clients, at changing rates.
type conductor struct {
	orders chan<- order
}

// conduct goes through some rounds. In each the rate rises from 20/s to all that the clients can do, for a number of
// tasks, and falls again; then come bursts, and pauses of random length between all of them.
func (c conductor) conduct(ctx context.Context, rounds, tasks int) {
	unit := sized(time.Second, 200*time.Millisecond)
	slow := func(perSecond int, span time.Duration) {
		c.play(ctx, perSecond, int(float64(perSecond)*span.Seconds()), 0.2)
	}
	rest := func(most time.Duration) { pause(rand.N(most)) }
	for range rounds {
		for _, perSecond := range []int{20, 100, 500, 2500} {
			slow(perSecond, 3*unit/2)
		}
		c.play(ctx, 0, tasks, 0.03)
		for _, perSecond := range []int{2500, 500, 100, 20} {
			slow(perSecond, unit)
		}
		rest(3 * unit)
		for range 3 {
			c.give(ctx, order{way: bulk, n: sized(1000, 20) + rand.IntN(sized(4000, 100))})
			rest(unit)
			c.play(ctx, 0, sized(300, 30), 0)
			rest(unit / 4)
			c.play(ctx, 0, 1+rand.IntN(3), 0)
			rest(unit / 50)
		}
	}
}

// play orders a number of tasks at a rate, 0 for as fast as the clients take them. A share of the orders is not for single
// tasks.
func (c conductor) play(ctx context.Context, perSecond, tasks int, share float64) {
	began := time.Now()
	for done := 0; done < tasks && ctx.Err() == nil; {
		o := order{n: 1}
		if rand.Float64() < share {
			o = order{way: way(1 + rand.IntN(waysOfOrder-1)), n: 1 + rand.IntN(60), hold: rand.N(300 * time.Millisecond)}
			if rand.IntN(10) == 0 {
				o.hold += rand.N(2 * time.Second)
			}
		}
		c.give(ctx, o)
		done += o.n
		if perSecond > 0 {
			pause(time.Until(began.Add(time.Duration(done) * time.Second / time.Duration(perSecond))))
		}
	}
}

func (c conductor) give(ctx context.Context, o order) {
	select {
	case c.orders <- o:
	case <-ctx.Done():
	}
}

// committed is a task that somebody is to run; instants are Unix nanoseconds.
type committed struct {
	id   [16]byte
	due  int64 // just before its transaction began
	at   int64 // just before its commit was sent
	over int64 // when that had returned
}

// soakClient does what it is ordered, on a connection of its own.
type soakClient struct {
	*soak
	client *pgwake.Client
	tasks  []committed
	done   chan struct{} // closed when there are no more orders
}

func (s *soak) clients(orders <-chan order) []*soakClient {
	pool := newPool(s, s.url, soakClients)
	client, err := pgwake.NewClient(s.Context(), pool, pgwake.ClientConfig{Types: s.reg})
	if err != nil {
		s.Fatal(err)
	}
	clients := make([]*soakClient, soakClients)
	for i := range clients {
		c := &soakClient{soak: s, client: client, done: make(chan struct{})}
		clients[i] = c
		go func() { // ends with the orders; run waits for it
			defer close(c.done)
			for o := range orders {
				if err := c.follow(s.Context(), o, pool); err != nil {
					s.Errorf("client: %v", err)
				}
			}
		}()
	}
	return clients
}

// soakTasks are n of the soak's type.
func soakTasks(n int) []pgwake.NewTask {
	return slices.Repeat([]pgwake.NewTask{{Payload: pgwake.Raw{Type: "logged"}}}, n)
}

// note keeps what was committed just now.
func (c *soakClient) note(due, commit time.Time, enqueued ...pgwake.Enqueued) {
	over := time.Now().UnixNano()
	for _, e := range enqueued {
		c.tasks = append(c.tasks, committed{e.ID, due.UnixNano(), commit.UnixNano(), over})
	}
}

// follow does what is ordered. What a rollback undoes is nowhere noted: nobody may run it.
func (c *soakClient) follow(ctx context.Context, o order, pool *pgxpool.Pool) error {
	due := time.Now()
	if o.way == alone {
		e, err := c.client.Enqueue(ctx, pgwake.Raw{Type: "logged"}, nil)
		if err == nil {
			c.note(due, due, e)
		}
		return err
	}
	tx, err := pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	enqueued, err := c.client.EnqueueManyTx(ctx, tx, soakTasks(o.n))
	if err != nil {
		return err
	}
	pause(o.hold)
	switch o.way {
	case rolledBack:
		return tx.Rollback(ctx)
	case savepoint:
		part, err := tx.Begin(ctx)
		if err != nil {
			return err
		}
		if _, err := c.client.EnqueueManyTx(ctx, part, soakTasks(o.n)); err != nil {
			return err
		}
		if err := part.Rollback(ctx); err != nil {
			return err
		}
		e, err := c.client.EnqueueTx(ctx, tx, pgwake.Raw{Type: "logged"}, nil)
		if err != nil {
			return err
		}
		enqueued = append(enqueued, e)
	}
	commit := time.Now()
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	c.note(due, commit, enqueued...)
	return nil
}
