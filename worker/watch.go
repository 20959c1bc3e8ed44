package worker

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgwake/pgwake/notify"
)

const (
	// fastRing is the mean time between two rings below which ringing is wasted: inserters pay for it, and the keeper would
	// find the rows by looking. fastRings is over how many it is taken.
	fastRing  = 5 * time.Millisecond
	fastRings = 8
	// holdMin and holdMax bound the time between two looks of a keeper that does not let itself be rung. It grows with
	// what they find, to holdMax at holdRate tasks a second: looks should cost little of what the tasks do.
	holdMin  = 200 * time.Microsecond
	holdMax  = 5 * time.Millisecond
	holdRate = 8000
	// emptyLooks is how many such looks in a row may find nothing before the keeper lets itself be rung again.
	emptyLooks = 4
	// fullPatience is how long a keeper stays responsible that has no slot for what is due: one may be free in a moment.
	fullPatience = 10 * time.Millisecond
	// deputyLook is how often a deputy sees whether there is a keeper. Of the others one does in about four times that.
	deputyLook = 600 * time.Millisecond
	// secondLookMin and secondLookMax bound the time after a ring when one that is not keeper looks whether the keeper has
	// done its work.
	secondLookMin = 100 * time.Millisecond
	secondLookMax = 300 * time.Millisecond
	// actAlone is how long a worker acts on rings itself after it has found the keeper dead or slow.
	actAlone = 10 * time.Second
	// judgeMargin is how much longer than a ring is old a keeper must have been silent: it may have heard it earlier.
	judgeMargin = 50 * time.Millisecond
	// openPatience is for how long a keeper that is not armed may do nothing.
	openPatience = time.Second
	// deposeAfter is how many such findings in a row end the keeper's session, whatever it says of itself.
	deposeAfter = 3
	// takeOverMin and takeOverMax bound the time after a call when those try to take over that are not deputy.
	takeOverMin = 50 * time.Millisecond
	takeOverMax = 300 * time.Millisecond
	// helpSpread is the time over which all look after a call for help.
	helpSpread = 50 * time.Millisecond
	// blockedMin and blockedMax bound the time between two tries to arm while commits in flight hold the gate open.
	blockedMin = 20 * time.Millisecond
	blockedMax = 50 * time.Millisecond
	// checkEvery is how often a keeper sees, without a statement, whether its session is still there.
	checkEvery = 500 * time.Millisecond
	// pollMin and pollMax bound the time between two looks while no ring would be heard. It doubles while they find nothing.
	pollMin = 20 * time.Millisecond
	pollMax = time.Second
)

// watch is a dispatcher's part in the wake gate: whether it is the one to be rung, and how it looks when it is not.
type watch struct {
	standing notify.Standing
	kept     []string // types of which it is keeper
	left     []string // all others
	deputy   bool     // of some of those

	// Of the keeper.
	looking bool      // disarmed: rings would come too fast
	looked  time.Time // when it looked last then
	rate    float64   // tasks a second that it found
	empty   int       // looks in a row that found nothing
	eager   bool      // it took over from one that had no slot: if it has none either it lets go at once
	since   time.Time // when the rings before the next fastRings began
	rings   int64     // there had been by then

	// Of the others.
	task   time.Time // since when there is something for the keeper to do
	second time.Time // when to look behind the keeper's back; zero: not
	caught int       // such looks in a row that found something
	alone  time.Time // until when to act without regard to the keeper
	tryAt  time.Time // when to try to take over
	called bool      // since the last try
	check  time.Time // when to see whether the session is still there

	// While nothing is heard.
	poll   time.Duration // between two looks; zero: it listens
	pollAt time.Time
}

func (w *watch) isKeeper() bool { return w.standing >= notify.Keeper }

// look begins to look without being rung.
func (w *watch) look(now time.Time) { w.looking, w.looked, w.rate, w.empty = true, now, 0, 0 }

// hold is the time until the next look of a keeper that is not rung and has just found so many tasks, unless it should let
// itself be rung again.
func (w *watch) hold(now time.Time, found int) (time.Duration, bool) {
	if w.empty++; found > 0 {
		w.empty = 0
	}
	if since := now.Sub(w.looked); since > 0 {
		w.rate += (float64(found)/since.Seconds() - w.rate) / 8
	}
	w.looked = now
	return min(max(time.Duration(math.Pow(w.rate/holdRate, 1.5)*float64(holdMax)), holdMin), holdMax), w.empty < emptyLooks
}

// stand takes note of what the session is for the dispatcher's types, and of which it is keeper. Rings of the others are
// heard before those of its own are not, and those of its own are before it looks.
func (d *dispatcher) stand(arming notify.Arming, kept []string) {
	d.watch.standing, d.watch.deputy, d.watch.kept, d.watch.left = arming.Standing, arming.Deputy, kept, nil
	if !d.watch.isKeeper() {
		d.watch.looking = false
	}
	for _, t := range d.types {
		if !slices.Contains(kept, t) {
			d.watch.left = append(d.watch.left, t)
		}
	}
	d.others.Set(d.watch.left...)
	d.ring.Set(kept...)
}

