package worker

import "time"

// Health is what a worker can say of itself at the moment.
type Health struct {
	// Listening: LISTEN is in effect on a writable primary, and notifications arrive. While it is not, the worker polls.
	Listening bool
	// ListenerSince is when Listening took its value; zero with Config.PollOnly.
	ListenerSince time.Time
	// ListenerError is why the worker does not listen, or why it did not the last time; nil if it always has.
	// [notify.ErrNotDelivered] means a pooler in transaction mode, [notify.ErrNotWritable] a standby.
	ListenerError error
	// Reconnects counts the sessions of the listener after the first.
	Reconnects int
	// LastSweep is when the worker last reached the database to report itself; it does so every other Sweep.
	LastSweep time.Time
	// Running is the number of slots taken, those of Stuck handlers included.
	Running int
	Slots   int
	// Stuck is the number of handlers that go on although their run is over: timed out or without a lease.
	Stuck int
}

// Health reports how the worker is. Before Run and after it, nothing listens.
func (w *Worker) Health() Health {
	h := Health{Running: w.running(), Slots: w.slots(), Stuck: w.held.stuckCount()}
	if w.listener != nil {
		l := w.listener.Health()
		h.Listening, h.ListenerSince, h.ListenerError, h.Reconnects = l.Connected, l.Since, l.LastError, l.Reconnects
	}
	if at := w.swept.Load(); at != 0 {
		h.LastSweep = time.Unix(0, at)
	}
	return h
}
