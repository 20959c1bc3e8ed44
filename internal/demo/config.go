package demo

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"runtime"
	"time"
)

const (
	// DefaultMaxPages is how many pages of the built-in site are archived where Config does not say.
	DefaultMaxPages = 3000
	// DefaultForeignPages is the same for a site given by address, which is fetched slowly.
	DefaultForeignPages = 200
	// DefaultWorkers is how many worker processes there are.
	DefaultWorkers = 3
	// DefaultSlots is how many tasks a worker runs at once.
	DefaultSlots = 8

	// Lease of the demo's workers: shorter than the default of 15 s, so that nobody waits long for the recovery.
	lease = 3 * time.Second
	// sweep is below lease, so that the end of a lease is noticed at that instant.
	sweep = time.Second
	// foreignGap is the time between two fetches from a site that is not on this machine, by the whole fleet.
	foreignGap = 200 * time.Millisecond
	// pings is how many tasks measure the wake-up.
	pings = 200
)

// Config says what to archive, with what, and where to tell about it.
type Config struct {
	// URL is the site to archive; only pages on its host are fetched. Empty: the installed Go tree, as served by
	// net/http's file server in this process.
	URL string
	// MaxPages is how many pages are archived at most; 3,000 by default, 200 for a URL.
	MaxPages int
	// Workers is the number of worker processes; 3 by default, at least 2 if one of them is to be killed.
	Workers int
	// Slots is how many tasks each of them runs at once; 8 by default.
	Slots int
	// Keep is a directory for the database server's files, to be kept. Empty: a temporary one.
	Keep string
	// DatabaseURL is a server to use instead of an embedded one; the demo makes its own database there.
	DatabaseURL string
	// NoKill lets all workers live.
	NoKill bool
	// JSON writes one JSON object to Stdout instead of the text; progress then goes to Stderr.
	JSON bool
	// Live says that Stdout is a terminal: progress is then a bar.
	Live bool
	// Command is the program, with arguments, that calls [Work]. Required.
	Command []string
	// Stdout and Stderr are where the text goes. Required.
	Stdout, Stderr io.Writer
}

// ConfigError says what is wrong with a [Config], in terms of the command's flags.
type ConfigError struct{ Err error }

func (e *ConfigError) Error() string { return e.Err.Error() }
func (e *ConfigError) Unwrap() error { return e.Err }

func (c Config) withDefaults() (Config, error) {
	if err := c.complete(); err != nil {
		return c, &ConfigError{err}
	}
	return c, nil
}

// complete checks the fields and fills in the defaults.
func (c *Config) complete() error {
	for _, n := range []struct {
		flag  string
		value int
	}{{"--max-pages", c.MaxPages}, {"--workers", c.Workers}, {"--slots", c.Slots}} {
		if n.value < 0 {
			return fmt.Errorf("%s %d is negative", n.flag, n.value)
		}
	}
	if c.URL != "" {
		seed, err := url.Parse(c.URL)
		if err != nil {
			return fmt.Errorf("--url: %w", err)
		}
		address, err := canonical(seed)
		if err != nil {
			return fmt.Errorf("--url %q: %w: give it as https://host/path", c.URL, err)
		}
		c.URL = address
	}
	if c.MaxPages == 0 {
		c.MaxPages = DefaultMaxPages
		if c.URL != "" {
			c.MaxPages = DefaultForeignPages
		}
	}
	if c.Workers == 0 {
		c.Workers = DefaultWorkers
	}
	if c.Slots == 0 {
		c.Slots = DefaultSlots
	}
	if c.Workers < 2 && !c.NoKill {
		return errors.New("--workers 1 leaves nobody to recover the killed worker's tasks: use 2 or more, or --no-kill")
	}
	if c.Keep != "" && c.DatabaseURL != "" {
		return errors.New("--keep is for the demo's own server, --database-url for one of yours: use one of them")
	}
	if len(c.Command) == 0 || c.Stdout == nil || c.Stderr == nil {
		return errors.New("demo: Command, Stdout and Stderr are required")
	}
	return nil
}

// fromPage is how many new addresses one page may add.
func (c Config) fromPage() int { return max(50, c.MaxPages/8) }

// connections is how many the fleet and the parent may open together.
func (c Config) connections() int {
	return c.Workers*(c.Slots+workerConnections) + parentConnections + 10
}

// checkers is how many pages are fetched again at once.
func checkers() int { return 2 * runtime.GOMAXPROCS(0) }
