package migrations_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/pgwake/pgwake/internal/pgtest"
	"github.com/pgwake/pgwake/migrations"
)

// upVariable makes the test binary migrate the database it names, to the schema in schemaVariable, in place of the tests.
const (
	upVariable     = "MIGRATIONS_TEST_UP"
	schemaVariable = "MIGRATIONS_TEST_SCHEMA"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(upVariable); url != "" {
		done, err := migrations.Up(context.Background(), url, os.Getenv(schemaVariable))
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Print(len(done))
		os.Exit(0)
	}
	pgtest.Main(m)
}

// process is another process that runs Up.
func process(t *testing.T, url, schema string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe)
	cmd.Env = append(os.Environ(), upVariable+"="+url, schemaVariable+"="+schema, "GORACE=atexit_sleep_ms=0")
	return cmd
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func exec1(t *testing.T, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func one[V any](t *testing.T, conn *pgx.Conn, sql string, args ...any) V {
	t.Helper()
	rows, _ := conn.Query(t.Context(), sql, args...)
	v, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[V])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

func up(t *testing.T, url, schema string) []migrations.Migration {
	t.Helper()
	done, err := migrations.Up(t.Context(), url, schema)
	if err != nil {
		t.Fatal(err)
	}
	return done
}

func down(t *testing.T, url, schema string, version int) {
	t.Helper()
	if _, err := migrations.Down(t.Context(), url, schema, version); err != nil {
		t.Fatal(err)
	}
}

// catalogue lists everything in a schema, as the database describes it; the schema's own name is taken out.
func catalogue(t *testing.T, conn *pgx.Conn, schema string) []string {
	t.Helper()
	exec1(t, conn, "set search_path to "+pgx.Identifier{schema}.Sanitize())
	defer exec1(t, conn, "reset search_path")
	rows, _ := conn.Query(t.Context(), `
		select 'relation ' || c.relname || ' ' || c.relkind::text || ' ' || coalesce(c.reloptions::text, '')
		  || ' ' || coalesce(pg_get_expr(c.relpartbound, c.oid), '') || ' ' || coalesce(obj_description(c.oid), '')
		from pg_class c where c.relnamespace = $1::text::regnamespace
		union all
		select 'column ' || c.relname || '.' || a.attname || ' ' || a.attnum || ' ' || format_type(a.atttypid, a.atttypmod) || ' ' || a.attnotnull
		  || ' ' || a.attcollation || ' ' || a.attidentity::text || ' ' || coalesce(pg_get_expr(d.adbin, d.adrelid), '') || ' ' || coalesce(col_description(c.oid, a.attnum), '')
		from pg_class c join pg_attribute a on a.attrelid = c.oid left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
		where c.relnamespace = $1::text::regnamespace and a.attnum > 0 and not a.attisdropped
		union all
		select 'function ' || p.proname || ' ' || pg_get_functiondef(p.oid) from pg_proc p where p.pronamespace = $1::text::regnamespace
		union all
		select 'constraint ' || conname || ' ' || pg_get_constraintdef(oid) from pg_constraint where connamespace = $1::text::regnamespace
		union all
		select 'index ' || pg_get_indexdef(i.indexrelid) from pg_index i join pg_class c on c.oid = i.indexrelid where c.relnamespace = $1::text::regnamespace
		union all
		select 'trigger ' || pg_get_triggerdef(g.oid) || g.tgenabled::text from pg_trigger g join pg_class c on c.oid = g.tgrelid
		where c.relnamespace = $1::text::regnamespace and not g.tgisinternal
		union all
		select 'view ' || c.relname || pg_get_viewdef(c.oid) from pg_class c where c.relnamespace = $1::text::regnamespace and c.relkind = 'v'
		union all
		select 'type ' || t.typname || t.typtype::text from pg_type t where t.typnamespace = $1::text::regnamespace
		order by 1`, pgx.Identifier{schema}.Sanitize())
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	for i := range list {
		list[i] = strings.ReplaceAll(list[i], pgx.Identifier{schema}.Sanitize(), "S")
		list[i] = strings.ReplaceAll(list[i], schema, "S")
	}
	return list
}

func same(t *testing.T, what string, got, want []string) {
	t.Helper()
	for _, line := range got {
		if !slices.Contains(want, line) {
			t.Errorf("%s: unexpected %s", what, line)
		}
	}
	for _, line := range want {
		if !slices.Contains(got, line) {
			t.Errorf("%s: missing %s", what, line)
		}
	}
}

func files(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, f := range list {
		if strings.HasSuffix(f.Name(), ".sql") {
			n++
		}
	}
	return n
}

func TestLatestIsTheLastFile(t *testing.T) {
	t.Parallel()
	if n := files(t); migrations.Latest != n || migrations.Required > n {
		t.Errorf("latest %d, required %d, files %d", migrations.Latest, migrations.Required, n)
	}
}

// Twenty processes start on an empty database at once: all succeed, and every migration is applied once.
func TestUpByManyProcesses(t *testing.T) {
	t.Parallel()
	url := pgtest.NewEmpty(t)
	outputs := make([]bytes.Buffer, 20)
	var cmds []*exec.Cmd
	for i := range outputs {
		cmd := process(t, url, "pgwake")
		cmd.Stdout, cmd.Stderr = &outputs[i], &outputs[i]
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		cmds = append(cmds, cmd)
	}
	applied := map[string]int{}
	for i, cmd := range cmds {
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v: %s", err, outputs[i].String())
		}
		applied[outputs[i].String()]++
	}
	if want := map[string]int{fmt.Sprint(migrations.Latest): 1, "0": 19}; !maps.Equal(applied, want) {
		t.Errorf("applied %v, want %v", applied, want)
	}
	conn := connect(t, url)
	if n := one[int](t, conn, "select count(*) from pgwake.schema_migrations where version_id > 0"); n != migrations.Latest {
		t.Errorf("%d versions recorded", n)
	}
	if err := migrations.Check(t.Context(), conn, "pgwake"); err != nil {
		t.Error(err)
	}
	other := pgtest.NewEmpty(t)
	up(t, other, "pgwake")
	same(t, "twenty processes", catalogue(t, conn, "pgwake"), catalogue(t, connect(t, other), "pgwake"))
}

