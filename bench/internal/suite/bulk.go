package suite

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/bench/internal/fleet"
	"github.com/pgwake/pgwake/bench/internal/server"
)

// The suites enqueue/bulk and enqueue/single: what the client and the table's triggers cost those who enqueue while nothing
// else is going on. The floor is a table like that of tasks, with all its indexes, constraints and settings but no trigger,
// into which the same rows go by bare statements. Clients share a pool that has a connection for each; both tables are
// emptied before each measurement.

var enqueueBulk = Suite{
	Name: "enqueue/bulk", Rounds: 5,
	About: "batches of 1,000 by 1 and 4 clients: EnqueueMany, a bare COPY",
	run: func(ctx context.Context, b *bench) error {
		return b.insert(ctx, bulkSize, []int{1, 4}, "COPY", copyBare)
	},
}

var enqueueSingle = Suite{
	Name: "enqueue/single", Rounds: 5,
	About: "one task after the other by 16 clients: Enqueue, a bare insert",
	run:   func(ctx context.Context, b *bench) error { return b.insert(ctx, 1, []int{16}, "insert", insertBare) },
}

const (
	bulkSize     = 1000
	bareTable    = "bench_bare"
	insertBlocks = 3
	// insertWarm is how long clients enqueue before they are measured.
	insertWarm = 200 * time.Millisecond
)

// bareSQL makes the table of the floor. LIKE does not take the settings along.
var bareSQL = []string{
	`create table ` + bareTable + ` (like ` + server.Schema + `.tasks including all)`,
	`do $$ declare settings text := (
	   select string_agg(o, ', ') from unnest((select reloptions from pg_class where oid = '` + server.Schema + `.tasks'::regclass)) as o);
	 begin
	   if settings is not null then execute 'alter table ` + bareTable + ` set (' || settings || ')'; end if;
	 end $$`,
}

// inserter inserts so many tasks in one transaction.
type inserter func(ctx context.Context, pool *pgxpool.Pool, n int) error

func copyBare(ctx context.Context, pool *pgxpool.Pool, n int) error {
	_, err := pool.CopyFrom(ctx, pgx.Identifier{bareTable}, []string{"id", "type", "payload"}, pgx.CopyFromSlice(n, func(i int) ([]any, error) {
		id, err := uuid.NewV7()
		return []any{id, taskType, fmt.Appendf(nil, `{"sent": %d}`, i)}, err
	}))
	return err
}

const insertBareSQL = `insert into ` + bareTable + ` (id, type, payload) values ($1, $2, $3)`

func insertBare(ctx context.Context, pool *pgxpool.Pool, n int) error {
	id, err := uuid.NewV7()
	if err != nil {
		return err
	}
	_, err = pool.Exec(ctx, insertBareSQL, id, taskType, fmt.Appendf(nil, `{"sent": %d}`, n))
	return err
}

func (b *bench) insert(ctx context.Context, n int, clients []int, floor string, bare inserter) error {
	q, err := b.queue(ctx, bareSQL)
	if err != nil {
		return err
	}
	for _, count := range clients {
		config, err := pgxpool.ParseConfig(q.URL)
		if err != nil {
			return err
		}
		config.MaxConns = int32(count)
		pool, err := pgxpool.NewWithConfig(ctx, config)
		if err != nil {
			return err
		}
		b.ends = append(b.ends, func() error { pool.Close(); return nil })
		client, err := pgwake.NewClient(ctx, pool, pgwake.ClientConfig{})
		if err != nil {
			return err
		}
		ours := func(ctx context.Context) error { return enqueueMany(ctx, client, n) }
		sides := []side{
			{name: floor, measure: func(ctx context.Context) (sample, error) {
				return b.insertSample(ctx, q, bareTable, count, n, func(ctx context.Context) error { return bare(ctx, pool, n) })
			}, values: insertValues},
			{name: sideOurs, measure: func(ctx context.Context) (sample, error) {
				return b.insertSample(ctx, q, server.Schema+".tasks", count, n, ours)
			}, values: insertValues},
		}
		what := fmt.Sprintf("%d clients, ", count)
		if count == 1 {
			what = "1 client, "
		}
		c, err := b.compare(ctx, plan{what: what, blocks: insertBlocks, limits: map[string]float64{"enqueued": floodSpread}}, sides)
		if err != nil {
			return err
		}
		b.figure(what+"of "+floor, "×", c.noisy, c.ratios("enqueued", 1, 0)...)
	}
	return nil
}

// enqueueMany is pgwake's way, of one task or of many.
func enqueueMany(ctx context.Context, client *pgwake.Client, n int) error {
	if n == 1 {
		_, err := client.Enqueue(ctx, fleet.Payload{Sent: 1}, nil)
		return err
	}
	tasks := make([]pgwake.NewTask, n)
	for i := range tasks {
		tasks[i].Payload = fleet.Payload{Sent: int64(i)}
	}
	_, err := client.EnqueueMany(ctx, tasks)
	return err
}

// insertSample lets clients insert batches of n into a table for a while. Those that are under way at its end are waited
// for, and count.
func (b *bench) insertSample(ctx context.Context, q *queue, table string, clients, n int, insert func(context.Context) error) (s sample, err error) {
	if err := q.Exec(ctx, `truncate `+table); err != nil {
		return s, err
	}
	if _, err := insertFor(ctx, clients, insertWarm, insert); err != nil {
		return s, err
	}
	before, err := q.usage(ctx)
	if err != nil {
		return s, err
	}
	began := time.Now()
	done, err := insertFor(ctx, clients, b.Window/insertBlocks, insert)
	if err != nil {
		return s, err
	}
	s.tasks, s.took = float64(done*n), time.Since(began)
	after, err := q.usage(ctx)
	s.spent = after.Since(before)
	return s, err
}

// insertFor has clients insert, each one batch after the other, and returns how many there were.
func insertFor(ctx context.Context, clients int, d time.Duration, insert func(context.Context) error) (int, error) {
	done := make([]int, clients)
	end := time.Now().Add(d)
	group, ctx := errgroup.WithContext(ctx)
	for i := range clients {
		group.Go(func() error {
			for ; time.Now().Before(end); done[i]++ {
				if err := insert(ctx); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err := group.Wait()
	sum := 0
	for _, n := range done {
		sum += n
	}
	return sum, err
}

func insertValues(s sample) []value {
	return []value{{"enqueued", "/s", s.tasks / s.took.Seconds()}}
}