// heard decides what a ring means for which another one is keeper: whether to look now all the same.
func (d *dispatcher) heard(now time.Time) bool {
	if now.Before(d.watch.alone) {
		return true
	}
	d.watchKeeper(now, false)
	return false
}

// called plans to take over from a keeper that has let go: the deputy at once, the others in case there is none.
func (d *dispatcher) called(now time.Time) {
	if len(d.watch.left) == 0 {
		return
	}
	d.watch.called = true
	at := now
	if !d.watch.deputy {
		at = now.Add(takeOverMin + rand.N(takeOverMax-takeOverMin))
	}
	if d.watch.tryAt.IsZero() || at.Before(d.watch.tryAt) {
		d.watch.tryAt = at
	}
}

// helpWanted plans a look, at an instant of its own, so that not all come at once.
func (d *dispatcher) helpWanted(now time.Time) {
	if at := now.Add(rand.N(helpSpread)); d.dueAt.IsZero() || at.Before(d.dueAt) {
		d.dueAt = at
	}
}

// watchKeeper plans a look behind the keeper's back, who has something to do at the instant given: by the deputy, and seldom
// by others unless it is certain that they must. What comes first is what is looked after.
func (d *dispatcher) watchKeeper(at time.Time, certain bool) {
	if !d.watch.second.IsZero() && !at.Before(d.watch.task) {
		return
	}
	if !certain && !d.watch.deputy && 2*rand.Float64()*d.fleet() > 1 {
		return
	}
	d.watch.task = at
	d.watch.second = at.Add(secondLookMin + rand.N(secondLookMax-secondLookMin))
}

func (d *dispatcher) fleet() float64 { return float64(max(d.w.fleet.Load(), 1)) }

// judgeKeeper draws the conclusion from a look behind the keeper's back, which found tasks of the types given that it should
// have taken at an instant. That alone says little, since others may have come in a moment ago; but a keeper that has done
// nothing since then is dead, stopped or cut off.
func (d *dispatcher) judgeKeeper(ctx context.Context, types []string, since time.Time) {
	d.judge(ctx, types, func() notify.JudgeOptions {
		return notify.JudgeOptions{Silent: time.Since(since) + judgeMargin, Force: d.watch.caught >= deposeAfter}
	})
}

// judgeOpen does so for a keeper that is not armed, and so should look every few milliseconds.
func (d *dispatcher) judgeOpen(ctx context.Context) {
	d.judge(ctx, d.types, func() notify.JudgeOptions { return notify.JudgeOptions{Silent: openPatience, Disarmed: true} })
}

func (d *dispatcher) judge(ctx context.Context, types []string, opts func() notify.JudgeOptions) {
	if len(d.watch.left) == 0 || !d.w.listening.Load() {
		return
	}
	var j notify.Judgement
	err := d.gate(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		j, err = d.w.gate.Judge(ctx, conn, types, opts())
		return err
	})
	now := time.Now()
	if err != nil || j.Dead {
		d.watch.alone, d.watch.tryAt = now.Add(actAlone), now
	}
	switch {
	case err != nil:
		d.w.log.Debug("cannot end the session of a worker that does not answer", "error", err)
	case j.Ended:
		d.w.log.Warn("ended the session of a worker that does not answer, and run its part")
		d.watch.caught, d.watch.tryAt = 0, now.Add(holdMax)
	case j.Hidden:
		d.watch.caught++
	}
}

// lostSession reports whether a keeper's session has ended, which nobody tells: it is rung no more.
func (d *dispatcher) lostSession(now time.Time) bool {
	if !d.watch.isKeeper() || now.Before(d.watch.check) {
		return false
	}
	d.watch.check = now.Add(checkEvery)
	return d.w.claims.isLost()
}

// moderate ends ringing that comes too fast: the keeper looks by itself from now on.
func (d *dispatcher) moderate(ctx context.Context) error {
	if d.watch.standing != notify.Armed || d.ring.Rings()-d.watch.rings < fastRings {
		return nil
	}
	now, rings := time.Now(), d.ring.Rings()
	took, n := now.Sub(d.watch.since), rings-d.watch.rings
	d.watch.since, d.watch.rings = now, rings
	if took > time.Duration(n)*fastRing {
		return nil
	}
	d.watch.standing = notify.Keeper
	d.watch.look(now)
	return d.gate(ctx, func(ctx context.Context, conn *pgx.Conn) error { return d.w.gate.Disarm(ctx, conn, d) })
}

