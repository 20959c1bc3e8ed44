//go:build unix

package proof_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/internal/pgtest"
)

// Worker processes are killed at random and replaced while a stream of tasks runs. Every effect written in one
// transaction with CompleteTx is there once, and no task is lost.
func TestProve_1_7(t *testing.T) {
	p := prove(t, "1.7", "0 duplicates, 0 lost, ≥ "+fmt.Sprint(sized(60, 1))+" kills that hit running tasks")
	f := &fleet{
		bench: newBench(p),
		job: job{
			Role: "effect", Slots: 4, Sweep: 5 * time.Second, Drain: patience,
			Lease: sized(3*time.Second, 2*time.Second), Work: sized(150*time.Millisecond, 50*time.Millisecond),
		},
		processes: make([]*process, sized(32, 4)),
	}
	tasks, span, kills, goal := sized(100_000, 1000), sized(3*time.Minute, 4*time.Second), sized(75, 4), sized(60, 1)
	for i := range f.processes {
		f.replace(i)
	}
	for _, w := range f.processes {
		w.ready()
	}

	began := time.Now()
	ctx, cancel := context.WithCancel(p.Context())
	var feeder sync.WaitGroup
	feeder.Go(func() { f.feed(ctx, tasks, span) })
	defer feeder.Wait() // if the test fails before the end
	defer cancel()
	for i := range kills {
		// Spread over the time in which there is work, at random instants.
		at := span * time.Duration(i) / time.Duration(kills)
		pause(time.Until(began.Add(at + rand.N(span/time.Duration(kills)))))
		f.strike(rand.IntN(len(f.processes)))
	}
	feeder.Wait()
	b := f.bench
	pgtest.WaitFor(p, span+patience, "tasks to be done", func() bool {
		pause(50 * time.Millisecond)
		return b.count(`select count(*) from pgwake.tasks`) == 0
	})
	took := time.Since(began)
	for _, w := range f.processes {
		w.terminate()
	}
	for _, w := range f.processes {
		w.drained(patience)
	}

	effects := b.count(`select count(*) from proof.effect`)
	distinct := b.count(`select count(distinct task) from proof.effect`)
	archived := b.count(`select count(*) from pgwake.task_archive where status = 'succeeded'`)
	known := b.count(`select count(*) from pgwake.task_archive as a join (select distinct task from proof.effect) as e on e.task = a.id`)
	again := b.count(`select count(*) from pgwake.task_archive where attempt > 1`)
	if effects != tasks || distinct != tasks || archived != tasks || known != tasks {
		p.Errorf("of %d tasks: %d effects of %d tasks, %d archived as succeeded, %d of these with an effect", tasks, effects, distinct, archived, known)
	}
	if f.hits < goal {
		p.Errorf("%d kills hit running tasks, want %d", f.hits, goal)
	}
	p.figure("%d tasks by %d processes in %s", tasks, len(f.processes), took.Round(time.Second))
	p.figure("%d kills", f.kills)
	p.figure("%d of them hit %d running tasks", f.hits, f.victims)
	p.figure("%d tasks ran more than once", again)
	p.figure("%d duplicates", effects-distinct)
	p.figure("%d lost", tasks-distinct)
}

// fleet is worker processes that are replaced when they are killed.
type fleet struct {
	*bench
	job       job
	processes []*process
	born      int

	kills   int
	hits    int // kills of a process with running tasks
	victims int // those tasks
}

// replace starts a process of a new name in a place.
func (f *fleet) replace(i int) {
	f.born++
	j := f.job
	j.Name = fmt.Sprintf("worker-%d", f.born)
	f.processes[i] = f.launch(j)
}

// feed enqueues tasks at an even rate over a span of time.
func (f *fleet) feed(ctx context.Context, tasks int, span time.Duration) {
	began := time.Now()
	for fed := 0; fed < tasks && ctx.Err() == nil; {
		due := min(int(float64(tasks)*float64(time.Since(began))/float64(span)), tasks)
		if due > fed {
			batch := make([]pgwake.NewTask, due-fed)
			for i := range batch {
				batch[i].Payload = pgwake.Raw{Type: f.job.Role}
			}
			if _, err := f.client.EnqueueMany(ctx, batch); err != nil {
				f.Errorf("feed: %v", err)
				return
			}
			fed = due
		}
		pause(20*time.Millisecond + rand.N(180*time.Millisecond))
	}
}

// busySQL counts the statements of a worker process that the server has not finished. One that waits for a lock may
// wait for the process itself, which is stopped.
const busySQL = `
select count(*)
from pg_stat_activity as a
where a.datname = current_database()
  and a.application_name in ($1, $2)
  and a.state = 'active'
  and a.wait_event_type is distinct from 'Lock'`

// strike kills a process wherever it is at the moment. To know what it was running then, it is stopped first, and the
// server is given the time to finish what was sent.
func (f *fleet) strike(i int) {
	f.Helper()
	victim := f.processes[i]
	if victim.ended() {
		f.Fatalf("%s ended by itself: %s:\n%s", victim.name, victim.cmd.ProcessState, victim.log)
	}
	victim.freeze()
	for quiet, looks := 0, 0; quiet < 2 && looks < 100; looks++ {
		if quiet++; f.count(busySQL, poolName(victim.name), workerSessions+victim.name) > 0 {
			quiet = 0
		}
		pause(2 * time.Millisecond)
	}
	running := f.count(`select count(*) from pgwake.tasks where status = 'running' and worker = $1`, victim.name)
	victim.kill()
	f.kills++
	if running > 0 {
		f.hits++
		f.victims += running
	}
	f.replace(i)
}
