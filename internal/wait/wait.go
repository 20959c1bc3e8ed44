// Package wait has what the standard library leaves to say about contexts and time.
package wait

import (
	"context"
	"time"
)

// For waits for d, or returns the context's cause when it ends first.
func For(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Outlast returns a context with the values of ctx that ends d after it: for what is under way to come to its end.
func Outlast(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(d, cancel) })
	return longer, func() {
		stop()
		cancel()
	}
}
