//go:build unix

package proof_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/worker"
)

// From just before a call of Enqueue to the handler's first line, an idle worker in the same process takes little longer
// than the least that PostgreSQL needs for it: insert, notification, claim. Both are measured in turns, so that what the
// machine does meanwhile meets both.
func TestProve_1_3(t *testing.T) {
	const maxMedian, maxTail = 1.3, 2.5
	p := prove(t, "1.3", "p50 ≤ 1.3 ×, p99 ≤ 2.5 × raw")
	b := newBench(p)
	blocks, size := sized(10, 4), sized(100, 15)

	began := make(chan begin, 1)
	b.handle("ping", nil, func(_ context.Context, run *pgwake.Run) error {
		began <- begin{time.Now(), run.ID}
		return nil
	})
	b.start(b.pool, worker.Config{Sweep: farSweep})
	floor := newRawQueue(b)

	ours := func() time.Duration {
		sent := time.Now()
		e, err := b.client.Enqueue(p.Context(), pgwake.Raw{Type: "ping"}, nil)
		if err != nil {
			p.Fatal(err)
		}
		got := recv(p, began, "the task")
		if got.id != e.ID {
			p.Fatalf("task %s ran instead of %s", got.id, e.ID)
		}
		return got.at.Sub(sent)
	}
	sides := []struct {
		once func() time.Duration
		took times
	}{{once: ours}, {once: floor.once}}
	const warm = 20 // so that statements are prepared and connections open
	for _, s := range sides {
		for range warm {
			gap()
			s.once()
		}
	}
	for block := range 2 * blocks {
		s := &sides[(block+block/2)%2] // A B B A …
		for range size {
			gap()
			s.took = append(s.took, s.once())
		}
	}
	b.await(blocks*size+warm, "tasks settled", `select count(*) from pgwake.task_archive where status = 'succeeded' and attempt = 1`)

	worked, raw := sides[0].took, sides[1].took
	median, tail := ratio(worked.at(0.5), raw.at(0.5)), ratio(worked.at(0.99), raw.at(0.99))
	p.figure("%d wake-ups: %s", len(worked), worked)
	p.figure("raw: %s", raw)
	p.figure("ratio p50 %.2f p99 %.2f", median, tail)
	p.timely(median <= maxMedian, "p50 is %.2f × raw", median)
	p.timely(tail <= maxTail, "p99 is %.2f × raw", tail)
}

// begin is a handler's first line.
type begin struct {
	at time.Time
	id uuid.UUID
}

func ratio(a, b time.Duration) float64 { return float64(a) / float64(b) }

// gap is the time in which the worker gets idle again.
func gap() { pause(5*time.Millisecond + rand.N(35*time.Millisecond)) }

// rawQueue is the least that does the same with PostgreSQL: three connections, a table like that of tasks, the usual
// trigger, one claim.
type rawQueue struct {
	b                      *bench
	insert, listen, claims *pgx.Conn
	claimed                chan begin
}

const rawQueueSQL = `
create table proof.raw (like pgwake.tasks including all);
create function proof.ring_raw() returns trigger language plpgsql as
$$ begin perform pg_catalog.pg_notify('raw', new.type); return null; end $$;
create trigger ring after insert on proof.raw for each row execute function proof.ring_raw();`

// rawClaimSQL takes the first due row, by the due index.
const rawClaimSQL = `
update proof.raw
set
  status = 'running', retry_at = clock_timestamp() + interval '15 s', fence = fence + 1, holder = $1, attempt = attempt + 1,
  started_at = clock_timestamp()
where id = (
  select id
  from proof.raw
  where type = $2 and status = 'queued' and retry_at <= now()
  order by priority, retry_at, id
  limit 1
  for update skip locked
)
returning id, fence, attempt, payload, metadata, created_at, due_at`

func newRawQueue(b *bench) *rawQueue {
	b.exec(rawQueueSQL)
	q := &rawQueue{b: b, insert: b.connect(), listen: b.connect(), claims: b.connect(), claimed: make(chan begin)}
	for _, sql := range []string{`set synchronous_commit = off`, `set jit = off`} {
		if _, err := q.claims.Exec(b.Context(), sql); err != nil {
			b.Fatal(err)
		}
	}
	if _, err := q.listen.Exec(b.Context(), `listen raw`); err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { // ended by the cleanup
		defer close(done)
		q.work(ctx)
	}()
	b.Cleanup(func() { cancel(); <-done })
	return q
}

func (q *rawQueue) work(ctx context.Context) {
	holder := uuid.New()
	for {
		if _, err := q.listen.WaitForNotification(ctx); err != nil {
			if ctx.Err() == nil {
				q.b.Errorf("raw: %v", err)
			}
			return
		}
		var fence, attempt int64
		var payload, metadata []byte
		var createdAt, dueAt time.Time
		var got begin
		err := q.claims.QueryRow(ctx, rawClaimSQL, holder, "ping").Scan(&got.id, &fence, &attempt, &payload, &metadata, &createdAt, &dueAt)
		if got.at = time.Now(); err != nil {
			if !errors.Is(err, context.Canceled) {
				q.b.Errorf("raw claim: %v", err)
			}
			return
		}
		q.claimed <- got
	}
}

// once enqueues one row and returns after how long it was claimed.
func (q *rawQueue) once() time.Duration {
	q.b.Helper()
	ctx, id := q.b.Context(), uuid.Must(uuid.NewV7())
	sent := time.Now()
	if _, err := q.insert.Exec(ctx, `insert into proof.raw (id, type, payload) values ($1, $2, $3)`, id, "ping", "{}"); err != nil {
		q.b.Fatal(err)
	}
	got := recv(q.b, q.claimed, "the raw claim")
	if got.id != id {
		q.b.Fatalf("raw: row %s claimed instead of %s", got.id, id)
	}
	// Settled outside the time taken, as the worker does.
	if _, err := q.insert.Exec(ctx, `delete from proof.raw where id = $1`, id); err != nil {
		q.b.Fatal(err)
	}
	return got.at.Sub(sent)
}
