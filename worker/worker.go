package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/internal/dial"
	"github.com/pgwake/pgwake/lease"
	"github.com/pgwake/pgwake/migrations"
	"github.com/pgwake/pgwake/notify"
	"github.com/pgwake/pgwake/registry"
)

// Worker runs the tasks of the types in a registry. Make it with [New] and start it with [Worker.Run].
type Worker struct {
	config   Config
	log      *slog.Logger
	pool     *pgxpool.Pool
	queue    *lease.Queue
	types    map[string]*registry.Type // by name and alias
	id       string                    // of this run; the holder of its leases
	timeouts map[*registry.Type]error  // causes with which contexts end
	complete map[bool]string           // statement of CompleteTx, by whether the type has no history
	ran      atomic.Bool

	claims  *connection // dispatchers, sweeps, the watchdog's ring
	beats   *connection // heartbeat, on demand
	settles *connection // settler, on demand
	history *dial.Dialer

	listener    *notify.Listener // nil if it only polls
	rings       notify.Fanout    // a row has become runnable
	calls       notify.Fanout    // nobody is responsible any more
	helps       notify.Fanout    // there is work for everybody
	looks       notify.Fanout    // somebody else cannot run what is runnable, or may have missed it
	foreign     chan string      // types rung that this worker does not have
	gate        *notify.Gate     // of the claim connection; whoever has that has it
	listening   atomic.Bool
	fleet       atomic.Int64 // workers there are, as of the last report
	dispatchers []*dispatcher
	settler     *settler
	held        *held
	suspects    token         // of the one suspect that may run
	beatNow     chan struct{} // cap 1: the heartbeat is wanted at once
	swept       atomic.Int64  // last report to the workers table, Unix nanoseconds

	handlerContext context.Context // parent of every handler's; ended only after the drain
	endHandlers    context.CancelCauseFunc
}

// New makes a worker of the types registered so far. It does not touch the database. The pool is that of the handlers:
// the worker takes no connection from it, only its settings, for 2 connections of its own while idle and 4 while busy.
func New(pool *pgxpool.Pool, reg *registry.Registry, config Config) (*Worker, error) {
	if pool == nil || reg == nil {
		return nil, errors.New("new worker: pool and registry are needed")
	}
	config.setDefaults()
	if err := config.validate(); err != nil {
		return nil, fmt.Errorf("new worker: %w", err)
	}
	queue, err := lease.New(pgwake.Table(config.Schema))
	if err != nil {
		return nil, fmt.Errorf("new worker: %w", err)
	}
	id, err := uuid.NewRandom()
	if err != nil {
		return nil, fmt.Errorf("new worker: %w", err)
	}
	w := &Worker{
		config: config, pool: pool, queue: queue, id: id.String(),
		complete: map[bool]string{
			false: pgwake.CompleteStatement(config.Schema, true),
			true:  pgwake.CompleteStatement(config.Schema, false),
		},
		log:      config.Logger.With("worker", config.Name),
		types:    map[string]*registry.Type{},
		timeouts: map[*registry.Type]error{},
		held:     newHeld(),
		suspects: make(token, 1),
		beatNow:  make(chan struct{}, 1),
		foreign:  make(chan string, 1),
		gate:     notify.NewGate(config.Schema, "tasks"),
	}
	if err := w.prepareConnections(); err != nil {
		return nil, fmt.Errorf("new worker: %w", err)
	}
	w.settler = newSettler(w)

	var shared []string
	for _, t := range reg.Types() {
		for _, n := range t.Names() {
			w.types[n] = t
		}
		w.timeouts[t] = fmt.Errorf("%w after %s", ErrTimeout, t.Timeout)
		if t.Slots > 0 {
			w.dispatchers = append(w.dispatchers, newDispatcher(w, t.Names(), t.Slots))
		} else {
			shared = append(shared, t.Names()...)
		}
	}
	if len(shared) > 0 {
		w.dispatchers = append(w.dispatchers, newDispatcher(w, shared, config.Slots))
	}
	if len(w.dispatchers) == 0 {
		return nil, errors.New("new worker: the registry is empty: register a handler first")
	}

	return w, nil
}

