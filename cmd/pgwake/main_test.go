package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pgwake/pgwake/internal/pgtest"
	"github.com/pgwake/pgwake/migrations"
)

// beMain makes the test binary be the program, so that signals can be sent to a real process.
const beMain = "PGWAKE_TEST_BE_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(beMain) != "" {
		main()
	}
	for _, name := range []string{"PGWAKE_DATABASE_URL", "DATABASE_URL", "PGWAKE_SCHEMA"} {
		os.Unsetenv(name)
	}
	pgtest.Main(m)
}

// called is what one run of the program gave.
type called struct {
	code           int
	stdout, stderr string
}

// call runs the program with the input and arguments given, the database's URL first if there is one.
func call(t *testing.T, url, stdin string, args ...string) called {
	t.Helper()
	if url != "" {
		args = append([]string{"--database-url", url}, args...)
	}
	var out, errs bytes.Buffer
	code := run(t.Context(), args, strings.NewReader(stdin), &out, &errs)
	if n := strings.Count(errs.String(), "pgwake: "); code != 0 && n == 0 {
		t.Errorf("%q exits %d and says nothing", args, code)
	}
	return called{code, out.String(), errs.String()}
}

// succeed is call for what must exit 0.
func succeed(t *testing.T, url, stdin string, args ...string) called {
	t.Helper()
	c := call(t, url, stdin, args...)
	if c.code != 0 {
		t.Fatalf("%q exits %d: %s", args, c.code, c.stderr)
	}
	return c
}

func decode[T any](t *testing.T, text string) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("output is not the JSON expected: %v\n%s", err, text)
	}
	return v
}

func expect(t *testing.T, what, got string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(got, want) {
			t.Errorf("%s lacks %q:\n%s", what, want, got)
		}
	}
}

func TestDatabaseURL(t *testing.T) {
	// Each one wins over those before it. The servers do not exist; the message says which was asked for.
	for _, c := range []struct {
		set  func()
		args []string
		want string
	}{
		{func() {}, nil, "no database given: use --database-url, or set PGWAKE_DATABASE_URL or DATABASE_URL"},
		{func() { t.Setenv("DATABASE_URL", "postgres://127.0.0.1:1/x") }, nil, "127.0.0.1:1:"},
		{func() { t.Setenv("PGWAKE_DATABASE_URL", "postgres://127.0.0.1:2/x") }, nil, "127.0.0.1:2:"},
		{func() {}, []string{"--database-url", "postgres://127.0.0.1:3/x"}, "127.0.0.1:3:"},
	} {
		c.set()
		got := call(t, "", "", append(c.args, "tasks", "counts")...)
		expect(t, "stderr", got.stderr, c.want)
	}
}

func TestSchemaFromEnvironment(t *testing.T) {
	url := pgtest.NewEmpty(t)
	t.Setenv("PGWAKE_SCHEMA", "Other Tasks")
	succeed(t, url, "", "migrate", "up")
	succeed(t, url, "", "--schema", "Other Tasks", "tasks", "counts")
	c := call(t, url, "", "--schema", "third", "tasks", "counts")
	if c.code != exitFailed {
		t.Errorf("exit %d, want %d", c.code, exitFailed)
	}
	expect(t, "stderr", c.stderr, `run 'pgwake migrate up' with --schema "third"`)
}