// sleepable does what must be done before sleeping: arm the gate, as far as nobody else keeps it. It returns false if the
// dispatcher must look once more first, in the time that dueAt says.
func (d *dispatcher) sleepable(ctx context.Context, found int) (bool, error) {
	now := time.Now()
	if !d.w.listening.Load() {
		d.planPoll(now, found)
		return true, d.letGo(ctx)
	}
	d.watch.poll, d.watch.pollAt = 0, time.Time{}
	if d.watch.looking {
		if hold, more := d.watch.hold(now, found); more {
			d.dueAt = now.Add(hold)
			return false, nil
		}
	}
	var arming notify.Arming
	var kept []string
	tried, called := false, d.watch.called
	err := d.gate(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		held := d.watch.isKeeper() && d.w.gate.Keeps(conn, d)
		switch {
		case held && d.watch.standing == notify.Armed && !reached(now, d.watch.tryAt), !d.watch.isKeeper() && !reached(now, d.watch.tryAt):
			return nil
		case held:
			arming, err = d.w.gate.Arm(ctx, conn, d, d.types)
		default:
			if d.watch.isKeeper() {
				d.watch.standing = notify.Outside // another session holds nothing
			}
			arming, err = d.w.gate.Keep(ctx, conn, d, d.types)
		}
		tried, kept = true, d.w.gate.Kept(conn, d, d.types)
		d.watch.tryAt, d.watch.called = time.Time{}, false
		return err
	})
	if err != nil || !tried {
		return err == nil, err
	}
	before := d.watch.standing
	d.stand(arming, kept)
	switch {
	case arming.Fresh:
		d.watch.looking = false
		d.watch.since, d.watch.rings = now, d.ring.Rings()
		d.dueAt = now // arm, then claim
		return false, nil
	case arming.Standing == notify.Keeper && before < notify.Keeper:
		// Taken over: look first, for all that is to be found may be a lot.
		d.watch.look(now)
		d.watch.second, d.watch.caught = time.Time{}, 0
		d.dueAt = now
		d.watch.eager = called
		if before == notify.Deputy && !called {
			return false, d.w.call(ctx) // the keeper is gone without a word, and there is no deputy now
		}
		return false, nil
	case arming.Deputy && arming.Open:
		// It looks by itself, for what it can run. Or it does not.
		d.judgeOpen(ctx)
		d.dueAt = now
	case arming.Standing == notify.Keeper:
		// A commit in flight, which may have been so for long, may bring what the marks are ahead of.
		if !d.marks.Dear() {
			d.marks.Reset()
		}
		d.watch.looking = false
		d.dueAt = now.Add(blockedMin + rand.N(blockedMax-blockedMin))
		return false, nil
	}
	return true, nil
}

// yieldIfFull lets go if for some time there has been more work than slots: others are to help.
func (d *dispatcher) yieldIfFull(ctx context.Context) error {
	if d.slots.room() == 0 && d.fullAt.IsZero() {
		d.fullAt = time.Now() // by a suspect
	}
	eager := d.watch.eager
	d.watch.eager = false
	if d.fullAt.IsZero() || time.Since(d.fullAt) < fullPatience && !eager {
		return nil
	}
	return d.letGo(ctx)
}

// planTurn sets when one that is not keeper of all its types sees whether somebody else is.
func (d *dispatcher) planTurn(now time.Time) {
	switch {
	case !d.w.listening.Load() || len(d.watch.left) == 0:
		d.watch.tryAt = time.Time{}
	case !d.watch.tryAt.IsZero():
	case now.Before(d.watch.alone):
		d.watch.tryAt = now.Add(deputyLook / 8)
	case !d.watch.deputy:
		d.watch.tryAt = now.Add(deputyLook/8 + time.Duration(8*float64(deputyLook)*d.fleet()*rand.Float64()))
	default:
		d.watch.tryAt = now.Add(deputyLook)
	}
}

// planPoll sets the next look of a worker that would hear no ring.
func (d *dispatcher) planPoll(now time.Time, found int) {
	if found > 0 || d.watch.poll == 0 {
		d.watch.poll = pollMin
	} else if reached(now, d.watch.pollAt) {
		d.watch.poll = min(2*d.watch.poll, pollMax, d.w.config.Sweep)
	}
	d.watch.pollAt = now.Add(time.Duration(float64(d.watch.poll) * (0.6 + 0.4*rand.Float64())))
}

// letGo ends the dispatcher's responsibility, if it has any, and tells the others to take over.
func (d *dispatcher) letGo(ctx context.Context) error {
	if d.watch.standing == notify.Outside {
		return nil
	}
	keeps := false
	err := d.gate(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		keeps = d.w.gate.Keeps(conn, d)
		return d.w.gate.Release(ctx, conn, d)
	})
	d.stand(notify.Arming{}, nil)
	d.watch.tryAt = time.Now() // as soon as there is room
	if err != nil || !keeps {
		return err
	}
	if d.plenty {
		if err := d.w.callForHelp(ctx); err != nil {
			return err
		}
	}
	return d.w.call(ctx)
}

// yield lets go after trouble with the database, which may be this worker's own, as far as there is still a session.
func (d *dispatcher) yield(ctx context.Context) {
	if d.watch.standing == notify.Outside || !d.w.claims.isOpen() {
		d.stand(notify.Arming{}, nil)
		d.watch.tryAt = time.Now()
		return
	}
	if err := d.letGo(ctx); err != nil {
		d.w.log.Debug("wake-ups not handed over", "error", err)
	}
}

func (d *dispatcher) gate(ctx context.Context, f func(ctx context.Context, conn *pgx.Conn) error) error {
	return d.w.claims.session(ctx, statementTimeout, f)
}
