// Package doctor examines an installation of pgwake from the outside: the schema, the way of a notification from commit to
// listener, the wake gate, the fleet and the server, and says in plain words what is wrong and what to do about it.
//
// It changes nothing. All it reads it reads in read-only transactions; its one notification goes to a channel of its own.
// Every check has a deadline, and one that fails does not stop the others. What the role must not see is told as such.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgwake/pgwake/internal/sqlstate"
)

// Status is what a check found.
type Status string

// The states of a check. Warn is what may be meant, will do harm later, or could not be seen.
const (
	OK   Status = "ok"
	Warn Status = "warn"
	Fail Status = "fail"
)

// Finding is the result of one check.
type Finding struct {
	Check  string `json:"check"`
	Status Status `json:"status"`
	Text   string `json:"text"`         // what was found, and what it means
	Do     string `json:"do,omitempty"` // what to do: SQL or a command where there is one
}

// Config says what to examine.
type Config struct {
	// Conn is where the programs go.
	Conn *pgx.ConnConfig
	// Listener is where the workers' listeners and claims go, if not to Conn.
	Listener *pgx.ConnConfig
	// Schema is where pgwake's tables are.
	Schema string

	limits limits           // tests make them tighter
	now    func() time.Time // and this machine's clock wrong
}

// limits are where a figure becomes a finding.
type limits struct {
	check      time.Duration // for one check
	echo       time.Duration // of a notification
	settling   time.Duration // until a keeper is found after another has let go
	alive      time.Duration // since the last report of a worker
	keeper     time.Duration // since a keeper's last statement: it reports every 10 s
	commit     time.Duration // for which a commit may hold the gate open
	snapshot   time.Duration // age from which one is told
	late       time.Duration // for which a due task may wait beside a free slot
	clock      time.Duration // offset
	queue      float64       // part of the notification queue in use
	dead       int64         // dead rows in the task table
	headroom   int           // connections left
	transients int64         // transactions by which a standby may lag
}

var defaults = limits{
	check: 5 * time.Second, echo: 3 * time.Second, settling: 2 * time.Second, alive: 30 * time.Second, keeper: 40 * time.Second, commit: 5 * time.Second,
	snapshot: time.Minute, late: 10 * time.Second, clock: 100 * time.Millisecond, queue: 0.1, dead: 50_000, headroom: 4,
	transients: 100_000,
}

// exam is one examination. It has one session, opened again after a check that broke it.
type exam struct {
	Config
	conn     *pgx.Conn
	noTables bool // the schema is not there
}

// check is one question. It gives its finding all but the name.
type check struct {
	name string
	ask  func(*exam, context.Context) (Finding, error)
}

var checks = []check{
	{"server", (*exam).server},
	{"pooler", (*exam).pooler},
	{"listener", (*exam).listener},
	{"clock", (*exam).clock},
	{"schema", (*exam).schema},
	{"triggers", (*exam).triggers},
	{"partitions", (*exam).partitions},
	{"workers", (*exam).workers},
	{"types", (*exam).types},
	{"backlog", (*exam).backlog},
	{"gate", (*exam).gate},
	{"arming", (*exam).arming},
	{"notifications", (*exam).notifications},
	{"snapshots", (*exam).snapshots},
	{"vacuum", (*exam).vacuum},
	{"connections", (*exam).connections},
	{"settings", (*exam).settings},
}

// Checks lists the names of all checks, in order.
func Checks() []string {
	names := make([]string, len(checks))
	for i, c := range checks {
		names[i] = c.name
	}
	return names
}

// Run makes all checks, one after the other, and calls found with each finding as it comes. The end of ctx ends it; what
// is left is not reported then.
func Run(ctx context.Context, config Config, found func(Finding)) {
	if config.limits == (limits{}) {
		config.limits = defaults
	}
	if config.now == nil {
		config.now = time.Now
	}
	if config.Listener == nil {
		config.Listener = config.Conn
	}
	e := &exam{Config: config}
	defer e.close()
	for _, c := range checks {
		f := e.make(ctx, c)
		if ctx.Err() != nil {
			return
		}
		found(f)
	}
}

