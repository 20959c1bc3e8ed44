package notify

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/pgwake/pgwake/internal/wait"
)

// failedProbes is how many probes in a row may fail to be sent before the
// connection is given up. One may be the prober's own trouble; a database that
// cannot be reached twice is as good as lost, and "connected" would be a lie.
const failedProbes = 2

// probeRetry is the wait after a first probe that could not be sent: the prober's connection may have died with the
// listener's last.
const probeRetry = 100 * time.Millisecond

var errNoEcho = errors.New("listener heard no echo of its probe")

// ErrNotDelivered is in Health.LastError after LISTEN was answered and yet nothing arrived: the connection goes through a
// pooler in transaction mode. The listener needs a direct session.
var ErrNotDelivered = errors.New("LISTEN is answered and nothing arrives: is there a pooler in transaction mode? The listener needs a direct session")

// watchdog notices a connection that is open and dead: the state in which a
// read waits for ever, since the listener itself sends nothing that could fail.
type watchdog struct {
	silence time.Duration // before the first probe
	timeout time.Duration // for sending a probe, and for its echo
	ring    func(ctx context.Context, payload string) error

	epoch time.Time     // reference of heard; its monotonic clock counts
	heard atomic.Int64  // nanoseconds since epoch
	first chan struct{} // closed by the first sign of life
}

func newWatchdog(silence, timeout time.Duration, ring func(ctx context.Context, payload string) error) *watchdog {
	return &watchdog{silence: silence, timeout: timeout, ring: ring, epoch: time.Now(), first: make(chan struct{})}
}

// alive records a sign of life. It is called for each notification and costs no
// wake-up: watch looks at the time when it needs it.
func (w *watchdog) alive() { w.heard.Store(int64(time.Since(w.epoch))) }

// lastHeard returns the time of the last sign of life.
func (w *watchdog) lastHeard() time.Time { return w.epoch.Add(time.Duration(w.heard.Load())) }

// greet sends the first probe and waits for the first sign of life, which shows that notifications are delivered.
func (w *watchdog) greet(ctx context.Context) error {
	sending, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	for {
		err := w.ring(sending, "0")
		if err == nil {
			break
		}
		if wait.For(sending, probeRetry) != nil {
			return fmt.Errorf("probe listener: %w", err)
		}
	}
	timer := time.NewTimer(w.timeout)
	defer timer.Stop()
	select {
	case <-w.first:
		return nil
	case <-timer.C:
		return ErrNotDelivered
	case <-ctx.Done():
		return ctx.Err()
	}
}

// watch returns why the connection is dead, or ctx's error.
//
// A probe that was sent has timeout from then on to come back: the time
// that a slow database took to commit it is not held against the listener.
func (w *watchdog) watch(ctx context.Context) error {
	failed := 0
	for probe := 1; ; probe++ {
		for {
			rest := w.silence - time.Since(w.lastHeard())
			if rest <= 0 {
				break
			}
			failed = 0
			if wait.For(ctx, rest) != nil {
				return ctx.Err()
			}
		}

		start := time.Now()
		deadline := start.Add(w.timeout)
		ringCtx, cancel := context.WithDeadline(ctx, deadline)
		err := w.ring(ringCtx, strconv.Itoa(probe))
		cancel()
		if err == nil {
			deadline = time.Now().Add(w.timeout)
		}
		if wait.For(ctx, time.Until(deadline)) != nil {
			return ctx.Err()
		}

		switch {
		case !w.lastHeard().Before(start):
			failed = 0
		case err == nil:
			return errNoEcho
		default:
			failed++
			if failed == failedProbes {
				return fmt.Errorf("probe listener: %w", err)
			}
		}
	}
}
