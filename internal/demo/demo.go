// Package demo archives a web site with a fleet of worker processes, kills one of them with SIGKILL half-way, and then
// proves from the database and from fresh fetches that nothing was lost and nothing was done twice.
//
//	parent      PostgreSQL and the web site, unless they are given; the view, the kill, the proof
//	worker-1…n  this program again, with a hidden subcommand: handlers crawl.page, crawl.extract and demo.ping
//
// A handler writes what it found, the tasks that follow from it, one row of demo.effect and its own completion in one
// transaction. Of the demo's tables only demo.url has a unique key, so that a task settled twice would leave its effects
// twice, to be counted.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// DefaultWorkers is how many worker processes there are.
	DefaultWorkers = 3
	// DefaultSlots is how many tasks a worker runs at once.
	DefaultSlots = 8

	// lease of the demo's workers: shorter than the default of 15 s, so that nobody waits long for the recovery.
	lease = 3 * time.Second

	watchEvery = 50 * time.Millisecond
	startLimit = 30 * time.Second // for all workers to be ready
	fewPages   = 3                // from this many on, half of what is known counts as half-way
)

// Config says what to archive, with what, and where to tell about it. All fields but the first five are required.
type Config struct {
	// URL is the site to archive; only pages on its host are fetched. Empty: the sources of the installed Go.
	URL string
	// MaxPages is how many pages are archived at most; 3,000 by default, 200 for a URL.
	MaxPages int
	// Keep is a directory for the database server's files, to be kept. Empty: a temporary one.
	Keep string
	// DatabaseURL is a server to use instead of an embedded one; the demo makes its own database there.
	DatabaseURL string
	// NoKill lets all workers live.
	NoKill bool

	// Workers is the number of worker processes, at least 2 if one of them is to be killed.
	Workers int
	// Slots is how many tasks each of them runs at once.
	Slots int
	// JSON writes one JSON object to Stdout instead of the text; progress then goes to Stderr.
	JSON bool
	// Live says that Stdout is a terminal: progress is then a bar.
	Live bool
	// Command is the program, with arguments, that calls [Work].
	Command []string
	// Stdout and Stderr are where the text goes.
	Stdout, Stderr io.Writer
}

// Validate says what is wrong, in terms of the command's flags, and fills in the defaults.
func (c *Config) Validate() error {
	switch {
	case c.MaxPages < 0:
		return fmt.Errorf("--max-pages %d is negative", c.MaxPages)
	case c.Workers < 1 || c.Slots < 1:
		return errors.New("--workers and --slots must be 1 or more")
	case c.Workers < 2 && !c.NoKill:
		return errors.New("--workers 1 leaves nobody to recover the killed worker's tasks: use 2 or more, or --no-kill")
	case c.Keep != "" && c.DatabaseURL != "":
		return errors.New("--keep is for the demo's own server, --database-url for one of yours: use one of them")
	}
	if c.URL != "" {
		seed, err := url.Parse(c.URL)
		if err != nil {
			return fmt.Errorf("--url: %w", err)
		}
		if c.URL = canonical(seed); c.URL == "" {
			return fmt.Errorf("--url %s: give it as https://host/path", seed.Redacted())
		}
	}
	if c.MaxPages == 0 {
		c.MaxPages = 3000
		if c.URL != "" {
			c.MaxPages = 200 // fetched slowly
		}
	}
	return nil
}

// demo is one run.
type demo struct {
	cfg     Config
	out     io.Writer // for people
	site    *site
	db      *database
	pool    *pgxpool.Pool
	crawler *crawler
	fleet   []*process
	report  *Report
	killed  *casualty // nil: nobody yet
}

// Run archives the site and proves what it claims. It returns an error if it could not, or if the proof failed; everything
// it started has ended by then. The Config has been validated.
func Run(ctx context.Context, cfg Config) error {
	began := time.Now()
	d := &demo{cfg: cfg, out: cfg.Stdout, report: &Report{Problems: []string{}}}
	if cfg.JSON {
		d.out = cfg.Stderr
	}
	if err := d.run(ctx); err != nil {
		if ctx.Err() != nil {
			fmt.Fprintf(cfg.Stderr, "The demo has ended early, its workers and its server are stopped: %v\n", err)
		}
		return err
	}
	d.report.Seconds = time.Since(began).Seconds()
	return d.report.finish(cfg)
}

