package doctor

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/internal/pgtest"
	"github.com/pgwake/pgwake/migrations"
	"github.com/pgwake/pgwake/registry"
	"github.com/pgwake/pgwake/worker"
)

// patient is a database to be examined.
type patient struct {
	testing.TB
	pool   *pgxpool.Pool
	config Config
}

func newPatient(t testing.TB) *patient {
	t.Helper()
	return patientOn(t, pgtest.New(t))
}

func patientOn(t testing.TB, pool *pgxpool.Pool) *patient {
	t.Helper()
	limits := defaults
	limits.echo, limits.settling = 2*time.Second, 100*time.Millisecond
	return &patient{TB: t, pool: pool, config: Config{Conn: pool.Config().ConnConfig, Schema: pgtest.Schema, limits: limits}}
}

func (p *patient) exec(sql string, args ...any) {
	p.Helper()
	if _, err := p.pool.Exec(p.Context(), sql, args...); err != nil {
		p.Fatalf("%s: %v", sql, err)
	}
}

// session opens one beside the pool, closed when the test ends.
func (p *patient) session(name string) *pgx.Conn {
	p.Helper()
	config := p.pool.Config().ConnConfig.Copy()
	config.RuntimeParams["application_name"] = name
	conn, err := pgx.ConnectConfig(p.Context(), config)
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func (p *patient) run(conn *pgx.Conn, statements ...string) {
	p.Helper()
	for _, sql := range statements {
		if _, err := conn.Exec(p.Context(), sql); err != nil {
			p.Fatalf("%s: %v", sql, err)
		}
	}
}

// age waits until all transactions of the database that idle, or are prepared, have done so for long enough.
func (p *patient) age(d time.Duration) {
	p.Helper()
	pgtest.WaitFor(p, 20*time.Second, "transactions of some age", func() bool {
		var old bool
		if err := p.pool.QueryRow(p.Context(), `
			select not exists (
			  select from pg_stat_activity
			  where datname = current_database() and state = 'idle in transaction' and clock_timestamp() - xact_start < $1::interval
			) and not exists (
			  select from pg_prepared_xacts where database = current_database() and clock_timestamp() - prepared < $1::interval
			)`, d).Scan(&old); err != nil {
			p.Fatal(err)
		}
		return old
	})
}

// cleanup runs a statement when the test ends.
func (p *patient) cleanup(sql string) {
	p.Cleanup(func() {
		if _, err := p.pool.Exec(context.Background(), sql); err != nil {
			p.Error(err)
		}
	})
}

// worker makes a row of one that is alive, or was so long ago.
func (p *patient) worker(name string, silent time.Duration, slots, running int, types ...string) {
	p.Helper()
	p.exec(`insert into pgwake.workers (id, name, version, types, slots, running, seen_at) values (gen_random_uuid(), $1, 'v', $2, $3, $4, now() - $5::interval)`,
		name, types, slots, running, silent)
}

// examine makes all checks.
func (p *patient) examine() map[string]Finding {
	p.Helper()
	found := map[string]Finding{}
	Run(p.Context(), p.config, func(f Finding) {
		found[f.Check] = f
		p.Logf("%-4s %-13s %s\n\t→ %s", f.Status, f.Check, f.Text, f.Do)
	})
	for _, name := range Checks() {
		if found[name].Status == "" {
			p.Errorf("no finding of %s", name)
		}
	}
	return found
}

// expect examines and wants the check to find this, in words among which are these, in the text or the advice.
func (p *patient) expect(check string, status Status, words ...string) Finding {
	p.Helper()
	f := p.examine()[check]
	if f.Status != status {
		p.Errorf("%s: %s, want %s: %s", check, f.Status, status, f.Text)
	}
	for _, w := range words {
		if !strings.Contains(f.Text+" → "+f.Do, w) {
			p.Errorf("%s lacks %q: %s → %s", check, w, f.Text, f.Do)
		}
	}
	if f.Status != OK && f.Do == "" {
		p.Errorf("%s says nothing to do: %s", check, f.Text)
	}
	return f
}

// A worker at work on a server with production's settings: nothing to complain of.
func TestHealthy(t *testing.T) {
	t.Parallel()
	url := pgtest.Server(t).URL("postgres")
	if _, err := migrations.Up(t.Context(), url, pgtest.Schema); err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	p := patientOn(t, pool)
	p.config.limits = defaults

	reg := registry.New()
	for _, name := range []string{"one", "two"} {
		if err := registry.RegisterRaw(reg, name, func(context.Context, *pgwake.Run) error { return nil }, nil); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 2 {
		w, err := worker.New(pool, reg, worker.Config{Name: fmt.Sprint("w", i), Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- w.Run(ctx) }()
		t.Cleanup(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
		pgtest.WaitFor(t, 20*time.Second, "worker listens", func() bool { return w.Health().Listening })
	}
	for name, f := range p.examine() {
		if f.Status != OK {
			t.Errorf("%s: %s: %s", name, f.Status, f.Text)
		}
	}
	p.expect("gate", OK, "2 buckets kept", "pgwake w")
	p.expect("workers", OK, "2 workers are alive")

	// Nor while they are busy.
	ctx, cancel := context.WithCancel(t.Context())
	var enqueuers sync.WaitGroup
	for range 4 {
		enqueuers.Go(func() {
			for ctx.Err() == nil {
				if _, err := pool.Exec(ctx, `insert into pgwake.tasks (type) select 'one' from generate_series(1, 1 + (random() * 20)::int)`); err != nil && ctx.Err() == nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 3 {
		found := p.examine()
		for _, name := range []string{"workers", "types", "backlog", "gate", "arming", "snapshots"} {
			if f := found[name]; f.Status != OK {
				t.Errorf("busy: %s: %s: %s", name, f.Status, f.Text)
			}
		}
	}
	cancel()
	enqueuers.Wait()
}

func TestTriggers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, sql string
		status    Status
		words     []string
	}{
		{"as made", `select`, OK, []string{"not ENABLE ALWAYS"}},
		{"always", `alter table pgwake.tasks enable always trigger tasks_ring_insert, enable always trigger tasks_ring_update`, OK, []string{"ENABLE ALWAYS"}},
		{"dropped", `drop trigger tasks_ring_insert on pgwake.tasks`, Fail, []string{"tasks_ring_insert is missing", "migrate up --print"}},
		{"disabled", `alter table pgwake.tasks disable trigger tasks_ring_update`, Fail, []string{"tasks_ring_update is disabled", `alter table "pgwake"."tasks" enable trigger tasks_ring_update`}},
		{"for replicas only", `alter table pgwake.tasks enable replica trigger tasks_ring_insert`, Fail, []string{"tasks_ring_insert is disabled"}},
		{"another function", `create or replace function pgwake.ring() returns trigger language plpgsql as 'begin return null; end'`, Fail, []string{"is not the one that pgwake brought"}},
		{"not deferred", `drop trigger tasks_ring_insert on pgwake.tasks; create trigger tasks_ring_insert after insert on pgwake.tasks for each row execute function pgwake.ring()`, Fail, []string{"tasks_ring_insert is not as pgwake made it"}},
		{"another condition", `drop trigger tasks_ring_insert on pgwake.tasks; create constraint trigger tasks_ring_insert after insert on pgwake.tasks deferrable initially deferred for each row when (new.retry_at < statement_timestamp()) execute function pgwake.ring()`, Fail, []string{"tasks_ring_insert is not as pgwake made it"}},
		{"replica role", `do $$ begin execute format('alter database %I set session_replication_role = replica', current_database()); end $$`, Fail, []string{"session_replication_role is replica"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := newPatient(t)
			p.exec(c.sql)
			p.expect("triggers", c.status, c.words...)
		})
	}
}

func TestSchema(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	p.expect("schema", OK, "which is this program's")
	p.config.Schema = "Not There"
	found := p.examine()
	if f := found["schema"]; f.Status != Fail || f.Do != "pgwake migrate up" {
		t.Errorf("schema: %+v", f)
	}
	for _, name := range []string{"triggers", "partitions", "workers", "types", "backlog", "gate", "arming", "vacuum"} {
		if f := found[name]; f.Status != Warn || f.Text != "not looked at: there are no tables" {
			t.Errorf("%s: %+v", name, f)
		}
	}
	p.config.Schema = pgtest.Schema
	p.exec(`delete from pgwake.schema_migrations where version_id > 1`)
	p.expect("schema", Fail, "this program needs", "pgwake migrate up")
}

func TestOtherSchemaName(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	p.config.Schema = `My "odd" Schema`
	if _, err := migrations.Up(t.Context(), p.pool.Config().ConnString(), p.config.Schema); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"schema", "triggers", "partitions"} {
		if f := p.examine()[name]; f.Status != OK {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

func TestPartitions(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		ahead  int
		how    string
		status Status
		words  string
	}{
		{"today", 0, "drop", Fail, "no partition for today"},
		{"tomorrow", 1, "drop", Warn, "no partition for tomorrow"},
		{"detached", 0, "detach", Fail, "no partition of the archive"},
		{"in two days", 2, "drop", OK, "days ahead"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := newPatient(t)
			part := "pgwake.task_archive_" + time.Now().UTC().AddDate(0, 0, c.ahead).Format("20060102")
			p.exec(`alter table pgwake.task_archive detach partition ` + part)
			if c.how == "drop" {
				p.exec(`drop table ` + part)
			}
			f := p.expect("partitions", c.status, c.words)
			if f.Status != OK { // the advice helps
				p.exec(f.Do)
				p.expect("partitions", OK)
			}
		})
	}
}

func TestFleet(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	p.expect("workers", Warn, "no worker is alive")
	p.worker("alpha", 0, 2, 2, "a")
	p.expect("workers", OK, "1 worker is alive, 2 of 2 slots taken")
	p.worker("beta", 5*time.Minute, 2, 0, "b")
	p.expect("workers", Warn, "beta", "5m")

	p.exec(`insert into pgwake.tasks (type, retry_at) values ('a', now() - interval '30 s'), ('b', now() - interval '20 s'), ('b', now()), ('c', now() + interval '1 hour')`)
	p.expect("types", Warn, `2 of type "b", the oldest for 20`)
	p.expect("backlog", OK, "all slots are taken", `1 of type "a"`)
	p.worker("gamma", 0, 2, 1, "a", "b")
	p.expect("types", OK)
	p.expect("backlog", Warn, `1 of type "a"`, `1 of type "b"`)
	p.exec(`insert into pgwake.tasks (type, status, retry_at, fence, holder) select 'b', 'running', now() + interval '1 minute', 1, id from pgwake.workers where name = 'gamma' union all
		select 'b', 'running', now() + interval '1 minute', 1, id from pgwake.workers where name = 'gamma'`)
	p.expect("backlog", OK, "all slots are taken", `1 of type "b"`)
	p.exec(`delete from pgwake.tasks where status = 'running'`)
	p.exec(`update pgwake.tasks set retry_at = now() - interval '5 minutes' where type = 'b'`)
	p.expect("backlog", Fail, `2 of type "b", the oldest for 5m`)
}
