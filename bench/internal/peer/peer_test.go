package peer

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/pgwake/pgwake/bench/internal/fleet"
	"github.com/pgwake/pgwake/bench/internal/server"
	"github.com/pgwake/pgwake/internal/wait"
)

func TestMain(m *testing.M) {
	if job := os.Getenv(fleet.Variable); job != "" { // this is a worker process
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		err := fleet.Main(ctx, job, os.Stdin, os.Stdout, os.Stderr, Processes()...)
		stop()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// until waits until ok says so.
func until(t *testing.T, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for !ok() {
		if err := wait.For(ctx, 20*time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
}

// Every system runs each task of a backlog exactly once, and what is enqueued while it waits.
func TestSystems(t *testing.T) {
	t.Parallel()
	on, err := server.Start(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := on.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, s := range All() {
		t.Run(s.Name(), func(t *testing.T) {
			if why := s.Missing(t.Context()); why != "" {
				t.Skip(why)
			}
			t.Log(s.About())
			db, err := on.Database(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := db.Drop(); err != nil {
					t.Error(err)
				}
			})
			if err := s.Prepare(t.Context(), db); err != nil {
				t.Fatal(err)
			}
			backlog(t, s, db)
			idle(t, s, db)
		})
	}
}

func backlog(t *testing.T, s System, db *server.Database) {
	n := 200
	if s.Name() == PgBoss(defaults).Name() {
		n = 3 // it takes one every two seconds
	}
	if err := s.Fill(t.Context(), db, n); err != nil {
		t.Fatal(err)
	}
	if left, err := s.Unfinished(t.Context(), db); err != nil || left != n {
		t.Fatalf("%d tasks are not finished before there is a worker, %v", left, err)
	}
	f := launch(t, s, db, WorkerOptions{Tally: n})
	until(t, func() bool {
		left, err := s.Unfinished(t.Context(), db)
		if err != nil {
			t.Fatal(err)
		}
		return left == 0
	})
	if tally, err := f.Tally(t.Context()); err != nil || tally != (fleet.Tally{Ran: int64(n), Distinct: int64(n), Most: 1}) {
		t.Errorf("%+v, %v", tally, err)
	}
	if err := f.Stop(); err != nil {
		t.Error(err)
	}
}

func idle(t *testing.T, s System, db *server.Database) {
	f := launch(t, s, db, WorkerOptions{Slots: 3, Work: 1500})
	conn, err := pgx.Connect(t.Context(), db.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	sent := time.Now()
	if err := s.Enqueue(t.Context(), conn, sent.UnixNano()); err != nil {
		t.Fatal(err)
	}
	var starts []fleet.Start
	until(t, func() bool {
		starts, err = f.Starts(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return len(starts) > 0
	})
	if len(starts) != 1 || starts[0].Sent != sent.UnixNano() || starts[0].Attempt != 1 || starts[0].Latency() <= 0 || starts[0].Latency() > time.Since(sent) {
		t.Errorf("%+v", starts)
	}
	if err := f.Stop(); err != nil {
		t.Error(err)
	}
	if said := f.Log(); said != "" {
		t.Errorf("it said: %s", said)
	}
}

func launch(t *testing.T, s System, db *server.Database, opts WorkerOptions) fleet.Fleet {
	t.Helper()
	job := s.Job(opts)
	job.URL, job.Name = db.FleetURL, s.Name()
	f, err := fleet.Launch(t.Context(), job)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Kill)
	return f
}
