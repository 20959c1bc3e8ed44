package doctor

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgwake/pgwake/internal/embeddedpg"
	"github.com/pgwake/pgwake/internal/pgtest"
	"github.com/pgwake/pgwake/internal/pgtest/pooler"
	"github.com/pgwake/pgwake/migrations"
	"github.com/pgwake/pgwake/notify"
)

func TestPooler(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	direct := p.config.Conn
	parse := func(url string) *pgx.ConnConfig {
		config, err := pgx.ParseConfig(url)
		if err != nil {
			t.Fatal(err)
		}
		return config
	}
	p.config.Conn = parse(pooler.Start(t, direct.ConnString(), "transaction", ""))
	found := p.examine()
	for name, want := range map[string]Status{"pooler": Warn, "listener": Fail, "schema": OK, "triggers": OK, "partitions": OK, "gate": OK, "clock": OK} {
		if f := found[name]; f.Status != want {
			t.Errorf("through a pooler, %s: %+v, want %s", name, f, want)
		}
	}
	for _, name := range []string{"pooler", "listener"} {
		if f := found[name]; !strings.Contains(f.Do, "worker.Config.ListenerURL") || !strings.Contains(f.Text, "transaction mode") {
			t.Errorf("%s: %+v", name, f)
		}
	}
	p.config.Listener = direct
	p.expect("pooler", OK, "direct")
	p.expect("listener", OK)

	p.config.Listener = parse(pooler.Start(t, direct.ConnString(), "session", ""))
	p.expect("pooler", Warn)
	p.expect("listener", OK)
}

func TestClock(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	p.expect("clock", OK)
	p.config.now = func() time.Time { return time.Now().Add(-time.Hour) }
	p.expect("clock", Warn, "behind the server's", "NTP")
}

func TestGateOpen(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	p.expect("gate", OK, "open")
	p.worker("alpha", 0, 1, 0, "a", "b")
	p.worker("beta", 0, 1, 1, "c") // is full
	p.expect("gate", Warn, `"a", "b"`, "none is to be woken")

	conn := p.session("pgwake alpha")
	gate := notify.NewGate(pgtest.Schema, "tasks")
	if _, err := gate.Arm(t.Context(), conn, "sleeper", []string{"a", "b"}); err != nil {
		t.Fatal(err)
	}
	p.expect("gate", OK, "2 buckets kept, 2 of them armed", fmt.Sprintf("pgwake alpha (pid %d): 2", conn.PgConn().PID()))
	if err := gate.Disarm(t.Context(), conn, "sleeper"); err != nil {
		t.Fatal(err)
	}
	p.expect("gate", OK, "2 looked after without rings")
	p.config.limits.keeper = time.Microsecond
	p.expect("gate", Warn, "stopped or cut off", fmt.Sprintf("select pg_terminate_backend(%d)", conn.PgConn().PID()))
}

func TestArming(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	p.config.limits.commit = 200 * time.Millisecond
	p.expect("arming", OK)

	p.run(p.session("prepares"), `begin`, `insert into pgwake.tasks (type) values ('a'), ('b')`, `prepare transaction 'it''s left'`)
	slow := p.session("slow")
	p.run(slow, `begin`, `insert into pgwake.tasks (type) values ('c')`, `set constraints all immediate`)
	p.age(p.config.limits.commit)
	f := p.expect("arming", Fail, "prepared transaction 'it''s left'", "rollback prepared 'it''s left'",
		"slow (pid", fmt.Sprintf("select pg_terminate_backend(%d)", slow.PgConn().PID()))
	if strings.Count(f.Text, "prepared transaction") != 1 {
		t.Errorf("one transaction is told more than once: %s", f.Text)
	}
	p.exec(`rollback prepared 'it''s left'`)
	p.expect("arming", Warn, "idle in transaction")
	p.run(slow, `rollback`)
	p.expect("arming", OK)
}

