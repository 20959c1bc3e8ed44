package fleet

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/registry"
	"github.com/pgwake/pgwake/worker"
)

const readyLine = "ready"

// Main is the main function of a process; text is its job. It returns when ctx or stdin ends.
func Main(ctx context.Context, text string, stdin io.Reader, stdout, stderr io.Writer) error {
	var job Job
	if err := json.Unmarshal([]byte(text), &job); err != nil {
		return fmt.Errorf("read job: %w", err)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	rec := &recorder{out: stdout}
	go func() { // ends with the parent, or with this process
		defer stop()
		for lines := bufio.NewScanner(stdin); lines.Scan(); {
			rec.report()
		}
	}()
	if job.Kind == Raw {
		return rawMain(ctx, job, rec)
	}
	return workerMain(ctx, job, rec, stderr)
}

// recorder keeps what has happened until the parent asks.
type recorder struct {
	out io.Writer

	mu     sync.Mutex // guards out and starts
	starts []Start
}

func (r *recorder) start(payload []byte, at time.Time, attempt int) error {
	var p Payload
	if err := json.Unmarshal(payload, &p); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.starts = append(r.starts, Start{Sent: p.Sent, At: at.UnixNano(), Attempt: attempt})
	return nil
}

func (r *recorder) report() {
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = json.NewEncoder(r.out).Encode(r.starts) // without a parent this process ends
	r.starts = []Start{}
}

func (r *recorder) ready() {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintln(r.out, readyLine)
	r.starts = []Start{}
}

func workerMain(ctx context.Context, job Job, rec *recorder, stderr io.Writer) error {
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
	handler := func(ctx context.Context, run *pgwake.Run) error {
		if err := rec.start(run.RawPayload, time.Now(), run.Attempt); err != nil {
			return err
		}
		return rest(ctx, job.Work)
	}
	if err := registry.RegisterRaw(reg, job.Type, handler, nil); err != nil {
		return err
	}
	w, err := worker.New(pool, reg, worker.Config{
		Name: job.Name, Slots: job.Slots, PollOnly: job.PollOnly,
		Logger: slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
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
		rec.ready()
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
