package suite

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgwake/pgwake/bench/internal/fleet"
	"github.com/pgwake/pgwake/bench/internal/peer"
)

// The latency suites: from just before the call that enqueues one task to the handler's first line in another process, at a
// rate. Each system's worker is started for a measurement, warmed by some tasks, and ended after it: idle ones cost
// something too. All enqueue by connections of their own, a durable commit a task.
//
// The raw floor enqueues by a bare insert with the usual trigger; its process has some connections that claim up to 100 rows
// by one statement when they are told to. At 80 % of what pgwake can do, that trigger is more than PostgreSQL can do, as
// commits that notify queue up; there raw has none, and looks every millisecond.

var latencyIdle = Suite{
	Name: "latency/idle", Rounds: 2,
	About: "enqueue to handler at 20 a second: pgwake, raw, peers",
	run: func(ctx context.Context, b *bench) error {
		return b.latency(ctx, load{rate: idleRate, tasks: 50, blocks: 2, senders: idleSenders, peers: true})
	},
}

var latency100 = Suite{
	Name: "latency/100", Rounds: 2,
	About: "the same at 100 a second; peers only by run",
	run: func(ctx context.Context, b *bench) error {
		return b.latency(ctx, load{rate: 100, tasks: 400, blocks: 1, senders: 4, peers: b.Peers})
	},
}

var latency1000 = Suite{
	Name: "latency/1000", Rounds: 2,
	About: "the same at 1,000 a second: pgwake, raw, peers",
	run: func(ctx context.Context, b *bench) error {
		return b.latency(ctx, load{rate: 1000, tasks: 4000, blocks: 2, senders: 16, peers: true})
	},
}

var latency80 = Suite{
	Name: "latency/80", Rounds: 2,
	About: "the same at 80 % of the rate that pgwake's worker and 16 clients together come to; peers only by run",
	run: func(ctx context.Context, b *bench) error {
		s, err := b.stand(ctx, peer.Pgwake())
		if err != nil {
			return err
		}
		most, err := s.saturation(ctx)
		if err != nil {
			return err
		}
		b.measurement(sideOurs, "saturation", "/s", most)
		rate := 0.8 * most
		return b.latency(ctx, load{rate: rate, tasks: int(4 * rate), blocks: 1, senders: 64, peers: b.Peers, saturated: true})
	},
}

// load is what a latency suite enqueues.
type load struct {
	rate      float64
	tasks     int // in a block
	blocks    int
	senders   int
	peers     bool
	saturated bool
}

// latencyPeers are the settings that latency is compared with.
func latencyPeers(name string) bool {
	return strings.HasSuffix(name, ", best") || name == "River, default"
}

// latencyRaw is how the raw floor drains.
var latencyRaw = fleet.Drain{Shape: fleet.ByID, Batch: 100, Connections: 4}

func (b *bench) latency(ctx context.Context, l load) error {
	raw := newRawSystem()
	raw.how, raw.ring = latencyRaw, !l.saturated
	if l.saturated {
		raw.how.Look = time.Millisecond
	}
	chosen := latencyPeers
	if !l.peers {
		chosen = func(string) bool { return false }
	}
	all, missing, err := b.stands(ctx, append([]peer.System{raw}, b.peers(chosen)...))
	if err != nil {
		return err
	}
	var sides []side
	for _, s := range all {
		sides = append(sides, side{
			name:    s.system.Name(),
			measure: func(ctx context.Context) (sample, error) { return s.paced(ctx, l) },
			values:  pacedValues,
			system:  s.system,
		})
	}
	c, err := b.compare(ctx, plan{blocks: l.blocks, limits: map[string]float64{"p50": 0.25, "p99": 0.4}}, sides)
	if err != nil {
		return err
	}
	for i, s := range sides {
		var all []time.Duration
		for _, round := range c.samples(i) {
			all = append(all, round.latencies...)
		}
		b.distribution(s.name, "enqueue to handler", all)
	}
	ours, floor := c.index(sideOurs), c.index(sideRaw)
	if ours < 0 {
		return nil
	}
	var peers []int
	for i, s := range sides {
		if i != ours && i != floor && s.name != sideOurs {
			peers = append(peers, i)
		}
	}
	if len(peers) > 0 {
		b.figure("p50, of the quickest peer", "×", c.without(missing), c.ratiosToLeast("p50", ours, peers)...)
		b.figure("p99, of the quickest peer", "×", c.without(missing), c.ratiosToLeast("p99", ours, peers)...)
	}
	if floor >= 0 {
		b.figure("p99, of raw", "×", c.noisy, c.ratios("p99", ours, floor)...)
	}
	kept := c.values(ours, "rate")
	for i := range kept {
		kept[i] /= l.rate
	}
	b.figure("rate, of the one wanted", "×", c.noisy, kept...)
	return nil
}

