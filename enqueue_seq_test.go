package pgwake

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pgwake/pgwake/internal/pgtest"
)

// numbers yields n tasks whose payloads number them from 0.
func numbers(n int) iter.Seq2[NewTask, error] {
	return func(yield func(NewTask, error) bool) {
		for i := range n {
			if !yield(NewTask{task("a", fmt.Sprintf(`{"n": %d}`, i)), nil}, nil) {
				return
			}
		}
	}
}

// then yields one more, or an error.
func then(tasks iter.Seq2[NewTask, error], last NewTask, err error) iter.Seq2[NewTask, error] {
	return func(yield func(NewTask, error) bool) {
		for task, err := range tasks {
			if !yield(task, err) {
				return
			}
		}
		yield(last, err)
	}
}

// first tells how many tasks there are, and fails unless they are the first of a sequence.
func (b *bundle) first(t *testing.T) int64 {
	t.Helper()
	n := one[int64](t, b.pool, "select count(*) from pgwake.tasks where type = 'a'")
	if m := one[int64](t, b.pool, "select count(distinct payload ->> 'n') from pgwake.tasks where type = 'a' and (payload ->> 'n')::bigint < $1", n); m != n {
		t.Errorf("%d tasks, of which %d are among the first", n, m)
	}
	return n
}

func TestSeq(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, 10, 1_000, 2_500} {
		for name, opts := range map[string]*SeqOptions{
			"default": nil, "small": {BatchTasks: 7}, "one by one": {BatchTasks: 1}, "bytes": {BatchBytes: 1_000},
		} {
			t.Run(fmt.Sprintf("%d %s", n, name), func(t *testing.T) {
				t.Parallel()
				b := newBundle(t, ClientConfig{})
				got, err := b.EnqueueSeq(t.Context(), numbers(n), opts)
				if err != nil || got != (SeqResult{Enqueued: int64(n)}) || b.first(t) != int64(n) {
					t.Errorf("%+v, %v", got, err)
				}
				// The bounds hold: no transaction has more tasks.
				most := one[int](t, b.pool, "select coalesce(max(n), 0) from (select count(*) as n from pgwake.tasks group by xmin) as x")
				if opts != nil && opts.BatchTasks > 0 && most > opts.BatchTasks || opts == nil && most > seqTasks || name == "bytes" && most > 14 {
					t.Errorf("%d tasks in a transaction", most)
				}
			})
		}
	}
}

// Results come in order, for every task, and say which were there already.
func TestSeqResults(t *testing.T) {
	t.Parallel()
	b := newBundle(t, ClientConfig{})
	keyed := func(yield func(NewTask, error) bool) {
		for i := range 300 {
			if !yield(NewTask{task("a", fmt.Sprintf(`{"n": %d}`, i)), &EnqueueOptions{UniqueKey: fmt.Sprint(i % 200)}}, nil) {
				return
			}
		}
	}
	var all []Enqueued
	opts := &SeqOptions{BatchTasks: 60, Results: func(list []Enqueued) error {
		all = append(all, list...)
		return nil
	}}
	got, err := b.EnqueueSeq(t.Context(), keyed, opts)
	if err != nil || got != (SeqResult{200, 100}) || len(all) != 300 {
		t.Fatalf("%+v, %v, %d results", got, err, len(all))
	}
	for i, e := range all {
		if e.Duplicate != (i >= 200) || e.ID != all[i%200].ID {
			t.Errorf("%d: %+v", i, e)
		}
	}
	if n := b.first(t); n != 200 {
		t.Errorf("%d tasks", n)
	}
	all = nil
	got, err = b.EnqueueSeqTx(t.Context(), b.pool, keyed, opts)
	if err != nil || got != (SeqResult{0, 300}) || len(all) != 300 {
		t.Errorf("%+v, %v, %d results", got, err, len(all))
	}
}

