package embeddedpg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgwake/pgwake/internal/wait"
)

func start(t *testing.T, cfg Config) *Server {
	t.Helper()
	s, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, s) })
	return s
}

func stop(t *testing.T, s *Server) {
	t.Helper()
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
}

// connect returns a connection that is closed when the test ends.
func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func execute(t *testing.T, url, sql string) {
	t.Helper()
	if _, err := connect(t, url).Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

func query(t *testing.T, url, sql string) string {
	t.Helper()
	var got string
	if err := connect(t, url).QueryRow(t.Context(), sql).Scan(&got); err != nil {
		t.Fatal(err)
	}
	return got
}

// keptDir is a directory that the account of a root process's server can enter, unlike t.TempDir.
func keptDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "embeddedpg-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// waitUntil polls cond for at most ten seconds.
func waitUntil(t *testing.T, what string, cond func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for !cond() {
		if wait.For(ctx, 2*time.Millisecond) != nil {
			t.Fatal("waited 10s for", what)
		}
	}
}

func TestStartStop(t *testing.T) {
	t.Parallel()
	s := start(t, Config{})
	for sql, want := range map[string]string{
		"show max_connections":           "400",
		"show max_prepared_transactions": "20",
		"show fsync":                     "off",
		"show synchronous_commit":        "off",
		"show full_page_writes":          "off",
		"show timezone":                  "UTC",
		"show server_encoding":           "UTF8",
		"show autovacuum":                "on",
		"select current_user::text":      "postgres",
		"select current_database()":      "postgres",
		"select ('B' < 'a')::text":       "true", // sorts by code point, so the same on every machine
	} {
		if got := query(t, s.URL(""), sql); got != want {
			t.Errorf("%s: %s, want %s", sql, got, want)
		}
	}
	if got := query(t, s.URL("template1"), "select current_database()"); got != "template1" {
		t.Errorf("connected to %s", got)
	}
	if got := query(t, s.URL(""), "show server_version"); !strings.HasPrefix(got, s.Version()) {
		t.Errorf("server is %s, Version says %s", got, s.Version())
	}
	if url := s.SocketURL("postgres"); url == "" {
		t.Error("no socket in a temporary directory")
	} else if got := query(t, url, "select coalesce(inet_client_addr()::text, 'socket')"); got != "socket" {
		t.Errorf("SocketURL connects by %s", got)
	}
	pid, dir := s.PID(), s.Dir()
	stop(t, s)
	stop(t, s)
	if !gone(pid) {
		t.Error("postmaster is there after Stop")
	}
	if exists(dir) {
		t.Error("temporary directory is there after Stop")
	}
	if s.PID() != 0 {
		t.Error("stopped server has a PID")
	}
	if err := s.Restart(t.Context()); err == nil {
		t.Error("Restart after Stop works")
	}
	if err := errors.Join(s.Crash(), s.StopFast(), s.StopImmediate()); err != nil {
		t.Errorf("ending a server that is down: %v", err)
	}
}

func TestConcurrentStarts(t *testing.T) {
	t.Parallel()
	servers := make([]*Server, 3)
	var wg sync.WaitGroup
	for i := range servers {
		wg.Go(func() {
			s, err := Start(t.Context(), Config{})
			if err != nil {
				t.Error(err)
				return
			}
			servers[i] = s
		})
	}
	wg.Wait()
	seen := map[string]bool{}
	for _, s := range servers {
		if s == nil {
			continue
		}
		defer stop(t, s)
		if seen[s.Dir()] || seen[s.Addr()] {
			t.Error("two servers share a place")
		}
		seen[s.Dir()], seen[s.Addr()] = true, true
		if got := query(t, s.URL(""), "show data_directory"); got != filepath.Join(s.Dir(), "data") {
			t.Errorf("URL leads to the server in %s", got)
		}
	}
}

func TestSettings(t *testing.T) {
	t.Parallel()
	odd := `it's a \ "test"`
	s := start(t, Config{Durable: true, Settings: map[string]string{
		"max_connections":  "17",
		"application_name": odd,
		"log_line_prefix":  "'\\",
	}})
	if s.programs.hasLibrary("pg_stat_statements") {
		if got := query(t, s.URL(""), "show shared_preload_libraries"); got != "pg_stat_statements" {
			t.Errorf("shared_preload_libraries = %s", got)
		}
	}
	for name, want := range map[string]string{
		"max_connections": "17", "application_name": odd, "log_line_prefix": "'\\",
		"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on",
	} {
		if got := query(t, s.URL(""), "show "+name); got != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
	execute(t, s.URL(""), "alter system set max_connections = 19")
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := query(t, s.URL(""), "show max_connections"); got != "19" {
		t.Errorf("max_connections = %s after alter system", got)
	}
}

func TestBadSettings(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		settings map[string]string
		want     string
	}{
		"name":   {map[string]string{"a = 1\nb": "2"}, "not a name"},
		"value":  {map[string]string{"max_connections": "many"}, "max_connections"}, // from the server's log
		"port":   {map[string]string{"port": "x"}, "setting port"},
		"unused": {map[string]string{"no_such_setting": "1"}, "no_such_setting"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := Start(t.Context(), Config{Settings: tc.settings})
			if err == nil {
				stop(t, s)
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want one with %q", err, tc.want)
			}
		})
	}
}

