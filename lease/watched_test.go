package lease_test

import (
	"context"
	"testing"

	"github.com/pgwake/pgwake/lease"
)

// Somebody who holds the lock exclusively is known to every settlement, also to one that finds nothing to settle; and a
// settlement that has got it keeps it until its commit.
func TestSettleWatched(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "own")
	conn, err := f.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	lock := func(function string) (got bool) {
		t.Helper()
		if err := conn.QueryRow(t.Context(), `select `+function+`(`+f.table.SettledLock+`)`).Scan(&got); err != nil {
			t.Fatal(err)
		}
		return got
	}
	settle := func(db lease.DB, want bool, settled int, s ...lease.Settlement) {
		t.Helper()
		done, watched, err := f.SettleWatched(t.Context(), db, holderA, s)
		if err != nil || watched != want || len(done) != settled {
			t.Errorf("settled %v, watched %v, %v, want %v", done, watched, err, want)
		}
	}
	var ends []lease.Settlement
	for _, l := range f.holdMany(t, 4) {
		ends = append(ends, lease.Settlement{Lease: l, Status: f.table.States.Final[0]})
	}

	settle(f.pool, false, 1, ends[0])
	if !lock("pg_try_advisory_lock") {
		t.Error("the lock is held after the commit")
	}
	settle(f.pool, true, 1, ends[1])
	settle(f.pool, true, 0, ends[1])
	settle(f.pool, true, 0)
	if !lock("pg_advisory_unlock") {
		t.Error("the lock was lost")
	}

	tx, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	settle(tx, false, 1, ends[2])
	if lock("pg_try_advisory_lock") {
		t.Error("the lock is not held until the commit")
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !lock("pg_try_advisory_lock") {
		t.Error("the lock is held after the commit")
	}
	settle(f.pool, true, 1, ends[3])
}
