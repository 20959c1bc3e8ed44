package suite

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pgwake/pgwake/bench/internal/peer"
	"github.com/pgwake/pgwake/bench/internal/server"
)

// crashTasks fill the slots of a worker at defaults on two cores.
const crashTasks = 20

// crashPatience is how long a crash may take to be noticed.
const crashPatience = 2 * time.Minute

// peerRecovery is after how many seconds peers run a task again, at their defaults, whose worker was killed: longer than a
// suite can wait for, so these are from their sources.
var peerRecovery = []struct {
	name    string
	seconds float64
}{
	// v0.51.2, internal/maintenance/job_rescuer.go: JobRescuerRescueAfterDefault, looked for every 30 s.
	{"River", 60 * 60},
	// 0.18.0, the function get_jobs: job_expiry, '4 hours'; unlocked every 8 to 10 minutes.
	{"Graphile Worker", 4 * 60 * 60},
	// 12.38.0, plans.js: a queue's expire_seconds, looked for every minute.
	{"pg-boss", 15 * 60},
}

// Crash: a worker at defaults is killed by SIGKILL while its slots are full, at the worst moment, just after it has renewed
// its leases; and another one, idle until then, must run all of its tasks again: seconds from the kill to the last one's start.
var crash = Suite{
	Name: "crash", Rounds: 2,
	About: "kill -9 of a busy worker at defaults: until all its tasks run again",
	run: func(ctx context.Context, b *bench) error {
		s, err := b.stand(ctx, peer.Pgwake())
		if err != nil {
			return err
		}
		var took []float64
		for round := range b.Rounds {
			seconds, err := s.crash(ctx)
			if err != nil {
				return fmt.Errorf("round %d: %w", round+1, err)
			}
			b.progress("round %d: all %d tasks run again after %.1f s", round+1, crashTasks, seconds)
			took = append(took, seconds)
		}
		b.figure("all run again, at most", "s", "", slices.Max(took))
		b.measurement(sideOurs, "all run again", "s", took...)
		for _, p := range peerRecovery {
			b.measurement(p.name+", by its source", "all run again", "s", p.seconds)
		}
		b.note("gue has no figure: its handlers run inside the claim's transaction, which ends with the session")
		return nil
	},
}

func (s *stand) crash(ctx context.Context) (seconds float64, err error) {
	if err := s.Exec(ctx, `truncate `+server.Schema+`.tasks`); err != nil {
		return 0, err
	}
	opts := peer.WorkerOptions{Work: time.Hour.Microseconds()}
	victim, err := s.launch(ctx, 1, opts)
	if err != nil {
		return 0, err
	}
	defer victim.Kill()
	if _, err := s.Pool.Exec(ctx, burstSQL, taskType, crashTasks); err != nil {
		return 0, err
	}
	if _, err := started(ctx, victim, crashTasks); err != nil {
		return 0, err
	}
	heir, err := s.launch(ctx, 1, opts)
	if err != nil {
		return 0, err
	}
	defer heir.Kill()
	if err := s.renewed(ctx); err != nil {
		return 0, err
	}
	killed := time.Now()
	victim.Kill()
	var last int64
	for seen := map[int64]bool{}; len(seen) < crashTasks; {
		if time.Since(killed) > crashPatience {
			return 0, fmt.Errorf("%d of %d tasks run again %s after the kill", len(seen), crashTasks, crashPatience)
		}
		starts, err := heir.Starts(ctx)
		if err != nil {
			return 0, err
		}
		for _, start := range starts {
			seen[start.Sent], last = true, max(last, start.At)
		}
		if err := rest(ctx, 50*time.Millisecond); err != nil {
			return 0, err
		}
	}
	return time.Unix(0, last).Sub(killed).Seconds(), nil
}

const leaseEndSQL = `select max(retry_at) from ` + server.Schema + `.tasks`

// renewed waits for the next renewal of leases.
func (s *stand) renewed(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("no lease was renewed in %s", patience))
	defer cancel()
	for before := (time.Time{}); ; {
		end, err := server.Scan[time.Time](ctx, s.Database, leaseEndSQL)
		if err != nil {
			return err
		}
		if !before.IsZero() && end.After(before) {
			return nil
		}
		before = end
		if err := rest(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}
