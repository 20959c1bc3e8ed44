package peer

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/vgarvardt/gue/v5"
	"github.com/vgarvardt/gue/v5/adapter"
	"github.com/vgarvardt/gue/v5/adapter/pgxv5"
	gueslog "github.com/vgarvardt/gue/v5/adapter/slog"

	"github.com/pgwake/pgwake/bench/internal/fleet"
	"github.com/pgwake/pgwake/bench/internal/server"
)

// Gue is vgarvardt/gue in one of its settings.
func Gue(setting string) System { return &gueSystem{setting: setting} }

type gueSystem struct {
	setting string
	client  *gue.Client // that enqueues
}

// gueWorkers is the number of workers, each of which has a connection and a transaction while it runs a task. Two are
// what the README's example has.
var gueWorkers = map[string]int{best: 16, defaults: 2}

// gueOptions are those of a pool of workers in a setting. The default strategy sorts the whole backlog for each task.
func gueOptions(setting string) []gue.WorkerPoolOption {
	if setting == best {
		return []gue.WorkerPoolOption{gue.WithPoolPollStrategy(gue.RunAtPollStrategy), gue.WithPoolPollInterval(10 * time.Millisecond)}
	}
	return nil
}

func (s *gueSystem) Name() string { return "gue, " + s.setting }

func (s *gueSystem) About() string {
	settings := map[string]string{best: "RunAtPollStrategy, polls of 10 ms", defaults: "PriorityPollStrategy, polls of 5 s"}
	return fmt.Sprintf("%s, pgxv5, %d workers, %s; enqueued by EnqueueBatch in 1,000s, singly by one insert",
		version("github.com/vgarvardt/gue/v5"), gueWorkers[s.setting], settings[s.setting])
}

func (s *gueSystem) Missing(context.Context) string { return "" }

func (s *gueSystem) KeepsHistory() bool { return false }

// gueTables are those that its documentation has one make.
var gueTables = []string{
	`create table gue_jobs (
	  job_id text not null primary key, priority smallint not null, run_at timestamptz not null, job_type text not null,
	  args bytea not null, error_count integer not null default 0, last_error text, queue text not null,
	  created_at timestamptz not null, updated_at timestamptz not null
	)`,
	`create index idx_gue_jobs_selector on gue_jobs (queue, run_at, priority)`,
}

func (s *gueSystem) Prepare(ctx context.Context, db *server.Database) (err error) {
	if err := db.Exec(ctx, gueTables...); err != nil {
		return err
	}
	s.client, err = gue.NewClient(pgxv5.NewConnPool(db.Pool))
	return err
}

func gueTask(sent int64) *gue.Job {
	return &gue.Job{Type: fleet.TaskType, Args: fmt.Appendf(nil, `{"sent": %d}`, sent)}
}

func (s *gueSystem) Fill(ctx context.Context, db *server.Database, n int) error {
	return batches(n, 1000, func(first, last int) error {
		tasks := make([]*gue.Job, 0, last-first+1)
		for i := first; i <= last; i++ {
			tasks = append(tasks, gueTask(int64(i)))
		}
		return s.client.EnqueueBatch(ctx, tasks)
	})
}

// gueConn lets a client enqueue on a connection as it does on a pool: by one statement without a transaction.
type gueConn struct {
	adapter.Tx
	conn *pgx.Conn
}

func (c gueConn) Exec(ctx context.Context, sql string, args ...any) (adapter.CommandTag, error) {
	return c.conn.Exec(ctx, sql, args...)
}

func (s *gueSystem) Enqueue(ctx context.Context, conn *pgx.Conn, sent int64) error {
	return s.client.EnqueueTx(ctx, gueTask(sent), gueConn{conn: conn})
}

func (s *gueSystem) Job(opts WorkerOptions) fleet.Job {
	return opts.job(fleet.Gue, s.setting, gueWorkers[s.setting])
}

func (s *gueSystem) Unfinished(ctx context.Context, db *server.Database) (int, error) {
	return server.Scan[int](ctx, db, `select count(*) from gue_jobs`)
}

func gueMain(ctx context.Context, job fleet.Job, rec *fleet.Recorder, log *slog.Logger) error {
	config, err := pgxpool.ParseConfig(job.URL)
	if err != nil {
		return err
	}
	config.MaxConns = int32(job.Slots) // one for each worker's transaction
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	client, err := gue.NewClient(pgxv5.NewConnPool(pool))
	if err != nil {
		return err
	}
	handlers := gue.WorkMap{fleet.TaskType: func(ctx context.Context, job *gue.Job) error {
		var p fleet.Payload
		if err := json.Unmarshal(job.Args, &p); err != nil {
			return err
		}
		return rec.Handle(ctx, p, int(job.ErrorCount)+1)
	}}
	workers, err := gue.NewWorkerPool(client, handlers, job.Slots, append(gueOptions(job.Setting),
		gue.WithPoolGracefulShutdown(nil), gue.WithPoolLogger(gueslog.New(log)))...)
	if err != nil {
		return err
	}
	rec.Ready()
	return workers.Run(ctx)
}
