package worker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/sethvargo/go-retry"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/internal/pgtest"
	"github.com/pgwake/pgwake/registry"
	"github.com/pgwake/pgwake/worker"
)

// onArchive makes body what a trigger of the user's own does before a row is archived.
func (b *bench) onArchive(body string) {
	b.Helper()
	b.exec(`create function pgwake.audit() returns trigger language plpgsql as $$ begin ` + body + ` return new; end $$;
		create trigger audit before insert on pgwake.task_archive for each row execute function pgwake.audit()`)
}

// count asks the database for a number.
func (b *bench) count(sql string) (n int) {
	b.Helper()
	if err := b.pool.QueryRow(b.Context(), sql).Scan(&n); err != nil {
		b.Fatal(err)
	}
	return n
}

// A batch with a row that the database refuses is settled row by row. A connection that breaks meanwhile costs none of
// the rows: those after it are settled by the next connection, and the refused one runs again when its lease ends.
func TestBrokenSplitLosesNobody(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.exec(`create sequence pgwake.refused; create sequence pgwake.cut`)
	b.onArchive(`
		if new.type = 'holds up' then
			perform pg_advisory_xact_lock(1);
		elsif new.type = 'refused' and nextval('pgwake.refused') <= 2 then -- in the batch, and alone
			raise exception 'refused' using errcode = 'check_violation', constraint = 'audit';
		elsif new.type = 'cut' and (select last_value = 2 from pgwake.refused) and nextval('pgwake.cut') = 1 then
			perform pg_terminate_backend(pg_backend_pid()), pg_sleep(10);
		end if;`)
	names := []string{"refused", "cut", "after", "last"}
	gates, ids, started := map[string]chan struct{}{}, map[string]uuid.UUID{}, make(chan string, 10)
	for _, name := range names {
		gate := make(chan struct{})
		gates[name] = gate
		b.handle(name, nil, func(context.Context, *pgwake.Run) error {
			started <- name
			<-gate
			return nil
		})
	}
	b.handle("holds up", nil, func(context.Context, *pgwake.Run) error { return nil })
	w := b.start(worker.Config{Lease: 2 * time.Second, Slots: 10})
	for _, name := range names {
		ids[name] = b.enqueue(name, nil)
		recv(t, started, name)
	}

	// The settler is kept busy until all four results are there, in this order, to be settled in one statement.
	tx, err := b.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), `select pg_advisory_xact_lock(1)`); err != nil {
		t.Fatal(err)
	}
	b.enqueue("holds up", nil)
	pgtest.WaitFor(t, 10*time.Second, "the settler waits", func() bool {
		return b.count(`select count(*) from pg_locks where locktype = 'advisory' and not granted and database = (select oid from pg_database where datname = current_database())`) == 1
	})
	for i, name := range names {
		close(gates[name])
		pgtest.WaitFor(t, 10*time.Second, name+" returns", func() bool { return w.Health().Running == len(names)-1-i })
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}

	for name, attempt := range map[string]int{"cut": 1, "after": 1, "last": 1, "refused": 2} {
		if task := b.await(ids[name], pgwake.Succeeded); task.Attempt != attempt {
			t.Errorf("%s: succeeded at attempt %d, want %d", name, task.Attempt, attempt)
		}
	}
	if b.count(`select count(*) from pgwake.cut where is_called`) == 0 {
		t.Error("the connection did not break in the split")
	}
}

// A row that a trigger of the user's refuses is tried again for as long as its worker lives; others are settled
// meanwhile, and a stop waits for it no longer than DrainTimeout and 2 s.
func TestRefusedRowHoldsUpNobody(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.exec(`create sequence pgwake.refused`)
	b.onArchive(`
		if new.type = 'bad' then
			perform nextval('pgwake.refused');
			raise exception 'audit says no'; -- P0001
		end if;`)
	for _, name := range []string{"bad", "good"} {
		b.handle(name, nil, func(context.Context, *pgwake.Run) error { return nil })
	}
	w := b.start(worker.Config{Lease: 2 * time.Second, Slots: 10, DrainTimeout: 500 * time.Millisecond})
	bad := b.enqueue("bad", nil)
	refused := func() bool { return b.count(`select count(*) from pgwake.refused where is_called`) == 1 }
	pgtest.WaitFor(t, 10*time.Second, "a refusal", refused)
	var good []uuid.UUID
	for range 5 {
		good = append(good, b.enqueue("good", nil))
	}
	for _, id := range good {
		if task := b.await(id, pgwake.Succeeded); task.Attempt != 1 {
			t.Errorf("attempt %d", task.Attempt)
		}
	}
	if task := b.task(bad); task.Status != pgwake.Running {
		t.Errorf("the refused row is %s", task.Status)
	}
	start := time.Now()
	if err := w.stop(); err != nil {
		t.Error(err)
	}
	if took := time.Since(start); took > 5*time.Second { // DrainTimeout and 2 s, and the load of other tests
		t.Errorf("stop took %s", took)
	}
}

