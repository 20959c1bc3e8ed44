package settled

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgwake/pgwake/internal/dial"
	"github.com/pgwake/pgwake/notify"
)

const (
	// lookMin and lookMax bound the time between two looks whether the gate is held, and between two resyncs while it is
	// not known to be.
	lookMin = 700 * time.Millisecond
	lookMax = 1100 * time.Millisecond
	// blockedEvery is the time between two tries to take a gate that settlements in flight hold open.
	blockedEvery = 50 * time.Millisecond
	// resyncEvery is the longest time between two resyncs: a worker that dies between its commit and the notification takes
	// the word of it along.
	resyncEvery = 30 * time.Second
	// statementTimeout bounds every statement and dial.
	statementTimeout = 5 * time.Second
	// goodbye bounds the last statements.
	goodbye = time.Second
)

// Config tells a [Receiver] where to listen and whom to tell. All of it is required but URL.
type Config struct {
	Pool   *pgxpool.Config // of the sessions' settings
	URL    string          // where they go instead; empty: where the pool goes
	Schema string
	// Settled is called with what was settled, and Resync after something may have been missed and is seen by now. Neither
	// may block; they are called from two goroutines.
	Settled func([]Task)
	Resync  func()
	Logger  *slog.Logger
}

// Receiver hears of settlements while its Run is under way. It has two sessions: the listener's, and one that holds the
// gate, or watches whoever does:
//
//	        listener has its echo             commits in flight are through,
//	        and the keeper's lock             tell all to resync
//	deaf ──────────────────────────► blocked ─────────────────────────────► ready, keeper
//	 ▲ │                                ▲    the keeper is gone                  ▲
//	 │ └────────────────────────────────┼───────────────────────────────────┐    │
//	 │   listener has its echo,         └───────────────────────────────────┤    │
//	 │   another is keeper                                                  ▼    │
//	 └── listener or session lost ◄─────────────────────────────────── ready, outside
//
// Entering ready is a resync, whose look sees all that was settled before; what is settled from then on is refused the
// lock and told. Whoever is outside has heard the keeper's own call to resync, or was ready after it. Deaf and blocked are
// resyncs, one after the other. A pooler in transaction mode leaves a receiver deaf for good.
type Receiver struct {
	cfg      Config
	id       string
	dialer   *dial.Dialer
	listener *notify.Listener
	wake     chan struct{} // cap 1: something to be done before the next look
	ready    atomic.Bool
	resynced atomic.Int64 // the last resync, Unix nanoseconds

	lock     chan struct{}   // holds a token while somebody has what follows
	session  *dial.Session   // nil: none yet
	gate     *notify.Gate    // of the session
	standing notify.Standing // of the session
}

// NewReceiver prepares a receiver. It does not connect: Run does.
func NewReceiver(cfg Config) (*Receiver, error) {
	r := &Receiver{
		cfg: cfg, id: uuid.NewString(), wake: make(chan struct{}, 1), lock: make(chan struct{}, 1),
		gate: notify.NewGate(cfg.Schema, gateTable),
	}
	var err error
	if r.dialer, err = dial.New(cfg.Pool, cfg.URL, "pgwake subscriber", map[string]string{"synchronous_commit": "off"}); err != nil {
		return nil, err
	}
	listener, err := dial.New(cfg.Pool, cfg.URL, "pgwake subscriber listener", nil)
	if err != nil {
		return nil, err
	}
	r.listener, err = notify.NewListener(notify.Config{
		Connect: func(ctx context.Context) (*pgx.Conn, error) {
			s, err := listener.Connect(ctx)
			if err != nil {
				return nil, err
			}
			return s.Conn, nil
		},
		Ring:         r.notify,
		Channels:     map[string]func(string){Channel(cfg.Schema): r.heard},
		OnConnect:    r.turned,
		OnDisconnect: r.turned,
		Logger:       cfg.Logger,
	})
	return r, err
}

// Ready reports whether what is settled from now on is told, as far as is known. If that is wrong a resync follows.
func (r *Receiver) Ready() bool { return r.ready.Load() }

