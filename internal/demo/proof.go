package demo

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/internal/wait"
)

const (
	pings      = 200 // tasks that measure the wake-up
	pingGapMin = 5 * time.Millisecond
	pingGapMax = 40 * time.Millisecond
	pingLimit  = 30 * time.Second // for one of them to be settled
)

// measureWakeups enqueues tasks one at a time, each when the one before it is settled and a random while has passed.
func (d *demo) measureWakeups(ctx context.Context) error {
	var fromCall, fromCommit []float64
	for range pings {
		if err := wait.For(ctx, pingGapMin+rand.N(pingGapMax-pingGapMin)); err != nil {
			return err
		}
		called := time.Now()
		task, err := d.crawler.client.Enqueue(ctx, Ping{}, nil)
		committed := time.Now()
		if err != nil {
			return err
		}
		err = await(ctx, d.pool, "task "+task.ID.String(), pingLimit, `select exists (select from demo.effect where task_id = $1)`, task.ID)
		if err != nil {
			return err
		}
		var started time.Time
		if err := d.pool.QueryRow(ctx, `select started from demo.effect where task_id = $1`, task.ID).Scan(&started); err != nil {
			return fmt.Errorf("read ping: %w", err)
		}
		fromCall = append(fromCall, started.Sub(called).Seconds()*1000)
		fromCommit = append(fromCommit, max(0, started.Sub(committed).Seconds()*1000)) // a handler may be faster than the answer
	}
	d.report.WakeUp = WakeUp{pings, quantiles(fromCall), quantiles(fromCommit)}
	return nil
}

func quantiles(values []float64) Quantiles {
	slices.Sort(values)
	at := func(q float64) float64 { return values[int(math.Ceil(float64(len(values))*q))-1] }
	return Quantiles{at(0.5), at(0.99)}
}

// finding is one thing that the proof counts: zero is what it should be.
type finding struct {
	what string
	sql  string // returns the count
}

// lostFindings count what should be there and is not.
var lostFindings = []finding{
	{"known addresses without a stored page", `
select count(*) from demo.url as u
where not exists (select from demo.page as p where p.url = u.url)`},
	{"bodies that do not have the hash of what was fetched", `
select count(*) from demo.page as p
where sha256(p.body) is distinct from p.sha256`},
	{"pages whose text was not extracted", `
select count(*) from demo.page as p
where p.status = 200 and p.body is not null and p.content_type like 'text/%'
  and not exists (select from demo.document as d where d.url = p.url)`},
	{"known addresses whose task is neither live nor archived", `
select count(*) from demo.url as u
where not exists (select from pgwake.all_tasks as t where t.type = 'crawl.page' and t.payload ->> 'url' = u.url)`},
	{"tasks that were not settled", `
select count(*) from pgwake.tasks`},
	{"settled tasks that had no effect", `
select count(*) from pgwake.task_archive as t
where not exists (select from demo.effect as e where e.task_id = t.id)`},
}

// duplicateFindings count what is there more often than it should be. No unique key keeps any of it out.
var duplicateFindings = []finding{
	{"effects beyond one of each task", `
select count(*) - count(distinct e.task_id) from demo.effect as e`},
	{"addresses enqueued twice", `
select count(*) - count(distinct t.payload ->> 'url') from pgwake.all_tasks as t where t.type = 'crawl.page'`},
	{"pages extracted twice", `
select count(*) - count(distinct t.payload ->> 'url') from pgwake.all_tasks as t where t.type = 'crawl.extract'`},
	{"pages stored twice", `
select count(*) - count(distinct p.url) from demo.page as p`},
	{"documents stored twice", `
select count(*) - count(distinct d.url) from demo.document as d`},
	{"tasks archived twice", `
select count(*) - count(distinct t.id) from pgwake.task_archive as t`},
	{"effects of tasks that are not settled", `
select count(*) from demo.effect as e
where not exists (select from pgwake.task_archive as t where t.id = e.task_id and t.status = 'succeeded')`},
}

