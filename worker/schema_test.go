package worker_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/migrations"
	"github.com/pgwake/pgwake/registry"
	"github.com/pgwake/pgwake/worker"
)

// runSchema migrates a schema, starts a worker in it and enqueues one task, whose run sends the schema's name.
func runSchema(t *testing.T, url, schema string, ran chan<- string) {
	t.Helper()
	if _, err := migrations.Up(t.Context(), url, schema); err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	reg := registry.New()
	client, err := pgwake.NewClient(t.Context(), pool, pgwake.ClientConfig{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{TB: t, pool: pool, client: client, reg: reg}
	b.handle("job", nil, func(ctx context.Context, run *pgwake.Run) error {
		tx, err := pool.Begin(ctx)
		if err != nil {
			return err
		}
		defer tx.Rollback(ctx)
		if err := run.CompleteTx(ctx, tx); err != nil {
			return err
		}
		ran <- schema
		return tx.Commit(ctx)
	})
	b.start(worker.Config{Schema: schema, Logger: quiet()})
	b.await(b.enqueue("job", nil), pgwake.Succeeded)
}
