package worker

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/pgwake/pgwake/internal/sqlstate"
	"github.com/pgwake/pgwake/internal/wait"
	"github.com/pgwake/pgwake/lease"
	"github.com/pgwake/pgwake/notify"
	"github.com/pgwake/pgwake/registry"
)

const (
	// reread bounds the time between two looks, since rows due in more than a minute do not ring.
	reread = 30 * time.Second
	// leaseLook is the least time between two looks at the ends of leases, which lie behind dead entries.
	leaseLook = time.Second
	// blockedRetry is the first wait before another look where due rows are locked by somebody; it doubles up to
	// blockedRetryMax.
	blockedRetry    = 50 * time.Millisecond
	blockedRetryMax = 150 * time.Millisecond
	// minTurn is the room from which on a claim waits for its turn while there is more than enough for all. Where that did
	// not come it is not waited for again for turnRest.
	minTurn  = 64
	turnRest = 5 * time.Second
	// suspectRetry is how long a suspect waits that cannot run now because another one does.
	suspectRetry = 2 * time.Second
)

// dispatcher finds work for one group of slots: it claims when there is room, and is told to look by a ring, by a slot
// set free, by the due timer and by the sweep.
type dispatcher struct {
	w        *Worker
	names    []string         // of types, and aliases
	types    []string         // the same in the order of their turns
	attempts []int32          // allowed to tasks of each that do not say
	kinds    []*registry.Type // what each is
	slots    *slots
	group    errgroup.Group // runs the handlers, bounded by slots
	marks    lease.Marks
	noTurn   time.Time // until when not to wait for a turn

	ring     *notify.Subscription // a row has become runnable, of a type of which this one is keeper
	others   *notify.Subscription // the same for all other types
	call     *notify.Subscription // nobody is responsible
	help     *notify.Subscription // there is work for everybody
	look     *notify.Subscription // something may have been missed
	suspects chan struct{}        // cap 1: the next suspect may run

	// Only the dispatcher's own goroutine uses these.
	claimed     int
	found       []string      // types of the last claim
	fullAt      time.Time     // since when claims have found more than there were slots for; zero: the last one did not
	plenty      bool          // the last claim was a large one, and full
	dueAt       time.Time     // next look for due rows; zero: none known
	leaseAt     time.Time     // next end of a lease; zero: none known
	leaseLooked time.Time     // last look at leases
	learned     time.Time     // last look at due times, too
	lookAt      time.Time     // next look without a cause: the sweep
	blocked     time.Duration // last wait for rows locked by somebody
	troubled    time.Duration // last wait after an error
	watch       watch
	state       stateLog
}

func newDispatcher(w *Worker, types []string, slots int) *dispatcher {
	d := &dispatcher{w: w, names: types, types: slices.Clone(types), slots: newSlots(slots), suspects: make(chan struct{}, 1)}
	for _, name := range types {
		d.attempts, d.kinds = append(d.attempts, int32(w.types[name].MaxAttempts)), append(d.kinds, w.types[name])
	}
	d.group.SetLimit(slots)
	d.state = stateLog{log: w.log, what: "dispatcher"}
	return d
}

// run claims and dispatches until ctx ends. What it has claimed by then it still hands out or gives back.
func (d *dispatcher) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	defer func() { d.giveBack(ctx, d.slots.close()) }()
	act, look := true, true // whether to do anything, and whether to claim due tasks whatever is known of them
	var err error
	for ctx.Err() == nil {
		if act {
			err = d.pass(ctx, look)
			if ctx.Err() != nil {
				return // whatever the error is
			}
			if err != nil {
				d.yield(ctx)
			}
			d.state.note(err)
		}
		if act || err == nil {
			timer.Reset(d.wait(err))
		}
		act, look = true, true
		select {
		case <-ctx.Done():
		case <-d.ring.C():
		case <-d.others.C():
			act = d.heard(time.Now())
		case <-d.call.C():
			d.called(time.Now())
			act = false
		case <-d.help.C():
			d.helpWanted(time.Now())
			act = false
		case <-d.look.C():
			d.watch.tryAt = time.Now()
		case <-d.slots.freed:
		case <-d.suspects:
			look, d.leaseAt = false, time.Now()
		case <-timer.C:
			now := time.Now()
			look = err != nil || reached(now, d.watch.second) || reached(now, d.watch.pollAt)
		}
	}
}

