package worker

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/internal/sqlstate"
	"github.com/pgwake/pgwake/lease"
)

const (
	// maxBatch and maxBatchBytes bound one settling statement.
	maxBatch      = 500
	maxBatchBytes = 1 << 20
	// settleRetry is the first wait before a settlement is repeated whose row was locked.
	settleRetry = 50 * time.Millisecond
	// settleRetryMax is the longest; when the worker stops, a row that is refused or locked for so long is given up.
	settleRetryMax = 2 * time.Second
	// minFinish is the number of plain successes in a batch from which on they are worth a statement of their own.
	minFinish = 16
	// lockPatience is how long the statement for plain successes waits for a row that somebody has locked, as a setting of its
	// session; after that the one that passes over them is used, and for that row alone from then on.
	lockPatience = "40ms"
)

// settler writes the ends of runs, one statement at a time: the first result goes out at once, and those that come in
// while it is on its way go together in the next. A settlement that cannot be written is repeated until it can or until
// the database says that the lease is lost.
type settler struct {
	w         *Worker
	in        chan settling
	drained   chan struct{} // closed when no more will come
	announcer *announcer
}

type settling struct {
	execution *execution
	end       lease.Settlement
	unsure    bool // it was sent before, and no answer came
	locked    bool // its row was, when it was sent before
}

func newSettler(w *Worker) *settler {
	return &settler{w: w, in: make(chan settling, maxBatch), drained: make(chan struct{}), announcer: newAnnouncer(w)}
}

// add hands over a decided run. It blocks while the settler is far behind.
func (s *settler) add(e *execution, end lease.Settlement) {
	item := settling{execution: e, end: end}
	select {
	case s.in <- item:
		return
	default:
	}
	select {
	case s.in <- item:
	case <-s.drained: // a handler that outlived its worker: the lease ends by itself
	}
}

// run settles until drained is closed and everything is written, or ctx ends.
func (s *settler) run(ctx context.Context) {
	var announcing sync.WaitGroup
	ended := make(chan struct{})
	announcing.Go(func() { s.announcer.run(ctx, ended) })
	defer announcing.Wait()
	defer close(ended)
	state := stateLog{log: s.w.log, what: "settler"}
	var pending []settling
	wait := time.Duration(0) // before pending is tried again
	for {
		pending = s.collect(pending)
		if len(pending) == 0 {
			select {
			case item := <-s.in:
				pending = s.collect(append(pending, item))
			case <-s.drained:
				if pending = s.collect(pending); len(pending) == 0 {
					return
				}
			case <-ctx.Done():
				return
			}
		}
		batch := pending[:batchSize(pending)]
		rest, err := s.flush(ctx, batch)
		state.note(err)
		progress := len(rest) < len(batch)
		pending = append(pending[len(batch):], rest...)
		if progress {
			wait = 0
			continue
		}
		wait = min(max(2*wait, settleRetry), settleRetryMax)
		arrivals := s.in
		if err != nil && !sqlstate.Row(err) {
			arrivals = nil // the database is in trouble, for all results alike
		} else if wait == settleRetryMax && s.isDrained() {
			s.w.log.Error("settlements given up: their tasks run again when their leases end", "tasks", len(pending), "error", err)
			return
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case item := <-arrivals: // not to wait for a row that somebody has locked: first of the next batch
			timer.Stop()
			pending = append([]settling{item}, pending...)
		case <-ctx.Done():
			timer.Stop()
			s.w.log.Error("settlements given up: their tasks run again when their leases end", "tasks", len(pending))
			return
		}
	}
}

func (s *settler) isDrained() bool {
	select {
	case <-s.drained:
		return true
	default:
		return false
	}
}

// collect adds what has come in, without waiting.
func (s *settler) collect(pending []settling) []settling {
	for len(pending) < 4*maxBatch {
		select {
		case item := <-s.in:
			pending = append(pending, item)
		default:
			return pending
		}
	}
	return pending
}

func batchSize(pending []settling) int {
	size := 0
	for i, p := range pending {
		size += len(p.execution.run.RawPayload) + len(p.end.Entry)
		if i > 0 && (i == maxBatch || size > maxBatchBytes) {
			return i
		}
	}
	return len(pending)
}

// flush writes one batch and returns what is left of it to be tried again.
func (s *settler) flush(ctx context.Context, batch []settling) (rest []settling, err error) {
	plain, others := s.split(batch)
	if len(plain) >= minFinish && len(others) > 0 {
		rest, err = s.flush(ctx, plain)
		if err != nil && !sqlstate.Row(err) {
			return append(rest, others...), err
		}
		more, moreErr := s.flush(ctx, others)
		return append(rest, more...), cmp.Or(moreErr, err)
	}
	ends := make([]lease.Settlement, len(batch))
	for i, b := range batch {
		ends[i] = b.end
		if b.end.Status == string(pgwake.Succeeded) && b.execution.run.Completion() != pgwake.NotCompleted {
			// Settled by the handler's transaction, or, if the row is still there, not at all.
			ends[i] = s.w.settlement(b.execution, errNotCommitted, false)
		}
	}
	done, watched, err := s.settle(ctx, ends, len(others) == 0)
	switch {
	case err == nil:
		return s.sort(ctx, batch, ends, done, watched), nil
	case sqlstate.Row(err) && len(batch) > 1:
		// One bad row must not fail the others.
		for i, b := range batch {
			left, err := s.flush(ctx, []settling{b})
			rest = append(rest, left...)
			if err != nil && !sqlstate.Row(err) {
				return append(rest, batch[i+1:]...), err
			}
		}
		return rest, nil
	case sqlstate.Data(err):
		return s.refused(batch[0], err), nil
	}
	if !sqlstate.Server(err) {
		// The answer may be what was lost, and not the statement.
		for i := range batch {
			batch[i].unsure = true
		}
	}
	return batch, err
}

