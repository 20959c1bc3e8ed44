package peer

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/pgwake/pgwake/bench/internal/fleet"
	"github.com/pgwake/pgwake/bench/internal/server"
)

// Graphile is Graphile Worker in one of its settings, which are in peers/node/graphile.mjs.
func Graphile(setting string) System { return graphileSystem{setting} }

type graphileSystem struct{ setting string }

func (s graphileSystem) Name() string { return "Graphile Worker, " + s.setting }

func (s graphileSystem) About() string {
	settings := map[string]string{
		best:     "concurrentJobs 24, localQueue of 1,000, completeJobBatchDelay and failJobBatchDelay 0: its page on performance, with a larger queue",
		defaults: "concurrentJobs 1, pollInterval 2 s, neither local queue nor batches",
	}
	return fmt.Sprintf("%s, %s; enqueued by add_jobs in batches of 10,000, singly by add_job", nodeVersion("graphile-worker"), settings[s.setting])
}

func (s graphileSystem) Missing(ctx context.Context) string {
	return nodeMissing(ctx, "graphile-worker")
}

func (s graphileSystem) KeepsHistory() bool { return false }

func (s graphileSystem) Prepare(ctx context.Context, db *server.Database) error {
	return nodeRun(ctx, "graphile.mjs", fleet.Job{URL: db.URL}, "prepare")
}

// graphileFillSQL adds the tasks numbered from $1 to $2.
const graphileFillSQL = `
select count(*)
from graphile_worker.add_jobs(array(
  select row($3, json_build_object('sent', i), null, null, null, null, null, null)::graphile_worker.job_spec
  from generate_series($1::int, $2::int) as i))`

func (s graphileSystem) Fill(ctx context.Context, db *server.Database, n int) error {
	return batches(n, 10_000, func(first, last int) error {
		_, err := db.Pool.Exec(ctx, graphileFillSQL, first, last, fleet.TaskType)
		return err
	})
}

// Its payload has the number as text: in JavaScript one as large as an instant would lose its last digits.
const graphileEnqueueSQL = `select graphile_worker.add_job($1, json_build_object('sent', $2::bigint::text))`

func (s graphileSystem) Enqueue(ctx context.Context, conn *pgx.Conn, sent int64) error {
	_, err := conn.Exec(ctx, graphileEnqueueSQL, fleet.TaskType, sent)
	return err
}

func (s graphileSystem) Job(opts WorkerOptions) fleet.Job {
	return nodeJob("graphile.mjs", opts.job(fleet.Graphile, s.setting, 0))
}

func (s graphileSystem) Unfinished(ctx context.Context, db *server.Database) (int, error) {
	return server.Scan[int](ctx, db, `select count(*) from graphile_worker._private_jobs`)
}
