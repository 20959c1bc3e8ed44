package peer

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/pgwake/pgwake/bench/internal/fleet"
	"github.com/pgwake/pgwake/bench/internal/server"
)

// River is riverqueue.com in one of its settings.
func River(setting string) System { return &riverSystem{setting: setting} }

type riverSystem struct {
	setting string
	client  *river.Client[pgx.Tx] // that enqueues
}

// riverTask is its task.
type riverTask fleet.Payload

func (riverTask) Kind() string { return fleet.TaskType }

// riverConfig is that of clients in a setting. The cooldown also bounds how often a client that enqueues notifies.
func riverConfig(setting string, log *slog.Logger) *river.Config {
	config := &river.Config{Logger: log}
	if setting == best {
		config.FetchCooldown, config.FetchPollInterval = river.FetchCooldownMin, 100*time.Millisecond
	}
	return config
}

var riverSlots = map[string]int{best: 1000, defaults: 100}

func (s *riverSystem) Name() string { return "River, " + s.setting }

func (s *riverSystem) About() string {
	c := riverConfig(s.setting, nil)
	if s.setting == defaults {
		c.FetchCooldown, c.FetchPollInterval = river.FetchCooldownDefault, river.FetchPollIntervalDefault
	}
	return fmt.Sprintf("%s, riverpgxv5, %d slots, FetchCooldown %s, FetchPollInterval %s, LISTEN; enqueued by InsertManyFast (COPY), singly by InsertTx",
		version("github.com/riverqueue/river"), riverSlots[s.setting], c.FetchCooldown, c.FetchPollInterval)
}

func (s *riverSystem) Missing(context.Context) string { return "" }

func (s *riverSystem) KeepsHistory() bool { return true }

func (s *riverSystem) Prepare(ctx context.Context, db *server.Database) error {
	driver := riverpgxv5.New(db.Pool)
	migrator, err := rivermigrate.New(driver, &rivermigrate.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	s.client, err = river.NewClient(driver, riverConfig(s.setting, slog.New(slog.DiscardHandler)))
	return err
}

func (s *riverSystem) Fill(ctx context.Context, db *server.Database, n int) error {
	return batches(n, 10_000, func(first, last int) error {
		tasks := make([]river.InsertManyParams, 0, last-first+1)
		for i := first; i <= last; i++ {
			tasks = append(tasks, river.InsertManyParams{Args: riverTask{Sent: int64(i)}})
		}
		_, err := s.client.InsertManyFast(ctx, tasks)
		return err
	})
}

func (s *riverSystem) Enqueue(ctx context.Context, conn *pgx.Conn, sent int64) error {
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		_, err := s.client.InsertTx(ctx, tx, riverTask{Sent: sent}, nil)
		return err
	})
}

func (s *riverSystem) Job(opts WorkerOptions) fleet.Job {
	return opts.job(fleet.River, s.setting, riverSlots[s.setting])
}

func (s *riverSystem) Unfinished(ctx context.Context, db *server.Database) (int, error) {
	return server.Scan[int](ctx, db, `select count(*) from river_job where state <> 'completed'`)
}

// riverWorker has the handler of a worker process.
type riverWorker struct {
	river.WorkerDefaults[riverTask]
	rec *fleet.Recorder
}

func (w *riverWorker) Work(ctx context.Context, job *river.Job[riverTask]) error {
	return w.rec.Handle(ctx, fleet.Payload(job.Args), job.Attempt)
}

func riverMain(ctx context.Context, job fleet.Job, rec *fleet.Recorder, log *slog.Logger) error {
	pool, err := pgxpool.New(ctx, job.URL)
	if err != nil {
		return err
	}
	defer pool.Close()
	config := riverConfig(job.Setting, log)
	config.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: job.Slots}}
	config.Workers = river.NewWorkers()
	river.AddWorker(config.Workers, &riverWorker{rec: rec})
	client, err := river.NewClient(riverpgxv5.New(pool), config)
	if err != nil {
		return err
	}
	if err := client.Start(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	rec.Ready()
	<-ctx.Done()
	return client.Stop(context.WithoutCancel(ctx)) // the parent's patience bounds it
}
