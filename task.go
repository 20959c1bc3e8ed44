package pgwake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pgwake/pgwake/lease"
)

// Payload is what a task carries: a value that marshals to JSON and names its task type.
type Payload interface {
	// TaskType names the task type: 1 to 200 bytes, by convention "noun.verb". It must not depend on the value.
	TaskType() string
}

// Raw is a payload that is JSON already, for programs that pass tasks on without knowing their types.
type Raw struct {
	Type string
	JSON json.RawMessage // empty: {}
}

// TaskType implements [Payload].
func (r Raw) TaskType() string { return r.Type }

// MarshalJSON implements [json.Marshaler].
func (r Raw) MarshalJSON() ([]byte, error) {
	if len(r.JSON) == 0 {
		return []byte("{}"), nil
	}
	return r.JSON, nil
}

// Task is one run of a task as its handler sees it.
type Task[P any] struct {
	*Run
	Payload P
}

// Run is one run of a task: its row as claimed, and the right to settle it.
type Run struct {
	ID          uuid.UUID
	Type        string // as enqueued, which may be an alias of the type registered
	RawPayload  json.RawMessage
	Metadata    json.RawMessage
	UniqueKey   string // empty: none
	Priority    int
	Attempt     int   // 1 for the first run
	MaxAttempts int   // runs allowed
	Fence       int64 // rises with every run; hand it to systems that should refuse a stale one
	DueAt       time.Time
	CreatedAt   time.Time

	complete   string // the statement of CompleteTx; empty outside a worker
	holder     string
	completion atomic.Int32 // a Completion
}

// CompleteStatement is what [Run.CompleteTx] settles a task of a schema by; with history it is kept in the archive.
func CompleteStatement(schema string, history bool) string {
	kept := ""
	if !history {
		kept = ", null"
	}
	return "select " + pgx.Identifier{schema, "complete_task"}.Sanitize() + "($1::uuid, $2::bigint, $3::uuid" + kept + ")"
}

// NewRun returns the run that a lease gives the right to. Only workers have a use for it.
func NewRun(l *lease.Lease, completeStatement string) *Run {
	return &Run{
		Type: l.Type, Priority: l.Priority, Attempt: l.Attempt, Fence: l.Fence, DueAt: l.DueAt,
		holder:   l.Holder,
		complete: completeStatement,
	}
}

// Completion is how far [Run.CompleteTx] has got.
type Completion int32

const (
	NotCompleted Completion = iota // never called
	Completing                     // called, and not answered yet
	Completed                      // the task is settled if the caller's transaction commits
	NotCommitted                   // the call failed, or its transaction was rolled back
)

// CompleteTx settles the task as succeeded inside the caller's transaction, so that its effects and its completion
// commit or roll back together: exactly once, whatever crashes. Commit the transaction and return nil.
//
// [lease.ErrLeaseLost] means that another worker may be running the task: roll back. Under REPEATABLE READ or
// SERIALIZABLE call it first in the transaction, since the heartbeat updates the row; a serialization failure comes back
// as such, to be retried. If the call fails or its transaction does not commit, and the handler returns nil all the same,
// the run counts as failed.
func (r *Run) CompleteTx(ctx context.Context, tx Tx) error {
	if r.complete == "" {
		return errors.New("complete task: this task was not claimed by a worker")
	}
	before := Completion(r.completion.Swap(int32(Completing)))
	var done bool
	if err := tx.QueryRow(ctx, r.complete, r.ID.String(), r.Fence, r.holder).Scan(&done); err != nil {
		r.completion.Store(int32(NotCommitted))
		return fmt.Errorf("complete task %s: %w", r.ID, err)
	}
	if !done {
		if before != Completed { // called twice in a transaction, the first call stands
			before = NotCommitted
		}
		r.completion.Store(int32(before))
		return fmt.Errorf("complete task %s: %w", r.ID, &lease.LostError{Key: r.ID.String(), Fence: r.Fence})
	}
	r.completion.Store(int32(Completed))
	return nil
}

// Completion tells how far CompleteTx has got.
func (r *Run) Completion() Completion { return Completion(r.completion.Load()) }

// RolledBack notes that the transaction of a CompleteTx that had succeeded was rolled back, since the row is there still
// and not locked. Only workers have a use for it.
func (r *Run) RolledBack() { r.completion.CompareAndSwap(int32(Completed), int32(NotCommitted)) }

// Tx is the part of a transaction that enqueueing and completing need. [pgx.Tx] is one; [SQLTx] makes one of a
// transaction of database/sql.
type Tx interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}
