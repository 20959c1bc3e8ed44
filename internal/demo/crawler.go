package demo

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/registry"
)

const (
	taskAttempts = 4
	retryBase    = 500 * time.Millisecond
	retryCap     = 10 * time.Second
)

// Page is the payload of crawl.page: fetch the page, store it, enqueue the pages it links to.
type Page struct {
	URL string `json:"url"`
}

// TaskType implements [pgwake.Payload].
func (Page) TaskType() string { return "crawl.page" }

// Extract is the payload of crawl.extract: read title, headings and counts out of a stored page.
type Extract struct {
	URL string `json:"url"`
}

// TaskType implements [pgwake.Payload].
func (Extract) TaskType() string { return "crawl.extract" }

// Ping is the payload of demo.ping: note when it started.
type Ping struct{}

// TaskType implements [pgwake.Payload].
func (Ping) TaskType() string { return "demo.ping" }

// taskTypes are all the types that may be in a database of the demo's.
var taskTypes = []string{Page{}.TaskType(), Extract{}.TaskType(), Ping{}.TaskType()}

// crawler is what the handlers share. The parent has one too, to plant the first page.
type crawler struct {
	name    string // of the worker
	pool    *pgxpool.Pool
	types   *registry.Registry
	client  *pgwake.Client
	fetcher *fetcher
	site    siteRow
	rules   *robots
}

// siteRow is demo.site.
type siteRow struct {
	Seed     string
	Robots   string
	Gap      time.Duration
	FromPage int
}

func newCrawler(ctx context.Context, pool *pgxpool.Pool, name string, slots int) (*crawler, error) {
	c := &crawler{name: name, pool: pool, types: registry.New(), fetcher: newFetcher(slots)}
	unique := &registry.Options{MaxAttempts: taskAttempts, Retry: registry.Exponential(retryBase, retryCap), UniqueFields: []string{"url"}}
	if err := registry.Register(c.types, c.page, unique); err != nil {
		return nil, err
	}
	if err := registry.Register(c.types, c.extract, unique); err != nil {
		return nil, err
	}
	if err := registry.Register(c.types, c.ping, nil); err != nil {
		return nil, err
	}
	var err error
	if c.client, err = pgwake.NewClient(ctx, pool, pgwake.ClientConfig{Types: c.types}); err != nil {
		return nil, err
	}
	rows, _ := pool.Query(ctx, `select seed, robots, gap, from_page from demo.site`)
	if c.site, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[siteRow]); err != nil {
		return nil, fmt.Errorf("read demo.site: %w", err)
	}
	c.rules = parseRobots(c.site.Robots)
	return c, nil
}

// plant makes the seed known and enqueues its task.
func (c *crawler) plant(ctx context.Context) error {
	err := pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error { return c.discover(ctx, tx, []string{c.site.Seed}, nil) })
	if err != nil {
		return fmt.Errorf("enqueue the first page: %w", err)
	}
	return nil
}

// settle runs f, notes the effect and completes the task, all in one transaction: together, or not at all.
func (c *crawler) settle(ctx context.Context, task *pgwake.Run, started time.Time, f func(tx pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error {
		if err := task.CompleteTx(ctx, tx); err != nil {
			return err
		}
		if err := c.note(ctx, tx, task, started); err != nil {
			return err
		}
		return f(tx)
	})
}

// effectSQL notes a run that is being settled. Parameters: task, type, attempt, fence, process, worker, start, end.
const effectSQL = `
insert into demo.effect (task_id, type, attempt, fence, pid, worker, started, finished)
values ($1, $2, $3, $4, $5, $6, $7, $8)`

func (c *crawler) note(ctx context.Context, tx pgx.Tx, task *pgwake.Run, started time.Time) error {
	_, err := tx.Exec(ctx, effectSQL, task.ID, task.Type, task.Attempt, task.Fence, os.Getpid(), c.name, started, time.Now())
	if err != nil {
		return fmt.Errorf("note effect: %w", err)
	}
	return nil
}

// discoverSQL makes addresses known, with the tasks that will fetch them, as far as there is room, and returns those that
// are new. The caller has locked demo.budget, so nobody else adds any at the same time and all known ones are seen.
// Parameters: addresses, ids of their tasks, the page they are on, room. The primary key of demo.url serves it.
const discoverSQL = `
with fresh as (
  insert into demo.url (url, task_id, found_on)
  select found.url, found.task_id, $3
  from unnest($1::text[], $2::uuid[]) with ordinality as found(url, task_id, place)
  where not exists (select from demo.url as known where known.url = found.url)
  order by found.place
  limit $4
  on conflict (url) do nothing
  returning url, task_id
), spent as (
  update demo.budget set room = room - (select count(*) from fresh)
)
select url, task_id from fresh`

// discover makes addresses known and enqueues a task for each that was not, within the budget. It ends the
// transaction's work: the budget stays locked from here to the commit.
func (c *crawler) discover(ctx context.Context, tx pgx.Tx, addresses []string, page *string) error {
	if len(addresses) == 0 {
		return nil
	}
	var room int
	if err := tx.QueryRow(ctx, `select room from demo.budget`).Scan(&room); err != nil {
		return fmt.Errorf("read budget: %w", err)
	}
	if room == 0 { // it never grows again
		return nil
	}
	if err := tx.QueryRow(ctx, `select room from demo.budget for update`).Scan(&room); err != nil {
		return fmt.Errorf("lock budget: %w", err)
	}

	ids := make([]uuid.UUID, len(addresses))
	for i := range ids {
		id, err := uuid.NewV7()
		if err != nil {
			return fmt.Errorf("make id: %w", err)
		}
		ids[i] = id
	}
	rows, _ := tx.Query(ctx, discoverSQL, addresses, ids, page, min(room, c.site.FromPage))
	var tasks []pgwake.NewTask
	var address string
	var id uuid.UUID
	_, err := pgx.ForEachRow(rows, []any{&address, &id}, func() error {
		tasks = append(tasks, pgwake.NewTask{Payload: Page{address}, Options: &pgwake.EnqueueOptions{ID: id}})
		return nil
	})
	if err != nil {
		return fmt.Errorf("add addresses: %w", err)
	}
	enqueued, err := c.client.EnqueueManyTx(ctx, tx, tasks)
	if err != nil {
		return err
	}
	for i, e := range enqueued {
		if e.Duplicate {
			return fmt.Errorf("%s has the task %s already", tasks[i].Payload.(Page).URL, e.ID)
		}
	}
	return nil
}
