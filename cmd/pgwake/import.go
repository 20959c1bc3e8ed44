package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/schollz/progressbar/v3"
	"golang.org/x/sync/errgroup"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/internal/sqlstate"
	"github.com/pgwake/pgwake/internal/wait"
)

const (
	batchTasks = 1_000
	batchBytes = 16 << 20
	// batchWait is how long a line of a slow source waits for others to share a transaction with.
	batchWait = 500 * time.Millisecond
	// lastBatch is how much longer than the import a batch may take that is under way: its fate would be unknown otherwise.
	lastBatch = time.Second
	// reportedBad is the number of skipped lines that are told one by one.
	reportedBad = 20
)

// importer enqueues the lines of one input.
type importer struct {
	app     *app
	client  *pgwake.Client
	skipBad bool
	bar     *progressbar.ProgressBar // nil without a terminal

	enqueued, duplicates, bad int
	firstDuplicate, firstBad  int // line numbers
}

// importedLine is what --json prints for a line.
type importedLine struct {
	Line int `json:"line"`
	pgwake.Enqueued
}

// enqueueLines runs an import and says what came of it.
func (a *app) enqueueLines(ctx context.Context, name string, skipBad bool) error {
	in, size := a.stdin, int64(-1)
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return err
		}
		defer file.Close()
		in = file
	}
	if file, ok := in.(*os.File); ok {
		if info, err := file.Stat(); err == nil && info.Mode().IsRegular() {
			size = info.Size()
		}
	}
	if isTerminal(in) {
		a.note("reading tasks from the terminal, one JSON object a line; Ctrl-D ends")
	}
	return a.withClient(ctx, func(client *pgwake.Client) error {
		i := &importer{app: a, client: client, skipBad: skipBad}
		if isTerminal(a.stderr) && !isTerminal(in) {
			i.bar = progressbar.NewOptions64(size,
				progressbar.OptionSetWriter(a.stderr), progressbar.OptionSetDescription("enqueue"), progressbar.OptionShowBytes(true),
				progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish(), progressbar.OptionSetSpinnerChangeInterval(0))
		}
		err := i.run(ctx, in)
		if i.bar != nil {
			_ = i.bar.Finish()
		}
		return i.report(err)
	})
}

// run reads and enqueues at the same time. Both have ended when it returns.
func (i *importer) run(ctx context.Context, in io.Reader) error {
	lines := make(chan numbered) // closed by the reader; not buffered, since a line may be large
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(lines)
		return readLines(ctx, in, lines)
	})
	g.Go(func() error { return i.write(ctx, lines) })
	return g.Wait()
}

// write enqueues lines in batches. A batch goes when it is full, when its first line has waited long enough, and when
// a bad line or the end of the input follows it.
func (i *importer) write(ctx context.Context, lines <-chan numbered) error {
	var batch []numbered
	size := 0
	timer := time.NewTimer(batchWait)
	timer.Stop()
	defer timer.Stop()
	flush := func() error {
		timer.Stop()
		longer, cancel := wait.Outlast(ctx, lastBatch)
		defer cancel()
		err := i.enqueue(longer, batch)
		if i.bar != nil {
			_ = i.bar.Add(size)
		}
		batch, size = batch[:0], 0
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timer.C:
			if err := flush(); err != nil {
				return err
			}
		case line, ok := <-lines:
			if !ok {
				return flush()
			}
			if line.err != nil {
				if err := flush(); err != nil {
					return err
				}
				if err := i.refuse(line.number, line.err); err != nil {
					return err
				}
				continue
			}
			if batch = append(batch, line); len(batch) == 1 {
				timer.Reset(batchWait)
			}
			if size += line.bytes; len(batch) == batchTasks || size >= batchBytes {
				if err := flush(); err != nil {
					return err
				}
			}
		}
	}
}

// enqueue commits a batch. One that the database refuses for its data is halved until the bad line is found; what
// precedes that is committed.
func (i *importer) enqueue(ctx context.Context, batch []numbered) error {
	if len(batch) == 0 {
		return nil
	}
	tasks := make([]pgwake.NewTask, len(batch))
	for k, line := range batch {
		tasks[k] = line.task
	}
	results, err := i.client.EnqueueMany(ctx, tasks)
	switch taken := errors.Is(err, pgwake.ErrDuplicate); {
	case err == nil:
		return i.count(batch, results)
	case !taken && !sqlstate.Data(err):
		return err
	case len(batch) > 1:
		half := len(batch) / 2
		if err := i.enqueue(ctx, batch[:half]); err != nil {
			return err
		}
		return i.enqueue(ctx, batch[half:])
	case taken:
		id := batch[0].task.Options.ID
		return i.count(batch, []pgwake.Enqueued{{ID: id, Type: batch[0].task.Payload.TaskType(), Duplicate: true}})
	}
	if pgErr := (*pgconn.PgError)(nil); errors.As(err, &pgErr) {
		err = fmt.Errorf("the database refuses it: %s", pgErr.Message)
	}
	return i.refuse(batch[0].number, err)
}

// count takes note of what is committed.
func (i *importer) count(batch []numbered, results []pgwake.Enqueued) error {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	for k, r := range results {
		if !r.Duplicate {
			i.enqueued++
		} else if i.duplicates++; i.duplicates == 1 {
			i.firstDuplicate = batch[k].number
		}
		if i.app.json {
			if err := encoder.Encode(importedLine{batch[k].number, r}); err != nil {
				return err
			}
		}
	}
	_, err := i.app.stdout.Write(out.Bytes())
	return err
}

// refuse takes note of a bad line, which ends the import unless such are to be skipped.
func (i *importer) refuse(number int, err error) error {
	if i.bad++; i.bad == 1 {
		i.firstBad = number
	}
	bad := &badLine{number, err}
	if !i.skipBad {
		return bad
	}
	if i.bad <= reportedBad {
		if i.bar != nil {
			_ = i.bar.Clear()
		}
		i.app.note("%s", oneLine(bad.Error()))
	} else if i.bad == reportedBad+1 {
		i.app.note("further bad lines are counted only")
	}
	return nil
}

// report says how many tasks there are now, in any case, and returns the error in words that allow to go on from there.
func (i *importer) report(err error) error {
	if i.duplicates > 0 {
		i.app.note("%s there already (first: line %d)", plural(i.duplicates, "task was", "tasks were"), i.firstDuplicate)
	}
	summary := plural(i.enqueued, "task", "tasks") + " enqueued"
	if bad := (*badLine)(nil); errors.As(err, &bad) {
		return &partlyError{err, fmt.Sprintf("%s, first bad line %d", summary, bad.number)}
	}
	if err != nil {
		return &partlyError{err, summary}
	}
	if i.bad > 0 {
		summary += fmt.Sprintf(", %s skipped (first: line %d)", plural(i.bad, "bad line", "bad lines"), i.firstBad)
	}
	if i.app.json {
		i.app.note("%s", summary) // stdout holds the ids
		return nil
	}
	fmt.Fprintln(i.app.stdout, summary)
	return nil
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// badLine ends an import.
type badLine struct {
	number int
	err    error
}

func (e *badLine) Error() string { return fmt.Sprintf("line %d: %s", e.number, e.err) }
func (e *badLine) Unwrap() error { return e.err }
