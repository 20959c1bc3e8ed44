package notify

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgwake/pgwake/internal/pgtest"
	"github.com/pgwake/pgwake/internal/tcpproxy"
)

var errStop = errors.New("test stops the listener")

func TestListenerDeliversToTheRightHandler(t *testing.T) {
	t.Parallel()
	f := newFixture(t, pgtest.NewEmpty(t), setup{}).start(t)
	f.expect(t, "connect")
	f.exec(t, `notify "B b", 'two words'`)
	f.expect(t, "B b:two words")
	f.exec(t, `notify a`)
	f.expect(t, "a:")
	f.exec(t, `notify "A", 'another name'`)
	f.exec(t, `notify a, 'last'`)
	f.expect(t, "a:last")

	h := f.Health()
	if !h.Connected || !f.Connected() || h.PID == 0 || h.Reconnects != 0 || h.LastError != nil || h.LastHeard.Before(h.Since) {
		t.Errorf("health %+v", h)
	}
	f.expectSessions(t, h.PID)
	if err := f.stop(); !errors.Is(err, errStop) {
		t.Errorf("Run returned %v, want the cause of ctx", err)
	}
	f.expect(t, "disconnect")
	if f.Connected() {
		t.Error("connected after Run")
	}
	f.expectSessions(t)
}

func TestListenerReconnects(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		harm func(t *testing.T, f *fixture, p *tcpproxy.Proxy)
	}{
		{"backend terminated", func(t *testing.T, f *fixture, _ *tcpproxy.Proxy) {
			f.exec(t, "select pg_catalog.pg_terminate_backend($1)", f.Health().PID)
		}},
		{"connection cut", func(_ *testing.T, _ *fixture, p *tcpproxy.Proxy) { p.Cut() }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			database := pgtest.NewEmpty(t)
			proxy := newProxy(t, database)
			f := newFixture(t, database, setup{url: through(t, database, proxy.Addr())}).start(t)
			f.expect(t, "connect")
			before := f.Health()

			const rounds = 3
			for i := range rounds {
				begin := time.Now()
				tc.harm(t, f, proxy)
				f.expect(t, "disconnect", "connect")
				// The first wait is MinBackoff and a third; the rest is for a busy machine.
				if took := time.Since(begin); took > 2*time.Second {
					t.Errorf("reconnected after %v", took)
				}
				h := f.Health()
				if h.PID == before.PID || h.Reconnects != i+1 || h.LastError == nil {
					t.Errorf("health %+v after %+v", h, before)
				}
				f.expectSessions(t, h.PID)
				f.exec(t, "notify a, 'again'")
				f.expect(t, "a:again")
			}
			if warn, info := f.logs.count(slog.LevelWarn), f.logs.count(slog.LevelInfo); warn != rounds || info != rounds+1 {
				t.Errorf("%d warnings and %d infos for %d losses: %v", warn, info, rounds, f.logs.lines)
			}
		})
	}
}

func TestListenerSurvivesServerCrash(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t)
	f := newFixture(t, server.URL("postgres"), setup{}).start(t)
	f.expect(t, "connect")
	if err := server.Crash(); err != nil {
		t.Fatal(err)
	}
	f.expect(t, "disconnect")
	if f.Connected() {
		t.Error("connected to a crashed server")
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.expect(t, "connect")
	f.pool.Reset()
	f.exec(t, "notify a, 'after the crash'")
	f.expect(t, "a:after the crash")
	f.expectSessions(t, f.Health().PID)
	if warn := f.logs.count(slog.LevelWarn); warn != 1 {
		t.Errorf("%d warnings for one outage: %v", warn, f.logs.lines)
	}
}

