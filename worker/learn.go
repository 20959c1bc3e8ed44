package worker

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgwake/pgwake/lease"
	"github.com/pgwake/pgwake/notify"
)

// learn asks when the next row falls due and the next lease ends. What others are keeper of it leaves to them, and sees at
// the sweep that they do their part.
func (d *dispatcher) learn(ctx context.Context) error {
	now := time.Now()
	sweep := !now.Before(d.lookAt)
	leases := now.Sub(d.leaseLooked) >= leaseLook || reached(now, d.leaseAt)
	own, others := d.types, []string(nil)
	if d.w.listening.Load() {
		own, others = d.watch.kept, d.watch.left
	}
	d.dueAt = time.Time{}
	if leases {
		d.leaseAt = time.Time{}
	}
	if len(own) > 0 {
		due, leaseEnd, err := d.ask(ctx, own, leases)
		if err != nil {
			return err
		}
		d.dueAt = due
		if leases {
			d.leaseAt = leaseEnd
		}
	}
	if len(others) > 0 && (sweep || len(own) == 0) {
		due, leaseEnd, err := d.ask(ctx, others, leases)
		if err != nil {
			return err
		}
		d.leaveToKeeper(due, leaseEnd)
	}
	d.learned = time.Now()
	if sweep || len(own) == 0 || len(others) == 0 {
		// A lease taken right after a look ends no sooner than the lease's length from then.
		d.lookAt = d.learned.Add(min(time.Duration(float64(d.w.config.Sweep)*(0.9+0.2*rand.Float64())), reread, d.w.config.Lease))
	}
	if leases {
		d.leaseLooked = d.learned
	}
	return nil
}

// ask returns when the next row of the types falls due and the next lease ends; zero if never.
func (d *dispatcher) ask(ctx context.Context, types []string, leases bool) (dueAt, leaseAt time.Time, err error) {
	var due, leaseEnd time.Duration
	err = d.w.claims.do(ctx, statementTimeout, func(ctx context.Context, conn *pgx.Conn) (err error) {
		due, leaseEnd, err = d.w.queue.Look(ctx, conn, types, leases, &d.marks)
		return err
	})
	if err != nil {
		return time.Time{}, time.Time{}, err
	}
	// Passed over by a claim a moment ago, due rows are locked by somebody; or they fell due since.
	wait := time.Duration(0)
	if due <= 0 || leases && leaseEnd <= 0 {
		wait = d.blocked
		d.blocked = min(max(2*d.blocked, blockedRetry), blockedRetryMax)
	} else {
		d.blocked = 0
	}
	now := time.Now()
	return after(now, due, wait), after(now, leaseEnd, wait), nil
}

// leaveToKeeper leaves to the keeper's timer what lies ahead, and sees that it does its part.
func (d *dispatcher) leaveToKeeper(dueAt, leaseAt time.Time) {
	now := time.Now()
	if !dueAt.IsZero() {
		d.watchKeeper(dueAt, dueAt.Before(now.Add(blockedRetryMax)))
	}
	if d.watch.deputy && !leaseAt.IsZero() {
		leaseAt = leaseAt.Add(secondLookMax)
	} else if leaseAt.After(now.Add(blockedRetryMax)) {
		return
	}
	if !leaseAt.IsZero() && (d.leaseAt.IsZero() || leaseAt.Before(d.leaseAt)) {
		d.leaseAt = leaseAt
	}
}

// after is the instant in so much time, at least wait; zero for never.
func after(now time.Time, in, wait time.Duration) time.Time {
	if in == lease.Never {
		return time.Time{}
	}
	return now.Add(max(in, wait))
}

// wait is how long to sleep if nothing rings.
func (d *dispatcher) wait(err error) time.Duration {
	if err != nil {
		d.troubled = min(max(2*d.troubled, 50*time.Millisecond), 5*time.Second)
		return time.Duration(float64(d.troubled) * (0.5 + rand.Float64()))
	}
	d.troubled = 0
	now := time.Now()
	if d.slots.room() == 0 { // until a slot is set free
		if d.watch.standing != notify.Outside {
			return max(d.fullAt.Add(fullPatience).Sub(now), 0)
		}
		return leaseLook
	}
	next := now.Add(reread)
	if d.watch.isKeeper() {
		next = d.watch.check
	}
	for _, at := range []time.Time{d.slots.overdue(), d.dueAt, d.leaseAt, d.lookAt, d.watch.second, d.watch.tryAt, d.watch.pollAt} {
		if !at.IsZero() && at.Before(next) {
			next = at
		}
	}
	return max(next.Sub(now), 0)
}