// warmTasks and warmRate are those by which a process is warmed.
const (
	warmTasks = 30
	warmRate  = 60
)

// paced measures a process that is started for it.
func (s *stand) paced(ctx context.Context, l load) (d sample, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, drainLimit, fmt.Errorf("the tasks have not run after %s", drainLimit))
	defer cancel()
	conns, err := s.connect(ctx, l.senders)
	if err != nil {
		return d, err
	}
	f, err := s.launch(ctx, 1, peer.WorkerOptions{})
	if err != nil {
		return d, err
	}
	enqueued := func(n int, rate float64) ([]call, []fleet.Start, error) {
		calls, err := pace(ctx, conns, n, rate, s.system.Enqueue)
		if err != nil {
			return nil, nil, err
		}
		d.took = time.Duration(calls[n-1].sent - calls[0].sent)
		starts, err := started(ctx, f, n)
		if err != nil {
			return nil, nil, err
		}
		return calls, starts, s.finished(ctx)
	}
	measured := func() error {
		if _, _, err := enqueued(max(warmTasks, l.senders), warmRate); err != nil {
			return fmt.Errorf("warm: %w", err)
		}
		before, err := s.usage(ctx, f)
		if err != nil {
			return err
		}
		calls, starts, err := enqueued(l.tasks, l.rate)
		if err != nil {
			return err
		}
		after, err := s.usage(ctx, f)
		if err != nil {
			return err
		}
		d.tasks, d.drained, d.spent = float64(l.tasks), float64(l.tasks), after.Since(before)
		return d.pair(calls, starts)
	}
	if err := measured(); err != nil {
		f.Kill()
		return d, err
	}
	return d, f.Stop()
}

const (
	floodClients = 16
	floodTime    = 3 * time.Second
)

// saturation is the rate at which tasks begin while clients enqueue as fast as they can.
func (s *stand) saturation(ctx context.Context) (rate float64, err error) {
	conns, err := s.connect(ctx, floodClients)
	if err != nil {
		return 0, err
	}
	f, err := s.launch(ctx, 1, peer.WorkerOptions{})
	if err != nil {
		return 0, err
	}
	measured := func() error {
		clients := newFlood(ctx, conns, func(ctx context.Context, conn *pgx.Conn) error {
			return s.system.Enqueue(ctx, conn, time.Now().UnixNano())
		})
		count := func() error {
			if err := rest(ctx, time.Second); err != nil {
				return err
			}
			if _, err := f.Starts(ctx); err != nil {
				return err
			}
			began := time.Now()
			if err := rest(ctx, floodTime); err != nil {
				return err
			}
			starts, err := f.Starts(ctx)
			rate = float64(len(starts)) / time.Since(began).Seconds()
			return err
		}
		err := count()
		if endErr := clients.end(); err == nil {
			err = endErr
		}
		if err != nil {
			return err
		}
		return s.finished(ctx)
	}
	if err := measured(); err != nil {
		f.Kill()
		return 0, err
	}
	return rate, f.Stop()
}