// A process is killed at some moment of Up, again and again: the next Up completes.
func TestUpAfterKill(t *testing.T) {
	t.Parallel()
	for lane := range 5 { // each with 10 of the 50 tries
		t.Run(fmt.Sprint(lane), func(t *testing.T) {
			t.Parallel()
			url := pgtest.NewEmpty(t)
			conn := connect(t, url)
			begin := time.Now()
			if err := process(t, url, "whole").Run(); err != nil {
				t.Fatal(err)
			}
			whole := time.Since(begin)
			killed := 0
			reached := map[int]int{}
			for i := range 10 {
				schema := fmt.Sprintf("kill%d", i)
				if killAfter(t, process(t, url, schema), time.Duration(rand.Int64N(int64(whole)))) {
					killed++
				}
				done := up(t, url, schema)
				reached[migrations.Latest-len(done)]++
				if err := migrations.Check(t.Context(), conn, schema); err != nil {
					t.Error(err)
				}
				if i == 0 {
					same(t, schema, catalogue(t, conn, schema), catalogue(t, conn, "whole"))
				}
			}
			t.Logf("killed %d of 10, tries by the version they had reached: %v", killed, reached)
		})
	}
}

// killAfter starts a process, kills it after a while, and reports whether that was before its end.
func killAfter(t *testing.T, cmd *exec.Cmd, after time.Duration) bool {
	t.Helper()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	timer := time.NewTimer(after)
	defer timer.Stop()
	select {
	case <-timer.C:
		_ = cmd.Process.Kill()
		return <-ended != nil
	case err := <-ended:
		if err != nil {
			t.Fatalf("%v: %s", err, out.String())
		}
		return false
	}
}

