package notify

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// judgeSQL judges the keepers of buckets, and ends the sessions of those that have not stirred since an instant. A session
// that waits for its client has state_change at the end of its last statement. What another role does is not seen.
const judgeSQL = `
with keeper as (
  select
    l.objid::bigint as key,
    a.pid,
    a.state is null as hidden,
    a.state like 'idle%' and a.state_change < clock_timestamp() - $3::interval as silent,
    a.state not like 'idle%' and a.state_change < clock_timestamp() - interval '1 s' as hangs
  from pg_locks as l
  join pg_stat_activity as a using (pid)
  where l.locktype = 'advisory' and l.granted and l.mode = 'ExclusiveLock'
    and l.database = (select oid from pg_database where datname = current_database())
    and l.classid::bigint = $1::integer::bigint & 4294967295 and l.objsubid = 2
    and l.objid::bigint = any ($2::bigint[])
    and a.pid <> pg_backend_pid()
    and (not $5 or not exists (
      select from pg_locks as g
      where g.locktype = 'advisory' and g.granted and g.mode = 'ExclusiveLock' and g.database = l.database
        and g.classid = l.classid and g.objid::bigint = l.objid::bigint - 1024 and g.objsubid = 2))
),
judged as (
  select k.pid, k.hidden, k.hangs, (coalesce(k.silent, false) or $4) and pg_terminate_backend(k.pid) as ended
  from unnest($2::bigint[]) as u(key)
  left join keeper as k using (key)
  where k.pid is not null or not $5
)
select
  coalesce(bool_or(pid is null or hangs or ended), false),
  coalesce(bool_or(ended), false),
  coalesce(bool_or(hidden), false)
from judged`

// JudgeOptions say when a keeper's session is ended.
type JudgeOptions struct {
	// Silent is for how long it has done nothing, although it was rung or had a timer set.
	Silent time.Duration
	// Force ends it whatever it has done.
	Force bool
	// Disarmed judges those alone who are not armed, and so should look again and again.
	Disarmed bool
}

// Judgement is what [Gate.Judge] found.
type Judgement struct {
	// Dead: a topic has no keeper, or its keeper's session hangs, or was ended.
	Dead bool
	// Ended: a session was ended. Its locks are free in a moment.
	Ended bool
	// Hidden: this role may not see what a keeper's session does.
	Hidden bool
}

// Judge finds out whether the topics have keepers that do their part, and ends the sessions of those that do not: their
// process is stopped or cut off. To see what a session does takes its role or pg_read_all_stats, to end it its role or
// pg_signal_backend; without the latter Judge fails when there is one to be ended.
func (g *Gate) Judge(ctx context.Context, conn *pgx.Conn, topics []string, opts JudgeOptions) (Judgement, error) {
	list, err := g.on(ctx, conn, topics)
	if err != nil {
		return Judgement{}, err
	}
	var keys []int64
	for _, b := range list {
		if g.kept[b] == nil {
			keys = append(keys, int64(b+keeperRange))
		}
	}
	var j Judgement
	if len(keys) == 0 {
		return j, nil
	}
	if err := conn.QueryRow(ctx, judgeSQL, g.oid, keys, opts.Silent, opts.Force, opts.Disarmed).Scan(&j.Dead, &j.Ended, &j.Hidden); err != nil {
		return Judgement{}, fmt.Errorf("judge keepers: %w", err)
	}
	return j, nil
}
