package lease

import (
	"cmp"
	"context"
	"math/rand/v2"

	"github.com/jackc/pgx/v5"
)

// turns is how many claims of a table that take turns may be under way at once.
const turns = 2

// turnSQL waits for one of the places, first come, first served, and not for long. Its lock is that of the table and a
// number beyond those of the wake gate, and goes with the transaction. It is a statement of its own, so that the claim
// after it sees what the one before has claimed.
const turnSQL = `
select set_config('lock_timeout', '500ms', true), pg_advisory_xact_lock({{lit .Name.Sanitize}}::regclass::oid::integer, 3072 + @turn::integer)`

// batcher is a connection, pool or transaction of pgx.
type batcher interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// turn runs one query after waiting for a place, in one transaction and one round trip.
type turn struct {
	DB
	batcher
	q *Queue
}

func (t turn) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	var b pgx.Batch
	b.Queue(t.q.sql.turn.sql, t.q.sql.turn.args(pgx.NamedArgs{"turn": rand.IntN(turns)})...)
	b.Queue(sql, args...)
	results := t.SendBatch(ctx, &b)
	if _, err := results.Exec(); err != nil {
		_ = results.Close()
		return nil, err
	}
	rows, err := results.Query()
	if err != nil {
		_ = results.Close()
		return nil, err
	}
	return &batchRows{Rows: rows, results: results}, nil
}

// batchRows are the last rows of a batch, which ends with them: its commit is what their reader waits for.
type batchRows struct {
	pgx.Rows
	results pgx.BatchResults
	err     error // of the commit
}

func (r *batchRows) Next() bool {
	if r.Rows.Next() {
		return true
	}
	r.Close()
	return false
}

func (r *batchRows) Close() {
	r.Rows.Close()
	r.err = r.results.Close()
}

func (r *batchRows) Err() error { return cmp.Or(r.Rows.Err(), r.err) }
