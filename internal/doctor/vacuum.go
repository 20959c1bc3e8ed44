package doctor

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// snapshotsSQL lists who keeps vacuum from removing dead rows of this database: who, since when as far as that is known,
// how many transactions back, and how to end it. A vacuum itself holds nothing back.
const snapshotsSQL = `
select 'session', format('%s (pid %s, role %s, %s)', coalesce(nullif(application_name, ''), 'a session without a name'), pid, usename, coalesce(state, 'state hidden')),
       extract(epoch from clock_timestamp() - xact_start)::float8,
       greatest(age(backend_xmin), age(backend_xid))::bigint,
       format('select pg_terminate_backend(%s)', pid)
from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid() and coalesce(backend_type, 'client backend') = 'client backend'
  and (backend_xmin is not null or backend_xid is not null)
union all
select 'prepared', format('prepared transaction %L of role %s', gid, owner),
       extract(epoch from clock_timestamp() - prepared)::float8, age(transaction)::bigint,
       format('commit prepared %1$L, or rollback prepared %1$L', gid)
from pg_prepared_xacts
where database = current_database()
union all
select 'slot', format('replication slot %s, %s', slot_name, case when active then 'in use' else 'not in use' end),
       null, age(xmin)::bigint,
       format('bring its reader back, or select pg_drop_replication_slot(%L)', slot_name)
from pg_replication_slots
where xmin is not null
union all
select 'standby', format('standby %s (pid %s), by hot_standby_feedback', application_name, pid),
       null, age(backend_xmin)::bigint,
       'end the long queries on the standby, or switch off its hot_standby_feedback'
from pg_stat_replication
where backend_xmin is not null
order by 4 desc`

type snapshot struct {
	Kind, Who    string
	Age          *float64
	Transactions *int64
	Do           string
}

// snapshots: who has held an old one for long. Dead rows then pile up before the next due task.
func (e *exam) snapshots(ctx context.Context) (Finding, error) {
	list, err := rows[snapshot](ctx, e, snapshotsSQL)
	if err != nil {
		return Finding{}, err
	}
	var who, do []string
	oldest := time.Duration(0)
	hidden := 0
	for _, s := range list {
		switch {
		case s.Age != nil && span(*s.Age) >= e.limits.snapshot:
			oldest = max(oldest, span(*s.Age))
			who = append(who, fmt.Sprintf("%s for %s", s.Who, seconds(span(*s.Age))))
		case s.Age == nil && s.Kind == "session":
			hidden++
			continue
		case s.Age == nil && s.Transactions != nil && *s.Transactions > e.limits.transients:
			who = append(who, fmt.Sprintf("%s, %d transactions back", s.Who, *s.Transactions))
		default:
			continue
		}
		do = append(do, s.Do)
	}
	note := ""
	if hidden > 0 {
		note = fmt.Sprintf("; the age of %s is hidden from this role: grant pg_read_all_stats", plural(hidden, "other one", "others"))
	}
	if len(who) == 0 {
		return Finding{Status: OK, Text: fmt.Sprintf("none is older than %s%s", seconds(e.limits.snapshot), note)}, nil
	}
	dead, err := e.deadRows(ctx)
	if err != nil {
		return Finding{}, err
	}
	status := Warn
	if oldest >= 60*e.limits.snapshot {
		status = Fail
	}
	return Finding{
		Status: status,
		Text:   fmt.Sprintf("an old one is held, and vacuum cannot remove what has died since (%d dead rows in the task table): claims get slower: %s%s", dead.Dead, some(who), note),
		Do:     strings.Join(do, "; "),
	}, nil
}

type tableState struct {
	Live, Dead int64
	Vacuumed   *float64
	Off        bool
	Autovacuum string
	Counts     string
}

func (e *exam) deadRows(ctx context.Context) (tableState, error) {
	oid, err := e.tasksOID(ctx)
	if err != nil {
		return tableState{}, err
	}
	return row[tableState](ctx, e, `
		select coalesce(s.n_live_tup, 0), coalesce(s.n_dead_tup, 0),
		       extract(epoch from now() - greatest(s.last_autovacuum, s.last_vacuum))::float8,
		       coalesce('autovacuum_enabled=false' = any (c.reloptions) or 'autovacuum_enabled=off' = any (c.reloptions), false),
		       current_setting('autovacuum'), current_setting('track_counts')
		from pg_class as c left join pg_stat_user_tables as s on s.relid = c.oid
		where c.oid = $1::oid`, oid)
}

// vacuum: whether dead rows are removed. Every task leaves some.
func (e *exam) vacuum(ctx context.Context) (Finding, error) {
	t, err := e.deadRows(ctx)
	if err != nil {
		return Finding{}, err
	}
	text := fmt.Sprintf("%d dead rows beside %d live ones in the task table", t.Dead, t.Live)
	if t.Vacuumed != nil {
		text += fmt.Sprintf(", vacuumed %s ago", seconds(span(*t.Vacuumed)))
	}
	switch {
	case t.Autovacuum == "off" || t.Counts == "off":
		return Finding{Status: Fail, Text: "autovacuum is off on this server: dead rows pile up and claims get slower; " + text, Do: "alter system set autovacuum = on; alter system set track_counts = on; select pg_reload_conf()"}, nil
	case t.Off:
		return Finding{Status: Fail, Text: "autovacuum is off for the task table: dead rows pile up and claims get slower; " + text, Do: fmt.Sprintf("alter table %s reset (autovacuum_enabled)", e.name("tasks"))}, nil
	case t.Dead > e.limits.dead+t.Live/5:
		return Finding{Status: Warn, Text: text + ": vacuum does not keep up", Do: fmt.Sprintf("see the check snapshots; more workers or a shorter nap for autovacuum: autovacuum_max_workers, autovacuum_naptime; now: vacuum %s", e.name("tasks"))}, nil
	}
	return Finding{Status: OK, Text: text}, nil
}