func TestDownAndUp(t *testing.T) {
	t.Parallel()
	url := pgtest.NewEmpty(t)
	conn := connect(t, url)
	global := func() []string {
		rows, _ := conn.Query(t.Context(), `
			select 'schema ' || nspname from pg_namespace where nspname !~ '^pg_(toast_)?temp'
			union all select 'relation ' || oid::regclass::text from pg_class where relnamespace = 'public'::regnamespace
			union all select 'function ' || oid::regprocedure::text from pg_proc where pronamespace = 'public'::regnamespace
			union all select 'trigger ' || tgname from pg_trigger
			union all select 'extension ' || extname from pg_extension
			order by 1`)
		list, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	before := global()
	up(t, url, "pgwake")
	first := catalogue(t, conn, "pgwake")
	exec1(t, conn, "insert into pgwake.tasks (type) select 'a' from generate_series(1, 10)")
	down(t, url, "pgwake", 0)
	for _, line := range catalogue(t, conn, "pgwake") {
		if !strings.Contains(line, "schema_migrations") {
			t.Errorf("left behind: %s", line)
		}
	}
	same(t, "database", global(), append(before, "schema pgwake"))
	var version *migrations.VersionError
	if err := migrations.Check(t.Context(), conn, "pgwake"); !errors.As(err, &version) || version.Have != 0 {
		t.Error(err)
	}
	if done := up(t, url, "pgwake"); len(done) != migrations.Latest {
		t.Errorf("applied %v", done)
	}
	same(t, "up again", catalogue(t, conn, "pgwake"), first)
	for v := migrations.Latest - 1; v >= 0; v-- {
		down(t, url, "pgwake", v)
		if got := one[int](t, conn, "select max(version_id) from pgwake.schema_migrations"); got != v {
			t.Errorf("version %d, want %d", got, v)
		}
		list, err := migrations.Status(t.Context(), url, "pgwake")
		if err != nil || len(list) != migrations.Latest {
			t.Fatal(list, err)
		}
		for _, m := range list {
			if m.AppliedAt.IsZero() != (m.Version > v) || m.Name == "" {
				t.Errorf("at version %d: %+v", v, m)
			}
			if at := time.Since(m.AppliedAt).Abs(); m.Version <= v && at > time.Minute {
				t.Errorf("applied %s from now", at)
			}
		}
		up(t, url, "pgwake")
	}
	same(t, "one at a time", catalogue(t, conn, "pgwake"), first)
}

func TestStatusOfNothing(t *testing.T) {
	t.Parallel()
	url := pgtest.NewEmpty(t)
	list, err := migrations.Status(t.Context(), url, "pgwake")
	if err != nil || len(list) != migrations.Latest {
		t.Fatal(list, err)
	}
	for i, m := range list {
		if m.Version != i+1 || !m.AppliedAt.IsZero() {
			t.Errorf("%+v", m)
		}
	}
	if n := one[int](t, connect(t, url), "select count(*) from pg_namespace where nspname = 'pgwake'"); n != 0 {
		t.Error("status made the schema")
	}
}

var oddNames = []string{"Tasks", "tasks", "my-queue", "select", "naïve", `a"b`, "x.y", "ü" + strings.Repeat("n", 61), "it's $$ % {{.}}"}

// Schemas of any name live in one database without knowing of each other.
func TestOddNames(t *testing.T) {
	t.Parallel()
	url := pgtest.NewEmpty(t)
	conn := connect(t, url)
	for _, schema := range oddNames {
		up(t, url, schema)
	}
	for i, schema := range oddNames {
		if err := migrations.Check(t.Context(), conn, schema); err != nil {
			t.Error(err)
		}
		q := pgx.Identifier{schema}.Sanitize()
		// With an empty search_path, as some set it: nothing may depend on it.
		exec1(t, conn, "set search_path to ''")
		for range i {
			exec1(t, conn, "insert into "+q+".tasks (type) values ('plain')")
		}
		exec1(t, conn, "select "+q+".enqueue('function', '{}', unique_key => 'k')")
		exec1(t, conn, "select "+q+".enqueue('function', '{}', unique_key => 'k')")
		exec1(t, conn, "select "+q+".ensure_partitions(20)")
		exec1(t, conn, "update "+q+".tasks set status = 'running', holder = id, fence = 1 where type = 'function'")
		if !one[bool](t, conn, "select "+q+".complete_task(id, 1, id) from "+q+".tasks where type = 'function'") {
			t.Errorf("%s: not completed", schema)
		}
		exec1(t, conn, "reset search_path")
		_, err := conn.Exec(t.Context(), "insert into "+q+".tasks (type, status) values ('x', 'running')")
		if err == nil || !strings.Contains(err.Error(), "inserted as queued") {
			t.Error(schema, err)
		}
	}
	for i, schema := range oddNames {
		q := pgx.Identifier{schema}.Sanitize()
		got := one[string](t, conn, "select format('%s live, %s settled', (select count(*) from "+q+".tasks), (select count(*) from "+q+".task_archive))")
		if want := fmt.Sprintf("%d live, 1 settled", i); got != want {
			t.Errorf("%s: %s, want %s", schema, got, want)
		}
	}
	down(t, url, "Tasks", 0)
	if err := migrations.Check(t.Context(), conn, "tasks"); err != nil {
		t.Error(err)
	}
}

func TestNamesRefused(t *testing.T) {
	t.Parallel()
	url := pgtest.NewEmpty(t)
	for schema, want := range map[string]string{
		"": "empty", strings.Repeat("n", 64): "63 bytes", "ü" + strings.Repeat("n", 62): "63 bytes", "pg_mine": "reserved", "a\x00b": "NUL", "a\xffb": "UTF-8",
	} {
		for what, call := range map[string]func() error{
			"up":     func() error { _, err := migrations.Up(t.Context(), url, schema); return err },
			"down":   func() error { _, err := migrations.Down(t.Context(), url, schema, 0); return err },
			"status": func() error { _, err := migrations.Status(t.Context(), url, schema); return err },
			"sql":    func() error { _, err := migrations.SQL(schema, 0); return err },
		} {
			if err := call(); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s %q: %v, want %q in it", what, schema, err, want)
			}
		}
	}
	if n := one[int](t, connect(t, url), "select count(*) from pg_namespace where nspname !~ '^(pg_|information_schema$|public$)'"); n != 0 {
		t.Errorf("%d schemas made", n)
	}
}

