package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

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
	Compressed int64          `json:"compressed_bytes"`
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

	DatabaseURL string `json:"-"` // of a database that stays
	Kept        string `json:"kept,omitempty"`
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
	Settled      int     `json:"settled_before"` // by a commit that the server had already
	FirstSeconds float64 `json:"first_restart_seconds"`
	LastSeconds  float64 `json:"last_restart_seconds"`
}

// Content is how the stored pages compare with fresh fetches.
type Content struct {
	Same      int `json:"same"`
	Different int `json:"different"`
	Changing  int `json:"changing"` // never the same twice
}

// totalsSQL sums up the archive.
const totalsSQL = `
select
  count(*), count(*) filter (where p.content_type like '%html%'), coalesce(sum(p.bytes), 0), coalesce(sum(octet_length(p.body)), 0),
  (select coalesce(sum(d.words), 0) from demo.document as d)
from demo.page as p`

// crawlSQL measures the crawl, from the start of its first run to the end of its last.
const crawlSQL = `
select count(*), coalesce(extract(epoch from max(e.finished) - min(e.started))::float8, 0)
from demo.effect as e
where e.type <> 'demo.ping'`

// prove reads the report from the database and the site. The workers have stopped.
func (d *demo) prove(ctx context.Context, waits *latencies) (*Report, error) {
	r := &Report{
		Site: d.site.about, PostgreSQL: d.db.version, Workers: d.cfg.Workers, Slots: d.cfg.Slots, MaxPages: d.cfg.MaxPages,
		LeaseSeconds: lease.Seconds(), Problems: []string{}, Statuses: map[string]int{},
		WakeUp: WakeUp{
			Tasks:          len(waits.ids),
			EnqueueToStart: Quantiles{milliseconds(quantile(waits.called, 0.5)), milliseconds(quantile(waits.called, 0.99))},
			CommitToStart:  Quantiles{milliseconds(quantile(waits.committed, 0.5)), milliseconds(quantile(waits.committed, 0.99))},
		},
	}
	if d.db.server == nil {
		r.Kept = "database " + Database
	} else if d.db.kept {
		r.Kept = d.db.server.Dir()
	}
	if err := d.pool.QueryRow(ctx, totalsSQL).Scan(&r.Pages, &r.HTML, &r.Bytes, &r.Compressed, &r.Words); err != nil {
		return nil, fmt.Errorf("sum up pages: %w", err)
	}
	if err := d.pool.QueryRow(ctx, crawlSQL).Scan(&r.Tasks, &r.CrawlSeconds); err != nil {
		return nil, fmt.Errorf("measure the crawl: %w", err)
	}
	if r.CrawlSeconds > 0 {
		r.TasksPerSecond = float64(r.Tasks) / r.CrawlSeconds
	}
	rows, _ := d.pool.Query(ctx, `select status::text, count(*) from demo.page group by status`)
	var status string
	var n int
	if _, err := pgx.ForEachRow(rows, []any{&status, &n}, func() error { r.Statuses[status] = n; return nil }); err != nil {
		return nil, fmt.Errorf("count pages: %w", err)
	}

	if err := d.proveCounts(ctx, r, waits); err != nil {
		return nil, err
	}
	if err := d.proveRecovery(ctx, r); err != nil {
		return nil, err
	}
	c, err := d.compare(ctx)
	if err != nil {
		return nil, fmt.Errorf("compare pages: %w", err)
	}
	r.Content = Content{int(c.same.Load()), int(c.different.Load()), int(c.changing.Load())}
	for _, example := range c.examples {
		r.problem("a page differs from what its address has now: %s", example)
	}
	if n := r.Content.Different - len(c.examples); n > 0 {
		r.problem("%s more pages differ", count(n))
	}
	r.OK = len(r.Problems) == 0
	return r, nil
}

func (r *Report) problem(format string, args ...any) {
	r.Problems = append(r.Problems, fmt.Sprintf(format, args...))
}

func (d *demo) proveCounts(ctx context.Context, r *Report, waits *latencies) error {
	lost, lines, err := countFindings(ctx, d.pool, lostFindings)
	if err != nil {
		return err
	}
	gone, err := d.missing(ctx, waits.ids)
	if err != nil {
		return err
	}
	if gone > 0 {
		lines = append(lines, fmt.Sprintf("%d demo.ping tasks that are neither live nor archived", gone))
	}
	r.Lost = lost + gone
	for _, line := range lines {
		r.problem("lost: %s", line)
	}
	if r.Duplicates, lines, err = countFindings(ctx, d.pool, duplicateFindings); err != nil {
		return err
	}
	for _, line := range lines {
		r.problem("done twice: %s", line)
	}
	if r.Pages > r.MaxPages {
		r.problem("%s pages were stored, %s were allowed", count(r.Pages), count(r.MaxPages))
	}
	return nil
}

