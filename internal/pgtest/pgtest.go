// Package pgtest gives every test a migrated PostgreSQL database of its own.
//
// One server per test package, started by the first test that needs it, holds a template that is migrated once; each test gets
// a copy. TEST_DATABASE_URL names another server to use instead, whose role must be allowed to create databases.
//
//	func TestMain(m *testing.M) { pgtest.Main(m) }
//
//	func TestClaim(t *testing.T) {
//		t.Parallel()
//		pool := pgtest.New(t)
//		…
//	}
//
// A test binary is one program with one server, so this package keeps package state, unlike the rest of the module.
package pgtest

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/pgwake/pgwake/internal/embeddedpg"
	"github.com/pgwake/pgwake/migrations"
)

const (
	// Schema is the schema that databases of New and NewURL are migrated to.
	Schema = "pgwake"

	urlVariable = "TEST_DATABASE_URL"
	setupLimit  = 2 * time.Minute // starting the server and migrating the template
	createLimit = time.Minute     // creating or dropping a database
	poolSize    = 10              // connections of a pool: more than a worker's, so that the test can look on
	pollEvery   = 3 * time.Millisecond
)

// host is where the databases of this test binary are made.
type host struct {
	server   *embeddedpg.Server // nil if TEST_DATABASE_URL is set
	base     *url.URL           // of the database to create others from
	admin    *pgxpool.Pool      // on base
	template string             // name of the migrated database
}

// state is what Main owns and ends.
var state struct {
	mu      sync.Mutex // guards all, and is held while the host is set up
	inMain  bool
	host    *host
	failure error // why it could not be set up: said once by every test, tried once
}

// Main runs the tests of a package, stops the server, then fails the package if goroutines are left, and exits. options name goroutines
// that may stay. A test binary that is killed leaves its server to package embeddedpg: the kernel ends it, or the next start does.
func Main(m *testing.M, options ...goleak.Option) {
	moreParallel()
	os.Exit(run(m.Run, os.Stderr, options...))
}

// parallelPerCore is how many tests run at once for each core: they wait for the database and for timers most of the time.
const parallelPerCore = 4

func moreParallel() {
	flag.Parse()
	cores := runtime.GOMAXPROCS(0)
	if f := flag.Lookup("test.parallel"); f.Value.String() == strconv.Itoa(cores) { // nobody said otherwise
		_ = f.Value.Set(strconv.Itoa(parallelPerCore * cores))
	}
}

func run(tests func() int, out io.Writer, options ...goleak.Option) int {
	state.mu.Lock()
	state.inMain = true
	state.mu.Unlock()
	code := tests()
	if err := stop(); err != nil {
		fmt.Fprintln(out, "pgtest:", err)
		code = max(code, 1)
	}
	if code == 0 {
		if err := goleak.Find(options...); err != nil {
			fmt.Fprintln(out, "pgtest: goroutines left by the tests:", err)
			code = 1
		}
	}
	return code
}

// stop ends the host, if a test needed one.
func stop() error {
	state.mu.Lock()
	defer state.mu.Unlock()
	state.inMain = false
	h := state.host
	state.host, state.failure = nil, nil
	if h == nil {
		return nil
	}
	return h.close()
}

// New returns a pool on a migrated database of the test's own. The pool is closed and the database dropped when the test ends, after what
// the test registers by t.Cleanup later.
func New(t testing.TB) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(NewURL(t))
	if err != nil {
		t.Fatal("pgtest:", err)
	}
	config.MaxConns = poolSize
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal("pgtest:", err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// NewURL is New for a test that makes its own connections. Those still open when the test ends are cut.
func NewURL(t testing.TB) string {
	t.Helper()
	h := hostOf(t)
	return h.create(t, h.template)
}

// NewEmpty returns the URL of a database of the test's own that has nothing in it.
func NewEmpty(t testing.TB) string {
	t.Helper()
	return hostOf(t).create(t, "template0")
}

// Server starts a server of the test's own, with durable commits, that the test may crash and restart. It is stopped when the test ends.
// Migrate its databases yourself. TEST_DATABASE_URL does not apply, but if it is set and there are no server programs, the test is skipped.
func Server(t testing.TB) *embeddedpg.Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), setupLimit)
	defer cancel()
	server, err := embeddedpg.Start(ctx, embeddedpg.Config{Durable: true})
	if missing := (*embeddedpg.ProgramsError)(nil); errors.As(err, &missing) && os.Getenv(urlVariable) != "" {
		t.Skip("pgtest: needs a server of its own:", err)
	}
	if err != nil {
		t.Fatal("pgtest:", err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error("pgtest:", err)
		}
	})
	return server
}

