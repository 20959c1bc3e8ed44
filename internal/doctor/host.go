package doctor

import (
	"context"
	"fmt"
	"strings"
)

// notifications: how full the queue is in which notifications wait for the slowest listener. When it is full, commits
// that notify fail.
func (e *exam) notifications(ctx context.Context) (Finding, error) {
	q, err := row[struct{ Usage float64 }](ctx, e, `select pg_notification_queue_usage()`)
	if err != nil {
		return Finding{}, err
	}
	text := fmt.Sprintf("%.2g %% of the notification queue is in use", 100*q.Usage)
	if q.Usage <= e.limits.queue {
		return Finding{Status: OK, Text: text}, nil
	}
	// Which sessions listen is not to be seen. One that does and is in a transaction reads nothing.
	list, err := rows[struct {
		PID               int
		Application, What string
		Age               float64
	}](ctx, e, `
		select pid, coalesce(application_name, ''), state, extract(epoch from clock_timestamp() - xact_start)::float8
		from pg_stat_activity
		where xact_start < clock_timestamp() - interval '1 s' and pid <> pg_backend_pid() and backend_type = 'client backend'
		order by xact_start
		limit 3`)
	if err != nil {
		return Finding{}, err
	}
	status := Warn
	if q.Usage > 5*e.limits.queue {
		status = Fail
	}
	text += ": when it is full, commits that notify fail; a session that listens and is in a transaction holds it"
	do := "end it: log lines \"NOTIFY queue is\" in the server's log name it"
	if len(list) > 0 {
		var who []string
		for _, s := range list {
			who = append(who, fmt.Sprintf("%s (pid %d, %s, for %s)", s.Application, s.PID, s.What, seconds(span(s.Age))))
		}
		text += "; the oldest transactions: " + strings.Join(who, ", ")
		do = fmt.Sprintf("end the one that listens, most likely: select pg_terminate_backend(%d)", list[0].PID)
	}
	return Finding{Status: status, Text: text, Do: do}, nil
}

// connections: whether there is room for more.
func (e *exam) connections(ctx context.Context) (Finding, error) {
	c, err := row[struct{ Used, Allowed int }](ctx, e, `
		select (select count(*) from pg_stat_activity where backend_type = 'client backend' or backend_type is null and datid is not null)::int,
		       current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
		         - coalesce(current_setting('reserved_connections', true), '0')::int`)
	if err != nil {
		return Finding{}, err
	}
	free := c.Allowed - c.Used
	text := fmt.Sprintf("%d of %d in use", c.Used, c.Allowed)
	do := "raise max_connections, or make pools smaller; a worker has 2 of its own while idle and 4 while busy, beside its handlers' pool"
	switch {
	case free < e.limits.headroom:
		return Finding{Status: Fail, Text: fmt.Sprintf("%s, %d left: a worker that becomes busy, or reconnects, may be refused", text, max(free, 0)), Do: do}, nil
	case free*10 < c.Allowed:
		return Finding{Status: Warn, Text: text, Do: do}, nil
	}
	return Finding{Status: OK, Text: text}, nil
}

// settings: those of the server that lose data or make commits hang or sessions end.
func (e *exam) settings(ctx context.Context) (Finding, error) {
	s, err := row[struct {
		Fsync, FullPages, Standbys, Commit, IdleSession string
		Sync                                            int
	}](ctx, e, `
		select current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_standby_names'),
		       current_setting('synchronous_commit'), current_setting('idle_session_timeout'),
		       (select count(*) from pg_stat_replication where state = 'streaming')::int`)
	if err != nil {
		return Finding{}, err
	}
	var wrong, do []string
	status := OK
	if s.Standbys != "" && s.Commit != "off" && s.Commit != "local" && s.Sync == 0 {
		status = Fail
		wrong = append(wrong, fmt.Sprintf("synchronous_standby_names is %s and no standby is connected: commits hang, and hold the gate open", literal(s.Standbys)))
		do = append(do, "start the standby, or alter system set synchronous_standby_names = ''; select pg_reload_conf()")
	}
	if s.Fsync == "off" {
		status = worse(status, Warn)
		wrong = append(wrong, "fsync is off: a crash of the machine loses everything")
		do = append(do, "alter system set fsync = on; select pg_reload_conf()")
	}
	if s.FullPages == "off" {
		status = worse(status, Warn)
		wrong = append(wrong, "full_page_writes is off: a crash of the machine may leave torn pages")
		do = append(do, "alter system set full_page_writes = on; select pg_reload_conf()")
	}
	if s.IdleSession != "0" {
		status = worse(status, Warn)
		wrong = append(wrong, "idle_session_timeout is "+s.IdleSession+": it ends listeners and keepers, which are idle by nature")
		do = append(do, "set it to 0 for the workers' role: alter role … set idle_session_timeout = 0")
	}
	if status == OK {
		return Finding{Status: OK, Text: "none that hurts"}, nil
	}
	return Finding{Status: status, Text: strings.Join(wrong, "; "), Do: strings.Join(do, "; ")}, nil
}
