package worker_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/internal/pgtest"
	"github.com/pgwake/pgwake/migrations"
	"github.com/pgwake/pgwake/worker"
)

// additive is a later version of the schema that programs of this one can work on.
const additive = `
	set local search_path to pgwake, pg_temp;
	alter table tasks add column tenant text not null default 'none';
	alter table task_archive add column tenant text;
	create index tasks_tenant on tasks (tenant);
	drop view all_tasks;
	create view all_tasks as
		select id, type, status, true as live, retry_at, false as paused, due_at, priority, attempt, 4 as max_attempts, fence,
			worker, unique_key, payload, 0 as payload_bytes, metadata, created_at, started_at, finished_at, last_error, errors, tenant
		from tasks
		union all
		select id, type, status, false, null, false, due_at, priority, attempt, 4, fence,
			worker, unique_key, payload, payload_bytes, metadata, created_at, started_at, finished_at, last_error, errors, tenant
		from task_archive;
	insert into schema_migrations (version_id, is_applied) values (999, true);`

// An upgrade of the schema does not disturb the workers and clients of the version before it.
func TestUpgradeUnderRunningWorkers(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var ran atomic.Int64
	b.handle("job", nil, func(context.Context, *pgwake.Run) error {
		ran.Add(1)
		return nil
	})
	b.start(worker.Config{Lease: time.Second})

	stop, fed := make(chan struct{}), make(chan int64)
	go func() { // ends when told, and says how many it enqueued
		var n int64
		for {
			select {
			case <-stop:
				fed <- n
				return
			default:
			}
			if _, err := b.client.Enqueue(context.Background(), pgwake.Raw{Type: "job"}, nil); err != nil {
				t.Errorf("enqueue during the upgrade: %v", err)
			}
			n++
		}
	}()
	pgtest.WaitFor(t, 20*time.Second, "work under way", func() bool { return ran.Load() > 100 })
	b.exec("begin;" + additive + "commit")
	upgraded := ran.Load()
	pgtest.WaitFor(t, 20*time.Second, "work goes on", func() bool { return ran.Load() > upgraded+100 })
	close(stop)
	enqueued := <-fed
	pgtest.WaitFor(t, 20*time.Second, "all done", func() bool { return ran.Load() >= enqueued })

	// Programs of this version that start now work, too.
	if err := migrations.Check(t.Context(), b.pool, pgwake.DefaultSchema); err != nil {
		t.Error(err)
	}
	late := benchOn(t, b.pool)
	late.handle("late", nil, func(context.Context, *pgwake.Run) error { return nil })
	late.start(worker.Config{})
	late.await(late.enqueue("late", nil), pgwake.Succeeded)

	// Until a version says that they no longer can.
	b.exec(`create or replace function pgwake.schema_compatible_from() returns integer language sql immutable as 'select 999'`)
	w, err := worker.New(b.pool, b.reg, worker.Config{Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	var version *migrations.VersionError
	if err := w.Run(t.Context()); !errors.As(err, &version) || !strings.Contains(err.Error(), "newer version of pgwake") {
		t.Errorf("on an incompatible schema: %v", err)
	}
}

// A schema that is too old, or not there, is refused with the command that helps.
func TestOldSchemaIsRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.handle("job", nil, func(context.Context, *pgwake.Run) error { return nil })
	for version, config := range map[string]worker.Config{"none": {Schema: "elsewhere"}, "older": {}} {
		config.Logger = quiet()
		if version == "older" {
			b.exec(`delete from pgwake.schema_migrations where version_id > 1`)
		}
		w, err := worker.New(b.pool, b.reg, config)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "pgwake migrate up") {
			t.Errorf("schema %s: worker says %v", version, err)
		}
		if _, err := pgwake.NewClient(t.Context(), b.pool, pgwake.ClientConfig{Schema: config.Schema}); err == nil || !strings.Contains(err.Error(), "pgwake migrate up") {
			t.Errorf("schema %s: client says %v", version, err)
		}
	}
}
