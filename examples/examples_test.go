// Package examples_test builds the examples and runs them as the processes they are.
package examples_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/internal/pgtest"
)

const patience = 30 * time.Second

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestExamples(t *testing.T) {
	t.Parallel()
	dir := t.TempDir() + string(filepath.Separator)
	if out, err := exec.Command("go", "build", "-o", dir, "./...").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	t.Run("quickstart", func(t *testing.T) { t.Parallel(); quickstart(t, dir+"quickstart") })
	t.Run("sqltx", func(t *testing.T) { t.Parallel(); sqltx(t, dir+"sqltx") })
	t.Run("fleet", func(t *testing.T) { t.Parallel(); fleet(t, dir+"fleet") })
	t.Run("fleet fails", func(t *testing.T) { t.Parallel(); fleetFails(t, dir+"fleet") })
}

// command is one that cannot outlive the test, with nothing of the environment but what is given.
func command(t *testing.T, program string, env ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, program)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}, env...)
	return cmd
}

// printed runs an example to its end and returns the lines of its output, sorted, since handlers run at once.
func printed(t *testing.T, program string, pool *pgxpool.Pool) []string {
	t.Helper()
	cmd := command(t, program, "DATABASE_URL="+pool.Config().ConnString())
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, errs.String())
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	slices.Sort(lines)
	return lines
}

func count(t *testing.T, pool *pgxpool.Pool, from string) (n int) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), "select count(*) from "+from).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func quickstart(t *testing.T, program string) {
	pool := pgtest.New(t)
	want := []string{"Hello, Ada!", "Hello, Grace!", "Hello, Katherine!"}
	if got := printed(t, program, pool); !slices.Equal(got, want) {
		t.Errorf("printed %q", got)
	}
	if live, done := count(t, pool, "pgwake.tasks"), count(t, pool, "pgwake.task_archive where status = 'succeeded'"); live != 0 || done != 3 {
		t.Errorf("%d live tasks and %d succeeded", live, done)
	}
}

func sqltx(t *testing.T, program string) {
	pool := pgtest.New(t)
	want := []string{"teapot: ordered", "teapot: receipt sent", "unicorn: rolled back, no receipt"}
	if got := printed(t, program, pool); !slices.Equal(got, want) {
		t.Errorf("printed %q", got)
	}
	if orders := count(t, pool, "example_orders"); orders != 1 {
		t.Errorf("%d orders", orders)
	}
	if live, done := count(t, pool, "pgwake.tasks"), count(t, pool, "pgwake.task_archive"); live != 0 || done != 1 {
		t.Errorf("%d live tasks and %d settled", live, done)
	}
}

// fleet starts the worker, asks its probes, gives it a task and stops it.
func fleet(t *testing.T, program string) {
	pool := pgtest.New(t)
	cmd := command(t, program, "DATABASE_URL="+pool.Config().ConnString(), "HEALTH_ADDR=127.0.0.1:0", "WORKER_NAME=test", "WORKER_SLOTS=2")
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	logs := bufio.NewScanner(stdout)
	addr := awaitLog(t, logs, "health probes")["addr"].(string)

	if code, _ := get(t, "http://"+addr+"/healthz"); code != http.StatusOK {
		t.Errorf("/healthz answers %d", code)
	}
	pgtest.WaitFor(t, patience, "/readyz to answer 200", func() bool {
		code, _ := get(t, "http://"+addr+"/readyz")
		return code == http.StatusOK
	})

	client, err := pgwake.NewClient(t.Context(), pool, pgwake.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	task, err := client.Enqueue(t.Context(), pgwake.Raw{Type: "email.welcome", JSON: []byte(`{"to": "ada"}`)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if ran := awaitLog(t, logs, "task run"); ran["id"] != task.ID.String() || ran["error"] != nil {
		t.Errorf("log of the run: %v", ran)
	}
	pgtest.WaitFor(t, patience, "the task to be settled", func() bool { return count(t, pool, "pgwake.task_archive") == 1 })

	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	sent := time.Now()
	awaitLog(t, logs, "worker stopped")
	if err := cmd.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
	if took := time.Since(sent); took > 2*time.Second {
		t.Errorf("an idle worker took %s to stop", took)
	}
}

// fleetFails checks the exit codes of a worker that cannot start.
func fleetFails(t *testing.T, program string) {
	for _, c := range []struct {
		name string
		env  []string
		code int
		want string
	}{
		{"no database", nil, 2, "DATABASE_URL is not set"},
		{"bad slots", []string{"DATABASE_URL=x", "WORKER_SLOTS=many"}, 2, "WORKER_SLOTS"},
		{"bad drain", []string{"DATABASE_URL=x", "WORKER_DRAIN=30"}, 2, "WORKER_DRAIN"},
		{"no schema", []string{"DATABASE_URL=" + pgtest.NewEmpty(t), "HEALTH_ADDR=127.0.0.1:0"}, 1, "run 'pgwake migrate up'"},
	} {
		cmd := command(t, program, c.env...)
		out, _ := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != c.code || !strings.Contains(string(out), c.want) {
			t.Errorf("%s: exit %d, want %d with %q in\n%s", c.name, code, c.code, c.want, out)
		}
	}
}

// awaitLog reads log lines until one has the message.
func awaitLog(t *testing.T, logs *bufio.Scanner, message string) map[string]any {
	t.Helper()
	for logs.Scan() {
		var line map[string]any
		if err := json.Unmarshal(logs.Bytes(), &line); err != nil {
			t.Fatalf("log line %q: %v", logs.Text(), err)
		}
		if line["msg"] == message {
			return line
		}
	}
	t.Fatalf("the log ended before %q: %v", message, logs.Err())
	return nil
}

// get closes its connection, so that no goroutine keeps it.
func get(t *testing.T, url string) (int, string) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	resp, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}
