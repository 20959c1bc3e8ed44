package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// DB is what a queue's statements run on: a pool, a connection or a transaction of pgx.
type DB interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Priorities is the number of priorities, 0 to 9, lower first.
const Priorities = 10

// Queue runs the row protocol on one table. It holds no state but its statements and is safe for concurrent use.
type Queue struct {
	table Table
	sql   statements
}

type statements struct {
	claim, turn, claimExpired, claimRow, renew, settle, finish, state, look, lookBack, requeue, bump, pause, resume, counts statement
}

// statement is SQL with positional parameters and their names in that order: what [pgx.NamedArgs] would work out at
// every call.
type statement struct {
	sql    string
	params []string
}

// args are the values of the statement's parameters.
func (s statement) args(named pgx.NamedArgs) []any {
	args := make([]any, len(s.params))
	for i, name := range s.params {
		args[i] = named[name]
	}
	return args
}

// New prepares the statements for a table. It does not touch the database.
func New(table Table) (*Queue, error) {
	if err := table.validate(); err != nil {
		return nil, err
	}
	q := &Queue{table: table}
	var errs []error
	compile := func(into *statement, name, text string) {
		s, err := table.statement(name, text)
		*into = s
		errs = append(errs, err)
	}
	compile(&q.sql.claim, "claim", claimSQL)
	if len(table.ClaimTurn) > 0 {
		compile(&q.sql.turn, "turn", turnSQL)
	}
	compile(&q.sql.claimExpired, "claim expired", claimExpiredSQL)
	compile(&q.sql.claimRow, "claim row", claimRowSQL)
	compile(&q.sql.renew, "renew", renewSQL)
	compile(&q.sql.settle, "settle", settleSQL)
	if table.Archive != nil {
		compile(&q.sql.finish, "finish", finishSQL)
	}
	compile(&q.sql.state, "state", stateSQL)
	compile(&q.sql.look, "look", lookSQL)
	compile(&q.sql.lookBack, "look back", lookBackSQL)
	compile(&q.sql.requeue, "requeue", requeueSQL)
	compile(&q.sql.bump, "bump", bumpSQL)
	compile(&q.sql.pause, "pause", pauseSQL)
	compile(&q.sql.resume, "resume", resumeSQL)
	compile(&q.sql.counts, "counts", countsSQL)
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return q, nil
}

// Lease is the right to run one row until it expires.
type Lease struct {
	Key      string // the row's key as text
	Fence    int64  // token of this lease; pass it on to systems that should refuse a stale holder
	Holder   string // the worker run that claimed it
	Type     string
	Priority int
	Attempt  int // runs begun, this one included
	Lost     int // runs in a row before this one whose worker was lost
	DueAt    time.Time
	// Expires is when the lease ends by this process's monotonic clock, counted from before the claim was sent, and so
	// never later than the database's own end of it.
	Expires time.Time
}

// ClaimOptions say who claims what.
type ClaimOptions struct {
	Holder string // identity of this worker run, a UUID: the same for all its claims, never used again
	Worker string // its name for people
	Types  []string
	// MaxAttempts are the attempts allowed to rows that do not say, one for each of Types.
	MaxAttempts []int32
	Limit       int
	// Limits, if set, are the most of each of Types that a [Queue.Claim] takes.
	Limits []int32
	Lease  time.Duration
	// Marks, if set, are where [Queue.Claim] begins to look, and learn from what it takes.
	Marks *Marks
	// InTurn has a [Queue.Claim] wait for others that do so: claimers that are after the same rows hinder each other. It
	// takes a connection of pgx, and fails with a lock timeout, 55P03, after 0.5 s: somebody may have
	// stopped in his turn.
	InTurn bool
	// Scan returns where the table's further columns go for the row whose lease it is given; nil if it names none. It is
	// called once for each lease, in the order of the result.
	Scan func(*Lease) []any
}

// setClaimed is what every claim writes. A count at the end of its type stays there, for an overflow would fail the claim
// of every other row too.
const setClaimed = `
  {{q .Status}} = {{lit .States.Running}},
  {{q .RetryAt}} = greatest(t.{{q .RetryAt}} + interval '1 microsecond', clock_timestamp() + @lease::interval)
  {{if .Fence}}, {{q .Fence}} = {{nextFor "t"}}{{end}}
  {{if .Holder}}, {{q .Holder}} = @holder::uuid{{end}}
  {{if .Worker}}, {{q .Worker}} = @worker{{end}}
  {{if .Attempt}}, {{q .Attempt}} = least(coalesce(t.{{q .Attempt}}, 0), 2147483646) + 1{{end}}
  {{if .StartedAt}}, {{q .StartedAt}} = clock_timestamp(){{end}}
  {{if .FinishedAt}}, {{q .FinishedAt}} = null{{end}}`

