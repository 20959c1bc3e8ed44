package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/lease"
	"github.com/pgwake/pgwake/registry"
)

// abandonAfter is how long after its timeout a handler may take to notice that its context has ended. Then the run is
// settled as failed without it; its slot stays taken until it returns.
const abandonAfter = 5 * time.Second

// leaseID tells leases apart: a row may be run twice at once by a process that has lost its first lease.
type leaseID struct {
	key   string
	fence int64
}

func (e *execution) leaseID() leaseID { return leaseID{e.lease.Key, e.lease.Fence} }

// execution is one run in this process, from claim to settlement.
type execution struct {
	lease   *lease.Lease
	run     *pgwake.Run
	typ     *registry.Type
	took    time.Duration // by the handler
	readyAt time.Time     // since when it waits for a slot

	mu       sync.Mutex
	cancel   context.CancelCauseFunc // ends the handler's context; nil: it has not begun
	expires  time.Time               // when the lease ends by the monotonic clock
	deadline time.Time               // when the handler's time is over; zero: never, or it has not begun
	over     bool                    // the outcome is decided: nothing the handler does changes it any more
	returned bool                    // the handler has returned
	alone    bool                    // holds the process's token for suspects
}

// decide reports whether the caller is the first to decide the outcome.
func (e *execution) decide() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.over {
		return false
	}
	e.over = true
	return true
}

func (e *execution) decided() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.over
}

func (e *execution) renewed(until time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.expires = until
}

func (e *execution) expiresAt() time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.expires
}

// execute runs the handler and passes its outcome to the settler. Panics are recovered here and, since a handler's error
// may panic when it is looked at, in settlement.
func (w *Worker) execute(e *execution) {
	base, cancel := context.WithCancelCause(w.handlerContext)
	began := time.Now()
	if !e.begin(cancel, began) {
		cancel(nil)
		return
	}
	ctx, stop := base, context.CancelFunc(func() {})
	if t := e.typ.Timeout; t > 0 {
		ctx, stop = context.WithDeadlineCause(base, began.Add(t), w.timeouts[e.typ])
	}

	var err error
	normal := false
	defer func() {
		e.took = time.Since(began)
		if !normal {
			// A panic, or runtime.Goexit, which recover does not see.
			value := "handler called runtime.Goexit"
			if v := recover(); v != nil {
				value = valueText(v)
			}
			err = &PanicError{Value: value, Stack: string(debug.Stack())}
		}
		cause := context.Cause(ctx)
		stop()
		cancel(nil)
		w.finish(e, err, cause)
	}()
	err = e.typ.Run(ctx, e.run)
	normal = true
}

// begin takes note that the handler runs, unless the outcome is decided already: the lease is lost.
func (e *execution) begin(cancel context.CancelCauseFunc, at time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.over {
		return false
	}
	e.cancel = cancel
	if e.typ.Timeout > 0 {
		e.deadline = at.Add(e.typ.Timeout)
	}
	return true
}

// overdue reports whether the handler runs although its time was over so long ago.
func (e *execution) overdue(now time.Time, by time.Duration) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !e.returned && !e.deadline.IsZero() && now.Sub(e.deadline) >= by
}

// unreturned reports whether a handler runs.
func (e *execution) unreturned() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.cancel != nil && !e.returned
}

