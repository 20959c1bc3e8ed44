package migrations_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgwake/pgwake/internal/pgtest"
)

// program finds one of PostgreSQL's client programs.
func program(t *testing.T, name string) string {
	t.Helper()
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	return filepath.Join(pgtest.Server(t).BinDir(), name)
}

func run(t *testing.T, stdin, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program(t, name), args...)
	cmd.Stdin = strings.NewReader(stdin)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, stderr.String())
	}
	return string(out)
}

// needDump skips the test where there is no pg_dump, or an older one than the server, which it refuses.
func needDump(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), program(t, "pg_dump"), "--version").Output()
	if err != nil {
		t.Skipf("pg_dump: %v", err)
	}
	var major int
	if _, err := fmt.Sscanf(string(out), "pg_dump (PostgreSQL) %d", &major); err != nil {
		t.Fatalf("version of pg_dump: %q", out)
	}
	if server := one[int](t, conn, "select current_setting('server_version_num')::int / 10000"); major < server {
		t.Skipf("pg_dump of version %d for a server of version %d", major, server)
	}
}

// A dump is restored whole into an empty database, or its data into a migrated one, and goes on working there.
func TestDump(t *testing.T) {
	t.Parallel()
	const schema = `my "Tasks"`
	const q = `"my ""Tasks"""`
	url := pgtest.NewEmpty(t)
	up(t, url, schema)
	conn := connect(t, url)
	needDump(t, conn)
	exec1(t, conn, "insert into "+q+".tasks (type, unique_key, payload) select 'a', n::text, jsonb_build_object('n', n) from generate_series(1, 6) as n")
	exec1(t, conn, "update "+q+".tasks set status = 'running', holder = id, fence = 7, retry_at = now() + interval '1 h' where unique_key in ('2', '3')")
	exec1(t, conn, "update "+q+".tasks set status = 'paused', fence = 8, retry_at = 'infinity' where unique_key = '4'")
	exec1(t, conn, "update "+q+".tasks set status = 'frozen', fence = 9, retry_at = null where unique_key = '5'")
	exec1(t, conn, "select "+q+".complete_task(id, 7, id) from "+q+".tasks where unique_key = '3'")
	exec1(t, conn, "insert into "+q+".task_types (type) values ('a')")
	const content = "select string_agg(to_jsonb(x)::text, e'\\n' order by x.unique_key) from " + q + ".all_tasks as x"
	before := one[string](t, conn, content)

	for name, args := range map[string][]string{
		"whole": {},
		"data":  {"--data-only", "--exclude-table=*.schema_migrations"},
	} {
		t.Run(name, func(t *testing.T) {
			dump := run(t, "", "pg_dump", append(args, "--dbname="+url)...)
			target := pgtest.NewEmpty(t)
			if name == "data" {
				up(t, target, schema)
			}
			run(t, dump, "psql", "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--dbname="+target)
			conn := connect(t, target)
			if after := one[string](t, conn, content); after != before {
				t.Errorf("restored\n%s\nwant\n%s", after, before)
			}
			exec1(t, conn, "select "+q+".enqueue('a', unique_key => '1')")
			exec1(t, conn, "select "+q+".enqueue('a', unique_key => '7')")
			exec1(t, conn, "select "+q+".ensure_partitions(16)")
			if !one[bool](t, conn, "select "+q+".complete_task(id, 7, id) from "+q+".tasks where unique_key = '2'") {
				t.Error("not completed")
			}
			if n := one[int](t, conn, "select count(*) from "+q+".tasks"); n != 5 {
				t.Errorf("%d live tasks", n)
			}
			if done := up(t, target, schema); len(done) != 0 {
				t.Errorf("up applies %v", done)
			}
			down(t, target, schema, 0)
		})
	}
}
