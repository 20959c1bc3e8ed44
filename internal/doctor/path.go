package doctor

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// server: whether it is one that pgwake can work on.
func (e *exam) server(ctx context.Context) (Finding, error) {
	s, err := row[struct {
		Number            int
		Version           string
		Standby, ReadOnly bool
	}](ctx, e, `
		select current_setting('server_version_num')::int, current_setting('server_version'), pg_is_in_recovery(),
		       current_setting('default_transaction_read_only') = 'on'`)
	switch {
	case err != nil:
		return Finding{}, err
	case s.Standby:
		return Finding{Status: Fail, Text: "the server is a standby: it takes neither tasks nor LISTEN", Do: "name the primary, or several hosts with target_session_attrs=read-write, in the connection string"}, nil
	case s.ReadOnly:
		return Finding{Status: Fail, Text: "default_transaction_read_only is on for this role or database: enqueueing fails, and listeners stay away", Do: "alter role … reset default_transaction_read_only; alter database … reset default_transaction_read_only"}, nil
	case s.Number < 140000:
		return Finding{Status: Fail, Text: "PostgreSQL " + s.Version + " is too old", Do: "upgrade to 14 or newer"}, nil
	}
	return Finding{Status: OK, Text: "PostgreSQL " + s.Version + ", a writable primary"}, nil
}

const directURL = "give the workers a direct connection string in worker.Config.ListenerURL, and this command the same in --listener-url; without it workers poll"

// pooler: whether there is one between the listener and its server process. It gives out process ids of its own.
func (e *exam) pooler(ctx context.Context) (Finding, error) {
	conn, err := open(ctx, e.Listener)
	if err != nil {
		return Finding{}, err
	}
	defer closeConn(conn)
	var first, second uint32
	for _, pid := range []*uint32{&first, &second} {
		if err := conn.QueryRow(ctx, `select pg_backend_pid()`).Scan(pid); err != nil {
			return Finding{}, err
		}
	}
	told := conn.PgConn().PID()
	if first == told && second == told {
		return Finding{Status: OK, Text: "none: sessions are direct"}, nil
	}
	return Finding{
		Status: Warn,
		Text:   "a pooler answers instead of the server: in transaction mode it can carry neither a LISTEN nor the locks of the wake gate; see the check listener",
		Do:     directURL,
	}, nil
}

// listener: whether a notification from another session arrives at a session that waits, and how soon. A pooler lets a
// client hear itself, so the sender is another one.
func (e *exam) listener(ctx context.Context) (Finding, error) {
	var b [12]byte
	_, _ = rand.Read(b[:]) // never fails, by its documentation
	channel := "pgwake_doctor_" + hex.EncodeToString(b[:])
	listener, err := open(ctx, e.Listener)
	if err != nil {
		return Finding{}, err
	}
	defer closeConn(listener)
	if _, err := listener.Exec(ctx, "listen "+pgx.Identifier{channel}.Sanitize()); err != nil {
		return Finding{}, err
	}
	sender, err := open(ctx, e.Conn)
	if err != nil {
		return Finding{}, err
	}
	defer closeConn(sender)

	begin := time.Now()
	if _, err := sender.Exec(ctx, `select pg_notify($1::text, 'echo')`, channel); err != nil {
		return Finding{}, err
	}
	waiting, cancel := context.WithTimeout(ctx, e.limits.echo)
	defer cancel()
	_, err = listener.WaitForNotification(waiting)
	took := time.Since(begin)
	switch {
	case ctx.Err() != nil:
		return Finding{}, ctx.Err()
	case errors.Is(err, context.DeadlineExceeded):
		return Finding{
			Status: Fail,
			Text:   fmt.Sprintf("no notification came within %s: workers that connect like this are not woken; a pooler in transaction mode cannot carry a LISTEN, and a session in another database does not hear it", seconds(e.limits.echo)),
			Do:     directURL,
		}, nil
	case err != nil:
		return Finding{}, err
	}
	_, _ = listener.Exec(ctx, "unlisten *") // for the next client of a pooled session
	if took > time.Second {
		return Finding{
			Status: Warn, Text: fmt.Sprintf("a notification took %s", took.Round(time.Millisecond)),
			Do: "look for load and slow commits on the server: notifications are delivered one transaction at a time",
		}, nil
	}
	return Finding{Status: OK, Text: fmt.Sprintf("a notification arrives %.1f ms after it was sent, its commit included", float64(took.Microseconds())/1000)}, nil
}

// clock: how far this machine's clock is from the server's, by the quickest of some round trips.
func (e *exam) clock(ctx context.Context) (Finding, error) {
	conn, err := e.session(ctx)
	if err != nil {
		return Finding{}, err
	}
	const samples = 9
	var offset time.Duration
	best := time.Duration(-1)
	for range samples {
		var server time.Time
		begin := e.now()
		if err := conn.QueryRow(ctx, `select clock_timestamp()`).Scan(&server); err != nil {
			return Finding{}, err
		}
		end := e.now()
		if trip := end.Sub(begin); best < 0 || trip < best {
			best, offset = trip, begin.Add(trip/2).Sub(server)
		}
	}
	way := "ahead of"
	if offset < 0 {
		way = "behind"
	}
	text := fmt.Sprintf("this machine's clock is %s %s the server's, give or take %s",
		offset.Abs().Round(100*time.Microsecond), way, (best / 2).Round(10*time.Microsecond))
	if offset.Abs() <= best/2 {
		text = fmt.Sprintf("this machine's clock and the server's agree within %s", best.Round(10*time.Microsecond))
	}
	if offset.Abs() > e.limits.clock {
		return Finding{Status: Warn, Text: text + ": pgwake goes by the server's, but logs and due times that programs compute do not", Do: "run NTP on both: chronyc tracking, or timedatectl status"}, nil
	}
	return Finding{Status: OK, Text: text}, nil
}
