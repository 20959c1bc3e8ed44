package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// Recorder keeps what has happened in a process until its parent asks.
type Recorder struct {
	work time.Duration
	runs []atomic.Uint32 // of each task by its number, nil: starts are kept; the first one's are those of no number

	ran, distinct, most atomic.Int64 // of runs, kept so that a look at them costs nothing

	mu     sync.Mutex // guards out and starts
	out    io.Writer
	starts []Start
}

func newRecorder(job Job, out io.Writer) *Recorder {
	r := &Recorder{work: job.Work, out: out}
	if job.Tally > 0 {
		r.runs = make([]atomic.Uint32, job.Tally+1)
	}
	return r
}

// Handle is the handler of every task: it notes the run, and takes the time that the job says. It returns an error if ctx
// ends first.
func (r *Recorder) Handle(ctx context.Context, p Payload, attempt int) error {
	r.note(p.Sent, time.Now(), attempt)
	return rest(ctx, r.work)
}

func (r *Recorder) note(sent int64, at time.Time, attempt int) {
	if r.runs != nil {
		if sent < 1 || sent >= int64(len(r.runs)) {
			sent = 0
		}
		n := int64(r.runs[sent].Add(1))
		r.ran.Add(1)
		if sent > 0 && n == 1 {
			r.distinct.Add(1)
		}
		for m := r.most.Load(); sent > 0 && n > m && !r.most.CompareAndSwap(m, n); m = r.most.Load() {
		}
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.starts = append(r.starts, Start{Sent: sent, At: at.UnixNano(), Attempt: attempt})
}

// Ready tells the parent that the process works.
func (r *Recorder) Ready() {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintln(r.out, readyLine)
	r.starts = []Start{}
}

func (r *Recorder) report() {
	r.mu.Lock()
	defer r.mu.Unlock()
	var answer any = r.starts
	if r.runs != nil {
		answer = r.tally()
	}
	_ = json.NewEncoder(r.out).Encode(answer) // without a parent this process ends
	r.starts = []Start{}
}

func (r *Recorder) tally() Tally {
	return Tally{Ran: r.ran.Load(), Distinct: r.distinct.Load(), Most: r.most.Load()}
}
