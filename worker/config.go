package worker

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pgwake/pgwake"
)

// Defaults of [Config].
const (
	DefaultLease        = 15 * time.Second
	DefaultSweep        = 5 * time.Second
	DefaultDrainTimeout = 30 * time.Second
	DefaultHistory      = 14 * 24 * time.Hour
	// DefaultSlotsPerCore times the number of cores is the default of Config.Slots.
	DefaultSlotsPerCore = 10

	minLease = time.Second
	minSweep = 100 * time.Millisecond
)

// Config says how a worker works; the zero value is ready to use.
type Config struct {
	// Schema is where pgwake's tables are; "pgwake" by default.
	Schema string
	// Name is what people see of this worker, up to 200 bytes; host:pid by default. It need not be unique.
	Name string
	// Slots is how many handlers run at once, apart from those of types with slots of their own; 10 for each core by
	// default.
	Slots int
	// Lease is how long a task stays with a worker that says nothing more: the time after which the tasks of a dead worker
	// run elsewhere. It is renewed every third of it. 15 s by default, 1 s at least.
	Lease time.Duration
	// Sweep is the time between two looks for what no notification told of, give or take a tenth. 5 s by default, 100 ms
	// at least.
	Sweep time.Duration
	// DrainTimeout is how long running handlers may go on after Run's context has ended, before theirs end too; 30 s by
	// default, negative for no time at all.
	DrainTimeout time.Duration
	// History is how long settled tasks are kept, in whole days, by the shortest of all workers; 14 days by default,
	// negative for ever.
	History time.Duration
	// AsyncSettle has settlements not wait for the disk. A crash of the database server, not of a worker, may then forget
	// the last fraction of a second of them, and their tasks run again.
	AsyncSettle bool
	// ListenerURL is the connection string of a direct session, for the listener and for claims, where the pool goes through
	// a pooler in transaction mode, such as PgBouncer, which cannot carry a LISTEN. Without it the worker then polls. Empty
	// by default: they go where the pool goes.
	ListenerURL string
	// PollOnly makes the worker do without notifications: it listens to none and asks the database instead, every 20 ms
	// while there is work, and up to a second apart, or Sweep if that is shorter, while there is none. A worker whose
	// listener is not connected does the same.
	PollOnly bool
	// Logger is where the worker reports what its return values cannot; slog.Default() by default.
	Logger *slog.Logger
}

func (c *Config) setDefaults() {
	if c.Schema == "" {
		c.Schema = pgwake.DefaultSchema
	}
	if c.Name == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown"
		}
		c.Name = fmt.Sprintf("%s:%d", host, os.Getpid())
	}
	if c.Slots == 0 {
		c.Slots = DefaultSlotsPerCore * runtime.GOMAXPROCS(0)
	}
	if c.Lease == 0 {
		c.Lease = DefaultLease
	}
	if c.Sweep == 0 {
		c.Sweep = DefaultSweep
	}
	if c.DrainTimeout == 0 {
		c.DrainTimeout = DefaultDrainTimeout
	}
	if c.History == 0 {
		c.History = DefaultHistory
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
}

func (c *Config) validate() error {
	switch {
	case c.Slots < 1:
		return fmt.Errorf("slots %d: a worker needs at least 1", c.Slots)
	case c.Lease < minLease:
		return fmt.Errorf("lease %s: it must be at least %s", c.Lease, minLease)
	case c.Sweep < minSweep:
		return fmt.Errorf("sweep %s: it must be at least %s", c.Sweep, minSweep)
	case c.History > 0 && c.History < 24*time.Hour:
		return fmt.Errorf("history %s: it must be at least 24h, or negative to keep all", c.History)
	case c.PollOnly && c.ListenerURL != "":
		return errors.New("a worker that only polls has no listener: leave PollOnly or ListenerURL out")
	case len(c.Name) > 200 || !utf8.ValidString(c.Name) || strings.ContainsRune(c.Name, 0):
		return errors.New("worker name: it must be at most 200 bytes of UTF-8 without NUL")
	}
	return nil
}
