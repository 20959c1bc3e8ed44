package notify

import (
	"time"

	"github.com/sethvargo/go-retry"
)

// newBackoff doubles from first up to limit, jittered by a third both ways so
// that workers which lost the same server do not come back in step:
//
//	50 ms … 5 s: 33–66, 67–133, 134–266, 268–532 ms, …, then 2.5–5 s for ever
//
// The cap stands inside the jitter at three quarters: outside, every long wait
// would be the same again.
func newBackoff(first, limit time.Duration) retry.Backoff {
	ceiling := max(limit/4*3, 1)
	return retry.WithCappedDuration(limit,
		retry.WithJitterPercent(33,
			retry.WithCappedDuration(ceiling, retry.NewExponential(first))))
}