// The script does what Up does, and the two continue each other.
func TestSQL(t *testing.T) {
	t.Parallel()
	url := pgtest.NewEmpty(t)
	conn := connect(t, url)
	script := func(schema string, from int) {
		t.Helper()
		text, err := migrations.SQL(schema, from)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.PgConn().Exec(t.Context(), text).ReadAll(); err != nil {
			t.Fatal(err)
		}
	}
	up(t, url, "by_up")
	want := catalogue(t, conn, "by_up")
	status := func(schema string) (text string) {
		t.Helper()
		list, err := migrations.Status(t.Context(), url, schema)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range list {
			if time.Since(m.AppliedAt).Abs() > time.Minute {
				t.Errorf("%+v", m)
			}
			text += fmt.Sprint(m.Version, m.Name, " ")
		}
		return text
	}
	for _, schema := range []string{"by_script", `a"b`} {
		script(schema, 0)
		same(t, "script", catalogue(t, conn, schema), want)
		if got := status(schema); got != status("by_up") {
			t.Error(got)
		}
		if done := up(t, url, schema); len(done) != 0 {
			t.Errorf("up after the script applies %v", done)
		}
		if err := migrations.Check(t.Context(), conn, schema); err != nil {
			t.Error(err)
		}
		down(t, url, schema, 1)
		script(schema, 1)
		same(t, "script from version 1", catalogue(t, conn, schema), want)
	}
	script("by_up", migrations.Latest)
	same(t, "empty script", catalogue(t, conn, "by_up"), want)
}

func TestCheck(t *testing.T) {
	t.Parallel()
	url := pgtest.NewEmpty(t)
	conn := connect(t, url)
	check := func(want string, have, need int) {
		t.Helper()
		err := migrations.Check(t.Context(), conn, "pgwake")
		var version *migrations.VersionError
		if !errors.As(err, &version) || version.Have != have || version.Need != need || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q in it, have %d, need %d", err, want, have, need)
		}
	}
	check("run 'pgwake migrate up'", 0, migrations.Required)
	exec1(t, conn, "create schema pgwake")
	check("run 'pgwake migrate up'", 0, migrations.Required)
	up(t, url, "pgwake")
	down(t, url, "pgwake", 1)
	check("is at version 1", 1, migrations.Required)
	up(t, url, "pgwake")
	if err := migrations.Check(t.Context(), conn, "pgwake"); err != nil {
		t.Error(err)
	}
	exec1(t, conn, "insert into pgwake.schema_migrations (version_id, is_applied) values ($1, true)", migrations.Latest+1)
	if err := migrations.Check(t.Context(), conn, "pgwake"); err != nil {
		t.Error("newer, compatible:", err)
	}
	if done := up(t, url, "pgwake"); len(done) != 0 {
		t.Errorf("an older program applies %v", done)
	}
	exec1(t, conn, fmt.Sprintf("create or replace function pgwake.schema_compatible_from() returns integer language sql immutable as 'select %d'", migrations.Latest+1))
	check("deploy a newer version of pgwake", migrations.Latest+1, 0)
	exec1(t, conn, "set role pg_monitor")
	var version *migrations.VersionError
	if err := migrations.Check(t.Context(), conn, "pgwake"); err == nil || errors.As(err, &version) || !strings.Contains(err.Error(), "permission") {
		t.Errorf("without rights: %v", err)
	}
}

