// Package measure lets a program measure its own handlers: [Run] enqueues a workload, has a worker of the program's own
// registry run it, and tells how fast that was, by what the database has noted of every task.
package measure

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/registry"
	"github.com/pgwake/pgwake/worker"
)

// Workload is what is enqueued, and how.
type Workload struct {
	// Tasks is how many there are.
	Tasks int
	// Payload makes that of a task by its number, from 0.
	Payload func(number int) pgwake.Payload
	// Options are those of a task by its number; nil: none have any.
	Options func(number int) *pgwake.EnqueueOptions
	// Rate is how many are enqueued a second, one by one, while the worker runs. 0: all are enqueued at once before it
	// starts, which shows how fast it drains them.
	Rate float64
	// Clients enqueue at the rate; 4 by default. The pool should have a connection for each beside those that handlers use.
	Clients int
	// Worker is how the worker works; the zero value is its default.
	Worker worker.Config
}

const (
	defaultClients = 4
	// bulk is how many tasks are enqueued at once where there is no rate.
	bulk = 1000
	// mark is the key in the metadata of tasks that tells those of a run from all others.
	mark = "measure"
)

// Run enqueues a workload through the pool, runs it by a worker of the registry in this process, and returns once no task
// of it is left that a worker would run: those whose handlers fail are waited for until they are out of attempts. It
// enqueues and runs for real; the tasks stay in the archive, and other workers of the same types take some of them. If ctx
// ends first the tasks that are left stay queued.
func Run(ctx context.Context, pool *pgxpool.Pool, reg *registry.Registry, w Workload) (*Result, error) {
	if w.Tasks < 1 || w.Payload == nil || w.Rate < 0 || w.Clients < 0 {
		return nil, errors.New("measure: a workload needs at least 1 task, Payload, and neither Rate nor Clients below zero")
	}
	w.Worker.Schema = cmp.Or(w.Worker.Schema, pgwake.DefaultSchema)
	client, err := pgwake.NewClient(ctx, pool, pgwake.ClientConfig{Schema: w.Worker.Schema, Types: reg})
	if err != nil {
		return nil, fmt.Errorf("measure: %w", err)
	}
	works, err := worker.New(pool, reg, w.Worker)
	if err != nil {
		return nil, fmt.Errorf("measure: %w", err)
	}
	m := &measuring{Workload: w, pool: pool, client: client, id: uuid.NewString()}
	if w.Rate == 0 {
		if err := m.enqueueAll(ctx); err != nil {
			return nil, fmt.Errorf("measure: %w", err)
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	running, stop := context.WithCancel(ctx)
	defer stop()
	group.Go(func() error {
		if err := works.Run(running); running.Err() == nil {
			return fmt.Errorf("the worker ended by itself: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		defer stop()
		if w.Rate > 0 {
			if err := m.enqueuePaced(ctx); err != nil {
				return err
			}
		}
		return m.wait(ctx)
	})
	if err := group.Wait(); err != nil {
		return nil, fmt.Errorf("measure: %w", err)
	}
	result, err := m.result(context.WithoutCancel(ctx))
	if err != nil {
		return nil, fmt.Errorf("measure: %w", err)
	}
	return result, nil
}

// measuring is a run under way.
type measuring struct {
	Workload
	pool   *pgxpool.Pool
	client *pgwake.Client
	id     string // of the run, in the metadata of its tasks

	mu    sync.Mutex // guards calls
	calls []time.Duration
}

// task makes one by its number, marked as one of this run's.
func (m *measuring) task(number int) pgwake.NewTask {
	var opts pgwake.EnqueueOptions
	if m.Options != nil {
		if given := m.Options(number); given != nil {
			opts = *given
		}
	}
	opts.Metadata = maps.Clone(opts.Metadata)
	if opts.Metadata == nil {
		opts.Metadata = map[string]any{}
	}
	opts.Metadata[mark] = m.id
	return pgwake.NewTask{Payload: m.Payload(number), Options: &opts}
}

func (m *measuring) enqueueAll(ctx context.Context) error {
	for first := 0; first < m.Tasks; first += bulk {
		var batch []pgwake.NewTask
		for i := first; i < min(first+bulk, m.Tasks); i++ {
			batch = append(batch, m.task(i))
		}
		if _, err := m.client.EnqueueMany(ctx, batch); err != nil {
			return err
		}
	}
	return nil
}

// enqueuePaced has clients enqueue at the rate. One that is late catches up.
func (m *measuring) enqueuePaced(ctx context.Context) error {
	clients := cmp.Or(m.Clients, defaultClients)
	began, gap := time.Now(), float64(time.Second)/m.Rate
	group, ctx := errgroup.WithContext(ctx)
	for c := range clients {
		group.Go(func() error {
			for i := c; i < m.Tasks; i += clients {
				if err := rest(ctx, time.Until(began.Add(time.Duration(gap*float64(i))))); err != nil {
					return err
				}
				task, sent := m.task(i), time.Now()
				if _, err := m.client.Enqueue(ctx, task.Payload, task.Options); err != nil && !errors.Is(err, pgwake.ErrDuplicate) {
					return err
				}
				m.mu.Lock()
				m.calls = append(m.calls, time.Since(sent))
				m.mu.Unlock()
			}
			return nil
		})
	}
	return group.Wait()
}

// rest lets time pass; none if d is not positive.
func rest(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
