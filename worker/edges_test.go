package worker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/internal/pgtest"
	"github.com/pgwake/pgwake/worker"
)

// edge is a database with one task type, whose runs the test hears of.
type edge struct {
	*bench
	started chan uuid.UUID
}

func newEdge(t *testing.T) *edge {
	t.Helper()
	e := &edge{bench: newBench(t), started: make(chan uuid.UUID, 10_000)}
	e.handle("job", nil, func(_ context.Context, run *pgwake.Run) error {
		e.started <- run.ID
		return nil
	})
	return e
}

// soon is far less than until a look without a cause.
const soon = 5 * time.Second

// armed runs a worker and waits until inserters are to ring it.
func (e *edge) armed(config worker.Config) {
	e.Helper()
	e.start(config)
	e.awaitArmed()
}

func (e *edge) awaitArmed() {
	e.Helper()
	pgtest.WaitFor(e, soon, "the gate is armed", func() bool {
		keepers, armed := e.keepers()
		return len(keepers) > 0 && len(armed) == len(keepers)
	})
	e.awaitAsleep()
}

// blocked runs a worker and waits until it is keeper and cannot arm.
func (e *edge) blocked(config worker.Config) {
	e.Helper()
	e.start(config)
	pgtest.WaitFor(e, soon, "a keeper", func() bool {
		keepers, _ := e.keepers()
		return len(keepers) == 1
	})
	e.promptly(e.enqueue("job", nil)) // and it has looked since
	if _, armed := e.keepers(); len(armed) > 0 {
		e.Error("the gate is armed while a transaction in flight holds it open")
	}
}

// promptly waits until the tasks have started, and no others.
func (e *edge) promptly(ids ...uuid.UUID) {
	e.Helper()
	e.startedWithin(soon, ids...)
}

func (e *edge) startedWithin(limit time.Duration, ids ...uuid.UUID) {
	e.Helper()
	missing := map[uuid.UUID]bool{}
	for _, id := range ids {
		missing[id] = true
	}
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	for len(missing) > 0 {
		select {
		case id := <-e.started:
			if !missing[id] {
				e.Errorf("task %s started, which should not", id)
			}
			delete(missing, id)
		case <-timeout.C:
			e.Fatalf("%d of %d tasks have not started within %s", len(missing), len(ids), limit)
		}
	}
}

// begin opens a transaction, which is rolled back when the test ends.
func (e *edge) begin(opts pgx.TxOptions) pgx.Tx {
	e.Helper()
	tx, err := e.pool.BeginTx(e.Context(), opts)
	if err != nil {
		e.Fatal(err)
	}
	e.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

func (e *edge) enqueueIn(tx pgx.Tx) uuid.UUID {
	e.Helper()
	enqueued, err := e.client.EnqueueTx(e.Context(), tx, pgwake.Raw{Type: "job"}, nil)
	if err != nil {
		e.Fatal(err)
	}
	return enqueued.ID
}

func (e *edge) in(tx pgx.Tx, sql string) {
	e.Helper()
	if _, err := tx.Exec(e.Context(), sql); err != nil {
		e.Fatalf("%s: %v", sql, err)
	}
}

func (e *edge) commit(tx pgx.Tx) {
	e.Helper()
	if err := tx.Commit(e.Context()); err != nil {
		e.Fatal(err)
	}
}

// sqlState is the code of the server's error, empty if there is none.
func sqlState(err error) string {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return pgErr.Code
	}
	return ""
}