func (e *exam) make(ctx context.Context, c check) Finding {
	limited, cancel := context.WithTimeout(ctx, e.limits.check+e.limits.echo+e.limits.settling)
	defer cancel()
	f, err := c.ask(e, limited)
	switch {
	case err == nil:
	case sqlstate.Denied(err):
		f = Finding{Status: Warn, Text: "not seen: " + oneLine(err), Do: "run it as the schema's owner, or grant select on all tables in schema " + e.ident() + " and pg_monitor to the role"}
	case sqlstate.Missing(err) && e.noTables:
		f = Finding{Status: Warn, Text: "not looked at: there are no tables"}
	case limited.Err() != nil, isTimeout(err):
		f = Finding{Status: Fail, Text: fmt.Sprintf("no answer within %s", seconds(e.limits.check)), Do: "see in pg_stat_activity what application pgwake doctor waits for"}
	default:
		f = Finding{Status: Fail, Text: oneLine(err)}
	}
	f.Check = c.name
	return f
}

// isTimeout reports a statement that the server ended for its time: 57014, or 55P03 for a lock.
func isTimeout(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && (pgErr.Code == "57014" || pgErr.Code == "55P03")
}

// open connects. No settings are sent at the start: a pooler would refuse them.
func open(ctx context.Context, config *pgx.ConnConfig) (*pgx.Conn, error) {
	config = config.Copy()
	config.RuntimeParams["application_name"] = "pgwake doctor"
	config.DefaultQueryExecMode = pgx.QueryExecModeExec // leaves nothing behind in a pooled session
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return conn, nil
}

func closeConn(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}

func (e *exam) session(ctx context.Context) (*pgx.Conn, error) {
	if e.conn == nil || e.conn.IsClosed() {
		conn, err := open(ctx, e.Conn)
		if err != nil {
			return nil, err
		}
		e.conn = conn
	}
	return e.conn, nil
}

func (e *exam) close() {
	if e.conn != nil {
		closeConn(e.conn)
	}
}

// read runs f in a read-only transaction with a deadline.
func (e *exam) read(ctx context.Context, f func(tx pgx.Tx) error) error {
	conn, err := e.session(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, e.limits.check+time.Second)
	defer cancel()
	ms := e.limits.check.Milliseconds()
	begin := fmt.Sprintf("begin isolation level read committed read only; set local statement_timeout = %d; set local lock_timeout = %d", ms, ms)
	return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{BeginQuery: begin}, f)
}

// rows reads a statement's rows, in a transaction of its own.
func rows[T any](ctx context.Context, e *exam, sql string, args ...any) (list []T, err error) {
	err = e.read(ctx, func(tx pgx.Tx) error {
		r, _ := tx.Query(ctx, sql, args...)
		list, err = pgx.CollectRows(r, pgx.RowToStructByPos[T])
		return err
	})
	return list, err
}

// row reads the one row of a statement.
func row[T any](ctx context.Context, e *exam, sql string, args ...any) (one T, err error) {
	list, err := rows[T](ctx, e, sql, args...)
	if err == nil && len(list) != 1 {
		err = fmt.Errorf("%d rows, want 1", len(list))
	}
	if err != nil {
		return one, err
	}
	return list[0], nil
}

func (e *exam) ident() string             { return pgx.Identifier{e.Schema}.Sanitize() }
func (e *exam) name(object string) string { return pgx.Identifier{e.Schema, object}.Sanitize() }

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// seconds shows a span as people say it.
func seconds(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return d.Round(time.Second / 10).String()
	case d < time.Hour:
		return d.Round(time.Second).String()
	}
	return d.Round(time.Minute).String()
}

func span(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// some lists the first few of many.
func some(list []string) string {
	const few = 4
	if len(list) <= few {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:few], ", "), len(list)-few)
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
