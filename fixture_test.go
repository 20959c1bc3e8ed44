package pgwake

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgwake/pgwake/internal/pgtest"
)

// patience is how long a test waits for what must come.
const patience = 30 * time.Second

// bundle is a client of a database of its own.
type bundle struct {
	*Client
	pool *pgxpool.Pool
}

func newBundle(t testing.TB, config ClientConfig) *bundle {
	t.Helper()
	b := &bundle{pool: pgtest.New(t)}
	var err error
	if b.Client, err = NewClient(t.Context(), b.pool, config); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bundle) exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	if _, err := b.pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// one reads one value.
func one[V any](t testing.TB, db interface {
	Query(context.Context, string, ...any) (pgx.Rows, error)
}, sql string, args ...any) V {
	t.Helper()
	rows, _ := db.Query(t.Context(), sql, args...)
	v, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[V])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// task is a Raw with a payload.
func task(name, payload string) Raw { return Raw{Type: name, JSON: json.RawMessage(payload)} }

func (b *bundle) enqueue(t testing.TB, payload Payload, opts *EnqueueOptions) uuid.UUID {
	t.Helper()
	e, err := b.Enqueue(t.Context(), payload, opts)
	if err != nil {
		t.Fatal(err)
	}
	return e.ID
}

// typed has a struct payload.
type typed struct {
	Text  string         `json:"text"`
	Any   any            `json:"any,omitempty"`
	Bytes []byte         `json:"bytes,omitempty"`
	Map   map[string]any `json:"map,omitempty"`
}

func (typed) TaskType() string { return "typed" }
