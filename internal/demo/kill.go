package demo

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pgwake/pgwake/internal/wait"
)

const goneLimit = 2 * time.Second // for a dead worker's connections; leases must not come near their end

// casualty is a worker that was killed while it was running tasks.
type casualty struct {
	Killed
	at   time.Time // of the kill
	held []uuid.UUID
}

// holdSQL locks tasks of the worker that runs the most, so that it cannot settle them. Those that it is settling already
// are left out. The index on running tasks serves it.
const holdSQL = `
select t.worker
from pgwake.tasks as t
where t.status = 'running'
  and t.worker = (
    select r.worker
    from pgwake.tasks as r
    where r.status = 'running'
    group by r.worker
    order by count(*) desc, r.worker
    limit 1)
for update skip locked`

// kill ends the worker that runs the most tasks by SIGKILL. Some of its tasks are locked meanwhile, so it is certain that
// it does not settle them. It kills nobody if nobody runs anything at this instant.
func (d *demo) kill(ctx context.Context) error {
	c := &casualty{}
	for wanted := d.cfg.Slots; wanted > 0 && c.Worker == ""; wanted-- { // as many as can be had
		if err := pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error { return d.strike(ctx, tx, c, wanted) }); err != nil {
			return err
		}
		if err := wait.For(ctx, awaitEvery); err != nil {
			return err
		}
	}
	if c.Worker == "" {
		return nil
	}
	// What the worker had sent is done or undone when its connections are gone. What it still holds then, others must recover.
	err := await(ctx, d.pool, "the connections of "+c.Worker+" to end", goneLimit, `
		select count(*) = 0 from pg_stat_activity where datname = current_database() and application_name = 'pgwake ' || $1`, c.Worker)
	if err != nil {
		return err
	}
	rows, _ := d.pool.Query(ctx, `select id from pgwake.tasks where status = 'running' and worker = $1`, c.Worker)
	if c.held, err = pgx.CollectRows(rows, pgx.RowTo[uuid.UUID]); err != nil {
		return fmt.Errorf("list its tasks: %w", err)
	}
	if err := d.pool.QueryRow(ctx, `select count(*) from demo.page`).Scan(&c.AtPages); err != nil {
		return fmt.Errorf("count pages: %w", err)
	}
	c.Running = len(c.held)
	d.killed = c
	return nil
}

// strike kills the busiest worker if that many of its tasks can be locked.
func (d *demo) strike(ctx context.Context, tx pgx.Tx, c *casualty, wanted int) error {
	rows, _ := tx.Query(ctx, holdSQL)
	holders, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(holders) < wanted {
		return err
	}
	i := slices.IndexFunc(d.fleet, func(p *process) bool { return p.name == holders[0] })
	if i < 0 {
		return fmt.Errorf("tasks are held by %q, which is no worker of this demo", holders[0])
	}
	c.Worker, c.PID, c.at = d.fleet[i].name, d.fleet[i].cmd.Process.Pid, time.Now()
	d.fleet[i].kill()
	return nil
}

// recoveredSQL tells when others began the runs that settled the tasks of a dead worker. Parameters: ids, time of the
// kill, name of the worker.
const recoveredSQL = `
select
  count(distinct e.task_id),
  coalesce(extract(epoch from min(e.started) - $2::timestamptz)::float8, 0),
  coalesce(extract(epoch from max(e.started) - $2::timestamptz)::float8, 0)
from demo.effect as e
where e.task_id = any ($1)
  and e.worker <> $3`

// proveRecovery reports what became of the killed worker's tasks.
func (d *demo) proveRecovery(ctx context.Context, r *Report) error {
	if d.cfg.NoKill {
		return nil
	}
	if d.killed == nil {
		r.problem("no worker was killed: none was running a task at the half-way mark; try a larger site or --max-pages")
		return nil
	}
	k := &d.killed.Killed
	err := d.pool.QueryRow(ctx, recoveredSQL, d.killed.held, d.killed.at, k.Worker).Scan(&k.Recovered, &k.FirstSeconds, &k.LastSeconds)
	if err != nil {
		return fmt.Errorf("read recovered tasks: %w", err)
	}
	r.Killed = k
	if k.Running == 0 {
		r.problem("%s was running no task when it was killed", k.Worker)
	}
	if k.Recovered < k.Running {
		r.problem("%d of the %d tasks of the killed %s were not recovered", k.Running-k.Recovered, k.Running, k.Worker)
	}
	return nil
}
