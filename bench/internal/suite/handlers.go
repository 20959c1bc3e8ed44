package suite

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/pgwake/pgwake/bench/internal/peer"
)

// handlerSlots is how many handlers of the handlers suite run at once.
const handlerSlots = 100

// Handlers: how fast one worker process with 100 slots runs tasks whose handlers wait for 0, 1, 10 and 100 ms, beside what
// the slots allow, that is slots / work, or what bare statements reach if that is less. The queue is drained as in the
// drain suite.
var handlers = Suite{
	Name: "handlers", Rounds: 3,
	About: "handlers of 0, 1, 10 and 100 ms, 100 slots: pgwake, of slots / work or raw",
	run: func(ctx context.Context, b *bench) error {
		raw, err := b.raw(ctx)
		if err != nil {
			return err
		}
		if err := b.size(ctx, raw, peer.WorkerOptions{}); err != nil {
			return err
		}
		ours, err := b.stand(ctx, peer.Pgwake())
		if err != nil {
			return err
		}
		sides := []side{{name: sideRaw, measure: func(ctx context.Context) (sample, error) {
			return raw.drain(ctx, peer.WorkerOptions{}, raw.tasks)
		}, values: drainValues}}
		works := []time.Duration{0, time.Millisecond, 10 * time.Millisecond, 100 * time.Millisecond}
		for _, work := range works {
			opts := peer.WorkerOptions{Slots: handlerSlots, Work: work.Microseconds()}
			if err := b.size(ctx, ours, opts); err != nil {
				return err
			}
			n := ours.tasks
			sides = append(sides, side{name: handlerName(work), measure: func(ctx context.Context) (sample, error) {
				return ours.drain(ctx, opts, n)
			}, values: drainValues})
		}
		c, err := b.compare(ctx, plan{limits: map[string]float64{"drained": 0.15}}, sides)
		if err != nil {
			return err
		}
		limits := c.values(0, "drained")
		for i, work := range works {
			shares := c.values(i+1, "drained")
			for round := range shares {
				shares[round] /= math.Min(limits[round], handlerSlots/work.Seconds()) // no work: of raw
			}
			b.figure(handlerName(work)+", of what is possible", "×", c.noisy, shares...)
		}
		return nil
	},
}

func handlerName(work time.Duration) string { return fmt.Sprintf("%d ms", work.Milliseconds()) }
