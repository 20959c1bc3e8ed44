package suite

import (
	"context"
	"slices"
	"strings"

	"github.com/pgwake/pgwake/bench/internal/peer"
	"github.com/pgwake/pgwake/bench/internal/stats"
)

// Drain: how fast one worker process runs tasks that do nothing and are all there when it is started, and what that costs.
//
// Each side has a database of its own, filled anew for each measurement with as many tasks as take it some seconds; rates
// are compared. The time runs from the first look that finds a fiftieth of the tasks begun to the one that finds none
// unfinished, so that neither the start of a process nor a first plan counts. Processes count the runs of every task: a
// side of which one ran not at all or twice fails.
var drain = Suite{
	Name: "drain", Rounds: 3,
	About: "tasks that do nothing, one worker process: pgwake, raw, peers",
	run: func(ctx context.Context, b *bench) error {
		all, missing, err := b.stands(ctx, b.peers(drainPeers))
		if err != nil {
			return err
		}
		if b.wanted(sideRaw) {
			raw, err := b.raw(ctx)
			if err != nil {
				return err
			}
			all = append([]*stand{raw}, all...)
		}
		var sides []side
		for _, s := range all {
			if err := b.size(ctx, s, peer.WorkerOptions{}); err != nil {
				if err := b.tolerate(ctx, s.system, err); err != nil {
					return err
				}
				missing = append(missing, s.system.Name())
				continue
			}
			sides = append(sides, side{
				name:    s.system.Name(),
				measure: func(ctx context.Context) (sample, error) { return s.drain(ctx, peer.WorkerOptions{}, s.tasks) },
				values:  drainValues,
				system:  s.system,
			})
		}
		c, err := b.compare(ctx, plan{limits: map[string]float64{"drained": 0.15}}, sides)
		if err != nil {
			return err
		}
		b.drainFigures(c, missing)
		return nil
	},
}

// drainPeers are the settings that a drain is compared with: those left out run a task a second or less.
func drainPeers(name string) bool {
	return strings.HasPrefix(name, sideOurs) || strings.HasSuffix(name, ", best") || name == "River, default" || name == "Graphile Worker, default"
}

func (b *bench) drainFigures(c *comparison, missing []string) {
	for _, name := range []string{sideRaw, "Graphile Worker, best", "River, best"} {
		if ours, other := c.index(sideOurs), c.index(name); ours >= 0 && other >= 0 {
			b.figure("of "+name, "×", c.noisy, c.ratios("drained", ours, other)...)
		}
	}
	// With history against those that keep it, without against those that do not.
	for _, keeps := range []bool{true, false} {
		ours := -1
		var others []int
		for i, s := range c.sides {
			switch {
			case s.system.KeepsHistory() != keeps || s.name == sideRaw:
			case strings.HasPrefix(s.name, sideOurs):
				ours = i
			default:
				others = append(others, i)
			}
		}
		if ours >= 0 && len(others) > 0 {
			name := map[bool]string{true: "CPU with history, of the thriftiest peer", false: "CPU without history, of the thriftiest peer"}[keeps]
			b.figure(name, "×", c.without(missing), c.ratiosToLeast("CPU", ours, others)...)
		}
	}
}

const sideOurs = "pgwake"

// peers are pgwake and the systems compared with it whose names are chosen.
func (b *bench) peers(chosen func(name string) bool) (systems []peer.System) {
	for _, s := range peer.All() {
		if s.Name() == sideOurs || chosen(s.Name()) {
			systems = append(systems, s)
		}
	}
	return systems
}

// tolerate notes that a peer has failed; only a failure of pgwake or raw is one of the suite.
func (b *bench) tolerate(ctx context.Context, of system, err error) error {
	if of == nil || ctx.Err() != nil || of.Name() == sideRaw || strings.HasPrefix(of.Name(), sideOurs) {
		return err
	}
	b.note("%s could not be measured: %.500s", of.Name(), err)
	return nil
}

// index is that of a side by its name; -1: there is none.
func (c *comparison) index(name string) int {
	for i, s := range c.sides {
		if s.name == name {
			return i
		}
	}
	return -1
}

// without says why a comparison with every peer is no result.
func (c *comparison) without(missing []string) string {
	for _, i := range c.failed {
		missing = append(missing, c.sides[i].name)
	}
	if c.noisy == "" && len(missing) > 0 {
		return "not measured: " + strings.Join(missing, "; ")
	}
	return c.noisy
}

// ratiosToLeast are those of a side's values to those of the one of the others that is best, that is lowest, in the median.
func (c *comparison) ratiosToLeast(name string, over int, others []int) (worst []float64) {
	for _, o := range others {
		if slices.Contains(c.failed, o) {
			continue
		}
		if ratios := c.ratios(name, over, o); worst == nil || stats.Median(ratios) > stats.Median(worst) {
			worst = ratios
		}
	}
	return worst
}
