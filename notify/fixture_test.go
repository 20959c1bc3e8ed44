package notify

import (
	"context"
	"log/slog"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// patience is how long a test waits for an event that must come.
const patience = 30 * time.Second

// fixture is a listener at work and a pool beside it that sends and inspects.
type fixture struct {
	*Listener
	pool   *pgxpool.Pool
	app    string      // application_name of the listener's sessions
	events chan string // "connect", "disconnect", "<channel>:<payload>"
	logs   *logRecorder
	stop   func() error // ends ctx, waits for Run and returns what it returned
}

// setup is what a test may change before the listener is made.
type setup struct {
	url  string                // where the listener connects; the pool's if empty
	conn func(*pgx.ConnConfig) // changes the listener's connection
	cfg  func(*fixture, *Config)
}

// newFixture makes a listener of channels "a" and "B b" with fast timing.
func newFixture(t *testing.T, database string, s setup) *fixture {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)

	if s.url == "" {
		s.url = database
	}
	connConfig, err := pgx.ParseConfig(s.url)
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{pool: pool, app: t.Name(), events: make(chan string, 10_000), logs: &logRecorder{}}
	if len(f.app) > 63 {
		f.app = f.app[:63]
	}
	connConfig.RuntimeParams["application_name"] = f.app
	if s.conn != nil {
		s.conn(connConfig)
	}
	cfg := Config{
		Connect: Connector(connConfig),
		Ring: func(ctx context.Context, channel, payload string) error {
			_, err := pool.Exec(ctx, "select pg_catalog.pg_notify($1, $2)", channel, payload)
			return err
		},
		Channels: map[string]func(string){
			"a":   func(payload string) { f.events <- "a:" + payload },
			"B b": func(payload string) { f.events <- "B b:" + payload },
		},
		OnConnect:      func() { f.events <- "connect" },
		OnDisconnect:   func() { f.events <- "disconnect" },
		Watchdog:       10 * time.Second,
		ConnectTimeout: 10 * time.Second,
		MinBackoff:     10 * time.Millisecond,
		MaxBackoff:     200 * time.Millisecond,
		Logger:         slog.New(f.logs),
	}
	if s.cfg != nil {
		s.cfg(f, &cfg)
	}
	f.Listener, err = NewListener(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// start runs the listener until the test ends or stop is called, and holds Run to
// its promise to return within a second.
func (f *fixture) start(t *testing.T) *fixture {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	var once sync.Once
	var result error
	f.stop = func() error {
		once.Do(func() {
			cancel(errStop)
			begin := time.Now()
			select {
			case result = <-done:
				if took := time.Since(begin); took > time.Second {
					t.Errorf("Run took %v to return", took)
				}
			case <-time.After(patience):
				t.Fatal("Run does not return")
			}
		})
		return result
	}
	t.Cleanup(func() { _ = f.stop() })
	return f
}

// expect waits for the next events, which must be these.
func (f *fixture) expect(t *testing.T, want ...string) {
	t.Helper()
	for _, w := range want {
		select {
		case got := <-f.events:
			if got != w {
				t.Fatalf("event %q, want %q", got, w)
			}
		case <-time.After(patience):
			t.Fatalf("no event %q; health %+v", w, f.Health())
		}
	}
}

func (f *fixture) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := f.pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// expectSessions waits until the server knows exactly these sessions of the
// listener. It has to ask again and again: a backend ends when it likes.
func (f *fixture) expectSessions(t *testing.T, want ...uint32) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for {
		rows, err := f.pool.Query(t.Context(), "select pid::bigint from pg_catalog.pg_stat_activity where application_name = $1", f.app)
		if err != nil {
			t.Fatal(err)
		}
		got, err := pgx.CollectRows(rows, pgx.RowTo[uint32])
		if err != nil {
			t.Fatal(err)
		}
		if len(got) == len(want) && (len(got) == 0 || got[0] == want[0]) {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("sessions %v, want %v", got, want)
		}
	}
}

// through returns database's URL with another host and port.
func through(t *testing.T, database, addr string) string {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = addr
	return u.String()
}

// logRecorder counts lines by level; it keeps their messages.
type logRecorder struct {
	mu    sync.Mutex
	lines map[slog.Level][]string
}

func (r *logRecorder) Enabled(context.Context, slog.Level) bool { return true }
func (r *logRecorder) WithAttrs([]slog.Attr) slog.Handler       { return r }
func (r *logRecorder) WithGroup(string) slog.Handler            { return r }
func (r *logRecorder) Handle(_ context.Context, rec slog.Record) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lines == nil {
		r.lines = make(map[slog.Level][]string)
	}
	r.lines[rec.Level] = append(r.lines[rec.Level], rec.Message)
	return nil
}

func (r *logRecorder) count(level slog.Level) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.lines[level])
}
