package pgwake

import (
	"context"
	"fmt"
	"iter"
	"sync"

	"github.com/pgwake/pgwake/internal/wait"
)

// stream hands the tasks of a sequence from the goroutine that prepares them to the one that sends them.
type stream struct {
	client *Client
	opts   SeqOptions
	cancel context.CancelCauseFunc

	mu    sync.Mutex // guards batch and ended
	batch batch      // gathered while the one before is sent
	ended bool       // nothing more will come

	some    chan struct{}   // cap 1: there is something to take, or the end
	taken   chan struct{}   // cap 1: there is room again
	results chan []Enqueued // cap 2, for the batches there can be while the sequence waits; closed by the sender as it ends

	result  SeqResult // the sender's, until results is closed
	refused error     // what Results returned
}

// gather prepares the tasks until they end or ctx does.
func (s *stream) gather(ctx context.Context, tasks iter.Seq2[NewTask, error]) error {
	n := int64(0)
	for task, err := range tasks {
		if err != nil {
			return err
		}
		row, err := s.client.prepare(task)
		if err != nil {
			return fmt.Errorf("task %d: %w", n, err)
		}
		if err := s.add(ctx, row); err != nil {
			return err
		}
		n++
	}
	return nil
}

// add waits until the row fits into the batch.
func (s *stream) add(ctx context.Context, row taskRow) error {
	for {
		s.mu.Lock()
		fits := s.batch.fits(&row, &s.opts)
		if fits {
			s.batch.add(row)
		}
		s.mu.Unlock()
		if fits {
			break
		}
		select {
		case <-s.taken:
		case results, ok := <-s.results:
			if ok {
				s.report(results)
				continue
			}
			<-ctx.Done() // the sender has failed
			return context.Cause(ctx)
		}
	}
	wake(s.some)
	select {
	case results, ok := <-s.results:
		if ok {
			s.report(results)
		}
	default:
	}
	return context.Cause(ctx)
}

// end says that nothing more will come.
func (s *stream) end() {
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	wake(s.some)
}

func (s *stream) report(results []Enqueued) {
	if s.refused != nil {
		return
	}
	if s.refused = s.opts.Results(results); s.refused != nil {
		s.cancel(s.refused)
	}
}

// send commits batch after batch.
func (s *stream) send(ctx context.Context) error {
	defer close(s.results)
	var b batch
	for more := true; more; {
		var err error
		if b, more, err = s.take(ctx, b); err != nil {
			return err
		}
		if err := s.commit(ctx, &b); err != nil {
			return err
		}
		b.reset()
	}
	return nil
}

// take waits for tasks, takes them, and leaves the room of an empty batch for others. more is false with the last.
func (s *stream) take(ctx context.Context, empty batch) (b batch, more bool, err error) {
	select {
	case <-s.some:
	case <-ctx.Done():
	}
	if err := context.Cause(ctx); err != nil {
		return b, false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	b, s.batch = s.batch, empty
	wake(s.taken)
	return b, !s.ended, nil
}

func (s *stream) commit(ctx context.Context, b *batch) error {
	if len(b.rows) == 0 {
		return nil
	}
	longer, cancel := wait.Outlast(ctx, seqLast)
	defer cancel()
	results, err := s.client.commitRows(longer, b.rows)
	if err != nil {
		return err
	}
	s.result.add(results)
	if s.opts.Results != nil {
		s.results <- results
	}
	return nil
}

// wake leaves word for a goroutine that looks once for any number of calls.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