// countFindings returns the sum of the findings, with a line for each that is not zero.
func countFindings(ctx context.Context, db pgwake.Tx, findings []finding) (total int, lines []string, err error) {
	for _, f := range findings {
		var n int
		if err := db.QueryRow(ctx, f.sql).Scan(&n); err != nil {
			return 0, nil, fmt.Errorf("count %s: %w", f.what, err)
		}
		if n != 0 {
			total += n
			lines = append(lines, count(n)+" "+f.what)
		}
	}
	return total, lines, nil
}

// totalsSQL sums up the archive, and the crawl from the start of its first run to the end of its last.
const totalsSQL = `
select
  count(*),
  count(*) filter (where p.content_type like '%html%'),
  coalesce(sum(p.bytes), 0),
  coalesce(sum(pg_column_size(p.body)), 0),
  (select coalesce(sum(d.words), 0) from demo.document as d),
  (select coalesce(jsonb_object_agg(s.status, s.n), '{}') from (select status, count(*) as n from demo.page group by status) as s),
  (select count(*) from demo.effect as e where e.type <> 'demo.ping'),
  (select coalesce(extract(epoch from max(e.finished) - min(e.started))::float8, 0) from demo.effect as e where e.type <> 'demo.ping')
from demo.page as p`

// prove fills in the report from the database and the site. The workers have stopped.
func (d *demo) prove(ctx context.Context) error {
	r := d.report
	r.Site, r.Workers, r.Slots, r.MaxPages = d.site.about, d.cfg.Workers, d.cfg.Slots, d.cfg.MaxPages
	r.PostgreSQL, r.Kept, r.LeaseSeconds = d.db.version, d.db.kept, lease.Seconds()
	err := d.pool.QueryRow(ctx, totalsSQL).Scan(&r.Pages, &r.HTML, &r.Bytes, &r.Compressed, &r.Words, &r.Statuses, &r.Tasks, &r.CrawlSeconds)
	if err != nil {
		return fmt.Errorf("sum up: %w", err)
	}
	r.TasksPerSecond = float64(r.Tasks) / max(r.CrawlSeconds, 0.001)

	var lost, twice []string
	if r.Lost, lost, err = countFindings(ctx, d.pool, lostFindings); err != nil {
		return err
	}
	if r.Duplicates, twice, err = countFindings(ctx, d.pool, duplicateFindings); err != nil {
		return err
	}
	for _, line := range lost {
		r.problem("lost: %s", line)
	}
	for _, line := range twice {
		r.problem("done twice: %s", line)
	}
	if r.Pages > r.MaxPages {
		r.problem("%s pages were stored, %s were allowed", count(r.Pages), count(r.MaxPages))
	}
	if err := d.proveRecovery(ctx, r); err != nil {
		return err
	}
	if err := d.compare(ctx); err != nil {
		return fmt.Errorf("compare pages: %w", err)
	}
	r.OK = len(r.Problems) == 0
	return nil
}

// storedPage is what is compared of a page.
type storedPage struct {
	URL    string
	Status int
	Sum    []byte
}

// compare fetches every page again and compares status and hash. Of a page that is never the same twice nothing is said.
func (d *demo) compare(ctx context.Context) error {
	rows, _ := d.pool.Query(ctx, `select url, status, sha256 from demo.page order by url`)
	pages, err := pgx.CollectRows(rows, pgx.RowToStructByPos[storedPage])
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(2 * runtime.GOMAXPROCS(0))
	var mu sync.Mutex // guards content
	var content Content
	for _, p := range pages {
		group.Go(func() error {
			first := d.crawler.fetch(ctx, p.URL)
			is := p.Status == first.status && bytes.Equal(p.Sum, first.sum)
			changes := !is && !bytes.Equal(first.sum, d.crawler.fetch(ctx, p.URL).sum)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case is:
				content.Same++
			case changes:
				content.Changing++
			default:
				content.Different++
				d.report.problem("%s differs from what it has now", p.URL)
			}
			return context.Cause(ctx)
		})
	}
	err = group.Wait()
	d.report.Content = content
	return err
}