func reached(now, at time.Time) bool { return !at.IsZero() && !now.Before(at) }

// pass claims what there is and room for, and learns when to look again. Rows whose lease has ended come first: under a
// standing backlog they would never get a slot.
func (d *dispatcher) pass(ctx context.Context, look bool) error {
	now := time.Now()
	d.begin(d.slots.fill())
	if reached(now, d.slots.overdue()) {
		d.giveBack(ctx, d.slots.takeBack())
	}
	leases := d.leaseLooked.IsZero() || reached(now, d.leaseAt)
	look = look || !d.fullAt.IsZero()
	if d.lostSession(now) {
		d.stand(notify.Arming{}, nil)
		d.watch.tryAt, look = now, true
	}
	if leases {
		before := d.claimed
		if err := d.claimExpired(ctx); err != nil {
			return err
		}
		if err := d.claimSuspect(ctx); err != nil {
			return err
		}
		if d.watch.deputy && d.claimed > before {
			d.watch.alone = now.Add(actAlone) // the keeper should have been here before
		}
	}
	due, second, found := reached(now, d.dueAt), reached(now, d.watch.second), 0
	if look || due {
		before := d.claimed
		if err := d.claim(ctx); err != nil {
			return err
		}
		found = d.claimed - before
		if second {
			d.watch.second = time.Time{}
			if found > 0 {
				d.judgeKeeper(ctx, d.found, d.watch.task)
			} else {
				d.watch.caught = 0
			}
		}
	}
	if err := d.moderate(ctx); err != nil {
		return err
	}
	if err := d.yieldIfFull(ctx); err != nil {
		return err
	}
	// While it is busy, and when a ring has come in meanwhile, only the ends of leases are worth a look, now and then.
	busy := !d.fullAt.IsZero() || d.watch.isKeeper() && len(d.ring.C()) > 0
	if ctx.Err() != nil || busy && time.Since(d.leaseLooked) < leaseLook {
		return nil
	}
	if !busy {
		if ok, err := d.sleepable(ctx, found); !ok || err != nil {
			return err
		}
	}
	d.planTurn(time.Now())
	// One that only tried to take over, or looked in vain behind the keeper's back or without rings, knows what lies ahead
	// from its last look. The deputy must know it as well as the keeper.
	idle := !look || second && (!d.watch.deputy || now.Sub(d.learned) < time.Second) || d.watch.poll > 0
	if idle && !leases && !due && found == 0 && now.Before(d.lookAt) {
		return nil
	}
	return d.learn(ctx)
}

// claim claims due tasks as far as there is room for them.
func (d *dispatcher) claim(ctx context.Context) error {
	room := d.slots.room()
	limits := d.slots.limits(d.kinds, room)
	inTurn := room >= minTurn && !d.fullAt.IsZero() && time.Now().After(d.noTurn)
	err := d.claimUpTo(ctx, room, func(opts *lease.ClaimOptions) {
		opts.Limits, opts.Marks, opts.InTurn = limits, &d.marks, inTurn
	}, d.w.queue.Claim)
	if inTurn && sqlstate.Server(err) { // not in time, or not allowed
		d.noTurn = time.Now().Add(turnRest)
		return d.claim(ctx)
	}
	return err
}

// claimExpired claims tasks whose lease has ended, as far as there are free slots: none of them is claimed ahead.
func (d *dispatcher) claimExpired(ctx context.Context) error {
	return d.claimUpTo(ctx, d.slots.free(), func(*lease.ClaimOptions) {}, d.w.queue.ClaimExpired)
}

type claimFunc func(context.Context, lease.DB, lease.ClaimOptions) ([]*lease.Lease, error)

