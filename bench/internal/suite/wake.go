package suite

import (
	"context"
	"fmt"
	"time"

	"github.com/pgwake/pgwake/bench/internal/fleet"
	"github.com/pgwake/pgwake/bench/internal/stats"
)

// The wake suites: from just before the call of Enqueue to the handler's first line, in another process.
//
// The raw floor has the same processes and connections: a client that inserts into a table like that of tasks with the
// usual trigger, and one process whose listener hears it and whose other connection takes the row by one conditional
// update. Its clock stops when that has been committed, asynchronously as pgwake's own claims are.

// Tasks a second of an idle worker, how many a round has of them, in how many blocks, and who enqueues them.
const (
	idleRate    = 20
	idleTasks   = 200
	idleBlocks  = 5
	idleSenders = 2
)

var wakeIdle = Suite{
	Name: "wake/idle", Rounds: 5,
	About: "enqueue to handler, 20 tasks a second, an idle worker: pgwake, raw",
	run: func(ctx context.Context, b *bench) error {
		raw, ours, err := b.wakeSides(ctx, worker, idleSenders)
		if err != nil {
			return err
		}
		paced := func(q *queue) func(context.Context) (sample, error) {
			return func(ctx context.Context) (sample, error) {
				return q.paced(ctx, idleTasks/idleBlocks, idleRate, idleSenders)
			}
		}
		sides := []side{{"raw", paced(raw), pacedValues, nil}, {"pgwake", paced(ours), pacedValues, nil}}
		c, err := b.compare(ctx, plan{blocks: idleBlocks, limits: map[string]float64{"p50": 0.15, "p99": 0.4}}, sides)
		if err != nil {
			return err
		}
		b.figure("p50, of raw", "×", c.noisy, c.ratios("p50", 1, 0)...)
		b.figure("p99, of raw", "×", c.noisy, c.ratios("p99", 1, 0)...)
		return nil
	},
}

var wake1000 = Suite{
	Name: "wake/1000", Rounds: 2,
	About: "enqueue to handler, 1,000 tasks a second for 30 s",
	run: func(ctx context.Context, b *bench) error {
		return b.wakeLoaded(ctx, worker, 1000, 30*time.Second, 16, 7.5)
	},
}

// roomyWorker has slots for what arrives while a claim and a settlement wait for the disk: 20 would be full of tasks that
// have ended, and not been written, at some thousands a second.
var roomyWorker = fleet.Job{Kind: fleet.Worker, Type: taskType, Slots: 200}

var wake5000 = Suite{
	Name: "wake/5000", Rounds: 3,
	About: "enqueue to handler, 5,000 tasks a second for 10 s",
	run: func(ctx context.Context, b *bench) error {
		return b.wakeLoaded(ctx, roomyWorker, 5000, 10*time.Second, 64, 25)
	},
}

// wakeSides makes the raw floor's queue and one with a worker.
func (b *bench) wakeSides(ctx context.Context, job fleet.Job, senders int) (raw, ours *queue, err error) {
	if raw, err = b.queue(ctx, nil, rawListener); err != nil {
		return nil, nil, err
	}
	if ours, err = b.queue(ctx, nil, job); err != nil {
		return nil, nil, err
	}
	for _, q := range []*queue{raw, ours} {
		if err := q.warm(ctx, senders); err != nil {
			return nil, nil, err
		}
	}
	return raw, ours, nil
}

// wakeLoaded measures a worker at a rate. Its floor is the raw one at a low rate, as raw processes take one
// row after the other. Where that floor's own p99 is above calm, in milliseconds and half of the goal, the disk is too busy
// for a result.
func (b *bench) wakeLoaded(ctx context.Context, job fleet.Job, rate float64, last time.Duration, senders int, calm float64) error {
	raw, ours, err := b.wakeSides(ctx, job, senders)
	if err != nil {
		return err
	}
	sides := []side{
		{"raw, 100/s", func(ctx context.Context) (sample, error) { return raw.paced(ctx, 200, 100, 2) }, pacedValues, nil},
		{"pgwake", func(ctx context.Context) (sample, error) {
			return ours.paced(ctx, int(rate*last.Seconds()), rate, senders)
		}, pacedValues, nil},
	}
	c, err := b.compare(ctx, plan{limits: map[string]float64{"p50": 0.25}, ceilings: map[string]float64{"p99": calm}}, sides)
	if err != nil {
		return err
	}
	for _, got := range c.values(1, "rate") {
		if got < 0.95*rate {
			c.noisy = fmt.Sprintf("clients came to %.0f tasks a second only", got)
		}
	}
	b.figure("p99", "ms", c.noisy, c.values(1, "p99")...)
	return nil
}

// paced measures n tasks enqueued at a rate, each of which must run once.
func (q *queue) paced(ctx context.Context, n int, rate float64, senders int) (s sample, err error) {
	before, err := q.usage(ctx)
	if err != nil {
		return s, err
	}
	began := time.Now()
	calls, err := q.pace(ctx, n, rate, senders)
	if err != nil {
		return s, err
	}
	s.took = time.Since(began)
	starts, err := q.started(ctx, n)
	if err != nil {
		return s, err
	}
	if err := q.settled(ctx); err != nil {
		return s, err
	}
	after, err := q.usage(ctx)
	if err != nil {
		return s, err
	}
	s.tasks, s.drained, s.spent = float64(n), float64(n), after.Since(before)
	return s, s.pair(calls, starts)
}

// pair makes latencies of calls and starts, of which there must be one for each.
func (s *sample) pair(calls []call, starts []fleet.Start) error {
	if len(starts) != len(calls) {
		return fmt.Errorf("%d tasks have begun %d times", len(calls), len(starts))
	}
	took := make(map[int64]time.Duration, len(calls))
	for _, c := range calls {
		took[c.sent] = c.took
		s.calls = append(s.calls, c.took)
	}
	for _, start := range starts {
		s.latencies = append(s.latencies, start.Latency())
		s.after = append(s.after, start.Latency()-took[start.Sent])
	}
	return nil
}

func pacedValues(s sample) []value {
	at := func(of []time.Duration, share float64) float64 {
		return float64(stats.Quantile(of, share)) / float64(time.Millisecond)
	}
	return []value{
		{"p50", "ms", at(s.latencies, 0.5)},
		{"p99", "ms", at(s.latencies, 0.99)},
		{"max", "ms", at(s.latencies, 1)},
		{"call of enqueue p50", "ms", at(s.calls, 0.5)},
		{"call of enqueue p99", "ms", at(s.calls, 0.99)},
		{"after the call p50", "ms", at(s.after, 0.5)},
		{"after the call p99", "ms", at(s.after, 0.99)},
		{"rate", "/s", s.tasks / s.took.Seconds()},
	}
}
