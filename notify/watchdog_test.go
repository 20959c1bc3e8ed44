package notify

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgwake/pgwake/internal/wait"
)

func TestWatchdog(t *testing.T) {
	t.Parallel()
	const silence, timeout = 10 * time.Second, 5 * time.Second
	unreachable := errors.New("unreachable")
	echo := func(after time.Duration) probe { return probe{echo: true, after: after} }
	for _, tc := range []struct {
		name   string
		alive  []time.Duration // when notifications come, from the start
		probes []probe         // what becomes of each; the last one repeats
		want   error           // nil: lives for ever
		at     time.Duration   // when the verdict comes
		count  int             // probes until then, or in 595 s
	}{
		{"no echo", nil, []probe{{}}, errNoEcho, silence + timeout, 1},
		{"prompt echoes", nil, []probe{echo(0)}, nil, 0, 59},
		{"echo just in time", nil, []probe{echo(timeout - 1), {}}, errNoEcho, silence + (timeout - 1) + silence + timeout, 2},
		{"echo too late", nil, []probe{echo(timeout + 1)}, errNoEcho, silence + timeout, 1},
		{"traffic defers the probe", []time.Duration{4 * time.Second, 13 * time.Second}, []probe{{}}, errNoEcho, 13*time.Second + silence + timeout, 1},
		{"traffic instead of echo", []time.Duration{12 * time.Second}, []probe{{}}, errNoEcho, 12*time.Second + silence + timeout, 2},
		{"slow ring has its full wait", nil, []probe{{takes: 4 * time.Second}}, errNoEcho, silence + 4*time.Second + timeout, 1},
		{"ring refused twice", nil, []probe{{err: unreachable}}, unreachable, silence + 2*timeout, 2},
		{"ring hangs twice", nil, []probe{{takes: time.Hour}}, context.DeadlineExceeded, silence + 2*timeout, 2},
		{"one failure then echo", nil, []probe{{err: unreachable}, echo(0), {err: unreachable}, echo(0)}, nil, 0, -1},
		{"failure, traffic, failure", []time.Duration{12 * time.Second}, []probe{{err: unreachable}}, unreachable, 12*time.Second + silence + 2*timeout, 3},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 595*time.Second)
				defer cancel()
				begin, count := time.Now(), 0
				seen := make(map[string]bool)
				var w *watchdog
				w = newWatchdog(silence, timeout, func(ctx context.Context, payload string) error {
					p := tc.probes[min(count, len(tc.probes)-1)]
					count++
					if seen[payload] {
						t.Errorf("payload %q sent twice", payload)
					}
					seen[payload] = true
					if wait.For(ctx, p.takes) != nil {
						return ctx.Err()
					}
					if p.echo {
						time.AfterFunc(p.after, w.alive)
					}
					return p.err
				})
				for _, at := range tc.alive {
					time.AfterFunc(at, w.alive)
				}
				err := w.watch(ctx)
				switch {
				case tc.want == nil && ctx.Err() == nil:
					t.Errorf("verdict %v after %v, want none", err, time.Since(begin))
				case tc.want != nil && (!errors.Is(err, tc.want) || time.Since(begin) != tc.at):
					t.Errorf("verdict %v after %v, want %v after %v", err, time.Since(begin), tc.want, tc.at)
				}
				if tc.count >= 0 && count != tc.count {
					t.Errorf("%d probes, want %d", count, tc.count)
				}
			})
		})
	}
}

// probe is what becomes of one probe.
type probe struct {
	takes time.Duration // to send
	err   error         // of sending
	echo  bool          // comes back,
	after time.Duration // this long after it was sent
}