// Whatever ends it early, the tasks counted are there, they are the first of the sequence, and no others are.
func TestSeqEndsEarly(t *testing.T) {
	t.Parallel()
	failed := errors.New("the source failed")
	taken := uuid.Must(uuid.NewV7())
	for name, c := range map[string]struct {
		last    NewTask
		err     error
		want    string
		exactly bool // all before are there
	}{
		"error of the sequence":   {NewTask{}, failed, failed.Error(), true},
		"task that is refused":    {NewTask{task("", ""), nil}, nil, "task 2000: enqueue: task type is empty", true},
		"task of no payload":      {NewTask{}, nil, "task 2000: enqueue: payload is nil", true},
		"refused by the database": {NewTask{task("b", `"refuse"`), nil}, nil, "house_rule", false},
		"id that is taken":        {NewTask{task("b", ""), &EnqueueOptions{ID: taken}}, nil, "an id is taken", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBundle(t, ClientConfig{})
			b.exec(t, `alter table pgwake.tasks add constraint house_rule check (payload <> '"refuse"')`)
			b.enqueue(t, task("b", ""), &EnqueueOptions{ID: taken})
			got, err := b.EnqueueSeq(t.Context(), then(numbers(2_000), c.last, c.err), &SeqOptions{BatchTasks: 1_000})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q in it", err, c.want)
			}
			if n := b.first(t); got.Duplicates != 0 || got.Enqueued != n || c.exactly && n != 2_000 || n < 1_000 {
				t.Errorf("%+v, and %d tasks", got, n)
			}
		})
	}
}

// A source that is slow holds up nobody: its tasks are committed while it waits.
func TestSeqOfSlowSource(t *testing.T) {
	t.Parallel()
	b := newBundle(t, ClientConfig{})
	reported := 0
	got, err := b.EnqueueSeq(t.Context(), func(yield func(NewTask, error) bool) {
		for k := range 3 {
			for task, err := range numbers(20) {
				if !yield(task, err) {
					return
				}
			}
			pgtest.WaitFor(t, patience, "the tasks so far", func() bool {
				return one[int](t, b.pool, "select count(*) from pgwake.tasks") == 20*(k+1)
			})
		}
	}, &SeqOptions{BatchTasks: 8, Results: func(list []Enqueued) error { reported += len(list); return nil }})
	if err != nil || got.Enqueued != 60 || reported != 60 {
		t.Errorf("%+v, %v, %d reported", got, err, reported)
	}
}

// When its context ends, the batch under way is finished and counted, within a second, and no other is begun.
func TestSeqCancelled(t *testing.T) {
	t.Parallel()
	stopped := errors.New("stopped")
	for _, blocked := range []bool{false, true} {
		t.Run(fmt.Sprint(blocked), func(t *testing.T) {
			t.Parallel()
			b := newBundle(t, ClientConfig{})
			ctx, cancel := context.WithCancelCause(t.Context())
			var began time.Time
			release := func() {}
			if blocked { // by somebody who has locked the table
				tx, err := b.pool.Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer tx.Rollback(context.WithoutCancel(t.Context()))
				if _, err := tx.Exec(t.Context(), "lock table pgwake.tasks in access exclusive mode"); err != nil {
					t.Fatal(err)
				}
				release = func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }
			}
			got, err := b.EnqueueSeq(ctx, func(yield func(NewTask, error) bool) {
				n := 0
				for task, err := range numbers(1_000_000) {
					if n++; n == 500 {
						if blocked {
							waiting(t, b.pool, 1)
						}
						began = time.Now()
						cancel(stopped)
					}
					if !yield(task, err) {
						return
					}
				}
			}, &SeqOptions{BatchTasks: 100_000})
			took := time.Since(began)
			if blocked {
				waiting(t, b.pool, 0) // the server hears that the batch is given up
			}
			release()
			if !errors.Is(err, stopped) && (!blocked || !errors.Is(err, context.Canceled)) || took > 2*time.Second {
				t.Errorf("%v after %s", err, took)
			}
			if n := b.first(t); got.Enqueued != n || n >= 500 || blocked && n != 0 {
				t.Errorf("%+v, and %d tasks", got, n)
			}
		})
	}
}

