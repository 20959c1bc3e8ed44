package demo

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/pgwake/pgwake"
)

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
	{"pages whose text was not extracted", `
select count(*) from demo.page as p
where p.extract_task is not null and not exists (select from demo.document as d where d.url = p.url)`},
	{"tasks that are neither live nor archived", `
select count(*) from (
  select u.task_id from demo.url as u
  union all
  select p.extract_task from demo.page as p where p.extract_task is not null
) as made
where not exists (select from pgwake.all_tasks as t where t.id = made.task_id)`},
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
			lines = append(lines, fmt.Sprintf("%s %s", count(n), f.what))
		}
	}
	return total, lines, nil
}

// missing counts tasks, by id, that are neither live nor archived.
func (d *demo) missing(ctx context.Context, ids []uuid.UUID) (int, error) {
	var found int
	err := d.pool.QueryRow(ctx, `select count(distinct t.id) from pgwake.all_tasks as t where t.id = any ($1)`, ids).Scan(&found)
	if err != nil {
		return 0, fmt.Errorf("look for tasks: %w", err)
	}
	return len(ids) - found, nil
}

// comparison is the stored pages against fresh fetches.
type comparison struct {
	same      atomic.Int64
	different atomic.Int64
	changing  atomic.Int64 // differ from one fetch to the next, so that nothing can be said
	mu        sync.Mutex
	examples  []string // guarded by mu
}

const maxExamples = 5

type storedPage struct {
	URL    string
	Status int
	Sum    []byte
	Body   []byte
}

// compare fetches every page again and compares status and hash. What is stored must also have the hash that was stored
// with it.
func (d *demo) compare(ctx context.Context) (*comparison, error) {
	f := newFetcher(checkers())
	defer f.close()
	c := &comparison{}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(checkers())
	var tick *time.Ticker
	if d.site.gap > 0 {
		tick = time.NewTicker(d.site.gap)
		defer tick.Stop()
	}
	fetch := func(ctx context.Context, url string) (*response, error) {
		if tick != nil {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
		return f.fetch(ctx, url)
	}

	rows, _ := d.pool.Query(ctx, `select url, status, sha256, body from demo.page order by url`)
	var page storedPage
	_, err := pgx.ForEachRow(rows, []any{&page.URL, &page.Status, &page.Sum, &page.Body}, func() error {
		p := page
		p.Sum, p.Body = bytes.Clone(page.Sum), bytes.Clone(page.Body)
		group.Go(func() error { return c.check(ctx, fetch, p) })
		return ctx.Err()
	})
	if e := group.Wait(); e != nil {
		return nil, e
	}
	if err != nil {
		return nil, fmt.Errorf("read pages: %w", err)
	}
	return c, nil
}

// check compares one page. One that differs is fetched once more: a page that is never the same twice proves nothing.
func (c *comparison) check(ctx context.Context, fetch func(context.Context, string) (*response, error), p storedPage) error {
	if p.Body != nil {
		body, err := decompress(p.Body)
		if sum := sha256.Sum256(body); err != nil || !bytes.Equal(sum[:], p.Sum) {
			c.differ(p.URL + ": the stored body does not have the hash stored with it")
			return nil
		}
	}
	fresh, err := fetch(ctx, p.URL)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if p.same(fresh, err) {
		c.same.Add(1)
		return nil
	}
	again, err2 := fetch(ctx, p.URL)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	switch {
	case p.same(again, err2):
		c.same.Add(1)
	case err != nil:
		c.differ(p.URL + ": " + err.Error())
	case err2 == nil && !bytes.Equal(fresh.sum(), again.sum()):
		c.changing.Add(1)
	default:
		c.differ(fmt.Sprintf("%s: stored status %d and hash %.8x, now %d and %.8x", p.URL, p.Status, p.Sum, fresh.status, fresh.sum()))
	}
	return nil
}

func (p *storedPage) same(r *response, err error) bool {
	if err != nil {
		return p.Status == 0
	}
	return p.Status == r.status && bytes.Equal(p.Sum, r.sum())
}

func (c *comparison) differ(example string) {
	c.different.Add(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.examples) < maxExamples {
		c.examples = append(c.examples, example)
	}
}
