package demo

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgwake/pgwake"
)

const (
	pingGapMin = 5 * time.Millisecond
	pingGapMax = 40 * time.Millisecond
	settlePoll = 5 * time.Millisecond
	pingLimit  = 30 * time.Second // for the last of them to be settled
)

// ping handles demo.ping. Its first line reads the clock.
func (c *crawler) ping(ctx context.Context, task *pgwake.Task[Ping]) error {
	now, started := clock(), time.Now()
	return c.settle(ctx, task.Run, started, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `insert into demo.ping (task_id, started) values ($1, $2)`, task.ID, now); err != nil {
			return fmt.Errorf("note ping: %w", err)
		}
		return nil
	})
}

// latencies are sorted waits of tasks that were enqueued while the fleet slept.
type latencies struct {
	called    []time.Duration // from the call of Enqueue, which includes the commit
	committed []time.Duration // from its return; 0 for a handler that was faster than the answer to the commit
	ids       []uuid.UUID
}

// measureWakeups enqueues tasks one at a time, each when the one before it is settled and a random while has passed.
func measureWakeups(ctx context.Context, pool *pgxpool.Pool, client *pgwake.Client) (*latencies, error) {
	l := &latencies{}
	for range pings {
		if err := sleep(ctx, pingGapMin+rand.N(pingGapMax-pingGapMin)); err != nil {
			return nil, err
		}
		called := clock()
		task, err := client.Enqueue(ctx, Ping{}, nil)
		committed := clock()
		if err != nil {
			return nil, err
		}
		started, err := awaitPing(ctx, pool, task.ID)
		if err != nil {
			return nil, err
		}
		l.ids = append(l.ids, task.ID)
		l.called = append(l.called, time.Duration(started-called))
		l.committed = append(l.committed, max(0, time.Duration(started-committed)))
	}
	slices.Sort(l.called)
	slices.Sort(l.committed)
	return l, nil
}

func awaitPing(ctx context.Context, pool *pgxpool.Pool, id uuid.UUID) (started int64, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, pingLimit, fmt.Errorf("task %s has not run within %s", id, pingLimit))
	defer cancel()
	for {
		if err := sleep(ctx, settlePoll); err != nil {
			return 0, err
		}
		err := pool.QueryRow(ctx, `select started from demo.ping where task_id = $1`, id).Scan(&started)
		if err == nil {
			return started, nil
		}
		if !errors.Is(err, pgx.ErrNoRows) {
			return 0, fmt.Errorf("read ping: %w", err)
		}
	}
}

// quantile is the smallest value that at least the share q of the sorted values does not exceed.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	rank := int(math.Ceil(float64(len(sorted)) * q))
	return sorted[min(max(rank, 1), len(sorted))-1]
}
