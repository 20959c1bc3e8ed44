//go:build !race

// The race detector allocates, and empties pools.

package pgwake

import (
	"testing"

	"github.com/google/uuid"
)

// What a task costs before it is sent: the JSON of its payload and the bytes of its id, one allocation each. Options add
// none, metadata those of their own JSON.
func TestPrepareAllocations(t *testing.T) { // not parallel: the allocations of the process are counted
	c := offline(t)
	for name, tc := range map[string]struct {
		task NewTask
		most float64
	}{
		"struct":  {NewTask{someMail, nil}, 2},
		"raw":     {NewTask{someRaw, nil}, 2},
		"id":      {NewTask{someMail, &EnqueueOptions{ID: uuid.Max}}, 1},
		"options": {NewTask{someMail, &EnqueueOptions{Delay: 1, Priority: new(1), MaxAttempts: 2, UniqueKey: "k"}}, 2},
	} {
		got := testing.AllocsPerRun(100, func() {
			if _, err := c.prepare(tc.task); err != nil {
				t.Fatal(err)
			}
		})
		if got > tc.most {
			t.Errorf("%s: %v allocations, want %v at most", name, got, tc.most)
		}
	}
}

// Encoding allocates nothing for a row: only what it is put into grows.
func TestEncodeAllocations(t *testing.T) {
	tasks := make([]NewTask, 10_000)
	for i := range tasks {
		tasks[i] = NewTask{someMail, &EnqueueOptions{Priority: new(1), MaxAttempts: 2, Metadata: map[string]any{"n": i}}}
	}
	for name, encode := range encodings(t, tasks) {
		if got := testing.AllocsPerRun(10, encode); got > 300 {
			t.Errorf("%s: %v allocations for %d rows", name, got, len(tasks))
		} else {
			t.Log(name, got)
		}
	}
}
