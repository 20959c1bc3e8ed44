package notify

import (
	"sync"
	"sync/atomic"
)

// Fanout wakes goroutines that wait for a topic, such as a task type. A wake-up
// carries no data: it says "look", and many of them before the reader looks are one. The zero
// value is ready; a Fanout must not be copied. All methods may be called at any
// time by any goroutine, and none of them blocks.
type Fanout struct {
	mu     sync.RWMutex // guards the maps; held shared while ringing
	all    map[*Subscription]struct{}
	topics map[string]map[*Subscription]struct{}
}

// Subscription is one waiter's place in a [Fanout].
type Subscription struct {
	fanout *Fanout
	topics []string
	c      chan struct{}
	rings  atomic.Int64
}

// Subscribe returns a subscription that is woken by rings for the given topics, or
// by every ring if none is given. Close it when done.
func (f *Fanout) Subscribe(topics ...string) *Subscription {
	s := &Subscription{fanout: f, topics: append([]string(nil), topics...), c: make(chan struct{}, 1)}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(topics) == 0 {
		if f.all == nil {
			f.all = make(map[*Subscription]struct{})
		}
		f.all[s] = struct{}{}
		return s
	}
	f.add(s)
	return s
}

// add enters the subscription for its topics. The caller holds mu.
func (f *Fanout) add(s *Subscription) {
	if f.topics == nil {
		f.topics = make(map[string]map[*Subscription]struct{})
	}
	for _, topic := range s.topics {
		if f.topics[topic] == nil {
			f.topics[topic] = make(map[*Subscription]struct{})
		}
		f.topics[topic][s] = struct{}{}
	}
}

// remove takes it out. The caller holds mu.
func (f *Fanout) remove(s *Subscription) {
	delete(f.all, s)
	for _, topic := range s.topics {
		delete(f.topics[topic], s)
		if len(f.topics[topic]) == 0 {
			delete(f.topics, topic)
		}
	}
}

// Ring wakes the subscriptions to topic and those to every topic. The empty topic
// is unknown news and wakes all. A ring for which nobody waits is forgotten.
func (f *Fanout) Ring(topic string) {
	if topic == "" {
		f.RingAll()
		return
	}
	f.mu.RLock()
	defer f.mu.RUnlock()
	wake(f.all)
	wake(f.topics[topic])
}

// RingAll wakes every subscription, for instance after a reconnect.
func (f *Fanout) RingAll() {
	f.mu.RLock()
	defer f.mu.RUnlock()
	wake(f.all)
	for _, subscriptions := range f.topics {
		wake(subscriptions)
	}
}

func wake(subscriptions map[*Subscription]struct{}) {
	for s := range subscriptions {
		s.rings.Add(1)
		select {
		case s.c <- struct{}{}:
		default: // a wake-up is pending: the reader has yet to look
		}
	}
}

// Set changes the topics to those given; with none the subscription is not woken any more.
func (s *Subscription) Set(topics ...string) {
	f := s.fanout
	f.mu.Lock()
	defer f.mu.Unlock()
	f.remove(s)
	s.topics = append([]string(nil), topics...)
	f.add(s)
}

// C delivers the wake-ups. It holds one: receive, then look; whatever rings
// after the receive is delivered again. It is never closed.
func (s *Subscription) C() <-chan struct{} { return s.c }

// Rings counts the rings so far, those that were one wake-up each.
func (s *Subscription) Rings() int64 { return s.rings.Load() }

// Close ends the subscription. A pending wake-up may still be received, no new one
// comes. Closing twice is harmless.
func (s *Subscription) Close() {
	f := s.fanout
	f.mu.Lock()
	defer f.mu.Unlock()
	f.remove(s)
}
