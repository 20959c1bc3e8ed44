package suite

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgwake/pgwake/bench/internal/fleet"
	"github.com/pgwake/pgwake/bench/internal/peer"
	"github.com/pgwake/pgwake/bench/internal/server"
)

// rawSystem is the limit: bare statements on pgwake's own tables, whose triggers are off. What it does not say itself is as
// with pgwake.
type rawSystem struct {
	peer.System
	how  fleet.Drain
	ring bool // whoever enqueues notifies, by the usual trigger
}

func newRawSystem() *rawSystem { return &rawSystem{System: peer.Pgwake()} }

func (*rawSystem) Name() string { return sideRaw }

const sideRaw = "raw"

func (r *rawSystem) About() string {
	return "bare claims and settlements of the same rows, prepared, on the same tables without triggers: " + r.how.String()
}

func (r *rawSystem) Prepare(ctx context.Context, db *server.Database) error {
	statements := []string{`alter table ` + server.Schema + `.tasks disable trigger user`}
	if r.ring {
		statements = append(statements,
			`create function bench_ring() returns trigger language plpgsql as
			$$ begin perform pg_catalog.pg_notify('`+fleet.RawChannel+`', new.type); return null; end $$`,
			`create trigger ring after insert on `+server.Schema+`.tasks for each row execute function bench_ring()`)
	}
	if err := db.Exec(ctx, statements...); err != nil {
		return err
	}
	return r.System.Prepare(ctx, db)
}

// rawEnqueueSQL is the insert of who writes his own SQL.
const rawEnqueueSQL = `insert into ` + server.Schema + `.tasks (type, payload) values ($1, $2)`

func (r *rawSystem) Enqueue(ctx context.Context, conn *pgx.Conn, sent int64) error {
	_, err := conn.Exec(ctx, rawEnqueueSQL, taskType, fleet.Payload{Sent: sent})
	return err
}

func (r *rawSystem) Job(opts peer.WorkerOptions) fleet.Job {
	return fleet.Job{Kind: fleet.RawDrain, Type: taskType, Tally: opts.Tally, Drain: r.how}
}

// Calibration: each way is tried once with so many tasks, and the quickest of them again with more.
const (
	triedTasks = 40_000
	finalists  = 3
	finalTasks = 120_000
)

// raw makes the stand of the limit, in the way that is quickest on this machine: best of all shapes of the claim, batches
// of 100, 500 and 1,000, and 1, 2 and 4 connections. It is found once for all suites of a run.
func (b *bench) raw(ctx context.Context) (*stand, error) {
	system := newRawSystem()
	s, err := b.stand(ctx, system)
	if err != nil {
		return nil, err
	}
	if b.Memory.raw == nil {
		best, err := b.calibrate(ctx, s, system)
		if err != nil {
			return nil, fmt.Errorf("calibrate raw: %w", err)
		}
		b.Memory.raw = &best
	}
	system.how = *b.Memory.raw
	b.note("raw: %s", system.About())
	return s, nil
}

func (b *bench) calibrate(ctx context.Context, s *stand, system *rawSystem) (best fleet.Drain, err error) {
	type trial struct {
		how  fleet.Drain
		rate float64
	}
	try := func(how fleet.Drain, n int) (t trial, err error) {
		system.how = how
		d, err := s.drain(ctx, peer.WorkerOptions{}, n)
		return trial{how, d.tasks / d.took.Seconds()}, err
	}
	quickest := func(a, b trial) int { return cmp.Compare(b.rate, a.rate) }
	var trials []trial
	began := time.Now()
	for _, shape := range []fleet.Shape{fleet.ByID, fleet.ByCTID, fleet.ByJoin} {
		for _, batch := range []int{100, 500, 1000} {
			for _, connections := range []int{1, 2, 4} {
				t, err := try(fleet.Drain{Shape: shape, Batch: batch, Connections: connections}, triedTasks)
				if err != nil {
					return best, err
				}
				b.progress("raw, calibration: %.0f/s with %s", t.rate, t.how)
				trials = append(trials, t)
			}
		}
	}
	slices.SortFunc(trials, quickest)
	finals := trials[:finalists]
	for i := range 2 * finalists { // twice, as something else may be going on
		t, err := try(finals[i%finalists].how, finalTasks)
		if err != nil {
			return best, err
		}
		if i < finalists || t.rate > finals[i%finalists].rate {
			finals[i%finalists] = t
		}
	}
	slices.SortFunc(finals, quickest)
	for i, t := range trials {
		if i < finalists || i == len(trials)-1 {
			b.note("raw, calibration: %.0f/s with %s", t.rate, t.how)
		}
	}
	b.progress("raw is quickest with %s: %.0f/s; %d ways tried in %.0f s", finals[0].how, finals[0].rate, len(trials), time.Since(began).Seconds())
	return finals[0].how, nil
}
