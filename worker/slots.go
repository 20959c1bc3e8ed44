package worker

import (
	"sync"
	"time"

	"github.com/pgwake/pgwake/registry"
)

const (
	// maxClaim bounds one claim.
	maxClaim = 1000
	// slowHandler is the mean time of a type's runs from which on none is claimed ahead: others may have a slot for it.
	slowHandler = 20 * time.Millisecond
	// readyTime is how long a task that is claimed ahead should wait for a slot at most.
	readyTime = 250 * time.Millisecond
	// readyPatience is how long a task that was claimed ahead may wait for a slot before it goes back.
	readyPatience = time.Second
)

// slots are the handlers that may run at once, and the tasks claimed ahead that wait for one of them. As many are claimed
// ahead as the slots could run in twice the time of a claim, so that they do not wait for the database, but no more than
// have ended of late in readyTime: none where nothing ends, and none of a type whose runs take long.
type slots struct {
	size  int
	freed chan struct{} // cap 1: there is room while more is waiting, or a task to look for

	mu     sync.Mutex // guards what follows
	busy   int
	ready  []*execution                     // first come, first served
	closed bool                             // no more of ready is to run
	more   bool                             // there may be more than was claimed
	ahead  int                              // how many to claim ahead
	mean   map[*registry.Type]time.Duration // of a type's runs, the last ones above all
	ended  int                              // runs since the last claim
	took   time.Duration                    // by them
	run    time.Duration                    // mean time of a run, whatever its type
	rate   float64                          // of runs that end in a second
	claims time.Duration                    // mean time of a claim
	latest time.Time                        // claim
}

func newSlots(size int) *slots {
	return &slots{size: size, freed: make(chan struct{}, 1), mean: map[*registry.Type]time.Duration{}}
}

// running is the number of handlers at work.
func (s *slots) running() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.busy
}

// free is the number of slots that nothing runs in.
func (s *slots) free() int { return s.size - s.running() }

// room is how many tasks a claim may take: none before half of what is claimed ahead has begun.
func (s *slots) room() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.roomLocked()
}

func (s *slots) roomLocked() int {
	if s.busy == s.size && len(s.ready) > s.ahead/2 {
		return 0
	}
	return max(min(s.size-s.busy+s.ahead-len(s.ready), maxClaim), 0)
}

// limits are the most that may be claimed of each type.
func (s *slots) limits(types []*registry.Type, room int) []int32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	limits := make([]int32, len(types))
	for i, t := range types {
		limits[i] = int32(min(s.size-s.busy, room))
		if mean, known := s.mean[t]; known && mean < slowHandler {
			limits[i] = int32(room)
		}
	}
	return limits
}

// expectMore says whether there may be more to claim than there was room for; freed then tells when there is.
func (s *slots) expectMore(more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.more = more
	s.tell()
}

// tell is called with mu held.
func (s *slots) tell() {
	if s.more && s.roomLocked() > 0 {
		s.nudge()
	}
}

// claimed takes note of a claim that took so long, and plans the next ones.
func (s *slots) claimed(took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if s.claims == 0 {
		s.claims = took
	}
	s.claims += (took - s.claims) / 4
	if since := now.Sub(s.latest); since > 0 {
		s.rate = (s.rate + float64(s.ended)/since.Seconds()) / 2
	}
	if s.ended > 0 {
		s.run = (s.run + s.took/time.Duration(s.ended)) / 2
	}
	s.ended, s.took, s.latest = 0, 0, now
	could := float64(s.size) * 2 * float64(s.claims) / float64(max(s.run, 1))
	s.ahead = int(min(could, s.rate*readyTime.Seconds(), maxClaim))
}

// add takes claimed tasks, and returns those that run at once, each in a slot of its own.
func (s *slots) add(tasks []*execution) (begin []*execution) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := min(s.size-s.busy, len(tasks))
	s.busy += n
	now := time.Now()
	for _, e := range tasks[n:] {
		e.readyAt = now
	}
	s.ready = append(s.ready, tasks[n:]...)
	return tasks[:n]
}

// next ends a run, and returns the task whose turn it is in its slot; nil if there is none, and the slot is free.
func (s *slots) next(done *execution) *execution {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended++
	s.took += done.took
	if mean, known := s.mean[done.typ]; known {
		s.mean[done.typ] = mean + (done.took-mean)/16
	} else {
		s.mean[done.typ] = done.took
	}
	defer s.tell()
	if len(s.ready) == 0 || s.closed {
		s.busy--
		return nil
	}
	return s.pop()
}

// nudge has the dispatcher look.
func (s *slots) nudge() {
	select {
	case s.freed <- struct{}{}:
	default:
	}
}

// vanished frees the slot of a run whose goroutine has ended with it.
func (s *slots) vanished() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy--
	s.more = true
	s.tell()
}

// fill returns tasks that are ready for slots that are free.
func (s *slots) fill() (begin []*execution) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.busy < s.size && len(s.ready) > 0 && !s.closed {
		s.busy++
		begin = append(begin, s.pop())
	}
	return begin
}

// pop is called with mu held.
func (s *slots) pop() *execution {
	e := s.ready[0]
	s.ready[0] = nil
	s.ready = s.ready[1:]
	return e
}

// overdue is when the first task goes back that waits for a slot; zero: none waits.
func (s *slots) overdue() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.ready) == 0 {
		return time.Time{}
	}
	return s.ready[0].readyAt.Add(readyPatience)
}

// takeBack returns all that waits for a slot, to be given back. Nothing is claimed ahead until runs end again.
func (s *slots) takeBack() []*execution {
	s.mu.Lock()
	defer s.mu.Unlock()
	back := s.ready
	s.ready, s.ahead, s.rate = nil, 0, 0
	return back
}

// close is takeBack for good.
func (s *slots) close() []*execution {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	return s.takeBack()
}
