package worker_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/internal/pgtest"
	"github.com/pgwake/pgwake/registry"
	"github.com/pgwake/pgwake/worker"
)

// workerURL, if set, makes this test binary a worker process on that database.
const workerURL = "PGWAKE_TEST_WORKER_URL"

func TestMain(m *testing.M) {
	if url := os.Getenv(workerURL); url != "" {
		if err := workerProcess(url); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	pgtest.Main(m)
}

// workerProcess works until SIGTERM. Its poison handlers end the process in their various ways.
func workerProcess(url string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	debug.SetMaxStack(1 << 20) // a stack overflow need not take a gigabyte
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	reg := registry.New()
	poison := func(kill func()) registry.Next {
		return func(ctx context.Context, run *pgwake.Run) error {
			if _, err := pool.Exec(ctx, `insert into starts values ($1, $2)`, run.ID, run.Attempt); err != nil {
				return err
			}
			kill()
			select {} // until the process is gone
		}
	}
	opts := &registry.Options{MaxAttempts: 3}
	for name, kill := range map[string]func(){
		"poison.exit":   func() { os.Exit(2) },
		"poison.kill":   func() { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL) },
		"poison.stack":  func() { panic(endless(0)) },
		"poison.panics": func() { go func() { panic("in a child goroutine") }() },
	} {
		if err := registry.RegisterRaw(reg, name, poison(kill), opts); err != nil {
			return err
		}
	}
	for _, name := range []string{"good.quick", "good.slow"} {
		if err := registry.RegisterRaw(reg, name, func(ctx context.Context, run *pgwake.Run) error {
			if name == "good.slow" {
				select {
				case <-time.After(300 * time.Millisecond):
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			return nil
		}, opts); err != nil {
			return err
		}
	}
	w, err := worker.New(pool, reg, worker.Config{Lease: time.Second, Sweep: 200 * time.Millisecond, Slots: 10, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	return w.Run(ctx)
}

// endless recurses until the stack is full.
func endless(n int) int {
	if n < 0 {
		return 0
	}
	return endless(n+1) + endless(n+2)
}

// supervise keeps one worker process alive until the test ends, as systemd or Kubernetes would.
func supervise(t *testing.T, url string) (crashes *atomic.Int32) {
	t.Helper()
	crashes = &atomic.Int32{}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			cmd := exec.CommandContext(ctx, os.Args[0])
			cmd.Env = append(os.Environ(), workerURL+"="+url)
			cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
			cmd.WaitDelay = 10 * time.Second
			if err := cmd.Run(); err != nil && ctx.Err() == nil {
				crashes.Add(1)
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return crashes
}

// B21: a task that kills its process is frozen after exactly as many starts as it has attempts; those that ran beside
// it succeed, and others flow on.
func TestCaseB21Poison(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"poison.exit", "poison.kill", "poison.stack", "poison.panics"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.exec(`create table starts (id uuid, attempt int)`)
			var good []uuid.UUID
			for range 8 {
				good = append(good, b.enqueue("good.slow", nil))
			}
			poison := b.enqueue(kind, nil)
			crashes := supervise(t, b.pool.Config().ConnString())
			pgtest.WaitFor(t, 60*time.Second, "poison is frozen", func() bool {
				if len(good) < 200 { // others come in all the while
					good = append(good, b.enqueue("good.quick", nil))
				}
				return b.task(poison).Status == pgwake.Frozen
			})
			task := b.task(poison)
			var starts int
			if err := b.pool.QueryRow(t.Context(), `select count(*) from starts where id = $1`, poison).Scan(&starts); err != nil {
				t.Fatal(err)
			}
			if starts != 3 || task.Attempt != 3 || task.LastError == nil || !strings.Contains(*task.LastError, "worker lost") {
				t.Errorf("%d starts, attempt %d, error %v", starts, task.Attempt, task.LastError)
			}
			if crashes.Load() != 3 {
				t.Errorf("%d crashes", crashes.Load())
			}
			// Those that were lost twice with the poison run one at a time.
			defer func() {
				for _, id := range good {
					if task := b.task(id); t.Failed() && task.Status != pgwake.Succeeded {
						t.Logf("%s is %s, attempt %d of %d, retry at %v, errors %+v", task.Type, task.Status, task.Attempt, task.MaxAttempts, task.RetryAt, task.Errors)
					}
				}
			}()
			pgtest.WaitFor(t, 60*time.Second, "the others have succeeded", func() bool {
				return !slices.ContainsFunc(good, func(id uuid.UUID) bool { return b.task(id).Status != pgwake.Succeeded })
			})
		})
	}
}
