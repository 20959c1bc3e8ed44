package worker

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgwake/pgwake/internal/sqlstate"
	"github.com/pgwake/pgwake/notify"
)

// Connections that a process has beside the handlers' pool. The listener and the claim connection stay; those of the
// heartbeat and the settler are opened when there is something to do and closed when there has been nothing for a while.
const (
	idleConnections = 2
	busyConnections = 4

	// idleTimeout is after how long without use the two connections on demand are closed.
	idleTimeout = 30 * time.Second
)

// statementTimeout bounds every statement of the worker on the client's side. The server's own bound is a little shorter,
// so that it does not go on with what nobody waits for.
const statementTimeout = 15 * time.Second

// connector dials connections to where the handlers' pool goes, with what the worker's own statements need, whatever the
// database's, the role's or the pool's settings are. The pool's AfterConnect is the handlers' business.
func connector(pool *pgxpool.Pool, name string, params map[string]string) func(ctx context.Context) (*pgx.Conn, error) {
	base := pool.Config()
	config := base.ConnConfig.Copy()
	config.DefaultQueryExecMode = pgx.QueryExecModeCacheStatement
	for key, value := range map[string]string{
		"application_name": "pgwake " + name,
		// Claims and settlements are written for it; under the stricter levels they would fail with 40001.
		"default_transaction_isolation": "read committed",
		"default_transaction_read_only": "off",
		// A plan made while the queue was empty is ruinous when it is full.
		"plan_cache_mode":                     "force_custom_plan",
		"jit":                                 "off",
		"statement_timeout":                   "12s",
		"idle_in_transaction_session_timeout": "20s",
	} {
		config.RuntimeParams[key] = value
	}
	for key, value := range params {
		config.RuntimeParams[key] = value
	}
	connect := notify.Connector(config)
	if base.BeforeConnect == nil {
		return connect
	}
	return func(ctx context.Context) (*pgx.Conn, error) {
		// The hook brings fresh credentials, for example.
		fresh := config.Copy()
		if err := base.BeforeConnect(ctx, fresh); err != nil {
			return nil, err
		}
		return notify.Connector(fresh)(ctx)
	}
}

// claimParams are the settings of the claim connection. A claim that the server forgets in a crash is no loss; waiting
// for its WAL would be. Its few statements are planned once, which saves a third of a claim's time, with every way of
// reading shut that is ruinous for a table which is empty one moment and full the next: what is left are the indexes
// they are made for.
var claimParams = map[string]string{
	"synchronous_commit": "off",
	"plan_cache_mode":    "force_generic_plan",
	"enable_seqscan":     "off",
	"enable_bitmapscan":  "off",
	"enable_sort":        "off",
	"enable_hashjoin":    "off",
	"enable_mergejoin":   "off",
}

// settleParams are the settings of the settler's connection. With the statistics of an empty table every join looks like
// one of single rows, and a batch would be compared with itself row by row.
var settleParams = map[string]string{"enable_nestloop": "off"}

// connection is one session of the worker's own, opened by its first use and again after it broke. One caller at a time
// has it.
type connection struct {
	connect func(ctx context.Context) (*pgx.Conn, error)
	lock    chan struct{} // holds a token while somebody has the session
	conn    *pgx.Conn     // guarded by lock
	used    time.Time     // guarded by lock
}

func newConnection(connect func(ctx context.Context) (*pgx.Conn, error)) *connection {
	return &connection{connect: connect, lock: make(chan struct{}, 1)}
}

// do runs f with the session, in the time given, waiting for others included. A statement whose context ends breaks the
// session; the next use opens another.
func (c *connection) do(ctx context.Context, timeout time.Duration, f func(ctx context.Context, conn *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	select {
	case c.lock <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("wait for the connection: %w", context.Cause(ctx))
	}
	defer func() { <-c.lock }()

	if c.conn == nil || c.conn.IsClosed() {
		conn, err := c.connect(ctx)
		if err != nil {
			return fmt.Errorf("connect: %w", err)
		}
		c.conn = conn
		// The server then notices while it runs a statement, or waits for a lock, that the client is gone. Not every
		// platform has it.
		_, _ = conn.Exec(ctx, `set client_connection_check_interval = '500ms'`)
	}
	c.used = time.Now()
	err := f(ctx, c.conn)
	if sqlstate.ReadOnly(err) {
		c.closeConn() // another server is the primary now
	} else if c.conn.IsClosed() {
		// pgx keeps the socket for a while to drain it. Closed at once, the server ends what it does for it.
		_ = c.conn.PgConn().Conn().Close()
	}
	return err
}

// closeIdle closes the session if it has not been used for the time given and nobody has it.
func (c *connection) closeIdle(idle time.Duration) {
	select {
	case c.lock <- struct{}{}:
	default:
		return
	}
	defer func() { <-c.lock }()
	if c.conn != nil && time.Since(c.used) >= idle {
		c.closeConn()
	}
}

// isOpen reports whether there is a session, as far as is known.
func (c *connection) isOpen() bool {
	c.lock <- struct{}{}
	defer func() { <-c.lock }()
	return c.conn != nil && !c.conn.IsClosed()
}

// close closes the session once nobody has it.
func (c *connection) close() {
	c.lock <- struct{}{}
	defer func() { <-c.lock }()
	if c.conn != nil {
		c.closeConn()
	}
}

// closeConn says goodbye, but not for long: the network may be gone.
func (c *connection) closeConn() {
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	_ = c.conn.Close(ctx)
	c.conn = nil
}