func TestListenerRefusedThenAllowed(t *testing.T) {
	t.Parallel()
	// Waits double from 1 ms: 4 s in all, and one of at least 2.7 s would follow.
	const refusals = 12
	var dials atomic.Int32
	f := newFixture(t, pgtest.NewEmpty(t), setup{
		conn: func(c *pgx.ConnConfig) {
			dial := c.DialFunc
			c.Fallbacks = nil
			c.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
				if dials.Add(1) <= refusals {
					return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
				}
				return dial(ctx, network, addr)
			}
		},
		cfg: func(_ *fixture, c *Config) { c.MinBackoff, c.MaxBackoff = time.Millisecond, time.Hour },
	}).start(t)
	f.expect(t, "connect")
	if got := dials.Load(); got != refusals+1 {
		t.Errorf("%d dials, want %d", got, refusals+1)
	}
	if h := f.Health(); h.Reconnects != 0 || !errors.Is(h.LastError, syscall.ECONNREFUSED) {
		t.Errorf("health %+v", h)
	}
	if warn, debug := f.logs.count(slog.LevelWarn), f.logs.count(slog.LevelDebug); warn != 1 || debug != refusals-1 {
		t.Errorf("%d warnings, %d debug lines: %v", warn, debug, f.logs.lines)
	}

	begin := time.Now()
	f.exec(t, "select pg_catalog.pg_terminate_backend($1)", f.Health().PID)
	f.expect(t, "disconnect", "connect")
	if took := time.Since(begin); took > 2500*time.Millisecond {
		t.Errorf("reconnected after %v: the back-off was not reset", took)
	}
}

func TestListenerJoinsItsProbe(t *testing.T) {
	t.Parallel()
	ringing := make(chan struct{})
	var returned atomic.Bool
	f := newFixture(t, pgtest.NewEmpty(t), setup{cfg: func(_ *fixture, c *Config) {
		c.Watchdog, c.ProbeTimeout = time.Millisecond, patience
		c.Ring = func(ctx context.Context, _, _ string) error {
			close(ringing)
			<-ctx.Done()
			time.Sleep(50 * time.Millisecond) // work after the end of ctx
			returned.Store(true)
			return ctx.Err()
		}
	}}).start(t)
	select {
	case <-ringing:
	case <-time.After(patience):
		t.Fatal("no probe")
	}
	_ = f.stop()
	if !returned.Load() {
		t.Error("Run returned while its probe was under way")
	}
}

func TestListenerNoticesHalfOpenConnection(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name      string
		ringToo   bool          // the probe's connection is half-open too
		bound     time.Duration // in which the loss must be noticed
		wantError error
	}{
		{"listener alone", false, watchdogForTest + probeForTest, errNoEcho},
		{"probes too", true, watchdogForTest + 2*probeForTest, context.DeadlineExceeded},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			database := pgtest.NewEmpty(t)
			proxy := newProxy(t, database)
			viaProxy := through(t, database, proxy.Addr())
			ringURL := database
			if tc.ringToo {
				ringURL = viaProxy
			}
			f := newFixture(t, ringURL, setup{url: viaProxy, cfg: func(_ *fixture, c *Config) {
				c.Watchdog, c.ProbeTimeout = watchdogForTest, probeForTest
				c.ConnectTimeout = 2 * time.Second
			}}).start(t)
			f.expect(t, "connect")
			before := f.Health()

			begin := time.Now()
			proxy.Blackhole(true)
			f.expect(t, "disconnect")
			if took := time.Since(begin); took > tc.bound+time.Second {
				t.Errorf("noticed after %v, want %v", took, tc.bound)
			}
			if err := f.Health().LastError; !errors.Is(err, tc.wantError) {
				t.Errorf("lost because of %v, want %v", err, tc.wantError)
			}
			if f.Connected() {
				t.Error("connected")
			}
			proxy.Blackhole(false)
			f.expect(t, "connect")
			h := f.Health()
			if h.PID == before.PID {
				t.Error("same backend")
			}
			f.expectSessions(t, h.PID)
			f.exec(t, "notify a, 'restored'")
			f.expect(t, "a:restored")
		})
	}
}

const (
	watchdogForTest = 500 * time.Millisecond
	probeForTest    = 1000 * time.Millisecond
)

