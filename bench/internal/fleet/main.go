package fleet

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/registry"
	"github.com/pgwake/pgwake/worker"
)

const readyLine = "ready"

// Peer is a kind of process that another package has. Run is as [Main]: it says when it is ready, has the recorder handle
// every task, and returns when ctx ends.
type Peer struct {
	Kind Kind
	Run  func(ctx context.Context, job Job, rec *Recorder, log *slog.Logger) error
}

// Main is the main function of a process; text is its job. It returns when ctx or stdin ends.
func Main(ctx context.Context, text string, stdin io.Reader, stdout, stderr io.Writer, peers ...Peer) error {
	var job Job
	if err := json.Unmarshal([]byte(text), &job); err != nil {
		return fmt.Errorf("read job: %w", err)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	rec := newRecorder(job, stdout)
	go func() { // ends with the parent, or with this process
		defer stop()
		for lines := bufio.NewScanner(stdin); lines.Scan(); {
			rec.report()
		}
	}()
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	for _, p := range slices.Concat([]Peer{{Worker, workerMain}, {Raw, rawMain}, {RawDrain, rawDrainMain}}, peers) {
		if p.Kind == job.Kind {
			return p.Run(ctx, job, rec, log)
		}
	}
	return fmt.Errorf("no kind of process %q", job.Kind)
}

// errForeign is what becomes of a task that nobody should have enqueued.
var errForeign = errors.New("a worker of another type has got a task")

func workerMain(ctx context.Context, job Job, rec *Recorder, log *slog.Logger) error {
	config, err := pgxpool.ParseConfig(job.URL)
	if err != nil {
		return err
	}
	config.MaxConns = 1 // handlers have no use for it
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	reg := registry.New()
	if job.Type == TaskType {
		err = registry.Register(reg, func(ctx context.Context, task *pgwake.Task[Payload]) error {
			return rec.Handle(ctx, task.Payload, task.Attempt)
		}, &registry.Options{NoHistory: job.Setting == NoHistory})
	} else {
		err = registry.RegisterRaw(reg, job.Type, func(context.Context, *pgwake.Run) error { return errForeign }, nil)
	}
	if err != nil {
		return err
	}
	w, err := worker.New(pool, reg, worker.Config{
		Name: job.Name, Slots: job.Slots, PollOnly: job.PollOnly, Logger: log,
	})
	if err != nil {
		return err
	}
	go func() { // ends with ctx
		for working := false; !working; {
			if rest(ctx, 5*time.Millisecond) != nil {
				return
			}
			h := w.Health()
			working = h.Listening || job.PollOnly && !h.LastSweep.IsZero()
		}
		rec.Ready()
	}()
	return w.Run(ctx)
}

// rest lets time pass. It returns an error if ctx ends first.
func rest(ctx context.Context, d time.Duration) error {
	if d == 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// ended reports whether an error is only that of a process told to end.
func ended(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errors.Is(err, context.Canceled)
}
