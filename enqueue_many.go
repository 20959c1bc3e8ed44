package pgwake

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgwake/pgwake/internal/sqlstate"
)

// EnqueueMany inserts all the tasks in one transaction, or none of them and an error. Tasks whose unique key a live task
// holds are no error: their result is that task's id, with Duplicate set. Results are in the order of the tasks. Only where
// ctx ends or the connection breaks while the database is at it, an error leaves open whether they are inserted.
func (c *Client) EnqueueMany(ctx context.Context, tasks []NewTask) ([]Enqueued, error) {
	if c.pool == nil {
		return nil, errNoPool
	}
	rows, err := c.prepareAll(tasks)
	if err != nil {
		return nil, err
	}
	return c.commitRows(ctx, rows)
}

// EnqueueManyTx is [Client.EnqueueMany] inside the caller's transaction. Many tasks go by COPY where the transaction is one
// of pgx, none of them has a unique key or a delay, and all or none have a due time.
func (c *Client) EnqueueManyTx(ctx context.Context, tx Tx, tasks []NewTask) ([]Enqueued, error) {
	rows, err := c.prepareAll(tasks)
	if err != nil {
		return nil, err
	}
	return c.insertRows(ctx, tx, rows)
}

func (c *Client) prepareAll(tasks []NewTask) ([]taskRow, error) {
	rows := make([]taskRow, len(tasks))
	for i, t := range tasks {
		var err error
		if rows[i], err = c.prepare(t); err != nil {
			return nil, fmt.Errorf("task %d: %w", i, err)
		}
	}
	return rows, nil
}

// commitRows inserts rows in a transaction of their own, without begin and commit where one statement is enough.
func (c *Client) commitRows(ctx context.Context, rows []taskRow) (results []Enqueued, err error) {
	switch s := shapeOf(rows); {
	case s.key:
		err = pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) (err error) {
			results, err = c.insertRows(ctx, tx, rows)
			return err
		})
	case s.copies():
		err = c.pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) (err error) {
			results, err = c.copyRows(ctx, conn.Conn(), rows)
			return err
		})
	default:
		results, err = c.insertRows(ctx, c.pool, rows)
	}
	if err != nil {
		return nil, err
	}
	return results, nil
}

// insertRows inserts rows, by COPY if that can be and pays.
func (c *Client) insertRows(ctx context.Context, tx Tx, rows []taskRow) ([]Enqueued, error) {
	s := shapeOf(rows)
	if tx, ok := tx.(copier); ok && s.copies() && tx.Conn() != nil {
		// An empty batch costs nothing and tells of a transaction that has ended: its connection may be another's by now.
		if err := tx.SendBatch(ctx, &pgx.Batch{}).Close(); err != nil {
			return nil, enqueueError(rows, err)
		}
		return c.copyRows(ctx, tx.Conn(), rows)
	}
	if s.key {
		return c.insertUnique(ctx, tx, rows)
	}
	if len(rows) > 0 {
		var columns arrays
		for i := range rows {
			columns.add(&rows[i])
		}
		if err := insert(ctx, tx, c.sql.many, columns.args()...); err != nil {
			return nil, enqueueError(rows, err)
		}
	}
	return inserted(rows), nil
}

// inserted are the results of rows that were all inserted.
func inserted(rows []taskRow) []Enqueued {
	results := make([]Enqueued, len(rows))
	for i := range rows {
		results[i] = Enqueued{ID: rows[i].ID, Type: rows[i].Type}
	}
	return results
}

func enqueueError(rows []taskRow, err error) error {
	if sqlstate.Unique(err, "tasks_pkey") {
		err = fmt.Errorf("%w: an id is taken: %w", ErrDuplicate, err)
	}
	return fmt.Errorf("enqueue %d tasks: %w", len(rows), err)
}

// enqueueManySQL inserts tasks. Its parameters are those of [enqueueSQL], each as the text of an array, which every driver
// can send.
const enqueueManySQL = `
insert into %s as t (id, type, payload, retry_at, due_at, priority, max_attempts, unique_key, metadata)
select r.id, r.type, r.payload, due.at, due.at, r.priority, r.max_attempts, r.unique_key, coalesce(r.metadata, '{}')
from unnest($1::uuid[], $2::text[], $3::jsonb[], $4::timestamptz[], $5::bigint[], $6::smallint[], $7::integer[], $8::text[], $9::jsonb[])
  as r(id, type, payload, due_at, delay, priority, max_attempts, unique_key, metadata)
cross join lateral (
  select coalesce(r.due_at, statement_timestamp() + r.delay * interval '1 microsecond', now()) as at
) as due`
