package pgwake

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pgwake/pgwake/notify"
)

// ear is a connection that listens for a table and has armed its gate for every type.
type ear struct{ conn *pgx.Conn }

func (b *bundle) listen(t *testing.T) *ear {
	t.Helper()
	conn, err := pgx.ConnectConfig(t.Context(), b.pool.Config().ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	if _, err := conn.Exec(t.Context(), "listen "+pgx.Identifier{notify.Channel(DefaultSchema, "tasks")}.Sanitize()+
		"; select pg_advisory_lock('pgwake.tasks'::regclass::oid::integer, bucket) from generate_series(0, 1023) as bucket"); err != nil {
		t.Fatal(err)
	}
	return &ear{conn}
}

// heard returns what was said since the last call. A ring of its own marks the end: notifications come in the order of
// commits.
func (e *ear) heard(t *testing.T, b *bundle) []string {
	t.Helper()
	end := uuid.NewString()
	b.exec(t, "select pg_notify($1, $2)", notify.Channel(DefaultSchema, "tasks"), end)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var list []string
	for {
		n, err := e.conn.WaitForNotification(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if n.Payload == end {
			return list
		}
		list = append(list, n.Payload)
	}
}

// Every way of inserting wakes those who listen, once a type and transaction, and says no more than the type.
func TestInsertRings(t *testing.T) {
	t.Parallel()
	b := newBundle(t, ClientConfig{})
	e := b.listen(t)
	long := strings.Repeat("😀", 50)
	for what, tc := range map[string]struct {
		insert func()
		want   []string
	}{
		"plain":    {func() { b.exec(t, "insert into pgwake.tasks (type) values ('a'), ('a'), ('b')") }, []string{"a", "b"}},
		"function": {func() { b.exec(t, "select pgwake.enqueue('f')") }, []string{"f"}},
		"client":   {func() { b.enqueue(t, task(long, ""), nil) }, []string{long}},
		"copy": {func() {
			if _, err := b.EnqueueMany(t.Context(), slices.Repeat([]NewTask{{task("c", ""), nil}}, 100)); err != nil {
				t.Fatal(err)
			}
		}, []string{"c"}},
		"soon":  {func() { b.enqueue(t, task("s", ""), &EnqueueOptions{Delay: 50 * time.Second}) }, []string{"s"}},
		"later": {func() { b.enqueue(t, task("l", ""), &EnqueueOptions{Delay: 70 * time.Second}) }, nil},
		"quiet": {func() {
			b.exec(t, "begin; set local pgwake.wake = off; insert into pgwake.tasks (type) values ('q'); commit")
		}, nil},
		"rolled back": {func() { b.exec(t, "begin; insert into pgwake.tasks (type) values ('r'); rollback") }, nil},
	} {
		if strings.HasPrefix(what, "quiet") || what == "rolled back" {
			// Several statements in one go need the simple protocol.
			conn, err := b.pool.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			sql := map[string]string{
				"quiet":       "begin; set local pgwake.wake = off; insert into pgwake.tasks (type) values ('q'); commit",
				"rolled back": "begin; insert into pgwake.tasks (type) values ('r'); rollback",
			}[what]
			if _, err := conn.Conn().PgConn().Exec(t.Context(), sql).ReadAll(); err != nil {
				t.Error(err)
			}
			conn.Release()
		} else {
			tc.insert()
		}
		got := e.heard(t, b)
		slices.Sort(got)
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: heard %q, want %q", what, got, tc.want)
		}
	}
}

// Whatever the inserting role's search_path puts before the system's own functions, and whatever it may not do.
func TestRingOfAnyRole(t *testing.T) {
	t.Parallel()
	b := newBundle(t, ClientConfig{})
	e := b.listen(t)
	role := "inserter_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	b.exec(t, "create role "+role)
	t.Cleanup(func() {
		if _, err := b.pool.Exec(context.Background(), "drop owned by "+role+"; drop role "+role, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Error(err)
		}
	})
	for _, sql := range []string{
		"create schema trap",
		"create function trap.md5(text) returns text language sql as $$ select 'trapped' $$",
		"create function trap.pg_notify(text, text) returns void language sql as $$ select 1 / 0 $$",
		"create function trap.current_setting(text, boolean) returns text language sql as $$ select 'off' $$",
		"create function trap.concat(text, text) returns text language sql as $$ select 'trapped' $$",
		"create operator trap.|| (leftarg = text, rightarg = text, function = trap.concat)",
		"grant usage on schema pgwake, trap to " + role,
		"grant insert on pgwake.tasks to " + role,
	} {
		b.exec(t, sql)
	}
	for _, path := range []string{"trap, pg_catalog", "''", "pg_temp"} {
		if _, err := b.pool.Exec(t.Context(), "begin; set local role "+role+"; set local search_path to "+path+
			"; insert into pgwake.tasks (type) values ('a'); commit", pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		if got := e.heard(t, b); !slices.Equal(got, []string{"a"}) {
			t.Errorf("%s: heard %q", path, got)
		}
	}
}

// Which updates ring, and which must not.
func TestUpdateRings(t *testing.T) {
	t.Parallel()
	b := newBundle(t, ClientConfig{})
	e := b.listen(t)
	const (
		queued  = "status = 'queued', retry_at = now() - interval '1 s', holder = null"
		future  = "status = 'queued', retry_at = now() + interval '1 h', holder = null"
		running = "status = 'running', retry_at = now() + interval '15 s', holder = id, fence = 1"
		expired = "status = 'running', retry_at = now() - interval '1 s', holder = id, fence = 1"
		paused  = "status = 'paused', retry_at = 'infinity', holder = null"
		frozen  = "status = 'frozen', retry_at = null, holder = null"
	)
	for what, tc := range map[string]struct {
		from, update string
		rings        bool
	}{
		"claim":               {queued, "status = 'running', retry_at = now() + interval '15 s', holder = id, fence = fence + 1, attempt = attempt + 1", false},
		"claim expired":       {expired, "status = 'running', retry_at = now() + interval '15 s', fence = fence + 1", false},
		"renew":               {running, "retry_at = now() + interval '30 s'", false},
		"renew an hour":       {running, "retry_at = now() + interval '1 h'", false},
		"freeze":              {running, frozen, false},
		"requeue":             {running, "status = 'queued', retry_at = now(), holder = null", true},
		"retry after lease":   {running, "status = 'queued', retry_at = now() + interval '30 s', holder = null", true},
		"snooze beyond lease": {running, "status = 'queued', retry_at = now() + interval '59 s', holder = null", true},
		"snooze for an hour":  {running, future, false},
		"due now":             {future, "retry_at = now()", true},
		"due soon":            {future, "retry_at = now() + interval '50 s'", true},
		"due later":           {queued, "retry_at = now() + interval '1 s'", false},
		"due much earlier":    {future, "retry_at = now() + interval '10 min'", false},
		"type of a due row":   {queued, "type = 'changed'", true},
		"type of a late row":  {future, "type = 'changed'", false},
		"same type":           {queued, "type = type, status = status, retry_at = retry_at", false},
		"priority":            {queued, "priority = 1", true},
		"payload":             {queued, "payload = '[]'", false},
		"pause queued":        {queued, paused, false},
		"pause running":       {running, paused, false},
		"resume":              {paused, "status = 'queued', retry_at = now()", true},
		"resume for later":    {paused, future, false},
		"retry frozen":        {frozen, "status = 'queued', retry_at = now()", true},
		"frozen for later":    {frozen, future, false},
		"frozen to paused":    {frozen, paused, false},
	} {
		id := b.enqueue(t, task("t", ""), nil)
		b.exec(t, "update pgwake.tasks set "+tc.from+" where id = $1", id)
		e.heard(t, b)
		b.exec(t, "update pgwake.tasks set "+tc.update+" where id = $1", id)
		var want []string
		if tc.rings {
			want = []string{one[string](t, b.pool, "select type from pgwake.tasks where id = $1", id)}
		}
		if got := e.heard(t, b); !slices.Equal(got, want) {
			t.Errorf("%s: heard %q, want %q", what, got, want)
		}
	}
	// A settlement deletes.
	id := b.enqueue(t, task("t", ""), nil)
	b.exec(t, "update pgwake.tasks set "+running+" where id = $1", id)
	e.heard(t, b)
	if !one[bool](t, b.pool, "select pgwake.complete_task($1, 1, $1)", id) {
		t.Error("not completed")
	}
	if got := e.heard(t, b); len(got) != 0 {
		t.Errorf("settlement: heard %q", got)
	}
}

// Large payloads, long type names and many types in one transaction: the commit always succeeds, since a notification
// carries the type and nothing else.
func TestLargeTasks(t *testing.T) {
	t.Parallel()
	b := newBundle(t, ClientConfig{})
	e := b.listen(t)
	for _, size := range []int{7 << 10, 7_999, 8_000, 8_001, 1 << 20, 50 << 20} {
		id := b.enqueue(t, typed{Text: strings.Repeat("x", size)}, nil)
		if n := one[int](t, b.pool, "select length(payload ->> 'text') from pgwake.tasks where id = $1", id); n != size {
			t.Errorf("%d bytes stored, sent %d", n, size)
		}
		if got := e.heard(t, b); !slices.Equal(got, []string{"typed"}) {
			t.Errorf("%d: heard %.100q", size, got)
		}
	}
	for _, name := range []string{"x", strings.Repeat("x", 63), strings.Repeat("x", 64), strings.Repeat("x", 200), strings.Repeat("😀", 16), strings.Repeat("😀", 50), "a'b\"c\\d\n"} {
		b.enqueue(t, task(name, ""), nil)
		if got := e.heard(t, b); !slices.Equal(got, []string{name}) {
			t.Errorf("heard %q, want %q", got, name)
		}
	}
	if _, err := b.pool.Exec(t.Context(), "insert into pgwake.tasks (type) values (repeat('x', 201))"); err == nil {
		t.Error("a type of 201 bytes")
	}

	want := map[string]bool{}
	list := make([]NewTask, 10_000)
	for i := range list {
		name := fmt.Sprintf("%0196d", i) + "😀"
		want[name], list[i] = true, NewTask{task(name, ""), nil}
	}
	if _, err := b.EnqueueMany(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, payload := range e.heard(t, b) {
		got[payload] = true
		if len(payload) > 200 {
			t.Errorf("payload of %d bytes", len(payload))
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("heard %d types", len(got))
	}
}

func TestTableRefuses(t *testing.T) {
	t.Parallel()
	b := newBundle(t, ClientConfig{})
	for _, status := range []Status{Running, Paused, Frozen, Succeeded, Cancelled, "other"} {
		for _, sql := range []string{
			"insert into pgwake.tasks (type, status) values ('a', $1)",
			"insert into pgwake.tasks (type, status, retry_at) values ('a', $1, 'infinity')",
		} {
			if _, err := b.pool.Exec(t.Context(), sql, status); err == nil {
				t.Errorf("inserted as %s", status)
			}
		}
	}
	id := b.enqueue(t, typed{}, nil)
	if _, err := b.pool.Exec(t.Context(), "update pgwake.tasks set created_at = created_at - interval '1 s'"); err == nil || !strings.Contains(err.Error(), "created_at") {
		t.Error(err)
	}
	b.exec(t, "update pgwake.tasks set created_at = created_at, priority = 1 where id = $1", id)
	if n := one[int](t, b.pool, "select count(*) from pgwake.tasks"); n != 1 {
		t.Errorf("%d tasks", n)
	}
}
