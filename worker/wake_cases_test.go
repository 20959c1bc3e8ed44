package worker_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/internal/pgtest"
	"github.com/pgwake/pgwake/lease"
	"github.com/pgwake/pgwake/migrations"
	"github.com/pgwake/pgwake/worker"
)

// record keeps a log, and passes it on.
type record struct {
	to   io.Writer
	mu   sync.Mutex // guards text
	text strings.Builder
}

func (r *record) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.text.Write(b)
	return r.to.Write(b)
}

// lines are those that have the text in them.
func (r *record) lines(text string) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for line := range strings.Lines(r.text.String()) {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

// listeners are the server processes of the sessions that wait for notifications.
func (b *bench) listeners() (pids []int) {
	b.Helper()
	if err := b.pool.QueryRow(b.Context(), `
		select coalesce(array_agg(pid), '{}') from pg_stat_activity
		where datname = current_database() and application_name like 'pgwake % listener'`).Scan(&pids); err != nil {
		b.Fatal(err)
	}
	return pids
}

// B01: whatever ends the listener's connection, a new one comes in time, once and with one line of log, and everything
// goes on: wake-ups, the flow of other tasks, the renewal of leases.
func TestCaseB01ListenerReconnects(t *testing.T) {
	t.Parallel()
	const down = 5 * time.Second // how long connections are refused
	server := pgtest.Server(t)
	url := server.URL("")
	if _, err := migrations.Up(t.Context(), url, pgtest.Schema); err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	b := benchOn(t, pool)

	var mu sync.Mutex // guards starts
	starts := map[uuid.UUID]time.Time{}
	b.handle("job", nil, func(_ context.Context, run *pgwake.Run) error {
		mu.Lock()
		defer mu.Unlock()
		starts[run.ID] = time.Now()
		return nil
	})
	b.handle("long", nil, func(ctx context.Context, _ *pgwake.Run) error {
		<-ctx.Done()
		return context.Cause(ctx)
	})
	log := &record{to: t.Output()}
	w := b.start(worker.Config{Lease: time.Minute, DrainTimeout: -1, Logger: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	long := b.enqueue("long", nil)
	b.await(long, pgwake.Running)

	var flow sync.WaitGroup
	ctx, end := context.WithCancel(t.Context())
	defer flow.Wait()
	defer end()
	flow.Go(func() {
		for ctx.Err() == nil {
			_, _ = b.client.Enqueue(ctx, pgwake.Raw{Type: "job"}, nil) // fails while the server is down
			<-time.After(20 * time.Millisecond)
		}
	})

	for _, harm := range []struct {
		name string
		do   func() error
	}{
		{"backend terminated", func() error {
			_, err := pool.Exec(t.Context(), `select pg_terminate_backend($1)`, b.listeners()[0])
			return err
		}},
		{"immediate restart", func() error {
			return errors.Join(server.StopImmediate(), server.Restart(t.Context()))
		}},
		{"connections refused", func() error {
			err := server.StopFast()
			<-time.After(down)
			return errors.Join(err, server.Restart(t.Context()))
		}},
	} {
		before, reconnects, leased := b.listeners(), w.Health().Reconnects, *b.task(long).RetryAt
		lost, connected, tries := log.lines("listener connection lost"), log.lines("listener connected"), log.lines("listener still not connected")
		if err := harm.do(); err != nil {
			t.Fatalf("%s: %v", harm.name, err)
		}
		from := time.Now()
		w.await("the listener reconnects", func() bool { return w.Health().Reconnects > reconnects })
		t.Logf("%s: listening again after %s", harm.name, time.Since(from))
		pool.Reset()
		sent := map[uuid.UUID]time.Time{}
		for range 20 {
			at := time.Now()
			sent[b.enqueue("job", nil)] = at
		}
		for id, at := range sent {
			var start time.Time
			pgtest.WaitFor(t, 20*time.Second, "tasks to start", func() bool {
				mu.Lock()
				defer mu.Unlock()
				start = starts[id]
				return !start.IsZero()
			})
			if took := start.Sub(at); took > 2*time.Second {
				t.Errorf("%s: a task started after %s", harm.name, took)
			}
		}
		if now := b.listeners(); len(now) != 1 || now[0] == before[0] {
			t.Errorf("%s: listeners %v, before %v", harm.name, now, before)
		}
		if n := w.Health().Reconnects - reconnects; n != 1 {
			t.Errorf("%s: %d reconnects", harm.name, n)
		}
		if l, c := log.lines("listener connection lost")-lost, log.lines("listener connected")-connected; l != 1 || c != 1 {
			t.Errorf("%s: logged %d times that the listener was lost, %d times that it was connected", harm.name, l, c)
		}
		// 50 ms, 100 ms, 200 ms … apart, give or take a third.
		if n := log.lines("listener still not connected") - tries; n > 10 {
			t.Errorf("%s: %d vain tries to connect", harm.name, n)
		}
		pgtest.WaitFor(t, 10*time.Second, "a renewal, long before its turn", func() bool { return b.task(long).RetryAt.After(leased) })
		if task := b.task(long); task.Status != pgwake.Running || task.Attempt != 1 {
			t.Errorf("%s: the long task is %s, attempt %d", harm.name, task.Status, task.Attempt)
		}
	}
}

// B03: a worker that was cut off says so in its health within two leases, and works again without a restart when the
// network is back.
func TestCaseB03Resumes(t *testing.T) {
	t.Parallel()
	const lasts, tolerance = 10 * time.Second, 500 * time.Millisecond
	b := newBench(t)
	cut, proxy := b.behindProxy()
	started := make(chan uuid.UUID, 20)
	cut.handle("job", nil, func(_ context.Context, run *pgwake.Run) error {
		started <- run.ID
		return nil
	})
	w := cut.start(worker.Config{Lease: lasts, DrainTimeout: -1})
	t.Cleanup(func() { proxy.Blackhole(false) }) // for a quick stop
	b.enqueue("job", nil)
	recv(t, started, "run")

	proxy.Blackhole(true)
	from := time.Now()
	for range cap(started) {
		b.enqueue("job", nil)
	}
	pgtest.WaitFor(t, 3*lasts, "health to turn bad", func() bool { return !w.Health().Listening })
	took := time.Since(from)
	t.Logf("health turned bad after %s", took)
	if took > 2*lasts+tolerance {
		t.Errorf("health turned bad after %s", took)
	}
	if err := w.Health().ListenerError; err == nil {
		t.Error("health names no cause")
	}
	if len(started) > 0 {
		t.Error("a task has started behind a network that swallows everything")
	}
	proxy.Blackhole(false)
	back := time.Now()
	for range cap(started) {
		recv(t, started, "run after the network is back")
	}
	t.Logf("back at work after %s", time.Since(back))
	w.await("the listener reconnects", func() bool { return w.Health().Listening })
	at := time.Now()
	b.enqueue("job", nil)
	recv(t, started, "run")
	if took := time.Since(at); took > 2*time.Second {
		t.Errorf("a task started after %s", took)
	}
}

// B10: what becomes of a running task is durable, and the heartbeat reads it: its handler's context ends within two
// beats although the worker hears and claims nothing, for longer than that. What the handler returns counts no more.
func TestCaseB10NoListener(t *testing.T) {
	t.Parallel()
	const lasts = 6 * time.Second
	const twoBeats = 2 * lasts / 3
	for name, c := range map[string]struct {
		sql  string
		runs bool // again, elsewhere
	}{
		"deleted":  {sql: `delete from pgwake.tasks where id = $1`},
		"requeued": {sql: `update pgwake.tasks set status = 'queued', retry_at = now() where id = $1`, runs: true},
		"frozen":   {sql: `update pgwake.tasks set status = 'frozen', retry_at = null where id = $1`},
		"paused":   {sql: `update pgwake.tasks set status = 'paused', retry_at = 'infinity' where id = $1`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			listener, proxy := b.behindProxy()
			started, ended, again := make(chan struct{}), make(chan error, 1), make(chan int, 1)
			b.handle("job", nil, func(ctx context.Context, _ *pgwake.Run) error {
				close(started)
				<-ctx.Done()
				ended <- context.Cause(ctx)
				return nil
			})
			// The heartbeat goes where the pool goes; the listener and the claims go by the proxy.
			w := b.start(worker.Config{Name: "deaf", Lease: lasts, DrainTimeout: -1, ListenerURL: listener.pool.Config().ConnString()})
			t.Cleanup(func() { proxy.Blackhole(false) }) // for a quick stop
			id := b.enqueue("job", nil)
			recv(t, started, "run")
			proxy.Blackhole(true) // nobody comes back …
			proxy.Cut()           // … who is sent away
			w.await("the listener is lost", func() bool { return !w.Health().Listening })
			b.awaitRenewal(id)

			from := time.Now()
			b.exec(c.sql, id)
			if err := recv(t, ended, "end of context"); !errors.Is(err, lease.ErrLeaseLost) {
				t.Errorf("the context ended with %v", err)
			}
			took := time.Since(from)
			t.Logf("the context ended after %s", took)
			if took > twoBeats+500*time.Millisecond {
				t.Errorf("the context ended after %s, beats are %s apart", took, twoBeats/2)
			}
			if w.Health().Listening {
				t.Error("the listener is back: the experiment does not work")
			}
			if c.runs {
				other := benchOn(t, b.pool)
				other.handle("job", nil, func(_ context.Context, run *pgwake.Run) error {
					again <- run.Attempt
					return nil
				})
				other.start(worker.Config{Name: "other"})
				if attempt := recv(t, again, "run elsewhere"); attempt != 2 {
					t.Errorf("attempt %d elsewhere", attempt)
				}
				if task := b.await(id, pgwake.Succeeded); *task.Worker != "other" {
					t.Errorf("ended by %s", *task.Worker)
				}
			}
			proxy.Blackhole(false)
			w.await("the listener reconnects", func() bool { return w.Health().Listening })
			switch name {
			case "frozen", "paused":
				if task := b.task(id); string(task.Status) != name || task.Attempt != 1 {
					t.Errorf("the task is %s, attempt %d", task.Status, task.Attempt)
				}
			case "deleted":
				if n := b.count(`select count(*) from pgwake.all_tasks`); n != 0 {
					t.Errorf("%d tasks", n)
				}
			}
		})
	}
}