func TestWrongUse(t *testing.T) {
	t.Parallel()
	url := pgtest.NewURL(t)
	for _, c := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{"unknown command", []string{"enqeue", "x"}, 2, `unknown command "enqeue" for "pgwake": did you mean enqueue (see 'pgwake --help')`},
		{"unknown subcommand", []string{"tasks", "lst"}, 2, `unknown command "lst" for "pgwake tasks": did you mean list?`},
		{"unknown flag", []string{"tasks", "list", "--wrong"}, 2, "unknown flag: --wrong (see 'pgwake tasks list --help')"},
		{"extra argument", []string{"version", "x"}, 2, "unknown command"},
		{"no type", []string{"enqueue"}, 2, "give the type of the task"},
		{"empty type", []string{"enqueue", ""}, 2, "task type is empty"},
		{"unquoted payload", []string{"enqueue", "a", `{"b":`, "1}"}, 2, `unexpected argument "1}": quote the payload as one`},
		{"payload", []string{"enqueue", "a", "{b}"}, 2, "payload is not JSON: "},
		{"payload with NUL", []string{"enqueue", "a", `{"b": "\u0000"}`}, 2, "NUL character"},
		{"no payload", []string{"enqueue", "a", "-"}, 2, "payload from standard input is empty"},
		{"no file", []string{"enqueue", "a", "@/does/not/exist"}, 1, "no such file"},
		{"priority", []string{"enqueue", "a", "--priority", "10"}, 2, "priority 10 is not between 0 (first) and 9 (last)"},
		{"attempts", []string{"enqueue", "a", "--max-attempts", "0"}, 2, "--max-attempts 0: give 1 or more"},
		{"due at", []string{"enqueue", "a", "--due-at", "tomorrow"}, 2, `--due-at "tomorrow" is not RFC 3339`},
		{"delay", []string{"enqueue", "a", "--delay", "-1s"}, 2, "delay -1s is not between 0"},
		{"due at and delay", []string{"enqueue", "a", "--due-at", "2030-01-01T00:00:00Z", "--delay", "1s"}, 2, "exclude each other"},
		{"id", []string{"enqueue", "a", "--id", "7"}, 2, `--id "7" is not an id`},
		{"zero id", []string{"enqueue", "a", "--id", "00000000-0000-0000-0000-000000000000"}, 2, "is not an id"},
		{"unique key", []string{"enqueue", "a", "--unique-key", ""}, 2, "--unique-key is empty"},
		{"metadata", []string{"enqueue", "a", "--metadata", "[1]"}, 2, "--metadata is not a JSON object"},
		{"null metadata", []string{"enqueue", "a", "--metadata", "null"}, 2, "--metadata is not a JSON object"},
		{"skip without ndjson", []string{"enqueue", "a", "--skip-bad"}, 2, "--skip-bad goes with --ndjson"},
		{"option with ndjson", []string{"enqueue", "--ndjson", "--priority", "1"}, 2, "--priority is for a single task"},
		{"ndjson file", []string{"enqueue", "--ndjson", "/does/not/exist"}, 1, "no such file"},
		{"status", []string{"tasks", "list", "--status", "done"}, 2, `--status "done" is none of queued, running, paused, frozen, succeeded, cancelled`},
		{"limit", []string{"tasks", "list", "--limit", "0"}, 2, "--limit 0 is not between 1 and 10000"},
		{"before", []string{"tasks", "list", "--before", "x"}, 2, `--before "x" is not an id`},
		{"show nothing", []string{"tasks", "show"}, 2, "give the id of a task"},
		{"show no id", []string{"tasks", "show", "x"}, 2, `task "x" is not an id`},
		{"show unknown", []string{"tasks", "show", "01890a5d-ac96-774b-bcce-b302099a8057"}, 4, "task not found"},
		{"within", []string{"workers", "--within", "0s"}, 2, "--within 0s: give a positive duration"},
		{"down without version", []string{"migrate", "down"}, 2, "say with --to which version"},
		{"down to nowhere", []string{"migrate", "down", "--to", "99"}, 2, "--to 99 is not between 0 and"},
		{"down unconfirmed", []string{"migrate", "down", "--to", "0"}, 2, "add --yes if that is what you want"},
		{"from without print", []string{"migrate", "up", "--from", "1"}, 2, "--from goes with --print"},
		{"schema not there", []string{"--schema", "none", "tasks", "counts"}, 1, `schema "none" has no pgwake tables: run 'pgwake migrate up'`},
		{"bad URL", []string{"--database-url", "postgres://a:secret@h:x/", "tasks", "counts"}, 1, "invalid port"},
		{"nobody listens", []string{"--database-url", "postgres://127.0.0.1:1/x", "tasks", "counts"}, 1, "connect to 127.0.0.1:1: connection refused: check that the server runs"},
		{"no such database", []string{"--database-url", strings.Replace(url, "?", "_not?", 1), "tasks", "counts"}, 1, "does not exist: check --database-url"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got := call(t, url, "", c.args...)
			if got.code != c.code {
				t.Errorf("exit %d, want %d", got.code, c.code)
			}
			expect(t, "stderr", got.stderr, c.want)
			if n := strings.Count(got.stderr, "\n"); n != 1 {
				t.Errorf("stderr has %d lines, want 1:\n%s", n, got.stderr)
			}
			if strings.Contains(got.stderr, "secret") || got.stdout != "" {
				t.Errorf("stdout %q, stderr %q", got.stdout, got.stderr)
			}
		})
	}
}

