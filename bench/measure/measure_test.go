package measure_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/bench/measure"
	"github.com/pgwake/pgwake/internal/pgtest"
	"github.com/pgwake/pgwake/registry"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// work is a task whose handler does what it says.
type work struct {
	Number int
	Do     string
}

func (work) TaskType() string { return "measure.work" }

func newRegistry(t *testing.T) *registry.Registry {
	reg := registry.New()
	err := registry.Register(reg, func(_ context.Context, task *pgwake.Task[work]) error {
		switch {
		case task.Payload.Do == "cancel":
			return pgwake.Cancel(errors.New("so"))
		case task.Payload.Do == "freeze":
			return pgwake.Freeze(errors.New("so"))
		case task.Payload.Do == "again" && task.Attempt == 1:
			return pgwake.RetryAfter(0, errors.New("so"))
		}
		return nil
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return reg
}

// Whatever becomes of the tasks, each is counted once, and those of others are not.
func TestDrain(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	reg := newRegistry(t)
	client, err := pgwake.NewClient(t.Context(), pool, pgwake.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Enqueue(t.Context(), work{Number: -1}, nil); err != nil {
		t.Fatal(err)
	}
	does := map[int]string{3: "cancel", 4: "cancel", 5: "freeze", 1999: "again"}
	r, err := measure.Run(t.Context(), pool, reg, measure.Workload{
		Tasks:   2500,
		Payload: func(n int) pgwake.Payload { return work{n, does[n]} },
		Options: func(int) *pgwake.EnqueueOptions {
			return &pgwake.EnqueueOptions{Metadata: map[string]any{"mine": true}}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.Succeeded != 2497 || r.Cancelled != 2 || r.Frozen != 1 || r.Retried != 1 {
		t.Errorf("%+v", r)
	}
	if r.Rate <= 0 || r.Took <= 0 || r.Start.P50 <= 0 || r.Start.Max < r.Start.P50 || r.Handle.P50 <= 0 || r.Enqueue.P50 != 0 {
		t.Errorf("%+v", r)
	}
	if text := r.String(); !strings.HasPrefix(text, "2500 tasks in ") || strings.Contains(text, "enqueue") {
		t.Error(text)
	}
	var both int
	err = pool.QueryRow(t.Context(), `select count(*) from pgwake.all_tasks where metadata ? 'mine' and metadata ? 'measure'`).Scan(&both)
	if err != nil || both != 2500 {
		t.Errorf("%d tasks have both kinds of metadata, %v", both, err)
	}
}

func TestPaced(t *testing.T) {
	t.Parallel()
	began := time.Now()
	r, err := measure.Run(t.Context(), pgtest.New(t), newRegistry(t), measure.Workload{
		Tasks: 100, Payload: func(n int) pgwake.Payload { return work{Number: n} }, Rate: 200,
	})
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); r.Succeeded != 100 || r.Enqueue.P50 <= 0 || took < 490*time.Millisecond {
		t.Errorf("%+v in %s", r, took)
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	for name, w := range map[string]measure.Workload{
		"no tasks":   {Payload: func(int) pgwake.Payload { return work{} }},
		"no payload": {Tasks: 1},
		"negative":   {Tasks: 1, Payload: func(int) pgwake.Payload { return work{} }, Rate: -1},
	} {
		if _, err := measure.Run(t.Context(), nil, nil, w); err == nil {
			t.Errorf("%s: it ran", name)
		}
	}
}

// The tasks of a run that is ended stay.
func TestEnded(t *testing.T) {
	t.Parallel()
	pool, reg := pgtest.New(t), registry.New()
	ctx, stop := context.WithCancel(t.Context())
	var ran atomic.Int32
	err := registry.Register(reg, func(context.Context, *pgwake.Task[work]) error {
		if ran.Add(1) == 3 {
			stop()
		}
		return pgwake.Snooze(time.Hour)
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = measure.Run(ctx, pool, reg, measure.Workload{Tasks: 3, Payload: func(n int) pgwake.Payload { return work{Number: n} }})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	var left int
	if err := pool.QueryRow(t.Context(), `select count(*) from pgwake.tasks where status = 'queued'`).Scan(&left); err != nil || left != 3 {
		t.Errorf("%d tasks are left, %v", left, err)
	}
}