// returnClaimed is what every claim returns, in the order that collect reads it. What Go cannot hold must not fail it: the
// claim is committed by then, and its other rows would be leased to nobody.
const returnClaimed = `
  t.{{q .Key}}::text, {{token "t"}}
  , {{if .Type}}coalesce(t.{{q .Type}}, ''){{else}}''{{end}}
  , {{if .Priority}}coalesce(t.{{q .Priority}}, 0)::int{{else}}0{{end}}
  , {{if .Attempt}}t.{{q .Attempt}}::int{{else}}1{{end}}
  , {{if .Lost}}coalesce(t.{{q .Lost}}, 0)::int{{else}}0{{end}}
  , {{if .DueAt}}case when isfinite(t.{{q .DueAt}}) then t.{{q .DueAt}} else now() end{{else}}now(){{end}}
  {{prefix .Columns}}`

// claimSQL takes up to @limit due rows, first by priority, then in the order of @types, then by due time. It locks what
// it takes and passes over what others have locked. The index on (type, priority, retry_at, key) of queued rows serves
// one probe a (type, priority) pair, from the pair's mark on; "ctid = any(array(…))" keeps the plan away from statistics of
// a table that is empty one moment and full the next. A row that somebody has changed since the statement began may be
// passed over, as if it were locked.
const claimSQL = `
update {{.Name.Sanitize}} as t
set` + setClaimed + `
  {{if .DueAt}}, {{q .DueAt}} = t.{{q .RetryAt}}{{end}}
where t.ctid = any (array (
  {{if .Type}}
  select due.ctid
  from unnest(
    @types::text[], @limits::integer[] {{if .Priority}}, @priorities::smallint[]{{end}}
    {{if .DueAt}}, @mark_ats::timestamptz[], @mark_keys::text[]::{{.KeyType}}[]{{end}}
  ) as p(type, most {{if .Priority}}, priority{{end}} {{if .DueAt}}, mark_at, mark_key{{end}})
  cross join lateral (
  {{end}}
    select d.ctid
    from {{.Name.Sanitize}} as d
    where d.{{q .Status}} = {{lit .States.Queued}}
      and d.{{q .RetryAt}} <= now()
      {{if .Type}}and d.{{q .Type}} = p.type{{end}}
      {{if .Priority}}and d.{{q .Priority}} = p.priority{{end}}
      {{if and .Type .DueAt}}and (d.{{q .RetryAt}}, d.{{q .Key}}) >= ({{markFloor "p"}}){{end}}
    order by d.{{q .RetryAt}}, d.{{q .Key}}
    limit {{if .Type}}p.most{{else}}@limit{{end}}
    for update skip locked
  {{if .Type}}
  ) as due
  limit @limit
  {{end}}
))
returning` + returnClaimed

// Claim takes due rows, best first, and returns their leases once the claim has committed. Fewer than the limit means
// that no more were due, or that others had them locked: see [Queue.Look].
//
// A claim needs no durable commit. If the server forgets it in a crash the row is due again, and the fence, which the
// clock raises, keeps the forgotten holder out.
func (q *Queue) Claim(ctx context.Context, db DB, opts ClaimOptions) ([]*Lease, error) {
	p := q.pairs(opts.Types, opts.Limits, opts.Limit)
	args := p.args(opts.Marks.start(p, false))
	args["limit"] = opts.Limit
	if opts.InTurn {
		var err error
		if db, err = q.inTurn(db); err != nil {
			return nil, err
		}
	}
	leases, err := q.collect(ctx, db, q.sql.claim, opts, args)
	if err == nil {
		opts.Marks.claimed(q, leases)
	}
	return leases, err
}

