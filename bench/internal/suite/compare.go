package suite

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/pgwake/pgwake/bench/internal/server"
	"github.com/pgwake/pgwake/bench/internal/stats"
)

// side is one of the things compared.
type side struct {
	name    string
	measure func(context.Context) (sample, error)
	values  func(sample) []value
	system  system // nil: none that may fail
}

// system is what a comparison needs to know of a [peer.System].
type system interface {
	Name() string
	KeepsHistory() bool
}

// sample is what a side did in one block, or in all blocks of a round.
type sample struct {
	tasks, drained float64 // enqueued, begun
	took           time.Duration
	calls          []time.Duration // of enqueue
	latencies      []time.Duration // from before the call to the handler
	after          []time.Duration // the part of them after the call
	spent          server.Usage    // the difference
	uneven         float64         // runs of the process that had most, for each of the one that had least
}

func (s *sample) add(more sample) {
	s.tasks += more.tasks
	s.drained += more.drained
	s.took += more.took
	s.calls = append(s.calls, more.calls...)
	s.latencies = append(s.latencies, more.latencies...)
	s.after = append(s.after, more.after...)
	s.spent = s.spent.Plus(more.spent)
	s.uneven = max(s.uneven, more.uneven)
}

// value is what a side's goals are made of.
type value struct {
	name, unit string
	is         float64
}

// plan says how sides are compared.
type plan struct {
	what string // the comparison, if a suite has several
	// blocks of each side in a round, in turns; 0 is 1. What disturbs the machine for some seconds then meets all sides.
	blocks int
	// floor is the side by which noise is judged: the least that PostgreSQL needs depends on nothing but the machine.
	floor int
	// limits are how far apart the floor's values may lie over rounds, by name: the most that [stats.Spread] may be.
	limits map[string]float64
	// ceilings are the most that the floor's values may be in the median, by name, where a goal is no ratio.
	ceilings map[string]float64
}

// comparison is what came of all rounds.
type comparison struct {
	plan
	sides  []side
	rounds [][]sample // by round and side
	noisy  string     // why it is no result; empty: it is one
	failed []int      // sides that could not be measured: peers
}

// maxOthers is the most that other programs may take of the machine's cores in a round. The kernel's own work for the server
// is among it.
const maxOthers = 0.15

// compare measures the sides in turns. A round in which other programs took too much of the machine is left out. While
// rounds are wanting, or the floor is too unsteady, it takes more of them, up to half as many again, and then refuses to
// call what it has a result.
func (b *bench) compare(ctx context.Context, p plan, sides []side) (*comparison, error) {
	c := &comparison{plan: p, sides: sides}
	var disturbed [][]sample
	for round := 0; len(c.rounds) < b.Rounds || c.unsteady() != ""; round++ {
		if round == b.Rounds+(b.Rounds+1)/2 {
			break
		}
		samples := make([]sample, len(sides))
		for range max(p.blocks, 1) {
			for i, s := range sides {
				if slices.Contains(c.failed, i) {
					continue
				}
				block, err := s.measure(ctx)
				if err != nil {
					err = fmt.Errorf("%s%s, round %d: %w", p.what, s.name, round+1, err)
					if err := b.tolerate(ctx, s.system, err); err != nil {
						return nil, err
					}
					c.failed = append(c.failed, i)
				}
				samples[i].add(block)
			}
		}
		worst := 0.0
		for i, s := range sides {
			if slices.Contains(c.failed, i) {
				continue
			}
			v := s.values(samples[i])[0]
			others := samples[i].spent.Others()
			b.progress("round %d, %s%s: %s %.4g %s, others take %.0f %%", round+1, p.what, s.name, v.name, v.is, v.unit, 100*others)
			worst = max(worst, others)
		}
		if worst > maxOthers { // false if it is not known
			disturbed = append(disturbed, samples)
		} else {
			c.rounds = append(c.rounds, samples)
		}
	}
	c.noisy = c.unsteady()
	if n := len(disturbed); n > 0 {
		b.note("%d of %d rounds left out: other programs took more than %.0f %% of the cores", n, n+len(c.rounds), 100*maxOthers)
		if len(c.rounds) < b.Rounds {
			c.noisy = fmt.Sprintf("other programs took more than %.0f %% of the cores in %d of %d rounds", 100*maxOthers, n, n+len(c.rounds))
			c.rounds = append(c.rounds, disturbed...)
		}
	}
	for i, s := range sides {
		if slices.Contains(c.failed, i) {
			continue
		}
		for _, v := range s.values(c.rounds[0][i]) {
			b.measurement(p.what+s.name, v.name, v.unit, c.values(i, v.name)...)
		}
		b.spent(p.what+s.name, c.samples(i)...)
	}
	return c, nil
}

// spent reports what was spent on a task.
func (b *bench) spent(side string, samples ...sample) {
	each := func(name, unit string, of func(server.Usage) float64) {
		shares := make([]float64, len(samples))
		for i, s := range samples {
			shares[i] = of(s.spent) / s.tasks
		}
		b.measurement(side, name, unit, shares...)
	}
	each("server CPU", "ms/task", func(u server.Usage) float64 { return 1000 * u.ServerCPU })
	each("client CPU", "ms/task", func(u server.Usage) float64 { return 1000 * u.ClientCPU })
	each("fleet's statements", "/task", func(u server.Usage) float64 { return u.Statements })
	each("WAL", "bytes/task", func(u server.Usage) float64 { return u.WAL })
}

// unsteady says why the rounds so far are no result.
func (c *comparison) unsteady() string {
	for name, ceiling := range c.ceilings {
		if is := stats.Median(c.values(c.floor, name)); !(is <= ceiling) {
			return fmt.Sprintf("%s of %s is %.3g, %.3g is allowed", name, c.sides[c.floor].name, is, ceiling)
		}
	}
	if len(c.rounds) < 2 {
		return ""
	}
	for name, limit := range c.limits {
		if spread := stats.Spread(c.values(c.floor, name)); !(spread <= limit) {
			return fmt.Sprintf("%s of %s is off by more than %.0f %% in half of %d rounds, %.0f %% are allowed",
				name, c.sides[c.floor].name, 100*spread, len(c.rounds), 100*limit)
		}
	}
	return ""
}

// samples are those of one side in every round.
func (c *comparison) samples(side int) []sample {
	all := make([]sample, len(c.rounds))
	for i, round := range c.rounds {
		all[i] = round[side]
	}
	return all
}

// values are those of one name of one side in every round; not numbers if it could not be measured.
func (c *comparison) values(side int, name string) []float64 {
	all := make([]float64, len(c.rounds))
	for i, round := range c.rounds {
		if slices.Contains(c.failed, side) {
			all[i] = math.NaN()
			continue
		}
		for _, v := range c.sides[side].values(round[side]) {
			if v.name == name {
				all[i] = v.is
			}
		}
	}
	return all
}

// ratios are those of two sides' values, round by round.
func (c *comparison) ratios(name string, over, under int) []float64 {
	ratios := c.values(over, name)
	for i, u := range c.values(under, name) {
		ratios[i] /= u
	}
	return ratios
}
