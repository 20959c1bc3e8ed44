package notify

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ErrNotWritable is in Health.LastError while the server answers but is a
// standby, or its database or role is set to read-only.
var ErrNotWritable = errors.New("server is not a writable primary")

// cleanupTimeout bounds the wait for what pgx does in the background to a broken
// connection. With a connection of Connector it takes microseconds.
const cleanupTimeout = 250 * time.Millisecond

// aLongTimeAgo is a deadline in the past: it wakes pending reads and writes.
var aLongTimeAgo = time.Unix(1, 0)

// session is the life of one connection, from dial to close. Its methods are
// called by the reading goroutine, but for interrupt and giveUp.
type session struct {
	conn *pgx.Conn
	raw  net.Conn // conn's socket; net.Conn may be used by several goroutines
	pid  uint32

	listened  int  // channels on which LISTEN was answered
	listening bool // all of them, on a writable primary

	dog           *watchdog
	watchers      sync.WaitGroup // the watchdog's goroutine; close waits for it
	stopWatching  context.CancelFunc
	stopInterrupt func() bool

	mu      sync.Mutex // guards the two below
	verdict error      // why we gave the connection up
	noted   error      // the last error pgxlisten reported
}

// openSession takes over conn, which has setup time from now to be listening.
// The end of ctx breaks it, whatever context handler the connection was
// configured with.
func openSession(ctx context.Context, conn *pgx.Conn, setup time.Duration) *session {
	s := &session{conn: conn, raw: conn.PgConn().Conn(), pid: conn.PgConn().PID()}
	// pgxlisten sends its LISTEN without a deadline, so the socket has one.
	_ = s.raw.SetDeadline(time.Now().Add(setup))
	s.stopInterrupt = context.AfterFunc(ctx, s.interrupt)
	return s
}

// verify asks whether the server takes writes. The connection is unusable if not.
func (s *session) verify(ctx context.Context) error {
	var standby, readOnly bool
	err := s.conn.QueryRow(ctx, verifySQL, pgx.QueryExecModeSimpleProtocol).Scan(&standby, &readOnly)
	switch {
	case err != nil:
		err = fmt.Errorf("check server: %w", err)
	case standby:
		err = fmt.Errorf("%w: it is a standby", ErrNotWritable)
	case readOnly:
		err = fmt.Errorf("%w: default_transaction_read_only is on for this database, role or server", ErrNotWritable)
	}
	return err
}

// verifySQL returns whether the server is in recovery and whether transactions
// begun on the connection are read-only. It locks nothing.
const verifySQL = `
select pg_catalog.pg_is_in_recovery(),
       pg_catalog.current_setting('transaction_read_only') = 'on'`

// watch starts the watchdog, which ends in close. Its first probe is to come back before the session's setup time is over.
func (s *session) watch(ctx context.Context, dog *watchdog, onDead func(error)) {
	_ = s.raw.SetDeadline(time.Time{}) // the watchdog's own deadlines take over
	s.dog = dog
	if dog.ring == nil {
		return
	}
	ctx, s.stopWatching = context.WithCancel(ctx)
	s.watchers.Go(func() {
		err := dog.greet(ctx)
		if err == nil {
			err = dog.watch(ctx)
		}
		if ctx.Err() != nil {
			return
		}
		onDead(err)
		s.giveUp(err)
	})
}

// giveUp makes the reader return, with err as the reason.
func (s *session) giveUp(err error) {
	s.mu.Lock()
	if s.verdict == nil {
		s.verdict = err
	}
	s.mu.Unlock()
	s.interrupt()
}

// interrupt makes pending and later reads and writes fail. Not by closing the
// socket: to pgx an expired deadline is no reason to dial a cancel request,
// which would hang on the same dead network; and nothing polite is awaited.
func (s *session) interrupt() { _ = s.raw.SetDeadline(aLongTimeAgo) }

// note keeps an error that pgxlisten reported.
func (s *session) note(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.noted = err
}

// close ends the connection without waiting for the other side, joins what
// the session started and returns why it ended.
func (s *session) close() error {
	s.stopInterrupt()
	if s.stopWatching != nil {
		s.stopWatching()
	}
	s.watchers.Wait()
	_ = s.raw.Close()
	if !s.conn.IsClosed() {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		_ = s.conn.Close(ended)
	}
	timer := time.NewTimer(cleanupTimeout)
	defer timer.Stop()
	select {
	case <-s.conn.PgConn().CleanupDone():
	case <-timer.C:
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	if s.verdict != nil {
		return s.verdict
	}
	return s.noted
}

// notWritable adds ErrNotWritable to the error with which a standby refuses
// LISTEN: read_only_sql_transaction, "cannot execute LISTEN during recovery".
func notWritable(err error) error {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr.Code == "25006" {
		return fmt.Errorf("%w: %w", ErrNotWritable, err)
	}
	return err
}
