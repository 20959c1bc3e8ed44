//go:build unix

package proof_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/worker"
)

// Tasks of a killed worker run elsewhere when their leases end. Those of a worker that is told to stop run elsewhere at
// once, and the run that was cut short does not count.
func TestProve_1_5(t *testing.T) {
	const margin, handover = time.Second, time.Second
	p := prove(t, "1.5", "kill: lease + 1 s, attempt 2; stop: 1 s, attempt still 1")
	m := mover{bench: newBench(p), tasks: 20, lease: sized(worker.DefaultLease, 2*time.Second)}

	killed := m.move("killed", 2, func(first *process) { first.kill() })
	var first *process
	stopped := m.move("stopped", 1, func(p *process) { first = p; p.terminate() })
	first.drained(patience)

	p.figure("kill: %d tasks run elsewhere after at most %s with a lease of %s", m.tasks, short(killed), m.lease)
	p.figure("stop: %d after at most %s", m.tasks, short(stopped))
	p.timely(killed <= m.lease+margin, "tasks of a killed worker ran elsewhere after %s", killed)
	p.timely(stopped <= handover, "tasks of a stopped worker ran elsewhere after %s", stopped)
}

type mover struct {
	*bench
	tasks int
	lease time.Duration
}

// move lets one worker begin all tasks while another one idles, does harm to the first, and returns how long after that
// the last task began on the second. Its runs must be the attempt given, one a task.
func (m *mover) move(name string, attempt int, harm func(first *process)) time.Duration {
	m.Helper()
	launch := func(name string) *process {
		return m.launch(job{
			Role: "sleep", Name: name, Slots: m.tasks, Lease: m.lease, Sweep: farSweep, Drain: 200 * time.Millisecond,
		}).ready()
	}
	first := launch("to be " + name)
	m.enqueue(m.tasks, pgwake.Raw{Type: "sleep"})
	m.await(m.tasks, "tasks begun", eventsSQL, first.name, "begun")
	second := launch("beside " + name)
	// After half a lease the second knows when the leases end that it saw at first, and those have been renewed.
	pause(m.lease / 2)

	from := m.now()
	harm(first)
	m.awaitWithin(m.lease+patience, m.tasks, "tasks begun elsewhere", eventsSQL, second.name, "begun")

	rows, _ := m.pool.Query(m.Context(), `select e.at, e.attempt from proof.event as e where e.worker = $1 and e.what = 'begun'`, second.name)
	var at time.Time
	var got, runs int
	var last time.Duration
	if _, err := pgx.ForEachRow(rows, []any{&at, &got}, func() error {
		runs++
		last = max(last, at.Sub(from))
		if got != attempt {
			m.Errorf("%s: the next run of a task is attempt %d, want %d", name, got, attempt)
		}
		return nil
	}); err != nil {
		m.Fatal(err)
	}
	if runs != m.tasks {
		m.Errorf("%s: %d runs of %d tasks", name, runs, m.tasks)
	}
	second.kill()
	m.exec(`delete from pgwake.tasks`)
	return last
}
