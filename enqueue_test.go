package pgwake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/pgwake/pgwake/internal/pgtest"
	"github.com/pgwake/pgwake/internal/sqlstate"
	"github.com/pgwake/pgwake/migrations"
)

// rows are all live tasks of a type as JSON by their payload's n, without what differs from task to task.
func (b *bundle) rows(t *testing.T, name string) map[string]string {
	t.Helper()
	rows, err := b.pool.Query(t.Context(), `select payload ->> 'n', (to_jsonb(x) - 'id' - 'type' - 'created_at' - 'due_at' - 'retry_at')::text
		  || (retry_at = due_at) || case when retry_at = created_at then ' now' when abs(extract(epoch from retry_at - created_at)) > 1e7 then ' ' || retry_at
		     else ' in ' || round(extract(epoch from retry_at - created_at) / 60) end
		from pgwake.tasks as x where type = $1`, name)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	var n, row string
	if _, err := pgx.ForEachRow(rows, []any{&n, &row}, func() error { got[n] = row; return nil }); err != nil {
		t.Fatal(err)
	}
	return got
}

// However a task gets into the table, its row is the same.
func TestPathsAgree(t *testing.T) {
	t.Parallel()
	b := newBundle(t, ClientConfig{})
	zone := time.FixedZone("odd", -44*60-30) // as Monrovia had it until 1972: RFC 3339 cannot write its seconds
	variants := []*EnqueueOptions{
		nil, {}, {Priority: new(0)}, {MaxAttempts: 3}, {Metadata: map[string]any{"m": "ü"}},
		{DueAt: time.Date(2100, 1, 2, 3, 4, 5, 123_456_789, time.UTC)},
		{DueAt: time.Date(2100, 1, 2, 3, 4, 5, 999_999_999, zone)},
		{DueAt: time.Unix(1e9, 0), Priority: new(9)},
	}
	const n = 256
	tasks := func(name string) []NewTask {
		list := make([]NewTask, n)
		for i := range list {
			list[i] = NewTask{task(name, fmt.Sprintf(`{"n": %d, "f": 1.50, "s": "ü\\u0000\"{},"}`, i)), variants[i%len(variants)]}
		}
		return list
	}
	for _, task := range tasks("one") {
		b.enqueue(t, task.Payload, task.Options)
	}
	want := b.rows(t, "one")
	if len(want) != n {
		t.Fatalf("%d rows", len(want))
	}
	timed := func(t NewTask) bool { return t.Options != nil && !t.Options.DueAt.IsZero() }
	for name, way := range map[string]struct {
		parts func([]NewTask) [][]NewTask
		inTx  bool
		copy  bool
	}{
		"arrays":       {func(l []NewTask) [][]NewTask { return slices.Collect(slices.Chunk(l, copyFrom-1)) }, false, false},
		"mixed":        {func(l []NewTask) [][]NewTask { return [][]NewTask{l} }, true, false},
		"copy":         {func(l []NewTask) [][]NewTask { return split(l, timed) }, false, true},
		"copy in a tx": {func(l []NewTask) [][]NewTask { return split(l, timed) }, true, true},
	} {
		for _, part := range way.parts(tasks(name)) {
			rows, err := b.prepareAll(part)
			if err != nil {
				t.Fatal(err)
			}
			if s := shapeOf(rows); s.copies() != way.copy {
				t.Errorf("%s: %+v", name, s)
			}
			var got []Enqueued
			if way.inTx {
				err = pgx.BeginFunc(t.Context(), b.pool, func(tx pgx.Tx) (err error) { got, err = b.EnqueueManyTx(t.Context(), tx, part); return err })
			} else {
				got, err = b.EnqueueMany(t.Context(), part)
			}
			if err != nil || len(got) != len(part) {
				t.Fatal(len(got), err)
			}
			for i, e := range got {
				payload := string(part[i].Payload.(Raw).JSON)
				if e.Type != name || e.Duplicate || !one[bool](t, b.pool, "select payload = $2 from pgwake.tasks where id = $1", e.ID, payload) {
					t.Errorf("%s: result %d is not %s: %+v", name, i, payload, e)
				}
				if i > 0 && e.ID.String() <= got[i-1].ID.String() {
					t.Errorf("%s: ids do not rise at %d", name, i)
				}
			}
		}
		if got := b.rows(t, name); !maps.Equal(got, want) {
			for k, row := range want {
				if got[k] != row {
					t.Errorf("%s %s: %s\nwant %s", name, k, got[k], row)
				}
			}
		}
	}
	if got, err := b.EnqueueMany(t.Context(), nil); err != nil || len(got) != 0 {
		t.Error(got, err)
	}
}

