package suite

import (
	"context"
	"fmt"
	"time"

	"github.com/pgwake/pgwake/bench/internal/fleet"
	"github.com/pgwake/pgwake/bench/internal/peer"
	"github.com/pgwake/pgwake/bench/internal/server"
)

// Processes: how fast 1, 4 and 16 worker processes at defaults drain tasks of one type, and how even their shares are. They
// are idle when the tasks come, all in one transaction, so that none has a start; measured as in the drain suite.
var processes = Suite{
	Name: "fleet", Rounds: 3,
	About: "1, 4 and 16 processes drain one type: throughput, of one, and shares",
	run: func(ctx context.Context, b *bench) error {
		s, err := b.stand(ctx, peer.Pgwake())
		if err != nil {
			return err
		}
		if err := b.size(ctx, s, peer.WorkerOptions{}); err != nil {
			return err
		}
		var sides []side
		for _, n := range []int{1, 4, 16} {
			sides = append(sides, side{
				name:    fmt.Sprintf("%d processes", n),
				measure: func(ctx context.Context) (sample, error) { return s.shared(ctx, n, s.tasks) },
				values: func(s sample) []value {
					return append(drainValues(s), value{"most tasks of a process, of least", "×", s.uneven})
				},
			})
		}
		sides[0].name = "one process"
		c, err := b.compare(ctx, plan{limits: map[string]float64{"drained": 0.15}}, sides)
		if err != nil {
			return err
		}
		b.figure("4 processes, of one", "×", c.noisy, c.ratios("drained", 1, 0)...)
		b.figure("16 processes, of one", "×", c.noisy, c.ratios("drained", 2, 0)...)
		b.figure("16 processes, most tasks of a process, of least", "×", c.noisy, c.values(2, "most tasks of a process, of least")...)
		return nil
	},
}

// burstSQL enqueues $2 tasks of type $1, numbered from 1, in one transaction.
const burstSQL = `
insert into ` + server.Schema + `.tasks (type, payload)
select $1, jsonb_build_object('sent', i)
from generate_series(1, $2::integer) as i`

// shared measures how idle processes drain a burst of n tasks.
func (s *stand) shared(ctx context.Context, processes, n int) (d sample, err error) {
	if err := s.Exec(ctx, `vacuum (analyze)`); err != nil {
		return d, err
	}
	f, err := s.launch(ctx, processes, peer.WorkerOptions{Tally: n})
	if err != nil {
		return d, err
	}
	measured := func() error {
		if err := rest(ctx, time.Second); err != nil { // all are idle then
			return err
		}
		if _, err := s.Pool.Exec(ctx, burstSQL, taskType, n); err != nil {
			return err
		}
		if d, err = s.drained(ctx, f, n); err != nil {
			return err
		}
		d.uneven, err = uneven(ctx, f)
		return err
	}
	if err := measured(); err != nil {
		f.Kill()
		return d, err
	}
	return d, f.Stop()
}

// uneven is how many tasks the process ran that ran most, for each of the one that ran least.
func uneven(ctx context.Context, f fleet.Fleet) (float64, error) {
	var most, least int64
	for i := range f {
		t, err := f[i : i+1].Tally(ctx)
		if err != nil {
			return 0, err
		}
		if i == 0 {
			least = t.Ran
		}
		most, least = max(most, t.Ran), min(least, t.Ran)
	}
	return float64(most) / float64(least), nil
}
