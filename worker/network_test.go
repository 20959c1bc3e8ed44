package worker_test

import (
	"context"
	"errors"
	"net"
	"net/url"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/internal/pgtest"
	"github.com/pgwake/pgwake/internal/tcpproxy"
	"github.com/pgwake/pgwake/lease"
	"github.com/pgwake/pgwake/worker"
)

// B03: on a network that swallows everything a worker keeps to its times. Not parallel: the load of the other tests is
// more than those allow for.
func TestCaseB03DeadNetwork(t *testing.T) {
	t.Run("the context ends before the lease", contextEndsBeforeTheLease)
	t.Run("idle, it stops in time", func(t *testing.T) { stopsInTime(t, false) })
	t.Run("with a run, it stops in time", func(t *testing.T) { stopsInTime(t, true) })
}

// A handler's context ends before its lease does, and so before anybody else runs the task. No call to the database that
// waits for an answer delays it.
func contextEndsBeforeTheLease(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	cut, proxy := b.behindProxy()
	started, ended, again := make(chan struct{}), make(chan time.Time, 1), make(chan time.Time, 1)
	cut.handle("job", nil, func(ctx context.Context, _ *pgwake.Run) error {
		close(started)
		<-ctx.Done()
		ended <- time.Now()
		if err := context.Cause(ctx); !errors.Is(err, lease.ErrLeaseLost) {
			t.Errorf("the context ended with %v", err)
		}
		return ctx.Err()
	})
	b.handle("job", nil, func(context.Context, *pgwake.Run) error {
		again <- time.Now()
		return nil
	})
	cut.start(worker.Config{Name: "cut", Lease: 3 * time.Second, DrainTimeout: -1})
	t.Cleanup(func() { proxy.Blackhole(false) }) // for a quick stop
	id := b.enqueue("job", nil)
	recv(t, started, "run")
	b.awaitRenewal(id) // the next one is still some time away: it will wait for its answer when the lease ends
	proxy.Blackhole(true)
	lasts := *b.task(id).RetryAt
	b.start(worker.Config{Name: "other"})
	end := recv(t, ended, "end of context")
	if late := end.Sub(lasts); late >= 0 {
		t.Errorf("the context ended %s after the lease", late)
	}
	if start := recv(t, again, "run elsewhere"); !end.Before(start) {
		t.Errorf("the task ran elsewhere %s before the context ended", end.Sub(start))
	}
	if task := b.await(id, pgwake.Succeeded); task.Attempt != 2 {
		t.Errorf("attempt %d", task.Attempt)
	}
}

// A stop takes no longer than DrainTimeout and 2 s. What Run returns is not the point: nobody can be told any more.
func stopsInTime(t *testing.T, busy bool) {
	t.Parallel()
	const drain, sweep, tolerance = 500 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond
	b := newBench(t)
	cut, proxy := b.behindProxy()
	started := make(chan struct{}, 1)
	cut.handle("job", nil, func(ctx context.Context, _ *pgwake.Run) error {
		started <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	})
	cut.handle("before", nil, func(context.Context, *pgwake.Run) error { return nil })
	w := cut.start(worker.Config{DrainTimeout: drain, Sweep: sweep})
	t.Cleanup(func() { proxy.Blackhole(false) })
	b.await(b.enqueue("before", nil), pgwake.Succeeded) // leaves a connection of the settler's
	if busy {
		b.enqueue("job", nil)
		recv(t, started, "run")
	}
	proxy.Blackhole(true)
	pgtest.WaitFor(t, 10*time.Second, "a statement waits for its answer", func() bool {
		return time.Since(w.Health().LastSweep) > 4*sweep
	})
	start := time.Now()
	err := w.stop()
	took := time.Since(start)
	t.Logf("stopped after %s: %v", took, err)
	if took > drain+2*time.Second+tolerance {
		t.Errorf("stop took %s, want %s and 2 s at most", took, drain)
	}
}

// behindProxy is another bench on the same database, whose network the test can swallow.
func (b *bench) behindProxy() (*bench, *tcpproxy.Proxy) {
	b.Helper()
	config := b.pool.Config().ConnConfig
	proxy := tcpproxy.New(b, net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port))))
	address, err := url.Parse(b.pool.Config().ConnString())
	if err != nil {
		b.Fatal(err)
	}
	address.Host = proxy.Addr()
	pool, err := pgxpool.New(b.Context(), address.String())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Close)
	return benchOn(b, pool), proxy
}
