package peer

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/bench/internal/fleet"
	"github.com/pgwake/pgwake/bench/internal/server"
)

// Pgwake is this project at its defaults: durable settlement, every finished task kept in the archive.
func Pgwake() System { return &pgwakeSystem{name: "pgwake"} }

// PgwakeNoHistory is this project with a task type of which no history is kept.
func PgwakeNoHistory() System {
	return &pgwakeSystem{name: "pgwake, no history", setting: fleet.NoHistory}
}

type pgwakeSystem struct {
	name    string
	setting string
	client  *pgwake.Client
}

func (s *pgwakeSystem) Name() string { return s.name }

func (s *pgwakeSystem) About() string {
	return "this tree; the worker's defaults (10 slots a core), enqueued in batches of 10,000 by EnqueueMany, singly by EnqueueTx on a connection"
}

func (s *pgwakeSystem) Missing(context.Context) string { return "" }

func (s *pgwakeSystem) KeepsHistory() bool { return s.setting != fleet.NoHistory }

// Prepare has nothing to make: databases of the bench are migrated.
func (s *pgwakeSystem) Prepare(ctx context.Context, db *server.Database) (err error) {
	s.client, err = pgwake.NewClient(ctx, nil, pgwake.ClientConfig{})
	return err
}

func (s *pgwakeSystem) Fill(ctx context.Context, db *server.Database, n int) error {
	return batches(n, 10_000, func(first, last int) error {
		tasks := make([]pgwake.NewTask, 0, last-first+1)
		for i := first; i <= last; i++ {
			tasks = append(tasks, pgwake.NewTask{Payload: fleet.Payload{Sent: int64(i)}})
		}
		_, err := s.client.EnqueueManyTx(ctx, db.Pool, tasks)
		return err
	})
}

func (s *pgwakeSystem) Enqueue(ctx context.Context, conn *pgx.Conn, sent int64) error {
	_, err := s.client.EnqueueTx(ctx, conn, fleet.Payload{Sent: sent}, nil)
	return err
}

func (s *pgwakeSystem) Job(opts WorkerOptions) fleet.Job {
	return opts.job(fleet.Worker, s.setting, 0)
}

func (s *pgwakeSystem) Unfinished(ctx context.Context, db *server.Database) (int, error) {
	return server.Scan[int](ctx, db, `select count(*) from `+server.Schema+`.tasks`)
}
