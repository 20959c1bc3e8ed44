package registry

import (
	"errors"
	"fmt"
	"time"

	"github.com/sethvargo/go-retry"
)

// RetryPolicy makes the back-off of one task. Its nth Next is the wait before the nth retry; stop freezes the task
// whatever attempts are left. It is asked anew at every failure, so it must not remember anything itself. The back-offs
// and decorators of go-retry serve, as do one's own.
type RetryPolicy func() retry.Backoff

const (
	// DefaultRetryBase is the first wait of the default policy.
	DefaultRetryBase = 30 * time.Second
	// DefaultRetryCap is the longest wait of the default policy.
	DefaultRetryCap = time.Hour

	jitterPercent = 10

	// maxRetryDelay bounds what a policy can ask for, so that no task is put off for good by an overflow.
	maxRetryDelay = 30 * 24 * time.Hour
	// maxSteps bounds the walk to the nth Next; every sensible back-off is at its cap long before.
	maxSteps = 1000
)

// DefaultRetry waits 30 s, 1 min, 2 min, … up to 1 h, each with 10 % jitter either way.
var DefaultRetry = Exponential(DefaultRetryBase, DefaultRetryCap)

// Exponential doubles the wait from base to limit, with 10 % jitter either way, never above limit.
func Exponential(base, limit time.Duration) RetryPolicy {
	return func() retry.Backoff {
		// Capped inside the jitter too: without that the waits at the limit would have none.
		steps := retry.WithCappedDuration(limit, retry.NewExponential(max(base, time.Nanosecond)))
		return retry.WithCappedDuration(limit, retry.WithJitterPercent(jitterPercent, steps))
	}
}

// Constant waits d each time.
func Constant(d time.Duration) RetryPolicy {
	return func() retry.Backoff { return retry.BackoffFunc(func() (time.Duration, bool) { return d, false }) }
}

// List waits the durations given, in order, and repeats the last. Without any it freezes at the first failure.
func List(waits ...time.Duration) RetryPolicy {
	return func() retry.Backoff {
		n := 0
		return retry.BackoffFunc(func() (time.Duration, bool) {
			if len(waits) == 0 {
				return 0, true
			}
			n++
			return waits[min(n, len(waits))-1], false
		})
	}
}

// try finds out whether the policy panics, as some back-offs of go-retry do when made with a duration of 0.
func (p RetryPolicy) try() (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("retry policy panics: %v", v)
		}
	}()
	if p() == nil {
		return errors.New("retry policy returns nil")
	}
	p.Delay(1)
	return nil
}

// Delay returns the wait before the run that follows failed attempt number n, between 0 and 30 days, or false if the
// policy gives up.
func (p RetryPolicy) Delay(n int) (time.Duration, bool) {
	backoff := p()
	var wait time.Duration
	for range max(1, min(n, maxSteps)) {
		next, stop := backoff.Next()
		if stop {
			return 0, false
		}
		wait = next
	}
	return min(max(wait, 0), maxRetryDelay), true
}