func TestRestart(t *testing.T) {
	t.Parallel()
	s := start(t, Config{Durable: true})
	execute(t, s.URL(""), "create table kept (n int)")
	addr, want := s.Addr(), "0"
	for _, tc := range []struct {
		name string
		end  func() error
		code string // of the sessions' error, "" if they get none
	}{
		{"fast", s.StopFast, "57P01"},
		{"immediate", s.StopImmediate, ""}, // PostgreSQL does not promise the message arrives
		{"crash", s.Crash, ""},
		{"running", func() error { return nil }, "57P01"},
	} {
		conn := connect(t, s.URL(""))
		if _, err := conn.Exec(t.Context(), "insert into kept select count(*) + 1 from kept"); err != nil {
			t.Fatal(err)
		}
		want = string('0' + want[0] - '0' + 1)
		pid := s.PID()
		backends := children(pid)
		if !slices.Contains(backends, int(conn.PgConn().PID())) {
			t.Fatalf("%s: backend %d is not among the children %v", tc.name, conn.PgConn().PID(), backends)
		}
		if err := tc.end(); err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		if tc.name != "running" {
			for _, p := range append(backends, pid) {
				if !gone(p) {
					t.Errorf("%s: process %d is still there", tc.name, p)
				}
			}
			if c, err := net.Dial("tcp", addr); err == nil {
				t.Errorf("%s: %s still accepts", tc.name, addr)
				_ = c.Close()
			}
		}
		if err := s.Restart(t.Context()); err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		if s.Addr() != addr || s.PID() == pid {
			t.Errorf("%s: address %s, was %s; process %d, was %d", tc.name, s.Addr(), addr, s.PID(), pid)
		}
		_, err := conn.Exec(t.Context(), "select 1")
		var pgErr *pgconn.PgError
		if tc.code != "" && (!errors.As(err, &pgErr) || pgErr.Code != tc.code) || err == nil {
			t.Errorf("%s: session got %v, want %s", tc.name, err, tc.code)
		}
		if got := query(t, s.URL(""), "select count(*)::text from kept"); got != want {
			t.Errorf("%s: %s rows, want %s", tc.name, got, want)
		}
	}
}