func TestListenerStaysConnectedInSilence(t *testing.T) {
	t.Parallel()
	probes := make(chan struct{}, 1000)
	f := newFixture(t, pgtest.NewEmpty(t), setup{cfg: func(_ *fixture, c *Config) {
		c.Watchdog, c.ProbeTimeout = time.Millisecond, 100*time.Millisecond
		ring := c.Ring
		c.Ring = func(ctx context.Context, channel, payload string) error {
			defer func() { probes <- struct{}{} }()
			return ring(ctx, channel, payload)
		}
	}}).start(t)
	f.expect(t, "connect")
	heard := f.Health().LastHeard
	for range 10 {
		<-probes
	}
	f.exec(t, "notify a, 'still here'")
	f.expect(t, "a:still here")
	if h := f.Health(); !h.LastHeard.After(heard) || h.Reconnects != 0 {
		t.Errorf("health %+v", h)
	}
}

// The network swallows everything; Run's promise to return within a second is
// checked by stop.
func TestListenerStopsWhileBlackholed(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		run  func(t *testing.T, database string, proxy *tcpproxy.Proxy) (*fixture, <-chan struct{})
	}{
		{"listening", func(t *testing.T, database string, proxy *tcpproxy.Proxy) (*fixture, <-chan struct{}) {
			f := newFixture(t, database, setup{url: through(t, database, proxy.Addr())}).start(t)
			f.expect(t, "connect")
			proxy.Blackhole(true)
			return f, closed
		}},
		{"probing", func(t *testing.T, database string, proxy *tcpproxy.Proxy) (*fixture, <-chan struct{}) {
			ringing := make(chan struct{})
			f := newFixture(t, database, setup{url: through(t, database, proxy.Addr()), cfg: func(_ *fixture, c *Config) {
				c.Watchdog, c.ProbeTimeout = 10*time.Millisecond, patience
				ring := c.Ring
				c.Ring = func(ctx context.Context, channel, payload string) error {
					if payload == "0" { // the first, without which it does not connect
						return ring(ctx, channel, payload)
					}
					close(ringing)
					<-ctx.Done()
					return ctx.Err()
				}
			}}).start(t)
			f.expect(t, "connect")
			proxy.Blackhole(true)
			return f, ringing
		}},
		{"connecting", func(t *testing.T, database string, proxy *tcpproxy.Proxy) (*fixture, <-chan struct{}) {
			proxy.Blackhole(true)
			dialed := make(chan struct{}, 100)
			return newFixture(t, database, setup{url: through(t, database, proxy.Addr()), conn: func(c *pgx.ConnConfig) {
				dial := c.DialFunc
				c.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
					defer func() { dialed <- struct{}{} }()
					return dial(ctx, network, addr)
				}
			}}).start(t), dialed
		}},
		{"connected, LISTEN hangs", func(t *testing.T, database string, proxy *tcpproxy.Proxy) (*fixture, <-chan struct{}) {
			connected := make(chan struct{}, 100)
			return newFixture(t, database, setup{url: through(t, database, proxy.Addr()), cfg: func(_ *fixture, c *Config) {
				connect := c.Connect
				c.Connect = func(ctx context.Context) (*pgx.Conn, error) {
					conn, err := connect(ctx)
					proxy.Blackhole(true)
					connected <- struct{}{}
					return conn, err
				}
			}}).start(t), connected
		}},
		{"connected without Connector, LISTEN hangs", func(t *testing.T, database string, proxy *tcpproxy.Proxy) (*fixture, <-chan struct{}) {
			connected := make(chan struct{}, 100)
			return newFixture(t, database, setup{url: through(t, database, proxy.Addr()), cfg: func(_ *fixture, c *Config) {
				c.Connect = func(ctx context.Context) (*pgx.Conn, error) {
					conn, err := pgx.Connect(ctx, through(t, database, proxy.Addr()))
					proxy.Blackhole(true)
					connected <- struct{}{}
					return conn, err
				}
			}}).start(t), connected
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			database := pgtest.NewEmpty(t)
			proxy := newProxy(t, database)
			f, ready := tc.run(t, database, proxy)
			select {
			case <-ready:
			case <-time.After(patience):
				t.Fatal("listener does not get to the point")
			}
			if err := f.stop(); !errors.Is(err, errStop) {
				t.Errorf("Run returned %v", err)
			}
		})
	}
}

var closed = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

