package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pgwake/pgwake/internal/wait"
)

// The ranges of the gate's locks, in units of 1,024 buckets: see package notify.
const (
	gateRange   = 0
	keeperRange = 1
	deputyRange = 2
)

// gateSQL lists the gate's locks: the task table's oid and a key, in two integers. A lock without a process belongs to a
// prepared transaction, which also holds the lock of its id.
const gateSQL = `
select (l.objid::bigint / 1024)::int, (l.objid::bigint % 1024)::int, coalesce(l.pid, 0), l.mode = 'ExclusiveLock', l.granted,
       l.virtualtransaction,
       coalesce(a.application_name, ''), coalesce(a.state, ''),
       extract(epoch from clock_timestamp() - a.state_change)::float8,
       extract(epoch from clock_timestamp() - a.xact_start)::float8,
       coalesce(x.gid, ''), extract(epoch from clock_timestamp() - x.prepared)::float8
from pg_locks as l
left join pg_stat_activity as a on a.pid = l.pid
left join pg_locks as i on l.pid is null and i.pid is null and i.locktype = 'transactionid' and i.virtualtransaction = l.virtualtransaction
left join pg_prepared_xacts as x on x.transaction = i.transactionid
where l.locktype = 'advisory' and l.objsubid = 2 and l.classid = $1::oid
  and l.database = (select oid from pg_database where datname = current_database())
order by 1, 2, 3`

// lock is one of the gate's.
type lock struct {
	Range, Bucket      int
	PID                int
	Exclusive, Granted bool
	Transaction        string
	Application, State string
	StateAge, XactAge  *float64 // nil: hidden from this role, or none
	GID                string
	PreparedAge        *float64
}

func (l lock) holder() string {
	if l.PID == 0 {
		return "prepared transaction " + literal(l.GID)
	}
	name := l.Application
	if name == "" {
		name = "a session without a name"
	}
	return fmt.Sprintf("%s (pid %d)", name, l.PID)
}

func (e *exam) locks(ctx context.Context) ([]lock, error) {
	oid, err := e.tasksOID(ctx)
	if err != nil {
		return nil, err
	}
	return rows[lock](ctx, e, gateSQL, oid)
}

// awaited are the types for which a live worker has a free slot, and so should be keeper.
type awaited struct {
	Type   string
	Bucket int
}

// keepers is who keeps which bucket.
type keepers struct {
	kept, armed map[int]lock
	deputies    int
	unkept      []string // types
}

func (e *exam) keepers(ctx context.Context) (*keepers, error) {
	types, err := rows[awaited](ctx, e, fmt.Sprintf(`
		select distinct y.type, hashtext(y.type) & 1023
		from %s as w, unnest(w.types) as y(type)
		where w.seen_at > now() - make_interval(secs => $1::float8) and not w.draining
		  and w.slots > greatest(w.running, (select count(*) from %s as t where t.status = 'running' and t.holder = w.id))
		order by 1`, e.name("workers"), e.name("tasks")), e.limits.alive.Seconds())
	if err != nil {
		return nil, err
	}
	locks, err := e.locks(ctx)
	if err != nil {
		return nil, err
	}
	k := &keepers{kept: map[int]lock{}, armed: map[int]lock{}}
	for _, l := range locks {
		if !l.Exclusive || !l.Granted {
			continue
		}
		switch l.Range {
		case gateRange:
			k.armed[l.Bucket] = l
		case keeperRange:
			k.kept[l.Bucket] = l
		case deputyRange:
			k.deputies++
		}
	}
	for _, t := range types {
		if _, ok := k.kept[t.Bucket]; !ok {
			k.unkept = append(k.unkept, fmt.Sprintf("%q", t.Type))
		}
	}
	return k, nil
}

