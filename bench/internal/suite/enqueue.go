package suite

import (
	"context"
	"fmt"
	"time"

	"github.com/pgwake/pgwake/bench/internal/fleet"
	"github.com/pgwake/pgwake/bench/internal/server"
)

// The enqueue suites: what the gate costs those who enqueue.
//
// Clients in this process, each with a connection of its own, enqueue one task after the other, each in its own durable
// commit, by the client's one statement. Three databases differ in what a commit then does:
//
//	no trigger    nothing: the table has no trigger at all, and the fleet asks for work by polling; the raw floor
//	gate          pgwake as it is
//	plain notify  the usual row trigger that calls pg_notify, and the same fleet, which listens
//
// A busy fleet is one whose slots are taken: two processes with 20 slots each and handlers of 50 ms, which together run
// 800 tasks a second at most. A backlog is there before the clients begin, the same on all sides, so that the fleet is busy
// on the slow ones too. A fleet that drains as fast as it can would be measured itself: what it drains is taken from the
// clients on the same cores, and is not the same on all sides. The figures of what was drained show how much the fleet
// worked. What it left is deleted between measurements, and the table vacuumed.
//
// A fleet with spare processes is five of them, each with more slots than the load takes, and handlers of 5 ms: whoever
// looks finds all there is, and four are left to sleep.

var (
	busyWorker  = fleet.Job{Kind: fleet.Worker, Type: taskType, Slots: 20, Work: 50 * time.Millisecond}
	spareWorker = fleet.Job{Kind: fleet.Worker, Type: taskType, Slots: 200, Work: 5 * time.Millisecond}
	otherWorker = fleet.Job{Kind: fleet.Worker, Type: foreignType}
)

var enqueueBusy = Suite{
	Name: "enqueue/busy", Rounds: 5,
	About: "durable single-row enqueues by 16 and 64 clients beside a busy fleet: gate, no trigger, plain notify",
	run: func(ctx context.Context, b *bench) error {
		return b.enqueue(ctx, []string{sideNone, sideGate, sidePlain}, busyDrain, several(2, busyWorker))
	},
}

var enqueueForeign = Suite{
	Name: "enqueue/foreign", Rounds: 5,
	About: "the same with an idle process of another task type: gate, no trigger",
	run: func(ctx context.Context, b *bench) error {
		return b.enqueue(ctx, []string{sideNone, sideGate}, busyDrain, append(several(2, busyWorker), otherWorker))
	},
}

var enqueueSpare = Suite{
	Name: "enqueue/spare", Rounds: 5,
	About: "the same with 4 processes more than are needed: gate, no trigger",
	run: func(ctx context.Context, b *bench) error {
		return b.enqueue(ctx, []string{sideNone, sideGate}, 0, several(5, spareWorker))
	},
}

// busyDrain is what a busy fleet could drain in a second: a backlog for the time of a measurement, and half of it more, is
// there before.
const busyDrain = 800

const (
	sideNone  = "no trigger"
	sideGate  = "gate"
	sidePlain = "plain notify"
)

// sideSQL makes a database that of a side. The plain trigger is as PostgreSQL's users write it.
var sideSQL = map[string][]string{
	sideNone: {`alter table ` + server.Schema + `.tasks disable trigger user`},
	sidePlain: {
		`drop trigger tasks_ring_insert on ` + server.Schema + `.tasks`,
		`drop trigger tasks_ring_update on ` + server.Schema + `.tasks`,
		`create function plain_ring() returns trigger language plpgsql as
		$$ begin perform pg_notify('pgwake_' || md5(tg_table_schema || '.' || tg_table_name), new.type); return null; end $$`,
		`create trigger plain_ring after insert on ` + server.Schema + `.tasks for each row execute function plain_ring()`,
	},
}

const (
	// floodWarm is how long clients enqueue before they are measured: statements are prepared, and the fleet gets busy.
	floodWarm = 300 * time.Millisecond
	// floodBlocks are the parts in which a side is measured in a round.
	floodBlocks = 3
)

