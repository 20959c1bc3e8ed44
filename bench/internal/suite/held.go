package suite

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/pgwake/pgwake/bench/internal/fleet"
	"github.com/pgwake/pgwake/bench/internal/server"
)

// settle lets a worker come to rest: with plans for tables in use, or for empty ones.
func (s *stand) settle(ctx context.Context, p heldPlan) error {
	if p.cached {
		conns, err := s.connect(ctx, 1)
		if err != nil {
			return err
		}
		for range 10 { // often enough for every statement to have its plan
			if err := s.system.Enqueue(ctx, conns[0], 0); err != nil {
				return err
			}
			if err := rest(ctx, 200*time.Millisecond); err != nil {
				return err
			}
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, drainLimit, errors.New("the first tasks have not run"))
	defer cancel()
	if err := s.finished(ctx); err != nil {
		return err
	}
	if p.cached {
		if err := s.Exec(ctx, `vacuum (analyze)`); err != nil {
			return err
		}
	}
	return nil
}

// hold begins a transaction that keeps its snapshot until it is released.
func (s *stand) hold(ctx context.Context) (release func() error, err error) {
	conn, err := pgx.Connect(ctx, s.URL)
	if err != nil {
		return nil, err
	}
	for _, sql := range []string{`begin isolation level repeatable read`, `select count(*) from pg_class`} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return nil, errors.Join(err, conn.Close(ctx))
		}
	}
	return func() error { return conn.Close(context.Background()) }, nil
}

// windows has tasks come, and cuts what happens into windows.
func (b *bench) windows(ctx context.Context, s *stand, f fleet.Fleet, name string, p heldPlan) (c curve, err error) {
	conns, err := s.connect(ctx, heldSenders)
	if err != nil {
		return nil, err
	}
	number := b.Minutes * heldMinute
	group, ctx := errgroup.WithContext(ctx)
	enough := make(chan struct{})
	var ran atomic.Int64 // tasks, as far as is known
	group.Go(func() error {
		if p.rate > 0 {
			_, err := pace(ctx, conns, int(p.rate*float64(number)*b.window().Seconds()), p.rate, s.system.Enqueue)
			return err
		}
		return s.refill(ctx, enough, &ran)
	})
	group.Go(func() error {
		defer close(enough)
		var last server.Usage
		var begun int64
		for {
			w, now, err := s.window(ctx, f, p, last, b.window(), &ran)
			if err != nil {
				return err
			}
			w.tasks -= float64(begun)
			if last, begun = now, ran.Load(); w.seconds == 0 {
				continue // it only began
			}
			c = append(c, w)
			b.progress("%s, after %.0f s: %.0f/s%s, %.3f ms of the server's CPU a task", name,
				float64(len(c))*b.window().Seconds(), w.rate(), starts(w), 1000*cpuEach(c[len(c)-1:]))
			if len(c) == number {
				return nil
			}
		}
	})
	err = group.Wait()
	return c, err
}

// window waits for the end of a window that began when the last one ended.
func (s *stand) window(ctx context.Context, f fleet.Fleet, p heldPlan, last server.Usage, d time.Duration, ran *atomic.Int64) (w window, now server.Usage, err error) {
	for end := last.At.Add(d); ; {
		if p.rate == 0 {
			t, err := f.Tally(ctx)
			if err != nil {
				return w, now, err
			}
			ran.Store(t.Ran)
		}
		wait := time.Until(end)
		if wait <= 0 {
			break
		}
		if err := rest(ctx, min(wait, heldLook)); err != nil {
			return w, now, err
		}
	}
	if now, err = s.usage(ctx, f); err != nil {
		return w, now, err
	}
	w.tasks = float64(ran.Load())
	if p.rate > 0 {
		starts, err := f.Starts(ctx)
		if err != nil {
			return w, now, err
		}
		w.tasks = float64(len(starts))
		for _, start := range starts {
			w.latencies = append(w.latencies, start.Latency())
		}
	}
	if !last.At.IsZero() {
		spent := now.Since(last)
		w.seconds, w.cpu, w.others = spent.Seconds, spent.ServerCPU, spent.Others()
	}
	return w, now, nil
}

// refill keeps a backlog.
func (s *stand) refill(ctx context.Context, enough <-chan struct{}, ran *atomic.Int64) error {
	for filled := int64(0); ; {
		select {
		case <-enough:
			return nil
		default:
		}
		if filled-ran.Load() > heldBacklog {
			if err := rest(ctx, heldLook); err != nil {
				return err
			}
			continue
		}
		if err := s.system.Fill(ctx, s.Database, heldBacklog); err != nil {
			return err
		}
		filled += heldBacklog
	}
}
