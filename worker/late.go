package worker

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgwake/pgwake/internal/wait"
)

// late lowers the marks of a type: rows of it have appeared that were due since an instant, which the ring trigger tells
// in seconds; 0: since long ago.
func (w *Worker) late(payload string) {
	i := strings.LastIndexByte(payload, ' ')
	seconds, err := strconv.ParseInt(payload[i+1:], 10, 64)
	if i < 0 || err != nil {
		return // not from the trigger
	}
	at := time.Time{}
	if seconds != 0 {
		at = time.Unix(seconds, 0)
	}
	for _, d := range w.dispatchers {
		if typ := payload[:i]; slices.Contains(d.names, typ) {
			d.marks.Lower(typ, at)
		}
	}
}

const (
	// backPause is the longest time between two slices of a look back, backShare the part of the time that slices take.
	backPause = time.Second
	backShare = 0.05
)

// lookBack looks for rows behind the marks that nobody has told of, while looks begin there. It ends with ctx.
func (w *Worker) lookBack(ctx context.Context) {
	state := stateLog{log: w.log, what: "look back"}
	for pause := backPause; wait.For(ctx, pause) == nil; {
		pause = backPause
		for _, d := range w.dispatchers {
			if !d.marks.Dear() {
				continue
			}
			began, found := time.Now(), false
			err := w.beats.do(ctx, statementTimeout, func(ctx context.Context, conn *pgx.Conn) (err error) {
				found, err = w.queue.LookBack(ctx, conn, d.names, &d.marks)
				return err
			})
			if ctx.Err() != nil {
				return
			}
			state.note(err)
			if found {
				d.slots.nudge()
			}
			pause = max(min(pause, backPause/10), time.Duration(float64(time.Since(began))/backShare))
		}
	}
}
