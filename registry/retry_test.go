package registry

import (
	"math"
	"testing"
	"time"

	"github.com/sethvargo/go-retry"
)

// attempts are those at which counters and shifts overflow.
var attempts = []int{0, 1, 39, 63, 64, 311, 32_766, 32_767, 1<<31 - 2}

func fixed(d time.Duration) RetryPolicy {
	return func() retry.Backoff { return retry.BackoffFunc(func() (time.Duration, bool) { return d, false }) }
}

func TestDelayIsBounded(t *testing.T) {
	t.Parallel()
	const month = 30 * 24 * time.Hour
	policies := map[string]struct {
		policy   RetryPolicy
		min, max time.Duration // from the 39th attempt on
	}{
		"default":          {DefaultRetry, 54 * time.Minute, time.Hour},
		"base 1 h":         {Exponential(time.Hour, math.MaxInt64), 27 * 24 * time.Hour, month},
		"base 1 ns":        {Exponential(time.Nanosecond, time.Minute), 54 * time.Second, time.Minute},
		"base 0":           {Exponential(0, time.Second), 900 * time.Millisecond, time.Second},
		"negative base":    {Exponential(-time.Hour, time.Second), 900 * time.Millisecond, time.Second},
		"huge base":        {Exponential(math.MaxInt64, math.MaxInt64), 27 * 24 * time.Hour, month},
		"negative limit":   {Exponential(time.Second, -time.Second), 0, 0},
		"negative":         {fixed(-time.Hour), 0, 0},
		"most negative":    {fixed(math.MinInt64), 0, 0},
		"zero":             {fixed(0), 0, 0},
		"MaxInt64":         {fixed(math.MaxInt64), month, month},
		"constant":         {Constant(time.Minute), time.Minute, time.Minute},
		"fibonacci":        {func() retry.Backoff { return retry.NewFibonacci(time.Hour) }, 0, month},
		"jittered maximum": {func() retry.Backoff { return retry.WithJitter(time.Hour, fixed(math.MaxInt64)()) }, month, month},
	}
	for name, p := range policies {
		for _, n := range attempts {
			for range 20 { // for the jitter
				d, ok := p.policy.Delay(n)
				if !ok || d < 0 || d > month {
					t.Fatalf("%s, attempt %d: %s, %v", name, n, d, ok)
				}
				if n >= 39 && (d < p.min || d > p.max) {
					t.Fatalf("%s, attempt %d: %s is not between %s and %s", name, n, d, p.min, p.max)
				}
			}
		}
	}
	for _, n := range append(attempts, -1, math.MinInt64) {
		if d, ok := DefaultRetry.Delay(n); !ok || d <= 0 {
			t.Errorf("attempt %d: %s, %v", n, d, ok)
		}
	}
}

// The default policy's waits, by hand: 30 s doubled, at most 1 h.
func TestDefaultSequence(t *testing.T) {
	t.Parallel()
	seconds := []float64{30, 60, 120, 240, 480, 960, 1920, 3600, 3600, 3600}
	for i, s := range seconds {
		if i == 7 {
			s = 3840 // cut to 3600 before the jitter and after it
		}
		want := time.Duration(min(s, 3600) * float64(time.Second))
		low, high := want, time.Duration(0)
		for range 300 {
			d, ok := DefaultRetry.Delay(i + 1)
			if !ok {
				t.Fatal("gives up")
			}
			low, high = min(low, d), max(high, d)
		}
		t.Logf("retry %d: %s, jitter from %s to %s", i+1, want, low, high)
		if low < want*9/10 || high > min(want*11/10, time.Hour) {
			t.Errorf("retry %d: from %s to %s, want %s give or take 10 %%", i+1, low, high, want)
		}
		if high-low < want/20 {
			t.Errorf("retry %d: no jitter, from %s to %s", i+1, low, high)
		}
	}
}

func TestGivingUp(t *testing.T) {
	t.Parallel()
	three := RetryPolicy(func() retry.Backoff { return retry.WithMaxRetries(3, retry.NewConstant(time.Second)) })
	for n, want := range map[int]bool{0: true, 1: true, 3: true, 4: false, 5: false, 1<<31 - 2: false} {
		if d, ok := three.Delay(n); ok != want || ok && d != time.Second {
			t.Errorf("%d: %s, %v", n, d, ok)
		}
	}
	never := RetryPolicy(func() retry.Backoff {
		return retry.BackoffFunc(func() (time.Duration, bool) { return time.Hour, true })
	})
	for _, n := range attempts {
		if d, ok := never.Delay(n); ok || d != 0 {
			t.Errorf("%d: %s, %v", n, d, ok)
		}
	}
}

func TestList(t *testing.T) {
	t.Parallel()
	list := List(time.Second, time.Minute, -time.Hour, 60*24*time.Hour)
	for n, want := range map[int]time.Duration{0: time.Second, 1: time.Second, 2: time.Minute, 3: 0, 4: 30 * 24 * time.Hour, 99: 30 * 24 * time.Hour} {
		for range 2 { // it remembers nothing
			if d, ok := list.Delay(n); !ok || d != want {
				t.Errorf("%d: %s, %v", n, d, ok)
			}
		}
	}
	if _, ok := List().Delay(1); ok {
		t.Error("an empty list goes on")
	}
}

func FuzzDelay(f *testing.F) {
	f.Add(int64(time.Second), int64(time.Hour), 5)
	f.Add(int64(math.MinInt64), int64(math.MaxInt64), math.MaxInt)
	f.Fuzz(func(t *testing.T, base, limit int64, n int) {
		for name, p := range map[string]RetryPolicy{
			"exponential": Exponential(time.Duration(base), time.Duration(limit)),
			"fixed":       fixed(time.Duration(base)),
			"list":        List(time.Duration(base), time.Duration(limit)),
		} {
			if d, ok := p.Delay(n); !ok || d < 0 || d > 30*24*time.Hour {
				t.Errorf("%s: %s, %v", name, d, ok)
			}
		}
	})
}