// ID identifies this worker's run; it is the holder of its leases and the key of its row in the workers table.
func (w *Worker) ID() string { return w.id }

// Run works until ctx ends, then drains: it stops claiming, waits for running handlers up to DrainTimeout, ends their
// contexts with [ErrStopping], gives their tasks back without an attempt spent, and writes the last results. It returns
// nil after that, and an error if it could not start or if handlers ignored the end of their context; their tasks then
// run again when their leases end. A worker runs once.
func (w *Worker) Run(ctx context.Context) error {
	if !w.ran.CompareAndSwap(false, true) {
		return errors.New("run worker: a worker runs once: make another")
	}
	defer func() {
		w.claims.close()
		w.beats.close()
		w.settles.close()
	}()
	if err := w.start(ctx); err != nil {
		if ctx.Err() != nil {
			w.unregister(time.Now().Add(stopGrace))
			return nil // stopped before it began
		}
		return fmt.Errorf("start worker: %w", err)
	}
	w.log.Info("worker started", "id", w.id, "types", len(w.types), "slots", w.slots(), "lease", w.config.Lease)
	w.handlerContext, w.endHandlers = context.WithCancelCause(context.WithoutCancel(ctx))

	// What must go on while handlers run has contexts of its own, ended one by one below.
	listening, stopListening := context.WithCancel(w.handlerContext)
	beating, stopBeating := context.WithCancel(context.WithoutCancel(ctx))
	settling, stopSettling := context.WithCancel(context.WithoutCancel(ctx))
	var listeners, claimers, beater, settlers sync.WaitGroup
	for _, d := range w.dispatchers {
		d.ring, d.others = w.rings.Subscribe(d.types...), w.rings.Subscribe(d.types...)
		d.call, d.help, d.look = w.calls.Subscribe(), w.helps.Subscribe(), w.looks.Subscribe(d.types...)
		d.stand(notify.Arming{}, nil)
		defer d.ring.Close()
		defer d.others.Close()
		defer d.call.Close()
		defer d.help.Close()
		defer d.look.Close()
	}
	if w.listener != nil {
		listeners.Go(func() { _ = w.listener.Run(listening) })
		claimers.Go(func() { w.helpForeign(ctx) })
	}
	beater.Go(func() { w.heartbeat(beating) })
	beater.Go(func() { w.expireRuns(beating) })
	settlers.Go(func() { w.settler.run(settling) })
	claimers.Go(func() { w.report(ctx) })
	claimers.Go(func() { w.keepHistory(ctx) })
	claimers.Go(func() { w.lookBack(ctx) })
	for _, d := range w.dispatchers {
		claimers.Go(func() { d.run(ctx) })
	}

	<-ctx.Done()
	drained := time.Now().Add(max(w.config.DrainTimeout, 0))
	deadline := drained.Add(stopGrace)
	ending := time.AfterFunc(time.Until(drained), func() { w.endHandlers(ErrStopping) })
	defer ending.Stop()

	// The stop order.
	// 1. Stop claiming. A claim under way ends, and its rows go back.
	claimers.Wait()
	w.handOver(deadline)
	// 2. Stop listening.
	stopListening()
	listeners.Wait()
	// 3. Let handlers finish, then end their contexts.
	stuck := w.drain(drained, deadline)
	// 4. Write the last results.
	close(w.settler.drained)
	giveUp := time.AfterFunc(max(time.Until(deadline), lastChance), stopSettling)
	settlers.Wait()
	giveUp.Stop()
	stopSettling()
	// 5. Stop renewing. What is still held is lost to a lease that ends by itself.
	stopBeating()
	beater.Wait()
	// 6. Say goodbye.
	w.unregister(deadline)
	w.log.Info("worker stopped", "id", w.id)
	return stuck
}

