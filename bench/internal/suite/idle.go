package suite

import (
	"context"
	"fmt"
	"time"

	"github.com/pgwake/pgwake/bench/internal/fleet"
	"github.com/pgwake/pgwake/bench/internal/server"
)

// idleFleet is how many processes are idle together.
const idleFleet = 64

// Idle: what workers cost that have nothing to do, at defaults, with all their connections: statements, and processor
// time of the processes. One process is watched, then 64, each for the time that the flag --idle gives; a raw listener,
// which does nothing but wait, beside them. Waits for locks are counted by looks at the server's sessions.
var idle = Suite{
	Name: "idle", Rounds: 1,
	About: "statements and processor time of 1 and of 64 idle processes, a minute each",
	run: func(ctx context.Context, b *bench) error {
		raw, err := b.queue(ctx, nil, rawListener)
		if err != nil {
			return err
		}
		alone, err := b.watch(ctx, "raw listener", raw, b.Idle/6)
		if err != nil {
			return err
		}
		one, err := b.queue(ctx, nil, worker)
		if err != nil {
			return err
		}
		first, err := b.watch(ctx, "one process", one, b.Idle)
		if err != nil {
			return err
		}
		many, err := b.queue(ctx, nil, several(idleFleet, worker)...)
		if err != nil {
			return err
		}
		all, err := b.watch(ctx, fmt.Sprintf("%d processes", idleFleet), many, b.Idle)
		if err != nil {
			return err
		}
		b.figure("one process, statements", "/s", "", first.statements)
		b.figure("one process, CPU", "% of a core", "", first.cpu)
		b.figure("64 processes, statements each, of one", "×", "", all.statements/idleFleet/first.statements)
		b.figure("64 processes, CPU each, of one", "×", "", all.cpu/idleFleet/first.cpu)
		b.figure("64 processes, waits for locks", "", "", all.waits)
		b.note("the server alone, with a raw listener: %.2f %% of a core", alone.serverCPU)
		if err := b.noteStatements(ctx, "one process", one); err != nil {
			return err
		}
		return b.noteStatements(ctx, "64 processes", many)
	},
}

// watched is what idle processes did.
type watched struct {
	statements     float64 // a second, of all
	cpu, serverCPU float64 // percent of a core
	waits          float64
}

// idleSQL counts the sessions of the fleet that wait for a lock, and all of them.
const idleSQL = `
select count(*) filter (where wait_event_type = 'Lock'), count(*)
from pg_stat_activity
where datname = current_database() and usename <> current_user`

func (b *bench) watch(ctx context.Context, name string, q *queue, d time.Duration) (w watched, err error) {
	if err := rest(ctx, 3*calmDown); err != nil {
		return w, err
	}
	before, err := q.usage(ctx)
	if err != nil {
		return w, err
	}
	cpu := cpuOf(q.fleet)
	var sessions, most int
	for end := time.Now().Add(d); time.Now().Before(end); {
		if err := rest(ctx, 200*time.Millisecond); err != nil {
			return w, err
		}
		var waiting int
		if err := q.Pool.QueryRow(ctx, idleSQL).Scan(&waiting, &sessions); err != nil {
			return w, err
		}
		w.waits += float64(waiting)
		most = max(most, sessions)
	}
	cpu = cpuOf(q.fleet) - cpu
	after, err := q.usage(ctx)
	if err != nil {
		return w, err
	}
	spent := after.Since(before)
	seconds := after.At.Sub(before.At).Seconds()
	w.statements = spent.Statements / seconds
	w.cpu, w.serverCPU = 100*cpu/seconds, 100*spent.ServerCPU/seconds
	b.measurement(name, "statements", "/s", w.statements)
	b.measurement(name, "claims", "/s", spent.Claims/seconds)
	b.measurement(name, "CPU of the processes", "% of a core", w.cpu)
	b.measurement(name, "CPU of the server", "% of a core", w.serverCPU)
	b.measurement(name, "WAL", "bytes/s", spent.WAL/seconds)
	b.measurement(name, "waits for locks seen", "", w.waits)
	b.measurement(name, "sessions, at most", "", float64(most))
	b.progress("%s: %.3f statements/s, %.3f %% of a core", name, w.statements, w.cpu)
	return w, nil
}

func cpuOf(f fleet.Fleet) float64 {
	var pids []int
	for _, p := range f {
		pids = append(pids, p.PID())
	}
	return server.CPU(pids...)
}
