package embeddedpg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pgwake/pgwake/internal/wait"
)

const (
	startLimit     = 2 * time.Minute       // Start and Restart when their context has no deadline
	fastLimit      = 30 * time.Second      // a fast shutdown that takes longer becomes an immediate one
	immediateLimit = 10 * time.Second      // an immediate shutdown that takes longer becomes a SIGKILL
	bindLimit      = 5 * time.Second       // Restart waits this long for its old port
	readyPoll      = 5 * time.Millisecond  // between two looks whether the server is ready
	goneLimit      = 10 * time.Second      // backends must be gone this long after their SIGKILL
	gonePoll       = 2 * time.Millisecond  // between two looks whether they are
	retryPoll      = 50 * time.Millisecond // between two tries to bind the old port
)

// Config says where the server lives and how it runs. The zero Config is a temporary server for tests.
type Config struct {
	// Dir is the directory to keep between runs; it is made if missing, and initialised if empty. The data directory is Dir/data.
	// A root process needs a Dir that user postgres can reach, so none below /root. Empty: a temporary one,
	// removed by Stop; in /dev/shm if Durable is false, TMPDIR is not set and 4 GB are free there, else in the system's temporary directory.
	Dir string

	// BinDir is the folder that holds initdb and postgres. Empty: PGWAKE_POSTGRES_BIN, then postgres on the PATH with
	// initdb beside it, then pg_config --bindir, then the distributions' folders, newest major version first, then a
	// download of about 30 MB that is kept in the user's cache directory (in /var/cache for root).
	BinDir string

	// Settings are postgresql.conf settings that win over the defaults, but not over ALTER SYSTEM. A "port" given here is used as it is.
	Settings map[string]string

	// Durable switches fsync, synchronous_commit and full_page_writes on, as in production: for benchmarks and crash tests. False
	// switches them off: a crash of the server loses nothing then but asynchronous commits, a crash of the machine may lose all.
	Durable bool

	// Logger gets a line when the server starts, stops or crashes, and one before a download. Default: discard.
	Logger *slog.Logger
}

// Server is a running PostgreSQL server. Its methods may be called from any goroutine.
type Server struct {
	programs programs
	account  account
	dir      *directory
	settings map[string]string
	port     int
	log      *slog.Logger

	mu      sync.Mutex // guards what follows; held over a whole start or stop, so these do not overlap
	process *process   // nil while the server is down
	crashed bool       // killed and not started since, so its shared memory is still there
	stopped bool       // Stop was called
}

// Start makes the directory if need be and returns once the server accepts connections, with databases postgres and template1 in
// it and the superuser postgres. ctx bounds the start, not the server's life; without a deadline the start has two minutes. A
// download cannot be interrupted.
//
// It also removes temporary directories of earlier servers whose owner was killed. [ProgramsError] is returned if there is no
// PostgreSQL to run.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	ctx, cancel := limited(ctx)
	defer cancel()
	s := &Server{log: cfg.Logger}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}

	var err error
	if s.programs, err = findPrograms(ctx, cfg.BinDir, s.log); err != nil {
		return nil, err
	}
	if s.account, err = chooseAccount(cfg.Dir); err != nil {
		return nil, err
	}
	if err := s.programs.probe(ctx, s.account); err != nil {
		return nil, err
	}
	reach := func(dir string) error { return s.programs.reach(ctx, s.account, dir) }
	if s.dir, err = openDirectory(ctx, cfg.Dir, cfg.Durable, s.account, reach); err != nil {
		return nil, err
	}
	if err = s.initialise(ctx, cfg); err != nil {
		err = fmt.Errorf("initialise %s: %w", s.dir.path, err)
	} else {
		err = s.startOnFreePort(ctx, cfg)
	}
	if err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

// URL returns the TCP address of a database as a postgres:// URL, for this process and any other on the machine. An empty name is
// the database postgres. It stays the same over Restart.
func (s *Server) URL(database string) string {
	u := s.url(database)
	u.Host = s.Addr()
	return u.String()
}

// SocketURL is URL by the Unix socket, which saves some microseconds a round trip; "" where there is none: the directory's path is
// too long for a socket address, or the system is Windows.
func (s *Server) SocketURL(database string) string {
	dir := s.settings["unix_socket_directories"]
	if dir == "" {
		return ""
	}
	u := s.url(database)
	q := u.Query()
	q.Set("host", dir)
	q.Set("port", strconv.Itoa(s.port))
	u.RawQuery = q.Encode()
	return u.String()
}

func (s *Server) url(database string) url.URL {
	if database == "" {
		database = "postgres"
	}
	return url.URL{Scheme: "postgres", User: url.User("postgres"), Path: "/" + database, RawQuery: "sslmode=disable"}
}

// Addr is host:port on the loopback interface, for a proxy in front of the server. It stays the same over Restart.
func (s *Server) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// Dir is the directory that holds everything of the server; see the package comment for its layout.
func (s *Server) Dir() string { return s.dir.path }

// BinDir is the folder of the server's programs; pg_ctl, pgbench and the like may be in it, too.
func (s *Server) BinDir() string { return s.programs.dir }

// Version is the server's version as the programs tell it, such as "15.14".
func (s *Server) Version() string { return s.programs.version }

// LogFile is the file the server writes its messages to.
func (s *Server) LogFile() string { return filepath.Join(s.dir.path, "postgres.log") }

// PID is the process id of the postmaster, 0 while the server is down.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		return 0
	}
	return s.process.pid()
}

