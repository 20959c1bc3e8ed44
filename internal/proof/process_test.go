//go:build unix

package proof_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/internal/pgtest"
	"github.com/pgwake/pgwake/lease"
	"github.com/pgwake/pgwake/registry"
	"github.com/pgwake/pgwake/worker"
)

// jobVariable makes the test binary a worker process; its value is a job as JSON.
const jobVariable = "PGWAKE_PROOF_JOB"

// job is what a worker process is to do.
type job struct {
	Role  string // one of roles
	URL   string
	Name  string // of the worker
	Slots int
	Lease time.Duration
	Sweep time.Duration
	Drain time.Duration
	Work  time.Duration // mean time of a handler, where the role has use for it
	Log   string        // file to write runs to, where the role does so
}

// lastWords is how much of a process's log a failed test shows.
const lastWords = 2 << 10

// listening is what a worker process says on its standard output once it listens.
const listening = "listening"

// worked is a worker process from its inside.
type worked struct {
	job
	pool   *pgxpool.Pool
	queue  *lease.Queue
	worker *worker.Worker
}

// work is the main function of a worker process.
func work(text string) int {
	if err := runJob(text); err != nil {
		fmt.Fprintln(os.Stderr, "worker process:", err)
		return 1
	}
	return 0
}

func runJob(text string) error {
	w := &worked{}
	if err := json.Unmarshal([]byte(text), &w.job); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() { // ends with the process
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(2) // the parent is gone
	}()

	config, err := pgxpool.ParseConfig(w.URL)
	if err != nil {
		return err
	}
	config.MaxConns = int32(min(w.Slots, 4))
	config.ConnConfig.RuntimeParams["application_name"] = poolName(w.Name)
	if w.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return err
	}
	defer w.pool.Close()
	if w.queue, err = lease.New(pgwake.Table(pgtest.Schema)); err != nil {
		return err
	}
	reg := registry.New()
	opts := &registry.Options{Timeout: registry.NoTimeout, MaxAttempts: 20, Retry: registry.Constant(100 * time.Millisecond)}
	if err := registry.RegisterRaw(reg, w.Role, roles[w.Role](w), opts); err != nil {
		return err
	}
	w.worker, err = worker.New(w.pool, reg, worker.Config{
		Name: w.Name, Slots: w.Slots, Lease: w.Lease, Sweep: w.Sweep, DrainTimeout: w.Drain,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		return err
	}
	go func() { // ends with the process
		for !w.worker.Health().Listening {
			pause(5 * time.Millisecond)
		}
		fmt.Println(listening)
	}()
	return w.worker.Run(ctx)
}

// Names of the sessions of a worker process: those of its handlers, and those of its worker.
func poolName(worker string) string { return "proof " + worker }

const workerSessions = "pgwake "

// event notes what a run did, whatever has become of its context.
func (w *worked) event(run *pgwake.Run, what, detail string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := w.pool.Exec(ctx, `insert into proof.event (task, attempt, worker, what, detail) values ($1, $2, $3, $4, $5)`,
		run.ID, run.Attempt, w.Name, what, detail)
	return err
}

// process is a worker process from its outside.
type process struct {
	t      testing.TB
	name   string
	cmd    *exec.Cmd
	stdin  io.Closer
	log    *tail
	listen chan struct{} // closed when it listens
	done   chan struct{} // closed when it has ended and been waited for

	mu       sync.Mutex
	expected bool // it was told to end, or killed
}

// launch starts a worker process. It is killed when the test ends.
func (b *bench) launch(j job) *process {
	b.Helper()
	j.URL = b.url
	text, err := json.Marshal(j)
	if err != nil {
		b.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	p := &process{t: b, name: j.Name, cmd: exec.Command(exe), log: &tail{}, listen: make(chan struct{}), done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), jobVariable+"="+string(text))
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	dieWithParent(p.cmd.SysProcAttr)
	p.cmd.Stderr = p.log
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	p.stdin = stdin
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}

	started := make(chan error)
	// Ends with the process. It keeps its thread until then: Linux sends a parent's death signal when the thread that
	// forked ends.
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.done)
		err := p.cmd.Start()
		started <- err
		if err != nil {
			return
		}
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			if lines.Text() == listening {
				close(p.listen)
			}
		}
		_ = p.cmd.Wait() // the state tells all
	}()
	if err := <-started; err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		unexpected := p.ended() && !p.told()
		p.kill()
		_ = p.stdin.Close()
		if unexpected {
			b.Errorf("%s ended by itself: %s", p.name, p.cmd.ProcessState)
		}
		if b.Failed() {
			b.Logf("last words of %s:\n%s", p.name, p.log.last(lastWords))
		}
	})
	return p
}

// ready waits until the process listens.
func (p *process) ready() *process {
	p.t.Helper()
	select {
	case <-p.listen:
	case <-p.done:
		p.t.Fatalf("%s ended: %s:\n%s", p.name, p.cmd.ProcessState, p.log)
	case <-time.After(patience):
		p.t.Fatalf("%s does not listen:\n%s", p.name, p.log)
	}
	return p
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

func (p *process) expect() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expected = true
}

func (p *process) told() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.expected
}

// kill ends the process by SIGKILL and returns when it is gone.
func (p *process) kill() {
	p.expect()
	_ = p.cmd.Process.Kill() // fails only if the process is gone
	<-p.done
}

// freeze stops the process where it is, until thaw.
func (p *process) freeze() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		p.t.Fatalf("stop %s: %v", p.name, err)
	}
}

func (p *process) thaw() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		p.t.Fatalf("continue %s: %v", p.name, err)
	}
}

// terminate tells the process to stop. It does not wait for it.
func (p *process) terminate() {
	p.t.Helper()
	p.expect()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatalf("terminate %s: %v", p.name, err)
	}
}

// drained waits until a terminated process has ended, and fails the test if it did not end well.
func (p *process) drained(limit time.Duration) {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(limit):
		p.t.Fatalf("%s has not ended %s after SIGTERM", p.name, limit)
	}
	if !p.cmd.ProcessState.Success() {
		p.t.Errorf("%s ended with %s", p.name, p.cmd.ProcessState)
	}
}

// said counts the lines of its log that have the text in them.
func (p *process) said(text string) (n int) {
	for line := range strings.Lines(p.log.String()) {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}
