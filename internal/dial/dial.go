// Package dial opens the sessions that a process has beside the user's pool: to where the pool goes, with settings of their
// own whatever those of the pool, the role and the database are, and knows whether there is a pooler in between.
package dial

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgwake/pgwake/notify"
)

// Timeout bounds the time to open a session.
const Timeout = 5 * time.Second

// Dialer opens sessions of one kind.
type Dialer struct {
	config   *pgx.ConnConfig
	before   func(context.Context, *pgx.ConnConfig) error
	settings map[string]string
}

// base is set for every session: what the statements are written for. Under the stricter isolation levels claims and
// settlements would fail with 40001.
var base = map[string]string{
	"default_transaction_isolation":       "read committed",
	"default_transaction_read_only":       "off",
	"jit":                                 "off",
	"statement_timeout":                   "12s",
	"idle_in_transaction_session_timeout": "20s",
}

// New prepares sessions to where pool goes, or to url if that is not empty. The pool's BeforeConnect, which may bring fresh
// credentials, is called for each; its AfterConnect is the business of the pool's own users. settings go before the base
// ones.
func New(pool *pgxpool.Config, url, name string, settings map[string]string) (*Dialer, error) {
	config := pool.ConnConfig.Copy()
	if url != "" {
		var err error
		if config, err = pgx.ParseConfig(url); err != nil {
			return nil, fmt.Errorf("parse connection string: %w", err)
		}
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeCacheStatement
	config.RuntimeParams["application_name"] = name
	d := &Dialer{config: config, before: pool.BeforeConnect, settings: maps.Clone(base)}
	maps.Copy(d.settings, settings)
	return d, nil
}

// Session is a connection and whether it goes through a pooler: then its settings are not those asked for, and nothing of
// it outlasts a transaction for certain.
type Session struct {
	*pgx.Conn
	Pooled bool

	d *Dialer
}

// Connect opens a session. A pooler refuses startup parameters that it cannot keep apart, or ignores them if told to, and
// gives out process ids of its own.
func (d *Dialer) Connect(ctx context.Context) (*Session, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	config := d.config.Copy()
	if d.before != nil {
		if err := d.before(ctx, config); err != nil {
			return nil, err
		}
	}
	direct := config.Copy()
	maps.Copy(direct.RuntimeParams, d.settings)
	conn, err := notify.Connector(direct)(ctx)
	if refusesParameters(err) {
		return d.connectPooled(ctx, config)
	}
	if err != nil {
		return nil, err
	}
	var pid uint32
	if err := conn.QueryRow(ctx, "select pg_backend_pid()", pgx.QueryExecModeSimpleProtocol).Scan(&pid); err != nil {
		_ = conn.Close(ctx)
		return nil, err
	}
	if pid != conn.PgConn().PID() {
		_ = conn.Close(ctx)
		return d.connectPooled(ctx, config)
	}
	return &Session{Conn: conn, d: d}, nil
}

func (d *Dialer) connectPooled(ctx context.Context, config *pgx.ConnConfig) (*Session, error) {
	config.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe // the next transaction may run on another server process
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	return &Session{Conn: conn, Pooled: true, d: d}, nil
}

func refusesParameters(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Code == "08P01" && strings.Contains(pgErr.Message, "startup parameter")
}

// Do runs f with the session's settings: behind a pooler in a transaction of its own, which has them. Nothing that f learns
// is certain before Do has returned.
func (s *Session) Do(ctx context.Context, f func(context.Context, *pgx.Conn) error) error {
	if !s.Pooled {
		return f(ctx, s.Conn)
	}
	return pgx.BeginTxFunc(ctx, s.Conn, pgx.TxOptions{BeginQuery: s.d.begin()}, func(pgx.Tx) error { return f(ctx, s.Conn) })
}

// begin starts a transaction with the settings, in one round trip.
func (d *Dialer) begin() string {
	var sql strings.Builder
	sql.WriteString("begin isolation level read committed, read write")
	for _, name := range slices.Sorted(maps.Keys(d.settings)) {
		if strings.HasPrefix(name, "default_transaction_") || strings.HasPrefix(name, "tcp_") {
			continue
		}
		fmt.Fprintf(&sql, "; set local %s = '%s'", name, d.settings[name])
	}
	return sql.String()
}
