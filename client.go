package pgwake

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgwake/pgwake/migrations"
)

// ClientConfig says how a [Client] works; the zero value is ready to use.
type ClientConfig struct {
	// Schema is where pgwake's tables are; "pgwake" by default.
	Schema string
	// Types tells what enqueued tasks of a type have by default; a *registry.Registry is one. Without it tasks have the
	// built-in defaults, and no unique key but those given.
	Types TypeSource
	// ListenerURL is the connection string of direct sessions for [Client.Subscribe], where the pool goes through a pooler in
	// transaction mode. Empty by default: they go where the pool goes.
	ListenerURL string
	// Logger is where subscriptions report lost connections; slog.Default() by default.
	Logger *slog.Logger
}

// TypeSource knows what is registered for task types.
type TypeSource interface {
	EnqueueDefaults(taskType string) (EnqueueDefaults, bool)
}

// EnqueueDefaults are what a type's tasks have where [EnqueueOptions] say nothing.
type EnqueueDefaults struct {
	MaxAttempts  int      // 0: the worker's default
	Priority     *int     // nil: 5
	UniqueFields []string // JSON names of payload fields which together are the unique key; none: no key
}

// Client enqueues tasks, and tells what becomes of them. It leaves no goroutine behind but for subscriptions, and is safe
// for concurrent use.
type Client struct {
	pool        *pgxpool.Pool
	types       TypeSource
	schema      string
	sql         enqueueStatements
	listenerURL string
	log         *slog.Logger

	subscriptions subscriptions
}

// NewClient returns a client that enqueues through the pool. It checks that the schema is one it can work with, and
// returns a [*migrations.VersionError] otherwise. The pool may be nil for a client that enqueues in its callers'
// transactions alone; the schema is then not checked.
func NewClient(ctx context.Context, pool *pgxpool.Pool, config ClientConfig) (*Client, error) {
	if config.Schema == "" {
		config.Schema = DefaultSchema
	}
	if config.Logger == nil {
		config.Logger = slog.Default()
	}
	if pool != nil {
		if err := migrations.Check(ctx, pool, config.Schema); err != nil {
			return nil, err
		}
	}
	return &Client{
		pool: pool, types: config.Types, schema: config.Schema, sql: newEnqueueStatements(config.Schema),
		listenerURL: config.ListenerURL, log: config.Logger,
	}, nil
}

// Enqueue inserts a task and returns its id once it is committed. Options may be nil. If a live task of the type holds
// the unique key it returns that task's id and a [*DuplicateError], which is [ErrDuplicate].
func (c *Client) Enqueue(ctx context.Context, payload Payload, opts *EnqueueOptions) (Enqueued, error) {
	if c.pool == nil {
		return Enqueued{}, errNoPool
	}
	return c.EnqueueTx(ctx, c.pool, payload, opts)
}

// Check returns the error that enqueueing the task would give before the database is asked; nil if it would be asked.
func (c *Client) Check(task NewTask) error {
	_, err := c.prepare(task)
	return err
}

// Inspector returns an inspector of the client's schema.
func (c *Client) Inspector() *Inspector { return &Inspector{pool: c.pool, schema: c.schema} }

var errNoPool = errors.New("this client has no pool: use the Tx methods, or give NewClient one")

// defaults merges what the caller says with what is registered for the type.
func (c *Client) defaults(taskType string) EnqueueDefaults {
	if c.types == nil {
		return EnqueueDefaults{}
	}
	d, _ := c.types.EnqueueDefaults(taskType)
	return d
}

func wrapTask(taskType string, err error) error {
	return fmt.Errorf("enqueue %q: %w", taskType, err)
}