// finish ends a run whose handler has returned.
func (w *Worker) finish(e *execution, err, cause error) {
	e.mu.Lock()
	e.returned = true
	e.mu.Unlock()
	if !e.decide() {
		w.held.returned(e)
		w.log.Warn("handler returned after its run was over; its result is dropped", "task", e.run.ID, "type", e.run.Type, "attempt", e.run.Attempt)
		return
	}
	if err != nil && errors.Is(cause, ErrTimeout) {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	end := w.settlement(e, err, errors.Is(cause, ErrStopping))
	w.logEnd(e, end)
	w.settler.add(e, end)
}

// logEnd reports runs that somebody may have to look at: frozen tasks need a person, failures may.
func (w *Worker) logEnd(e *execution, end lease.Settlement) {
	if end.Error == "" {
		return
	}
	level, message := slog.LevelWarn, "run failed"
	if end.Status == string(pgwake.Frozen) {
		level, message = slog.LevelError, "task is frozen: retry, edit or discard it"
	}
	w.log.Log(context.Background(), level, message, "task", e.run.ID, "type", e.run.Type, "attempt", e.run.Attempt,
		"attempts", e.run.MaxAttempts, "outcome", end.Status, "again_in", end.Delay, "error", end.Error)
}

// abandon settles a run as failed whose handler ignores that its context has ended.
func (w *Worker) abandon(e *execution) {
	if !e.decide() {
		return
	}
	w.held.stuck(e)
	w.log.Error("handler ignores the end of its context: the run is settled as failed, its slot stays taken",
		"task", e.run.ID, "type", e.run.Type, "attempt", e.run.Attempt, "timeout", e.typ.Timeout)
	w.settler.add(e, w.settlement(e, w.timeouts[e.typ], false))
}

// over lets go of a run whose outcome is written, or cannot be.
func (w *Worker) over(e *execution) {
	w.held.settled(e)
	w.noLongerAlone(e)
}

// noLongerAlone lets the next suspect run. Not before this one's outcome is written: the next may be what kills the
// process, and this one would be charged with it.
func (w *Worker) noLongerAlone(e *execution) {
	e.mu.Lock()
	alone := e.alone
	e.alone = false
	e.mu.Unlock()
	if !alone {
		return
	}
	w.suspects.giveBack()
	for _, d := range w.dispatchers {
		select {
		case d.suspects <- struct{}{}:
		default:
		}
	}
}

// lose ends a run whose lease is lost. Nothing of it may be written any more.
func (w *Worker) lose(e *execution, err error) {
	if !e.decide() {
		return
	}
	w.held.stuck(e)
	w.over(e)
	w.log.Warn("lease lost: the handler's context ends and its result will be refused",
		"task", e.run.ID, "type", e.run.Type, "attempt", e.run.Attempt, "error", err)
	e.mu.Lock()
	cancel := e.cancel
	e.mu.Unlock()
	if cancel != nil {
		cancel(err)
	}
}

// held is the set of runs in this process.
type held struct {
	mu        sync.Mutex
	leased    map[*execution]struct{} // whose lease is to be renewed
	abandoned map[*execution]struct{} // whose outcome is decided while the handler has not returned
}

func newHeld() *held {
	return &held{leased: map[*execution]struct{}{}, abandoned: map[*execution]struct{}{}}
}

func (h *held) add(runs ...*execution) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range runs {
		h.leased[e] = struct{}{}
	}
}

// settled takes a run out of the heartbeat's care: its row is settled or lost.
func (h *held) settled(e *execution) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.leased, e)
}

// stuck counts a run whose outcome is decided before its handler has returned.
func (h *held) stuck(e *execution) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if e.unreturned() { // it may have, since its outcome was decided
		h.abandoned[e] = struct{}{}
	}
}

func (h *held) returned(e *execution) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.abandoned, e)
}

// leases lists the runs whose leases are to be renewed.
func (h *held) leases() []*execution {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := make([]*execution, 0, len(h.leased))
	for e := range h.leased {
		list = append(list, e)
	}
	return list
}

// unreturned lists the runs whose handlers have not returned.
func (h *held) unreturned() []*execution {
	h.mu.Lock()
	defer h.mu.Unlock()
	var list []*execution
	for e := range h.leased {
		if e.unreturned() {
			list = append(list, e)
		}
	}
	for e := range h.abandoned {
		if _, twice := h.leased[e]; !twice {
			list = append(list, e)
		}
	}
	return list
}

func (h *held) stuckCount() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.abandoned)
}
