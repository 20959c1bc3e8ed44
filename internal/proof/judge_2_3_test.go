//go:build unix

package proof_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"sort"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/registry"
)

// entry is what a worker process logs: a run of a task, from its handler's first line to its last, or, without a task, a
// time without a listener. Instants are Unix nanoseconds.
type entry struct {
	Task       [16]byte
	Start, End int64
}

// logged works for a random time and logs it. Each entry is written at once.
func logged(w *worked) registry.Next {
	var mu sync.Mutex // guards file
	var file *os.File
	write := func(e entry) error {
		text, err := binary.Append(nil, binary.LittleEndian, e)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		if file == nil {
			if file, err = os.OpenFile(w.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
				return err
			}
		}
		_, err = file.Write(text)
		return err
	}
	outages := sync.OnceFunc(func() { go logOutages(w, write) })
	return func(ctx context.Context, run *pgwake.Run) error {
		start := time.Now()
		outages()
		select {
		case <-time.After(w.Work/2 + rand.N(w.Work)):
		case <-ctx.Done():
		}
		return write(entry{run.ID, start.UnixNano(), time.Now().UnixNano()})
	}
}

// logOutages logs the times without a listener, which are longer than the time between two looks. It ends with the process.
func logOutages(w *worked, write func(entry) error) {
	var lost time.Time
	for {
		h := w.worker.Health()
		switch {
		case !h.Listening && lost.IsZero():
			lost = h.ListenerSince
		case h.Listening && !lost.IsZero():
			if err := write(entry{Start: lost.UnixNano(), End: h.ListenerSince.UnixNano()}); err != nil {
				fmt.Fprintln(os.Stderr, "log:", err)
			}
			lost = time.Time{}
		}
		pause(5 * time.Millisecond)
	}
}

// history is what a worker process has done.
type history struct {
	slots   int
	ready   int64 // when all its slots were free
	runs    []entry
	outages []span
}

// span is a time from one instant up to another.
type span struct{ from, to int64 }

func (s span) length() time.Duration { return time.Duration(s.to - s.from) }

func readHistory(t testing.TB, file string, slots int, ready time.Time) *history {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	entries := make([]entry, len(text)/binary.Size(entry{}))
	if _, err := binary.Decode(text, binary.LittleEndian, entries); err != nil {
		t.Fatal(err)
	}
	h := &history{slots: slots, ready: ready.UnixNano()}
	for _, e := range entries {
		if e.Task == [16]byte{} {
			h.outages = append(h.outages, span{e.Start, e.End})
		} else {
			h.runs = append(h.runs, e)
		}
	}
	return h
}

const (
	tooLate = time.Second
	briefly = 50 * time.Millisecond // not worth a look
)

// free are the times in which a slot was free for longer than briefly, in order. A run takes the slot that has been free
// for the longest, so a slot is free for a second only if the process started fewer runs in it than it had slots free at
// its beginning: a process that does what it can has none while tasks wait. Times without a listener do not count.
func (h *history) free() []span {
	starts := slices.SortedFunc(slices.Values(h.runs), func(a, b entry) int { return cmp.Compare(a.Start, b.Start) })
	ends := slices.SortedFunc(slices.Values(h.runs), func(a, b entry) int { return cmp.Compare(a.End, b.End) })
	since := make([]int64, h.slots, h.slots+len(ends)) // of the free slots
	for i := range since {
		since[i] = h.ready
	}
	var free []span
	add := func(s span) {
		for _, o := range h.outages {
			if before := (span{s.from, min(s.to, o.from)}); o.to > s.from && before.length() > briefly {
				free = append(free, before)
			}
			if o.to > s.from {
				s.from = o.to
			}
		}
		if s.length() > briefly {
			free = append(free, s)
		}
	}
	for _, r := range starts {
		for len(ends) > 0 && ends[0].End <= r.Start {
			since, ends = append(since, ends[0].End), ends[1:]
		}
		if len(since) == 0 { // freed while its handler was about to return
			since, ends = append(since, r.Start), ends[1:]
		}
		add(span{since[0], r.Start})
		since = since[1:]
	}
	for _, e := range ends {
		since = append(since, e.End)
	}
	for _, from := range since {
		add(span{from, math.MaxInt64})
	}
	slices.SortFunc(free, func(a, b span) int { return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to)) })
	return free
}

