package suite

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

// flood is clients that enqueue one task after the other, as fast as they can.
type flood struct {
	done atomic.Int64
	end  func() error
}

// flood starts clients, each with a connection of its own. They go on until end is called, which returns the first error.
func (q *queue) flood(ctx context.Context, clients int) (*flood, error) {
	conns, err := q.connect(ctx, clients)
	if err != nil {
		return nil, err
	}
	return newFlood(ctx, conns, func(ctx context.Context, conn *pgx.Conn) error { return q.enqueue(ctx, conn, 0, time.Time{}) }), nil
}

// newFlood starts a client on each connection.
func newFlood(ctx context.Context, conns []*pgx.Conn, enqueue func(context.Context, *pgx.Conn) error) *flood {
	f := &flood{}
	stop := make(chan struct{})
	group, ctx := errgroup.WithContext(ctx)
	for _, conn := range conns {
		group.Go(func() error { // end waits for it
			for {
				select {
				case <-stop:
					return nil
				default:
				}
				if err := enqueue(ctx, conn); err != nil {
					return err
				}
				f.done.Add(1)
			}
		})
	}
	f.end = func() error {
		close(stop)
		return group.Wait()
	}
	return f
}

// call is one of enqueue.
type call struct {
	sent int64 // Unix nanoseconds, which the task has in its payload
	took time.Duration
}

// pace enqueues n tasks at a rate, by senders with a connection each.
func (q *queue) pace(ctx context.Context, n int, rate float64, senders int) ([]call, error) {
	conns, err := q.connect(ctx, senders)
	if err != nil {
		return nil, err
	}
	return pace(ctx, conns, n, rate, func(ctx context.Context, conn *pgx.Conn, sent int64) error {
		return q.enqueue(ctx, conn, sent, time.Time{})
	})
}

// pace enqueues n tasks at a rate, a sender a connection. A sender that is late catches up.
func pace(ctx context.Context, conns []*pgx.Conn, n int, rate float64, enqueue func(context.Context, *pgx.Conn, int64) error) ([]call, error) {
	calls := make([]call, n)
	gap := float64(time.Second) / rate
	begin := time.Now().Add(20 * time.Millisecond)
	group, ctx := errgroup.WithContext(ctx)
	for s, conn := range conns {
		group.Go(func() error {
			for i := s; i < n; i += len(conns) {
				// Around its place in a steady row, so that nothing keeps step with it.
				at := begin.Add(time.Duration(gap * (float64(i) + rand.Float64() - 0.5)))
				if wait := time.Until(at); wait > 0 {
					if err := rest(ctx, wait); err != nil {
						return err
					}
				}
				sent := time.Now()
				if err := enqueue(ctx, conn, sent.UnixNano()); err != nil {
					return err
				}
				calls[i] = call{sent.UnixNano(), time.Since(sent)}
			}
			return nil
		})
	}
	return calls, group.Wait()
}

// warm enqueues some tasks at leisure and waits until they are settled, so that statements are prepared and connections
// open.
func (q *queue) warm(ctx context.Context, senders int) error {
	_, err := q.paced(ctx, 10*senders, 100, senders)
	return err
}
