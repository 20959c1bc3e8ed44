package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgwake/pgwake/worker"
)

// What the parent tells a worker process. The address may hold a password, which arguments would show to everybody.
const (
	urlVariable   = "PGWAKE_DEMO_DATABASE_URL"
	nameVariable  = "PGWAKE_DEMO_WORKER"
	slotsVariable = "PGWAKE_DEMO_SLOTS"
)

const (
	workerConnections = 2 + 4 // spare ones of the handlers' pool, and the worker's own
	drainTimeout      = 3 * time.Second
)

var errParentGone = errors.New("the demo has ended")

// Work is a worker process: it runs tasks until ctx or stdin ends.
func Work(ctx context.Context, stdin io.Reader, stderr io.Writer) error {
	name := os.Getenv(nameVariable)
	slots, err := strconv.Atoi(os.Getenv(slotsVariable))
	if err != nil || name == "" {
		return errors.New("this command is for the demo's own use: run 'pgwake demo'")
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go func() { // ends with the parent, which holds the other end, or with this process
		_, _ = io.Copy(io.Discard, stdin)
		stop(errParentGone)
	}()

	pool, err := openPool(ctx, os.Getenv(urlVariable), "pgwake "+name+" handlers", slots+2)
	if err != nil {
		return err
	}
	defer pool.Close()
	c, err := newCrawler(ctx, pool, name, slots)
	if err != nil {
		return err
	}
	defer c.fetcher.close()
	w, err := worker.New(pool, c.types, worker.Config{
		Name: name, Slots: slots, Lease: lease, Sweep: sweep, DrainTimeout: drainTimeout,
		Logger: slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return err
	}
	return w.Run(ctx)
}

func openPool(ctx context.Context, url, name string, connections int) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("parse connection string: %w", err)
	}
	config.MaxConns = int32(connections)
	config.ConnConfig.RuntimeParams["application_name"] = name
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("open pool: %w", err)
	}
	return pool, nil
}
