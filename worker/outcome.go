package worker

import (
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/lease"
)

// Causes with which a handler's context ends, besides [lease.ErrLeaseLost].
var (
	// ErrTimeout says that the run took longer than its type allows.
	ErrTimeout = errors.New("run timed out")
	// ErrStopping says that the worker stops and has waited for the handler as long as it may. An error that the handler
	// returns then costs no attempt.
	ErrStopping = errors.New("worker is stopping")
	// ErrWorkerLost is the error of a task that is frozen because the workers that ran it did not live to see its end.
	ErrWorkerLost = errors.New("worker lost")
)

var errNotCommitted = errors.New("handler returned nil, but the transaction of CompleteTx was not committed")

// PanicError is the failure of a handler that panicked, or ended its goroutine by runtime.Goexit.
type PanicError struct {
	Value string
	Stack string
}

func (e *PanicError) Error() string { return e.Value }

// maxDelay bounds snoozes and retries to what an interval can hold and somebody can mean.
const maxDelay = 100 * 365 * 24 * time.Hour

// settlement translates what a handler returned into the end of its run. Neither an error whose methods panic, a nil
// pointer in an interface for example, nor a retry policy that does may end the process: the task is frozen then.
func (w *Worker) settlement(e *execution, err error, stopping bool) (s lease.Settlement) {
	defer func() {
		if v := recover(); v != nil {
			p := &PanicError{Value: "looking at the handler's error: " + valueText(v), Stack: string(debug.Stack())}
			s = lease.Settlement{Lease: e.lease, Started: true, Status: string(pgwake.Frozen)}
			s.Error, s.Entry = describe(w.config.Name, e.run, p, false)
		}
	}()
	return w.judge(e, err, stopping)
}

func (w *Worker) judge(e *execution, err error, stopping bool) lease.Settlement {
	run := e.run
	s := lease.Settlement{Lease: e.lease, Started: true, Discard: e.typ.NoHistory}
	if err == nil {
		s.Status = string(pgwake.Succeeded)
		return s
	}
	var (
		snooze *pgwake.SnoozeError
		again  *pgwake.RetryError
		cancel *pgwake.CancelError
		freeze *pgwake.FreezeError
		lost   = errors.Is(err, ErrWorkerLost)
	)
	switch {
	case errors.As(err, &snooze):
		s.Status, s.Delay, s.Unspent = string(pgwake.Queued), snooze.Delay, true
		s.Delay = min(s.Delay, maxDelay)
		return s
	case errors.As(err, &cancel):
		s.Status = string(pgwake.Cancelled)
	case errors.As(err, &freeze):
		s.Status = string(pgwake.Frozen)
	case lost:
		// The run that would find that out has not begun.
		s.Status, s.Unspent = string(pgwake.Frozen), true
	case stopping:
		s.Status, s.Unspent = string(pgwake.Queued), true
		if panicked := (*PanicError)(nil); !errors.As(err, &panicked) {
			return s // most likely the error that its context has ended
		}
	case run.Attempt >= run.MaxAttempts:
		s.Status = string(pgwake.Frozen)
	case errors.As(err, &again):
		s.Status, s.Delay = string(pgwake.Queued), min(again.Delay, maxDelay)
	default:
		delay, ok := e.typ.Retry.Delay(run.Attempt)
		s.Status, s.Delay = string(pgwake.Queued), delay
		if !ok {
			s.Status = string(pgwake.Frozen)
		}
	}
	s.Error, s.Entry = describe(w.config.Name, run, err, s.Unspent)
	return s
}

// Bounds of what is stored of an error.
const (
	maxErrorChars = 1024
	maxStackBytes = 8192
)

// describe makes the two forms of an error that the row keeps: a text, and an entry of the list of errors.
func describe(worker string, run *pgwake.Run, err error, unspent bool) (string, json.RawMessage) {
	text := errorText(err)
	entry := struct {
		Attempt int    `json:"attempt"`
		Error   string `json:"error"`
		Worker  string `json:"worker"`
		Stack   string `json:"stack,omitempty"`
	}{Attempt: run.Attempt, Error: text, Worker: worker}
	if unspent {
		entry.Attempt--
	}
	var panicked *PanicError
	if errors.As(err, &panicked) {
		entry.Stack = clean(panicked.Stack, maxStackBytes)
	}
	encoded, err := json.Marshal(entry)
	if err != nil {
		return text, nil
	}
	return text, encoded
}

// errorText is err's text as PostgreSQL can hold it, never empty, even if asking for it panics.
func errorText(err error) (text string) {
	defer func() {
		if v := recover(); v != nil {
			text = fmt.Sprintf("%T, whose Error method panics", err)
		}
	}()
	text = clean(err.Error(), maxErrorChars)
	if strings.TrimSpace(text) == "" {
		text = fmt.Sprintf("%T without a text", err)
	}
	return text
}

// clean makes a text valid UTF-8 without NUL and cuts it to a number of characters.
func clean(s string, limit int) string {
	if len(s) > limit*utf8.UTFMax {
		s = s[:limit*utf8.UTFMax] // no need to look at more
	}
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
	n := 0
	for i := range s {
		if n == limit {
			return s[:i]
		}
		n++
	}
	return s
}

// valueText is a panic's value as text, even if its own String or Error method panics.
func valueText(v any) (text string) {
	defer func() {
		if recover() != nil {
			text = fmt.Sprintf("panic with a %T whose text cannot be had", v)
		}
	}()
	return fmt.Sprintf("panic: %v", v)
}
