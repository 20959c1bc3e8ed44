package demo

import (
	"fmt"
	"io"
	"strings"
	"time"
)

const (
	plainEvery = 2 * time.Second
	liveEvery  = 200 * time.Millisecond
	rateOver   = time.Second // the rate shown is that of the last second or so
	barWidth   = 16
	clearLine  = "\r\x1b[K"
)

// stats is where the crawl is: pages stored, addresses known, tasks settled, running and waiting, workers alive.
type stats struct{ pages, known, settled, running, waiting, alive int }

// view shows the progress: a bar on a terminal, a line every two seconds elsewhere.
type view struct {
	w                   io.Writer
	live                bool
	max                 int
	start, shown, since time.Time // since is the start of the interval that rate is measured over
	base                int       // tasks settled by then
	rate                int
}

func newView(w io.Writer, cfg Config) *view {
	now := time.Now()
	return &view{w: w, live: cfg.Live && !cfg.JSON, max: cfg.MaxPages, start: now, shown: now, since: now}
}

// update shows where the crawl is, unless it did so just now.
func (v *view) update(s stats) {
	now := time.Now()
	if d := now.Sub(v.since); d >= rateOver {
		v.rate = int(float64(s.settled-v.base) / d.Seconds())
		v.since, v.base = now, s.settled
	}
	switch d := now.Sub(v.shown); {
	case v.live && d >= liveEvery:
		full := barWidth * s.pages / v.max
		// Short, since a line that does not fit on the terminal cannot be drawn over.
		fmt.Fprintf(v.w, clearLine+"  %s%s %s/%s pages, %s tasks/s, %d in flight, %d workers", strings.Repeat("█", full), strings.Repeat("░", barWidth-full),
			count(s.pages), count(v.max), count(v.rate), s.running, s.alive)
	case !v.live && d >= plainEvery:
		fmt.Fprintf(v.w, "%5.0f s  %s of up to %s pages, %s tasks/s, %d in flight, %d waiting, %d workers alive\n",
			now.Sub(v.start).Seconds(), count(s.pages), count(v.max), count(v.rate), s.running, s.waiting, s.alive)
	default:
		return
	}
	v.shown = now
}

// clear takes the bar away.
func (v *view) clear() {
	if v.live {
		fmt.Fprint(v.w, clearLine)
	}
}
