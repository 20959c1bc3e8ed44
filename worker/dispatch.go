package worker

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/google/uuid"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/internal/wait"
	"github.com/pgwake/pgwake/lease"
)

// row is what a claim returns of a task beside its lease.
type row struct {
	maxAttempts *int
	uniqueKey   *string
	payload     []byte // as it is; a json.RawMessage would be checked once more
	metadata    []byte
	createdAt   time.Time
}

func (d *dispatcher) execution(l *lease.Lease, r *row) (*execution, error) {
	typ, ok := d.w.types[l.Type]
	if !ok {
		return nil, fmt.Errorf("claimed a task of type %q, which is not registered", l.Type)
	}
	id, err := uuid.Parse(l.Key)
	if err != nil {
		return nil, fmt.Errorf("claimed a task with key %q: %w", l.Key, err)
	}
	run := pgwake.NewRun(l, d.w.complete[typ.NoHistory])
	run.ID, run.RawPayload, run.Metadata, run.CreatedAt = id, r.payload, r.metadata, r.createdAt
	run.MaxAttempts = typ.MaxAttempts
	if r.maxAttempts != nil {
		run.MaxAttempts = *r.maxAttempts
	}
	if r.uniqueKey != nil {
		run.UniqueKey = *r.uniqueKey
	}
	return &execution{lease: l, run: run, typ: typ, expires: l.Expires}, nil
}

// dispatch starts the handlers of claimed rows. Rows that are not to run now go back, before any handler starts: one of
// them may be about to kill this process.
func (d *dispatcher) dispatch(ctx context.Context, batch []*execution) {
	start, free := make([]*execution, 0, len(batch)), d.slots.free()
	var back []settling
	for _, e := range batch {
		v := d.verdict(e)
		switch {
		case v != runNow:
		case ctx.Err() != nil || time.Until(e.expires) < d.w.config.Lease/2:
			v = notNow
		case e.lease.Lost > 0 && len(start) >= free: // it may have killed a worker, and is not to wait beside others
			v = runLater
		}
		if v != runNow {
			d.w.noLongerAlone(e)
		}
		switch v {
		case runNow:
			start = append(start, e)
		case notNow: // claimed while the worker was told to stop, or after so long a wait that the lease is half over
			back = append(back, settling{execution: e, end: lease.Settlement{Lease: e.lease, Status: string(pgwake.Queued), Unspent: true}})
		case runLater:
			back = append(back, settling{execution: e, end: lease.Settlement{Lease: e.lease, Status: string(pgwake.Queued), Delay: suspectRetry, Unspent: true}})
		case neverAgain:
			err := fmt.Errorf("%w: %d runs in a row ended with their worker gone", ErrWorkerLost, e.lease.Lost)
			end := d.w.settlement(e, err, false)
			d.w.logEnd(e, end)
			back = append(back, settling{execution: e, end: end})
		}
	}
	d.settle(ctx, back)
	d.w.held.add(start...)
	d.begin(d.slots.add(start))
	runtime.Gosched() // the handlers first; what the dispatcher does next can wait
}

// settle writes ends of tasks that did not run.
func (d *dispatcher) settle(ctx context.Context, ends []settling) {
	if len(ends) == 0 {
		return
	}
	ctx, cancel := wait.Outlast(ctx, stopGrace)
	defer cancel()
	left, err := d.w.settler.flush(ctx, ends)
	if err != nil {
		d.w.log.Warn("tasks not given back yet", "tasks", len(left), "error", err)
	}
	for _, b := range left {
		d.w.settler.add(b.execution, b.end)
	}
}

// giveBack gives claimed tasks back that have not begun.
func (d *dispatcher) giveBack(ctx context.Context, tasks []*execution) {
	var back []settling
	for _, e := range tasks {
		if e.decide() { // else its lease is lost
			back = append(back, settling{execution: e, end: lease.Settlement{Lease: e.lease, Status: string(pgwake.Queued), Unspent: true}})
		}
	}
	d.settle(ctx, back)
}

// begin runs tasks, each in a slot that is kept for it.
func (d *dispatcher) begin(tasks []*execution) {
	for _, e := range tasks {
		d.group.Go(func() error {
			d.work(e)
			return nil
		})
	}
}

// work runs a task, and those whose turn it is in its slot after it.
func (d *dispatcher) work(e *execution) {
	defer func() {
		if e != nil { // runtime.Goexit, by a handler
			d.slots.vanished()
		}
	}()
	for e != nil {
		d.w.execute(e)
		e = d.slots.next(e)
	}
}

type verdict int

const (
	runNow verdict = iota
	runLater
	notNow
	neverAgain
)

// verdict judges a row whose worker was lost, which this task may have caused or not. After a first loss it runs like
// any other. From the second loss on, and for the last attempt, it runs with no other suspect beside it in the process,
// so that a task that kills its worker is lost alone. Out of attempts, it gets one more such run if it has not had one;
// then it is frozen. With a single attempt allowed there is no other run.
func (d *dispatcher) verdict(e *execution) verdict {
	lost, attempt, limit := e.lease.Lost, e.run.Attempt, e.run.MaxAttempts
	switch {
	case lost == 0:
		return runNow
	case attempt > limit && (lost > 1 || limit == 1):
		return neverAgain
	case e.alone, lost == 1 && attempt < limit:
		return runNow
	case d.w.suspects.tryTake(): // given back by a worker that stopped before it ran
		e.alone = true
		return runNow
	}
	return runLater
}

// token is held by at most one at a time; it guards the one run of a suspect in a process.
type token chan struct{}

func (t token) tryTake() bool {
	select {
	case t <- struct{}{}:
		return true
	default:
		return false
	}
}

func (t token) giveBack() { <-t }
