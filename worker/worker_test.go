package worker_test

import (
	"context"
	"testing"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/worker"
)

func TestRunsWhatIsEnqueued(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ran := make(chan *pgwake.Run, 1)
	b.handle("mail", nil, func(_ context.Context, run *pgwake.Run) error {
		ran <- run
		return nil
	})
	w := b.start(worker.Config{})
	id := b.enqueue("mail", nil)
	run := recv(t, ran, "run")
	if run.ID != id || run.Attempt != 1 || run.MaxAttempts != 4 {
		t.Errorf("got run %+v", run)
	}
	task := b.await(id, pgwake.Succeeded)
	if task.Attempt != 1 || task.FinishedAt == nil {
		t.Errorf("got %+v", task)
	}
	if err := w.stop(); err != nil {
		t.Error(err)
	}
}
