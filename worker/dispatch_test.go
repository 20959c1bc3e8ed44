package worker_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/worker"
)

// A slot that a suspect has taken is as good as any other when it is free again: a task that nothing has told of starts
// at once, and not with the next look at leases, a second after the claim.
func TestSlotOfASuspectIsUsedAtOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	started, release, ran := make(chan struct{}), make(chan struct{}), make(chan time.Time, 1)
	b.handle("suspect", nil, func(context.Context, *pgwake.Run) error {
		close(started)
		<-release
		return nil
	})
	b.handle("next", nil, func(context.Context, *pgwake.Run) error {
		ran <- time.Now()
		return nil
	})
	b.start(worker.Config{Slots: 1, Lease: time.Second})
	b.awaitAsleep()
	suspect := b.enqueueLost("suspect", "now()")
	recv(t, started, "the suspect")
	if err := pgx.BeginFunc(t.Context(), b.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `set local pgwake.wake = 'off'`); err != nil {
			return err
		}
		_, err := b.client.EnqueueTx(t.Context(), tx, pgwake.Raw{Type: "next"}, nil)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	free := time.Now()
	close(release)
	if late := recv(t, ran, "the next task").Sub(free); late > 500*time.Millisecond {
		t.Errorf("the next task started %s after the only slot was free", late)
	}
	b.await(suspect, pgwake.Succeeded)
}