// claimExpiredSQL takes over up to @limit rows whose lease has ended, with no look at priority: there are few. @suspects
// chooses between rows that may have killed their worker and all others, see [Queue.ClaimSuspects]. The index on (type,
// retry_at, key) of running rows serves it.
const claimExpiredSQL = `
update {{.Name.Sanitize}} as t
set` + setClaimed + `
  {{if .Lost}}, {{q .Lost}} = least(coalesce(t.{{q .Lost}}, 0), 32766) + 1{{end}}
where t.{{q .Key}} = any (array (
  {{if .Type}}
  select expired.key
  from unnest(@types::text[], @attempts::integer[]) as p(type, attempts)
  cross join lateral (
  {{end}}
    select d.{{q .Key}} as key
    from {{.Name.Sanitize}} as d
    where d.{{q .Status}} = {{lit .States.Running}}
      and d.{{q .RetryAt}} <= now()
      {{if .Type}}and d.{{q .Type}} = p.type{{end}}
      {{if .Lost}}and coalesce(d.{{q .Lost}} > 0 or {{suspectAttempt}}, false) = @suspects::boolean{{else}}and not @suspects::boolean{{end}}
    order by d.{{q .RetryAt}}, d.{{q .Key}}
    limit @limit
    for update skip locked
  {{if .Type}}
  ) as expired
  limit @limit
  {{end}}
))
returning` + returnClaimed

// ClaimExpired takes over rows whose holder let the lease run out: it crashed, hangs or is cut off. Most workers die of
// something else than this row, so rows that lost a worker for the first time may run like any other.
func (q *Queue) ClaimExpired(ctx context.Context, db DB, opts ClaimOptions) ([]*Lease, error) {
	return q.claimExpired(ctx, db, opts, false)
}

// ClaimSuspects takes over the expired rows that [Queue.ClaimExpired] leaves: those that lost a worker before, and those
// for which this is the last attempt or more. Run them one at a time, so that a row that kills its worker is found out
// and does not cost others their attempts.
func (q *Queue) ClaimSuspects(ctx context.Context, db DB, opts ClaimOptions) ([]*Lease, error) {
	return q.claimExpired(ctx, db, opts, true)
}

func (q *Queue) claimExpired(ctx context.Context, db DB, opts ClaimOptions, suspects bool) ([]*Lease, error) {
	return q.collect(ctx, db, q.sql.claimExpired, opts, pgx.NamedArgs{
		"types": opts.Types, "attempts": opts.MaxAttempts, "limit": opts.Limit, "suspects": suspects,
	})
}

// collect reads the leases of a claim to the end, which is its commit: rows stream to the client before that, and a
// settlement sent then would miss the row.
func (q *Queue) collect(ctx context.Context, db DB, s statement, opts ClaimOptions, args pgx.NamedArgs) ([]*Lease, error) {
	args["holder"], args["worker"], args["lease"] = opts.Holder, opts.Worker, opts.Lease
	expires := time.Now().Add(opts.Lease)
	rows, err := db.Query(ctx, s.sql, s.args(args)...)
	if err != nil {
		return nil, fmt.Errorf("claim: %w", err)
	}
	var dest []any
	var typ pgtype.DriverBytes // of few values, which need not be copied row by row
	var latest string
	leases, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*Lease, error) {
		l := &Lease{Holder: opts.Holder, Expires: expires}
		dest = append(dest[:0], &l.Key, &l.Fence, &typ, &l.Priority, &l.Attempt, &l.Lost, &l.DueAt)
		if opts.Scan != nil {
			dest = append(dest, opts.Scan(l)...)
		}
		if err := row.Scan(dest...); err != nil {
			return nil, err
		}
		if string(typ) != latest {
			latest = string(typ)
		}
		l.Type = latest
		return l, nil
	})
	if err != nil {
		return nil, fmt.Errorf("claim: %w", err)
	}
	return leases, nil
}

// claimRowSQL takes the one row @key if it still has the token that the caller saw and is due. It waits for a lock.
const claimRowSQL = `
update {{.Name.Sanitize}} as t
set` + setClaimed + `
where t.{{q .Key}} = @key::text::{{.KeyType}}
  and coalesce({{token "t"}}, 0) = @seen
  and t.{{q .RetryAt}} <= now()
  and t.{{q .Status}} in ({{lit .States.Queued}}, {{lit .States.Running}})
returning` + returnClaimed

// ClaimRow takes the one row that the caller has picked, if since then nobody else has: seen is the [State.Fence] it
// had. Nil, nil means that somebody was faster.
func (q *Queue) ClaimRow(ctx context.Context, db DB, key string, seen int64, opts ClaimOptions) (*Lease, error) {
	leases, err := q.collect(ctx, db, q.sql.claimRow, opts, pgx.NamedArgs{"key": key, "seen": seen})
	if err != nil || len(leases) == 0 {
		return nil, err
	}
	return leases[0], nil
}
