package pgwake

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
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

// NewTask is one task of [Client.EnqueueMany].
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
	one, unique, live, many, liveMany string
	table                             pgx.Identifier
}

func newEnqueueStatements(schema string) enqueueStatements {
	table := pgx.Identifier{schema, "tasks"}
	at := func(text string) string { return fmt.Sprintf(text, table.Sanitize()) }
	return enqueueStatements{one: at(enqueueSQL + returnID), unique: at(enqueueSQL + unlessLive + returnID), live: at(liveSQL), many: at(enqueueManySQL), liveMany: at(liveManySQL), table: table}
}

// enqueueSQL inserts a task. Parameters are plain values, so that every driver can send them: id, type, payload, due at,
// delay in microseconds, priority, attempts, unique key, metadata.
const enqueueSQL = `
insert into %s as t (id, type, payload, retry_at, due_at, priority, max_attempts, unique_key, metadata)
select $1::uuid, $2::text, $3::jsonb, due.at, due.at, $6::smallint, $7::integer, $8::text, $9::jsonb
from (select coalesce($4::timestamptz, clock_timestamp() + $5::bigint * interval '1 microsecond', now()) as at) as due`

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
	insert := c.sql.one
	if row.UniqueKey != nil {
		insert = c.sql.unique
	}
	for {
		var id string
		err := tx.QueryRow(ctx, insert, row.ID.String(), row.Type, string(row.Payload), row.DueAt, row.Delay, row.Priority,
			row.MaxAttempts, row.UniqueKey, string(row.Metadata)).Scan(&id)
		switch {
		case err == nil:
			return Enqueued{ID: row.ID, Type: row.Type}, nil
		case sqlstate.Unique(err, "tasks_pkey"):
			dup := Enqueued{ID: row.ID, Type: row.Type, Duplicate: true}
			return dup, wrapTask(row.Type, &DuplicateError{Enqueued: dup})
		case !noRows(err):
			return Enqueued{}, wrapTask(row.Type, err)
		}
		err = tx.QueryRow(ctx, c.sql.live, row.Type, *row.UniqueKey).Scan(&id)
		if noRows(err) {
			continue // the task that held the key was settled in between
		}
		if err != nil {
			return Enqueued{}, wrapTask(row.Type, err)
		}
		live, err := uuid.Parse(id)
		if err != nil {
			return Enqueued{}, wrapTask(row.Type, err)
		}
		dup := Enqueued{ID: live, Type: row.Type, Duplicate: true}
		return dup, wrapTask(row.Type, &DuplicateError{Enqueued: dup, UniqueKey: *row.UniqueKey})
	}
}

// copyFrom is the number of tasks from which COPY is worth its extra round trips.
const copyFrom = 50

// enqueueManySQL inserts a JSON array of tasks and returns the array of the ids inserted.
const enqueueManySQL = `
with made as (
  insert into %s as t (id, type, payload, retry_at, due_at, priority, max_attempts, unique_key, metadata)
  select r.id, r.type, r.payload, due.at, due.at, r.priority, r.max_attempts, r.unique_key, r.metadata
  from jsonb_to_recordset($1::jsonb) as r(
    id uuid, type text, payload jsonb, due_at timestamptz, delay bigint, priority smallint, max_attempts integer,
    unique_key text, metadata jsonb)
  cross join lateral (
    select coalesce(r.due_at, clock_timestamp() + r.delay * interval '1 microsecond', now()) as at
  ) as due
  on conflict (type, unique_key) where unique_key is not null do nothing
  returning t.id
)
select coalesce(json_agg(made.id), '[]')::text from made`

// liveManySQL finds the live tasks that hold the unique keys of a JSON array of tasks.
const liveManySQL = `
select coalesce(json_agg(json_build_object('id', t.id, 'type', t.type, 'unique_key', t.unique_key)), '[]')::text
from jsonb_to_recordset($1::jsonb) as r(type text, unique_key text)
join %s as t on t.type = r.type and t.unique_key = r.unique_key`