func TestSnapshots(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	p.config.limits.snapshot = 300 * time.Millisecond
	p.expect("snapshots", OK)
	p.run(p.session("report"), `begin isolation level repeatable read`, `select count(*) from pgwake.tasks`)
	p.run(p.session("prepares"), `begin`, `create table public.t ()`, `prepare transaction 'forgotten'`)
	p.cleanup(`rollback prepared 'forgotten'`)
	p.age(p.config.limits.snapshot)
	p.expect("snapshots", Warn, "report (pid", "prepared transaction 'forgotten'", "pg_terminate_backend", "rollback prepared 'forgotten'", "dead rows")
	p.config.limits.snapshot = 5 * time.Millisecond // an hour, as it were
	p.expect("snapshots", Fail)
}

// A standby's feedback stays in its slot when it is gone, and holds dead rows for ever.
func TestSlotHoldsSnapshot(t *testing.T) {
	t.Parallel()
	server := start(t, map[string]string{"wal_level": "replica", "max_wal_senders": "2"})
	p := patientOn(t, openPool(t, server))
	p.config.limits.transients = 1
	p.exec(`select pg_create_physical_replication_slot('left', true)`)
	var xmin uint32
	if err := p.pool.QueryRow(t.Context(), `select pg_current_xact_id()::text::bigint`).Scan(&xmin); err != nil {
		t.Fatal(err)
	}

	config, err := pgx.ParseConfig(server.URL("postgres") + "&replication=true")
	if err != nil {
		t.Fatal(err)
	}
	standby, err := pgconn.ConnectConfig(t.Context(), &config.Config)
	if err != nil {
		t.Fatal(err)
	}
	f := standby.Frontend()
	f.Send(&pgproto3.Query{String: `START_REPLICATION SLOT left PHYSICAL 0/1000000`})
	feedback := binary.BigEndian.AppendUint64([]byte{'h'}, 0)
	feedback = binary.BigEndian.AppendUint32(feedback, xmin)
	feedback = append(feedback, make([]byte, 12)...) // epoch, and no xmin of catalogs
	f.Send(&pgproto3.CopyData{Data: feedback})
	if err := f.Flush(); err != nil {
		t.Fatal(err)
	}
	pgtest.WaitFor(t, 10*time.Second, "the feedback in the slot", func() bool {
		var n int
		if err := p.pool.QueryRow(t.Context(), `select count(*) from pg_replication_slots where xmin is not null`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n == 1
	})
	_ = standby.Close(t.Context())
	for range 5 {
		p.exec(`select pg_current_xact_id()`)
	}
	p.expect("snapshots", Warn, "replication slot left", "transactions back", "pg_drop_replication_slot('left')")
}

func TestNotifications(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	p := patientOn(t, openPool(t, server))
	p.config.limits.queue = 1e-9
	p.run(p.session("deaf"), `listen c`, `begin`, `select 1`)
	p.exec(`select pg_notify('c', repeat('x', 7000) || g) from generate_series(1, 500) as g`)
	p.age(time.Second)
	p.expect("notifications", Fail, "deaf (pid", "pg_terminate_backend")
	p.config.limits.queue = defaults.queue
	p.expect("notifications", OK)
}

func TestVacuum(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	p.expect("vacuum", OK)
	p.config.limits.dead = 100
	p.exec(`alter table pgwake.tasks set (autovacuum_enabled = off)`)
	p.exec(`insert into pgwake.tasks (type) select 'a' from generate_series(1, 1000)`)
	p.exec(`delete from pgwake.tasks`)
	f := p.expect("vacuum", Fail, "autovacuum is off for the task table")
	p.exec(f.Do)
	p.exec(`alter table pgwake.tasks set (autovacuum_vacuum_threshold = 1000000)`)
	pgtest.WaitFor(t, 20*time.Second, "the dead rows are counted", func() bool {
		var n int
		if err := p.pool.QueryRow(t.Context(), `select n_dead_tup from pg_stat_user_tables where relname = 'tasks'`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n > 100
	})
	p.expect("vacuum", Warn, "does not keep up", `vacuum "pgwake"."tasks"`)
}

// start starts a server of the test's own with settings.
func start(t testing.TB, settings map[string]string) *embeddedpg.Server {
	t.Helper()
	if os.Getenv("TEST_DATABASE_URL") != "" {
		t.Skip("needs a server of its own")
	}
	server, err := embeddedpg.Start(t.Context(), embeddedpg.Config{Settings: settings})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	if _, err := migrations.Up(t.Context(), server.URL("postgres"), pgtest.Schema); err != nil {
		t.Fatal(err)
	}
	return server
}

func openPool(t testing.TB, server *embeddedpg.Server) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), server.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// Each of these is a server that somebody set up badly.
func TestServerSettings(t *testing.T) {
	t.Parallel()
	server := start(t, map[string]string{
		"max_connections": "12", "autovacuum": "off", "idle_session_timeout": "10min", "fsync": "off", "full_page_writes": "off",
	})
	p := patientOn(t, openPool(t, server))
	p.expect("settings", Warn, "fsync is off", "full_page_writes is off", "idle_session_timeout is 10min")
	p.expect("vacuum", Fail, "autovacuum is off on this server")
	p.expect("connections", OK)
	for i := range 5 {
		p.run(p.session(fmt.Sprint("many ", i)), `select 1`)
	}
	p.expect("connections", Fail, "of 9 in use")

	p.exec(`alter system set synchronous_commit = on`)
	p.exec(`alter system set synchronous_standby_names = 'nobody'`)
	p.exec(`select pg_reload_conf()`)
	pgtest.WaitFor(t, 10*time.Second, "the setting to be in effect", func() bool {
		var s string
		if err := p.pool.QueryRow(t.Context(), `show synchronous_standby_names`).Scan(&s); err != nil {
			t.Fatal(err)
		}
		return s == "nobody"
	})
	p.expect("settings", Fail, "no standby is connected: commits hang")
}

func TestReadOnly(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	p.expect("server", OK)
	p.exec(`do $$ begin execute format('alter database %I set default_transaction_read_only = on', current_database()); end $$`)
	p.expect("server", Fail, "default_transaction_read_only")
}

// A role with no rights at all is told what it may not see, and nothing breaks.
func TestLowPrivileges(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	p := patientOn(t, openPool(t, server))
	p.exec(`create role nobody login`)
	p.run(p.session("other"), `begin`, `insert into pgwake.tasks (type) values ('c')`, `set constraints all immediate`)
	u, err := url.Parse(server.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.User("nobody")
	if p.config.Conn, err = pgx.ParseConfig(u.String()); err != nil {
		t.Fatal(err)
	}
	found := p.examine()
	for name, f := range found {
		if f.Status == Fail {
			t.Errorf("%s: %+v", name, f)
		}
	}
	for _, name := range []string{"schema", "workers", "types", "backlog"} {
		if f := found[name]; f.Status != Warn || !strings.Contains(f.Text, "not seen") || !strings.Contains(f.Do, "grant") {
			t.Errorf("%s: %+v", name, f)
		}
	}

	p.exec(`grant usage on schema pgwake to nobody`)
	p.exec(`grant select on all tables in schema pgwake to nobody`)
	p.expect("schema", OK)
	p.expect("arming", Warn, "may not see for how long")
	p.expect("snapshots", OK, "hidden from this role")
}

// A check that hangs ends at its deadline, and the others go on.
func TestDeadline(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	p.config.limits.check = 300 * time.Millisecond
	p.run(p.session("locks"), `begin`, `lock table pgwake.workers in access exclusive mode`)
	found := p.examine()
	for name, want := range map[string]Status{"workers": Fail, "types": Fail, "partitions": OK, "settings": Warn} {
		if f := found[name]; f.Status != want {
			t.Errorf("%s: %+v, want %s", name, f, want)
		}
	}
}

func TestStopped(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	Run(ctx, p.config, func(Finding) {
		n++
		cancel()
	})
	if n != 1 {
		t.Errorf("%d findings after the end of the context, want 1", n)
	}
}
