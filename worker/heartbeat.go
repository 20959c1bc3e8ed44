package worker

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/internal/wait"
	"github.com/pgwake/pgwake/lease"
)

// heartbeat renews every held lease before a third of it has passed, and with it those that are half as old, in one
// statement: what runs for less costs nothing. A run whose lease is found lost, or could not be renewed in time, ends at
// once.
//
// It returns when ctx ends.
func (w *Worker) heartbeat(ctx context.Context) {
	step := w.config.Lease / 20
	tick := time.NewTicker(step)
	defer tick.Stop()
	state := stateLog{log: w.log, what: "heartbeat"}
	all := false // the listener has reconnected: what it was cut off from may concern every lease
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.beatNow:
			all = true
		case <-tick.C: // what was locked at the last beat, or not reached, is old enough still
		}
		runs := w.held.leases()
		if !all {
			runs = w.aging(runs, time.Now(), w.config.Lease/3-step)
		}
		if len(runs) == 0 {
			all = false
		} else {
			err := w.beat(ctx, runs)
			if ctx.Err() != nil {
				return
			}
			state.note(err)
			all = all && err != nil
		}
		w.beats.closeIdle(idleTimeout)
		w.settles.closeIdle(idleTimeout)
	}
}

// aging are the runs whose leases are half as old as given, and those that may be settled by their handlers, if one is that
// old.
func (w *Worker) aging(held []*execution, now time.Time, age time.Duration) (runs []*execution) {
	due := false
	for _, e := range held {
		is := w.config.Lease - e.expiresAt().Sub(now)
		due = due || is >= age
		if is >= age/2 || e.run.Completion() == pgwake.Completed {
			runs = append(runs, e)
		}
	}
	if !due {
		return nil
	}
	return runs
}

// beat renews the leases of runs. One that the statement passed over is lost only if a look at its row says so: it may be
// locked by somebody.
func (w *Worker) beat(ctx context.Context, executions []*execution) error {
	byLease := make(map[leaseID]*execution, len(executions))
	leases := make([]*lease.Lease, 0, len(executions))
	var completed []*execution
	for _, e := range executions {
		byLease[e.leaseID()] = e
		leases = append(leases, e.lease)
		if e.run.Completion() == pgwake.Completed {
			completed = append(completed, e)
		}
	}
	until := time.Now().Add(w.config.Lease)
	var renewed []lease.Renewed
	err := w.beats.do(ctx, w.config.Lease/3, func(ctx context.Context, conn *pgx.Conn) (err error) {
		until = time.Now().Add(w.config.Lease)
		renewed, err = w.queue.Renew(ctx, conn, w.id, leases, w.config.Lease)
		return err
	})
	if err != nil {
		return err
	}
	for _, r := range renewed {
		if e := byLease[leaseID{r.Key, r.Fence}]; e != nil {
			e.renewed(until)
			delete(byLease, e.leaseID())
		}
	}
	for _, e := range completed {
		if byLease[e.leaseID()] == nil { // renewed, so no transaction has the row locked
			e.run.RolledBack()
		}
	}
	missed := make([]*lease.Lease, 0, len(byLease))
	for _, e := range byLease {
		missed = append(missed, e.lease)
	}
	if len(missed) == 0 {
		return nil
	}
	var lost []*lease.LostError
	err = w.beats.do(ctx, w.config.Lease/3, func(ctx context.Context, conn *pgx.Conn) (err error) {
		lost, err = w.queue.Lost(ctx, conn, missed)
		return err
	})
	for _, l := range lost {
		// A row that its handler's own transaction has settled is gone for a good reason.
		if e := byLease[leaseID{l.Key, l.Fence}]; l.Found != nil || !completing(e.run) {
			w.lose(e, l)
		}
	}
	return err
}

// completing reports whether the run's row is, or may be, settled or locked by its handler's own transaction.
func completing(run *pgwake.Run) bool {
	c := run.Completion()
	return c == pgwake.Completing || c == pgwake.Completed
}

// expireRuns ends the runs whose leases could not be renewed, apart from the heartbeat, which may be waiting for the
// database, and gives up those that ignore their timeout. It returns when ctx ends.
func (w *Worker) expireRuns(ctx context.Context) {
	for wait.For(ctx, min(w.config.Lease/20, abandonAfter/10)) == nil {
		now := time.Now()
		w.expire(now)
		for _, e := range w.held.leases() {
			if e.overdue(now, abandonAfter) {
				w.abandon(e)
			}
		}
	}
}

// expire ends the runs whose lease is about to end by this process's own clock. It leaves out those that are decided,
// whose settlement the database may still accept, and those that complete in their own transaction, which has the row
// locked.
func (w *Worker) expire(now time.Time) {
	margin := w.config.Lease / 10
	for _, e := range w.held.leases() {
		if now.Add(margin).Before(e.expiresAt()) || e.decided() || completing(e.run) {
			continue
		}
		w.lose(e, fmt.Errorf("not renewed in time: %w", lease.ErrLeaseLost))
	}
}
