package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	watchEvery   = 50 * time.Millisecond
	startLimit   = 30 * time.Second // for all workers to be ready
	smallestHalf = 3                // pages from which half of what is known counts as half-way
)

// demo is one run.
type demo struct {
	cfg     Config
	out     io.Writer // for people
	site    *site
	db      *database
	pool    *pgxpool.Pool
	crawler *crawler
	fleet   *fleet
	view    *view
	killed  *casualty // nil: nobody yet
	unclean error     // what could not be ended as it should
}

// Run archives the site and proves what it claims. It returns an error if it could not, or if the proof failed; everything
// it started has ended by then.
func Run(ctx context.Context, cfg Config) error {
	began := time.Now()
	cfg, err := cfg.withDefaults()
	if err != nil {
		return err
	}
	d := &demo{cfg: cfg, out: cfg.Stdout}
	if cfg.JSON {
		d.out = cfg.Stderr
	}
	report, err := d.run(ctx)
	if err != nil {
		if ctx.Err() != nil {
			fmt.Fprintf(cfg.Stderr, "The demo has ended early, its workers and its server are stopped: %v\n", errors.Join(context.Cause(ctx), d.unclean))
		}
		return err
	}
	report.Seconds = seconds(time.Since(began))
	if cfg.JSON {
		err = report.writeJSON(cfg.Stdout)
	} else {
		report.write(cfg.Stdout)
	}
	return errors.Join(err, report.err())
}

// run is Run up to the report. It ends what it started in the opposite order: workers, connections, server, site.
func (d *demo) run(ctx context.Context) (report *Report, err error) {
	d.say("pgwake demo: %d worker processes archive a web site, %s the result is checked.\n", d.cfg.Workers, d.plan())
	if d.site, err = openSite(ctx, d.cfg); err != nil {
		return nil, err
	}
	defer func() { err = d.ended(err, d.site.close()) }()
	if d.db, err = openDatabase(ctx, d.cfg); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil && d.db.server == nil {
			err = d.ended(err, d.db.drop())
		}
		err = d.ended(err, d.db.close())
	}()
	if d.pool, err = openPool(ctx, d.db.url, "pgwake demo", parentConnections); err != nil {
		return nil, err
	}
	defer d.pool.Close()
	if err := d.describeSite(ctx); err != nil {
		return nil, err
	}
	if d.crawler, err = newCrawler(ctx, d.pool, "parent", 1); err != nil {
		return nil, err
	}
	defer d.crawler.fetcher.close()
	d.fleet, err = startFleet(d.cfg, d.db.url)
	defer d.fleet.stop()
	if err != nil {
		return nil, err
	}
	if err := d.awaitWorkers(ctx); err != nil {
		return nil, err
	}
	d.introduce()

	if err := d.crawler.plant(ctx); err != nil {
		return nil, err
	}
	d.view = newView(d.out, d.cfg.Live && !d.cfg.JSON, d.cfg.MaxPages)
	err = d.watch(ctx)
	d.view.clear()
	if err != nil {
		return nil, err
	}
	d.say("Archived. Enqueueing %d tasks, one at a time, while the workers sleep, to measure the wake-up …", pings)
	waits, err := d.guarded(ctx, func(ctx context.Context) (*latencies, error) {
		return measureWakeups(ctx, d.pool, d.crawler.client)
	})
	if err != nil {
		return nil, err
	}
	d.fleet.stop()
	d.say("Workers stopped. Fetching every page again to compare …\n")
	return d.prove(ctx, waits)
}

// ended adds the error of ending something to that of the run.
func (d *demo) ended(err, closeErr error) error {
	d.unclean = errors.Join(d.unclean, closeErr)
	return errors.Join(err, closeErr)
}

func (d *demo) say(format string, args ...any) { fmt.Fprintf(d.out, format+"\n", args...) }

func (d *demo) plan() string {
	if d.cfg.NoKill {
		return "and"
	}
	return "one of them is killed half-way, and"
}

