package lease

import (
	"cmp"
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
)

// turnLimitSQL and turnSQL wait for the turn, first come, first served, and not for long. They are statements of their own,
// so that the claim after them sees what the one before has claimed, and such as take no snapshot: one that waits would
// keep dead index entries from being skipped, which are what claimers hinder each other by.
const (
	turnLimitSQL = `set local lock_timeout = '500ms'`
	turnSQL      = `lock table {{.ClaimTurn.Sanitize}} in exclusive mode`
)

// inTurn returns a DB whose queries wait for their turn, each in a transaction and a round trip.
func (q *Queue) inTurn(db DB) (DB, error) {
	conn, ok := db.(*pgx.Conn)
	if !ok || len(q.table.ClaimTurn) == 0 {
		return nil, errors.New("claim in turn: it takes a connection of pgx, and Table.ClaimTurn")
	}
	return turn{conn, q.sql.turn.sql}, nil
}

type turn struct {
	*pgx.Conn
	wait string
}

func (t turn) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	var b pgx.Batch
	own := t.PgConn().TxStatus() == 'I' // else in a transaction of the caller's
	if own {
		b.Queue("begin")
	}
	b.Queue(turnLimitSQL)
	b.Queue(t.wait)
	before := b.Len()
	b.Queue(sql, args...)
	if own {
		b.Queue("commit")
	}
	rows := &turnRows{batch: t.SendBatch(ctx, &b)}
	if own {
		rows.rollback = func() error {
			_, err := t.Exec(ctx, "rollback")
			return err
		}
	}
	for range before {
		if _, err := rows.batch.Exec(); err != nil {
			rows.end()
			return nil, err
		}
	}
	var err error
	if rows.Rows, err = rows.batch.Query(); err != nil {
		rows.end()
		return nil, err
	}
	return rows, nil
}

// turnRows are the rows of a query in its turn. They end with the batch, which is the commit.
type turnRows struct {
	pgx.Rows
	batch    pgx.BatchResults
	rollback func() error // nil: that is the caller's business
	ended    bool
	err      error
}

func (r *turnRows) Next() bool {
	if r.Rows.Next() {
		return true
	}
	r.Close()
	return false
}

func (r *turnRows) Close() {
	r.Rows.Close()
	r.end()
}

func (r *turnRows) end() {
	if r.ended {
		return
	}
	r.ended = true
	if r.err = r.batch.Close(); r.err != nil && r.rollback != nil {
		_ = r.rollback() // the connection is broken if it fails
	}
}

func (r *turnRows) Err() error { return cmp.Or(r.Rows.Err(), r.err) }
