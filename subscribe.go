package pgwake

import (
	"context"
	"fmt"
	"sync"

	"github.com/google/uuid"

	"github.com/pgwake/pgwake/internal/settled"
)

// Event is word of a settled task, or the call to look.
type Event struct {
	// Resync says that something may have been missed: read the state you are interested in. The other fields are empty.
	Resync bool
	ID     uuid.UUID
	Type   string
	// Status is what the settlement has made of the task: [Succeeded], [Cancelled] or [Frozen], or [Queued] if it runs
	// again, because the run failed, snoozed, or was given back.
	Status Status
}

// maxEvents is how many events wait for a handler that is slower than the workers. More become a resync.
const maxEvents = 10_000

// Subscribe calls handle with the settlements of all workers until ctx ends, and returns its cause. Only while somebody
// subscribes do workers tell of settlements at all.
//
// The first event is a Resync, within a second or so: read the state then. What a worker has settled before is in it, and
// what is settled after it is told, once it is committed and usually some milliseconds later. Where that cannot be known
// for certain, another Resync follows: after a reconnect, when the session that keeps the word going out was lost, when
// a handler or a burst is too much, and every 30 s in any case. While the database cannot be listened to there is one
// about every second. So act on events, and on each Resync look again, and nothing is missed.
//
// Not told are a task's changes by operators and by plain SQL, and its claims. Events of one worker come in their order,
// those of different workers in any. A look may show more than the events that follow it have told yet.
//
// handle is called by this goroutine, one event after the other, and may take its time; it delays nobody else.
//
// All subscriptions of a client share two sessions, opened by the first and closed by the last. They are not the pool's,
// but go where it goes, or to ClientConfig.ListenerURL. They must be direct: through a pooler in transaction mode nothing
// is heard, and all there is are Resyncs.
func (c *Client) Subscribe(ctx context.Context, handle func(Event)) error {
	if c.pool == nil {
		return errNoPool
	}
	s := &subscription{wake: make(chan struct{}, 1)}
	leave, err := c.subscriptions.join(c, s)
	if err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	defer leave()
	for {
		select {
		case <-s.wake:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		for _, e := range s.take() {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			handle(e)
		}
	}
}

// subscription is what waits for one handler.
type subscription struct {
	wake chan struct{} // cap 1

	mu      sync.Mutex // guards the two below
	started bool       // the first resync has come
	events  []Event
}

func (s *subscription) push(events ...Event) {
	s.mu.Lock()
	switch resync := events[0].Resync; {
	case resync || s.started && len(s.events)+len(events) > maxEvents:
		s.started = true
		s.events = append(s.events[:0], Event{Resync: true}) // whose look sees all that waits
	case s.started: // else the first look is still to come
		s.events = append(s.events, events...)
	}
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *subscription) take() []Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	events := s.events
	s.events = nil
	return events
}

// subscriptions are those of a client, with the receiver that they share.
type subscriptions struct {
	mu      sync.Mutex // guards what follows
	all     map[*subscription]struct{}
	current *receiving // nil while there are no subscriptions
}

// receiving is a receiver at work.
type receiving struct {
	*settled.Receiver
	stop context.CancelFunc
	done chan struct{} // closed when its Run has returned
}

// join adds a subscription and returns what ends it. The first starts the receiver; the last ends it and waits for that.
func (ss *subscriptions) join(c *Client, s *subscription) (leave func(), err error) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if ss.current == nil {
		current := &receiving{done: make(chan struct{})}
		if current.Receiver, err = settled.NewReceiver(settled.Config{
			Pool: c.pool.Config(), URL: c.listenerURL, Schema: c.schema, Logger: c.log,
			Settled: func(tasks []settled.Task) { ss.push(current, events(tasks)...) },
			Resync:  func() { ss.push(current, Event{Resync: true}) },
		}); err != nil {
			return nil, err
		}
		var ctx context.Context
		ctx, current.stop = context.WithCancel(context.Background())
		// Ended by the last subscription, which waits for it.
		go func() {
			defer close(current.done)
			current.Run(ctx)
		}()
		ss.current, ss.all = current, map[*subscription]struct{}{}
	}
	ss.all[s] = struct{}{}
	if ss.current.Ready() {
		s.push(Event{Resync: true})
	}
	return func() { ss.leave(s) }, nil
}

func (ss *subscriptions) leave(s *subscription) {
	ss.mu.Lock()
	delete(ss.all, s)
	current := ss.current
	last := len(ss.all) == 0
	if last {
		ss.current = nil // the next subscription starts another
	}
	ss.mu.Unlock()
	if last {
		current.stop()
		<-current.done
	}
}

// push passes on what a receiver has heard, unless another one has replaced it.
func (ss *subscriptions) push(from *receiving, events ...Event) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if ss.current != from {
		return
	}
	for s := range ss.all {
		s.push(events...)
	}
}

func events(tasks []settled.Task) []Event {
	list := make([]Event, len(tasks))
	for i, t := range tasks {
		list[i] = Event{ID: t.ID, Type: t.Type, Status: Status(t.Status)}
	}
	return list
}
