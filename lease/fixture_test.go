package lease_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/internal/pgtest"
	"github.com/pgwake/pgwake/lease"
)

// patience is how long a test waits for what must come.
const patience = 30 * time.Second

var (
	holderA = uuid.MustParse("aaaaaaaa-aaaa-4aaa-8aaa-aaaaaaaaaaaa").String()
	holderB = uuid.MustParse("bbbbbbbb-bbbb-4bbb-8bbb-bbbbbbbbbbbb").String()
)

// fixture is a queue on a table in a database of its own.
type fixture struct {
	*lease.Queue
	table lease.Table
	pool  *pgxpool.Pool
	next  int
}

// kinds are the tables under test: pgwake's own; one with nothing but key, state and time, where the lease's value is
// the token; and one with text keys and names that need quoting, which has a fence but no holder, and types but no
// priorities.
var kinds = map[string]struct {
	ddl   string
	table lease.Table
}{
	"own": {"", pgwake.Table(pgtest.Schema)},
	"plain": {
		`create table public.jobs (id bigint primary key, state text not null, at timestamptz)`,
		lease.Table{
			Name: pgx.Identifier{"public", "jobs"}, Key: "id", KeyType: "bigint", Status: "state", RetryAt: "at",
			States: lease.States{Queued: "new", Running: "busy", Paused: "held", Frozen: "stuck", Final: []string{"done"}},
		},
	},
	"odd": {
		`create schema "My ""Schema";
		create table "My ""Schema"."User Tasks" (
		  "order" text primary key, "State" text not null, "due--@x" timestamptz, "select" text, "a.b" bigint,
		  "Attempt #" integer, "{{.Key}}" smallint, "last'error" text, "Errors" jsonb, "$1" text default 'extra')`,
		lease.Table{
			Name: pgx.Identifier{`My "Schema`, "User Tasks"}, Key: "order", KeyType: "text", Status: "State", RetryAt: "due--@x",
			States: lease.States{Queued: "it's new", Running: "@busy", Paused: "held; --", Frozen: `st"uck`, Final: []string{"done", "go'ne"}},
			Type:   "select", Fence: "a.b", Attempt: "Attempt #", Lost: "{{.Key}}", LastError: "last'error", Errors: "Errors",
			Columns: []string{"$1"},
		},
	},
}

func newFixture(t *testing.T, kind string) *fixture {
	t.Helper()
	f := &fixture{table: kinds[kind].table, pool: pgtest.New(t)}
	// As on a worker's connections.
	f.exec(t, `do $$ begin
		execute format('alter database %I set plan_cache_mode = force_custom_plan', current_database());
		execute format('alter database %I set jit = off', current_database());
	end $$`)
	f.pool.Reset()
	if ddl := kinds[kind].ddl; ddl != "" {
		f.exec(t, ddl)
	}
	var err error
	if f.Queue, err = lease.New(f.table); err != nil {
		t.Fatal(err)
	}
	return f
}

// each runs a test on every kind of table.
func each(t *testing.T, test func(t *testing.T, f *fixture)) {
	for kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			test(t, newFixture(t, kind))
		})
	}
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }

// sql replaces T by the table, K, S, R, F by its columns key, status, retry_at, fence, each standing alone after a colon.
func (f *fixture) sql(text string) string {
	return strings.NewReplacer(":T", f.table.Name.Sanitize(), ":K", quote(f.table.Key), ":S", quote(f.table.Status),
		":R", quote(f.table.RetryAt), ":F", quote(f.table.Fence)).Replace(text)
}

func (f *fixture) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := f.pool.Exec(t.Context(), f.sql(sql), args...); err != nil {
		t.Fatalf("%s: %v", f.sql(sql), err)
	}
}

// one reads one value.
func one[V any](t *testing.T, f *fixture, sql string, args ...any) V {
	t.Helper()
	rows, _ := f.pool.Query(t.Context(), f.sql(sql), args...)
	v, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[V])
	if err != nil {
		t.Fatalf("%s: %v", f.sql(sql), err)
	}
	return v
}

// item is a row to insert.
type item struct {
	typ      string
	priority int
	due      time.Duration // from now
}

// add inserts a queued row and returns its key. Columns that a table does not have are left out.
func (f *fixture) add(t *testing.T, i item) string {
	t.Helper()
	return f.addMany(t, []item{i})[0]
}

func (f *fixture) addMany(t *testing.T, items []item) []string {
	t.Helper()
	var keys, types []string
	var priorities []int16
	var dues []time.Duration
	for _, i := range items {
		f.next++
		key := fmt.Sprint(f.next)
		switch f.table.KeyType {
		case "uuid":
			key = uuid.NewString()
		case "text":
			key = fmt.Sprintf("k'%d \"ü", f.next)
		}
		if i.typ == "" {
			i.typ = "a"
		}
		keys, types, priorities, dues = append(keys, key), append(types, i.typ), append(priorities, int16(i.priority)), append(dues, i.due)
	}
	columns, values := ":K, :S, :R", "k::"+f.table.KeyType+", @queued, clock_timestamp() + d"
	for _, c := range []struct{ name, value string }{
		{f.table.Type, "t"}, {f.table.Priority, "p"}, {f.table.Attempt, "0"}, {f.table.Lost, "0"}, {f.table.Fence, "0"}, {f.table.Errors, "'[]'"},
	} {
		if c.name != "" {
			columns, values = columns+", "+quote(c.name), values+", "+c.value
		}
	}
	f.exec(t, "insert into :T ("+columns+") select "+values+
		" from unnest(@keys::text[], @types::text[], @priorities::smallint[], @dues::interval[]) as i(k, t, p, d)",
		pgx.NamedArgs{"keys": keys, "types": types, "priorities": priorities, "dues": dues, "queued": f.table.States.Queued})
	return keys
}

