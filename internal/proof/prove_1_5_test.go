//go:build unix

package proof_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/worker"
)

// secondRunsSQL lists when the runs of one worker began and which attempts they were. Parameter: worker.
const secondRunsSQL = `
select e.at, e.attempt
from proof.event as e
where e.worker = $1 and e.what = 'begun'`

// Tasks of a killed worker run elsewhere when their leases end. Those of a worker that is told to stop run elsewhere at
// once, and the run that was cut short does not count.
func TestProve_1_5(t *testing.T) {
	const tasks, margin, handover = 20, time.Second, time.Second
	p := prove(t, "1.5", "kill: lease + 1 s, attempt 2; stop: 1 s, attempt still 1")
	b := newBench(p)
	length := sized(worker.DefaultLease, 2*time.Second)
	launch := func(name string) *process {
		return b.launch(job{Role: "sleep", Name: name, Slots: tasks, Lease: length, Sweep: farSweep, Drain: 200 * time.Millisecond}).ready()
	}
	// move lets a worker begin all tasks, does it harm, and returns how long after that the last of them ran on another.
	move := func(round string, harm func(*process), attempt int) time.Duration {
		first := launch(round + " first")
		b.enqueue(tasks, pgwake.Raw{Type: "sleep"})
		b.await(tasks, "tasks begun", eventsSQL, first.name, "begun")
		second := launch(round + " second")

		from := b.now()
		harm(first)
		b.awaitWithin(length+patience, tasks, "tasks begun elsewhere", eventsSQL, second.name, "begun")
		var last time.Duration
		for _, run := range b.runs(second.name) {
			last = max(last, run.at.Sub(from))
			if run.attempt != attempt {
				p.Errorf("%s: the next run is attempt %d, want %d", round, run.attempt, attempt)
			}
		}
		if n := b.count(secondRunsCountSQL, second.name); n != tasks {
			p.Errorf("%s: %d runs of %d tasks", round, n, tasks)
		}
		if first.told() && !first.ended() {
			first.drained(5 * time.Second)
		}
		second.kill()
		b.exec(`truncate proof.event, pgwake.tasks`)
		return last
	}

	killed := move("kill", (*process).kill, 2)
	stopped := move("stop", (*process).terminate, 1)
	p.figure("kill: %d tasks run elsewhere after %s with a lease of %s", tasks, short(killed), length)
	p.figure("stop: after %s", short(stopped))
	p.timely(killed <= length+margin, "tasks of a killed worker ran elsewhere after %s", killed)
	p.timely(stopped <= handover, "tasks of a stopped worker ran elsewhere after %s", stopped)
	_ = fmt.Sprint
}