// stopGrace is how long handlers have to return after their contexts have ended, and statements to end that are under
// way when the worker stops.
const stopGrace = 2 * time.Second

// lastChance is how long a last statement may take when the time for stopping is over.
const lastChance = 200 * time.Millisecond

// drain waits for the handlers: until the first instant with their contexts left alone, until the second one in all. It returns an error that names those that ignore the end of their context.
func (w *Worker) drain(until, deadline time.Time) error {
	var handlers sync.WaitGroup
	for _, d := range w.dispatchers {
		handlers.Go(func() { _ = d.group.Wait() })
	}
	done := make(chan struct{})
	// Ends with the last handler; only one that never returns keeps it beyond Run.
	go func() {
		handlers.Wait()
		close(done)
	}()
	if !await(done, time.Until(until)) {
		w.log.Info("ending handlers that have not finished", "handlers", w.running())
	}
	w.endHandlers(ErrStopping)
	if await(done, max(time.Until(deadline), lastChance)) {
		return nil
	}
	var names []string
	for _, e := range w.held.unreturned() {
		names = append(names, fmt.Sprintf("%s of type %q", e.run.ID, e.run.Type))
		e.decide() // nothing it returns counts any more
	}
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	return fmt.Errorf("stop worker: %d handlers ignore the end of their context: %s", len(names), strings.Join(names, ", "))
}

func await(done <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

// handOver lets another worker be rung from now on.
func (w *Worker) handOver(deadline time.Time) {
	if !w.claims.isOpen() {
		return
	}
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	for _, d := range w.dispatchers {
		if err := d.letGo(ctx); err != nil {
			w.log.Warn("wake-ups not handed over: they wait for the end of this session", "error", err)
			return
		}
	}
}

func (w *Worker) name(object string) string {
	return pgx.Identifier{w.config.Schema, object}.Sanitize()
}

// start checks that this worker can work, and announces it.
func (w *Worker) start(ctx context.Context) error {
	return w.claims.do(ctx, statementTimeout, func(ctx context.Context, conn *pgx.Conn) error {
		if err := migrations.Check(ctx, conn, w.config.Schema); err != nil {
			return err
		}
		if err := w.checkConnections(ctx, conn); err != nil {
			return err
		}
		if _, err := conn.Exec(ctx, "select "+w.name("ensure_partitions")+"()"); err != nil {
			return fmt.Errorf("make partitions of the archive: %w", err)
		}
		if err := w.register(ctx, conn); err != nil {
			return err
		}
		return w.reportOnce(ctx, conn, false)
	})
}

// checkConnections refuses a pool that the server can never satisfy beside the worker's own connections.
func (w *Worker) checkConnections(ctx context.Context, conn *pgx.Conn) error {
	var allowed int
	if err := conn.QueryRow(ctx, `select current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int`).Scan(&allowed); err != nil {
		return fmt.Errorf("read the server's limit of connections: %w", err)
	}
	if need := int(w.pool.Config().MaxConns) + busyConnections; need > allowed {
		return fmt.Errorf("the server allows %d connections and this process may need %d: %d of the pool and %d of the worker: raise max_connections by at least %d, or set pool_max_conns to at most %d",
			allowed, need, need-busyConnections, busyConnections, need-allowed, max(allowed-busyConnections, 1))
	}
	return nil
}

func (w *Worker) slots() (n int) {
	for _, d := range w.dispatchers {
		n += d.slots.size
	}
	return n
}

func (w *Worker) running() (n int) {
	for _, d := range w.dispatchers {
		n += d.slots.running()
	}
	return n
}

// version is the version of this module in the program that runs it.
func version() string {
	const path = "github.com/pgwake/pgwake"
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	if info.Main.Path == path {
		return info.Main.Version
	}
	for _, dep := range info.Deps {
		if dep.Path == path {
			return dep.Version
		}
	}
	return "unknown"
}
