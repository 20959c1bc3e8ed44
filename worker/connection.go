package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgwake/pgwake/internal/dial"
	"github.com/pgwake/pgwake/internal/sqlstate"
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

// otherParams are those of the other connections. A plan made while the queue was empty is ruinous when it is full.
var otherParams = map[string]string{"plan_cache_mode": "force_custom_plan"}

// settleSettings are the settings of the settler's connection. With the statistics of an empty table every join looks like
// one of single rows, and a batch would be compared with itself row by row.
func settleSettings(async bool) map[string]string {
	settings := map[string]string{"plan_cache_mode": "force_custom_plan", "enable_nestloop": "off", "lock_timeout": lockPatience}
	if async {
		settings["synchronous_commit"] = "off"
	}
	return settings
}

// connection is one session of the worker's own, opened by its first use and again after it broke. One caller at a time
// has it.
type connection struct {
	dialer *dial.Dialer
	opened func()        // called with each new session; may be nil
	lock   chan struct{} // holds a token while somebody has the session
	conn   *dial.Session // guarded by lock
	used   time.Time     // guarded by lock
}

func newConnection(dialer *dial.Dialer) *connection {
	return &connection{dialer: dialer, lock: make(chan struct{}, 1)}
}

// do runs f with the session, in the time given, waiting for others included. Behind a pooler f runs in a transaction, so
// what it learns holds once do has returned. A statement whose context ends breaks the session; the next use opens another.
func (c *connection) do(ctx context.Context, timeout time.Duration, f func(ctx context.Context, conn *pgx.Conn) error) error {
	return c.with(ctx, timeout, func(ctx context.Context, s *dial.Session) error { return s.Do(ctx, f) })
}

// errBusy says that others have had the session for longer than a statement should take.
var errBusy = errors.New("the connection is busy")

const busyPatience = 100 * time.Millisecond

// tryDo is do, but fails with errBusy if the session is not to be had soon.
func (c *connection) tryDo(ctx context.Context, timeout time.Duration, f func(ctx context.Context, conn *pgx.Conn) error) error {
	soon, cancel := context.WithTimeout(ctx, busyPatience)
	defer cancel()
	if err := c.take(soon); err != nil {
		return errBusy
	}
	defer c.giveBack()
	return c.use(ctx, timeout, func(ctx context.Context, s *dial.Session) error { return s.Do(ctx, f) })
}

// session runs f with the session as it is, for what belongs to sessions.
func (c *connection) session(ctx context.Context, timeout time.Duration, f func(ctx context.Context, conn *pgx.Conn) error) error {
	return c.with(ctx, timeout, func(ctx context.Context, s *dial.Session) error { return f(ctx, s.Conn) })
}

func (c *connection) with(ctx context.Context, timeout time.Duration, f func(ctx context.Context, s *dial.Session) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := c.take(ctx); err != nil {
		return err
	}
	defer c.giveBack()
	return c.use(ctx, timeout, f)
}

func (c *connection) take(ctx context.Context) error {
	select {
	case c.lock <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the connection: %w", context.Cause(ctx))
	}
}

func (c *connection) giveBack() { <-c.lock }

// use runs f with the session that the caller has taken.
func (c *connection) use(ctx context.Context, timeout time.Duration, f func(ctx context.Context, s *dial.Session) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if c.conn == nil || c.conn.IsClosed() {
		conn, err := c.dialer.Connect(ctx)
		if err != nil {
			return fmt.Errorf("connect: %w", err)
		}
		c.conn = conn
		if c.opened != nil {
			c.opened()
		}
		if !conn.Pooled {
			// The server then notices while it runs a statement, or waits for a lock, that the client is gone. Not every
			// platform has it.
			_, _ = conn.Exec(ctx, `set client_connection_check_interval = '500ms'`)
		}
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
	defer c.giveBack()
	if c.conn != nil && time.Since(c.used) >= idle {
		c.closeConn()
	}
}

// isOpen reports whether there is a session, as far as is known.
func (c *connection) isOpen() bool {
	c.lock <- struct{}{}
	defer c.giveBack()
	return c.conn != nil && !c.conn.IsClosed()
}

// isLost looks, without a statement, whether the server has ended the session, unless somebody has it.
func (c *connection) isLost() bool {
	select {
	case c.lock <- struct{}{}:
	default:
		return false
	}
	defer c.giveBack()
	if c.conn == nil {
		return true
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if _, err := c.conn.PgConn().ReceiveMessage(ctx); err == nil || pgconn.Timeout(err) {
		return false
	}
	c.closeConn()
	return true
}

// close closes the session once nobody has it.
func (c *connection) close() {
	c.lock <- struct{}{}
	defer c.giveBack()
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
