package lease_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgwake/pgwake/internal/pgtest"
	"github.com/pgwake/pgwake/lease"
)

// inTurn claims in turn on a connection.
func (f *fixture) inTurn(ctx context.Context, conn *pgx.Conn, limit int) ([]*lease.Lease, error) {
	opts := f.opts(limit)
	opts.InTurn = true
	return f.Claim(ctx, conn, opts)
}

func (f *fixture) conn(t *testing.T) *pgx.Conn {
	t.Helper()
	c, err := f.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Release)
	return c.Conn()
}

func TestClaimInTurn(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "own")
	f.addMany(t, make([]item, 10))
	conn := f.conn(t)
	for range 2 { // the statements are prepared at the second
		if leases, err := f.inTurn(t.Context(), conn, 2); err != nil || len(leases) != 2 {
			t.Fatalf("claimed %d: %v", len(leases), err)
		}
		if s := conn.PgConn().TxStatus(); s != 'I' {
			t.Fatalf("transaction status %c", s)
		}
	}

	// While somebody has the turn, others wait, without a snapshot, and not for long.
	other := f.conn(t)
	tx, err := other.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if leases, err := f.inTurn(t.Context(), other, 2); err != nil || len(leases) != 2 { // in the caller's transaction
		t.Fatalf("claimed %d: %v", len(leases), err)
	}
	began, done := time.Now(), make(chan error, 1)
	go func() {
		_, err := f.inTurn(t.Context(), conn, 2)
		done <- err
	}()
	pgtest.WaitFor(t, patience, "the other waits", func() bool {
		return one[bool](t, f, "select coalesce((select wait_event_type = 'Lock' from pg_stat_activity where pid = $1), false)", conn.PgConn().PID())
	})
	if one[bool](t, f, "select backend_xmin is not null from pg_stat_activity where pid = $1", conn.PgConn().PID()) {
		t.Error("whoever waits for the turn has a snapshot")
	}
	var pgErr *pgconn.PgError
	if err := <-done; !errors.As(err, &pgErr) || pgErr.Code != "55P03" {
		t.Errorf("not in time: %v", err)
	}
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("given up after %s", took)
	}
	if s := conn.PgConn().TxStatus(); s != 'I' {
		t.Errorf("transaction status %c after the turn did not come", s)
	}
	if leases := f.claim(t, 1); len(leases) != 1 {
		t.Errorf("claimed %d without a turn", len(leases))
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if leases, err := f.inTurn(t.Context(), conn, 10); err != nil || len(leases) != 3 {
		t.Errorf("claimed %d of the last 3: %v", len(leases), err)
	}
}

func TestClaimInTurnNeedsATable(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "plain")
	if _, err := f.inTurn(t.Context(), f.conn(t), 1); err == nil {
		t.Error("claimed in turn without a table for it")
	}
}