// row is the whole row as JSON, null if it is gone.
func (f *fixture) row(t *testing.T, key string) string {
	t.Helper()
	return one[string](t, f, "select coalesce((select to_jsonb(x) from :T as x where :K::text = $1), 'null')::text", key)
}

// column is one column of a row, as text.
func (f *fixture) column(t *testing.T, key, column string) string {
	t.Helper()
	return one[string](t, f, "select coalesce((select "+quote(column)+"::text from :T where :K::text = $1), '')", key)
}

// remaining is the time until the row's retry_at by the database's clock.
func (f *fixture) remaining(t *testing.T, key string) time.Duration {
	t.Helper()
	return one[time.Duration](t, f, "select :R - clock_timestamp() from :T where :K::text = $1", key)
}

func (f *fixture) opts(limit int) lease.ClaimOptions {
	o := lease.ClaimOptions{Types: []string{"a", "b", "c"}, Holder: holderA, Worker: "w", Limit: limit, Lease: time.Minute}
	if len(f.table.Columns) > 0 {
		o.Scan = func(*lease.Lease) []any {
			dest := make([]any, len(f.table.Columns))
			for i := range dest {
				dest[i] = new(any)
			}
			return dest
		}
	}
	return o
}

func (f *fixture) claim(t *testing.T, limit int) []*lease.Lease {
	t.Helper()
	leases, err := f.Claim(t.Context(), f.pool, f.opts(limit))
	if err != nil {
		t.Fatal(err)
	}
	return leases
}

// claimExpired takes over expired rows, suspects or not.
func (f *fixture) claimExpired(ctx context.Context, db lease.DB, opts lease.ClaimOptions) ([]*lease.Lease, error) {
	leases, err := f.ClaimExpired(ctx, db, opts)
	if err != nil {
		return nil, err
	}
	suspects, err := f.ClaimSuspects(ctx, db, opts)
	return append(leases, suspects...), err
}

// hold inserts a row due now and claims it.
func (f *fixture) hold(t *testing.T) *lease.Lease {
	t.Helper()
	return f.holdMany(t, 1)[0]
}

func (f *fixture) holdMany(t *testing.T, n int) []*lease.Lease {
	t.Helper()
	f.addMany(t, make([]item, n))
	leases := f.claim(t, n)
	if len(leases) != n {
		t.Fatalf("claimed %d of %d", len(leases), n)
	}
	slices.SortFunc(leases, func(a, b *lease.Lease) int { return strings.Compare(a.Key, b.Key) })
	return leases
}

// lock opens a transaction that has the rows locked until the test or end ends it.
func (f *fixture) lock(t *testing.T, keys ...string) pgx.Tx {
	t.Helper()
	tx, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	if _, err := tx.Exec(t.Context(), f.sql("select from :T where :K::text = any ($1) for update"), keys); err != nil {
		t.Fatal(err)
	}
	return tx
}

func (f *fixture) expire(t *testing.T, keys ...string) {
	t.Helper()
	f.exec(t, "update :T set :R = clock_timestamp() - interval '1 s' where :K::text = any ($1)", keys)
}

func keysOf(leases []*lease.Lease) []string {
	keys := make([]string, len(leases))
	for i, l := range leases {
		keys[i] = l.Key
	}
	slices.Sort(keys)
	return keys
}

func sorted(keys ...string) []string { return slices.Sorted(slices.Values(keys)) }

func wantKeys(t *testing.T, got, want []string) {
	t.Helper()
	if !slices.Equal(sorted(got...), sorted(want...)) {
		t.Errorf("keys %q, want %q", sorted(got...), sorted(want...))
	}
}

// wantLost asserts that err is an ErrLeaseLost which found the status given; empty: nothing.
func wantLost(t *testing.T, err error, status string) {
	t.Helper()
	var lost *lease.LostError
	if !errors.Is(err, lease.ErrLeaseLost) || !errors.As(err, &lost) {
		t.Errorf("error %v, want ErrLeaseLost", err)
		return
	}
	switch {
	case status == "" && lost.Found != nil:
		t.Errorf("found %+v, want nothing", lost.Found)
	case status != "" && (lost.Found == nil || lost.Found.Status != status):
		t.Errorf("found %+v, want %s", lost.Found, status)
	}
}

// between asserts that d is the time want until an instant set a moment ago.
func between(t *testing.T, what string, d, want time.Duration) {
	t.Helper()
	if d > want || d < want-patience {
		t.Errorf("%s in %s, want %s less the test's own time", what, d, want)
	}
}

func decode(t *testing.T, text string) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return m
}