// floodSpread bounds the noise of the floor.
const floodSpread = 0.15

func (b *bench) enqueue(ctx context.Context, names []string, drain int, jobs []fleet.Job) error {
	queues := make([]*queue, len(names))
	for i, name := range names {
		own := append([]fleet.Job{}, jobs...)
		for j := range own {
			own[j].PollOnly = name == sideNone
		}
		var err error
		if queues[i], err = b.queue(ctx, sideSQL[name], own...); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	backlog := int(2 * float64(drain) * (floodWarm + b.Window/floodBlocks).Seconds())
	for _, clients := range []int{16, 64} {
		what := fmt.Sprintf("%d clients, ", clients)
		sides := make([]side, len(names))
		for i, name := range names {
			sides[i] = side{name, func(ctx context.Context) (sample, error) { return b.floodSample(ctx, queues[i], clients, backlog) }, floodValues, nil}
		}
		c, err := b.compare(ctx, plan{what: what, blocks: floodBlocks, limits: map[string]float64{"enqueued": floodSpread}}, sides)
		if err != nil {
			return err
		}
		b.figure(what+"of no trigger", "×", c.noisy, c.ratios("enqueued", 1, 0)...)
		if len(names) > 2 {
			b.figure(what+"of plain notify", "×", c.noisy, c.ratios("enqueued", 1, 2)...)
		}
	}
	return b.noteStatements(ctx, sideGate, queues[1])
}

// backlogSQL enqueues $2 tasks of type $1 at once.
const backlogSQL = `
insert into ` + server.Schema + `.tasks (type, payload)
select $1, '{"sent": 0}'
from generate_series(1, $2::integer)`

// floodSample lets clients enqueue for a while.
func (b *bench) floodSample(ctx context.Context, q *queue, clients, backlog int) (s sample, err error) {
	if _, err := q.Pool.Exec(ctx, backlogSQL, taskType, backlog); err != nil {
		return s, fmt.Errorf("make a backlog: %w", err)
	}
	// One that polls notices after a while.
	if _, err := q.started(ctx, backlog/6); err != nil {
		return s, fmt.Errorf("wait for the fleet to be busy: %w", err)
	}
	f, err := q.flood(ctx, clients)
	if err != nil {
		return s, err
	}
	measured := func() error {
		if err := rest(ctx, floodWarm); err != nil {
			return err
		}
		if _, err := q.fleet.Starts(ctx); err != nil {
			return err
		}
		before, err := q.usage(ctx)
		if err != nil {
			return err
		}
		enqueued, began := f.done.Load(), time.Now()
		if err := rest(ctx, b.Window/floodBlocks); err != nil {
			return err
		}
		n, took := float64(f.done.Load()-enqueued), time.Since(began)
		starts, err := q.fleet.Starts(ctx)
		if err != nil {
			return err
		}
		after, err := q.usage(ctx)
		if err != nil {
			return err
		}
		s = sample{tasks: n, drained: float64(len(starts)), took: took, spent: after.Since(before)}
		return nil
	}
	err = measured()
	if endErr := f.end(); err == nil {
		err = endErr
	}
	if err == nil {
		err = q.clear(ctx)
	}
	return s, err
}

func floodValues(s sample) []value {
	return []value{
		{"enqueued", "/s", s.tasks / s.took.Seconds()},
		{"drained", "/s", s.drained / s.took.Seconds()},
	}
}

// clear deletes the backlog, and returns once what runs is settled.
func (q *queue) clear(ctx context.Context) error {
	if err := q.Exec(ctx, `delete from `+server.Schema+`.tasks where status = 'queued'`); err != nil {
		return err
	}
	if err := q.settled(ctx); err != nil {
		return err
	}
	if err := q.Exec(ctx, `vacuum `+server.Schema+`.tasks`); err != nil {
		return err
	}
	_, err := q.fleet.Starts(ctx)
	return err
}
