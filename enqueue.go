package pgwake

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pgwake/pgwake/internal/sqlstate"
)

// EnqueueOptions are what one task has other than its type's defaults; nil and the zero value mean those.
type EnqueueOptions struct {
	// ID is the task's id; a new UUIDv7 by default. Enqueueing the id of a live task again is [ErrDuplicate].
	ID uuid.UUID
	// DueAt is the instant from which the task may run; the time of the enqueueing transaction by default.
	DueAt time.Time
	// Delay, if DueAt is not set, makes the task due that much later, by the database's clock.
	Delay time.Duration
	// Priority is 0 (first) to 9 (last); 5 by default. In Go 1.26: Priority: new(0).
	Priority *int
	// MaxAttempts is how often the task may run, 1 to 1,000,000; by default what the type says, else 4.
	MaxAttempts int
	// UniqueKey, up to 500 bytes, allows one live task of the type: while one that has it is queued, running, paused or
	// frozen, another cannot be enqueued. By default the type's unique fields, if any are registered.
	UniqueKey string
	// Metadata is kept with the task and not interpreted.
	Metadata map[string]any
}

// NewTask is one task of [Client.EnqueueMany] and [Client.EnqueueSeq].
type NewTask struct {
	Payload Payload
	Options *EnqueueOptions
}

// Enqueued names a task.
type Enqueued struct {
	ID        uuid.UUID `json:"id"`
	Type      string    `json:"type"`
	Duplicate bool      `json:"duplicate"` // the task was there already, and nothing was inserted
}

type enqueueStatements struct {
	one, unique, live, many, manyUnique, liveMany, table string
}

func newEnqueueStatements(schema string) enqueueStatements {
	table := pgx.Identifier{schema, "tasks"}.Sanitize()
	at := func(text string) string { return fmt.Sprintf(text, table) }
	return enqueueStatements{
		one: at(enqueueSQL), unique: at(enqueueSQL + unlessLive + returnID), live: at(liveSQL),
		many: at(enqueueManySQL), manyUnique: at(enqueueUniqueSQL), liveMany: at(liveManySQL), table: table,
	}
}

// enqueueSQL inserts a task. Parameters are plain values, so that every driver can send them: id, type, payload, due at,
// delay in microseconds, priority, attempts, unique key, metadata.
const enqueueSQL = `
insert into %s as t (id, type, payload, retry_at, due_at, priority, max_attempts, unique_key, metadata)
select $1::uuid, $2::text, $3::jsonb, due.at, due.at, $6::smallint, $7::integer, $8::text, coalesce($9::jsonb, '{}')
from (select coalesce($4::timestamptz, statement_timestamp() + $5::bigint * interval '1 microsecond', now()) as at) as due`

// unlessLive inserts nothing if a live task of the type holds the unique key. It waits for a transaction that is about to
// insert the same key, so its answer rests on committed rows alone. It costs something, so tasks without a key go without.
const unlessLive = `
on conflict (type, unique_key) where unique_key is not null do nothing`

const returnID = `
returning t.id::text`

// liveSQL finds the live task that holds a unique key, by the index on (type, unique_key).
const liveSQL = `
select t.id::text
from %s as t
where t.type = $1::text and t.unique_key = $2::text`

// EnqueueTx is [Client.Enqueue] inside the caller's transaction: the task exists, and workers hear of it, if and when
// that commits.
func (c *Client) EnqueueTx(ctx context.Context, tx Tx, payload Payload, opts *EnqueueOptions) (Enqueued, error) {
	row, err := c.prepare(NewTask{payload, opts})
	if err != nil {
		return Enqueued{}, err
	}
	args := []any{
		row.ID.String(), row.Type, string(row.Payload), given(row.DueAt), given(row.Delay), row.Priority, given(row.MaxAttempts),
		given(row.UniqueKey), given(string(row.Metadata)),
	}
	if row.UniqueKey == "" {
		if err := insert(ctx, tx, c.sql.one, args...); sqlstate.Unique(err, "tasks_pkey") {
			return duplicate(row.ID, row)
		} else if err != nil {
			return Enqueued{}, wrapTask(row.Type, err)
		}
		return Enqueued{ID: row.ID, Type: row.Type}, nil
	}
	for {
		var id uuid.UUID
		err := tx.QueryRow(ctx, c.sql.unique, args...).Scan(&id)
		switch {
		case err == nil:
			return Enqueued{ID: row.ID, Type: row.Type}, nil
		case sqlstate.Unique(err, "tasks_pkey"):
			row.UniqueKey = ""
			return duplicate(row.ID, row)
		case !noRows(err):
			return Enqueued{}, wrapTask(row.Type, err)
		}
		err = tx.QueryRow(ctx, c.sql.live, row.Type, row.UniqueKey).Scan(&id)
		if noRows(err) {
			continue // the task that held the key was settled in between
		}
		if err != nil {
			return Enqueued{}, wrapTask(row.Type, err)
		}
		return duplicate(id, row)
	}
}

// duplicate names the task that is there instead of the row.
func duplicate(id uuid.UUID, row taskRow) (Enqueued, error) {
	dup := Enqueued{ID: id, Type: row.Type, Duplicate: true}
	return dup, wrapTask(row.Type, &DuplicateError{Enqueued: dup, UniqueKey: row.UniqueKey})
}

// given is a parameter that is null where the value is zero.
func given[V comparable](value V) any {
	if value == *new(V) {
		return nil
	}
	return value
}

// insert executes a statement that returns no rows by QueryRow, all that a Tx has.
func insert(ctx context.Context, tx Tx, query string, args ...any) error {
	if err := tx.QueryRow(ctx, query, args...).Scan(); !noRows(err) {
		return err
	}
	return nil
}

// noRows knows the word for it of pgx and, wrapped by the former, of database/sql.
func noRows(err error) bool { return errors.Is(err, pgx.ErrNoRows) || errors.Is(err, errSQLNoRows) }
