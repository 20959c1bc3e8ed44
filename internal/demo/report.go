package demo

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
)

const maxTold = 10 // problems in the error; --json has all

// Report is what a run has shown.
type Report struct {
	OK       bool     `json:"ok"`
	Problems []string `json:"problems"` // why not

	Site       string         `json:"site"`
	PostgreSQL string         `json:"postgresql"`
	Workers    int            `json:"workers"`
	Slots      int            `json:"slots"`
	Pages      int            `json:"pages"`
	HTML       int            `json:"html_pages"`
	MaxPages   int            `json:"max_pages"`
	Statuses   map[string]int `json:"statuses"` // pages by HTTP status, "0": no answer
	Bytes      int64          `json:"bytes"`
	Compressed int64          `json:"compressed_bytes"` // as PostgreSQL stores them
	Words      int64          `json:"words"`

	Tasks          int     `json:"tasks"` // of the crawl
	CrawlSeconds   float64 `json:"crawl_seconds"`
	TasksPerSecond float64 `json:"tasks_per_second"`
	LeaseSeconds   float64 `json:"lease_seconds"`

	WakeUp WakeUp  `json:"wake_up"`
	Killed *Killed `json:"killed"` // nil: nobody

	Duplicates int     `json:"duplicates"`
	Lost       int     `json:"lost"`
	Content    Content `json:"content"`
	Seconds    float64 `json:"seconds"` // all in all
	Kept       string  `json:"kept,omitempty"`
}

// WakeUp is how long tasks waited that were enqueued while all workers slept.
type WakeUp struct {
	Tasks          int       `json:"tasks"`
	EnqueueToStart Quantiles `json:"enqueue_to_start_ms"` // call of Enqueue to the handler's first line, commit included
	CommitToStart  Quantiles `json:"commit_to_start_ms"`  // return of Enqueue to the handler's first line
}

// Quantiles are in milliseconds.
type Quantiles struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
}

// Killed is what became of the killed worker's tasks.
type Killed struct {
	Worker       string  `json:"worker"`
	PID          int     `json:"pid"`
	AtPages      int     `json:"at_pages"`
	Running      int     `json:"running"` // tasks it held
	Recovered    int     `json:"recovered"`
	FirstSeconds float64 `json:"first_restart_seconds"`
	LastSeconds  float64 `json:"last_restart_seconds"`
}

// Content is how the stored pages compare with fresh fetches.
type Content struct {
	Same      int `json:"same"`
	Different int `json:"different"`
	Changing  int `json:"changing"` // never the same twice
}

func (r *Report) problem(format string, args ...any) {
	r.Problems = append(r.Problems, fmt.Sprintf(format, args...))
}

// finish tells the result, and returns an error if the proof failed.
func (r *Report) finish(cfg Config) error {
	if cfg.JSON {
		encoder := json.NewEncoder(cfg.Stdout)
		encoder.SetEscapeHTML(false)
		encoder.SetIndent("", "  ")
		if err := encoder.Encode(r); err != nil {
			return err
		}
	} else {
		r.write(cfg.Stdout)
	}
	if !r.OK {
		told := strings.Join(r.Problems[:min(len(r.Problems), maxTold)], "; ")
		if n := len(r.Problems) - maxTold; n > 0 {
			told += fmt.Sprintf("; and %s more", count(n))
		}
		return errors.New("the demo failed: " + told)
	}
	return nil
}

// write tells people.
func (r *Report) write(w io.Writer) {
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "  %-11s "+format+"\n", append([]any{name}, args...)...)
	}
	number := func(n int, none string) string {
		if n == 0 {
			return "0: " + none
		}
		return count(n) + ", see below"
	}
	var answers []string
	for _, status := range slices.Sorted(maps.Keys(r.Statuses)) {
		answer := status
		if status == "0" {
			answer = "no answer"
		}
		answers = append(answers, count(r.Statuses[status])+" × "+answer)
	}
	included := ""
	if r.Killed != nil {
		included = ", the wait for the dead worker's leases included"
	}
	changing := ""
	if r.Content.Changing > 0 {
		changing = fmt.Sprintf(", %s are never the same twice", count(r.Content.Changing))
	}
	line("pages", "%s of at most %s, %s of them HTML; %.1f MB, %.1f MB compressed; answers: %s", count(r.Pages), count(r.MaxPages), count(r.HTML),
		float64(r.Bytes)/1e6, float64(r.Compressed)/1e6, strings.Join(answers, ", "))
	line("tasks", "%s in %.1f s, %s tasks/s%s", count(r.Tasks), r.CrawlSeconds, count(int(r.TasksPerSecond)), included)
	line("wake-up", "p50 %.1f ms, p99 %.1f ms from calling Enqueue to the handler's first line in another process", r.WakeUp.EnqueueToStart.P50, r.WakeUp.EnqueueToStart.P99)
	line("", "p50 %.1f ms, p99 %.1f ms from the answer to the commit to there (%d tasks, workers asleep)", r.WakeUp.CommitToStart.P50, r.WakeUp.CommitToStart.P99, r.WakeUp.Tasks)
	if k := r.Killed; k != nil {
		line("killed", "%s, running %s: %d recovered by others, in runs that began %.1f to %.1f s after the kill",
			k.Worker, tasks(k.Running), k.Recovered, k.FirstSeconds, k.LastSeconds)
		line("", "once its leases of %g s had ended; with the default of 15 s it takes up to 15 s", r.LeaseSeconds)
	}
	line("duplicates", "%s", number(r.Duplicates, "no task took effect twice, no address was enqueued twice"))
	line("lost", "%s", number(r.Lost, "every known address has its page, every task is settled"))
	line("content", "%s of %s pages have the status and SHA-256 of a fresh fetch, %s differ%s\n", count(r.Content.Same), count(r.Pages), count(r.Content.Different), changing)
	if r.OK {
		fmt.Fprintf(w, "Nothing was lost and nothing was done twice. (%.0f s)\n", r.Seconds)
	}
	if r.Kept != "" {
		fmt.Fprintf(w, "The archive stays in %s: tables demo.page, demo.document, demo.effect, pgwake.task_archive.\n", r.Kept)
	}
}

func tasks(n int) string {
	if n == 1 {
		return "1 task"
	}
	return count(n) + " tasks"
}

// count writes a number with commas.
func count(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
