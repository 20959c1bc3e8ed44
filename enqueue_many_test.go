package pgwake

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

func TestStatementsPrepare(t *testing.T) {
	t.Parallel()
	b := newBundle(t, ClientConfig{})
	conn, err := b.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for _, query := range []string{b.sql.one, b.sql.unique, b.sql.live, b.sql.many, b.sql.manyUnique, b.sql.liveMany} {
		if _, err := conn.Conn().Prepare(t.Context(), "", query); err != nil {
			t.Errorf("%v: %s", err, query)
		}
	}
}

// Arrays are read in one go: the instants are computed for each row on its way, not by a plan of their own.
func TestManyPlan(t *testing.T) {
	t.Parallel()
	b := newBundle(t, ClientConfig{})
	rows, err := b.prepareAll(slices.Repeat([]NewTask{{typed{}, nil}}, 3))
	if err != nil {
		t.Fatal(err)
	}
	var columns arrays
	for i := range rows {
		columns.add(&rows[i])
	}
	for _, query := range []string{b.sql.many, b.sql.manyUnique} {
		answer, _ := b.pool.Query(t.Context(), "explain "+query, columns.args()...)
		plan, err := pgx.CollectRows(answer, pgx.RowTo[string])
		if text := strings.Join(plan, "\n"); err != nil || !strings.Contains(text, "Function Scan on r") || strings.Contains(text, "Nested Loop") {
			t.Errorf("%v, %s", err, text)
		}
	}
}

// double is a transaction of a test double, which has no connection.
type double struct{ Tx }

func (double) SendBatch(context.Context, *pgx.Batch) pgx.BatchResults {
	panic("nothing is known of this")
}
func (double) Conn() *pgx.Conn { return nil }

func TestManyWithoutConnection(t *testing.T) {
	t.Parallel()
	b := newBundle(t, ClientConfig{})
	if _, err := b.EnqueueManyTx(t.Context(), double{b.pool}, slices.Repeat([]NewTask{{typed{}, nil}}, copyFrom)); err != nil {
		t.Fatal(err)
	}
	if n := one[int](t, b.pool, "select count(*) from pgwake.tasks"); n != copyFrom {
		t.Errorf("%d tasks", n)
	}
}

// Sessions that cannot prepare statements, as behind some poolers, enqueue all the same.
func TestManyInEveryMode(t *testing.T) {
	t.Parallel()
	b := newBundle(t, ClientConfig{})
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		config := b.pool.Config()
		config.ConnConfig.DefaultQueryExecMode = mode
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		c, err := NewClient(t.Context(), pool, ClientConfig{})
		if err != nil {
			t.Fatal(err)
		}
		opts := []*EnqueueOptions{nil, {Delay: 1, Metadata: map[string]any{"a": `"\{`}}, {UniqueKey: mode.String(), Priority: new(1), MaxAttempts: 3}}
		for _, o := range opts {
			if _, err := c.Enqueue(t.Context(), typed{Text: mode.String()}, o); err != nil {
				t.Errorf("%s: %v", mode, err)
			}
			if o == nil || o.UniqueKey == "" {
				if _, err := c.EnqueueMany(t.Context(), slices.Repeat([]NewTask{{typed{}, o}}, copyFrom)); err != nil {
					t.Errorf("%s: %v", mode, err)
				}
			}
		}
		got, err := c.EnqueueMany(t.Context(), []NewTask{{typed{}, opts[2]}, {typed{}, nil}})
		if err != nil || !got[0].Duplicate || got[1].Duplicate {
			t.Errorf("%s: %+v, %v", mode, got, err)
		}
	}
}