// Stop ends the server by a fast shutdown and removes a temporary directory. Sessions end with SQLSTATE 57P01. It may be called at any
// time and more than once; only the first call does anything.
func (s *Server) Stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return nil
	}
	s.stopped = true
	if s.crashed && s.dir.temporary {
		s.releaseMemory()
	}
	err := s.halt(fast)
	if rmErr := s.dir.close(); rmErr != nil {
		err = errors.Join(err, rmErr)
	}
	s.log.Debug("postgres stopped", "dir", s.dir.path)
	return err
}

// StopFast ends the server as Stop does (SQLSTATE 57P01 to its sessions, a checkpoint), but leaves the directory to Restart.
func (s *Server) StopFast() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.halt(fast)
}

// StopImmediate ends the server without a checkpoint, as pg_ctl stop -m immediate does: sessions end with SQLSTATE 57P02 or a broken
// connection and the next start recovers from the log. The directory is left to Restart.
func (s *Server) StopImmediate() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.halt(immediate)
}

// Crash kills the postmaster and every backend by SIGKILL and returns when all are gone. What was in the server's memory is lost (so
// asynchronous commits of the last moments are), what it had written to files survives, synced or not: the system did not
// crash. The directory is left to Restart. Outside Unix only the postmaster is killed; backends follow when they notice.
func (s *Server) Crash() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.crash()
}

// Restart starts a server that is down on the same directory and address, and returns when it accepts connections. One that runs is
// shut down fast before. The deadline rule of Start applies, and recovery counts.
func (s *Server) Restart(ctx context.Context) error {
	ctx, cancel := limited(ctx)
	defer cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return errors.New("restart postgres: the server was ended by Stop; use StopFast to restart later")
	}
	if err := s.halt(fast); err != nil {
		return err
	}
	// The port is below the range the system hands out, but for a moment a proxy or a second server may sit on it.
	for giveUp := time.Now().Add(bindLimit); ; {
		err := s.start(ctx)
		if !errors.Is(err, errPortTaken) || time.Now().After(giveUp) {
			return err
		}
		if err := wait.For(ctx, retryPoll); err != nil {
			return err
		}
	}
}

// startOnFreePort writes the settings and starts the server, on another port if the one chosen was taken between the look and the bind.
func (s *Server) startOnFreePort(ctx context.Context, cfg Config) error {
	fixed := cfg.Settings["port"]
	for try := 0; ; try++ {
		port, err := choosePort(fixed)
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.port = port
		s.settings = s.programs.defaults(cfg.Durable, port, s.dir.socketDir())
		maps.Copy(s.settings, cfg.Settings)
		if err = s.writeSettings(); err == nil {
			err = s.start(ctx)
		}
		s.mu.Unlock()
		if !errors.Is(err, errPortTaken) || fixed != "" || try == 10 {
			return err
		}
	}
}

var errPortTaken = errors.New("the port is taken by another program")

// start runs the postmaster and waits until it has written "ready" into its pid file, as pg_ctl does: a look by a connection could
// reach another server that has just taken the port. The caller holds mu.
func (s *Server) start(ctx context.Context) error {
	logFile, err := os.OpenFile(s.LogFile(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("start postgres: %w", err)
	}
	defer logFile.Close() // the server has its own
	from, err := logFile.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("start postgres: %w", err)
	}

	cmd := exec.Command(s.programs.path("postgres"), "-D", s.dir.data(), "-c", "config_file="+s.dir.join("postgres.conf"))
	cmd.Dir = s.dir.path
	cmd.Env = serverEnv()
	cmd.Stdout, cmd.Stderr = logFile, logFile
	runAs(cmd, s.account, s.dir.deathSignal())
	p, err := launch(cmd)
	if err != nil {
		return fmt.Errorf("start postgres: %w", err)
	}
	s.process, s.crashed = p, false

	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	for {
		select {
		case <-p.done:
			s.process = nil
			tail := logTail(s.LogFile(), from)
			if strings.Contains(tail, "could not bind") {
				return fmt.Errorf("start postgres on %s: %w", s.Addr(), errPortTaken)
			}
			return fmt.Errorf("start postgres: it ended at once (%s); its last messages:\n%s", p.state(), tail)
		case <-ctx.Done():
			err := fmt.Errorf("start postgres: not ready: %w; its last messages:\n%s", context.Cause(ctx), logTail(s.LogFile(), from))
			return errors.Join(err, s.halt(immediate))
		case <-tick.C:
			if f, err := readPidFile(s.dir.data()); err == nil && f.pid == p.pid() && f.ready {
				s.log.Debug("postgres ready", "version", s.programs.version, "addr", s.Addr(), "dir", s.dir.path, "pid", p.pid())
				return nil
			}
		}
	}
}

// halt ends the postmaster and waits for it, by ever harder means. The caller holds mu.
func (s *Server) halt(m mode) error {
	p := s.process
	if p == nil {
		return nil
	}
	limits := map[mode]time.Duration{fast: fastLimit, immediate: immediateLimit}
	for ; m <= immediate; m++ {
		if p.ended() {
			break
		}
		if err := s.signal(p, m); err != nil && !p.ended() {
			return fmt.Errorf("stop postgres: %w", err)
		}
		if p.wait(limits[m]) {
			break
		}
		s.log.Warn("postgres does not stop", "mode", m, "waited", limits[m])
	}
	if !p.ended() {
		return s.crash()
	}
	s.process = nil
	return nil
}

// limited gives ctx the default deadline if it has none.
func limited(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, startLimit)
}
