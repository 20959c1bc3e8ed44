package lease

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// lookSQL finds, for each pair of the types given, the first queued row from the pair's mark on, and the next end of a
// lease of each type. A row without a pair tells how far marks may go, and how long all that took. It locks nothing. Two
// indexes serve it, so that the ends of leases never lie in the way of the due rows.
const lookSQL = `
select p.n, next.at, next.key::text, (extract(epoch from next.at) - extract(epoch from clock_timestamp()))::float8, false
from {{if .Type}}unnest(
    @types::text[] {{if .Priority}}, @priorities::smallint[]{{end}}
    {{if .DueAt}}, @mark_ats::timestamptz[], @mark_keys::text[]::{{.KeyType}}[]{{end}}
  ) with ordinality as p(type {{if .Priority}}, priority{{end}} {{if .DueAt}}, mark_at, mark_key{{end}}, n)
{{else}}(select 1::bigint as n) as p{{end}}
cross join lateral (
  select d.{{q .RetryAt}} as at, d.{{q .Key}} as key
  from {{.Name.Sanitize}} as d
  where d.{{q .Status}} = {{lit .States.Queued}} and d.{{q .RetryAt}} < 'infinity'
    {{if .Type}}and d.{{q .Type}} = p.type{{end}}
    {{if .Priority}}and d.{{q .Priority}} = p.priority{{end}}
    {{if and .Type .DueAt}}and (d.{{q .RetryAt}}, d.{{q .Key}}) >= ({{markFloor "p"}}){{end}}
  order by d.{{q .RetryAt}}, d.{{q .Key}}
  limit 1
) as next
union all
select 0, next.at, '', (extract(epoch from next.at) - extract(epoch from clock_timestamp()))::float8, true
from {{if .Type}}unnest(@lease_types::text[]) as p(type)
{{else}}(select where @leases::boolean) as p{{end}}
cross join lateral (
  select d.{{q .RetryAt}} as at
  from {{.Name.Sanitize}} as d
  where d.{{q .Status}} = {{lit .States.Running}} and d.{{q .RetryAt}} < 'infinity'
    {{if .Type}}and d.{{q .Type}} = p.type{{end}}
  order by d.{{q .RetryAt}}
  limit 1
) as next
union all
select 0, now() - ` + markSlack + `, '', (extract(epoch from clock_timestamp()) - extract(epoch from statement_timestamp()))::float8, false`

// Never is the answer of [Queue.Look] where nothing lies ahead.
const Never = time.Duration(1<<63 - 1)

// Look tells how long until a queued row falls due and until a running row's lease ends, by the database's clock. Zero
// or less means now: rows are there that a claim just passed over, because somebody else has them locked or because
// they fell due since. Without leases, whose ends lie behind the dead entries of all those that were settled in time,
// the second answer is [Never]. Marks, which may be nil, learn how far there is nothing queued.
func (q *Queue) Look(ctx context.Context, db DB, types []string, leases bool, marks *Marks) (due, leaseEnd time.Duration, err error) {
	p := q.pairs(types, nil, 0)
	args := p.args(marks.start(p, true))
	args["leases"], args["lease_types"] = leases, types
	if !leases {
		args["lease_types"] = []string{}
	}
	rows, err := db.Query(ctx, q.sql.look.sql, q.sql.look.args(args)...)
	if err != nil {
		return 0, 0, fmt.Errorf("look: %w", err)
	}
	var n int64
	var at pgtype.Timestamptz
	var key string
	var in *float64
	var lease bool
	var floor time.Time
	var took time.Duration
	first := map[pair]place{}
	due, leaseEnd = Never, Never
	if _, err := pgx.ForEachRow(rows, []any{&n, &at, &key, &in, &lease}, func() error {
		switch {
		case lease:
			leaseEnd = min(leaseEnd, seconds(in))
		case n == 0:
			floor, took = at.Time, seconds(in)
		default:
			due = min(due, seconds(in))
			if len(p.list) > 0 {
				first[p.list[n-1]] = q.place(at.Time, key)
			}
		}
		return nil
	}); err != nil {
		return 0, 0, fmt.Errorf("look: %w", err)
	}
	marks.looked(p, first, floor, took)
	return due, leaseEnd, nil
}

