package worker_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/internal/pgtest"
	"github.com/pgwake/pgwake/internal/pgtest/pooler"
	"github.com/pgwake/pgwake/notify"
	"github.com/pgwake/pgwake/worker"
)

// pooled is a bench whose pool goes through a PgBouncer, and the direct connection string.
func pooled(t *testing.T, mode, settings string) (b *bench, direct string) {
	t.Helper()
	direct = pgtest.NewURL(t)
	config, err := pgxpool.ParseConfig(pooler.Start(t, direct, mode, settings))
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return benchOn(t, pool), direct
}

// Behind a pooler in transaction mode everything works by polling, or with notifications if the listener has a session of
// its own; in session mode it works as without. Startup parameters are refused by one, and swallowed by another.
func TestPooler(t *testing.T) {
	t.Parallel()
	const ignore = "ignore_startup_parameters = jit, plan_cache_mode, statement_timeout, idle_in_transaction_session_timeout, " +
		"idle_session_timeout, default_transaction_isolation, default_transaction_read_only, lock_timeout, synchronous_commit, " +
		"enable_seqscan, enable_bitmapscan, enable_sort, enable_hashjoin, enable_mergejoin, enable_nestloop, " +
		"tcp_keepalives_idle, tcp_keepalives_interval, tcp_keepalives_count, tcp_user_timeout"
	for _, tc := range []struct {
		name, mode, settings string
		direct, pollOnly     bool
		listens              bool
	}{
		{name: "transaction", mode: "transaction"},
		{name: "transaction, parameters ignored", mode: "transaction", settings: ignore},
		{name: "transaction, one server session", mode: "transaction", settings: "default_pool_size = 1"},
		{name: "transaction, poll only", mode: "transaction", pollOnly: true},
		{name: "transaction, direct listener", mode: "transaction", direct: true, listens: true},
		{name: "session", mode: "session", listens: true},
		{name: "session, parameters ignored", mode: "session", settings: ignore, listens: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b, direct := pooled(t, tc.mode, tc.settings)
			b.handle("job", nil, func(context.Context, *pgwake.Run) error { return nil })
			fails := 0
			b.handle("flaky", nil, func(context.Context, *pgwake.Run) error {
				if fails++; fails == 1 {
					return pgwake.RetryAfter(0, nil)
				}
				return nil
			})
			long := make(chan struct{})
			b.handle("long", nil, func(ctx context.Context, _ *pgwake.Run) error {
				select {
				case <-long:
				case <-ctx.Done():
				}
				return ctx.Err()
			})
			config := worker.Config{Lease: 3 * time.Second, Sweep: time.Second, PollOnly: tc.pollOnly}
			if tc.direct {
				config.ListenerURL = direct
			}
			w := b.run(config)
			switch {
			case tc.listens:
				w.await("worker listens", func() bool { return w.Health().Listening })
			case !tc.pollOnly:
				w.await("worker knows why it polls", func() bool { return errors.Is(w.Health().ListenerError, notify.ErrNotDelivered) })
			}
			running := b.enqueue("long", nil)
			for range 20 {
				b.enqueue("job", nil)
			}
			b.await(b.enqueue("flaky", nil), pgwake.Succeeded)
			at := time.Now()
			b.await(b.enqueue("job", &pgwake.EnqueueOptions{Delay: time.Second}), pgwake.Succeeded)
			if took := time.Since(at); took > 4*time.Second {
				t.Errorf("a task due in 1 s was done after %s", took)
			}
			pgtest.WaitFor(t, 10*time.Second, "all others done", func() bool {
				return b.count(`select count(*) from pgwake.tasks`) == 1
			})
			task := b.task(running)
			pgtest.WaitFor(t, 10*time.Second, "the lease is renewed", func() bool {
				return b.task(running).RetryAt.Sub(*task.RetryAt) > 4*time.Second
			})
			close(long)
			if task := b.await(running, pgwake.Succeeded); task.Attempt != 1 {
				t.Errorf("attempt %d", task.Attempt)
			}
			if !tc.listens {
				if n := b.count(`select count(*) from pg_locks where locktype = 'advisory' and classid = 'pgwake.tasks'::regclass and mode = 'ExclusiveLock' and database = (select oid from pg_database where datname = current_database())`); n != 0 {
					t.Errorf("%d locks of the gate are left behind in the pooler", n)
				}
			}
			if err := w.stop(); err != nil {
				t.Error(err)
			}
			// No setting of a worker's reaches the pooler's other users.
			if tc.mode == "transaction" {
				for range 10 {
					var settings string
					if err := b.pool.QueryRow(t.Context(), `select concat_ws(' ', current_setting('enable_seqscan'), current_setting('plan_cache_mode'))`).Scan(&settings); err != nil || settings != "on auto" {
						t.Errorf("settings %q, %v", settings, err)
					}
				}
			}
		})
	}
}
