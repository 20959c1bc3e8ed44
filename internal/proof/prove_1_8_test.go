//go:build unix

package proof_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/internal/pgtest"
	"github.com/pgwake/pgwake/lease"
	"github.com/pgwake/pgwake/worker"
)

// What breaks the lease protocols that people write does not break this one.
func TestProve_1_8(t *testing.T) {
	p := prove(t, "1.8", "crash: 0 stale writes; locked row: < 500 ms; operators' moves stand; first statements < 20 ms")
	for _, part := range []struct {
		name string
		run  func(*testing.T, *proof)
	}{
		{"server crash before the claim is on disk", crashBeforeFlush},
		{"row locked by somebody", lockedRow},
		{"running task moved by an operator", movedByOperator},
		{"burst after plans were made on an empty table", burstOnStalePlans},
	} {
		t.Run(part.name, func(t *testing.T) {
			if !*full {
				t.Parallel()
			}
			part.run(t, p)
		})
	}
}

// crashBeforeFlush loses a claim that the server had answered. A fence that merely counts comes again afterwards, as
// the control next to it shows; ours does not, so the holder from before the crash can touch nothing of the newer one's.
func crashBeforeFlush(t *testing.T, p *proof) {
	rounds := sized(5, 1)
	server := pgtest.Server(t)
	b := newBenchOn(t, migrated(t, server.URL("")))
	// So long that nothing is written before the crash. The WAL writer keeps to it only if it has not been idle long.
	b.exec(`alter system set wal_writer_delay = '10s'`)
	b.exec(`alter system set autovacuum = off`)
	b.exec(`create table proof.control (fence bigint not null, holder uuid)`)

	lost, again, accepted, controlAccepted := 0, 0, 0, 0
	for try := 0; lost < rounds; try++ {
		if try == rounds+10 {
			t.Fatalf("%d of %d crashes lost the claim: the experiment does not work", lost, try)
		}
		b.exec(`delete from pgwake.tasks`)
		b.exec(`delete from proof.control`)
		b.exec(`insert into proof.control (fence) values (0)`)
		b.enqueue(1, pgwake.Raw{Type: "crash"})
		b.pool.Reset()
		if err := server.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}

		old := b.crashClaim()
		if err := server.Crash(); err != nil {
			t.Fatal(err)
		}
		b.pool.Reset()
		if err := server.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		if b.count(`select count(*) from pgwake.tasks where status = 'queued' and attempt = 0`) != 1 ||
			b.count(`select count(*) from proof.control where fence = 0`) != 1 {
			continue // it was on disk already
		}
		lost++
		accepted += b.staleWrites(old, "before the next claim")
		next := b.crashClaim()
		if next.control == old.control {
			again++
		}
		if next.Key != old.Key || next.Fence <= old.Fence {
			t.Errorf("the next claim has fence %d, the forgotten one had %d", next.Fence, old.Fence)
		}
		before := scan[string](b, `select t::text from pgwake.tasks as t`)
		accepted += b.staleWrites(old, "after the next claim")
		if after := scan[string](b, `select t::text from pgwake.tasks as t`); after != before {
			t.Errorf("the newer holder's row was %s and is %s", before, after)
		}
		// The control's zombie renews and settles by its number alone.
		if tag, err := b.pool.Exec(t.Context(), `update proof.control set holder = null where fence = $1`, old.control); err != nil {
			t.Fatal(err)
		} else if tag.RowsAffected() == 1 {
			controlAccepted++
		}
		// The newer holder is not disturbed.
		if settled, err := b.queue.Settle(t.Context(), b.pool, next.Holder, []lease.Settlement{{Lease: next.Lease, Status: string(pgwake.Succeeded)}}); err != nil || len(settled) != 1 {
			t.Errorf("the newer holder settled %v, %v", settled, err)
		}
	}
	if again != rounds || controlAccepted != rounds {
		t.Errorf("a counting fence came again in %d of %d crashes, and was accepted in %d: the experiment does not work", again, rounds, controlAccepted)
	}
	p.figure("crash: %d claims lost, a counting fence came again %d times, ours 0, stale writes accepted %d", lost, again, accepted)
}