// Run hears until ctx ends. Nothing that it started outlives it, its sessions are closed.
func (r *Receiver) Run(ctx context.Context) {
	r.resynced.Store(time.Now().UnixNano()) // the first resync comes when it is ready, or after a moment
	var listening sync.WaitGroup
	listening.Go(func() { _ = r.listener.Run(ctx) }) // ends with ctx
	defer listening.Wait()
	defer r.leave()
	var trouble error
	for ctx.Err() == nil {
		wait, err := r.step(ctx)
		if err != nil && trouble == nil && ctx.Err() == nil {
			r.cfg.Logger.Warn("subscriber has trouble with the database and goes on trying", "error", err)
		} else if err == nil && trouble != nil {
			r.cfg.Logger.Info("subscriber is well again")
		}
		trouble = err
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-r.wake:
			timer.Stop()
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// step does what is to be done now and returns the time until it must be looked again.
func (r *Receiver) step(ctx context.Context) (time.Duration, error) {
	wait := lookMin + rand.N(lookMax-lookMin)
	standing := notify.Keeper
	var err error
	connected := r.listener.Connected()
	if connected {
		standing, err = r.arm(ctx)
	}
	switch ready := connected && err == nil && standing != notify.Keeper; {
	case ready && !r.ready.Load():
		r.ready.Store(true) // before the call: whoever is not called sees it
		r.resync()
	case ready:
		r.resyncAfter(resyncEvery)
	default:
		r.ready.Store(false)
		if r.resyncAfter(lookMin) && connected && err == nil {
			err = r.notify(ctx, Channel(r.cfg.Schema), message{From: r.id, Say: sayResync}.text())
		}
		if connected && err == nil {
			wait = blockedEvery
		}
	}
	return wait, err
}

var errPooled = errors.New("the gate needs a direct session, and this one goes through a pooler")

// arm takes the gate, unless somebody else has it, and calls the others if it has just been taken: before that, they may
// have missed something.
func (r *Receiver) arm(ctx context.Context) (standing notify.Standing, err error) {
	err = r.do(ctx, func(ctx context.Context, s *dial.Session) error {
		if s.Pooled {
			return errPooled
		}
		before := r.standing
		arming, err := r.gate.Arm(ctx, s.Conn, r, []string{topic})
		if err != nil {
			return err
		}
		standing = arming.Standing
		r.standing = standing
		if standing != notify.Armed {
			return nil
		}
		if before == notify.Armed {
			return s.Ping(ctx) // the lock is held as long as the session is there
		}
		r.ready.Store(false) // it may have missed something itself
		_, err = s.Exec(ctx, notifySQL, Channel(r.cfg.Schema), message{From: r.id, Say: sayResync}.text())
		if err != nil {
			r.standing = notify.Keeper // to be called next time
		}
		return err
	})
	return standing, err
}

const notifySQL = `select pg_notify($1, $2)`

// notify sends a notification; it is the listener's probe, too.
func (r *Receiver) notify(ctx context.Context, channel, payload string) error {
	return r.do(ctx, func(ctx context.Context, s *dial.Session) error {
		_, err := s.Exec(ctx, notifySQL, channel, payload)
		return err
	})
}

// do runs f with the session, which it opens if there is none. What is not known of another session is that it is ready.
func (r *Receiver) do(ctx context.Context, f func(context.Context, *dial.Session) error) error {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	select {
	case r.lock <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-r.lock }()
	if r.session == nil || r.session.IsClosed() {
		r.ready.Store(false)
		r.standing = notify.Keeper
		s, err := r.dialer.Connect(ctx)
		if err != nil {
			return err
		}
		r.session = s
	}
	return f(ctx, r.session)
}

// leave lets go of the gate, so that somebody else may take it at once, and closes the session.
func (r *Receiver) leave() {
	r.ready.Store(false)
	ctx, cancel := context.WithTimeout(context.Background(), goodbye)
	defer cancel()
	r.lock <- struct{}{} // for the time of a statement that has ended with Run's ctx
	defer func() { <-r.lock }()
	s := r.session
	if s == nil {
		return
	}
	if !s.IsClosed() && r.standing == notify.Armed && r.gate.Release(ctx, s.Conn, r) == nil {
		_, _ = s.Exec(ctx, notifySQL, Channel(r.cfg.Schema), message{From: r.id, Say: sayLeaving}.text())
	}
	_ = s.Close(ctx)
	select {
	case <-s.PgConn().CleanupDone(): // of a connection that broke with the end of Run's ctx
	case <-ctx.Done():
	}
}

// heard takes a notification, on the listener's goroutine.
func (r *Receiver) heard(payload string) {
	m, tasks, err := decode(payload)
	switch {
	case err == nil && m.Say == "":
		r.cfg.Settled(tasks)
	case m.From == r.id:
	case m.Say == sayLeaving:
		r.poke()
	default: // or a word of a newer version
		r.resync()
	}
}

// turned is called when the listener is connected, or no longer: either way it was deaf for a moment.
func (r *Receiver) turned() {
	r.ready.Store(false)
	r.poke()
}

func (r *Receiver) poke() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *Receiver) resync() {
	r.resynced.Store(time.Now().UnixNano())
	r.cfg.Resync()
}

func (r *Receiver) resyncAfter(d time.Duration) bool {
	due := time.Since(time.Unix(0, r.resynced.Load())) >= d
	if due {
		r.resync()
	}
	return due
}
