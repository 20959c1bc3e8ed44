package doctor

import (
	"context"
	"fmt"
)

// workers: who works, and who has stopped saying so.
func (e *exam) workers(ctx context.Context) (Finding, error) {
	w, err := row[struct {
		Live, Slots, Running, Draining int
		Silent                         []string
		Oldest                         *float64
	}](ctx, e, fmt.Sprintf(`
		select count(*) filter (where live), coalesce(sum(slots) filter (where live), 0), coalesce(sum(running) filter (where live), 0),
		       count(*) filter (where live and draining),
		       coalesce(array_agg(name order by seen_at) filter (where not live), '{}'),
		       extract(epoch from now() - min(seen_at) filter (where not live))::float8
		from (select *, seen_at > now() - make_interval(secs => $1::float8) as live from %s) as w`, e.name("workers")), e.limits.alive.Seconds())
	if err != nil {
		return Finding{}, err
	}
	text := fmt.Sprintf("%s alive, %d of %d slots taken", plural(w.Live, "worker is", "workers are"), w.Running, w.Slots)
	if w.Draining > 0 {
		text += fmt.Sprintf(", %d draining", w.Draining)
	}
	switch {
	case len(w.Silent) > 0:
		return Finding{
			Status: Warn,
			Text:   fmt.Sprintf("%s; no report for up to %s from %s: killed, stopped or cut off", text, seconds(span(*w.Oldest)), some(w.Silent)),
			Do:     fmt.Sprintf("see to these processes; rows of dead ones go by themselves after a day, or: delete from %s where seen_at < now() - interval '%d s'", e.name("workers"), int(e.limits.alive.Seconds())),
		}, nil
	case w.Live == 0:
		return Finding{Status: Warn, Text: "no worker is alive: tasks wait", Do: "start a worker"}, nil
	}
	return Finding{Status: OK, Text: text}, nil
}

// dueSQL lists the types that have queued tasks due for longer than $1 seconds: how many, up to 10,000, how late the first
// is, and how many live workers have the type, and how many of their slots are free. It goes from type to type through the
// due index, whatever the size of the backlog. A worker's own count of taken slots may be 10 s old, so its leases count, too.
const dueSQL = `
with recursive types as (
  (select type from %[1]s where status = 'queued' order by type limit 1)
  union all
  select (select t.type from %[1]s as t where t.status = 'queued' and t.type > types.type order by t.type limit 1)
  from types where types.type is not null
),
live as (
  select types, slots - greatest(running, (select count(*) from %[1]s as t where t.status = 'running' and t.holder = w.id)) as free
  from %[2]s as w
  where seen_at > now() - make_interval(secs => $2::float8) and not draining
)
select y.type, d.n, extract(epoch from now() - d.first)::float8, l.workers, l.free
from types as y
cross join lateral (
  select count(*), min(retry_at)
  from (
    select retry_at from %[1]s as t
    where t.status = 'queued' and t.type = y.type and t.retry_at < now() - make_interval(secs => $1::float8)
    limit 10000
  ) as due
) as d(n, first)
cross join lateral (
  select count(*), coalesce(sum(greatest(free, 0)), 0) from live where y.type = any (live.types)
) as l(workers, free)
where y.type is not null and d.n > 0
order by d.first`

type dueType struct {
	Type    string
	Count   int
	Age     float64
	Workers int
	Free    int
}

func (d dueType) String() string {
	count := fmt.Sprint(d.Count)
	if d.Count >= 10_000 {
		count = "10,000 or more"
	}
	return fmt.Sprintf("%s of type %q, the oldest for %s", count, d.Type, seconds(span(d.Age)))
}

func (e *exam) due(ctx context.Context, since float64) ([]dueType, error) {
	return rows[dueType](ctx, e, fmt.Sprintf(dueSQL, e.name("tasks"), e.name("workers")), since, e.limits.alive.Seconds())
}

// types: whether somebody runs what is enqueued.
func (e *exam) types(ctx context.Context) (Finding, error) {
	list, err := e.due(ctx, 0)
	if err != nil {
		return Finding{}, err
	}
	var orphans []string
	for _, d := range list {
		if d.Workers == 0 {
			orphans = append(orphans, d.String())
		}
	}
	if len(orphans) > 0 {
		return Finding{
			Status: Warn, Text: "due, and no live worker has the type: " + some(orphans),
			Do: "register a handler for the type in a worker, or correct its name where it is enqueued; pgwake workers shows who has what",
		}, nil
	}
	return Finding{Status: OK, Text: "every type with due tasks has a worker"}, nil
}

// backlog: whether due tasks wait beside free slots.
func (e *exam) backlog(ctx context.Context) (Finding, error) {
	list, err := e.due(ctx, e.limits.late.Seconds())
	if err != nil {
		return Finding{}, err
	}
	var waiting, busy []string
	status := Warn
	for _, d := range list {
		switch {
		case d.Free > 0:
			waiting = append(waiting, d.String())
			if span(d.Age) > 6*e.limits.late {
				status = Fail
			}
		case d.Workers > 0:
			busy = append(busy, d.String())
		}
	}
	switch {
	case len(waiting) > 0:
		return Finding{
			Status: status, Text: "due, and not run although workers of the type have free slots: " + some(waiting),
			Do: "see the checks listener, triggers and gate, and the workers' logs, and whether the type has slots of its own that are all taken; who locks the rows: select pid, state, query from pg_stat_activity where xact_start < now() - interval '10 s'",
		}, nil
	case len(busy) > 0:
		return Finding{Status: OK, Text: "all slots are taken; waiting for one: " + some(busy)}, nil
	}
	return Finding{Status: OK, Text: fmt.Sprintf("no task has been due for more than %s", seconds(e.limits.late))}, nil
}