// describeSite writes down for the workers how the crawl is to go.
func (d *demo) describeSite(ctx context.Context) error {
	err := pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `insert into demo.site (seed, robots, gap, from_page) values ($1, $2, $3, $4)`,
			d.site.seed, d.site.robots, d.site.gap, d.cfg.fromPage())
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `insert into demo.budget (room) values ($1)`, d.cfg.MaxPages); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `insert into demo.pace (next_at) values (now())`)
		return err
	})
	if err != nil {
		return fmt.Errorf("describe the site: %w", err)
	}
	return nil
}

// awaitWorkers returns when all workers have reported themselves.
func (d *demo) awaitWorkers(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startLimit, fmt.Errorf("the workers are not ready after %s", startLimit))
	defer cancel()
	for {
		select {
		case err := <-d.fleet.failed:
			return err
		default:
		}
		var n int
		if err := d.pool.QueryRow(ctx, `select count(*) from pgwake.workers`).Scan(&n); err != nil {
			return fmt.Errorf("look for workers: %w", reason(ctx, err))
		}
		if n >= d.cfg.Workers {
			return nil
		}
		if err := sleep(ctx, watchEvery); err != nil {
			return err
		}
	}
}

// introduce tells people who takes part.
func (d *demo) introduce() {
	d.say("  site      %s", d.site.about)
	if d.site.gap > 0 {
		d.say("            one fetch every %s, as its robots.txt allows", d.site.gap)
	}
	d.db.tell(d.out)
	for _, p := range d.fleet.processes {
		d.say("  %s  process %d, runs %d tasks at once", p.name, p.pid(), d.cfg.Slots)
	}
	d.say("  lease     %g s, so that a dead worker's tasks are soon free (the default is 15 s)\n", lease.Seconds())
}

// statsSQL reads where the crawl is, all at one instant.
const statsSQL = `
select
  (select count(*) from demo.page),
  (select count(*) from demo.url),
  (select count(*) from demo.effect),
  count(*) filter (where t.status = 'running'),
  count(*) filter (where t.status = 'queued')
from pgwake.tasks as t`

// watch shows the progress until no task is left that will run, and kills a worker half-way.
func (d *demo) watch(ctx context.Context) error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	// A site may have fewer pages than are allowed. Its half is half of what is known, once that says something.
	enough := smallestHalf
	if d.site.half != nil { // the site is known to be large
		enough = max(enough, d.cfg.MaxPages/8)
	}
	half := d.site.half
	halfway := false
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case err := <-d.fleet.failed:
			return err
		case <-half:
			half, halfway = nil, true
		case <-tick.C:
		}
		if halfway && d.killed == nil && !d.cfg.NoKill {
			if err := d.kill(ctx); err != nil {
				return err
			}
		}
		s := stats{alive: d.fleet.alive()}
		if err := d.pool.QueryRow(ctx, statsSQL).Scan(&s.pages, &s.known, &s.settled, &s.running, &s.waiting); err != nil {
			return fmt.Errorf("look at the crawl: %w", err)
		}
		d.view.update(s)
		if s.running+s.waiting == 0 {
			return nil
		}
		halfway = halfway || 2*s.pages >= d.cfg.MaxPages || s.pages >= enough && 2*s.pages >= s.known
	}
}

func (d *demo) kill(ctx context.Context) error {
	c, err := d.strike(ctx)
	if err != nil {
		return fmt.Errorf("kill a worker: %w", err)
	}
	if c == nil {
		return nil
	}
	d.killed = c
	d.view.event("          %s (process %d) killed by SIGKILL with %s pages stored, while it was running %s",
		c.name, c.pid, count(c.pages), tasks(len(c.held)))
	return nil
}

// guarded runs f, with a context that ends when a worker does.
func (d *demo) guarded(ctx context.Context, f func(ctx context.Context) (*latencies, error)) (*latencies, error) {
	ctx, stop := context.WithCancelCause(ctx)
	done := make(chan struct{})
	watched := make(chan struct{})
	go func() { // ends with f
		defer close(watched)
		select {
		case err := <-d.fleet.failed:
			stop(err)
		case <-done:
		}
	}()
	l, err := f(ctx)
	close(done)
	<-watched
	if err != nil {
		err = reason(ctx, err)
	}
	stop(nil)
	return l, err
}

// reason is why ctx ended, if it did, else err.
func reason(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
