//go:build unix

package proof_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/worker"
)

// Scheduled tasks, all known in advance, start when they are due and not before, by the database's clock.
func TestProve_1_4(t *testing.T) {
	const limit = 25 * time.Millisecond
	p := prove(t, "1.4", "p99 ≤ 25 ms, none early")
	b := newBench(p)
	n, span := sized(500, 100), sized(10*time.Second, 2*time.Second)

	var mu sync.Mutex
	began := map[uuid.UUID]time.Time{}
	b.handle("due", nil, func(_ context.Context, run *pgwake.Run) error {
		at := time.Now()
		mu.Lock()
		defer mu.Unlock()
		began[run.ID] = at
		return nil
	})
	b.start(b.pool, worker.Config{Sweep: farSweep})

	from := b.now().Add(1500 * time.Millisecond)
	tasks := make([]pgwake.NewTask, n)
	planned := map[uuid.UUID]time.Time{}
	for i := range tasks {
		// The database keeps microseconds.
		due := from.Add(rand.N(span)).Truncate(time.Microsecond)
		id := uuid.Must(uuid.NewV7())
		planned[id] = due
		tasks[i] = pgwake.NewTask{Payload: pgwake.Raw{Type: "due"}, Options: &pgwake.EnqueueOptions{ID: id, DueAt: due}}
	}
	if _, err := b.client.EnqueueMany(p.Context(), tasks); err != nil {
		p.Fatal(err)
	}
	if !b.now().Before(from) {
		p.Fatal("enqueued too late: the machine is too busy")
	}
	offset, uncertainty := b.offset()
	b.awaitWithin(span+patience, n, "tasks settled", `select count(*) from pgwake.task_archive`)
	after, more := b.offset() // the two clocks may have drifted
	uncertainty = max(uncertainty, more) + (after - offset).Abs()

	var claims, handlers times
	early := 0
	mu.Lock()
	defer mu.Unlock()
	rows, _ := b.pool.Query(p.Context(), `select id, due_at, started_at from pgwake.task_archive where status = 'succeeded' and attempt = 1`)
	var id uuid.UUID
	var due, started time.Time
	if _, err := pgx.ForEachRow(rows, []any{&id, &due, &started}, func() error {
		if !due.Equal(planned[id]) {
			p.Errorf("task %s was planned for %s and is archived with %s", id, planned[id], due)
		}
		claim, handler := started.Sub(due), began[id].Add(offset).Sub(due)
		if claim < 0 || handler < -uncertainty {
			early++
			p.Errorf("task %s, due at %s: claimed %s later, begun %s later", id, due, claim, handler)
		}
		claims, handlers = append(claims, claim), append(handlers, handler)
		return nil
	}); err != nil {
		p.Fatal(err)
	}
	if len(claims) != n {
		p.Errorf("%d of %d tasks succeeded at the first attempt", len(claims), n)
	}

	p.figure("%d due tasks: started_at − due_at %s", n, claims)
	p.figure("handler's first line %s", handlers)
	p.figure("early %d", early)
	p.timely(claims.at(0.99) <= limit, "p99 of started_at − due_at is %s", claims.at(0.99))
	p.timely(handlers.at(0.99) <= limit, "p99 of the handler's first line is %s", handlers.at(0.99))
}