func seconds(s *float64) time.Duration {
	switch {
	case s == nil || *s > float64(Never/time.Second):
		return Never
	case *s < 0: // as far as minus infinity
		return 0
	}
	return time.Duration(*s * float64(time.Second))
}

// lookBackSQL finds, for each pair, the first queued row of a span of time. The due index serves it.
const lookBackSQL = `
select p.n, next.at, next.key::text
from {{if .Type}}unnest(@types::text[] {{if .Priority}}, @priorities::smallint[]{{end}}) with ordinality as p(type {{if .Priority}}, priority{{end}}, n)
{{else}}(select 1::bigint as n) as p{{end}}
cross join lateral (
  select d.{{q .RetryAt}} as at, d.{{q .Key}} as key
  from {{.Name.Sanitize}} as d
  where d.{{q .Status}} = {{lit .States.Queued}} and d.{{q .RetryAt}} >= @since and d.{{q .RetryAt}} < @until
    {{if .Type}}and d.{{q .Type}} = p.type{{end}}
    {{if .Priority}}and d.{{q .Priority}} = p.priority{{end}}
  order by d.{{q .RetryAt}}, d.{{q .Key}}
  limit 1
) as next`

const (
	// firstSlice is the span of time of the first slice of a look back; later ones become longer as long as they take less
	// than sliceMin, and shorter when they take more than sliceMax. The last reaches back for ever.
	firstSlice = time.Minute
	lastSlice  = 30 * 24 * time.Hour
	sliceMin   = 25 * time.Millisecond
	sliceMax   = 100 * time.Millisecond
)

// sweepBack is how far a look back has got.
type sweepBack struct {
	until time.Time // what is due since then has been looked at; zero: nothing yet
	span  time.Duration
	took  time.Duration // by all slices so far
}

// Dear reports whether looks begin at the marks, so that [Queue.LookBack] is wanted.
func (m *Marks) Dear() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.dear
}

// LookBack looks, a slice of time at each call, for queued rows that lie behind the marks, from now back to the start and
// then from now again, and takes marks back to what it finds, which it reports. It locks nothing. When all slices together
// took little time, looks begin at the start again.
func (q *Queue) LookBack(ctx context.Context, db DB, types []string, m *Marks) (found bool, err error) {
	m.mu.Lock()
	back := m.back
	if back.until.IsZero() {
		back = sweepBack{until: m.floor, span: firstSlice}
	}
	m.mu.Unlock()
	sent := time.Now()
	since := pgtype.Timestamptz{Valid: true, Time: back.until.Add(-back.span)}
	if back.span > lastSlice {
		since = pgtype.Timestamptz{Valid: true, InfinityModifier: pgtype.NegativeInfinity}
	}
	p := q.pairs(types, nil, 0)
	args := p.args(nil)
	args["since"], args["until"] = since, back.until
	rows, err := db.Query(ctx, q.sql.lookBack.sql, q.sql.lookBack.args(args)...)
	if err != nil {
		return false, fmt.Errorf("look back: %w", err)
	}
	var n int64
	var at pgtype.Timestamptz
	var key string
	behind := map[pair]place{}
	if _, err := pgx.ForEachRow(rows, []any{&n, &at, &key}, func() error {
		if len(p.list) > 0 {
			behind[p.list[n-1]] = q.place(at.Time, key)
		}
		return nil
	}); err != nil {
		return false, fmt.Errorf("look back: %w", err)
	}
	return m.lookedBack(back, behind, time.Since(sent)), nil
}

func (m *Marks) lookedBack(back sweepBack, behind map[pair]place, took time.Duration) (found bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for p, at := range behind {
		mark := m.mark(p)
		if at.before(mark.taken) {
			mark.taken, mark.seen, found = at, earlier(mark.seen, at), true
			m.lowered++
		}
	}
	back.took += took
	switch {
	case back.span > lastSlice:
		m.dear = back.took > 3*dearLook // several round trips are among it
		back = sweepBack{}
	default:
		back.until = back.until.Add(-back.span)
		if took < sliceMin {
			back.span *= 8
		} else if took > sliceMax {
			back.span = max(back.span/2, time.Second)
		}
	}
	m.back = back
	return found
}