// verdict is what is to be said of a soak.
type verdict struct {
	waited, late int           // tasks that waited beside a slot that was free all that time: for more than briefly, and too long
	longest      time.Duration // such wait; 0 if none was longer than briefly
	overtaken    int           // tasks that started after one that was due long after their commit
	lost         int           // committed and never run
	again        int           // run more than once
	unknown      int           // run and not committed
	reconnects   int           // of listeners
	worst        []string      // some that were late
}

// judge compares what was committed with what was run.
func judge(tasks []committed, histories []*history) verdict {
	var v verdict
	var runs []entry
	var free [][]span
	for _, h := range histories {
		runs = append(runs, h.runs...)
		free = append(free, h.free())
		v.reconnects += len(h.outages)
	}
	slices.SortFunc(runs, func(a, b entry) int {
		return cmp.Or(bytes.Compare(a.Task[:], b.Task[:]), cmp.Compare(a.Start, b.Start))
	})
	slices.SortFunc(tasks, func(a, b committed) int { return bytes.Compare(a.id[:], b.id[:]) })
	started := make([]int64, len(tasks))
	rest := runs
	for i, t := range tasks {
		for len(rest) > 0 && bytes.Compare(rest[0].Task[:], t.id[:]) < 0 {
			v.unknown, rest = v.unknown+1, rest[1:]
		}
		if len(rest) == 0 || rest[0].Task != t.id {
			v.lost, started[i] = v.lost+1, math.MaxInt64
			continue
		}
		started[i] = rest[0].Start
		for rest = rest[1:]; len(rest) > 0 && rest[0].Task == t.id; rest = rest[1:] {
			v.again++
		}
	}
	v.unknown += len(rest)

	for i, t := range tasks {
		waited := besideFree(span{t.at, started[i]}, free)
		if waited > briefly {
			v.waited++
			v.longest = max(v.longest, waited)
		}
		if waited > tooLate {
			v.late++
			if len(v.worst) < 20 {
				v.worst = append(v.worst, fmt.Sprintf("task %s, committed at %s, waited for %s beside a free slot",
					uuid.UUID(t.id), time.Unix(0, t.at).Format("15:04:05.000"), waited))
			}
		}
	}
	v.overtaken = overtaken(tasks, started)
	return v
}

// besideFree is the longest time within a wait in which one slot was free.
func besideFree(wait span, free [][]span) (longest time.Duration) {
	if wait.length() <= briefly {
		return 0
	}
	for _, slots := range free {
		// Both ends of the spans are in order.
		first := sort.Search(len(slots), func(i int) bool { return slots[i].to > wait.from })
		for _, s := range slots[first:] {
			if s.from >= wait.to {
				break
			}
			both := span{max(s.from, wait.from), min(s.to, wait.to)}
			longest = max(longest, both.length())
		}
	}
	return longest
}

// overtaken counts the tasks that started more than tooLate after one that was not due before their commit was over.
func overtaken(tasks []committed, started []int64) (n int) {
	type begun struct{ due, first int64 } // first start among those due then or later
	byDue := make([]begun, len(tasks))
	for i, t := range tasks {
		byDue[i] = begun{t.due, started[i]}
	}
	slices.SortFunc(byDue, func(a, b begun) int { return cmp.Compare(a.due, b.due) })
	for i := len(byDue) - 2; i >= 0; i-- {
		byDue[i].first = min(byDue[i].first, byDue[i+1].first)
	}
	for i, t := range tasks {
		next := sort.Search(len(byDue), func(i int) bool { return byDue[i].due > t.over })
		if next < len(byDue) && started[i] != math.MaxInt64 && byDue[next].first < started[i]-int64(tooLate) {
			n++
		}
	}
	return n
}