// split parts the tasks that pass from those that do not.
func split(tasks []NewTask, passes func(NewTask) bool) [][]NewTask {
	parts := make([][]NewTask, 2)
	for _, t := range tasks {
		i := 0
		if passes(t) {
			i = 1
		}
		parts[i] = append(parts[i], t)
	}
	return parts
}

// A transaction that has ended is refused: its connection may serve another by then.
func TestEnqueueInEndedTx(t *testing.T) {
	t.Parallel()
	b := newBundle(t, ClientConfig{})
	for _, n := range []int{1, copyFrom - 1, copyFrom} {
		tx, err := b.pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := b.EnqueueManyTx(t.Context(), tx, slices.Repeat([]NewTask{{typed{}, nil}}, n)); !errors.Is(err, pgx.ErrTxClosed) {
			t.Errorf("%d tasks: %v", n, err)
		}
	}
	if n := one[int](t, b.pool, "select count(*) from pgwake.tasks"); n != 0 {
		t.Errorf("%d tasks", n)
	}
}

// Delays count from the statement, not from the start of the caller's transaction, and by the database's clock.
func TestDelay(t *testing.T) {
	t.Parallel()
	b := newBundle(t, ClientConfig{})
	tx, err := b.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	if _, err := tx.Exec(t.Context(), "select pg_sleep(0.05)"); err != nil {
		t.Fatal(err)
	}
	before := one[time.Time](t, tx, "select clock_timestamp()")
	var ids []uuid.UUID
	e, err := b.EnqueueTx(t.Context(), tx, typed{}, &EnqueueOptions{Delay: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	ids = append(ids, e.ID)
	list := make([]NewTask, 60) // as many as would go by COPY without the delay
	for i := range list {
		list[i] = NewTask{typed{}, &EnqueueOptions{Delay: time.Hour}}
	}
	all, err := b.EnqueueManyTx(t.Context(), tx, list)
	if err != nil {
		t.Fatal(err)
	}
	ids = append(ids, all[0].ID, all[59].ID)
	after := one[time.Time](t, tx, "select clock_timestamp()")
	for i, id := range ids {
		at := one[time.Time](t, tx, "select retry_at from pgwake.tasks where id = $1 and due_at = retry_at", id)
		if at.Before(before.Add(time.Hour)) || at.After(after.Add(time.Hour)) {
			t.Errorf("%d: due at %s, want an hour after %s to %s", i, at, before, after)
		}
	}
}

func TestEnqueueTxRollsBack(t *testing.T) {
	t.Parallel()
	b := newBundle(t, ClientConfig{})
	for _, n := range []int{1, 60} {
		tx, err := b.pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		list := slices.Repeat([]NewTask{{typed{}, nil}}, n)
		if _, err := b.EnqueueManyTx(t.Context(), tx, list); err != nil {
			t.Fatal(err)
		}
		if _, err := b.EnqueueTx(t.Context(), tx, typed{}, nil); err != nil {
			t.Fatal(err)
		}
		if n := one[int](t, b.pool, "select count(*) from pgwake.tasks"); n != 0 {
			t.Errorf("%d tasks before the commit", n)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n := one[int](t, b.pool, "select count(*) from pgwake.tasks"); n != 0 {
		t.Errorf("%d tasks", n)
	}
	// One bad task, and none is inserted.
	if _, err := b.EnqueueMany(t.Context(), []NewTask{{typed{}, nil}, {typed{Text: "\x00"}, nil}}); err == nil {
		t.Error("no error")
	}
	if n := one[int](t, b.pool, "select count(*) from pgwake.tasks"); n != 0 {
		t.Errorf("%d tasks", n)
	}
}

// wantDuplicate asserts that err says which live task holds the key.
func wantDuplicate(t *testing.T, got Enqueued, err error, id uuid.UUID) {
	t.Helper()
	var dup *DuplicateError
	if !errors.Is(err, ErrDuplicate) || !errors.As(err, &dup) || dup.ID != id || got.ID != id || !got.Duplicate || !strings.Contains(err.Error(), id.String()) {
		t.Errorf("%+v, %v, want the duplicate of %s", got, err, id)
	}
}

func TestUniqueKey(t *testing.T) {
	t.Parallel()
	b := newBundle(t, ClientConfig{})
	opts := &EnqueueOptions{UniqueKey: "k"}
	for status, set := range map[string]string{
		"queued": "", "future": "retry_at = now() + interval '1 day'", "running": "status = 'running', holder = id, fence = 1",
		"paused": "status = 'paused', retry_at = 'infinity'", "frozen": "status = 'frozen', retry_at = null",
	} {
		name := "type." + status
		id := b.enqueue(t, task(name, ""), opts)
		if set != "" {
			b.exec(t, "update pgwake.tasks set "+set+" where id = $1", id)
		}
		got, err := b.Enqueue(t.Context(), task(name, ""), opts)
		wantDuplicate(t, got, err, id)
		b.enqueue(t, task(name, ""), &EnqueueOptions{UniqueKey: "other"})
		b.enqueue(t, task(name+".other", ""), opts)

		// Settled, it gives the key back.
		b.exec(t, "update pgwake.tasks set status = 'running', retry_at = now(), holder = id, fence = 1 where id = $1", id)
		if !one[bool](t, b.pool, "select pgwake.complete_task($1, 1, $1)", id) {
			t.Fatal("not completed")
		}
		next := b.enqueue(t, task(name, ""), opts)
		got, err = b.Enqueue(t.Context(), task(name, ""), opts)
		wantDuplicate(t, got, err, next)
		// SQL says the same, as the id of the live task.
		if live := one[uuid.UUID](t, b.pool, "select pgwake.enqueue($1, unique_key => 'k')", name); live != next {
			t.Errorf("enqueue() returned %s, want %s", live, next)
		}
	}
	id := uuid.Must(uuid.NewV7())
	b.enqueue(t, typed{}, &EnqueueOptions{ID: id})
	got, err := b.Enqueue(t.Context(), typed{}, &EnqueueOptions{ID: id})
	wantDuplicate(t, got, err, id)
	for _, n := range []int{1, 60} {
		list := slices.Repeat([]NewTask{{typed{}, nil}}, n)
		list[n-1].Options = &EnqueueOptions{ID: id}
		if _, err := b.EnqueueMany(t.Context(), list); !errors.Is(err, ErrDuplicate) {
			t.Errorf("%d with an id that is taken: %v", n, err)
		}
	}
}

// between runs a function before the second statement.
type between struct {
	Tx
	f func()
	n int
}

func (b *between) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if b.n++; b.n == 2 {
		b.f()
	}
	return b.Tx.QueryRow(ctx, sql, args...)
}

// The task that holds the key is settled after the insert met it and before the look for its id: no duplicate then.
func TestHolderSettledInBetween(t *testing.T) {
	t.Parallel()
	b := newBundle(t, ClientConfig{})
	opts := &EnqueueOptions{UniqueKey: "k"}
	for _, many := range []bool{false, true} {
		b.exec(t, "delete from pgwake.tasks")
		old := b.enqueue(t, typed{}, opts)
		tx := &between{Tx: b.pool, f: func() { b.exec(t, "delete from pgwake.tasks") }}
		var got Enqueued
		var err error
		if many {
			var list []Enqueued
			if list, err = b.EnqueueManyTx(t.Context(), tx, []NewTask{{typed{}, opts}}); err == nil {
				got = list[0]
			}
		} else {
			got, err = b.EnqueueTx(t.Context(), tx, typed{}, opts)
		}
		if err != nil || got.Duplicate || got.ID == old || got.ID != one[uuid.UUID](t, b.pool, "select id from pgwake.tasks") {
			t.Errorf("%+v, %v", got, err)
		}
	}
}

func TestManyWithUniqueKeys(t *testing.T) {
	t.Parallel()
	b := newBundle(t, ClientConfig{})
	key := func(k string) *EnqueueOptions { return &EnqueueOptions{UniqueKey: k} }
	live := b.enqueue(t, task("a", ""), key("live"))
	settled := b.enqueue(t, task("a", ""), key("settled"))
	b.exec(t, "delete from pgwake.tasks where id = $1", settled)
	got, err := b.EnqueueMany(t.Context(), []NewTask{
		{task("a", `{"n": 0}`), key("twice")}, {task("a", `{"n": 1}`), nil}, {task("a", `{"n": 2}`), key("twice")}, {task("b", `{"n": 3}`), key("twice")},
		{task("a", `{"n": 4}`), key("live")}, {task("a", `{"n": 5}`), key("settled")}, {task("a", `{"n": 6}`), key("aaa")},
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, duplicateOf := range []int{-1, -1, 0, -1, -2, -1, -1} {
		want := got[i].ID
		switch duplicateOf {
		case -2:
			want = live
		case 0:
			want = got[0].ID
		}
		if got[i].ID != want || got[i].Duplicate != (duplicateOf != -1) {
			t.Errorf("%d: %+v", i, got[i])
		}
		if duplicateOf == -1 {
			if n := one[string](t, b.pool, "select payload ->> 'n' from pgwake.tasks where id = $1", got[i].ID); n != fmt.Sprint(i) {
				t.Errorf("result %d is task %s", i, n)
			}
		}
	}
	if n := one[int](t, b.pool, "select count(*) from pgwake.tasks"); n != 6 {
		t.Errorf("%d tasks", n)
	}
}

// The holders of many keys are settled while a batch with the same keys comes in: every task is inserted or there.
func TestManyAgainstSettlements(t *testing.T) {
	t.Parallel()
	b := newBundle(t, ClientConfig{})
	stop := make(chan struct{}) // closed when the last batch is in; ends the deleter
	var deleter errgroup.Group
	deleter.Go(func() error {
		for {
			select {
			case <-stop:
				return nil
			default:
			}
			if _, err := b.pool.Exec(t.Context(), "delete from pgwake.tasks where ctid = any (array (select ctid from pgwake.tasks order by random() limit 2 for update skip locked))"); err != nil {
				return err
			}
		}
	})
	var group errgroup.Group
	for range 3 {
		group.Go(func() error {
			for range 8 {
				order := rand.Perm(30)
				list := make([]NewTask, len(order))
				for i, k := range order {
					list[i] = NewTask{task("a", ""), &EnqueueOptions{UniqueKey: fmt.Sprint(k)}}
				}
				got, err := b.EnqueueMany(t.Context(), list)
				if sqlstate.Retryable(err) {
					continue // an insert repeated for a holder that was settled may meet another's in turn
				}
				if err != nil {
					return err
				}
				for i, e := range got {
					if e.ID == uuid.Nil {
						return fmt.Errorf("result %d has no id", i)
					}
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	close(stop)
	if err := deleter.Wait(); err != nil {
		t.Error(err)
	}
}

// Batches with the same keys in other orders wait for each other, but not in turn.
func TestManyInAnyOrder(t *testing.T) {
	t.Parallel()
	b := newBundle(t, ClientConfig{})
	for round := range 20 {
		inserted := make([]int, 4)
		var group errgroup.Group
		for i := range inserted {
			group.Go(func() error {
				list := make([]NewTask, 100)
				for n, k := range rand.Perm(len(list)) {
					list[n] = NewTask{task("a", ""), &EnqueueOptions{UniqueKey: fmt.Sprint(round, " ", k)}}
				}
				got, err := b.EnqueueMany(t.Context(), list)
				for _, e := range got {
					if !e.Duplicate {
						inserted[i]++
					}
				}
				return err
			})
		}
		if err := group.Wait(); err != nil {
			t.Fatal(err)
		}
		if slices.Sort(inserted); inserted[3] != 100 || inserted[2] != 0 {
			t.Errorf("inserted %v", inserted)
		}
	}
}

// waiting waits until n sessions of the test's database wait for a lock.
func waiting(t *testing.T, pool *pgxpool.Pool, n int) {
	t.Helper()
	pgtest.WaitFor(t, patience, "a session to wait", func() bool {
		return one[int](t, pool, "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'") == n
	})
}

// Another transaction has inserted the key and not committed: nobody is told "duplicate" on its word.
func TestKeyOfOpenTransaction(t *testing.T) {
	t.Parallel()
	ends := map[string]func(*testing.T, *bundle, pgx.Tx){
		"rollback": func(t *testing.T, _ *bundle, tx pgx.Tx) { _ = tx.Rollback(t.Context()) },
		"commit": func(t *testing.T, _ *bundle, tx pgx.Tx) {
			if err := tx.Commit(t.Context()); err != nil {
				t.Error(err)
			}
		},
		"terminated": func(t *testing.T, b *bundle, tx pgx.Tx) {
			b.exec(t, "select pg_terminate_backend($1)", tx.Conn().PgConn().PID())
		},
	}
	for end, finish := range ends {
		for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
			for _, many := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/%v", end, level, many), func(t *testing.T) {
					t.Parallel()
					b := newBundle(t, ClientConfig{})
					opts := &EnqueueOptions{UniqueKey: "k"}
					other, err := b.pool.Begin(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					defer other.Rollback(context.WithoutCancel(t.Context()))
					theirs, err := b.EnqueueTx(t.Context(), other, typed{}, opts)
					if err != nil {
						t.Fatal(err)
					}
					type result struct {
						Enqueued
						err error
					}
					done := make(chan result, 1)
					go func() {
						var r result
						r.err = pgx.BeginTxFunc(t.Context(), b.pool, pgx.TxOptions{IsoLevel: level}, func(tx pgx.Tx) error {
							// Takes the snapshot, where there is one.
							if _, err := tx.Exec(t.Context(), "select count(*) from pgwake.tasks"); err != nil {
								return err
							}
							if !many {
								var err error
								r.Enqueued, err = b.EnqueueTx(t.Context(), tx, typed{}, opts)
								return err
							}
							list, err := b.EnqueueManyTx(t.Context(), tx, []NewTask{{typed{}, opts}})
							if err == nil {
								r.Enqueued = list[0]
								if r.Duplicate {
									err = ErrDuplicate
								}
							}
							return err
						})
						done <- r
					}()
					waiting(t, b.pool, 1)
					finish(t, b, other)
					r := <-done
					n := one[int](t, b.pool, "select count(*) from pgwake.tasks where id = $1", r.ID)
					switch {
					case end != "commit":
						if r.err != nil || r.Duplicate || r.ID == theirs.ID || n != 1 {
							t.Errorf("%+v, rows %d, want our own task", r, n)
						}
					case level == pgx.ReadCommitted:
						if !errors.Is(r.err, ErrDuplicate) || r.ID != theirs.ID || n != 1 {
							t.Errorf("%+v, rows %d, want the duplicate of %s", r, n, theirs.ID)
						}
					default:
						if errors.Is(r.err, ErrDuplicate) || !sqlstate.Retryable(r.err) {
							t.Errorf("%+v, want a retryable error", r)
						}
					}
				})
			}
		}
	}
}

// A hundred race for one key, and half of them roll back: whoever was told "ok" or "duplicate" was told the truth.
func TestKeyRace(t *testing.T) {
	t.Parallel()
	b := newBundle(t, ClientConfig{})
	roll := errors.New("rolled back")
	for round := range 5 {
		opts := &EnqueueOptions{UniqueKey: fmt.Sprint(round)}
		var mu sync.Mutex
		var told []uuid.UUID
		committed := 0
		var group errgroup.Group
		for i := range 100 {
			group.Go(func() error {
				var got Enqueued
				err := pgx.BeginFunc(t.Context(), b.pool, func(tx pgx.Tx) (err error) {
					if got, err = b.EnqueueTx(t.Context(), tx, typed{}, opts); err == nil && i%2 == 0 {
						return roll
					}
					return err
				})
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					committed++
					told = append(told, got.ID)
				case errors.Is(err, ErrDuplicate):
					told = append(told, got.ID)
				case err != roll:
					return err
				}
				return nil
			})
		}
		if err := group.Wait(); err != nil {
			t.Fatal(err)
		}
		rows, _ := b.pool.Query(t.Context(), "select id from pgwake.tasks where unique_key = $1", opts.UniqueKey)
		ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
		if err != nil || len(ids) != 1 || committed != 1 {
			t.Fatalf("rows %v, %d committed, %v", ids, committed, err)
		}
		for _, id := range told {
			if id != ids[0] {
				t.Errorf("told of %s, the row is %s", id, ids[0])
			}
		}
	}
}

// Schemas with odd names in one database are apart, by every way of enqueueing.
func TestSchemas(t *testing.T) {
	t.Parallel()
	url := pgtest.NewEmpty(t)
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	names := []string{"Tasks", "tasks", `a"b`, "x.y", "my-queue", "select", "naïve", strings.Repeat("n", 63)}
	for i, schema := range names {
		var version *migrations.VersionError
		if _, err := NewClient(t.Context(), pool, ClientConfig{Schema: schema}); !errors.As(err, &version) {
			t.Errorf("%s: %v", schema, err)
		}
		if _, err := migrations.Up(t.Context(), url, schema); err != nil {
			t.Fatal(err)
		}
		c, err := NewClient(t.Context(), pool, ClientConfig{Schema: schema})
		if err != nil {
			t.Fatal(err)
		}
		list := slices.Repeat([]NewTask{{task("copied", ""), nil}}, 50+i)
		if _, err := c.EnqueueMany(t.Context(), list); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if _, err = c.Enqueue(t.Context(), task("one", ""), &EnqueueOptions{UniqueKey: "k"}); err != nil && !errors.Is(err, ErrDuplicate) {
				t.Fatal(err)
			}
		}
		if err == nil {
			t.Errorf("%s: no duplicate", schema)
		}
		q := pgx.Identifier{schema}.Sanitize()
		for _, sql := range []string{"insert into " + q + ".tasks (type) values ('plain')", "select " + q + ".enqueue('function')"} {
			if _, err := pool.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i, schema := range names {
		c, err := NewClient(t.Context(), pool, ClientConfig{Schema: schema})
		if err != nil {
			t.Fatal(err)
		}
		counts, err := c.Inspector().Counts(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]int64{}
		for _, n := range counts {
			got[n.Type] += n.Count
		}
		if want := map[string]int64{"copied": int64(50 + i), "one": 1, "plain": 1, "function": 1}; !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", schema, got, want)
		}
	}
}

// A migration that adds to the schema does not disturb a client that goes on enqueueing with statements prepared before.
func TestAdditiveMigration(t *testing.T) {
	t.Parallel()
	b := newBundle(t, ClientConfig{})
	enqueue := func() error {
		if _, err := b.Enqueue(t.Context(), typed{}, &EnqueueOptions{UniqueKey: uuid.NewString()}); err != nil {
			return err
		}
		if _, err := b.EnqueueMany(t.Context(), slices.Repeat([]NewTask{{typed{}, nil}}, 50)); err != nil {
			return err
		}
		if _, err := b.EnqueueMany(t.Context(), slices.Repeat([]NewTask{{typed{}, &EnqueueOptions{Delay: 1}}}, 2)); err != nil {
			return err
		}
		if _, err := b.Inspector().Tasks(t.Context(), TaskFilter{Limit: 1}); err != nil {
			return err
		}
		_, err := b.Inspector().Counts(t.Context())
		return err
	}
	stop := make(chan struct{}) // closed when the migration is done; ends the clients
	begun := make(chan struct{}, 4)
	var group errgroup.Group
	for range 4 {
		group.Go(func() error {
			for n := 0; ; n++ {
				if err := enqueue(); err != nil {
					return err
				}
				if n == 3 {
					begun <- struct{}{}
				}
				select {
				case <-stop:
					return enqueue()
				default:
				}
			}
		})
	}
	for range 4 {
		select {
		case <-begun:
		case <-time.After(patience):
			t.Fatal("the clients do not begin")
		}
	}
	conn, err := pgx.ConnectConfig(t.Context(), b.pool.Config().ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	for i, sql := range []string{
		"alter table pgwake.tasks add column extra text",
		"alter table pgwake.tasks add column counted integer not null default 0",
		"alter table pgwake.task_archive add column extra text",
		"create index concurrently tasks_extra on pgwake.tasks (extra) where extra is not null",
		fmt.Sprintf("insert into pgwake.schema_migrations (version_id, is_applied) values (%d, true)", migrations.Latest+1),
	} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Errorf("%d: %v", i, err)
		}
	}
	close(stop)
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	if _, err := NewClient(t.Context(), b.pool, ClientConfig{}); err != nil {
		t.Error(err)
	}
}

func TestDuplicateErrorText(t *testing.T) {
	t.Parallel()
	id := uuid.MustParse("00000000-0000-7000-8000-000000000001")
	for want, e := range map[string]*DuplicateError{
		`live task 00000000-0000-7000-8000-000000000001 of type "a" holds the unique key "k"`: {Enqueued{id, "a", true}, "k"},
		"task 00000000-0000-7000-8000-000000000001 exists already":                            {Enqueued{id, "a", true}, ""},
	} {
		if e.Error() != want || !errors.Is(e, ErrDuplicate) {
			t.Errorf("%v, want %s", e, want)
		}
	}
	if text, err := json.Marshal(Enqueued{id, "a", false}); err != nil || string(text) != `{"id":"00000000-0000-7000-8000-000000000001","type":"a","duplicate":false}` {
		t.Errorf("%s, %v", text, err)
	}
}
