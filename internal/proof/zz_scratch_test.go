//go:build unix

package proof_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/internal/pgtest"
	"github.com/pgwake/pgwake/worker"
)

func TestScratchPlans(t *testing.T) {
	if os.Getenv("SCRATCH") == "" {
		t.Skip()
	}
	server := pgtest.Server(t)
	b := newBenchOn(t, migrated(t, server.URL("")))
	b.handle("burst", nil, func(context.Context, *pgwake.Run) error { return nil })
	config, err := pgxpool.ParseConfig(b.url)
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range map[string]string{"session_preload_libraries": "auto_explain", "auto_explain.log_min_duration": "30ms", "auto_explain.log_analyze": "on", "auto_explain.log_nested_statements": "off"} {
		config.ConnConfig.RuntimeParams[k] = v
	}
	trace := &trace{}
	config.ConnConfig.Tracer = trace
	pool, _ := pgxpool.NewWithConfig(t.Context(), config)
	t.Cleanup(pool.Close)
	b.exec(`alter table pgwake.tasks set (autovacuum_enabled = off)`)
	_, stop := b.start(pool, worker.Config{Sweep: farSweep})
	for i := range 15 {
		b.enqueue(1, pgwake.Raw{Type: "burst"})
		b.await(i+1, "tasks settled", `select count(*) from pgwake.task_archive`)
	}
	b.exec(`vacuum analyze pgwake.tasks`)
	trace.take()
	conn := b.connect()
	_, err = conn.CopyFrom(t.Context(), pgx.Identifier{"pgwake", "tasks"}, []string{"type"}, pgx.CopyFromSlice(50000, func(int) ([]any, error) {
		return []any{"burst"}, nil
	}))
	if err != nil {
		t.Fatal(err)
	}
	pause(8 * time.Second)
	stop()
	took := trace.take()
	for k, v := range took {
		fmt.Println(k, len(v), v, v[:min(len(v), 20)])
	}
	text, _ := os.ReadFile(server.LogFile())
	_ = os.WriteFile("/tmp/plans.log", text, 0o644)
}