// An error of Results ends it, and so does a panic, which comes out where EnqueueSeq was called.
func TestSeqResultsFail(t *testing.T) {
	t.Parallel()
	b := newBundle(t, ClientConfig{})
	full := errors.New("disk full")
	calls := 0
	got, err := b.EnqueueSeq(t.Context(), numbers(1_000_000), &SeqOptions{Results: func([]Enqueued) error { calls++; return full }})
	if err != full || calls != 1 || got.Enqueued != b.first(t) || got.Enqueued > 5*seqTasks {
		t.Errorf("%+v, %v, %d calls", got, err, calls)
	}
	for name, call := range map[string]func(){
		"results": func() {
			_, _ = b.EnqueueSeq(t.Context(), numbers(100_000), &SeqOptions{Results: func([]Enqueued) error { panic("mine") }})
		},
		"sequence": func() {
			_, _ = b.EnqueueSeq(t.Context(), func(yield func(NewTask, error) bool) {
				for task, err := range numbers(5_000) {
					yield(task, err)
				}
				panic("mine")
			}, &SeqOptions{Results: func([]Enqueued) error { return nil }})
		},
		"payload": func() { _, _ = b.EnqueueSeq(t.Context(), then(numbers(10), NewTask{bomb{}, nil}, nil), nil) },
	} {
		func() {
			defer func() {
				if v := recover(); v != "mine" {
					t.Errorf("%s: %v", name, v)
				}
			}()
			call()
		}()
	}
}

// bomb cannot be marshalled.
type bomb struct{}

func (bomb) TaskType() string             { return "a" }
func (bomb) MarshalJSON() ([]byte, error) { panic("mine") }

func TestSeqTx(t *testing.T) {
	t.Parallel()
	b := newBundle(t, ClientConfig{})
	failed := errors.New("the source failed")
	for _, fail := range []bool{true, false} {
		err := pgx.BeginFunc(t.Context(), b.pool, func(tx pgx.Tx) error {
			// The sequence asks the same transaction.
			got, err := b.EnqueueSeqTx(t.Context(), tx, func(yield func(NewTask, error) bool) {
				for task, err := range numbers(2_500) {
					if one[int](t, tx, "select 1"); !yield(task, err) {
						return
					}
				}
				if fail {
					yield(NewTask{}, failed)
				}
			}, nil)
			if err == nil && got.Enqueued != 2_500 {
				t.Errorf("%+v", got)
			}
			return err
		})
		if fail && (err != failed || b.first(t) != 0) || !fail && (err != nil || b.first(t) != 2_500) {
			t.Error(err)
		}
	}
}

func TestSeqOptions(t *testing.T) {
	t.Parallel()
	b := newBundle(t, ClientConfig{})
	for _, opts := range []*SeqOptions{{BatchTasks: -1}, {BatchBytes: -1}} {
		if _, err := b.EnqueueSeq(t.Context(), numbers(1), opts); err == nil {
			t.Error("no error")
		}
		if _, err := b.EnqueueSeqTx(t.Context(), b.pool, numbers(1), opts); err == nil {
			t.Error("no error")
		}
	}
}

// What is in memory is bounded: a batch is gathered, one is sent, and of some there are results that have not been asked for.
func TestSeqIsBounded(t *testing.T) {
	t.Parallel()
	b := newBundle(t, ClientConfig{})
	for name, opts := range map[string]SeqOptions{"tasks": {BatchTasks: 10}, "bytes": {BatchBytes: 10 * 1_100}} {
		given, known, most := 0, 0, 0
		opts.Results = func(list []Enqueued) error { known += len(list); return nil }
		payload := task("b", `"`+strings.Repeat("x", 1_000)+`"`)
		_, err := b.EnqueueSeq(t.Context(), func(yield func(NewTask, error) bool) {
			for given = range 5_000 {
				most = max(most, given-known)
				if !yield(NewTask{payload, nil}, nil) {
					return
				}
			}
		}, &opts)
		if err != nil || most > 50 {
			t.Errorf("%s: %d tasks in memory, %v", name, most, err)
		}
	}
}