func TestListenerGivesUpHangingListen(t *testing.T) {
	t.Parallel()
	database := pgtest.NewEmpty(t)
	proxy := newProxy(t, database)
	var attempts atomic.Int32
	f := newFixture(t, database, setup{url: through(t, database, proxy.Addr()), cfg: func(_ *fixture, c *Config) {
		c.ConnectTimeout = 500 * time.Millisecond
		connect := c.Connect
		c.Connect = func(ctx context.Context) (*pgx.Conn, error) {
			first := attempts.Add(1) == 1
			if !first {
				proxy.Blackhole(false)
			}
			conn, err := connect(ctx)
			if first {
				proxy.Blackhole(true)
			}
			return conn, err
		}
	}}).start(t)
	f.expect(t, "connect") // and no disconnect before
	if got := attempts.Load(); got < 2 {
		t.Errorf("%d attempts", got)
	}
	f.expectSessions(t, f.Health().PID)
}

func TestListenerIsNotConnectedToReadOnlyServer(t *testing.T) {
	t.Parallel()
	refused := make(chan error, 1000)
	f := newFixture(t, pgtest.NewEmpty(t), setup{cfg: func(f *fixture, c *Config) {
		connect := c.Connect
		c.Connect = func(ctx context.Context) (*pgx.Conn, error) {
			if h := f.Health(); h.LastError != nil {
				refused <- h.LastError
			}
			return connect(ctx)
		}
	}})
	name := f.pool.Config().ConnConfig.Database
	f.exec(t, "alter database "+pgx.Identifier{name}.Sanitize()+" set default_transaction_read_only = on")
	f.start(t)
	for range 3 {
		select {
		case err := <-refused:
			if !errors.Is(err, ErrNotWritable) {
				t.Fatalf("last error %v, want ErrNotWritable", err)
			}
		case <-time.After(patience):
			t.Fatalf("no attempt; health %+v", f.Health())
		}
		if f.Connected() {
			t.Fatal("connected to a read-only database")
		}
	}
	conn, err := pgx.ConnectConfig(t.Context(), f.pool.Config().ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	for _, sql := range []string{
		"set default_transaction_read_only = off",
		"alter database " + pgx.Identifier{name}.Sanitize() + " reset default_transaction_read_only",
	} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	f.expect(t, "connect") // the first event: nobody was told of a connection before
	if warn := f.logs.count(slog.LevelWarn); warn != 1 {
		t.Errorf("%d warnings for one outage: %v", warn, f.logs.lines)
	}
}

// A hot standby accepts connections and refuses LISTEN. Promoted, it is listened to.
func TestListenerWaitsForTheStandbyToBePromoted(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t)
	f := newFixture(t, server.URL("postgres"), setup{}).start(t)
	f.expect(t, "connect")
	if err := server.StopFast(); err != nil {
		t.Fatal(err)
	}
	f.expect(t, "disconnect")
	standby := filepath.Join(server.Dir(), "data", "standby.signal")
	if err := errors.Join(os.WriteFile(standby, nil, 0o600), os.Chmod(standby, 0o666), server.Restart(t.Context())); err != nil {
		t.Fatal(err)
	}
	pgtest.WaitFor(t, patience, "the standby is refused", func() bool { return errors.Is(f.Health().LastError, ErrNotWritable) })
	if f.Connected() {
		t.Error("connected to a standby")
	}
	f.pool.Reset()
	f.exec(t, "select pg_promote()")
	f.expect(t, "connect")
	f.exec(t, "notify a, 'promoted'")
	f.expect(t, "a:promoted")
	if warn := f.logs.count(slog.LevelWarn); warn != 1 {
		t.Errorf("%d warnings for one outage: %v", warn, f.logs.lines)
	}
}

