package worker

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgwake/pgwake/registry"
)

// drive runs a simulated backlog through slots: claims that take so long, runs that take so long, for a while. It returns
// how many are claimed ahead at the end.
func drive(s *slots, typ *registry.Type, claim, run, during time.Duration) int {
	var running sync.WaitGroup
	defer running.Wait()
	for began := time.Now(); time.Since(began) < during; {
		limit := s.limits([]*registry.Type{typ}, s.room())[0]
		time.Sleep(claim)
		s.claimed(claim)
		tasks := make([]*execution, limit)
		for i := range tasks {
			tasks[i] = &execution{typ: typ}
		}
		for _, e := range s.add(tasks) {
			running.Go(func() {
				for e != nil {
					time.Sleep(run)
					e.took = run
					e = s.next(e)
				}
			})
		}
		for s.room() == 0 {
			time.Sleep(run / 10)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ahead
}

// Claimed ahead is what the slots run in twice the time of a claim; nothing of what takes long.
func TestAhead(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name       string
		claim, run time.Duration
		min, max   int
	}{
		{"1 ms", 4 * time.Millisecond, time.Millisecond, 60, 90}, // 10 slots run 80 in 8 ms
		{"10 ms", 2 * time.Millisecond, 10 * time.Millisecond, 2, 5},
		{"0.01 ms", 2 * time.Millisecond, 10 * time.Microsecond, maxClaim, maxClaim},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if got := drive(newSlots(10), &registry.Type{}, tc.claim, tc.run, time.Second); got < tc.min || got > tc.max {
					t.Errorf("%d claimed ahead, want %d to %d", got, tc.min, tc.max)
				}
			})
		})
	}
}

func TestLimitsByType(t *testing.T) {
	t.Parallel()
	s := newSlots(10)
	quick, slow, unknown := &registry.Type{}, &registry.Type{}, &registry.Type{}
	s.mean[quick], s.mean[slow] = time.Millisecond, slowHandler
	s.busy, s.ahead = 4, 50
	if room := s.room(); room != 56 {
		t.Fatalf("room for %d", room)
	}
	if got := s.limits([]*registry.Type{quick, slow, unknown}, s.room()); got[0] != 56 || got[1] != 6 || got[2] != 6 {
		t.Errorf("limits %v, want 56, and 6 of those that are slow or unknown", got)
	}
	s.busy, s.ready = 10, make([]*execution, 26)
	if room := s.room(); room != 0 {
		t.Errorf("room for %d, although more than half of what is claimed ahead waits", room)
	}
	s.ready = s.ready[:25]
	if room := s.room(); room != 25 {
		t.Errorf("room for %d, want 25", room)
	}
}