// The archive's partitions are UTC days, whatever the session's settings, and are made once.
func TestEnsurePartitions(t *testing.T) {
	t.Parallel()
	for name, settings := range map[string]string{
		"Kathmandu": "set timezone = 'Asia/Kathmandu'",
		"Kolkata":   "set timezone = 'Asia/Kolkata'; set datestyle = 'SQL, DMY'", // IST is also Israel's
		"Honolulu":  "set timezone = 'Pacific/Honolulu'; set datestyle = 'German'",
		"Havana":    "set timezone = 'America/Havana'; set datestyle = 'Postgres, MDY'",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := pgtest.NewURL(t)
			conn := connect(t, url)
			exec1(t, conn, "drop table pgwake.task_archive cascade")
			exec1(t, conn, "set search_path to pgwake")
			text, err := os.ReadFile("0002_archive.sql")
			if err != nil {
				t.Fatal(err)
			}
			create := regexpTable(string(text))
			exec1(t, conn, create)
			exec1(t, conn, "reset search_path")
			exec1(t, conn, settings)
			if n := one[int](t, conn, "select pgwake.ensure_partitions()"); n != 15 {
				t.Errorf("made %d", n)
			}
			if n := one[int](t, conn, "select pgwake.ensure_partitions()"); n != 0 {
				t.Errorf("made %d again", n)
			}
			exec1(t, conn, "set timezone = 'UTC'; set datestyle = 'ISO'")
			rows, _ := conn.Query(t.Context(), `
				select c.relname || ' ' || pg_get_expr(c.relpartbound, c.oid)
				from pg_inherits i join pg_class c on c.oid = i.inhrelid where i.inhparent = 'pgwake.task_archive'::regclass`)
			got, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil {
				t.Fatal(err)
			}
			var want []string
			today := one[time.Time](t, conn, "select (clock_timestamp() at time zone 'utc')::date")
			for d := range 15 {
				day := today.AddDate(0, 0, d)
				want = append(want, fmt.Sprintf("task_archive_%s FOR VALUES FROM ('%s 00:00:00+00') TO ('%s 00:00:00+00')",
					day.Format("20060102"), day.Format(time.DateOnly), day.AddDate(0, 0, 1).Format(time.DateOnly)))
			}
			same(t, settings, got, want)
		})
	}
}

// regexpTable cuts the statement that creates the archive out of its migration.
func regexpTable(text string) string {
	_, rest, _ := strings.Cut(text, "create table task_archive")
	body, _, _ := strings.Cut(rest, ";")
	return "create table task_archive" + body
}

func TestEnsurePartitionsAtOnce(t *testing.T) {
	t.Parallel()
	url := pgtest.NewURL(t)
	conn := connect(t, url)
	tomorrow := one[string](t, conn, "select to_char((clock_timestamp() at time zone 'utc')::date + 1, 'YYYYMMDD')")
	exec1(t, conn, "drop table pgwake.task_archive_"+tomorrow)

	// A reader with an open transaction blocks nobody.
	reader := connect(t, url)
	exec1(t, reader, "begin")
	exec1(t, reader, "select count(*) from pgwake.task_archive")
	// Nor does a writer.
	writer := connect(t, url)
	exec1(t, writer, "begin")
	exec1(t, writer, archiveOne)

	made := make([]int, 20)
	var group errgroup.Group
	for i := range made {
		c := connect(t, url)
		group.Go(func() error {
			return c.QueryRow(t.Context(), "select pgwake.ensure_partitions(17)").Scan(&made[i])
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	slices.Sort(made)
	if made[19] != 4 || made[18] != 0 { // tomorrow and three days more
		t.Errorf("made %v", made)
	}
	// While they are open, others settle.
	exec1(t, conn, "set lock_timeout = '5s'")
	exec1(t, conn, archiveOne)
	exec1(t, reader, "commit")
	exec1(t, writer, "rollback")
}

const archiveOne = `insert into pgwake.task_archive (id, type, status, due_at, priority, attempt, fence, payload_bytes, metadata, created_at, finished_at, errors)
	values (gen_random_uuid(), 'a', 'succeeded', now(), 5, 1, 1, 2, '{}', now(), clock_timestamp(), '[]')`

// complete_task makes the partition it needs.
func TestCompleteMakesPartition(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.NewURL(t))
	exec1(t, conn, "insert into pgwake.tasks (type) values ('a')")
	exec1(t, conn, "update pgwake.tasks set status = 'running', holder = id, fence = 7")
	exec1(t, conn, "do $$ declare p regclass; begin for p in select inhrelid::regclass from pg_inherits where inhparent = 'pgwake.task_archive'::regclass loop execute 'drop table ' || p; end loop; end $$")
	if one[bool](t, conn, "select pgwake.complete_task(id, 6, id) from pgwake.tasks") || one[bool](t, conn, "select pgwake.complete_task(id, 7, gen_random_uuid()) from pgwake.tasks") {
		t.Error("a stale lease completes")
	}
	if !one[bool](t, conn, "select pgwake.complete_task(id, 7, id) from pgwake.tasks") {
		t.Error("not completed")
	}
	if s := one[string](t, conn, "select status from pgwake.task_archive"); s != "succeeded" {
		t.Error(s)
	}
}