// A socket on which everything takes its time is a connection all the same.
func TestListenerOnASlowSocket(t *testing.T) {
	t.Parallel()
	database := pgtest.NewEmpty(t)
	target, err := pgx.ParseConfig(database)
	if err != nil {
		t.Fatal(err)
	}
	proxy := tcpproxy.New(t, net.JoinHostPort(target.Host, strconv.Itoa(int(target.Port))))
	proxy.Slow(time.Millisecond / 2)
	f := newFixture(t, database, setup{url: through(t, database, proxy.Addr()), cfg: func(_ *fixture, c *Config) {
		c.Watchdog, c.ProbeTimeout = 50*time.Millisecond, 5*time.Second
	}}).start(t)
	f.expect(t, "connect")
	heard := f.Health().LastHeard
	pgtest.WaitFor(t, patience, "echoes of some probes", func() bool { return f.Health().LastHeard.Sub(heard) > 500*time.Millisecond })
	f.exec(t, "notify a, 'slow'")
	f.expect(t, "a:slow")
	if h := f.Health(); h.Reconnects != 0 || h.LastError != nil {
		t.Errorf("health %+v", h)
	}
}

func TestListenerStartStopStress(t *testing.T) {
	t.Parallel()
	var up, down atomic.Int32
	f := newFixture(t, pgtest.NewEmpty(t), setup{cfg: func(_ *fixture, c *Config) {
		c.Watchdog, c.ProbeTimeout = time.Millisecond, time.Second
		c.OnConnect = func() { up.Add(1) }
		c.OnDisconnect = func() { down.Add(1) }
	}})
	for i := range 50 {
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Duration(rand.Int64N(int64(40*time.Millisecond))), errStop)
		deadline, _ := ctx.Deadline()
		err := f.Run(ctx)
		cancel()
		if !errors.Is(err, errStop) {
			t.Fatalf("run %d returned %v", i, err)
		}
		if late := time.Since(deadline); late > time.Second {
			t.Errorf("run %d returned %v after the end of ctx", i, late)
		}
		if up.Load() != down.Load() {
			t.Fatalf("run %d: %d times connected, %d times disconnected", i, up.Load(), down.Load())
		}
	}
	f.expectSessions(t)
}

func TestListenerLetsPanicTravel(t *testing.T) {
	t.Parallel()
	f := newFixture(t, pgtest.NewEmpty(t), setup{cfg: func(_ *fixture, c *Config) {
		c.Channels["a"] = func(string) { panic("handler's own") }
	}})
	panicked := make(chan any, 1)
	go func() {
		defer func() { panicked <- recover() }()
		_ = f.Run(t.Context())
	}()
	f.expect(t, "connect")
	f.exec(t, "notify a")
	select {
	case v := <-panicked:
		if v != "handler's own" {
			t.Errorf("recovered %v", v)
		}
	case <-time.After(patience):
		t.Fatal("no panic")
	}
	f.expect(t, "disconnect")
	f.expectSessions(t)
}

func TestListenerRunsOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t, pgtest.NewEmpty(t), setup{}).start(t)
	f.expect(t, "connect")
	if err := f.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "already running") {
		t.Errorf("second Run returned %v", err)
	}
	if !f.Connected() {
		t.Error("second Run disturbed the first")
	}
}

func TestListenerBacksOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Minute, errStop)
		defer cancel()
		var attempts []time.Time
		logs := &logRecorder{}
		l, err := NewListener(Config{
			Connect: func(context.Context) (*pgx.Conn, error) {
				attempts = append(attempts, time.Now())
				return nil, fmt.Errorf("attempt %d: %w", len(attempts), syscall.ECONNREFUSED)
			},
			Channels: map[string]func(string){"a": func(string) {}},
			Logger:   slog.New(logs),
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Run(ctx); !errors.Is(err, errStop) {
			t.Errorf("Run returned %v", err)
		}
		nominal := 50 * time.Millisecond
		for i := 1; i < len(attempts); i++ {
			wait := attempts[i].Sub(attempts[i-1])
			if low, high := nominal*2/3, min(nominal*4/3, 5*time.Second); wait < low || wait > high {
				t.Errorf("wait %d is %v, want %v to %v", i, wait, low, high)
			}
			nominal = min(nominal*2, 3750*time.Millisecond)
		}
		if n := len(attempts); n < 120 || n > 240 {
			t.Errorf("%d attempts in 10 min", n)
		}
		if warn, info := logs.count(slog.LevelWarn), logs.count(slog.LevelInfo); warn != 1 || info != 0 {
			t.Errorf("%d warnings, %d infos for one outage", warn, info)
		}
	})
}

