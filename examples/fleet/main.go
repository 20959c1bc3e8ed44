// Command fleet is a worker for production: settings from the environment, JSON logs, health probes and an orderly stop.
// Start any number of them, on any number of machines.
//
// The first SIGTERM or SIGINT drains: no new tasks, and those that run may finish. The second ends the process at once;
// what it was running runs elsewhere when the leases end. Exit codes: 0 drained, 1 failed, 2 bad settings.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/pgwake/pgwake/registry"
	"github.com/pgwake/pgwake/worker"
)

// staleSweep is how old the last sweep of a worker that is ready may be: several intervals.
const staleSweep = 30 * time.Second

type settings struct {
	databaseURL string
	healthAddr  string
	worker      worker.Config
}

func main() {
	log := slog.New(slog.NewJSONHandler(os.Stdout, nil))
	slog.SetDefault(log)
	s, err := readSettings()
	if err != nil {
		log.Error("bad settings", "error", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	context.AfterFunc(ctx, stop) // from then on a signal ends the process
	if err := run(ctx, s, log); err != nil {
		log.Error("worker failed", "error", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, s *settings, log *slog.Logger) error {
	pool, err := pgxpool.New(ctx, s.databaseURL)
	if err != nil {
		return err
	}
	defer pool.Close()
	reg := registry.New(logged(log))
	if err := register(reg); err != nil {
		return err
	}
	w, err := worker.New(pool, reg, s.worker)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", s.healthAddr)
	if err != nil {
		return err
	}
	log.Info("health probes", "addr", listener.Addr().String())
	server := &http.Server{Handler: probes(ctx, w), ReadHeaderTimeout: 5 * time.Second}

	// The probes answer until the worker has drained; if they cannot be served, the worker drains.
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer server.Close()
		return w.Run(ctx)
	})
	g.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve health probes: %w", err)
		}
		return nil
	})
	return g.Wait()
}

// probes answers /healthz while the process lives, and /readyz while the worker does its work: it hears of new tasks
// and has reached the database of late. A worker that is not ready still works as well as it can, so do not restart it.
func probes(ctx context.Context, w *worker.Worker) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(rw http.ResponseWriter, _ *http.Request) { fmt.Fprintln(rw, "ok") })
	mux.HandleFunc("GET /readyz", func(rw http.ResponseWriter, _ *http.Request) {
		h := w.Health()
		switch {
		case ctx.Err() != nil:
			http.Error(rw, "draining", http.StatusServiceUnavailable)
		case !h.Listening:
			http.Error(rw, "not listening", http.StatusServiceUnavailable)
		case time.Since(h.LastSweep) > staleSweep:
			http.Error(rw, "no sweep since "+h.LastSweep.Format(time.RFC3339), http.StatusServiceUnavailable)
		default:
			fmt.Fprintf(rw, "ready, running %d\n", h.Running)
		}
	})
	return mux
}

func readSettings() (*settings, error) {
	s := &settings{
		databaseURL: os.Getenv("DATABASE_URL"),
		healthAddr:  cmp.Or(os.Getenv("HEALTH_ADDR"), ":8080"),
		worker:      worker.Config{Schema: os.Getenv("PGWAKE_SCHEMA"), Name: os.Getenv("WORKER_NAME")},
	}
	if s.databaseURL == "" {
		return nil, errors.New("DATABASE_URL is not set")
	}
	var err error
	if text := os.Getenv("WORKER_SLOTS"); text != "" {
		if s.worker.Slots, err = strconv.Atoi(text); err != nil {
			return nil, fmt.Errorf("WORKER_SLOTS: %w", err)
		}
	}
	if text := os.Getenv("WORKER_DRAIN"); text != "" {
		if s.worker.DrainTimeout, err = time.ParseDuration(text); err != nil {
			return nil, fmt.Errorf("WORKER_DRAIN: %w", err)
		}
	}
	return s, nil
}
