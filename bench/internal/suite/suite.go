// Package suite has the suites: what each compares, and how it is measured. A comparison takes its sides in turns, round by
// round, so that what the machine does meanwhile meets all of them, and speaks in ratios of one round's sides.
package suite

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pgwake/pgwake/bench/internal/fleet"
	"github.com/pgwake/pgwake/bench/internal/server"
)

// Suite is a measurement.
type Suite struct {
	Name   string
	About  string
	Rounds int // unless somebody says otherwise
	run    func(context.Context, *bench) error
}

// All are the suites there are, in the order of their running.
func All() []Suite {
	return []Suite{
		enqueueBusy, enqueueForeign, enqueueSpare, enqueueBulk, enqueueSingle, wakeIdle, wake1000, wake5000, herd, idle, due,
		drain, handlers, latencyIdle, latency100, latency1000, latency80, crash, snapshot, processes, archive,
	}
}

// Select returns the suites named; a name before a slash stands for all that begin with it.
func Select(names []string) ([]Suite, error) {
	var chosen []Suite
	for _, name := range names {
		before := len(chosen)
		for _, s := range All() {
			if s.Name == name || strings.HasPrefix(s.Name, name+"/") {
				chosen = append(chosen, s)
			}
		}
		if len(chosen) == before {
			return nil, fmt.Errorf("no suite %q: the list command names those there are", name)
		}
	}
	return chosen, nil
}

// Options are what a run may have otherwise; the zero value is what goals are judged by.
type Options struct {
	// Rounds of each comparison; 0: the suite's own.
	Rounds int
	// Window is how long an enqueue suite measures a side in each round; 3 s by default.
	Window time.Duration
	// Drain is about how long a drain takes for which a queue is filled; 3 s by default.
	Drain time.Duration
	// Idle is how long the idle suite watches; a minute by default.
	Idle time.Duration
	// Only are the systems that suites with peers compare, by name or its beginning, as in "River, best" or "river"; none:
	// all.
	Only []string
	// Peers are measured where no goal asks for it, too.
	Peers bool
	// Minutes that a snapshot is held; 2 by default.
	Minutes int
	// Archived is how many tasks the archive suite has archived; 10 million by default.
	Archived int
	// Memory is what one suite finds out that another can use; nil: nothing is shared.
	Memory *Memory
	// Progress gets a line now and then; nil: nobody does.
	Progress func(string)

	minute time.Duration // of the snapshot suite; shorter in tests
}

// Memory is what suites of one run find out once.
type Memory struct {
	raw *fleet.Drain // the quickest way to drain by bare statements
}

// Run measures a suite on a server. What could not be measured is in the report.
func (s Suite) Run(ctx context.Context, on *server.Server, opts Options) Report {
	b := &bench{Options: opts, server: on, report: Report{Suite: s.Name}}
	if b.Rounds <= 0 {
		b.Rounds = s.Rounds
	}
	if b.Window <= 0 {
		b.Window = 3 * time.Second
	}
	if b.Drain <= 0 {
		b.Drain = 3 * time.Second
	}
	if b.Idle <= 0 {
		b.Idle = time.Minute
	}
	if b.Minutes <= 0 {
		b.Minutes = 2
	}
	if b.minute <= 0 {
		b.minute = time.Minute
	}
	if b.Archived <= 0 {
		b.Archived = 10_000_000
	}
	if b.Memory == nil {
		b.Memory = &Memory{}
	}
	began := time.Now()
	err := s.run(ctx, b)
	for _, end := range slices.Backward(b.ends) {
		if endErr := end(); endErr != nil && err == nil {
			err = endErr
		}
	}
	if err != nil {
		b.report.Error = err.Error()
	}
	b.report.Seconds = Number(time.Since(began).Seconds())
	return b.report
}

// bench is a suite under way.
type bench struct {
	Options
	server *server.Server
	report Report
	ends   []func() error // what to end, the last first
}

func (b *bench) progress(format string, args ...any) {
	if b.Progress != nil {
		b.Progress(b.report.Suite + ": " + fmt.Sprintf(format, args...))
	}
}

// rest lets time pass that is part of a measurement.
func rest(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