// Rows of a savepoint that is rolled back neither run nor ring, and take nothing from the others: a ring that came of
// them too early, by SET CONSTRAINTS, comes again at commit.
func TestSavepointRolledBack(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		kept  bool // a row was inserted before the savepoint
		early bool // constraints are made immediate within it
		rings int
	}{
		"row before":                  {kept: true, rings: 1},
		"row before, early":           {kept: true, early: true, rings: 1},
		"nothing but what is undone":  {},
		"nothing but that, and early": {early: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEdge(t)
			e.armed(worker.Config{})
			heard, stop := e.listen()
			tx := e.begin(pgx.TxOptions{})
			var ids []uuid.UUID
			if c.kept {
				ids = append(ids, e.enqueueIn(tx))
			}
			e.in(tx, `savepoint part`)
			e.enqueueIn(tx)
			if c.early {
				e.in(tx, `set constraints all immediate`)
			}
			e.in(tx, `rollback to savepoint part`)
			e.commit(tx)
			e.promptly(ids...)
			stop()
			rings := 0
			for range heard {
				rings++
			}
			if rings != c.rings {
				t.Errorf("%d rings, want %d", rings, c.rings)
			}
			if n := e.count(`select count(*) from pgwake.all_tasks`); n != len(ids) {
				t.Errorf("%d tasks", n)
			}
		})
	}
}

// SET CONSTRAINTS ALL IMMEDIATE makes the trigger run at once. The ring still goes out at commit; if nobody slept, the
// transaction holds the gate open up to its end, and the worker looks instead of sleeping.
func TestConstraintsImmediate(t *testing.T) {
	t.Parallel()
	t.Run("while a worker sleeps", func(t *testing.T) {
		t.Parallel()
		e := newEdge(t)
		e.armed(worker.Config{})
		tx := e.begin(pgx.TxOptions{})
		ids := []uuid.UUID{e.enqueueIn(tx)}
		e.in(tx, `set constraints all immediate`)
		ids = append(ids, e.enqueueIn(tx))
		e.promptly(e.enqueue("job", nil)) // nobody else is held up
		e.awaitAsleep()
		e.commit(tx)
		e.promptly(ids...)
	})
	t.Run("while nobody sleeps", func(t *testing.T) {
		t.Parallel()
		e := newEdge(t)
		tx := e.begin(pgx.TxOptions{})
		ids := []uuid.UUID{e.enqueueIn(tx)}
		e.in(tx, `set constraints all immediate`)
		ids = append(ids, e.enqueueIn(tx))
		e.blocked(worker.Config{})
		e.commit(tx)
		e.promptly(ids...)
		e.awaitArmed()
	})
}

// A transaction that has enqueued cannot change the table's definition or truncate it, PostgreSQL says with 55006, because
// the ring is still to come. SET CONSTRAINTS lets it come first.
func TestPendingRing(t *testing.T) {
	t.Parallel()
	for _, statement := range []string{
		`truncate pgwake.tasks`,
		`alter table pgwake.tasks add column mine integer`,
		`create index on pgwake.tasks (created_at)`,
	} {
		t.Run(statement[:strings.Index(statement, " ")], func(t *testing.T) {
			t.Parallel()
			e := newEdge(t)
			tx := e.begin(pgx.TxOptions{})
			e.enqueueIn(tx)
			if _, err := tx.Exec(t.Context(), statement); sqlState(err) != "55006" {
				t.Errorf("with a ring to come: %v", err)
			}
			tx = e.begin(pgx.TxOptions{})
			e.enqueueIn(tx)
			e.in(tx, `set constraints all immediate`)
			e.in(tx, statement)
			e.commit(tx)
		})
	}
}

// COPY rings like an insert, once for each type.
func TestCopy(t *testing.T) {
	t.Parallel()
	e := newEdge(t)
	e.armed(worker.Config{Slots: 50})
	heard, stop := e.listen()
	rows := make([][]any, 500)
	ids := make([]uuid.UUID, len(rows))
	for i := range rows {
		ids[i] = uuid.New()
		rows[i] = []any{ids[i], "job"}
	}
	if _, err := e.pool.CopyFrom(t.Context(), pgx.Identifier{"pgwake", "tasks"}, []string{"id", "type"}, pgx.CopyFromRows(rows)); err != nil {
		t.Fatal(err)
	}
	e.promptly(ids...)
	stop()
	rings := 0
	for range heard {
		rings++
	}
	if rings != 1 {
		t.Errorf("%d rings, want 1", rings)
	}
}

