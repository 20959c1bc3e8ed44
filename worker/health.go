package worker

import "time"

// Health is what a worker can say of itself at the moment.
type Health struct {
	// Listening: LISTEN is in effect on a writable primary. While it is not, tasks are found by sweeps.
	Listening bool
	// LastSweep is when the worker last reached the database to report itself; it does so every Sweep.
	LastSweep time.Time
	// Running is the number of slots taken, those of Stuck handlers included.
	Running int
	Slots   int
	// Stuck is the number of handlers that go on although their run is over: timed out or without a lease.
	Stuck int
}

// Health reports how the worker is. Before Run and after it, nothing listens.
func (w *Worker) Health() Health {
	h := Health{Listening: w.listener.Connected(), Running: w.running(), Slots: w.slots(), Stuck: w.held.stuckCount()}
	if at := w.swept.Load(); at != 0 {
		h.LastSweep = time.Unix(0, at)
	}
	return h
}
