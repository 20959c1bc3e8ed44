package worker

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/internal/settled"
	"github.com/pgwake/pgwake/lease"
)

const (
	// announceMinPause and announceMaxPause bound the time between two statements that announce settlements, of which the
	// first goes out at once. The pause doubles after each that tells of announceMany or more.
	announceMinPause = 10 * time.Millisecond
	announceMaxPause = 40 * time.Millisecond
	announceMany     = 4
	// announceMax is how many settlements one of them tells of. If there are more, subscribers are told to look.
	announceMax = 2000
	// announceLook is the time after one that tells them so, which costs each of them a look.
	announceLook = 250 * time.Millisecond
	// announceRetry is the time after one that failed.
	announceRetry = time.Second
)

// announcer tells subscribers what was settled, after the commit. It uses the heartbeat's connection, which has little to
// do, so that neither settlements nor claims wait for it. What it could not send is made up for by a call to look.
type announcer struct {
	w    *Worker
	wake chan struct{} // cap 1

	mu    sync.Mutex // guards the two below
	tasks []word
	look  bool // there was more than is told one by one, or something that was not told
}

type word = settled.Task

func wordOf(run *pgwake.Run, status string) word {
	return word{ID: run.ID, Type: run.Type, Status: status}
}

func newAnnouncer(w *Worker) *announcer { return &announcer{w: w, wake: make(chan struct{}, 1)} }

// add takes what was settled, and whether something else may have been. It never blocks.
func (a *announcer) add(tasks []word, look bool) {
	if len(tasks) == 0 && !look {
		return
	}
	a.mu.Lock()
	a.look = a.look || look || len(a.tasks)+len(tasks) > announceMax
	if a.look {
		a.tasks = nil // the look comes later, and sees them
	} else {
		a.tasks = append(a.tasks, tasks...)
	}
	a.mu.Unlock()
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// lost announces a run whose row it was too late to settle: its handler's own transaction may have done so, or a statement
// whose answer was lost.
func (a *announcer) lost(b settling, l *lease.LostError) {
	run := b.execution.run
	if l.Found == nil && run.Completion() == pgwake.Completed {
		a.add([]word{wordOf(run, string(pgwake.Succeeded))}, false)
	} else {
		a.add(nil, b.unsure)
	}
}

// run announces until ended is closed, and then what is left.
func (a *announcer) run(ctx context.Context, ended <-chan struct{}) {
	state := stateLog{log: a.w.log, what: "announcement of settlements"}
	pause := announceMinPause
	for last := false; !last; {
		select {
		case <-a.wake:
		case <-ended:
			last = true
		}
		var err error
		pause, err = a.send(ctx, pause)
		state.note(err)
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ended:
			timer.Stop()
		}
	}
}

// announceSQL sends @payloads. Nobody needs the notifications to be durable, and commits that notify go one at a time.
const announceSQL = `
select pg_notify($1, p), set_config('synchronous_commit', 'off', true)
from unnest($2::text[]) as p`

// send sends what there is, and returns the time until the next from that since the last.
func (a *announcer) send(ctx context.Context, pause time.Duration) (time.Duration, error) {
	a.mu.Lock()
	tasks, look := a.tasks, a.look
	a.tasks, a.look = nil, false
	a.mu.Unlock()
	var payloads []string
	switch {
	case look:
		payloads, pause = []string{settled.Resync}, announceLook
	case len(tasks) >= announceMany:
		payloads, pause = settled.Encode(tasks), min(max(2*pause, announceMinPause), announceMaxPause)
	case len(tasks) > 0:
		payloads, pause = settled.Encode(tasks), announceMinPause
	default:
		return 0, nil
	}
	err := a.w.beats.do(ctx, min(announceRetry, a.w.config.Lease/10), func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, announceSQL, settled.Channel(a.w.config.Schema), payloads)
		return err
	})
	if err != nil {
		a.add(nil, true)
		return announceRetry, err
	}
	return pause, nil
}
