package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// modeVariable makes the test binary run one of the functions below in place of the tests.
const modeVariable = "PGTEST_TEST_MODE"

func TestMain(m *testing.M) {
	if mode := os.Getenv(modeVariable); mode != "" {
		os.Exit(run(map[string]func() int{
			"leak":  func() int { go func() { select {} }(); return 0 },
			"clean": func() int { return 0 },
			"fail":  func() int { return 7 },
			"twice": func() int {
				for range 2 {
					r := &recorder{}
					r.run(func() { hostOf(r) })
					fmt.Fprintln(os.Stderr, "said:", r.text)
				}
				return 0
			},
		}[mode], os.Stderr))
	}
	Main(m)
}

// again runs this test binary and returns what it wrote and how it ended.
func again(t *testing.T, env []string, args ...string) (string, int) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, args...)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

func TestMainExits(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		mode string
		code int
		want string
	}{
		{"clean", 0, ""},
		{"fail", 7, ""},
		{"leak", 1, "goroutines left by the tests"},
	} {
		if out, code := again(t, []string{modeVariable + "=" + tc.mode}); code != tc.code || !strings.Contains(out, tc.want) {
			t.Errorf("%s: exit %d, want %d:\n%s", tc.mode, code, tc.code, out)
		}
	}
}

func TestGivenServer(t *testing.T) {
	t.Parallel()
	given, err := pgx.ParseConfig(NewEmpty(t))
	if err != nil {
		t.Fatal(err)
	}
	count := func() (n int) {
		// Only copies and templates of others: this binary's own tests come and go.
		if err := hostOf(t).admin.QueryRow(t.Context(), "select count(*) from pg_catalog.pg_database where datname ~ '^pgwake_template_'").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := count()
	out, code := again(t, []string{urlVariable + "=" + given.ConnString()}, "-test.run=^(TestDatabasesAreApart|TestEmpty)$", "-test.v")
	if code != 0 || !strings.Contains(out, "--- PASS: TestDatabasesAreApart/four") {
		t.Errorf("exit %d:\n%s", code, out)
	}
	if after := count(); after != before {
		t.Errorf("%d templates, before %d", after, before)
	}
}

func TestSetUpFails(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{
		"host=localhost": "must be a URL",
		"postgres://postgres@127.0.0.1:1/postgres": "127.0.0.1:1",
	} {
		out, code := again(t, []string{modeVariable + "=twice", urlVariable + "=" + given})
		if code != 0 || strings.Count(out, want) < 2 {
			t.Errorf("%s: exit %d:\n%s", given, code, out)
		}
	}
}

func TestDatabasesAreApart(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"one", "two", "three", "four"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := New(t)
			if _, err := pool.Exec(t.Context(), "create table mine (n int)"); err != nil {
				t.Error(err)
			}
			var migrated bool
			if err := pool.QueryRow(t.Context(), "select exists (select from pg_catalog.pg_namespace where nspname = $1)", Schema).Scan(&migrated); err != nil || !migrated {
				t.Errorf("migrated: %v, %v", migrated, err)
			}
			var name string
			if err := pool.QueryRow(t.Context(), "select current_database()").Scan(&name); err != nil || !strings.HasPrefix(name, "testdatabasesareapart_") {
				t.Errorf("database %q, %v", name, err)
			}
		})
	}
}

func TestEmpty(t *testing.T) {
	t.Parallel()
	conn, err := pgx.Connect(t.Context(), NewEmpty(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	var n int
	if err := conn.QueryRow(t.Context(), "select count(*) from pg_catalog.pg_namespace where nspname !~ '^pg_|^information_schema$|^public$'").Scan(&n); err != nil || n != 0 {
		t.Errorf("%d schemas, %v", n, err)
	}
}

// A database goes with its test, even while the test's own connections are open.
func TestDropped(t *testing.T) {
	t.Parallel()
	var name string
	var open *pgx.Conn
	ok := t.Run("user", func(t *testing.T) {
		conn, err := pgx.Connect(t.Context(), NewURL(t))
		if err != nil {
			t.Fatal(err)
		}
		name = conn.Config().Database
		open = conn
	})
	if !ok {
		return
	}
	defer open.Close(context.Background())
	if err := open.Ping(t.Context()); err == nil {
		t.Error("the test's connection outlives it")
	}
	var left bool
	if err := hostOf(t).admin.QueryRow(t.Context(), "select exists (select from pg_catalog.pg_database where datname = $1)", name).Scan(&left); err != nil || left {
		t.Errorf("%s is there: %v, %v", name, left, err)
	}
}

func TestServer(t *testing.T) {
	t.Parallel()
	server := Server(t)
	if err := server.Crash(); err != nil {
		t.Fatal(err)
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), server.URL(""))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	var fsync string
	if err := conn.QueryRow(t.Context(), "show fsync").Scan(&fsync); err != nil || fsync != "on" {
		t.Errorf("fsync %s, %v", fsync, err)
	}
}

func TestDatabaseName(t *testing.T) {
	t.Parallel()
	long := databaseName("Test" + strings.Repeat("Long/ü", 40))
	if len(long) > 63 {
		t.Errorf("%d bytes: %s", len(long), long)
	}
	if a, b := databaseName("TestX"), databaseName("TestX"); a == b || !strings.HasPrefix(a, "testx_") {
		t.Errorf("%s, %s", a, b)
	}
	if got := databaseName("?"); !strings.HasPrefix(got, "test_") {
		t.Error(got)
	}
}

func TestWaitFor(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	WaitFor(t, time.Minute, "the third look", func() bool { return time.Since(begin) > 20*time.Millisecond })

	failed := &recorder{}
	failed.run(func() { WaitFor(failed, 10*time.Millisecond, "nothing", func() bool { return false }) })
	if want := "waited 10ms for nothing"; failed.text != want {
		t.Errorf("%q, want %q", failed.text, want)
	}
}
