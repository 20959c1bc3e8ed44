package worker

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgwake/pgwake/internal/dial"
	"github.com/pgwake/pgwake/notify"
)

// prepareConnections sets up where the worker's own sessions go. The claim connection holds the wake gate, which needs the
// same kind of session as the listener.
func (w *Worker) prepareConnections() error {
	var errs []error
	dialer := func(url, name string, settings map[string]string) *dial.Dialer {
		d, err := dial.New(w.pool.Config(), url, "pgwake "+w.config.Name+name, settings)
		errs = append(errs, err)
		return d
	}
	url := w.config.ListenerURL
	w.claims = newConnection(dialer(url, "", claimParams))
	w.claims.opened = w.looks.RingAll // what the gate held is gone
	w.beats = newConnection(dialer("", "", otherParams))
	w.settles = newConnection(dialer("", "", settleSettings(w.config.AsyncSettle)))
	w.history = dialer("", " history", map[string]string{"lock_timeout": "2s"})
	listener := dialer(url, " listener", nil)
	if err := errors.Join(errs...); err != nil || w.config.PollOnly {
		return err
	}
	channel := notify.Channel(w.config.Schema, "tasks")
	var err error
	w.listener, err = notify.NewListener(notify.Config{
		Connect: func(ctx context.Context) (*pgx.Conn, error) {
			s, err := listener.Connect(ctx)
			if err != nil {
				return nil, err
			}
			return s.Conn, nil
		},
		Ring:         w.notify,
		Channels:     map[string]func(string){channel: w.rung, channel + lateSuffix: w.late, channel + callSuffix: w.calls.Ring, channel + helpSuffix: w.helps.Ring, channel + lookSuffix: w.looks.Ring},
		OnConnect:    w.connected,
		OnDisconnect: w.disconnected,
		ProbeTimeout: probeTimeout, ConnectTimeout: dial.Timeout,
		Logger: w.log,
	})
	return err
}

// probeTimeout bounds, twice, the time after which a dead connection of the listener is given up.
const probeTimeout = 3 * time.Second

// lateSuffix is that of the ring trigger's channel for rows that appear behind the marks.
const lateSuffix = "_late"

// Beside the channels of the ring trigger there are three on which workers speak to each other.
const (
	// callSuffix: nobody is responsible any more, who has room may take over.
	callSuffix = "_call"
	// helpSuffix: there is more than enough to do for everybody.
	helpSuffix = "_help"
	// lookSuffix: somebody was rung for a type, the payload, that it cannot run.
	lookSuffix = "_look"
)

func (w *Worker) rung(typ string) {
	w.rings.Ring(typ)
	if _, ok := w.types[typ]; ok || typ == "" {
		return
	}
	select {
	case w.foreign <- typ:
	default: // one is being helped; the sweep is there for the others
	}
}

// helpForeign asks others to look where this worker, being the one that is rung, is rung for a type it does not have: two
// types share a bucket of the gate. It ends with ctx.
func (w *Worker) helpForeign(ctx context.Context) {
	for {
		select {
		case typ := <-w.foreign:
			err := w.claims.session(ctx, statementTimeout, func(ctx context.Context, conn *pgx.Conn) error {
				keeps, err := w.gate.KeepsTopic(ctx, conn, typ)
				if err != nil || !keeps {
					return err
				}
				_, err = conn.Exec(ctx, "select pg_notify($1, $2)", notify.Channel(w.config.Schema, "tasks")+lookSuffix, typ)
				return err
			})
			if err != nil && ctx.Err() == nil {
				w.log.Debug("no help asked for a task of another worker", "type", typ, "error", err)
			}
		case <-ctx.Done():
			return
		}
	}
}

// notify sends a notification: on the claim connection, or on the heartbeat's while a claim waits for something there.
func (w *Worker) notify(ctx context.Context, channel, payload string) error {
	send := func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "select pg_notify($1, $2)", channel, payload)
		return err
	}
	if err := w.claims.tryDo(ctx, statementTimeout, send); !errors.Is(err, errBusy) {
		return err
	}
	return w.beats.do(ctx, statementTimeout, send)
}

// call tells the others that this worker is no longer responsible.
func (w *Worker) call(ctx context.Context) error {
	return w.notify(ctx, notify.Channel(w.config.Schema, "tasks")+callSuffix, "")
}

// callForHelp tells the others that there is work for all of them.
func (w *Worker) callForHelp(ctx context.Context) error {
	return w.notify(ctx, notify.Channel(w.config.Schema, "tasks")+helpSuffix, "")
}

// connected runs after LISTEN: leases first, then a full look for what was missed.
func (w *Worker) connected() {
	select {
	case w.beatNow <- struct{}{}:
	default:
	}
	for _, d := range w.dispatchers {
		d.marks.Reset()
	}
	w.listening.Store(true)
	w.looks.RingAll()
}

// disconnected runs when the listener's connection is lost: nobody must think that this worker can be rung.
func (w *Worker) disconnected() {
	w.listening.Store(false)
	w.looks.RingAll()
}
