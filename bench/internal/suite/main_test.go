package suite

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/pgwake/pgwake/bench/internal/fleet"
	"github.com/pgwake/pgwake/bench/internal/peer"
	"github.com/pgwake/pgwake/bench/internal/server"
)

// shared is the server of all tests.
var shared *server.Server

func TestMain(m *testing.M) {
	if job := os.Getenv(fleet.Variable); job != "" { // this is one of the processes measured
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		if err := fleet.Main(ctx, job, os.Stdin, os.Stdout, os.Stderr, peer.Processes()...); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	on, err := server.Start(context.Background(), "")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	shared = on
	code := m.Run()
	if err := on.Close(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}