func (d *demo) proveRecovery(ctx context.Context, r *Report) error {
	if d.cfg.NoKill {
		return nil
	}
	if d.killed == nil {
		r.problem("no worker was killed: none was running a task at the half-way mark; try a larger site or --max-pages")
		return nil
	}
	again, err := d.recovery(ctx, d.killed)
	if err != nil {
		return err
	}
	r.Killed = &Killed{
		Worker: d.killed.name, PID: d.killed.pid, AtPages: d.killed.pages, Running: len(d.killed.held),
		Recovered: again.recovered, Settled: again.own, FirstSeconds: seconds(again.first), LastSeconds: seconds(again.last),
	}
	switch {
	case r.Killed.Running == 0:
		r.problem("%s was running no task when it was killed", d.killed.name)
	case again.recovered == 0:
		r.problem("none of the %d tasks of the killed %s was recovered", len(d.killed.held), d.killed.name)
	case again.recovered+again.own < len(d.killed.held):
		r.problem("%d tasks of the killed %s were not settled", len(d.killed.held)-again.recovered-again.own, d.killed.name)
	}
	return nil
}

// err says that the proof failed, and why.
func (r *Report) err() error {
	if r.OK {
		return nil
	}
	return errors.New("the demo failed: " + strings.Join(r.Problems, "; "))
}

func (r *Report) writeJSON(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(r)
}

// write tells people.
func (r *Report) write(w io.Writer) {
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "  %-11s "+format+"\n", append([]any{name}, args...)...)
	}
	line("pages", "%s of at most %s, %s of them HTML; %s, %s compressed; answers: %s", count(r.Pages), count(r.MaxPages), count(r.HTML), size(r.Bytes), size(r.Compressed), r.answers())
	included := ""
	if r.Killed != nil {
		included = ", the wait for the dead worker's leases included"
	}
	line("tasks", "%s in %.1f s, %s tasks/s%s", count(r.Tasks), r.CrawlSeconds, count(int(r.TasksPerSecond)), included)
	line("wake-up", "p50 %.1f ms, p99 %.1f ms from calling Enqueue to the handler's first line in another process", r.WakeUp.EnqueueToStart.P50, r.WakeUp.EnqueueToStart.P99)
	line("", "p50 %.1f ms, p99 %.1f ms from the answer to the commit to there (%d tasks, workers asleep)", r.WakeUp.CommitToStart.P50, r.WakeUp.CommitToStart.P99, r.WakeUp.Tasks)
	if k := r.Killed; k != nil {
		line("killed", "%s, running %s: %d recovered by others, in runs that began %s to %s s after the kill",
			k.Worker, tasks(k.Running), k.Recovered, decimal(k.FirstSeconds), decimal(k.LastSeconds))
		line("", "once its leases of %g s had ended; with the default of 15 s it takes up to 15 s", r.LeaseSeconds)
		if k.Settled > 0 {
			line("", "%d more had their commit under way and were done", k.Settled)
		}
	}
	line("duplicates", "%s", verdict(r.Duplicates, "no task took effect twice, no address was enqueued twice"))
	line("lost", "%s", verdict(r.Lost, "every known address has its page, every task is settled"))
	content := fmt.Sprintf("%s of %s pages have the status and SHA-256 of a fresh fetch, %s differ", count(r.Content.Same), count(r.Pages), count(r.Content.Different))
	if r.Content.Changing > 0 {
		content += fmt.Sprintf(", %s are never the same twice", count(r.Content.Changing))
	}
	line("content", "%s", content)
	fmt.Fprintln(w)
	if r.OK {
		fmt.Fprintf(w, "Nothing was lost and nothing was done twice. (%.0f s)\n", r.Seconds)
	}
	if r.Kept != "" {
		fmt.Fprintf(w, "The archive stays in %s: tables demo.page, demo.document, demo.effect, pgwake.task_archive.\n", r.Kept)
	}
}

// verdict is a number of wrongs, with what it means if there are none.
func verdict(n int, none string) string {
	if n == 0 {
		return "0: " + none
	}
	return count(n) + ", see below"
}

// answers lists how many pages had which status.
func (r *Report) answers() string {
	var parts []string
	for _, status := range slices.Sorted(maps.Keys(r.Statuses)) {
		name := status
		if status == "0" {
			name = "no answer"
		}
		parts = append(parts, fmt.Sprintf("%s × %s", count(r.Statuses[status]), name))
	}
	return strings.Join(parts, ", ")
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

func size(bytes int64) string { return fmt.Sprintf("%.1f MB", float64(bytes)/1e6) }

func decimal(s float64) string { return strconv.FormatFloat(s, 'f', 1, 64) }

func seconds(d time.Duration) float64 { return float64(d.Milliseconds()) / 1000 }

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