// claimUpTo claims up to n tasks. If there may be more, the next that ends is told of.
func (d *dispatcher) claimUpTo(ctx context.Context, n int, options func(*lease.ClaimOptions), claim claimFunc) error {
	if n > 0 {
		d.plenty = false
		d.slots.expectMore(false)
		batch, full, err := d.take(ctx, n, options, claim)
		if err != nil {
			return err
		}
		d.found = d.found[:0]
		for _, e := range batch {
			if !slices.Contains(d.found, e.lease.Type) {
				d.found = append(d.found, e.lease.Type)
			}
		}
		if len(batch) > 0 {
			d.blocked = 0
			d.claimed += len(batch)
			d.dispatch(ctx, batch)
		}
		if !full {
			d.fullAt = time.Time{}
			return nil
		}
		d.plenty = n >= minTurn
	}
	d.slots.expectMore(true)
	if d.fullAt.IsZero() {
		d.fullAt = time.Now()
	}
	return nil
}

// claimSuspect claims one row that may have killed its worker, unless such a one runs in this process. The others stay
// expired until then: claimed and waiting, they would be charged with the death of this worker.
func (d *dispatcher) claimSuspect(ctx context.Context) error {
	if d.slots.free() == 0 || !d.w.suspects.tryTake() {
		return nil
	}
	batch, _, err := d.take(ctx, 1, func(*lease.ClaimOptions) {}, d.w.queue.ClaimSuspects)
	for _, e := range batch {
		e.alone = true
	}
	if len(batch) == 0 {
		d.w.suspects.giveBack()
		return err
	}
	d.slots.expectMore(true) // it may take the last slot
	d.dispatch(ctx, batch)
	return nil
}

// take claims up to n rows, and reports whether there may be more. A claim that is under way when the worker stops goes on:
// it would commit all the same, and its rows would wait for their leases to end.
func (d *dispatcher) take(ctx context.Context, n int, options func(*lease.ClaimOptions), claim claimFunc) (batch []*execution, full bool, err error) {
	runs := make([]row, 0, n)
	var dest [5]any
	opts := lease.ClaimOptions{
		Holder: d.w.id, Worker: d.w.config.Name, Types: d.types, MaxAttempts: d.attempts, Limit: n, Lease: d.w.config.Lease,
		Scan: func(*lease.Lease) []any {
			runs = append(runs, row{})
			r := &runs[len(runs)-1]
			dest = [...]any{&r.maxAttempts, &r.uniqueKey, &r.payload, &r.metadata, &r.createdAt}
			return dest[:]
		},
	}
	options(&opts)
	longer, cancel := wait.Outlast(ctx, stopGrace)
	defer cancel()
	var leases []*lease.Lease
	began := time.Now()
	err = d.w.claims.do(longer, statementTimeout, func(ctx context.Context, conn *pgx.Conn) (err error) {
		leases, err = claim(ctx, conn, opts)
		return err
	})
	if err != nil {
		return nil, false, err
	}
	if opts.Limits != nil {
		d.slots.claimed(time.Since(began))
	}
	batch = make([]*execution, 0, len(leases))
	for i, l := range leases {
		e, err := d.execution(l, &runs[i])
		if err != nil {
			return nil, false, err
		}
		batch = append(batch, e)
	}
	full = len(batch) == n || d.reached(opts.Limits, batch)
	d.rotate()
	slices.SortFunc(batch, func(a, b *execution) int {
		return cmp.Or(cmp.Compare(a.lease.Priority, b.lease.Priority), a.lease.DueAt.Compare(b.lease.DueAt), cmp.Compare(a.lease.Key, b.lease.Key))
	})
	return batch, full, nil
}

// reached reports whether a claim has taken as many of a type as it might.
func (d *dispatcher) reached(limits []int32, batch []*execution) bool {
	if limits == nil {
		return false
	}
	taken := map[string]int32{}
	for _, e := range batch {
		taken[e.lease.Type]++
	}
	for i, most := range limits {
		if taken[d.types[i]] >= most {
			return true
		}
	}
	return false
}

// rotate gives each type its turn to be served first among tasks of one priority.
func (d *dispatcher) rotate() {
	d.types = append(d.types[1:], d.types[0])
	d.attempts = append(d.attempts[1:], d.attempts[0])
	d.kinds = append(d.kinds[1:], d.kinds[0])
}
