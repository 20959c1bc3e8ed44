package worker_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pgwake/pgwake/worker"
)

// wakeOff keeps a transaction's inserts from ringing.
const wakeOff = `set local pgwake.wake = off`

// prepare enqueues a task in a transaction that is then prepared, under a name of its own, unless that fails.
func (e *edge) prepare(before string) (task uuid.UUID, name string, err error) {
	e.Helper()
	name = uuid.NewString()
	tx := e.begin(pgx.TxOptions{})
	e.in(tx, before)
	task = e.enqueueIn(tx)
	if _, err := tx.Exec(e.Context(), fmt.Sprintf(`prepare transaction '%s'`, name)); err != nil {
		return task, name, err
	}
	e.Cleanup(func() { // or the database cannot be dropped
		_, _ = e.pool.Exec(context.Background(), fmt.Sprintf(`rollback prepared '%s'`, name))
	})
	return task, name, nil
}

// A transaction that was prepared while nobody slept holds the gate open until it ends, for minutes if need be: the worker
// looks instead of sleeping, so that other tasks start as promptly as ever, and its own when it commits.
func TestPreparedTransactionHoldsTheGateOpen(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]string{"plain": `select`, "wake off": wakeOff} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEdge(t)
			committed, one, err := e.prepare(before)
			if err != nil {
				t.Fatal(err)
			}
			_, two, err := e.prepare(before)
			if err != nil {
				t.Fatal(err)
			}
			e.blocked(worker.Config{})
			for until := time.Now().Add(3 * time.Second); time.Now().Before(until); {
				e.promptly(e.enqueue("job", nil))
			}
			e.exec(fmt.Sprintf(`commit prepared '%s'`, one))
			e.promptly(committed)
			e.exec(fmt.Sprintf(`rollback prepared '%s'`, two))
			e.awaitArmed()
			e.promptly(e.enqueue("job", nil))
		})
	}
}

// While a worker sleeps an enqueueing transaction cannot be prepared: PostgreSQL refuses those that notify, with 0A000. The
// transaction is over then, and may be tried again with the wake-up off. Its task is found by the sweep.
func TestPrepareWhileAWorkerSleeps(t *testing.T) {
	t.Parallel()
	e := newEdge(t)
	e.armed(worker.Config{Sweep: time.Second})
	_, _, err := e.prepare(`select`)
	if sqlState(err) != "0A000" || !strings.Contains(err.Error(), "NOTIFY") {
		t.Errorf("prepare while a worker sleeps: %v", err)
	}
	if n := e.count(`select count(*) from pg_prepared_xacts where database = current_database()`); n != 0 {
		t.Errorf("%d prepared transactions", n)
	}

	heard, stop := e.listen()
	task, name, err := e.prepare(wakeOff)
	if err != nil {
		t.Fatal(err)
	}
	if _, armed := e.keepers(); len(armed) != 1 {
		t.Error("a transaction prepared with the wake-up off ended the arming")
	}
	e.exec(fmt.Sprintf(`commit prepared '%s'`, name))
	e.promptly(task)
	stop()
	for range heard {
		t.Error("a task rang with the wake-up off")
	}
}