func TestListenerBoundsConnect(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		begin := time.Now()
		l, err := NewListener(Config{
			Connect: func(ctx context.Context) (*pgx.Conn, error) {
				<-ctx.Done()
				if took := time.Since(begin); took != 10*time.Second {
					t.Errorf("Connect's ctx ended after %v", took)
				}
				cancel()
				return nil, ctx.Err()
			},
			Channels: map[string]func(string){"a": func(string) {}},
			Logger:   slog.New(&logRecorder{}),
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Run(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v", err)
		}
	})
}

func TestListenerSurvivesEmptyConnect(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		l, err := NewListener(Config{
			Connect:  func(context.Context) (*pgx.Conn, error) { return nil, nil },
			Channels: map[string]func(string){"a": func(string) {}},
			Logger:   slog.New(&logRecorder{}),
		})
		if err != nil {
			t.Fatal(err)
		}
		_ = l.Run(ctx)
		if l.Health().LastError == nil {
			t.Error("no last error")
		}
	})
}

func TestNewListenerValidates(t *testing.T) {
	t.Parallel()
	valid := func() Config {
		return Config{
			Connect:  func(context.Context) (*pgx.Conn, error) { return nil, nil },
			Channels: map[string]func(string){"a": func(string) {}},
		}
	}
	for _, tc := range []struct {
		name   string
		change func(*Config)
		want   string // part of the error; "" if valid
	}{
		{"minimal", func(*Config) {}, ""},
		{"no Connect", func(c *Config) { c.Connect = nil }, "Connect"},
		{"no channels", func(c *Config) { c.Channels = nil }, "at least one channel"},
		{"no handler", func(c *Config) { c.Channels["a"] = nil }, `"a" has no handler`},
		{"empty name", func(c *Config) { c.Channels[""] = func(string) {} }, "1 to 63"},
		{"63 bytes", func(c *Config) { c.Channels[strings.Repeat("x", 63)] = func(string) {} }, ""},
		{"64 bytes", func(c *Config) { c.Channels[strings.Repeat("x", 64)] = func(string) {} }, "1 to 63"},
		{"NUL", func(c *Config) { c.Channels["a\x00b"] = func(string) {} }, "NUL"},
		{"negative watchdog", func(c *Config) { c.Watchdog = -1 }, "Watchdog"},
		{"large MinBackoff alone", func(c *Config) { c.MinBackoff = time.Minute }, ""},
		{"MaxBackoff below MinBackoff", func(c *Config) { c.MinBackoff, c.MaxBackoff = 2, 1 }, "MaxBackoff"},
		{"MaxBackoff below default MinBackoff", func(c *Config) { c.MaxBackoff = 1 }, "MaxBackoff"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			cfg := valid()
			tc.change(&cfg)
			_, err := NewListener(cfg)
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}

func newProxy(t *testing.T, database string) *tcpproxy.Proxy {
	t.Helper()
	cfg, err := pgx.ParseConfig(database)
	if err != nil {
		t.Fatal(err)
	}
	return tcpproxy.New(t, net.JoinHostPort(cfg.Host, fmt.Sprint(cfg.Port)))
}

// A session on which LISTEN is answered and nothing arrives, as behind a pooler in transaction mode, is not connected, and
// is not dialed again and again.
func TestListenerNeedsAnEcho(t *testing.T) {
	t.Parallel()
	var rung atomic.Int32
	f := newFixture(t, pgtest.NewEmpty(t), setup{cfg: func(_ *fixture, c *Config) {
		c.ProbeTimeout = 20 * time.Millisecond
		c.Ring = func(context.Context, string, string) error {
			rung.Add(1)
			return nil // and is not delivered
		}
	}}).start(t)
	pgtest.WaitFor(t, patience, "a session is given up", func() bool { return errors.Is(f.Health().LastError, ErrNotDelivered) })
	if f.Connected() {
		t.Error("it is connected")
	}
	pgtest.WaitFor(t, patience, "another one is tried", func() bool { return rung.Load() == 2 })
	if err := f.stop(); !errors.Is(err, errStop) {
		t.Error(err)
	}
	select {
	case event := <-f.events:
		t.Errorf("event %q", event)
	default:
	}
}
