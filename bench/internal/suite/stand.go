package suite

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgwake/pgwake/bench/internal/fleet"
	"github.com/pgwake/pgwake/bench/internal/peer"
	"github.com/pgwake/pgwake/bench/internal/server"
)

// stand is a system on a database of its own. Its worker processes are started for each measurement and ended after it, so
// that those of one system never disturb another's, not even by what they do while they are idle.
type stand struct {
	*server.Database
	system peer.System
	conns  []*pgx.Conn // of clients that enqueue
	tasks  int         // that it drains in some seconds
}

// stand makes a database with a system's tables. It goes with the suite.
func (b *bench) stand(ctx context.Context, system peer.System) (*stand, error) {
	s := &stand{system: system}
	var err error
	if s.Database, err = b.server.Database(ctx); err != nil {
		return nil, err
	}
	b.ends = append(b.ends, s.close)
	if err := system.Prepare(ctx, s.Database); err != nil {
		return nil, fmt.Errorf("make the tables of %s: %w", system.Name(), err)
	}
	return s, nil
}

// stands are those of the systems that are wanted and can run on this machine, and the names of those that cannot.
func (b *bench) stands(ctx context.Context, systems []peer.System) (all []*stand, missing []string, err error) {
	for _, system := range systems {
		if !b.wanted(system.Name()) {
			missing = append(missing, system.Name())
			continue
		}
		if why := system.Missing(ctx); why != "" {
			b.note("%s is missing: %s", system.Name(), why)
			missing = append(missing, system.Name())
			continue
		}
		s, err := b.stand(ctx, system)
		if err != nil {
			return nil, nil, err
		}
		b.note("%s: %s", system.Name(), system.About())
		all = append(all, s)
	}
	return all, missing, nil
}

// wanted reports whether the option Only, if there is one, has a side, by its name or the beginning of it.
func (b *bench) wanted(name string) bool {
	return len(b.Only) == 0 || slices.ContainsFunc(b.Only, func(only string) bool {
		return strings.HasPrefix(strings.ToLower(name), strings.ToLower(only))
	})
}

// close drops the database, unless that has been done.
func (s *stand) close() error {
	if s.Database == nil {
		return nil
	}
	for _, c := range s.conns {
		_ = c.Close(context.Background())
	}
	db := s.Database
	s.Database, s.conns = nil, nil
	return db.Drop()
}

func (s *stand) connect(ctx context.Context, n int) (_ []*pgx.Conn, err error) {
	s.conns, err = connect(ctx, s.URL, s.conns, n)
	return s.conns[:min(n, len(s.conns))], err
}

// launch starts worker processes.
func (s *stand) launch(ctx context.Context, n int, opts peer.WorkerOptions) (fleet.Fleet, error) {
	jobs := several(n, s.system.Job(opts))
	for i := range jobs {
		jobs[i].URL, jobs[i].Name = s.FleetURL, fmt.Sprintf("%s %d", s.system.Name(), i+1)
	}
	return fleet.Launch(ctx, jobs...)
}

func (s *stand) usage(ctx context.Context, f fleet.Fleet) (server.Usage, error) {
	var pids []int
	for _, p := range f {
		pids = append(pids, p.PID())
	}
	return s.Usage(ctx, pids...)
}

const (
	// drainLimit is how long it may take.
	drainLimit = 2 * time.Minute
	// drainLook is the time between two looks at what has been done.
	drainLook = 10 * time.Millisecond
	// minTasks and maxTasks bound the tasks of a drain.
	minTasks, maxTasks = 2_000, 400_000
)

// size finds out how many tasks it takes for a drain of some seconds.
func (b *bench) size(ctx context.Context, s *stand, opts peer.WorkerOptions) error {
	for n := minTasks; ; n = min(8*n, maxTasks) {
		d, err := s.drain(ctx, opts, n)
		if errors.Is(err, errTooFew) && n < maxTasks {
			continue
		}
		if err != nil {
			return err
		}
		if d.took > b.Drain/8 || n == maxTasks {
			s.tasks = min(max(int(d.tasks/d.took.Seconds()*b.Drain.Seconds()), minTasks), maxTasks)
			b.progress("%s: about %.0f/s, drains of %d tasks", s.system.Name(), d.tasks/d.took.Seconds(), s.tasks)
			return nil
		}
	}
}

// drain fills the queue with n tasks, and measures how fast a process that is started then drains it.
func (s *stand) drain(ctx context.Context, opts peer.WorkerOptions, n int) (d sample, err error) {
	if err := s.system.Fill(ctx, s.Database, n); err != nil {
		return d, fmt.Errorf("fill: %w", err)
	}
	// What the drains before left is not for this one to clean up, and the planner knows the tables as they are.
	if err := s.Exec(ctx, `vacuum (analyze)`); err != nil {
		return d, err
	}
	opts.Tally = n
	f, err := s.launch(ctx, 1, opts)
	if err != nil {
		return d, err
	}
	if d, err = s.drained(ctx, f, n); err != nil {
		f.Kill()
		return d, err
	}
	return d, f.Stop()
}

// errTooFew says that most tasks had run at the first look.
var errTooFew = errors.New("too few tasks: most had run at the first look")

// drained measures processes that drain n tasks, from the first look that finds a fiftieth of them begun to the one that
// finds none left. Each task must have run once.
func (s *stand) drained(ctx context.Context, f fleet.Fleet, n int) (d sample, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, drainLimit, fmt.Errorf("%d tasks are not drained after %s", n, drainLimit))
	defer cancel()
	first, err := begun(ctx, f, n/50)
	if err != nil {
		return d, err
	}
	before, err := s.usage(ctx, f)
	if err != nil {
		return d, err
	}
	if _, err := begun(ctx, f, n); err != nil {
		return d, err
	}
	if err := s.finished(ctx); err != nil {
		return d, err
	}
	after, err := s.usage(ctx, f)
	if err != nil {
		return d, err
	}
	all, err := f.Tally(ctx)
	if err != nil {
		return d, err
	}
	if int(all.Ran) != n || int(all.Distinct) != n || all.Most != 1 {
		return d, fmt.Errorf("%d tasks: %d ran, %d times in all, one of them %d times", n, all.Distinct, all.Ran, all.Most)
	}
	spent := after.Since(before)
	left := float64(n) - float64(first.Ran)
	if left < float64(n)/2 {
		return d, fmt.Errorf("%w: %d of %d", errTooFew, first.Ran, n)
	}
	return sample{tasks: left, drained: left, took: after.At.Sub(before.At), spent: spent}, nil
}

// begun waits until so many tasks have run, or begun to.
func begun(ctx context.Context, f fleet.Fleet, n int) (fleet.Tally, error) {
	for {
		t, err := f.Tally(ctx)
		if err != nil || int(t.Ran) >= n {
			return t, err
		}
		if err := rest(ctx, drainLook); err != nil {
			return t, errors.Join(err, fmt.Errorf("%d of %d tasks have run; processes say:\n%s", t.Ran, n, f.Log()))
		}
	}
}

// finished waits until no task is left.
func (s *stand) finished(ctx context.Context) error {
	for {
		left, err := s.system.Unfinished(ctx, s.Database)
		if err != nil || left == 0 {
			return err
		}
		if err := rest(ctx, drainLook); err != nil {
			return errors.Join(err, fmt.Errorf("%d tasks are left", left))
		}
	}
}

func drainValues(s sample) []value {
	return []value{
		{"drained", "/s", s.tasks / s.took.Seconds()},
		{"CPU", "s/10,000 tasks", 10_000 * (s.spent.ServerCPU + s.spent.ClientCPU) / s.tasks},
	}
}