// The judge sees what it is there to see.
func TestJudge(t *testing.T) {
	t.Parallel()
	const ms = int64(time.Millisecond)
	id := func(n byte) [16]byte { return [16]byte{15: n} }
	task := func(n byte, due, at int64) committed { return committed{id(n), due * ms, at * ms, (at + 1) * ms} }
	run := func(n byte, start, end int64) entry { return entry{id(n), start * ms, end * ms} }
	outage := func(from, to int64) span { return span{from * ms, to * ms} }
	for _, tc := range []struct {
		name      string
		tasks     []committed
		histories []*history
		want      verdict
	}{
		{
			"in time", []committed{task(1, 0, 100)},
			[]*history{{slots: 1, runs: []entry{run(1, 1100, 1200)}}},
			verdict{waited: 1, longest: time.Second},
		},
		{
			"late", []committed{task(1, 0, 100)},
			[]*history{{slots: 1, runs: []entry{run(1, 1101, 1200)}}},
			verdict{waited: 1, late: 1, longest: 1001 * time.Millisecond},
		},
		{
			"no slot free", []committed{task(1, 0, 0), task(2, 0, 10)},
			[]*history{{slots: 1, runs: []entry{run(1, 10, 5000), run(2, 5010, 5020)}}},
			verdict{},
		},
		{
			"a slot free elsewhere", []committed{task(1, 0, 0), task(2, 0, 10)},
			[]*history{{slots: 1, runs: []entry{run(1, 10, 5000), run(2, 5010, 5020)}}, {slots: 1}},
			verdict{waited: 1, late: 1, longest: 5 * time.Second},
		},
		{
			"one of two slots free", []committed{task(1, 0, 0), task(2, 0, 10)},
			[]*history{{slots: 2, runs: []entry{run(1, 10, 5000), run(2, 2000, 2010)}}},
			verdict{waited: 1, late: 1, longest: 1990 * time.Millisecond},
		},
		{
			"slots are in use in turn", []committed{task(1, 0, 0), task(2, 0, 0), task(3, 0, 0), task(4, 0, 0)},
			[]*history{{slots: 2, runs: []entry{run(1, 10, 20), run(2, 900, 910), run(3, 1000, 1010), run(4, 1800, 1810)}}},
			verdict{waited: 3, longest: 980 * time.Millisecond},
		},
		{
			"no listener", []committed{task(1, 0, 100)},
			[]*history{{slots: 1, runs: []entry{run(1, 2500, 2600)}, outages: []span{outage(500, 1600)}}},
			verdict{waited: 1, longest: 900 * time.Millisecond, reconnects: 1},
		},
		{
			"late after the reconnect", []committed{task(1, 0, 100)},
			[]*history{{slots: 1, runs: []entry{run(1, 2700, 2800)}, outages: []span{outage(500, 1600)}}},
			verdict{waited: 1, late: 1, longest: 1100 * time.Millisecond, reconnects: 1},
		},
		{
			"overtaken", []committed{task(1, 0, 0), task(2, 2, 3)},
			[]*history{{slots: 1, runs: []entry{run(2, 10, 1011), run(1, 1011, 1012)}}},
			verdict{overtaken: 1},
		},
		{
			"not for long", []committed{task(1, 0, 0), task(2, 2, 3)},
			[]*history{{slots: 1, runs: []entry{run(2, 10, 1010), run(1, 1010, 1012)}}},
			verdict{},
		},
		{
			"due before it was there", []committed{task(1, 0, 2), task(2, 2, 3)},
			[]*history{{slots: 1, runs: []entry{run(2, 10, 1011), run(1, 1011, 1012)}}},
			verdict{},
		},
		{
			"lost, run twice, rolled back", []committed{task(1, 0, 0), task(3, 0, 0)},
			[]*history{{slots: 9, runs: []entry{run(1, 10, 11), run(1, 20, 21), run(2, 10, 11)}}},
			verdict{waited: 1, late: 1, lost: 1, again: 1, unknown: 1},
		},
	} {
		got := judge(tc.tasks, tc.histories)
		got.worst = nil
		if tc.want.lost > 0 {
			got.longest = 0 // for ever
		}
		if !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%s: %+v, want %+v", tc.name, got, tc.want)
		}
	}
}