// A backend in the middle of a statement does not notice the death of its postmaster by itself.
func TestCrashEndsBusyBackends(t *testing.T) {
	t.Parallel()
	s := start(t, Config{Durable: true})
	execute(t, s.URL(""), "create table busy (n int)")
	conn := connect(t, s.URL(""))
	ended := make(chan error, 1)
	go func() {
		_, err := conn.Exec(context.Background(), "do $$ begin loop perform 1; end loop; end $$")
		ended <- err
	}()
	waitUntil(t, "the loop to run", func() bool {
		return query(t, s.URL(""), "select count(*)::text from pg_stat_activity where state = 'active' and query like 'do %'") == "1"
	})
	if err := s.Crash(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil {
		t.Error("the statement ended well")
	}
	if !gone(int(conn.PgConn().PID())) {
		t.Error("the backend is there after Crash")
	}
}

func TestCrashReleasesSharedMemory(t *testing.T) {
	t.Parallel()
	s := start(t, Config{})
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", s.PID()))
	if err != nil {
		t.Skip(err)
	}
	files := regexp.MustCompile(`/dev/shm/PostgreSQL\.\d+`).FindAllString(string(maps), -1)
	if len(files) == 0 {
		t.Fatal("the postmaster has mapped no shared memory")
	}
	text, err := os.ReadFile(filepath.Join(s.Dir(), "data", "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	segment := strings.Fields(strings.Split(string(text), "\n")[6])[1] // the line is key and id
	inUse := func() bool {
		table, err := os.ReadFile("/proc/sysvipc/shm")
		if err != nil {
			t.Fatal(err)
		}
		return regexp.MustCompile(`(?m)^ *-?\d+ +` + segment + ` `).Match(table)
	}
	if err := s.Crash(); err != nil {
		t.Fatal(err)
	}
	if !inUse() || !exists(files[0]) {
		t.Error("the killed server's memory is gone before Stop")
	}
	stop(t, s)
	if inUse() {
		t.Errorf("segment %s is there after Stop", segment)
	}
	for _, name := range files {
		if exists(name) {
			t.Errorf("%s is there after Stop", name)
		}
	}
}

func TestRestartWaitsForPort(t *testing.T) {
	t.Parallel()
	s := start(t, Config{})
	if err := s.StopFast(); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	freed := time.AfterFunc(300*time.Millisecond, func() { _ = l.Close() })
	defer freed.Stop()
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestFixedPortTaken(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s, err := Start(t.Context(), Config{Settings: map[string]string{"port": port}})
	if err == nil {
		stop(t, s)
	}
	if !errors.Is(err, errPortTaken) || !strings.Contains(err.Error(), l.Addr().String()) {
		t.Errorf("error %v", err)
	}
}

func TestKeptDir(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(keptDir(t), "new", "one")
	s := start(t, Config{Dir: dir})
	execute(t, s.URL(""), "create table kept as select 'here' as v")
	if _, err := Start(t.Context(), Config{Dir: dir}); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("second Start in one directory: %v", err)
	}
	stop(t, s)
	s = start(t, Config{Dir: dir})
	if got := query(t, s.URL(""), "select v from kept"); got != "here" {
		t.Errorf("got %s", got)
	}
	stop(t, s)

	if _, err := Start(t.Context(), Config{Dir: filepath.Join(dir, "data")}); err == nil || !strings.Contains(err.Error(), "itself") {
		t.Errorf("Start in a data directory: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "data", "PG_VERSION"), []byte("9\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Start(t.Context(), Config{Dir: dir}); err == nil || !strings.Contains(err.Error(), "made by PostgreSQL 9,") {
		t.Errorf("Start on another version's data: %v", err)
	}
}

func TestLongPathHasNoSocket(t *testing.T) {
	t.Parallel()
	s := start(t, Config{Dir: filepath.Join(keptDir(t), strings.Repeat("long", 30))})
	if url := s.SocketURL(""); url != "" {
		t.Errorf("socket %s", url)
	}
	query(t, s.URL(""), "select ''")
}

func TestStartCancelled(t *testing.T) {
	t.Parallel()
	dir := keptDir(t)
	cause := errors.New("no more time")
	for _, after := range []time.Duration{0, 100 * time.Millisecond, 400 * time.Millisecond} {
		ctx, cancel := context.WithTimeoutCause(t.Context(), after, cause)
		s, err := Start(ctx, Config{Dir: dir})
		cancel()
		if err == nil { // a fast machine
			stop(t, s)
		} else if !errors.Is(err, cause) && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after %s: %v", after, err)
		}
	}
	start(t, Config{Dir: dir}) // what was begun is no obstacle
}

func TestLogger(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	s := start(t, Config{Logger: slog.New(slog.NewTextHandler(io.Writer(&b), &slog.HandlerOptions{Level: slog.LevelDebug}))})
	stop(t, s)
	for _, want := range []string{"postgres ready", "postgres stopped", s.Addr()} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in the log:\n%s", want, b.String())
		}
	}
}

func TestResolve(t *testing.T) {
	for _, tc := range []struct{ explicit, own, general, want string }{
		{"a", "b", "c", "a"}, {"", "b", "c", "b"}, {"", "", "c", "c"}, {"", "", "", ""},
	} {
		t.Setenv("PGWAKE_DATABASE_URL", tc.own)
		t.Setenv("DATABASE_URL", tc.general)
		if got := Resolve(tc.explicit); got != tc.want {
			t.Errorf("%+v: %q", tc, got)
		}
	}
}
