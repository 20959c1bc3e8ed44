package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/pgwake/pgwake"
)

const (
	// DefaultTimeout is how long a run may take where its type does not say.
	DefaultTimeout = 300 * time.Second
	// NoTimeout lets runs of a type take as long as they like.
	NoTimeout time.Duration = -1
	// DefaultMaxAttempts is how often a task may run where neither it nor its type says: 1 run and 3 retries.
	DefaultMaxAttempts = 4
)

// Handler runs a task. What it returns becomes of the task: see [pgwake.Snooze] and its neighbours. Its context ends
// when the run times out, when the lease is lost (cause [lease.ErrLeaseLost]) and when the worker has drained for long
// enough; a handler that goes on regardless is writing on nobody's behalf.
type Handler[P pgwake.Payload] func(ctx context.Context, task *pgwake.Task[P]) error

// Next is the rest of the chain that a [Middleware] stands in: the run's handler in the end.
type Next func(ctx context.Context, run *pgwake.Run) error

// Middleware wraps every run of the types it is used for: logging, tracing, a transaction. The first one given is the
// outermost.
type Middleware func(next Next) Next

// Options are a type's own settings; nil and the zero value mean the defaults.
type Options struct {
	// Timeout is how long a run may take; 300 s by default, [NoTimeout] for no limit.
	Timeout time.Duration
	// MaxAttempts is how often a task may run before it is frozen, where the task does not say; 4 by default, 1 for no
	// retry.
	MaxAttempts int
	// Retry says how long to wait between runs; [DefaultRetry] by default.
	Retry RetryPolicy
	// Slots gives the type slots of its own, as many as may run at once in one process, apart from the worker's. 0 shares
	// the worker's.
	Slots int
	// NoHistory keeps no settled tasks of the type: they are deleted, and not archived. Frozen ones stay, as those of any
	// type.
	NoHistory bool
	// Priority of tasks that do not say, from 0 (first) to 9 (last); 5 by default.
	Priority *int
	// UniqueFields are the JSON names of payload fields that together are the unique key of tasks that do not have one
	// given: one live task for each of their values.
	UniqueFields []string
	// Aliases are other names under which tasks of this type may be in the table, after a rename for example.
	Aliases []string
	// Middleware wraps this type's runs, inside the registry's own.
	Middleware []Middleware
}

// Type is a registered task type.
type Type struct {
	Name    string
	Aliases []string
	Timeout time.Duration // 0: none
	// MaxAttempts of tasks that do not say.
	MaxAttempts int
	Retry       RetryPolicy
	Slots       int // 0: the worker's
	NoHistory   bool

	own     Options
	handler Next
}

// Names are the type's name and its aliases.
func (t *Type) Names() []string { return append([]string{t.Name}, t.Aliases...) }

// Run runs the handler inside its middleware. It lets panics pass: a worker catches them.
func (t *Type) Run(ctx context.Context, run *pgwake.Run) error { return t.handler(ctx, run) }

// Registry is a set of task types. It is safe for concurrent use; a worker sees what is registered before it is made.
type Registry struct {
	mu         sync.RWMutex
	byName     map[string]*Type // aliases too
	types      []*Type          // in order of registration
	middleware []Middleware
}

// New returns an empty registry with middleware for all its types.
func New(middleware ...Middleware) *Registry {
	return &Registry{byName: map[string]*Type{}, middleware: middleware}
}

// Register adds the task type that P names, with the handler that runs its tasks. Options may be nil. It returns an
// error, and registers nothing, if a name is empty, too long or taken, or if an option makes no sense.
func Register[P pgwake.Payload](r *Registry, handler Handler[P], opts *Options) error {
	name, err := taskType[P]()
	if err != nil {
		return err
	}
	if handler == nil {
		return fmt.Errorf("register %q: handler is nil", name)
	}
	return r.add(name, func(ctx context.Context, run *pgwake.Run) error {
		task := &pgwake.Task[P]{Run: run}
		if err := json.Unmarshal(run.RawPayload, &task.Payload); err != nil {
			return pgwake.Freeze(decodeError(err))
		}
		return handler(ctx, task)
	}, opts)
}

