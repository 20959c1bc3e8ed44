package peer

import (
	"context"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/pgwake/pgwake/bench/internal/fleet"
	"github.com/pgwake/pgwake/bench/internal/server"
)

// PgBoss is pg-boss in one of its settings, which are in peers/node/pgboss.mjs.
func PgBoss(setting string) System { return pgBossSystem{setting} }

type pgBossSystem struct{ setting string }

func (s pgBossSystem) Name() string { return "pg-boss, " + s.setting }

func (s pgBossSystem) About() string {
	settings := map[string]string{
		best:     "localConcurrency 4, batchSize 1000, burstWhenBatchFull, LISTEN and NOTIFY, polls of 0.5 s besides",
		defaults: "one job every 2 s, as it says itself",
	}
	return fmt.Sprintf("%s, %s; enqueued by insert() in 1,000s, singly by SQL", nodeVersion("pg-boss"), settings[s.setting])
}

func (s pgBossSystem) Missing(ctx context.Context) string { return nodeMissing(ctx, "pg-boss") }

func (s pgBossSystem) KeepsHistory() bool { return true }

func (s pgBossSystem) Prepare(ctx context.Context, db *server.Database) error {
	return nodeRun(ctx, "pgboss.mjs", s.script(db), "prepare")
}

func (s pgBossSystem) Fill(ctx context.Context, db *server.Database, n int) error {
	return nodeRun(ctx, "pgboss.mjs", s.script(db), "fill", strconv.Itoa(n))
}

func (s pgBossSystem) script(db *server.Database) fleet.Job {
	return fleet.Job{URL: db.URL, Type: fleet.TaskType, Setting: s.setting}
}

// pgBossEnqueueSQL is a plain insert, as its documentation has it for others than Node; pgBossRingSQL does so with the
// notification that its own send() adds for a queue that has them. The number is text: see [graphileEnqueueSQL].
const (
	pgBossEnqueueSQL = `insert into pgboss.job (name, data) values ($1, jsonb_build_object('sent', $2::bigint::text))`
	pgBossRingSQL    = `
with made as (` + pgBossEnqueueSQL + ` returning name)
select pg_notify('pgboss_' || left(encode(sha224('pgboss'), 'hex'), 24), made.name) from made`
)

func (s pgBossSystem) Enqueue(ctx context.Context, conn *pgx.Conn, sent int64) error {
	enqueue := pgBossEnqueueSQL
	if s.setting == best {
		enqueue = pgBossRingSQL
	}
	_, err := conn.Exec(ctx, enqueue, fleet.TaskType, sent)
	return err
}

func (s pgBossSystem) Job(opts WorkerOptions) fleet.Job {
	return nodeJob("pgboss.mjs", opts.job(fleet.PgBoss, s.setting, 0))
}

func (s pgBossSystem) Unfinished(ctx context.Context, db *server.Database) (int, error) {
	return server.Scan[int](ctx, db, `select count(*) from pgboss.job where name = $1 and state <> 'completed'`, fleet.TaskType)
}
