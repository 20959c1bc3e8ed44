// Command pgwake looks after pgwake's tables: it migrates the schema, enqueues tasks and shows tasks and workers.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() { // ends with the process
		s := <-signals
		signal.Stop(signals) // a second signal ends the process at once
		cancel(signalError{s})
	}()
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
