package pgwake

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"time"

	"golang.org/x/sync/errgroup"
)

// SeqOptions say how a sequence is enqueued; nil and the zero value mean the defaults.
type SeqOptions struct {
	// BatchTasks is how many tasks a batch has at most; 5,000 by default.
	BatchTasks int
	// BatchBytes is how many bytes of payloads and other texts a batch has at most, unless a single task has more; 4 MiB
	// by default. Two batches are held at a time: one is sent, one gathered.
	BatchBytes int
	// Results, if set, is called with the results of each batch, in the order of its tasks, after it is committed, or by
	// [Client.EnqueueSeqTx] inserted: in the caller's goroutine, between two tasks of the sequence or at its end. An error
	// ends the enqueueing.
	Results func([]Enqueued) error
}

// SeqResult counts the tasks of a sequence that are done with: the first Enqueued + Duplicates of it.
type SeqResult struct {
	Enqueued   int64 // inserted
	Duplicates int64 // not inserted, since a live task holds the unique key
}

func (r *SeqResult) add(results []Enqueued) {
	for _, e := range results {
		if e.Duplicate {
			r.Duplicates++
		} else {
			r.Enqueued++
		}
	}
}

const (
	seqTasks = 5_000
	seqBytes = 4 << 20
	// seqLast is how much longer than its context a batch may take that is under way: its fate would be unknown otherwise.
	seqLast = time.Second
)

func (o *SeqOptions) defaults() (SeqOptions, error) {
	if o == nil {
		o = &SeqOptions{}
	}
	d := SeqOptions{cmp.Or(o.BatchTasks, seqTasks), cmp.Or(o.BatchBytes, seqBytes), o.Results}
	if d.BatchTasks < 0 || d.BatchBytes < 0 {
		return d, fmt.Errorf("enqueue: batches of %d tasks and %d bytes: give 0 for the default, or more", d.BatchTasks, d.BatchBytes)
	}
	return d, nil
}

// EnqueueSeq enqueues a sequence of any length in bounded memory: in batches, each of which is a transaction as by
// [Client.EnqueueMany]. A batch goes as soon as the one before is committed, with what has come by then, so no task waits for
// others that are slow to come.
//
// The first error ends it: one of the sequence, a task that is refused, a batch that the database refuses, the end of
// ctx. In any case the result counts what is committed, from the beginning of the sequence on: all tasks before the one in
// question, unless the error is one of the database or of ctx. When ctx ends, the batch under way gets a second more to be
// committed and counted. Only if the database does not answer by then, or the connection breaks, may the batch that follows
// those counted be committed all the same.
//
// The sequence runs in the caller's goroutine. What it waits for should end with ctx, too.
func (c *Client) EnqueueSeq(ctx context.Context, tasks iter.Seq2[NewTask, error], opts *SeqOptions) (SeqResult, error) {
	if c.pool == nil {
		return SeqResult{}, errNoPool
	}
	options, err := opts.defaults()
	if err != nil {
		return SeqResult{}, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	s := &stream{
		client: c, opts: options, cancel: cancel,
		some: make(chan struct{}, 1), taken: make(chan struct{}, 1), results: make(chan []Enqueued, 2),
	}
	sender, ctx := errgroup.WithContext(ctx) // one goroutine: it ends when all is sent or ctx ends
	sender.Go(func() error { return s.send(ctx) })
	defer func() {
		cancel(nil) // unless all is sent, the sequence or Results has panicked
		for range s.results {
		}
	}()

	err = s.gather(ctx, tasks)
	s.end()
	for results := range s.results {
		s.report(results)
	}
	return s.result, cmp.Or(sender.Wait(), err, s.refused)
}

// EnqueueSeqTx is [Client.EnqueueSeq] inside the caller's transaction: all or nothing. The sequence may use the transaction
// between two tasks, since nothing is sent while it runs. Roll back after an error.
func (c *Client) EnqueueSeqTx(ctx context.Context, tx Tx, tasks iter.Seq2[NewTask, error], opts *SeqOptions) (result SeqResult, err error) {
	options, err := opts.defaults()
	if err != nil {
		return result, err
	}
	var b batch
	send := func() error {
		results, err := c.insertRows(ctx, tx, b.rows)
		if err != nil {
			return err
		}
		b.reset()
		result.add(results)
		if options.Results != nil && len(results) > 0 {
			return options.Results(results)
		}
		return nil
	}
	n := 0
	for task, err := range tasks {
		if err != nil {
			return result, err
		}
		row, err := c.prepare(task)
		if err != nil {
			return result, fmt.Errorf("task %d: %w", n, err)
		}
		n++
		if !b.fits(&row, &options) {
			if err := send(); err != nil {
				return result, err
			}
		}
		b.add(row)
	}
	return result, send()
}

// batch is what of a sequence goes together.
type batch struct {
	rows  []taskRow
	bytes int
}

func (b *batch) fits(row *taskRow, opts *SeqOptions) bool {
	return len(b.rows) == 0 || len(b.rows) < opts.BatchTasks && b.bytes+row.size() <= opts.BatchBytes
}

func (b *batch) add(row taskRow) {
	b.rows = append(b.rows, row)
	b.bytes += row.size()
}

// reset empties the batch and keeps its room.
func (b *batch) reset() {
	clear(b.rows)
	*b = batch{rows: b.rows[:0]}
}
