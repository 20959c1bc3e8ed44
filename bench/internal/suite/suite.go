// Package suite has the suites: what each compares, and how it is measured. A comparison takes its sides in turns, round by
// round, so that what the machine does meanwhile meets all of them, and speaks in ratios of one round's sides.
package suite

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

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
	return []Suite{enqueueBusy, enqueueForeign, enqueueSpare, wakeIdle, wake1000, wake5000, herd, idle, due}
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
	// Idle is how long the idle suite watches; a minute by default.
	Idle time.Duration
	// Progress gets a line now and then; nil: nobody does.
	Progress func(string)
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
	if b.Idle <= 0 {
		b.Idle = time.Minute
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
