package notify

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgxlisten"
	"github.com/sethvargo/go-retry"

	"github.com/pgwake/pgwake/internal/wait"
)

// Listener is a LISTEN session that reconnects, watches itself and says whether
// it can be relied upon. See the package comment for what it guarantees.
type Listener struct {
	cfg     Config
	probe   string // the channel of the watchdog's probes, this listener's own
	running atomic.Bool

	mu     sync.Mutex // guards the two below
	health Health
	dog    *watchdog // of the current or last session; knows when it heard something
}

// Health is a snapshot of a [Listener].
type Health struct {
	// Connected is true while LISTEN is in effect on every channel of a writable
	// primary, as far as is known.
	Connected bool
	// Since is when Connected took its value; zero if Run was never called.
	Since time.Time
	// PID is the server process of the connection, 0 when not connected.
	PID uint32
	// LastHeard is when the last notification or the answer to LISTEN came; zero if never.
	LastHeard time.Time
	// Reconnects counts the connections that came into effect after the first.
	Reconnects int
	// LastError is why the last connection was lost or the last attempt failed.
	// It is kept after a recovery, and nil if nothing ever failed.
	LastError error
}

// NewListener checks cfg and fills in its defaults. It does not connect: Run does.
func NewListener(cfg Config) (*Listener, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Listener{cfg: cfg, probe: probeChannel()}, nil
}

// Run connects, listens and reconnects until ctx ends, and then returns ctx's cause.
// No failure of the database ends it. One Run may be active at a time; a second
// one returns an error at once. Nothing that Run started outlives it.
//
// Run's own goroutine calls the handlers. A panic in one of them passes through
// Run to its caller.
func (l *Listener) Run(ctx context.Context) error {
	if !l.running.CompareAndSwap(false, true) {
		return errors.New("notify: listener is already running")
	}
	defer l.running.Store(false)

	r := &run{Listener: l, backoff: newBackoff(l.cfg.MinBackoff, l.cfg.MaxBackoff)}
	l.setDown(nil)
	defer r.endSession(ctx)

	// r.connect does the waiting, hence no delay in pgxlisten, which knows only a constant one.
	pl := pgxlisten.Listener{Connect: r.connect, LogError: r.note, ReconnectDelay: -1}
	for channel, handle := range l.cfg.Channels {
		pl.Handle(channel, &handler{run: r, handle: handle})
	}
	if l.cfg.Ring != nil {
		pl.Handle(l.probe, &handler{run: r, probe: true, handle: func(string) {}})
	}
	r.channels = len(l.cfg.Channels)
	if l.cfg.Ring != nil {
		r.channels++
	}

	err := pl.Listen(ctx)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return fmt.Errorf("listen: %w", err)
}

// Connected reports whether notifications are being heard, as far as is known.
// A connection that died in silence counts until the watchdog notices.
func (l *Listener) Connected() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.health.Connected
}

// Health returns the current state.
func (l *Listener) Health() Health {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.health
	if l.dog != nil {
		h.LastHeard = l.dog.lastHeard()
	}
	return h
}

// setUp records that a session is listening.
func (l *Listener) setUp(s *session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dog != nil {
		l.health.Reconnects++
	}
	l.dog = s.dog
	l.health.Connected, l.health.Since, l.health.PID = true, time.Now(), s.pid
}

// setDown records that no session is listening, and why if err is not nil.
func (l *Listener) setDown(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.health.Connected || l.health.Since.IsZero() {
		l.health.Connected, l.health.Since, l.health.PID = false, time.Now(), 0
	}
	if err != nil {
		l.health.LastError = err
	}
}

// run is the state of one Run. Only Run's goroutine touches it.
type run struct {
	*Listener
	channels    int // to LISTEN to, the probe's included
	backoff     retry.Backoff
	undelivered retry.Backoff // after sessions that heard nothing; nil if the last was none of them
	tried       bool          // an attempt was made since Run began
	outage      bool          // an outage was logged; later ones begin with a lost session, which always is
	session     *session      // nil while there is no connection
}

// connect is pgxlisten's Connect: it is called at the start and after each
// failure, whatever it was. It buries the old session, backs off and dials.
func (r *run) connect(ctx context.Context) (*pgx.Conn, error) {
	r.endSession(ctx)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if r.tried {
		pause, _ := r.nextWait().Next()
		if wait.For(ctx, pause) != nil {
			return nil, ctx.Err()
		}
	}
	r.tried = true

	dialCtx, cancel := context.WithTimeout(ctx, r.cfg.ConnectTimeout)
	defer cancel()
	conn, err := r.cfg.Connect(dialCtx)
	if err == nil && conn == nil {
		err = errors.New("Config.Connect returned neither connection nor error")
	}
	if err != nil {
		r.failed(ctx, fmt.Errorf("connect: %w", err))
		return nil, err
	}
	r.session = openSession(ctx, conn, r.cfg.ConnectTimeout)
	return conn, nil
}