func TestHelp(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{}, {"--help"}, {"tasks"}, {"migrate", "--help"}, {"enqueue", "--help"}, {"completion", "bash"}} {
		c := succeed(t, "", "", args...)
		if len(c.stdout) < 100 || c.stderr != "" {
			t.Errorf("%q prints %q, and on stderr %q", args, c.stdout, c.stderr)
		}
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	expect(t, "stdout", succeed(t, "", "", "version").stdout, "pgwake ", fmt.Sprintf("schema version %d", migrations.Latest))
	v := decode[versionInfo](t, succeed(t, "", "", "version", "--json").stdout)
	if v.Version == "" || !strings.HasPrefix(v.Go, "go1.") || v.Schema != migrations.Latest {
		t.Errorf("version %+v", v)
	}
}

// failing is an output that cannot be written.
type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

func TestOutputFails(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		code int
		want string
	}{
		{syscall.EPIPE, 141, ""},
		{errors.New("disk full"), 1, "pgwake: write output: disk full\n"},
	} {
		var errs bytes.Buffer
		code := run(t.Context(), []string{"version"}, strings.NewReader(""), failing{c.err}, &errs)
		if code != c.code || errs.String() != c.want {
			t.Errorf("%v: exit %d and %q, want %d and %q", c.err, code, errs.String(), c.code, c.want)
		}
	}
}

// TestInterrupted sends a signal to an import that waits for a line that does not come.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		signal os.Signal
		code   int
	}{{os.Interrupt, 130}, {syscall.SIGTERM, 143}} {
		t.Run(c.signal.String(), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.New(t)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, os.Args[0], "enqueue", "--ndjson")
			cmd.Env = append(os.Environ(), beMain+"=1", "DATABASE_URL="+pool.Config().ConnString())
			var errs bytes.Buffer
			cmd.Stderr = &errs
			stdin, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(stdin, strings.Repeat(`{"type": "a"}`+"\n", 7)); err != nil {
				t.Fatal(err)
			}
			pgtest.WaitFor(t, 30*time.Second, "the lines to be enqueued although no more come", func() bool {
				var n int
				if err := pool.QueryRow(ctx, `select count(*) from pgwake.tasks`).Scan(&n); err != nil {
					t.Fatal(err)
				}
				return n == 7
			})
			if err := cmd.Process.Signal(c.signal); err != nil {
				t.Fatal(err)
			}
			sent := time.Now()
			_ = cmd.Wait()
			if took := time.Since(sent); took > 2*time.Second {
				t.Errorf("it took %s to end", took)
			}
			if code := cmd.ProcessState.ExitCode(); code != c.code {
				t.Errorf("exit %d, want %d", code, c.code)
			}
			expect(t, "stderr", errs.String(), "pgwake: interrupted; 7 tasks enqueued\n")
		})
	}
}
