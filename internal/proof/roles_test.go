//go:build unix

package proof_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/lease"
	"github.com/pgwake/pgwake/registry"
)

// roles are what a worker process can be; the name is that of its only task type.
var roles = map[string]func(*worked) registry.Next{
	"sleep":  func(w *worked) registry.Next { return w.sleep },
	"late":   func(w *worked) registry.Next { return w.late },
	"effect": func(w *worked) registry.Next { return w.effect },
	"logged": logged,
	"noted":  func(w *worked) registry.Next { return w.noted },
}

// sleep goes on until its context ends.
func (w *worked) sleep(ctx context.Context, run *pgwake.Run) error {
	if err := w.event(run, "begun", ""); err != nil {
		return err
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

// lateTask is the payload of a task whose first run is frozen past its lease.
type lateTask struct {
	Write string // what the first run tries on waking: one of lateWrites, or "return"
	Hold  bool   // the second run is still at it then
}

// lateWrites are the ways in which a run whose lease is lost may try to write all the same. Each returns an error if the
// write was refused.
var lateWrites = map[string]func(context.Context, *worked, *pgwake.Run) error{
	"complete": func(ctx context.Context, w *worked, run *pgwake.Run) error { return w.complete(ctx, run) },
	"settle": func(ctx context.Context, w *worked, run *pgwake.Run) error {
		l := w.lease(run)
		settled, err := w.queue.Settle(ctx, w.pool, l.Holder, []lease.Settlement{{Lease: l, Status: string(pgwake.Succeeded), Started: true}})
		return unless(len(settled) > 0, err)
	},
	"renew": func(ctx context.Context, w *worked, run *pgwake.Run) error {
		l := w.lease(run)
		renewed, err := w.queue.Renew(ctx, w.pool, l.Holder, []*lease.Lease{l}, time.Hour)
		return unless(len(renewed) > 0, err)
	},
	"update": func(ctx context.Context, w *worked, run *pgwake.Run) error {
		return w.queue.Update(ctx, w.pool, w.lease(run), map[string]any{"metadata": `{"late": true}`})
	},
	"bump": func(ctx context.Context, w *worked, run *pgwake.Run) error {
		return w.queue.Bump(ctx, w.pool, w.lease(run), time.Hour)
	},
	"requeue": func(ctx context.Context, w *worked, run *pgwake.Run) error {
		return w.queue.Requeue(ctx, w.pool, w.lease(run), 0)
	},
}

// unless makes an error of a write that touched nothing.
func unless(done bool, err error) error {
	if err == nil && !done {
		return lease.ErrLeaseLost
	}
	return err
}

// lease is the run's lease as its worker holds it.
func (w *worked) lease(run *pgwake.Run) *lease.Lease {
	return &lease.Lease{Key: run.ID.String(), Fence: run.Fence, Holder: w.worker.ID()}
}

// late is frozen together with its process in its first run, and writes the moment it wakes. Its second run, in another
// process, completes the task.
func (w *worked) late(ctx context.Context, run *pgwake.Run) error {
	var task lateTask
	if err := json.Unmarshal(run.RawPayload, &task); err != nil {
		return err
	}
	if err := w.event(run, "begun", ""); err != nil {
		return err
	}
	if run.Attempt > 1 {
		if task.Hold {
			if err := w.await(ctx, run, "go"); err != nil {
				return err
			}
		}
		return w.complete(ctx, run)
	}

	awaitThaw()
	if task.Write == "return" {
		return nil
	}
	err := lateWrites[task.Write](context.WithoutCancel(ctx), w, run)
	verdict := "refused"
	switch {
	case err == nil:
		verdict = "accepted"
	case !errors.Is(err, lease.ErrLeaseLost):
		verdict = "failed: " + err.Error()
	}
	if err := w.event(run, "tried "+task.Write, verdict); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
	case <-time.After(patience):
		return w.event(run, "ended", "the context goes on")
	}
	cause := "cause: " + context.Cause(ctx).Error()
	if errors.Is(context.Cause(ctx), lease.ErrLeaseLost) {
		cause = "lease lost"
	}
	return w.event(run, "ended", cause)
}

// awaitThaw returns as soon as the process goes on after it was frozen: the monotonic clock has gone on without it.
func awaitThaw() {
	for last := time.Now(); ; last = time.Now() {
		pause(2 * time.Millisecond)
		if time.Since(last) > time.Second {
			return
		}
	}
}

// await waits until somebody has noted something of the task.
func (w *worked) await(ctx context.Context, run *pgwake.Run, what string) error {
	for {
		var n int
		err := w.pool.QueryRow(ctx, `select count(*) from proof.event where task = $1 and what = $2`, run.ID, what).Scan(&n)
		if err != nil || n > 0 {
			return err
		}
		pause(100 * time.Millisecond)
	}
}

// effect works for a while and completes in one transaction with its effect.
func (w *worked) effect(ctx context.Context, run *pgwake.Run) error {
	select {
	case <-time.After(w.Work/2 + rand.N(w.Work)):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return w.complete(ctx, run)
}

// complete writes the effect of a run and settles the run in the same transaction.
func (w *worked) complete(ctx context.Context, run *pgwake.Run) error {
	return pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `insert into proof.effect (task, attempt, worker) values ($1, $2, $3)`, run.ID, run.Attempt, w.Name); err != nil {
			return fmt.Errorf("write effect: %w", err)
		}
		return run.CompleteTx(ctx, tx)
	})
}
