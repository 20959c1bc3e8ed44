package worker

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgwake/pgwake/notify"
)

const (
	// fastRing is the time between two rings below which ringing is wasted: inserters pay for it, and the keeper would
	// find the rows by looking.
	fastRing = 5 * time.Millisecond
	// fastRings is how many such rings in a row end it.
	fastRings = 8
	// holdMin and holdMax bound the time between two looks of a keeper that does not let itself be rung. It doubles while
	// arming again is answered by a ring at once.
	holdMin = 3 * time.Millisecond
	holdMax = 50 * time.Millisecond
	// deputyLook is how often a deputy sees whether there is a keeper.
	deputyLook = 800 * time.Millisecond
	// secondLookMin and secondLookMax bound the time after a ring when one that is not keeper looks whether the keeper has
	// done its work.
	secondLookMin = 100 * time.Millisecond
	secondLookMax = 300 * time.Millisecond
	// actAlone is how long a worker acts on rings itself after it has found the keeper dead or slow.
	actAlone = 10 * time.Second
)

// watch is a dispatcher's part in the wake gate: whether it is the one to be rung, and how it looks when it is not.
type watch struct {
	standing notify.Standing
	looking  bool          // keeper, but disarmed: rings would come too fast
	hold     time.Duration // between two looks then
	armedAt  time.Time
	rangAt   time.Time
	fast     int       // rings in a row that came fast
	second   time.Time // when to look behind the keeper; zero: not
	alone    time.Time // until when to act without regard to the keeper
}

// heard decides what a ring means to the dispatcher: whether it looks now.
func (d *dispatcher) heard(now time.Time) bool {
	switch d.watch.standing {
	case notify.Outside, notify.Deputy:
		if now.Before(d.watch.alone) {
			return true
		}
		d.watchKeeper(now)
		return false
	}
	if now.Sub(d.watch.rangAt) < fastRing {
		d.watch.fast++
	} else {
		d.watch.fast = 0
	}
	d.watch.rangAt = now
	return true
}

// watchKeeper plans a look behind the keeper's back: by the deputy, and by about two of the others.
func (d *dispatcher) watchKeeper(at time.Time) {
	if !d.watch.second.IsZero() || d.watch.standing == notify.Outside && rand.Float64() > 2/float64(max(d.w.fleet.Load(), 2)) {
		return
	}
	d.watch.second = at.Add(secondLookMin + rand.N(secondLookMax-secondLookMin))
}

// moderate ends ringing that comes too fast: the keeper looks by itself from now on.
func (d *dispatcher) moderate(ctx context.Context) error {
	if d.watch.standing != notify.Armed || d.watch.fast < fastRings {
		return nil
	}
	if time.Since(d.watch.armedAt) < 2*fastRings*fastRing {
		d.watch.hold = min(2*d.watch.hold, holdMax)
	} else {
		d.watch.hold = holdMin
	}
	d.watch.fast, d.watch.looking = 0, true
	d.watch.standing = notify.Blocked // keeper, and not armed
	return d.gate(ctx, func(ctx context.Context, conn *pgx.Conn) error { return d.w.gate.Disarm(ctx, conn, d) })
}

// sleepable does what must be done before sleeping: arm the gate, as far as nobody else keeps it. It returns false if the
// dispatcher must look once more first, in the time that dueAt says.
func (d *dispatcher) sleepable(ctx context.Context, found int) (bool, error) {
	now := time.Now()
	if !d.w.listening.Load() {
		return true, d.letGo(ctx, false) // nobody would hear a ring: sweeps find the work
	}
	if d.watch.looking {
		if found > 0 {
			d.dueAt = now.Add(d.watch.hold)
			return false, nil
		}
		d.watch.looking = false
	}
	before := d.watch.standing
	err := d.gate(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		if before == notify.Armed && d.w.gate.Keeps(conn, d) {
			return nil
		}
		before = notify.Outside // another session holds nothing
		d.watch.standing, err = d.w.gate.Arm(ctx, conn, d, d.types)
		return err
	})
	switch {
	case err != nil:
		d.watch.standing = notify.Outside
		return false, err
	case d.watch.standing == notify.Blocked:
		d.dueAt = now.Add(20*time.Millisecond + rand.N(30*time.Millisecond))
		return false, nil
	case d.watch.standing == notify.Armed && before != notify.Armed:
		d.watch.armedAt = now
		d.dueAt = now // arm, then claim
		return false, nil
	}
	return true, nil
}

// letGo ends the dispatcher's responsibility, if it has any, and tells the others if they should take over.
func (d *dispatcher) letGo(ctx context.Context, call bool) error {
	keeps := false
	err := d.gate(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		keeps = d.w.gate.Keeps(conn, d)
		return d.w.gate.Release(ctx, conn, d)
	})
	d.watch.standing, d.watch.looking, d.watch.fast = notify.Outside, false, 0
	if err != nil || !keeps || !call {
		return err
	}
	return d.w.ring(ctx, d.w.callChannel(), "")
}

func (d *dispatcher) gate(ctx context.Context, f func(ctx context.Context, conn *pgx.Conn) error) error {
	return d.w.claims.do(ctx, statementTimeout, f)
}