// EnqueueManyTx is [Client.EnqueueMany] inside the caller's transaction. Many tasks with neither unique keys nor delays
// go by COPY where the transaction is one of pgx.
func (c *Client) EnqueueManyTx(ctx context.Context, tx Tx, tasks []NewTask) ([]Enqueued, error) {
	rows := make([]*taskRow, len(tasks))
	result := make([]Enqueued, len(tasks))
	plain := true
	for i, t := range tasks {
		row, err := c.prepare(t)
		if err != nil {
			return nil, fmt.Errorf("task %d: %w", i, err)
		}
		plain = plain && row.UniqueKey == nil && row.Delay == nil
		rows[i], result[i] = row, Enqueued{ID: row.ID, Type: row.Type}
	}
	if len(rows) == 0 {
		return result, nil
	}
	if copier, ok := tx.(copier); ok && plain && len(rows) >= copyFrom {
		return result, c.copyRows(ctx, copier, rows)
	}

	pending := make(map[int]*taskRow, len(rows))
	for i, row := range rows {
		pending[i] = row
	}
	for len(pending) > 0 {
		// By key, so that two batches never wait for each other's keys in turn; with equal keys in the order given, so that
		// the first of them is inserted.
		batch := make([]*taskRow, 0, len(pending))
		for i := range rows {
			if row, ok := pending[i]; ok {
				batch = append(batch, row)
			}
		}
		slices.SortStableFunc(batch, func(a, b *taskRow) int {
			return cmp.Or(strings.Compare(a.Type, b.Type), strings.Compare(deref(a.UniqueKey), deref(b.UniqueKey)))
		})
		var inserted []uuid.UUID
		if err := queryJSON(ctx, tx, c.sql.many, batch, &inserted); err != nil {
			if sqlstate.Unique(err, "tasks_pkey") {
				err = fmt.Errorf("%w: an id is taken: %w", ErrDuplicate, err)
			}
			return nil, fmt.Errorf("enqueue %d tasks: %w", len(tasks), err)
		}
		made := make(map[uuid.UUID]bool, len(inserted))
		for _, id := range inserted {
			made[id] = true
		}
		for i, row := range pending {
			if made[row.ID] {
				delete(pending, i)
			}
		}
		if len(pending) == 0 {
			break
		}
		if err := c.findLive(ctx, tx, pending, result); err != nil {
			return nil, fmt.Errorf("enqueue %d tasks: %w", len(tasks), err)
		}
	}
	return result, nil
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// findLive gives the pending rows whose key is held the id of the holder. Those whose holder has been settled in the
// meantime stay pending.
func (c *Client) findLive(ctx context.Context, tx Tx, pending map[int]*taskRow, result []Enqueued) error {
	type key struct{ Type, UniqueKey string }
	keys := make([]map[string]string, 0, len(pending))
	for _, row := range pending {
		keys = append(keys, map[string]string{"type": row.Type, "unique_key": *row.UniqueKey})
	}
	var found []struct {
		ID        uuid.UUID `json:"id"`
		Type      string    `json:"type"`
		UniqueKey string    `json:"unique_key"`
	}
	if err := queryJSON(ctx, tx, c.sql.liveMany, keys, &found); err != nil {
		return err
	}
	holders := make(map[key]uuid.UUID, len(found))
	for _, f := range found {
		holders[key{f.Type, f.UniqueKey}] = f.ID
	}
	for i, row := range pending {
		if id, ok := holders[key{row.Type, *row.UniqueKey}]; ok {
			result[i].ID, result[i].Duplicate = id, true
			delete(pending, i)
		}
	}
	return nil
}

// copier is a transaction, or pool, of pgx.
type copier interface {
	CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, source pgx.CopyFromSource) (int64, error)
}

// copyRows inserts by COPY. The columns retry_at and due_at are left to their defaults where no row has its own instant,
// since now() is not to be had here.
func (c *Client) copyRows(ctx context.Context, tx copier, rows []*taskRow) error {
	groups := map[bool][]*taskRow{}
	for _, row := range rows {
		groups[row.DueAt != nil] = append(groups[row.DueAt != nil], row)
	}
	for timed, group := range groups {
		columns := []string{"id", "type", "payload", "priority", "max_attempts", "metadata"}
		if timed {
			columns = append(columns, "retry_at", "due_at")
		}
		_, err := tx.CopyFrom(ctx, c.sql.table, columns, pgx.CopyFromSlice(len(group), func(i int) ([]any, error) {
			row := group[i]
			values := []any{row.ID, row.Type, row.Payload, row.Priority, row.MaxAttempts, row.Metadata}
			if timed {
				values = append(values, row.DueAt, row.DueAt)
			}
			return values, nil
		}))
		if sqlstate.Unique(err, "tasks_pkey") {
			return fmt.Errorf("enqueue %d tasks: %w: an id is taken: %w", len(rows), ErrDuplicate, err)
		}
		if err != nil {
			return fmt.Errorf("enqueue %d tasks: %w", len(rows), err)
		}
	}
	return nil
}

// queryJSON sends a statement its one parameter, and reads its one value, as JSON text: the form that every driver has.
func queryJSON(ctx context.Context, tx Tx, query string, in, out any) error {
	param, err := json.Marshal(in)
	if err != nil {
		return err
	}
	var answer string
	if err := tx.QueryRow(ctx, query, string(param)).Scan(&answer); err != nil {
		return err
	}
	return json.Unmarshal([]byte(answer), out)
}

// noRows knows the word for it of pgx and, wrapped by the former, of database/sql.
func noRows(err error) bool { return errors.Is(err, pgx.ErrNoRows) || errors.Is(err, errSQLNoRows) }
