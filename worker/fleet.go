package worker

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgwake/pgwake/internal/sqlstate"
	"github.com/pgwake/pgwake/internal/wait"
)

// registerSQL announces the worker's types and the worker itself. Types are taken in order, so that workers that start
// together do not deadlock.
const registerSQL = `
with types as (
  insert into %s as t (type, max_attempts, timeout_seconds)
  select * from unnest(@types::text[], @attempts::integer[], @timeouts::double precision[]) as r(type, max_attempts, timeout) order by 1
  on conflict (type) do update set
    max_attempts = excluded.max_attempts, timeout_seconds = excluded.timeout_seconds, seen_at = now()
)
insert into %s (id, name, version, types, slots)
values (@id, @name, @version, @types, @slots)`

func (w *Worker) register(ctx context.Context, conn *pgx.Conn) error {
	names := make([]string, 0, len(w.types))
	var attempts []int
	var timeouts []float64
	for name, t := range w.types {
		names = append(names, name)
		attempts = append(attempts, t.MaxAttempts)
		timeouts = append(timeouts, t.Timeout.Seconds())
	}
	_, err := conn.Exec(ctx, fmt.Sprintf(registerSQL, w.name("task_types"), w.name("workers")), pgx.NamedArgs{
		"types": names, "attempts": attempts, "timeouts": timeouts,
		"id": w.id, "name": w.config.Name, "version": version(), "slots": w.slots(),
	})
	if err != nil {
		return fmt.Errorf("register worker: %w", err)
	}
	return nil
}

// reportInterval is the longest time between two reports of a worker.
const reportInterval = 10 * time.Second

// report renews the worker's row at every other sweep, so that people see who is there and what they do. It ends with
// working, after saying that the worker drains.
func (w *Worker) report(working context.Context) {
	state := stateLog{log: w.log, what: "worker row"}
	ctx, cancel := wait.Outlast(working, stopGrace)
	defer cancel()
	update := func(draining bool) {
		state.note(w.claims.do(ctx, statementTimeout, func(ctx context.Context, conn *pgx.Conn) error {
			return w.reportOnce(ctx, conn, draining)
		}))
	}
	for wait.For(working, time.Duration(float64(min(2*w.config.Sweep, reportInterval))*(0.9+0.2*rand.Float64()))) == nil {
		update(false)
	}
	update(true)
}

// reportOnce renews the worker's row, and counts the fleet.
func (w *Worker) reportOnce(ctx context.Context, conn *pgx.Conn, draining bool) error {
	var fleet int64
	err := conn.QueryRow(ctx, `
		with me as (update `+w.name("workers")+` set seen_at = now(), running = $2, draining = $3 where id = $1)
		select count(*) from `+w.name("workers")+` where seen_at > now() - interval '1 minute'`,
		w.id, w.running(), draining).Scan(&fleet)
	if err == nil {
		w.swept.Store(time.Now().UnixNano())
		w.fleet.Store(fleet)
	}
	return err
}

func (w *Worker) unregister(deadline time.Time) {
	if !w.claims.isOpen() {
		return // no database, no goodbye
	}
	err := w.claims.do(context.Background(), max(time.Until(deadline), lastChance), func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `delete from `+w.name("workers")+` where id = $1`, w.id)
		return err
	})
	if err != nil {
		w.log.Warn("worker's row not removed", "error", err)
	}
}

const (
	historyInterval = time.Hour
	// forgetWorkers is after how long a worker that has not reported is taken off the table.
	forgetWorkers = 24 * time.Hour
)

// keepHistory makes the archive's partitions ahead, drops those past their time and forgets dead workers, once an hour.
// It ends with ctx.
func (w *Worker) keepHistory(ctx context.Context) {
	state := stateLog{log: w.log, what: "history"}
	for pause := time.Duration(rand.Float64() * float64(time.Minute)); wait.For(ctx, pause) == nil; pause = historyInterval {
		state.note(w.maintain(ctx))
	}
}

// maintain runs on a connection of its own: detaching a partition waits for whoever is reading it.
func (w *Worker) maintain(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	conn, err := w.history.Connect(ctx)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = conn.Close(closing)
	}()
	if _, err := conn.Exec(ctx, "select "+w.name("ensure_partitions")+"()"); err != nil {
		return fmt.Errorf("make partitions: %w", err)
	}
	if _, err := conn.Exec(ctx, "delete from "+w.name("workers")+" where seen_at < now() - $1::interval", forgetWorkers); err != nil {
		return fmt.Errorf("forget workers: %w", err)
	}
	if w.config.History < 0 {
		return nil
	}
	return dropPartitions(ctx, conn.Conn, w.config.Schema, w.config.History)
}

// partitionsSQL lists the partitions of the archive that end before @keep ago, and those whose detaching was left half
// done. It takes the bound from the name, which ensure_partitions gave it.
const partitionsSQL = `
select c.relname, i.inhdetachpending
from pg_inherits as i
join pg_class as c on c.oid = i.inhrelid
where i.inhparent = @archive::regclass
  and c.relname ~ '^task_archive_[0-9]{8}$'
  and (i.inhdetachpending
    or to_date(right(c.relname, 8), 'YYYYMMDD') + 1 <= ((clock_timestamp() - @keep::interval) at time zone 'utc')::date)
order by 1`

// dropPartitions takes old days off the archive: detached concurrently first, which waits for readers without anybody
// waiting behind it, then dropped. What cannot be had now is left for the next time.
func dropPartitions(ctx context.Context, conn *pgx.Conn, schema string, keep time.Duration) error {
	archive := pgx.Identifier{schema, "task_archive"}.Sanitize()
	rows, _ := conn.Query(ctx, partitionsSQL, pgx.NamedArgs{"archive": archive, "keep": keep})
	type partition struct {
		Name    string
		Pending bool
	}
	old, err := pgx.CollectRows(rows, pgx.RowToStructByPos[partition])
	if err != nil {
		return fmt.Errorf("list partitions: %w", err)
	}
	for _, p := range old {
		part := pgx.Identifier{schema, p.Name}.Sanitize()
		how := " concurrently"
		if p.Pending {
			how = " finalize"
		}
		_, err := conn.Exec(ctx, "alter table "+archive+" detach partition "+part+how)
		if err == nil {
			_, err = conn.Exec(ctx, "drop table "+part)
		}
		switch {
		case sqlstate.LockTimeout(err), sqlstate.Missing(err):
			continue // somebody reads it, or another worker was faster
		case err != nil:
			return fmt.Errorf("drop partition %s: %w", p.Name, err)
		}
	}
	return nil
}
