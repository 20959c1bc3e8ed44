package notify_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgwake/pgwake/internal/pgtest"
	"github.com/pgwake/pgwake/notify"
)

// gated is a session with the gate of the task table, and what it hears on another one.
type gated struct {
	t     *testing.T
	pool  *pgxpool.Pool
	conn  *pgx.Conn
	gate  *notify.Gate
	rings chan string
}

func newGated(t *testing.T, pool *pgxpool.Pool) *gated {
	t.Helper()
	connect := func() *pgx.Conn {
		conn, err := pgx.ConnectConfig(t.Context(), pool.Config().ConnConfig)
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	g := &gated{t: t, pool: pool, conn: connect(), gate: notify.NewGate(pgtest.Schema, "tasks"), rings: make(chan string, 100_000)}
	listener := connect()
	if _, err := listener.Exec(t.Context(), "listen "+notify.Channel(pgtest.Schema, "tasks")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			n, err := listener.WaitForNotification(ctx)
			if err != nil {
				return
			}
			g.rings <- n.Payload
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		_ = g.conn.Close(context.Background())
	})
	return g
}

func (g *gated) arm(want notify.Standing, topics ...string) {
	g.t.Helper()
	got, err := g.gate.Arm(g.t.Context(), g.conn, g, topics)
	if err != nil || got.Standing != want {
		g.t.Errorf("arm: %v, %v, want %v", got, err, want)
	}
}

func (g *gated) insert(topic string) {
	g.t.Helper()
	if _, err := g.pool.Exec(g.t.Context(), `insert into pgwake.tasks (type) values ($1)`, topic); err != nil {
		g.t.Fatal(err)
	}
}

// heard returns what has rung up to now.
func (g *gated) heard() (list []string) {
	g.t.Helper()
	if _, err := g.pool.Exec(g.t.Context(), `select pg_notify($1, 'end')`, notify.Channel(pgtest.Schema, "tasks")); err != nil {
		g.t.Fatal(err)
	}
	for {
		select {
		case r := <-g.rings:
			if r == "end" {
				return list
			}
			list = append(list, r)
		case <-time.After(10 * time.Second):
			g.t.Fatal("notification did not come")
		}
	}
}

func (g *gated) locks() (n int) {
	g.t.Helper()
	if err := g.pool.QueryRow(g.t.Context(), `select count(*) from pg_locks where locktype = 'advisory' and pid = $1`, g.conn.PgConn().PID()).Scan(&n); err != nil {
		g.t.Fatal(err)
	}
	return n
}

func TestGateRingsOnlyWhileArmed(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	g := newGated(t, pool)
	g.insert("a")
	if got := g.heard(); len(got) > 0 {
		t.Errorf("nobody sleeps, and %v rang", got)
	}
	g.arm(notify.Armed, "a")
	g.insert("a")
	g.insert("b")
	if got := g.heard(); len(got) != 1 || got[0] != "a" {
		t.Errorf("armed for a: %v rang", got)
	}
	g.arm(notify.Armed, "a") // locks stack: it must not be taken twice
	if err := g.gate.Disarm(t.Context(), g.conn, g); err != nil {
		t.Fatal(err)
	}
	g.insert("a")
	if got := g.heard(); len(got) > 0 {
		t.Errorf("disarmed, and %v rang", got)
	}
	other := newGated(t, pool)
	other.arm(notify.Deputy, "a") // disarmed, the first one is still responsible
	if err := g.gate.Release(t.Context(), g.conn, g); err != nil {
		t.Fatal(err)
	}
	if n := g.locks(); n > 0 {
		t.Errorf("%d locks left after the release", n)
	}
	other.arm(notify.Armed, "a")
}