// crashed is a claim, and the number that a counting fence has for it.
type crashed struct {
	*lease.Lease
	control int64
}

// crashClaim claims the one task, and counts in the control table, in a session that commits asynchronously.
func (b *bench) crashClaim() crashed {
	b.Helper()
	conn, err := pgx.Connect(b.Context(), b.url)
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close(b.Context())
	if _, err := conn.Exec(b.Context(), `set synchronous_commit = off`); err != nil {
		b.Fatal(err)
	}
	leases, err := b.queue.Claim(b.Context(), conn, claimOptions("crash"))
	if err != nil || len(leases) != 1 {
		b.Fatalf("claimed %d, %v", len(leases), err)
	}
	c := crashed{Lease: leases[0]}
	if err := conn.QueryRow(b.Context(), `update proof.control set fence = fence + 1, holder = $1 returning fence`, c.Holder).Scan(&c.control); err != nil {
		b.Fatal(err)
	}
	return c
}

func claimOptions(taskType string) lease.ClaimOptions {
	return lease.ClaimOptions{
		Holder: uuid.NewString(), Worker: "test", Types: []string{taskType}, Limit: 1, Lease: worker.DefaultLease,
		Scan: func(*lease.Lease) []any { return []any{nil, nil, nil, nil, nil} },
	}
}

// staleWrites tries all that a holder may write, and returns how much of it was accepted.
func (b *bench) staleWrites(old crashed, when string) (accepted int) {
	b.Helper()
	ctx := b.Context()
	tried := func(what string, refused bool, err error) {
		b.Helper()
		if err != nil && !errors.Is(err, lease.ErrLeaseLost) {
			b.Errorf("%s, %s: %v", when, what, err)
		} else if !refused {
			accepted++
			b.Errorf("%s, %s with the forgotten fence: accepted", when, what)
		}
	}
	renewed, err := b.queue.Renew(ctx, b.pool, old.Holder, []*lease.Lease{old.Lease}, time.Minute)
	tried("renew", len(renewed) == 0, err)
	settled, err := b.queue.Settle(ctx, b.pool, old.Holder, []lease.Settlement{{Lease: old.Lease, Status: string(pgwake.Succeeded)}})
	tried("settle", len(settled) == 0, err)
	err = b.queue.Update(ctx, b.pool, old.Lease, map[string]any{"metadata": `{"late": true}`})
	tried("update", err != nil, err)
	err = b.queue.Bump(ctx, b.pool, old.Lease, time.Hour)
	tried("bump", err != nil, err)
	err = b.queue.Requeue(ctx, b.pool, old.Lease, 0)
	tried("requeue", err != nil, err)
	var completed bool
	err = b.pool.QueryRow(ctx, `select pgwake.complete_task($1, $2, $3)`, old.Key, old.Fence, old.Holder).Scan(&completed)
	tried("complete", !completed, err)
	return accepted
}