// run is Run up to the report. It ends what it started in the opposite order: workers, connections, server, site.
func (d *demo) run(ctx context.Context) (err error) {
	running, fail := context.WithCancelCause(ctx) // ends with a worker that ends by itself, too
	defer fail(nil)
	plan := ""
	if !d.cfg.NoKill {
		plan = "one of them is killed half-way, "
	}
	d.say("pgwake demo: %d worker processes archive a web site, %sand the result is checked.\n", d.cfg.Workers, plan)

	if d.site, err = openSite(running, d.cfg); err != nil {
		return err
	}
	defer d.site.close()
	if d.db, err = openDatabase(running, d.cfg); err != nil {
		return err
	}
	defer func() {
		if err != nil && running.Err() != nil {
			err = context.Cause(running)
		}
		err = errors.Join(err, d.db.close())
	}()
	d.pool = d.db.pool
	// How the crawl is to go, for the workers.
	_, err = d.pool.Exec(running, `insert into demo.site (seed, robots, gap, room) values ($1, $2, $3, $4)`,
		d.site.seed, d.site.robots, d.site.gap, d.cfg.MaxPages)
	if err != nil {
		return fmt.Errorf("describe the site: %w", err)
	}
	if d.crawler, err = newCrawler(running, d.pool, "parent"); err != nil {
		return err
	}
	defer d.crawler.close()

	defer func() { stop(d.fleet) }()
	for i := range d.cfg.Workers {
		p, err := startProcess(d.cfg, d.db.url, fmt.Sprintf("worker-%d", i+1), fail)
		if err != nil {
			return err
		}
		d.fleet = append(d.fleet, p)
	}
	if err := await(running, d.pool, "all workers to be ready", startLimit, `select count(*) >= $1 from pgwake.workers`, d.cfg.Workers); err != nil {
		return err
	}
	d.introduce()

	err = pgx.BeginFunc(running, d.pool, func(tx pgx.Tx) error { return d.crawler.discover(running, tx, []string{d.site.seed}) })
	if err != nil {
		return fmt.Errorf("enqueue the first page: %w", err)
	}
	if err := d.watch(running); err != nil {
		return err
	}
	d.say("Archived. Enqueueing %d tasks, one at a time, while the workers sleep, to measure the wake-up …", pings)
	if err := d.measureWakeups(running); err != nil {
		return err
	}
	stop(d.fleet)
	d.say("Workers stopped. Fetching every page again to compare …\n")
	return d.prove(running)
}

func (d *demo) say(format string, args ...any) { fmt.Fprintf(d.out, format+"\n", args...) }

// introduce tells people who takes part.
func (d *demo) introduce() {
	d.say("  site      %s", d.site.about)
	if d.site.gap > 0 {
		d.say("            one fetch every %s, as its robots.txt allows", d.site.gap)
	}
	d.say("  database  %s", d.db.about)
	for _, p := range d.fleet {
		d.say("  %s  process %d, runs %d tasks at once", p.name, p.cmd.Process.Pid, d.cfg.Slots)
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
	v := newView(d.out, d.cfg)
	defer v.clear()
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	half, halfway := d.site.half, false
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-half:
			half, halfway = nil, true
		case <-tick.C:
		}
		if halfway && d.killed == nil && !d.cfg.NoKill {
			if err := d.kill(ctx); err != nil {
				return fmt.Errorf("kill a worker: %w", err)
			}
			if k := d.killed; k != nil {
				v.clear()
				d.say("          %s (process %d) killed by SIGKILL with %s pages stored, while it was running %s",
					k.Worker, k.PID, count(k.AtPages), tasks(k.Running))
			}
		}
		s := stats{alive: len(d.fleet)}
		if d.killed != nil { // the end of any other ends ctx
			s.alive--
		}
		if d.killed != nil || d.cfg.NoKill {
			d.site.resume()
		}
		if err := d.pool.QueryRow(ctx, statsSQL).Scan(&s.pages, &s.known, &s.settled, &s.running, &s.waiting); err != nil {
			return fmt.Errorf("look at the crawl: %w", err)
		}
		v.update(s)
		if s.running+s.waiting == 0 {
			return nil
		}
		// A site may have fewer pages than are allowed: its half is half of what is known.
		halfway = halfway || 2*s.pages >= d.cfg.MaxPages || s.pages >= fewPages && 2*s.pages >= s.known
	}
}
