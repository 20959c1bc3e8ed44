// Package peer has the systems that are compared, pgwake among them, each behind one interface: an adapter says how to make
// its tables, how to enqueue by its documented fastest way, and how to run its worker process.
package peer

import (
	"cmp"
	"context"
	"runtime/debug"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgwake/pgwake/bench/internal/fleet"
	"github.com/pgwake/pgwake/bench/internal/server"
)

// System is one of the systems compared, in one of its settings.
type System interface {
	// Name is what reports call it, its setting included: "River, best".
	Name() string
	// About says which version it is and what the setting is, for the method page.
	About() string
	// Missing says why it cannot run on this machine; empty: it can.
	Missing(ctx context.Context) string
	// KeepsHistory reports whether the rows of finished tasks stay.
	KeepsHistory() bool
	// Prepare makes its tables in a new database.
	Prepare(ctx context.Context, db *server.Database) error
	// Fill enqueues n tasks that are due now, numbered by [fleet.Payload.Sent] from 1 to n, by its fastest documented way.
	Fill(ctx context.Context, db *server.Database, n int) error
	// Enqueue enqueues one task, on a connection that is its own, in the least time; sent goes into its payload.
	Enqueue(ctx context.Context, conn *pgx.Conn, sent int64) error
	// Job is its worker process: [fleet.Launch] starts it.
	Job(opts WorkerOptions) fleet.Job
	// Unfinished is the number of tasks that are not finished, with whatever state.
	Unfinished(ctx context.Context, db *server.Database) (int, error)
}

// WorkerOptions say what a worker process is to do.
type WorkerOptions struct {
	// Slots are the handlers that may run at once; 0: what the setting has.
	Slots int
	// Work is what a handler takes, in microseconds of waiting; 0: a handler that returns at once.
	Work int64
	// Tally is, if not 0, the highest number of a task: the process counts how often each ran, instead of when each began.
	Tally int
}

func (o WorkerOptions) job(kind fleet.Kind, setting string, slots int) fleet.Job {
	return fleet.Job{
		Kind: kind, Type: fleet.TaskType, Setting: setting, Slots: cmp.Or(o.Slots, slots),
		Work: time.Duration(o.Work) * time.Microsecond, Tally: o.Tally,
	}
}

// Settings that every peer has: its documented fastest one, and the one it has if nobody says anything.
const (
	best     = "best"
	defaults = "default"
)

// All are the systems there are: pgwake, then each peer in its best setting and in its defaults.
func All() []System {
	return []System{
		Pgwake(), PgwakeNoHistory(), River(best), River(defaults), Gue(best), Gue(defaults), Graphile(best), Graphile(defaults), PgBoss(best), PgBoss(defaults),
	}
}

// Processes are the worker processes of the peers that are Go libraries, for [fleet.Main].
func Processes() []fleet.Peer {
	return []fleet.Peer{{Kind: fleet.River, Run: riverMain}, {Kind: fleet.Gue, Run: gueMain}}
}

// version is that of a module this program is built with.
func version(module string) string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if dep.Path == module {
				return module + " " + dep.Version
			}
		}
	}
	return module
}

// batches calls enqueue for the numbers from 1 to n, so many at a time.
func batches(n, size int, enqueue func(first, last int) error) error {
	for first := 1; first <= n; first += size {
		if err := enqueue(first, min(first+size-1, n)); err != nil {
			return err
		}
	}
	return nil
}
