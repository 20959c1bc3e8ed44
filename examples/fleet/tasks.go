package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/registry"
)

// Welcome asks for a mail to a new customer.
type Welcome struct {
	To string `json:"to"`
}

// TaskType implements pgwake.Payload.
func (Welcome) TaskType() string { return "email.welcome" }

// register is where your handlers go.
func register(reg *registry.Registry) error {
	return registry.Register(reg, sendWelcome, &registry.Options{Timeout: time.Minute, UniqueFields: []string{"to"}})
}

func sendWelcome(ctx context.Context, task *pgwake.Task[Welcome]) error {
	select { // stands for a call to a mail server, with ctx so that it ends when the run must
	case <-time.After(50 * time.Millisecond):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// logged writes a line for every run.
func logged(log *slog.Logger) registry.Middleware {
	return func(next registry.Next) registry.Next {
		return func(ctx context.Context, run *pgwake.Run) error {
			start := time.Now()
			err := next(ctx, run)
			log.InfoContext(ctx, "task run", "id", run.ID, "type", run.Type, "attempt", run.Attempt,
				"took", time.Since(start).String(), "error", err)
			return err
		}
	}
}
