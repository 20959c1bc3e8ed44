package suite

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pgwake/pgwake/bench/internal/stats"
)

const (
	instants    = 200
	dueGap      = 400 * time.Millisecond // between two instants of a side, more or less
	dueAhead    = 3 * time.Second        // between the last enqueue and the first instant
	enqueueTime = 15 * time.Millisecond  // that one may take, on a slow disk
	dueQuiet    = 20 * time.Millisecond  // before an instant, when claims are counted
	dueProcess  = 64
)

// Due: 64 idle processes, and one task due at an instant, 200 times over. All are enqueued, one by one, some seconds
// before the first falls due, so that what happens at an instant is that instant's alone. Lateness is the handler's first
// line less the due instant, by the database's clock, with the offset of this machine's measured before and after.
//
// The raw floor has as many listeners, one of which sleeps until the instant and takes the row then. Its instants lie half
// way between the others, on the same server.
var due = Suite{
	Name: "due", Rounds: 1,
	About: "64 idle processes and one task due at an instant, 200 times: lateness, claims, runs",
	run: func(ctx context.Context, b *bench) error {
		timed := rawListener
		timed.Timed = true
		raw, err := b.queue(ctx, nil, append(several(dueProcess-1, rawListener), timed)...)
		if err != nil {
			return err
		}
		ours, err := b.queue(ctx, nil, several(dueProcess, worker)...)
		if err != nil {
			return err
		}
		if err := rest(ctx, calmDown); err != nil {
			return err
		}
		return b.due(ctx, raw, ours, instants)
	},
}

func (b *bench) due(ctx context.Context, raw, ours *queue, n int) error {
	offset, uncertainty, err := ours.Offset(ctx)
	if err != nil {
		return err
	}
	first := time.Now().Add(dueAhead + 2*time.Duration(n)*enqueueTime)
	at := func(i int) time.Time { // jittered, and never nearer than half a gap
		jitter := time.Duration(i*7919%100-50) * time.Millisecond
		return first.Add(time.Duration(i)*dueGap + jitter)
	}
	for _, side := range []struct {
		q     *queue
		shift time.Duration
	}{{ours, 0}, {raw, dueGap / 2}} {
		if err := side.q.schedule(ctx, n, func(i int) time.Time { return at(i).Add(side.shift) }, offset); err != nil {
			return err
		}
	}
	if time.Until(at(0)) < 2*time.Second {
		return fmt.Errorf("enqueued %s before the first instant only: the machine is too busy", time.Until(at(0)))
	}

	begin, err := ours.usage(ctx)
	if err != nil {
		return err
	}
	var claims []float64 // of each instant
	seen, last := 0.0, begin
	for i := range n + 1 {
		if err := rest(ctx, time.Until(at(i).Add(-dueQuiet))); err != nil {
			return err
		}
		if last, err = ours.usage(ctx); err != nil {
			return err
		}
		if i > 0 {
			claims = append(claims, last.Claims-seen)
		}
		seen = last.Claims
	}
	late, runs, err := ours.lateness(ctx, n, offset)
	if err != nil {
		return fmt.Errorf("pgwake: %w", err)
	}
	rawLate, _, err := raw.lateness(ctx, n, offset)
	if err != nil {
		return fmt.Errorf("raw: %w", err)
	}
	drifted, more, err := ours.Offset(ctx)
	if err != nil {
		return err
	}
	noisy := ""
	if wrong := max(uncertainty, more) + (drifted - offset).Abs(); wrong > time.Millisecond {
		noisy = fmt.Sprintf("the clocks are known to %s only", wrong)
	}
	b.figure("runs a task, at least", "", "", float64(slices.Min(runs)))
	b.figure("runs a task, at most", "", "", float64(slices.Max(runs)))
	b.figure("lateness p99", "ms", noisy, stats.Quantile(late, 0.99))
	b.figure("claims an instant", "", "", claims...)
	for _, side := range []struct {
		name string
		late []float64
	}{{"pgwake", late}, {"raw", rawLate}} {
		for _, q := range []struct {
			name  string
			share float64
		}{{"lateness, least", 0}, {"lateness p50", 0.5}, {"lateness p99", 0.99}, {"lateness, most", 1}} {
			b.measurement(side.name, q.name, "ms", stats.Quantile(side.late, q.share))
		}
	}
	spent := last.Since(begin)
	b.spent("pgwake", sample{tasks: float64(n), spent: spent})
	b.measurement("pgwake", "claims in vain", "/task", spent.EmptyClaims/float64(n))
	return b.noteStatements(ctx, "pgwake", ours)
}

// schedule enqueues n tasks one by one, due at instants of this machine's clock, which each has in its payload.
func (q *queue) schedule(ctx context.Context, n int, at func(int) time.Time, offset time.Duration) error {
	conns, err := q.connect(ctx, 1)
	if err != nil {
		return err
	}
	for i := range n {
		// The database keeps microseconds.
		instant := at(i).Add(offset).Truncate(time.Microsecond)
		if err := q.enqueue(ctx, conns[0], instant.UnixNano(), instant); err != nil {
			return err
		}
	}
	return nil
}

// lateness waits for n tasks and returns how late each began, in milliseconds, and how often.
func (q *queue) lateness(ctx context.Context, n int, offset time.Duration) (late []float64, runs []int, err error) {
	starts, err := q.started(ctx, n)
	if err != nil {
		return nil, nil, err
	}
	// A second run of one would come late, if at all.
	if err := rest(ctx, time.Second); err != nil {
		return nil, nil, err
	}
	again, err := q.fleet.Starts(ctx)
	if err != nil {
		return nil, nil, err
	}
	times := map[int64]int{}
	for _, s := range append(starts, again...) {
		times[s.Sent]++
		late = append(late, float64(s.Latency()+offset)/float64(time.Millisecond))
	}
	for _, n := range times {
		runs = append(runs, n)
	}
	for range n - len(times) {
		runs = append(runs, 0)
	}
	return late, runs, nil
}