// split takes the plain successes out of a batch whose history is, or is not, to be kept as that of its first.
func (s *settler) split(batch []settling) (plain, others []settling) {
	for _, b := range batch {
		if !b.locked && isPlain(b.end) && b.end.Discard == batch[0].end.Discard && b.execution.run.Completion() == pgwake.NotCompleted {
			plain = append(plain, b)
		} else {
			others = append(others, b)
		}
	}
	return plain, others
}

// isPlain reports whether an end is a success with nothing else to say.
func isPlain(end lease.Settlement) bool {
	return end.Status == string(pgwake.Succeeded) && !end.Unspent && end.Error == "" && end.Entry == nil
}

// settle writes ends, plain successes of one kind by the statement for those. It makes the archive's partition if that is
// what is missing.
func (s *settler) settle(ctx context.Context, ends []lease.Settlement, plain bool) (done []string, watched bool, err error) {
	write := func(ctx context.Context, conn *pgx.Conn) (err error) {
		if !plain {
			done, watched, err = s.w.queue.SettleWatched(ctx, conn, s.w.id, ends)
			return err
		}
		leases := make([]*lease.Lease, len(ends))
		for i, end := range ends {
			leases[i] = end.Lease
		}
		done, watched, err = s.w.queue.Finish(ctx, conn, s.w.id, leases, ends[0].Status, ends[0].Discard)
		return err
	}
	err = s.w.settles.do(ctx, statementTimeout, write)
	if plain && sqlstate.LockTimeout(err) {
		plain = false
		err = s.w.settles.do(ctx, statementTimeout, write)
	}
	if !sqlstate.NoPartition(err) {
		return done, watched, err
	}
	err = s.w.settles.do(ctx, statementTimeout, func(ctx context.Context, conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, "select "+s.w.name("ensure_partitions")+"()"); err != nil {
			return err
		}
		return write(ctx, conn)
	})
	return done, watched, err
}

// refused replaces a settlement whose values the database does not take by one without values, and drops that one if it
// is not taken either: the task then runs again when its lease ends.
func (s *settler) refused(b settling, err error) []settling {
	task := b.execution.run
	if b.end.Error == "" && b.end.Entry == nil {
		s.w.log.Error("settlement refused by the database", "task", task.ID, "type", task.Type, "error", err)
		s.w.over(b.execution)
		return nil
	}
	s.w.log.Error("error of a run refused by the database; settling without it", "task", task.ID, "type", task.Type, "error", err)
	b.end.Error, b.end.Entry = "", nil
	return []settling{b}
}

// sort lets go of the settled runs and of the lost ones, and returns those whose rows are locked by somebody. If somebody
// watches, it has the ends announced.
func (s *settler) sort(ctx context.Context, batch []settling, ends []lease.Settlement, done []string, watched bool) []settling {
	settled := make(map[string]bool, len(done))
	for _, key := range done {
		settled[key] = true // an older run of the same row in the batch is let go with it
	}
	newest := make(map[string]int64, len(batch))
	for _, b := range batch {
		newest[b.end.Lease.Key] = max(newest[b.end.Lease.Key], b.end.Lease.Fence)
	}
	var missed []*lease.Lease
	var words []word
	for i, b := range batch {
		if !settled[b.end.Lease.Key] {
			missed = append(missed, b.end.Lease)
			continue
		}
		s.w.over(b.execution)
		if b.end.Lease.Fence == newest[b.end.Lease.Key] {
			words = append(words, wordOf(b.execution.run, ends[i].Status))
		}
	}
	if watched {
		s.announcer.add(words, false)
	}
	if len(missed) == 0 {
		return nil
	}
	var lost []*lease.LostError
	err := s.w.settles.do(ctx, statementTimeout, func(ctx context.Context, conn *pgx.Conn) (err error) {
		lost, err = s.w.queue.Lost(ctx, conn, missed)
		return err
	})
	if err != nil {
		// What was settled is settled; the others are tried again.
		lost = nil
	}
	gone := make(map[leaseID]*lease.LostError, len(lost))
	for _, l := range lost {
		gone[leaseID{l.Key, l.Fence}] = l
	}
	var rest []settling
	for _, b := range batch {
		key := b.end.Lease.Key
		switch l := gone[leaseID{key, b.end.Lease.Fence}]; {
		case settled[key]:
		case l == nil:
			b.locked = true
			rest = append(rest, b)
		default:
			s.w.over(b.execution)
			if watched {
				s.announcer.lost(b, l)
			}
			if b.execution.run.Completion() == pgwake.NotCompleted && !(b.unsure && l.Found == nil) {
				s.w.log.Warn("settlement refused: the lease is lost", "task", key, "type", b.execution.run.Type,
					"attempt", b.execution.run.Attempt, "outcome", b.end.Status, "error", error(l))
			}
		}
	}
	return rest
}