// pointerError panics when it is asked for anything as a nil pointer.
type pointerError struct{ err error }

func (e *pointerError) Error() string { return e.err.Error() }
func (e *pointerError) Unwrap() error { return e.err }

type unwrapPanics struct{}

func (unwrapPanics) Error() string { return "text" }
func (unwrapPanics) Unwrap() error { panic("in Unwrap") }

type isPanics struct{}

func (isPanics) Error() string { return "text" }
func (isPanics) Is(error) bool { panic("in Is") }

type asPanics struct{}

func (asPanics) Error() string { return "text" }
func (asPanics) As(any) bool   { panic("in As") }

// An error that cannot be looked at freezes its task, with attempts left; it does not end the process.
func TestErrorThatPanicsFreezesItsTask(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	results := map[string]struct {
		err  error
		text string
	}{
		"typed nil pointer":         {(*pointerError)(nil), "nil pointer"},
		"wrapped typed nil pointer": {fmt.Errorf("send: %w", (*pointerError)(nil)), "nil pointer"},
		"unwrap":                    {unwrapPanics{}, "in Unwrap"},
		"is":                        {isPanics{}, "in Is"},
		"as":                        {asPanics{}, "in As"},
		"joined":                    {errors.Join(errBoom, unwrapPanics{}), "in Unwrap"},
	}
	for name, c := range results {
		b.handle(name, nil, func(context.Context, *pgwake.Run) error { return c.err })
		b.handle(name+", late", &registry.Options{Timeout: time.Millisecond}, func(ctx context.Context, _ *pgwake.Run) error {
			<-ctx.Done()
			return c.err
		})
	}
	b.handle("next", nil, func(context.Context, *pgwake.Run) error { return nil })
	w := b.start(worker.Config{Slots: 1, Logger: quiet()})
	for name, c := range results {
		for _, name := range []string{name, name + ", late"} {
			task := b.await(b.enqueue(name, nil), pgwake.Frozen)
			if task.Attempt != 1 || task.LastError == nil || !strings.Contains(*task.LastError, c.text) {
				t.Errorf("%s: attempt %d, last error %v, want %q in it", name, task.Attempt, task.LastError, c.text)
			}
			if len(task.Errors) != 1 || task.Errors[0].Stack == "" {
				t.Errorf("%s: errors %+v, want one with its stack", name, task.Errors)
			}
		}
	}
	b.await(b.enqueue("next", nil), pgwake.Succeeded)
	if err := w.stop(); err != nil {
		t.Error(err)
	}
}

// A retry policy that panics, as some of go-retry do when made with 0, is refused where it is given. One that panics only
// later freezes the task.
func TestRetryPolicyThatPanics(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	handler := func(context.Context, *pgwake.Run) error { return errBoom }
	for name, policy := range map[string]registry.RetryPolicy{
		"when made":    func() retry.Backoff { return retry.NewExponential(0) },
		"at its first": func() retry.Backoff { return retry.BackoffFunc(func() (time.Duration, bool) { panic("no") }) },
	} {
		err := registry.RegisterRaw(b.reg, "job", handler, &registry.Options{Retry: policy})
		if err == nil || !strings.Contains(err.Error(), "retry policy panics") {
			t.Errorf("a policy that panics %s: registering it returns %v", name, err)
		}
	}
	b.handle("job", &registry.Options{Retry: func() retry.Backoff {
		n := 0
		return retry.BackoffFunc(func() (time.Duration, bool) {
			if n++; n > 1 {
				panic("at the second")
			}
			return 0, false
		})
	}}, handler)
	b.start(worker.Config{Logger: quiet()})
	task := b.await(b.enqueue("job", nil), pgwake.Frozen)
	if task.Attempt != 2 || task.LastError == nil || !strings.Contains(*task.LastError, "at the second") {
		t.Errorf("frozen at attempt %d with %v", task.Attempt, task.LastError)
	}
}