// WaitFor returns once cond is true, and fails the test if that takes longer than timeout. what completes "waited 5s for …". cond is
// called every few milliseconds by the test's own goroutine, so it may call t.Fatal.
func WaitFor(t testing.TB, timeout time.Duration, what string, cond func() bool) {
	t.Helper()
	limit := time.NewTimer(timeout)
	defer limit.Stop()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-limit.C:
			if cond() { // it may just have become true
				return
			}
			t.Fatalf("waited %s for %s", timeout, what)
		}
	}
}

// hostOf returns the host, set up by the first test that asks.
func hostOf(t testing.TB) *host {
	t.Helper()
	state.mu.Lock()
	defer state.mu.Unlock()
	if !state.inMain {
		t.Fatal("pgtest: add `func TestMain(m *testing.M) { pgtest.Main(m) }`, which stops the server")
	}
	if state.host == nil && state.failure == nil {
		ctx, cancel := context.WithTimeout(context.Background(), setupLimit)
		defer cancel()
		state.host, state.failure = open(ctx, os.Getenv(urlVariable))
	}
	if state.failure != nil {
		t.Fatal("pgtest:", state.failure)
	}
	return state.host
}

// open connects to the server at given, or starts one, and makes the template.
func open(ctx context.Context, given string) (h *host, err error) {
	h = &host{template: "pgwake_template_" + suffix()}
	defer func() {
		if err != nil {
			h, err = nil, errors.Join(err, h.close())
		}
	}()
	if given == "" {
		if h.server, err = embeddedpg.Start(ctx, embeddedpg.Config{}); err != nil {
			return h, err
		}
		given = h.server.URL("postgres")
	}
	if h.base, err = parseURL(given); err != nil {
		return h, err
	}
	if h.admin, err = pgxpool.New(ctx, h.base.String()); err != nil {
		return h, err
	}
	if _, err := h.admin.Exec(ctx, "create database "+quote(h.template)+" template template0"); err != nil {
		return h, fmt.Errorf("create the template database: %w", err)
	}
	if _, err := migrations.Up(ctx, h.url(h.template), Schema); err != nil {
		return h, fmt.Errorf("migrate the template database: %w", err)
	}
	return h, nil
}

// parseURL accepts what a database's name can be replaced in, so no key=value connection string.
func parseURL(given string) (*url.URL, error) {
	u, err := url.Parse(given)
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
		return nil, fmt.Errorf("%s must be a URL: postgres://user@host:port/database", urlVariable)
	}
	return u, nil
}

func (h *host) close() error {
	var err error
	if h.admin != nil {
		if h.server == nil {
			ctx, cancel := context.WithTimeout(context.Background(), createLimit)
			defer cancel()
			_, err = h.admin.Exec(ctx, "drop database if exists "+quote(h.template)+" with (force)")
		}
		h.admin.Close()
	}
	if h.server != nil {
		err = errors.Join(err, h.server.Stop())
	}
	return err
}

func (h *host) url(database string) string {
	u := *h.base
	u.Path = "/" + database
	return u.String()
}

// create makes a database from a template and drops it when the test ends.
func (h *host) create(t testing.TB, template string) string {
	t.Helper()
	name := databaseName(t.Name())
	ctx, cancel := context.WithTimeout(context.Background(), createLimit)
	defer cancel()
	if err := h.createFrom(ctx, name, template); err != nil {
		t.Fatal("pgtest:", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), createLimit)
		defer cancel()
		if _, err := h.admin.Exec(ctx, "drop database "+quote(name)+" with (force)"); err != nil {
			t.Error("pgtest: drop the test's database:", err)
		}
	})
	return h.url(name)
}

// createFrom tries again while somebody is connected to the template: a session that migrated it may take a moment to end, and autovacuum
// looks in. The server itself waits five seconds each time before it says so.
func (h *host) createFrom(ctx context.Context, name, template string) error {
	for {
		_, err := h.admin.Exec(ctx, "create database "+quote(name)+" template "+quote(template))
		var pgErr *pgconn.PgError
		if err == nil {
			return nil
		} else if !errors.As(err, &pgErr) || pgErr.Code != "55006" { // object_in_use
			return fmt.Errorf("create database %s: %w", name, err)
		}
	}
}

var notInNames = regexp.MustCompile(`[^a-z0-9]+`)

// databaseName is readable in pg_stat_activity and unique on a server that others use too. A name has at most 63 bytes.
func databaseName(test string) string {
	test = strings.Trim(notInNames.ReplaceAllString(strings.ToLower(test), "_"), "_")
	return fmt.Sprintf("%.48s_%s", cmp.Or(test, "test"), suffix())
}

func suffix() string { return fmt.Sprintf("%010x", rand.Uint64()>>24) }

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }
