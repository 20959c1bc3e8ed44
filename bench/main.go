// Command bench measures pgwake: what it promises of speed and cost, each figure beside the least that PostgreSQL itself
// needs for the same, and whether the goals in goals.yaml hold.
package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/pgwake/pgwake/bench/internal/fleet"
	"github.com/pgwake/pgwake/bench/internal/peer"
)

//go:embed goals.yaml
var goalsFile []byte

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx)
	stop()
	os.Exit(code)
}

func run(ctx context.Context) int {
	if job := os.Getenv(fleet.Variable); job != "" { // this is one of the processes measured
		if err := fleet.Main(ctx, job, os.Stdin, os.Stdout, os.Stderr, peer.Processes()...); err != nil {
			fmt.Fprintln(os.Stderr, "worker process:", err)
			return 1
		}
		return 0
	}
	err := newRootCommand(os.Stdout, os.Stderr).ExecuteContext(ctx)
	switch {
	case errors.Is(err, errShort): // said already
		return 1
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		return 1
	}
	return 0
}
