package suite

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pgwake/pgwake/bench/internal/peer"
	"github.com/pgwake/pgwake/bench/internal/stats"
)

// Snapshot: one worker process for some minutes, while a REPEATABLE READ transaction keeps every dead row and index entry in
// place. In windows of 10 s: at 2,000 tasks a second, enqueued one by one, how long they wait for their start, and what the
// server spends on each; at full speed, refilled all the time, how many run. The last minute is compared with the first.
//
// Both are done twice: with tables that have been in use, and with a worker that has planned all its statements while they
// were empty. Peers are measured at full speed, and only by run.
var snapshot = Suite{
	Name: "snapshot", Rounds: 1,
	About: "a held REPEATABLE READ transaction: last minute of first at 2,000 a second and at full speed",
	run: func(ctx context.Context, b *bench) error {
		for _, cached := range []bool{false, true} {
			if !b.wanted(sideOurs) {
				break
			}
			what := map[bool]string{false: "", true: "planned empty, "}[cached]
			paced, err := b.held(ctx, peer.Pgwake(), what+"2,000/s", heldPlan{rate: 2000, cached: cached})
			if err != nil {
				return err
			}
			b.figure(what+"2,000/s, rate", "×", paced.noisy(), paced.change(rate))
			b.figure(what+"2,000/s, p99 of start", "×", paced.noisy(), paced.change(p99))
			b.figure(what+"2,000/s, server CPU a task", "×", paced.noisy(), paced.change(cpuEach))
			full, err := b.held(ctx, peer.Pgwake(), what+"full speed", heldPlan{cached: cached})
			if err != nil {
				return err
			}
			b.figure(what+"full speed, rate", "×", full.noisy(), full.change(rate))
		}
		if !b.Peers {
			return nil
		}
		for _, system := range b.peers(latencyPeers)[1:] {
			why := system.Missing(ctx)
			if why != "" {
				b.note("%s is missing: %s", system.Name(), why)
			}
			if why != "" || !b.wanted(system.Name()) {
				continue
			}
			if _, err := b.held(ctx, system, "full speed", heldPlan{}); err != nil {
				if err := b.tolerate(ctx, system, err); err != nil {
					return err
				}
			}
		}
		return nil
	},
}

const (
	heldMinute  = 6 // windows
	heldSenders = 16
	// heldBacklog is what the queue holds at least at full speed, as far as the filling keeps up, and how much is added at a
	// time.
	heldBacklog = 20_000
	heldLook    = 20 * time.Millisecond
)

func (b *bench) window() time.Duration { return b.minute / heldMinute }

// heldPlan says how a system works while a snapshot is held.
type heldPlan struct {
	rate   float64 // 0: full speed
	cached bool    // its statements are planned while the tables are empty
}

// window is what happened in one.
type window struct {
	seconds   float64
	tasks     float64
	latencies []time.Duration
	cpu       float64 // of the server, in seconds
	others    float64 // share of the cores that other programs took
}

func (w window) rate() float64 { return w.tasks / w.seconds }

// rate is that of windows of equal length.
func rate(windows []window) float64 { return total(windows, window.rate) / float64(len(windows)) }

type curve []window

// change is a value of the last minute for each of the first.
func (c curve) change(of func([]window) float64) float64 {
	n := min(heldMinute, len(c)/2)
	return of(c[len(c)-n:]) / of(c[:n])
}

// noisy says why the first and the last minute are no result.
func (c curve) noisy() string {
	n := min(heldMinute, len(c)/2)
	for _, minute := range [][]window{c[:n], c[len(c)-n:]} {
		if others := total(minute, func(w window) float64 { return w.others }) / float64(n); others > maxOthers {
			return fmt.Sprintf("other programs took %.0f %% of the cores for a minute", 100*others)
		}
	}
	return ""
}

func total(windows []window, of func(window) float64) (sum float64) {
	for _, w := range windows {
		sum += of(w)
	}
	return sum
}

func p99(windows []window) float64 {
	var all []time.Duration
	for _, w := range windows {
		all = append(all, w.latencies...)
	}
	return float64(stats.Quantile(all, 0.99)) / float64(time.Millisecond)
}

// starts says how long the tasks of a window have waited, if that is known.
func starts(w window) string {
	if len(w.latencies) == 0 {
		return ""
	}
	return fmt.Sprintf(", start p99 %.1f ms", p99([]window{w}))
}

func cpuEach(windows []window) float64 {
	return total(windows, func(w window) float64 { return w.cpu }) / total(windows, func(w window) float64 { return w.tasks })
}

// held measures a system while a snapshot is held, in a database of its own.
func (b *bench) held(ctx context.Context, system peer.System, what string, p heldPlan) (c curve, err error) {
	name := system.Name() + ", " + what
	s, err := b.stand(ctx, system)
	if err != nil {
		return nil, err
	}
	opts := peer.WorkerOptions{}
	if p.rate == 0 {
		opts.Tally = heldBacklog
	}
	if !p.cached {
		if err := system.Fill(ctx, s.Database, heldBacklog); err != nil {
			return nil, err
		}
		if err := s.Exec(ctx, `vacuum (analyze)`); err != nil {
			return nil, err
		}
	}
	f, err := s.launch(ctx, 1, opts)
	if err != nil {
		return nil, err
	}
	measured := func() error {
		if err := s.settle(ctx, p); err != nil {
			return err
		}
		release, err := s.hold(ctx)
		if err != nil {
			return err
		}
		c, err = b.windows(ctx, s, f, name, p)
		return errors.Join(err, release())
	}
	if err := measured(); err != nil {
		f.Kill()
		return nil, err
	}
	b.curve(name, c, p)
	// What is left of a backlog is nobody's, and no vacuum is to clean it up beside what is measured next.
	f.Kill()
	return c, s.close()
}

// curve keeps what plots show, and the first and the last minute.
func (b *bench) curve(name string, c curve, p heldPlan) {
	keep := func(what, unit string, of func([]window) float64) {
		var values []float64
		for i := range c {
			values = append(values, of(c[i:i+1]))
		}
		b.series(name, what, unit, b.window(), values)
		n := min(heldMinute, len(c)/2)
		b.measurement(name, what+", first minute", unit, of(c[:n]))
		b.measurement(name, what+", last minute", unit, of(c[len(c)-n:]))
	}
	keep("server CPU", "s/task", cpuEach)
	if p.rate > 0 {
		keep("p99 of start", "ms", p99)
	} else {
		keep("throughput", "/s", rate)
	}
}
