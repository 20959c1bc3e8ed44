package pgwake

import (
	"database/sql"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgwake/pgwake/lease"
)

func TestSQLTx(t *testing.T) {
	t.Parallel()
	b := newBundle(t, ClientConfig{})
	c := offline(t) // no pool is needed
	db := stdlib.OpenDBFromPool(b.pool)
	defer db.Close()
	within := func(commit bool, f func(tx Tx)) {
		t.Helper()
		tx, err := db.BeginTx(t.Context(), &sql.TxOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback()
		f(SQLTx(tx))
		if commit {
			if err := tx.Commit(); err != nil {
				t.Fatal(err)
			}
		}
	}
	count := func(want int) {
		t.Helper()
		if n := one[int](t, b.pool, "select count(*) from pgwake.tasks"); n != want {
			t.Errorf("%d tasks, want %d", n, want)
		}
	}
	opts := &EnqueueOptions{
		UniqueKey: "k", Priority: new(1), MaxAttempts: 2, DueAt: time.Date(2100, 1, 2, 3, 4, 5, 6_000, time.FixedZone("", 3600)), Metadata: map[string]any{"m": 1},
	}
	var first Enqueued
	enqueue := func(tx Tx) {
		var err error
		if first, err = c.EnqueueTx(t.Context(), tx, typed{Text: "ü"}, opts); err != nil {
			t.Fatal(err)
		}
	}
	within(false, enqueue)
	count(0)
	within(true, enqueue)
	count(1)
	got, err := b.Inspector().Task(t.Context(), first.ID)
	if err != nil || got.Priority != 1 || got.MaxAttempts != 2 || !got.DueAt.Equal(opts.DueAt) || *got.UniqueKey != "k" ||
		!sameJSON(t, got.Payload, []byte(`{"text": "ü"}`)) || !sameJSON(t, got.Metadata, []byte(`{"m": 1}`)) {
		t.Errorf("%+v, %v", got, err)
	}
	within(true, func(tx Tx) {
		got, err := c.EnqueueTx(t.Context(), tx, typed{}, &EnqueueOptions{UniqueKey: "k"})
		wantDuplicate(t, got, err, first.ID)
		// A duplicate does not fail the transaction.
		if _, err := c.EnqueueTx(t.Context(), tx, typed{}, &EnqueueOptions{Delay: time.Hour}); err != nil {
			t.Error(err)
		}
		many, err := c.EnqueueManyTx(t.Context(), tx, append(slices.Repeat([]NewTask{{typed{}, nil}}, 60), NewTask{typed{}, &EnqueueOptions{UniqueKey: "k"}}))
		if err != nil || len(many) != 61 || many[60].ID != first.ID || !many[60].Duplicate || many[0].Duplicate {
			t.Errorf("%+v, %v", many, err)
		}
	})
	count(62)

	// A handler completes within it too.
	holder := uuid.New()
	b.exec(t, "update pgwake.tasks set status = 'running', holder = $1, fence = 5 where id = $2", holder, first.ID)
	run := NewRun(&lease.Lease{Fence: 5, Holder: holder.String()}, CompleteStatement(DefaultSchema, true))
	run.ID = first.ID
	within(false, func(tx Tx) {
		if err := run.CompleteTx(t.Context(), tx); err != nil {
			t.Error(err)
		}
	})
	count(62)
	within(true, func(tx Tx) {
		if err := run.CompleteTx(t.Context(), tx); err != nil || run.Completion() != Completed {
			t.Error(err)
		}
	})
	count(61)
	within(true, func(tx Tx) {
		if err := run.CompleteTx(t.Context(), tx); !errors.Is(err, lease.ErrLeaseLost) {
			t.Error(err)
		}
	})
	if err := new(Run).CompleteTx(t.Context(), b.pool); err == nil {
		t.Error("completes what was not claimed")
	}
}