// lockedRow has another session lock two running rows: one whose handler goes on and one whose handler returns
// meanwhile. Neither the renewals of other leases nor the settlements of other runs wait for it.
func lockedRow(t *testing.T, p *proof) {
	const limit = 500 * time.Millisecond
	hold, length := sized(5*time.Second, 2500*time.Millisecond), 3*time.Second
	b := newBench(t)
	release := make(chan struct{})
	b.handle("long", nil, func(ctx context.Context, _ *pgwake.Run) error {
		<-ctx.Done()
		return context.Cause(ctx)
	})
	b.handle("ends", nil, func(ctx context.Context, _ *pgwake.Run) error {
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	var mu sync.Mutex
	returned := map[uuid.UUID]time.Time{}
	b.handle("quick", nil, func(_ context.Context, run *pgwake.Run) error {
		mu.Lock()
		defer mu.Unlock()
		returned[run.ID] = time.Now()
		return nil
	})
	b.start(b.pool, worker.Config{Slots: 30, Lease: length, Sweep: farSweep, DrainTimeout: -1})
	long := b.enqueue(20, pgwake.Raw{Type: "long"})
	ends := b.enqueue(1, pgwake.Raw{Type: "ends"})
	b.await(len(long)+1, "tasks running", `select count(*) from pgwake.tasks where status = 'running'`)
	offset, _ := b.offset()

	locker, err := b.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = locker.Rollback(context.Background()) }()
	if _, err := locker.Exec(t.Context(), `select from pgwake.tasks where id in ($1, $2) for update`, long[0], ends[0]); err != nil {
		t.Fatal(err)
	}
	from := b.now()
	until := time.Now().Add(hold)
	close(release)

	// Settlements come now and then, not in a stream that would carry late ones along.
	renewals := map[uuid.UUID][]time.Time{}
	for next, n := time.Now(), 0; time.Now().Before(until); n++ {
		if time.Now().After(next) {
			b.enqueue(1, pgwake.Raw{Type: "quick"})
			next = time.Now().Add(rand.N(hold / 3))
		}
		b.noteRenewals(renewals, length)
		pause(20 * time.Millisecond)
	}
	if err := locker.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	to := b.now()
	b.await(0, "tasks left but those that run on", `select count(*) from pgwake.tasks where type = 'quick'`)
	b.await(1, "task settled whose row was locked", `select count(*) from pgwake.task_archive where type = 'ends' and status = 'succeeded'`)

	var beats times
	for id, at := range renewals {
		if id == long[0] || id == ends[0] {
			continue
		}
		for i := 1; i < len(at); i++ {
			beats = append(beats, at[i].Sub(at[i-1])-length/3)
		}
		if since := to.Sub(at[len(at)-1]); since > length/3+limit {
			t.Errorf("task %s was last renewed %s before the lock was gone", id, since)
		}
	}
	if want := (len(long) - 1) * int(hold/(length/3)-1); len(beats) < want {
		t.Errorf("%d renewals while the row was locked, want at least %d", len(beats), want)
	}
	var settled times
	mu.Lock()
	defer mu.Unlock()
	rows, _ := b.pool.Query(t.Context(), `select id, finished_at from pgwake.task_archive where type = 'quick' and started_at between $1 and $2`, from, to)
	var id uuid.UUID
	var at time.Time
	if _, err := pgx.ForEachRow(rows, []any{&id, &at}, func() error {
		settled = append(settled, at.Sub(returned[id].Add(offset)))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	p.figure("locked row: %d renewals at most %s late, %d settlements after at most %s", len(beats), short(max(beats.max(), 0)), len(settled), short(settled.max()))
	p.timely(beats.max() < limit, "a renewal was %s late", beats.max())
	p.timely(settled.max() < limit, "a settlement took %s", settled.max())
}

// noteRenewals adds the instants of renewals, which the ends of leases tell.
func (b *bench) noteRenewals(renewals map[uuid.UUID][]time.Time, length time.Duration) {
	b.Helper()
	rows, _ := b.pool.Query(b.Context(), `select id, retry_at from pgwake.tasks where status = 'running' and type <> 'quick'`)
	var id uuid.UUID
	var end time.Time
	if _, err := pgx.ForEachRow(rows, []any{&id, &end}, func() error {
		at := end.Add(-length)
		if n := len(renewals[id]); n == 0 || !renewals[id][n-1].Equal(at) {
			renewals[id] = append(renewals[id], at)
		}
		return nil
	}); err != nil {
		b.Fatal(err)
	}
}

// movedByOperator pauses and freezes running tasks, by the library and by plain SQL, with the fence raised and without.
// Three heartbeats later the rows are as the operator left them, and the handlers have been told.
func movedByOperator(t *testing.T, p *proof) {
	const length = 1500 * time.Millisecond
	b := newBench(t)
	type ended struct {
		id    uuid.UUID
		cause error
	}
	causes, begun := make(chan ended, 10), make(chan uuid.UUID, 10)
	b.handle("moved", nil, func(ctx context.Context, run *pgwake.Run) error {
		begun <- run.ID
		<-ctx.Done()
		causes <- ended{run.ID, context.Cause(ctx)}
		return nil
	})
	b.start(b.pool, worker.Config{Lease: length, Sweep: farSweep})
	plain := func(set string) func(uuid.UUID) {
		return func(id uuid.UUID) { b.exec(`update pgwake.tasks set `+set+` where id = $1`, id) }
	}
	moves := []struct {
		name string
		move func(uuid.UUID)
	}{
		{"lease.Queue.Pause", func(id uuid.UUID) {
			if err := b.queue.Pause(t.Context(), b.pool, id.String()); err != nil {
				t.Fatal(err)
			}
		}},
		{"freeze with the fence raised", plain(`status = 'frozen', retry_at = null, fence = fence + 1, holder = null`)},
		{"pause by status and retry_at alone", plain(`status = 'paused', retry_at = 'infinity'`)},
		{"freeze by status and retry_at alone", plain(`status = 'frozen', retry_at = null`)},
		{"retry_at of infinity alone", plain(`retry_at = 'infinity'`)},
	}
	const rowSQL = `select t::text from pgwake.tasks as t where id = $1`
	ids := b.enqueue(len(moves), pgwake.Raw{Type: "moved"})
	for range ids {
		recv(t, begun, "the task")
	}
	left := make([]string, len(moves))
	for i, m := range moves {
		m.move(ids[i])
		left[i] = scan[string](b, rowSQL, ids[i])
	}
	beats := time.After(length) // three of them, and one to spare for the last move
	for range moves {
		c := recv(t, causes, "the end of a context")
		if name := moves[slices.Index(ids, c.id)].name; !errors.Is(c.cause, lease.ErrLeaseLost) {
			t.Errorf("%s: the context ended by %v", name, c.cause)
		}
	}
	<-beats
	pause(length / 3)
	for i, m := range moves {
		if now := list[string](b, rowSQL, ids[i]); !slices.Equal(now, left[i:i+1]) {
			t.Errorf("%s: the row was\n%s and is\n%s", m.name, left[i], now)
		}
	}
	if len(begun) > 0 {
		t.Errorf("task %s runs again", <-begun)
	}
	p.figure("%d kinds of pause and freeze of a running task in force after 3 beats", len(moves))
}

// burstOnStalePlans lets a worker idle on an empty table until every plan that could be cached is, and the table is
// vacuumed, and then fills it, while its statistics stay those of an empty table.
func burstOnStalePlans(t *testing.T, p *proof) {
	const limit, first = 20 * time.Millisecond, 30
	tasks := sized(500_000, 50_000)
	// Without durable commits: how long plans take is to be seen, not how long the disk takes.
	b := newBenchOn(t, pgtest.NewURL(t))
	config, err := pgxpool.ParseConfig(b.url)
	if err != nil {
		t.Fatal(err)
	}
	// The worker's own connections are dialled as the pool's are, and so are traced.
	trace := &trace{}
	config.ConnConfig.Tracer = trace
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	b.handle("return", nil, func(context.Context, *pgwake.Run) error { return nil })
	b.handle("complete", nil, func(ctx context.Context, run *pgwake.Run) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return run.CompleteTx(ctx, tx) })
	})
	b.exec(`alter table pgwake.tasks set (autovacuum_enabled = off)`)
	_, stop := b.start(pool, worker.Config{Sweep: farSweep})

	const idle = 15
	types := []string{"return", "complete"}
	for i := range idle * len(types) {
		b.enqueue(1, pgwake.Raw{Type: types[i%len(types)]})
		b.await(i+1, "tasks settled", `select count(*) from pgwake.task_archive`)
	}
	if c := trace.take(); min(len(c["claim"]), len(c["look"]), len(c["settle"]), len(c["complete"])) < 10 {
		t.Fatalf("statements before the burst: %v", c)
	}
	b.exec(`vacuum analyze pgwake.tasks`)

	conn := b.connect()
	if _, err := conn.CopyFrom(t.Context(), pgx.Identifier{"pgwake", "tasks"}, []string{"type"}, pgx.CopyFromSlice(tasks, func(i int) ([]any, error) {
		return []any{types[i%len(types)]}, nil
	})); err != nil {
		t.Fatal(err)
	}
	b.awaitMore(idle*len(types) + 5000)
	if n := scan[float32](b, `select reltuples from pg_class where oid = 'pgwake.tasks'::regclass`); n > 100 {
		t.Errorf("statistics know of %.0f rows", n)
	}
	stop()
	took := trace.take()
	var figures []string
	for _, kind := range []string{"claim", "settle", "complete"} {
		if len(took[kind]) < first {
			t.Fatalf("%d statements to %s", len(took[kind]), kind)
		}
		// A bad plan is slow every time; one statement may have met a hiccup of the machine.
		slow, slowest := took[kind][:first].at(1-1.0/first), took[kind][:first].max()
		figures = append(figures, fmt.Sprintf("%s %s (one %s)", kind, short(slow), short(slowest)))
		p.timely(slow < limit, "first statements to %s: %v", kind, []time.Duration(took[kind][:first]))
	}
	p.timely(took["claim"][0] < limit, "the first claim took %s", took["claim"][0])
	p.figure("burst of %d: the first claim %s, the first %d statements each to %s", tasks, short(took["claim"][0]), first, strings.Join(figures, ", "))
}