// nextWait is the back-off of what the last attempt met. Each session that hears nothing leaves a LISTEN behind in the
// pooler, so there are to be few of them.
func (r *run) nextWait() retry.Backoff {
	if !errors.Is(r.Health().LastError, ErrNotDelivered) {
		return r.backoff
	}
	if r.undelivered == nil {
		r.undelivered = newBackoff(undeliveredMin, undeliveredMax)
	}
	return r.undelivered
}

const undeliveredMin, undeliveredMax = time.Second, time.Minute

// listened is called after each LISTEN. After the last one the session is checked and, if the server is writable, probed.
// The echo of the probe brings it into effect.
func (r *run) listened(ctx context.Context) error {
	s := r.session
	s.listened++
	if s.listened < r.channels {
		return nil
	}
	checkCtx, cancel := context.WithTimeout(ctx, r.cfg.ConnectTimeout)
	defer cancel()
	if err := s.verify(checkCtx); err != nil {
		s.giveUp(err) // pgxlisten goes on to read, and fails
		return err
	}

	var ring func(context.Context, string) error
	if r.cfg.Ring != nil {
		ring = func(ctx context.Context, payload string) error { return r.cfg.Ring(ctx, r.probe, payload) }
	}
	s.watch(ctx, newWatchdog(r.cfg.Watchdog, r.cfg.ProbeTimeout, ring), r.setDown)
	if ring == nil {
		r.inEffect(ctx)
	}
	return nil
}

// inEffect is called when the session is listening, which the echo of its first probe has shown if there are probes.
func (r *run) inEffect(ctx context.Context) {
	s := r.session
	s.listening = true
	s.dog.alive()
	r.setUp(s)
	r.backoff, r.undelivered = newBackoff(r.cfg.MinBackoff, r.cfg.MaxBackoff), nil
	r.cfg.Logger.InfoContext(ctx, "listener connected", "pid", s.pid, "channels", r.channels)
	if r.cfg.OnConnect != nil {
		r.cfg.OnConnect()
	}
}

// endSession closes the current session, if any, and reports its end.
func (r *run) endSession(ctx context.Context) {
	s := r.session
	if s == nil {
		return
	}
	r.session = nil
	err := s.close()
	if !s.listening {
		r.failed(ctx, err)
		return
	}
	if ctx.Err() != nil {
		r.setDown(nil)
		r.cfg.Logger.InfoContext(ctx, "listener stopped", "pid", s.pid)
	} else {
		r.setDown(err)
		r.outage = true
		r.cfg.Logger.WarnContext(ctx, "listener connection lost, reconnecting", "pid", s.pid, "error", err)
	}
	if r.cfg.OnDisconnect != nil {
		r.cfg.OnDisconnect()
	}
}

// failed reports an attempt that brought no listening session. The first of an
// outage that began without a connection is news, the others are not.
func (r *run) failed(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	r.setDown(err)
	if r.outage {
		r.cfg.Logger.DebugContext(ctx, "listener still not connected", "error", err)
		return
	}
	r.outage = true
	r.cfg.Logger.WarnContext(ctx, "listener cannot connect, retrying", "error", err)
}

// note is pgxlisten's LogError. The last one before a session ends is its reason,
// unless we ended it. Errors of connect were reported there.
func (r *run) note(ctx context.Context, err error) {
	if r.session != nil {
		r.session.note(notWritable(err))
	}
}

// handler is one channel's entry in pgxlisten.
type handler struct {
	run    *run
	handle func(payload string)
	probe  bool
}

var _ pgxlisten.BacklogHandler = (*handler)(nil)

func (h *handler) HandleNotification(ctx context.Context, n *pgconn.Notification, _ *pgx.Conn) error {
	s := h.run.session
	if !s.listening {
		// What comes before the first echo was committed before OnConnect, which has somebody look.
		if h.probe {
			close(s.dog.first)
			h.run.inEffect(ctx)
		}
		return nil
	}
	s.dog.alive()
	h.handle(n.Payload)
	return nil
}

// HandleBacklog is where pgxlisten tells that LISTEN was answered.
func (h *handler) HandleBacklog(ctx context.Context, _ string, _ *pgx.Conn) error {
	return h.run.listened(ctx)
}
