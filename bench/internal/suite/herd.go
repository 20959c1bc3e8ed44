package suite

import (
	"context"
	"time"
)

// Herd: how many statements the sessions of a fleet send for a task while all of it is idle. Whatever they send in the
// time is counted, sweeps and reports too, but not the enqueue itself. A claim that returns no row is a wake-up that
// found nothing.
var herd = Suite{
	Name: "herd", Rounds: 3,
	About: "statements a task at 20 tasks a second: 1 idle process, 16 of them, 16 raw listeners",
	run: func(ctx context.Context, b *bench) error {
		one, err := b.queue(ctx, nil, worker)
		if err != nil {
			return err
		}
		many, err := b.queue(ctx, nil, several(16, worker)...)
		if err != nil {
			return err
		}
		raw, err := b.queue(ctx, nil, several(16, rawListener)...)
		if err != nil {
			return err
		}
		if err := rest(ctx, calmDown); err != nil {
			return err
		}
		var sides []side
		for _, of := range []struct {
			name string
			q    *queue
		}{{"one process", one}, {"16 processes", many}, {"16 raw listeners", raw}} {
			if err := of.q.warm(ctx, idleSenders); err != nil {
				return err
			}
			sides = append(sides, side{of.name, of.q.counted, countedValues, nil})
		}
		c, err := b.compare(ctx, plan{floor: 2, limits: map[string]float64{"statements": 0.25}}, sides)
		if err != nil {
			return err
		}
		b.figure("16 processes, of one", "×", c.noisy, c.ratios("statements", 1, 0)...)
		return b.noteStatements(ctx, sides[1].name, many)
	},
}

// calmDown is the time in which processes do what they do only after they have started.
const calmDown = 3 * time.Second

// counted measures the statements of a fleet while tasks are enqueued, and for a moment after, in which looks behind the
// keeper's back fall.
func (q *queue) counted(ctx context.Context) (s sample, err error) {
	before, err := q.usage(ctx)
	if err != nil {
		return s, err
	}
	if s, err = q.paced(ctx, idleTasks, idleRate, idleSenders); err != nil {
		return s, err
	}
	if err := rest(ctx, 400*time.Millisecond); err != nil {
		return s, err
	}
	after, err := q.usage(ctx)
	s.spent = after.Since(before)
	return s, err
}

func countedValues(s sample) []value {
	return append([]value{
		{"statements", "/task", s.spent.Statements / s.tasks},
		{"claims", "/task", s.spent.Claims / s.tasks},
		{"claims in vain", "/task", s.spent.EmptyClaims / s.tasks},
	}, pacedValues(s)...)
}

// noteStatements notes what a fleet has sent most since it was started.
func (b *bench) noteStatements(ctx context.Context, name string, q *queue) error {
	top, err := q.Top(ctx, 8)
	for _, s := range top {
		b.note("%s: %.0f × %s", name, s.Calls, s.Text)
	}
	return err
}
