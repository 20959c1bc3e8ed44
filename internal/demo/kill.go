package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

const (
	quietPoll  = 2 * time.Millisecond
	quietLooks = 3                      // in a row
	quietLimit = 250 * time.Millisecond // leases must not come near their end
)

// casualty is a worker that was killed while it was running tasks.
type casualty struct {
	name  string
	pid   int
	pages int       // stored by then
	at    time.Time // of the kill
	held  []uuid.UUID
}

// holderSQL finds the worker that runs the most tasks. The index on running tasks serves it.
const holderSQL = `
select t.worker
from pgwake.tasks as t
where t.status = 'running'
group by t.worker
order by count(*) desc, t.worker
limit 1`

// strike kills the worker that runs the most tasks. To be certain that it runs some it stops all workers where they are,
// waits until the server has done what was sent, and looks. It returns nil, and lets all go on, if nobody runs anything.
func (d *demo) strike(ctx context.Context) (*casualty, error) {
	for _, p := range d.fleet.processes {
		p.freeze()
	}
	defer func() {
		for _, p := range d.fleet.processes {
			p.thaw()
		}
	}()
	if err := d.quiet(ctx); err != nil {
		return nil, err
	}
	var name string
	if err := d.pool.QueryRow(ctx, holderSQL).Scan(&name); errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("look who runs tasks: %w", err)
	}
	victim := d.fleet.find(name)
	if victim == nil {
		return nil, fmt.Errorf("tasks are held by %q, which is no worker of this demo", name)
	}

	c := &casualty{name: name, pid: victim.pid(), at: time.Now()}
	victim.kill()
	if err := d.quiet(ctx); err != nil {
		return nil, err
	}
	rows, _ := d.pool.Query(ctx, `select t.id from pgwake.tasks as t where t.status = 'running' and t.worker = $1`, name)
	var err error
	if c.held, err = pgx.CollectRows(rows, pgx.RowTo[uuid.UUID]); err != nil {
		return nil, fmt.Errorf("list the killed worker's tasks: %w", err)
	}
	if err := d.pool.QueryRow(ctx, `select count(*) from demo.page`).Scan(&c.pages); err != nil {
		return nil, fmt.Errorf("count pages: %w", err)
	}
	return c, nil
}

// busySQL counts the statements of workers that the server has not finished. One that waits for a lock waits for a
// process that is stopped, and will not finish.
const busySQL = `
select count(*)
from pg_stat_activity as a
where a.datname = current_database()
  and a.application_name like 'pgwake worker-%'
  and a.state = 'active'
  and a.wait_event_type is distinct from 'Lock'`

// quiet waits until the server has finished what the stopped workers had sent, for a moment at most.
func (d *demo) quiet(ctx context.Context) error {
	limit := time.Now().Add(quietLimit)
	for looks := 0; looks < quietLooks && time.Now().Before(limit); looks++ {
		if err := sleep(ctx, quietPoll); err != nil {
			return err
		}
		var busy int
		if err := d.pool.QueryRow(ctx, busySQL).Scan(&busy); err != nil {
			return fmt.Errorf("look whether workers are quiet: %w", err)
		}
		if busy > 0 {
			looks = -1
		}
	}
	return nil
}

// recovery is what became of the killed worker's tasks.
type recovery struct {
	recovered   int           // run again by others
	own         int           // settled by a commit that the server had already
	first, last time.Duration // from the kill to the start of the run that settled it
}

// recoveredSQL lists who settled the tasks of a dead worker. Parameter: ids.
const recoveredSQL = `
select e.worker, e.started
from demo.effect as e
where e.task_id = any ($1)
order by e.started`

func (d *demo) recovery(ctx context.Context, c *casualty) (*recovery, error) {
	r := &recovery{}
	var worker string
	var started time.Time
	rows, _ := d.pool.Query(ctx, recoveredSQL, c.held)
	_, err := pgx.ForEachRow(rows, []any{&worker, &started}, func() error {
		if worker == c.name {
			r.own++
			return nil
		}
		r.recovered++
		r.last = started.Sub(c.at)
		if r.recovered == 1 {
			r.first = r.last
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read recovered tasks: %w", err)
	}
	return r, nil
}