// RegisterRaw adds a task type by name, with a handler that gets the payload as it is. Options may be nil.
func RegisterRaw(r *Registry, name string, handler Next, opts *Options) error {
	if handler == nil {
		return fmt.Errorf("register %q: handler is nil", name)
	}
	return r.add(name, handler, opts)
}

// taskType asks P's zero value for its name. A pointer or interface type has a nil one, whose method may panic.
func taskType[P pgwake.Payload]() (name string, err error) {
	var zero P
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("register %T: TaskType panics on the zero value: %v", zero, v)
		}
	}()
	return zero.TaskType(), nil
}

func (r *Registry) add(name string, handler Next, opts *Options) error {
	if opts == nil {
		opts = &Options{}
	}
	t := &Type{
		Name: name, Aliases: slices.Clone(opts.Aliases), Slots: opts.Slots, NoHistory: opts.NoHistory, own: *opts,
		Timeout: DefaultTimeout, MaxAttempts: DefaultMaxAttempts, Retry: DefaultRetry,
	}
	if err := t.apply(opts); err != nil {
		return fmt.Errorf("register %q: %w", name, err)
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	for i, n := range t.Names() {
		if slices.Contains(t.Names()[:i], n) || r.byName[n] != nil {
			return fmt.Errorf("register %q: the name %q is taken", name, n)
		}
	}
	t.handler = chain(handler, slices.Concat(r.middleware, opts.Middleware))
	r.types = append(r.types, t)
	for _, n := range t.Names() {
		r.byName[n] = t
	}
	return nil
}

func chain(handler Next, middleware []Middleware) Next {
	for _, m := range slices.Backward(middleware) {
		handler = m(handler)
	}
	return handler
}

// apply checks the options and overwrites the defaults with them.
func (t *Type) apply(opts *Options) error {
	for _, n := range t.Names() {
		if err := pgwake.CheckType(n); err != nil {
			return err
		}
	}
	switch {
	case opts.Timeout == NoTimeout:
		t.Timeout = 0
	case opts.Timeout < 0:
		return fmt.Errorf("timeout %s is negative: use registry.NoTimeout for none", opts.Timeout)
	case opts.Timeout > 0:
		t.Timeout = opts.Timeout
	}
	if opts.MaxAttempts < 0 {
		return fmt.Errorf("max attempts %d is negative: 1 means no retry", opts.MaxAttempts)
	}
	if opts.MaxAttempts > 0 {
		t.MaxAttempts = opts.MaxAttempts
	}
	if opts.Retry != nil {
		if err := opts.Retry.try(); err != nil {
			return err
		}
		t.Retry = opts.Retry
	}
	if opts.Slots < 0 {
		return fmt.Errorf("slots %d is negative: 0 shares the worker's", opts.Slots)
	}
	if p := opts.Priority; p != nil && (*p < 0 || *p > 9) {
		return fmt.Errorf("priority %d is not between 0 (first) and 9 (last)", *p)
	}
	if slices.Contains(opts.UniqueFields, "") {
		return errors.New("a unique field's name is empty")
	}
	if slices.ContainsFunc(opts.Middleware, func(m Middleware) bool { return m == nil }) {
		return errors.New("a middleware is nil")
	}
	return nil
}

// Lookup finds a type by its name or an alias.
func (r *Registry) Lookup(name string) (*Type, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	t, ok := r.byName[name]
	return t, ok
}

// Types lists the types in the order of registration.
func (r *Registry) Types() []*Type {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.Clone(r.types)
}

// EnqueueDefaults implements [pgwake.TypeSource].
func (r *Registry) EnqueueDefaults(taskType string) (pgwake.EnqueueDefaults, bool) {
	t, ok := r.Lookup(taskType)
	if !ok {
		return pgwake.EnqueueDefaults{}, false
	}
	return pgwake.EnqueueDefaults{
		MaxAttempts:  t.own.MaxAttempts,
		Priority:     t.own.Priority,
		UniqueFields: t.own.UniqueFields,
	}, true
}

// decodeError says which field of a payload does not fit.
func decodeError(err error) error {
	var typeErr *json.UnmarshalTypeError
	if errors.As(err, &typeErr) && typeErr.Field != "" {
		return fmt.Errorf("decode payload: field %q cannot hold a JSON %s as %s", typeErr.Field, typeErr.Value, typeErr.Type)
	}
	return fmt.Errorf("decode payload: %w", err)
}
