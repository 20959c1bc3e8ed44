package demo

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/internal/wait"
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

// Extract is the payload of crawl.extract: read the title and some counts out of a stored page.
type Extract struct {
	URL string `json:"url"`
}

// TaskType implements [pgwake.Payload].
func (Extract) TaskType() string { return "crawl.extract" }

// Ping is the payload of demo.ping: note when it started.
type Ping struct{}

// TaskType implements [pgwake.Payload].
func (Ping) TaskType() string { return "demo.ping" }

// crawler is what the handlers share. The parent has one too, to enqueue the first page and to fetch all again.
type crawler struct {
	name   string // of the worker
	pool   *pgxpool.Pool
	types  *registry.Registry
	client *pgwake.Client
	web    *http.Client
	gap    time.Duration
	rules  *robots
}

func newCrawler(ctx context.Context, pool *pgxpool.Pool, name string) (*crawler, error) {
	c := &crawler{name: name, pool: pool, types: registry.New(), web: newWebClient()}
	unique := &registry.Options{MaxAttempts: taskAttempts, Retry: registry.Exponential(retryBase, retryCap), UniqueFields: []string{"url"}}
	err := errors.Join(
		registry.Register(c.types, c.page, unique),
		registry.Register(c.types, c.extract, unique),
		registry.Register(c.types, c.ping, nil),
	)
	if err != nil {
		return nil, err
	}
	if c.client, err = pgwake.NewClient(ctx, pool, pgwake.ClientConfig{Types: c.types}); err != nil {
		return nil, err
	}
	var robots string
	if err := pool.QueryRow(ctx, `select robots, gap from demo.site`).Scan(&robots, &c.gap); err != nil {
		return nil, fmt.Errorf("read demo.site: %w", err)
	}
	c.rules = parseRobots(robots)
	return c, nil
}

func (c *crawler) close() { c.web.CloseIdleConnections() }

// storeSQL stores a page. Parameters: address, status, content type, failure, size, hash, body.
const storeSQL = `
insert into demo.page (url, status, content_type, error, bytes, sha256, body)
values ($1, $2, $3, nullif($4, ''), $5, $6, $7)`

// page handles crawl.page. An answer of the site, whatever its status, is stored; no answer, or one of a site in trouble,
// is tried again, and stored as what it is when that does not help.
func (c *crawler) page(ctx context.Context, task *pgwake.Task[Page]) error {
	started := time.Now()
	address := task.Payload.URL
	at, err := url.Parse(address)
	if err != nil {
		return pgwake.Freeze(err)
	}
	r := c.fetch(ctx, address)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if r.inTrouble() && task.Attempt < taskAttempts {
		return fmt.Errorf("fetch %s: %s", address, r)
	}
	doc := &document{}
	switch {
	case r.isText():
		doc = parseDocument(r)
	case r.location != "":
		doc.references = []string{r.location}
	}
	return c.settle(ctx, task.Run, started, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, storeSQL, address, r.status, r.contentType, r.failure, len(r.body), r.sum, r.body); err != nil {
			return fmt.Errorf("store page: %w", err)
		}
		if r.isText() {
			if _, err := c.client.EnqueueTx(ctx, tx, Extract{address}, nil); err != nil {
				return err
			}
		}
		return c.discover(ctx, tx, links(at, doc, c.rules))
	})
}

// documentSQL stores what was read. Parameters: address, title, words, links.
const documentSQL = `
insert into demo.document (url, title, words, links)
values ($1, nullif($2, ''), $3, $4)`

// extract handles crawl.extract. It reads the stored page, not the site.
func (c *crawler) extract(ctx context.Context, task *pgwake.Task[Extract]) error {
	started := time.Now()
	address := task.Payload.URL
	var r response
	if err := c.pool.QueryRow(ctx, `select content_type, body from demo.page where url = $1`, address).Scan(&r.contentType, &r.body); err != nil {
		return fmt.Errorf("read page: %w", err)
	}
	doc := parseDocument(&r)
	return c.settle(ctx, task.Run, started, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, documentSQL, address, doc.title, doc.words, len(doc.references)); err != nil {
			return fmt.Errorf("store document: %w", err)
		}
		return nil
	})
}

// ping handles demo.ping: the effect says when it started.
func (c *crawler) ping(ctx context.Context, task *pgwake.Task[Ping]) error {
	return c.settle(ctx, task.Run, time.Now(), func(pgx.Tx) error { return nil })
}

// effectSQL notes a run that is being settled. Parameters: task, type, attempt, fence, process, worker, start, end.
const effectSQL = `
insert into demo.effect (task_id, type, attempt, fence, pid, worker, started, finished)
values ($1, $2, $3, $4, $5, $6, $7, $8)`

// settle completes the task, notes the effect and runs f, all in one transaction: together, or not at all.
func (c *crawler) settle(ctx context.Context, task *pgwake.Run, started time.Time, f func(tx pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error {
		if err := task.CompleteTx(ctx, tx); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, effectSQL, task.ID, task.Type, task.Attempt, task.Fence, os.Getpid(), c.name, started, time.Now())
		if err != nil {
			return fmt.Errorf("note effect: %w", err)
		}
		return f(tx)
	})
}

// discoverSQL makes addresses known, as far as there is room, and returns those that are new. The caller has locked
// demo.site, so nobody else adds any at the same time. Parameters: addresses, room. The primary key of demo.url serves it.
const discoverSQL = `
with fresh as (
  insert into demo.url (url)
  select found.url
  from unnest($1::text[]) with ordinality as found(url, place)
  where not exists (select from demo.url as known where known.url = found.url)
  order by found.place
  limit $2
  returning url
), spent as (
  update demo.site set room = room - (select count(*) from fresh)
)
select url from fresh`

// discover makes addresses known and enqueues a task for each that was not, as far as there is room. It ends the
// transaction's work: the room stays locked from here to the commit.
func (c *crawler) discover(ctx context.Context, tx pgx.Tx, addresses []string) error {
	if len(addresses) == 0 {
		return nil
	}
	var room int
	err := tx.QueryRow(ctx, `select room from demo.site where room > 0 for update`).Scan(&room)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil // it never grows again
	}
	if err != nil {
		return fmt.Errorf("lock the room: %w", err)
	}
	rows, _ := tx.Query(ctx, discoverSQL, addresses, room)
	fresh, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (pgwake.NewTask, error) {
		var p Page
		err := row.Scan(&p.URL)
		return pgwake.NewTask{Payload: p}, err
	})
	if err != nil {
		return fmt.Errorf("add addresses: %w", err)
	}
	_, err = c.client.EnqueueManyTx(ctx, tx, fresh)
	return err
}

// paceSQL books the next fetch and returns how long it is until then. Parameter: the gap.
const paceSQL = `
update demo.site
set next_at = greatest(next_at, clock_timestamp()) + $1::interval
returning greatest(next_at - $1::interval - clock_timestamp(), interval '0')`

// fetch keeps the whole fleet to the site's pace.
func (c *crawler) fetch(ctx context.Context, address string) *response {
	if c.gap > 0 {
		var pause time.Duration
		err := c.pool.QueryRow(ctx, paceSQL, c.gap).Scan(&pause)
		if err == nil {
			err = wait.For(ctx, pause)
		}
		if err != nil {
			return &response{failure: clean(err.Error())}
		}
	}
	return fetch(ctx, c.web, address)
}
