package demo

import (
	"fmt"
	"io"
	"time"

	"github.com/schollz/progressbar/v3"
)

const (
	plainEvery = 2 * time.Second
	liveEvery  = 200 * time.Millisecond
	rateOver   = time.Second // the rate shown is that of the last second or so
)

// stats is where the crawl is.
type stats struct {
	pages   int // stored
	known   int // addresses
	settled int // tasks
	running int
	waiting int
	alive   int // workers
}

// view shows the progress: a bar on a terminal, a line every two seconds elsewhere.
type view struct {
	w     io.Writer
	bar   *progressbar.ProgressBar // nil: lines
	every time.Duration
	max   int

	shown time.Time
	since time.Time // start of the interval that rate is measured over
	base  int       // tasks settled by then
	rate  float64
	start time.Time
}

func newView(w io.Writer, live bool, maxPages int) *view {
	now := time.Now()
	v := &view{w: w, every: plainEvery, max: maxPages, start: now, since: now, shown: now}
	if live {
		v.every = liveEvery
		v.bar = progressbar.NewOptions(maxPages,
			progressbar.OptionSetWriter(w),
			progressbar.OptionSetWidth(16),
			progressbar.OptionShowCount(),
			progressbar.OptionSetPredictTime(false),
			progressbar.OptionSetElapsedTime(false),
			progressbar.OptionShowDescriptionAtLineEnd(),
			progressbar.OptionUseANSICodes(true),
			progressbar.OptionSetTheme(progressbar.Theme{Saucer: "█", SaucerPadding: "░", BarStart: " ", BarEnd: " "}),
		)
	}
	return v
}

// update shows where the crawl is, unless it did so just now.
func (v *view) update(s stats) {
	now := time.Now()
	if d := now.Sub(v.since); d >= rateOver {
		v.rate = float64(s.settled-v.base) / d.Seconds()
		v.since, v.base = now, s.settled
	}
	if now.Sub(v.shown) < v.every {
		return
	}
	v.shown = now
	if v.bar == nil {
		fmt.Fprintf(v.w, "%5.0f s  %s of up to %s pages, %s tasks/s, %d in flight, %d waiting, %d workers alive\n",
			now.Sub(v.start).Seconds(), count(s.pages), count(v.max), count(int(v.rate)), s.running, s.waiting, s.alive)
		return
	}
	// A bar that is full is finished, and shows nothing more; tasks may be left then.
	_ = v.bar.Set(min(s.pages, v.max-1))
	// Short, since a line that does not fit on the terminal cannot be drawn over.
	v.bar.Describe(fmt.Sprintf("pages, %s tasks/s, %d in flight, %d workers", count(int(v.rate)), s.running, s.alive))
}

// event tells what happened, above the bar.
func (v *view) event(format string, args ...any) {
	v.clear()
	fmt.Fprintf(v.w, format+"\n", args...)
}

// clear takes the bar away.
func (v *view) clear() {
	if v.bar != nil {
		_ = v.bar.Clear()
	}
}