// gate: whether somebody is to be woken for each type of which workers have free slots, and who.
func (e *exam) gate(ctx context.Context) (Finding, error) {
	k, err := e.keepers(ctx)
	if err != nil {
		return Finding{}, err
	}
	if len(k.unkept) > 0 && wait.For(ctx, e.limits.settling) == nil { // one may just have let go
		if k, err = e.keepers(ctx); err != nil {
			return Finding{}, err
		}
	}
	buckets := map[string]int{}
	for _, l := range k.kept {
		buckets[l.holder()]++
		if l.State == "idle" && l.StateAge != nil && span(*l.StateAge) > e.limits.keeper {
			return Finding{
				Status: Warn, Text: fmt.Sprintf("%s keeps the gate and has done nothing for %s: its process is stopped or cut off", l.holder(), seconds(span(*l.StateAge))),
				Do: fmt.Sprintf("select pg_terminate_backend(%d)", l.PID),
			}, nil
		}
	}
	looking := 0
	for b := range k.kept {
		if _, ok := k.armed[b]; !ok {
			looking++
		}
	}
	names := make([]string, 0, len(buckets))
	for name, n := range buckets {
		names = append(names, fmt.Sprintf("%s: %d", name, n))
	}
	slices.Sort(names)
	if len(k.unkept) > 0 {
		return Finding{
			Status: Warn, Text: fmt.Sprintf("workers have free slots, and none is to be woken for type %s: its tasks wait for a look without a cause", some(k.unkept)),
			Do: "see the check listener and the workers' logs for lost listeners; workers with PollOnly are meant to be like that, and so is a type with slots of its own that are all taken",
		}, nil
	}
	if len(k.kept) == 0 {
		return Finding{Status: OK, Text: "open: nobody waits for work"}, nil
	}
	return Finding{Status: OK, Text: fmt.Sprintf("%s kept, %d of them armed, %d looked after without rings, %d with a deputy; keepers: %s",
		plural(len(k.kept), "bucket", "buckets"), len(k.kept)-looking, looking, k.deputies, some(names))}, nil
}

// arming: whether commits in flight hold the gate open for long, so that workers cannot arm it and have to look instead.
func (e *exam) arming(ctx context.Context) (Finding, error) {
	locks, err := e.locks(ctx)
	if err != nil {
		return Finding{}, err
	}
	var ages []string
	var do []string
	status := OK
	seen := map[string]bool{}
	hidden := map[string]lock{}
	for _, l := range locks {
		if l.Range != gateRange || l.Exclusive || !l.Granted || seen[l.Transaction] {
			continue
		}
		seen[l.Transaction] = true
		age := l.XactAge
		if l.PID == 0 {
			age = l.PreparedAge
		}
		switch {
		case age == nil:
			hidden[l.Transaction] = l
		case span(*age) < e.limits.commit:
		case l.PID == 0:
			status = Fail
			ages = append(ages, fmt.Sprintf("%s, prepared %s ago", l.holder(), seconds(span(*age))))
			do = append(do, fmt.Sprintf("commit prepared %[1]s, or rollback prepared %[1]s", literal(l.GID)))
		default:
			status = worse(status, Warn)
			ages = append(ages, fmt.Sprintf("%s, %s, in a transaction for %s", l.holder(), l.State, seconds(span(*age))))
			do = append(do, fmt.Sprintf("select pg_terminate_backend(%d)", l.PID))
		}
	}
	if len(hidden) > 0 && wait.For(ctx, time.Second) == nil {
		again, err := e.locks(ctx)
		if err != nil {
			return Finding{}, err
		}
		for _, l := range again {
			if _, ok := hidden[l.Transaction]; ok && l.Range == gateRange && !l.Exclusive && l.Granted {
				delete(hidden, l.Transaction)
				status = worse(status, Warn)
				ages = append(ages, l.holder()+", for more than a second (this role may not see for how long: grant pg_read_all_stats)")
				do = append(do, fmt.Sprintf("select pg_terminate_backend(%d)", l.PID))
			}
		}
	}
	if len(ages) == 0 {
		return Finding{Status: OK, Text: fmt.Sprintf("no commit has held the gate open for more than %s", seconds(e.limits.commit))}, nil
	}
	return Finding{
		Status: status,
		Text:   "the gate is held open by a transaction that has enqueued and not ended, so workers poll instead of sleeping: " + some(ages),
		Do:     "end it: " + strings.Join(do, "; "),
	}, nil
}

func worse(a, b Status) Status {
	for _, s := range []Status{Fail, Warn} {
		if a == s || b == s {
			return s
		}
	}
	return OK
}