func TestGateIsBlockedByCommitsInFlight(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	g := newGated(t, pool)
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	for _, s := range []string{`insert into pgwake.tasks (type) values ('a')`, `set constraints all immediate`} {
		if _, err := tx.Exec(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	for range 20 {
		g.arm(notify.Keeper, "a")
	}
	if n := g.locks(); n != 1 {
		t.Errorf("%d locks after timed-out arms, want the keeper's alone", n)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	g.arm(notify.Armed, "a")
}

func TestGateGoesWithItsSession(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	g, other := newGated(t, pool), newGated(t, pool)
	g.arm(notify.Armed, "a")
	other.arm(notify.Deputy, "a")
	if _, err := pool.Exec(t.Context(), `select pg_terminate_backend($1)`, g.conn.PgConn().PID()); err != nil {
		t.Fatal(err)
	}
	pgtest.WaitFor(t, 10*time.Second, "the other one takes over", func() bool {
		got, err := other.gate.Arm(t.Context(), other.conn, other, []string{"a"})
		return err == nil && got.Standing == notify.Armed && got.Fresh
	})
	conn, err := pgx.ConnectConfig(t.Context(), pool.Config().ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	_ = g.conn.Close(t.Context())
	g.conn = conn
	if g.gate.Keeps(g.conn, g) {
		t.Error("a new session keeps nothing")
	}
	g.arm(notify.Deputy, "a")
	newGated(t, pool).arm(notify.Outside, "a")
}

// A sleeper with several topics is keeper of what nobody else keeps, and takes the rest over later: then it must look again.
func TestGateKeepsPartOfTheTopics(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	g, other := newGated(t, pool), newGated(t, pool)
	arm := func(want notify.Arming) {
		t.Helper()
		if got, err := other.gate.Arm(t.Context(), other.conn, other, []string{"a", "b"}); err != nil || got != want {
			t.Errorf("arming %+v, %v, want %+v", got, err, want)
		}
	}
	g.arm(notify.Armed, "a")
	arm(notify.Arming{Standing: notify.Armed, Fresh: true, Partial: true, Deputy: true})
	arm(notify.Arming{Standing: notify.Armed, Partial: true, Deputy: true})
	if err := g.gate.Release(t.Context(), g.conn, g); err != nil {
		t.Fatal(err)
	}
	arm(notify.Arming{Standing: notify.Armed, Fresh: true})
	arm(notify.Arming{Standing: notify.Armed})
}

// The session of a keeper that does not stir is ended; that of one that does is not, unless it must.
func TestGateDeposesASilentKeeper(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	keeper, deputy := newGated(t, pool), newGated(t, pool)
	depose := func(silent time.Duration, force bool) bool {
		t.Helper()
		j, err := deputy.gate.Judge(t.Context(), deputy.conn, []string{"a"}, notify.JudgeOptions{Silent: silent, Force: force})
		if err != nil || j.Hidden || j.Dead != j.Ended {
			t.Errorf("judgement %+v, %v", j, err)
		}
		return j.Ended
	}
	keeper.arm(notify.Armed, "a")
	deputy.arm(notify.Deputy, "a")
	if depose(time.Hour, false) {
		t.Error("it has stirred in the last hour")
	}
	if !depose(time.Microsecond, false) {
		t.Error("it has not stirred since")
	}
	pgtest.WaitFor(t, 10*time.Second, "the deputy takes over", func() bool {
		got, err := deputy.gate.Arm(t.Context(), deputy.conn, deputy, []string{"a"})
		return err == nil && got.Standing == notify.Armed
	})
	other := newGated(t, pool)
	other.arm(notify.Deputy, "a")
	if j, err := other.gate.Judge(t.Context(), other.conn, []string{"a"}, notify.JudgeOptions{Silent: time.Hour, Force: true}); err != nil || !j.Ended {
		t.Errorf("judgement %+v, %v", j, err)
	}
	pgtest.WaitFor(t, 10*time.Second, "there is no keeper", func() bool {
		j, err := other.gate.Judge(t.Context(), other.conn, []string{"a"}, notify.JudgeOptions{Silent: time.Hour})
		return err == nil && j == notify.Judgement{Dead: true}
	})
}

// What a role may not see or end it does not take for silence: it ends no session for that, and says that it cannot judge.
func TestGateJudgesByWhatTheRoleMaySee(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	keeper := newGated(t, roleOf(t, pool))
	keeper.arm(notify.Armed, "a")
	stranger, ender := newGated(t, roleOf(t, pool)), newGated(t, roleOf(t, pool, "pg_signal_backend"))
	for _, c := range []struct {
		name  string
		judge *gated
		force bool
	}{
		{"may neither see nor end it", stranger, false},
		{"may neither see nor end it, and must", stranger, true},
		{"may end it", ender, false},
	} {
		for range 3 { // an error does not make the next judgement another one
			j, err := c.judge.gate.Judge(t.Context(), c.judge.conn, []string{"a"}, notify.JudgeOptions{Silent: time.Hour, Force: c.force})
			if j.Ended || j.Dead || err == nil && !j.Hidden {
				t.Errorf("%s: judgement %+v, %v, want an error or Hidden", c.name, j, err)
			}
		}
		if err := keeper.conn.Ping(t.Context()); err != nil {
			t.Fatalf("%s: the keeper's session has ended: %v", c.name, err)
		}
	}
	j, err := ender.gate.Judge(t.Context(), ender.conn, []string{"a"}, notify.JudgeOptions{Silent: time.Hour, Force: true})
	if err != nil || !j.Ended {
		t.Errorf("may end it, and must: judgement %+v, %v", j, err)
	}
}

// roleOf is a pool on the same database of a role of the test's own, which is a member of those given.
func roleOf(t *testing.T, pool *pgxpool.Pool, memberOf ...string) *pgxpool.Pool {
	t.Helper()
	role := fmt.Sprintf("sleeper_%x", rand.Uint64())
	for _, sql := range []string{"create role " + role + " login password 'secret'", "grant usage on schema pgwake to " + role} {
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if _, err := pool.Exec(context.Background(), "drop owned by "+role+"; drop role "+role, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Error(err)
		}
	})
	for _, group := range memberOf {
		if _, err := pool.Exec(t.Context(), "grant "+group+" to "+role); err != nil {
			t.Fatal(err)
		}
	}
	config := pool.Config()
	config.ConnConfig.User, config.ConnConfig.Password = role, "secret"
	as, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(as.Close)
	return as
}

// Sleepers that follow the rule, arm, look, sleep, miss no row, whatever inserters do meanwhile and whoever is keeper.
func TestGateLosesNoWakeUp(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	const inserters, each = 6, 150
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	var workers, writers sync.WaitGroup
	for range 3 {
		g := newGated(t, pool)
		workers.Go(func() {
			for ctx.Err() == nil {
				arming, err := g.gate.Arm(ctx, g.conn, g, []string{"a"})
				if err != nil {
					return
				}
				// The look: everything there is.
				tag, err := g.conn.Exec(ctx, `update pgwake.tasks set status = 'frozen', retry_at = null, finished_at = clock_timestamp() where status = 'queued'`)
				if err != nil {
					return
				}
				switch {
				case tag.RowsAffected() > 0 && rand.IntN(3) == 0:
					// Full: somebody else's turn.
					if g.gate.Release(ctx, g.conn, g) != nil {
						return
					}
				case tag.RowsAffected() > 0 && rand.IntN(3) == 0:
					if g.gate.Disarm(ctx, g.conn, g) != nil {
						return
					}
				case tag.RowsAffected() == 0 && arming.Standing == notify.Armed:
					select {
					case <-g.rings:
					case <-ctx.Done():
					}
				case tag.RowsAffected() == 0 && arming.Standing != notify.Keeper:
					select { // somebody else is responsible; in place of the word that nobody is
					case <-time.After(time.Duration(rand.IntN(20)) * time.Millisecond):
					case <-ctx.Done():
					}
				}
			}
		})
	}
	for range inserters {
		writers.Go(func() {
			for range each {
				tx, err := pool.Begin(ctx)
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := tx.Exec(ctx, `insert into pgwake.tasks (type) values ('a')`); err != nil {
					t.Error(err)
				}
				if rand.IntN(4) == 0 {
					err = tx.Rollback(ctx)
				} else {
					err = tx.Commit(ctx)
				}
				if err != nil {
					t.Error(err)
				}
				if rand.IntN(10) == 0 {
					time.Sleep(time.Duration(rand.IntN(30)) * time.Millisecond)
				}
			}
		})
	}
	writers.Wait()
	left := func() (n int) {
		if err := pool.QueryRow(t.Context(), `select count(*) from pgwake.tasks where status = 'queued'`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	pgtest.WaitFor(t, 2*time.Second, fmt.Sprintf("no row waits (%d do)", left()), func() bool { return left() == 0 })
	cancel()
	workers.Wait()
}
