package worker

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/internal/dial"
	"github.com/pgwake/pgwake/internal/pgtest"
	"github.com/pgwake/pgwake/internal/settled"
	"github.com/pgwake/pgwake/lease"
)

// announcing returns an announcer whose connections go to url.
func announcing(t *testing.T, pool *pgxpool.Pool, url string) *announcer {
	t.Helper()
	dialer, err := dial.New(pool.Config(), url, "test", nil)
	if err != nil {
		t.Fatal(err)
	}
	w := &Worker{log: slog.New(slog.DiscardHandler), beats: newConnection(dialer), config: Config{Schema: pgtest.Schema, Lease: time.Minute}}
	t.Cleanup(w.beats.close)
	return newAnnouncer(w)
}

func words(n int) []word {
	list := make([]word, n)
	for i := range list {
		list[i] = word{ID: uuid.New(), Type: "job", Status: "succeeded"}
	}
	return list
}

// What could not be sent, and what is too much to be told one by one, becomes a call to look.
func TestAnnouncerCallsToLook(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	listener, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Release()
	if _, err := listener.Exec(t.Context(), "listen "+pgx.Identifier{settled.Channel(pgtest.Schema)}.Sanitize()); err != nil {
		t.Fatal(err)
	}
	a := announcing(t, pool, "postgres://127.0.0.1:1/none")
	a.add(words(1), false)
	if pause, err := a.send(t.Context(), announceMinPause); err == nil || pause != announceRetry || !a.look {
		t.Errorf("sent to nowhere: %s, %v", pause, err)
	}
	a.w.beats = announcing(t, pool, "").w.beats
	heard := func(want string) {
		t.Helper()
		if _, err := a.send(t.Context(), announceMinPause); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if n, err := listener.Conn().WaitForNotification(ctx); err != nil || n.Payload != want {
			t.Fatalf("heard %v, %v, want %s", n, err, want)
		}
	}
	heard(settled.Resync)
	some := words(2)
	a.add(some, false)
	heard(settled.Encode(some)[0])
	a.add(words(announceMax), false)
	a.add(words(1), false)
	a.add(words(1), false)
	heard(settled.Resync)
	if pause, err := a.send(t.Context(), announceMinPause); pause != 0 || err != nil {
		t.Errorf("nothing to send: %s, %v", pause, err)
	}
}

// yes is a transaction in which everything is true.
type yes struct{}

func (yes) QueryRow(context.Context, string, ...any) pgx.Row { return yes{} }

func (yes) Scan(dest ...any) error {
	*dest[0].(*bool) = true
	return nil
}

// A row that is gone was settled by its handler's own transaction, or by a statement whose answer was lost, or not by us.
func TestAnnouncerOfLostRows(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		completed, unsure bool
		found             *lease.State
		tasks             int
		look              bool
	}{
		"completed":                      {completed: true, tasks: 1},
		"completed and somebody else's":  {completed: true, found: &lease.State{}},
		"no answer came":                 {unsure: true, look: true},
		"no answer came, row held again": {unsure: true, found: &lease.State{}, look: true},
		"lost":                           {found: &lease.State{}},
		"gone":                           {},
	} {
		a := newAnnouncer(nil)
		run := pgwake.NewRun(&lease.Lease{Type: "job"}, pgwake.CompleteStatement(pgtest.Schema, true))
		if c.completed {
			if err := run.CompleteTx(t.Context(), yes{}); err != nil {
				t.Fatal(err)
			}
		}
		a.lost(settling{execution: &execution{run: run}, unsure: c.unsure}, &lease.LostError{Found: c.found})
		if len(a.tasks) != c.tasks || a.look != c.look {
			t.Errorf("%s: tells of %v, look %v", name, a.tasks, a.look)
		}
	}
}
