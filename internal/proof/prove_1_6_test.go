//go:build unix

package proof_test

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/worker"
)

// A worker process is frozen past its leases, another one takes over, and the first wakes. Whatever its handlers try at
// once is refused, whether the newer run is over by then or still at it, their contexts end with ErrLeaseLost, and what
// the newer run wrote stands.
func TestProve_1_6(t *testing.T) {
	p := prove(t, "1.6", "0 late writes accepted, 0 results changed, every context ended by ErrLeaseLost")
	b := newBench(p)
	copies, length := sized(4, 1), sized(worker.DefaultLease, 3*time.Second)

	writes := slices.Sorted(maps.Keys(lateWrites))
	var tasks []pgwake.NewTask
	for range copies {
		for _, write := range append(writes, "return") {
			for _, hold := range []bool{false, true} {
				payload, err := json.Marshal(lateTask{Write: write, Hold: hold})
				if err != nil {
					p.Fatal(err)
				}
				tasks = append(tasks, pgwake.NewTask{Payload: pgwake.Raw{Type: "late", JSON: payload}})
			}
		}
	}
	n, held, tried := len(tasks), len(tasks)/2, 2*copies*len(writes)
	launch := func(name string) *process {
		return b.launch(job{Role: "late", Name: name, Slots: n, Lease: length, Sweep: farSweep, Drain: patience}).ready()
	}

	first := launch("first")
	if _, err := b.client.EnqueueMany(p.Context(), tasks); err != nil {
		p.Fatal(err)
	}
	b.await(n, "tasks begun", eventsSQL, "first", "begun")
	second := launch("second")
	first.freeze()
	b.awaitWithin(length+patience, n, "tasks begun by the second worker", eventsSQL, "second", "begun")
	b.await(n-held, "tasks done by the second worker", `select count(*) from pgwake.task_archive`)
	const stillHeldSQL = `
		select count(*) from pgwake.tasks
		where status = 'running' and worker = 'second' and attempt = 2 and retry_at > clock_timestamp() and retry_at < clock_timestamp() + $1
		  and metadata = '{}'`
	if got := b.count(stillHeldSQL, length); got != held {
		p.Errorf("%d tasks held by the second worker before the first wakes, want %d", got, held)
	}

	first.thaw()
	b.await(tried, "contexts ended in the first worker", eventsSQL, "first", "ended")
	// Having drained, it has also tried to settle what its handlers returned.
	first.terminate()
	first.drained(patience)
	if got := b.count(stillHeldSQL, length); got != held {
		p.Errorf("%d tasks held by the second worker after the first tried to write, want %d", got, held)
	}
	b.exec(`insert into proof.event (task, attempt, worker, what, detail) select id, 0, 'test', 'go', '' from pgwake.tasks`)
	b.await(n, "tasks archived", `select count(*) from pgwake.task_archive`)
	second.terminate()
	second.drained(patience)

	accepted := 0
	rows, _ := b.pool.Query(p.Context(), `select e.what, e.detail, count(*) from proof.event as e where e.what ~ '^tried' group by 1, 2`)
	var what, detail string
	var count int
	if _, err := pgx.ForEachRow(rows, []any{&what, &detail, &count}, func() error {
		if detail != "refused" {
			accepted += count
			p.Errorf("%s: %d times %s", what, count, detail)
		}
		return nil
	}); err != nil {
		p.Fatal(err)
	}
	causes := b.count(`select count(*) from proof.event where worker = 'first' and what = 'ended' and detail = 'lease lost'`)
	if causes != tried {
		p.Errorf("contexts of the first worker ended: %q", list[string](b, `select detail from proof.event where what = 'ended'`))
	}
	stands := b.count(`select count(*) from pgwake.task_archive where status = 'succeeded' and attempt = 2 and worker = 'second' and metadata = '{}'`)
	results := b.count(`select count(*) from proof.effect where attempt = 2 and worker = 'second'`)
	all := b.count(`select count(*) from proof.effect`)
	if stands != n || results != n || all != n {
		p.Errorf("of %d tasks %d are archived as the second worker left them, with %d results of its own and %d in all", n, stands, results, all)
	}
	// A result returned is dropped by the worker where it knows already, and refused by the database where it does not.
	dropped, refused := first.said("its result is dropped"), first.said("settlement refused: the lease is lost")
	if dropped+refused < n {
		p.Errorf("the first worker dropped %d results and had %d refused, of %d", dropped, refused, n)
	}

	p.figure("%d runs frozen past a lease of %s", n, length)
	p.figure("%d writes by statement tried on waking, %d accepted", tried, accepted)
	p.figure("%d results returned: %d dropped by the worker, %d refused by the database", n, dropped, refused)
	p.figure("%d of %d contexts ended by ErrLeaseLost", causes, tried)
	p.figure("%d of %d results of the newer run stand", min(stands, results), n)
}
