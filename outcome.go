package pgwake

import (
	"errors"
	"fmt"
	"time"
)

// A handler says by its return value what becomes of the task: nil settles it as succeeded, any other error as failed,
// to be retried by the type's policy until it is out of attempts and frozen. The errors made here say something else.

// SnoozeError is the outcome of [Snooze].
type SnoozeError struct{ Delay time.Duration }

func (e *SnoozeError) Error() string { return fmt.Sprintf("snooze for %s", e.Delay) }

// Snooze runs the task again after d, and this run does not count as an attempt. A negative d counts as 0.
func Snooze(d time.Duration) error { return &SnoozeError{Delay: max(d, 0)} }

// RetryError is the outcome of [RetryAfter].
type RetryError struct {
	Delay time.Duration
	Err   error
}

func (e *RetryError) Error() string { return text(e.Err, "retry") }
func (e *RetryError) Unwrap() error { return e.Err }

// RetryAfter fails this run with err and retries after d instead of by the type's policy; it freezes the task if this
// was the last attempt. A negative d counts as 0.
func RetryAfter(d time.Duration, err error) error { return &RetryError{Delay: max(d, 0), Err: err} }

// CancelError is the outcome of [Cancel].
type CancelError struct{ Err error }

func (e *CancelError) Error() string { return text(e.Err, "cancelled") }
func (e *CancelError) Unwrap() error { return e.Err }

// Cancel settles the task as cancelled, for good, with err as the reason.
func Cancel(err error) error { return &CancelError{Err: err} }

// FreezeError is the outcome of [Freeze].
type FreezeError struct{ Err error }

func (e *FreezeError) Error() string { return text(e.Err, "frozen") }
func (e *FreezeError) Unwrap() error { return e.Err }

// Freeze keeps the task as frozen, whatever attempts are left, until somebody retries, edits or discards it.
func Freeze(err error) error { return &FreezeError{Err: err} }

func text(err error, otherwise string) string {
	if err == nil {
		return otherwise
	}
	return err.Error()
}

// ErrDuplicate is what Enqueue returns, as a [*DuplicateError], when a live task of the type holds the unique key.
var ErrDuplicate = errors.New("a live task holds the unique key")

// DuplicateError is the [ErrDuplicate] that names the live task.
type DuplicateError struct {
	Enqueued
	UniqueKey string
}

func (e *DuplicateError) Error() string {
	if e.UniqueKey == "" {
		return fmt.Sprintf("task %s exists already", e.ID)
	}
	return fmt.Sprintf("live task %s of type %q holds the unique key %q", e.ID, e.Type, e.UniqueKey)
}

// Is makes errors.Is(err, ErrDuplicate) hold.
func (e *DuplicateError) Is(target error) bool { return target == ErrDuplicate }

// ErrNotFound says that no task has the id, live or archived.
var ErrNotFound = errors.New("task not found")