// Transactions of any isolation level enqueue as others do, and do not fail one another by it. They complete a task, whose
// lease is renewed meanwhile, if that is the first thing they do. Workers do not take over a level that the database is set
// to: under it their claims would fail.
func TestIsolation(t *testing.T) {
	t.Parallel()
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			e := newEdge(t)
			e.exec(fmt.Sprintf(`do $$ begin execute format('alter database %%I set default_transaction_isolation = %%L', current_database(), '%s'); end $$`, level))
			pool, err := pgxpool.NewWithConfig(t.Context(), e.pool.Config())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			e.pool = pool
			const lasts = time.Second
			e.handle("completes", nil, func(ctx context.Context, run *pgwake.Run) error {
				return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
					if err := run.CompleteTx(ctx, tx); err != nil {
						return err
					}
					<-time.After(lasts * 2 / 3) // the lease is to be renewed twice
					return nil
				})
			})
			for i := range 3 {
				e.start(worker.Config{Name: fmt.Sprint("w", i), Slots: 4, Lease: lasts})
			}
			e.awaitArmed()
			tx := e.begin(pgx.TxOptions{})
			var got string
			if err := tx.QueryRow(t.Context(), `show transaction_isolation`).Scan(&got); err != nil || got != string(level) {
				t.Fatalf("isolation %q, %v", got, err)
			}
			id := e.enqueueIn(tx)
			e.commit(tx)
			e.promptly(id)
			if task := e.await(e.enqueue("completes", nil), pgwake.Succeeded); task.Attempt != 1 {
				t.Errorf("completed at attempt %d", task.Attempt)
			}

			ids := make(chan uuid.UUID, 200)
			failed := make(chan error, 8)
			for range 8 {
				go func() {
					for range cap(ids) / 8 {
						if err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
							enqueued, err := e.client.EnqueueTx(t.Context(), tx, pgwake.Raw{Type: "job"}, nil)
							ids <- enqueued.ID
							return err
						}); err != nil {
							failed <- err
							return
						}
					}
					failed <- nil
				}()
			}
			for range 8 {
				if err := recv(t, failed, "end of an enqueuer"); err != nil {
					t.Errorf("enqueue: %v", err)
				}
			}
			close(ids)
			var all []uuid.UUID
			for id := range ids {
				all = append(all, id)
			}
			e.promptly(all...)
			pgtest.WaitFor(t, soon, "tasks to be settled", func() bool { return e.count(`select count(*) from pgwake.tasks`) == 0 })
			if n := e.count(`select count(*) from pgwake.task_archive where attempt > 1`); n > 0 {
				t.Errorf("%d tasks ran more than once", n)
			}
		})
	}
}

// What is inserted with session_replication_role = replica, as pg_restore --disable-triggers and logical replication do,
// does not ring: the sweep finds it. Triggers set to ENABLE ALWAYS ring all the same.
func TestReplicaRole(t *testing.T) {
	t.Parallel()
	e := newEdge(t)
	e.armed(worker.Config{Sweep: time.Second})
	insert := func() uuid.UUID {
		tx := e.begin(pgx.TxOptions{})
		e.in(tx, `set local session_replication_role = replica`)
		id := e.enqueueIn(tx)
		e.commit(tx)
		return id
	}
	heard, stop := e.listen()
	e.promptly(insert())
	if len(heard) > 0 {
		t.Error("a row of a replica rang")
	}
	e.exec(`alter table pgwake.tasks enable always trigger tasks_ring_insert, enable always trigger tasks_ring_update`)
	e.awaitAsleep()
	id := insert()
	recv(t, heard, "ring")
	e.promptly(id)
	stop()
}
