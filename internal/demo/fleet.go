package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/pgwake/pgwake/worker"
)

// What the parent tells a worker process. The address may hold a password, which arguments would show to everybody.
const (
	urlVariable   = "PGWAKE_DEMO_DATABASE_URL"
	nameVariable  = "PGWAKE_DEMO_WORKER"
	slotsVariable = "PGWAKE_DEMO_SLOTS"
)

const (
	drainTimeout = 3 * time.Second
	stopLimit    = drainTimeout + 5*time.Second // a worker that takes longer to drain is killed
)

// Work is a worker process: it runs tasks until ctx or stdin ends. The parent holds the other end of stdin, so that the
// worker stops however the parent ended.
func Work(ctx context.Context, stdin io.Reader, stderr io.Writer) error {
	name := os.Getenv(nameVariable)
	slots, err := strconv.Atoi(os.Getenv(slotsVariable))
	if err != nil || name == "" {
		return errors.New("this command is for the demo's own use: run 'pgwake demo'")
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go func() { // ends with the parent or with this process
		_, _ = io.Copy(io.Discard, stdin)
		stop(errors.New("the demo has ended"))
	}()

	pool, err := openPool(ctx, os.Getenv(urlVariable), "pgwake "+name, slots+2)
	if err != nil {
		return err
	}
	defer pool.Close()
	c, err := newCrawler(ctx, pool, name)
	if err != nil {
		return err
	}
	defer c.close()
	w, err := worker.New(pool, c.types, worker.Config{
		Name: name, Slots: slots, Lease: lease, DrainTimeout: drainTimeout,
		Logger: slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return err
	}
	return w.Run(ctx)
}

// process is one worker process, as the parent sees it.
type process struct {
	name     string
	cmd      *exec.Cmd
	stdin    io.Closer     // its end tells the worker to stop
	expected atomic.Bool   // the end of the process
	ended    chan struct{} // closed when the process has ended and been waited for
}

// startProcess starts a worker. One that ends by itself is reported to fail.
func startProcess(cfg Config, databaseURL, name string, fail func(error)) (*process, error) {
	cmd := exec.Command(cfg.Command[0], cfg.Command[1:]...)
	cmd.Env = append(os.Environ(), urlVariable+"="+databaseURL, nameVariable+"="+name, slotsVariable+"="+strconv.Itoa(cfg.Slots))
	var log bytes.Buffer
	cmd.Stderr = &log
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &process{name: name, cmd: cmd, stdin: stdin, ended: make(chan struct{})}
	go func() { // ends with the process
		defer close(p.ended)
		_ = cmd.Wait() // the state tells all
		if !p.expected.Load() {
			fail(fmt.Errorf("%s ended by itself: %s; its last words: %s", name, cmd.ProcessState, bytes.TrimSpace(log.Bytes())))
		}
	}()
	return p, nil
}

// kill ends the process by SIGKILL and returns when it is gone.
func (p *process) kill() {
	p.expected.Store(true)
	_ = p.cmd.Process.Kill() // fails only if the process is gone
	<-p.ended
}

// stop lets all workers drain and returns when they are gone.
func stop(fleet []*process) {
	for _, p := range fleet {
		p.expected.Store(true)
		_ = p.stdin.Close() // it is closed if the process is gone
	}
	limit, cancel := context.WithTimeout(context.Background(), stopLimit)
	defer cancel()
	for _, p := range fleet {
		select {
		case <-p.ended:
		case <-limit.Done():
			p.kill()
		}
	}
}