// awaitMore waits until at least n tasks are archived.
func (b *bench) awaitMore(n int) {
	b.Helper()
	pgtest.WaitFor(b, 4*patience, fmt.Sprintf("%d tasks settled", n), func() bool {
		pause(20 * time.Millisecond)
		return b.count(`select count(*) from pgwake.task_archive`) >= n
	})
}

// trace takes the time of a worker's statements, from when they are sent to the last row.
type trace struct {
	mu   sync.Mutex
	took map[string]times
}

type traceKey struct{}

type traced struct {
	kind string
	at   time.Time
}

// kindOf tells statements apart; empty: it is of no interest.
func kindOf(sql string) string {
	switch {
	case strings.Contains(sql, "select due.ctid"):
		return "claim"
	case strings.Contains(sql, "select p.n, next.at"):
		return "look"
	case strings.Contains(sql, "moved as"), strings.Contains(sql, "gone as"):
		return "settle"
	case strings.Contains(sql, "complete_task"):
		return "complete"
	}
	return ""
}

func (tr *trace) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	return context.WithValue(ctx, traceKey{}, traced{kindOf(data.SQL), time.Now()})
}

func (tr *trace) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	if q, ok := ctx.Value(traceKey{}).(traced); ok {
		tr.add(q.kind, q.at)
	}
}

// Claims in turn are batches; what they wait for is among their time.
func (tr *trace) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return context.WithValue(ctx, traceKey{}, traced{"", time.Now()})
}

func (tr *trace) TraceBatchQuery(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchQueryData) {
	if q, ok := ctx.Value(traceKey{}).(traced); ok {
		tr.add(kindOf(data.SQL), q.at)
	}
}

func (tr *trace) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

func (tr *trace) add(kind string, since time.Time) {
	if kind == "" {
		return
	}
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if tr.took == nil {
		tr.took = map[string]times{}
	}
	tr.took[kind] = append(tr.took[kind], time.Since(since))
}

// take returns what was traced so far, and forgets it.
func (tr *trace) take() map[string]times {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	took := tr.took
	tr.took = nil
	return took
}
