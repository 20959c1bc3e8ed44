package sqlstate_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgwake/pgwake/internal/pgtest"
	"github.com/pgwake/pgwake/internal/sqlstate"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// other is an error of another driver.
type other struct{ state, text string }

func (e other) Error() string    { return e.text }
func (e other) SQLState() string { return e.state }

var probes = map[string]func(error) bool{
	"retryable":    sqlstate.Retryable,
	"data":         sqlstate.Data,
	"unique":       func(err error) bool { return sqlstate.Unique(err, "tasks_pkey") },
	"no partition": sqlstate.NoPartition,
	"missing":      sqlstate.Missing,
	"lock timeout": sqlstate.LockTimeout,
	"denied":       sqlstate.Denied,
	"server":       sqlstate.Server,
}

func judged(err error) string {
	said := ""
	for _, name := range []string{"retryable", "data", "unique", "no partition", "missing", "lock timeout", "denied", "server"} {
		if probes[name](err) {
			said += name + ", "
		}
	}
	return said
}

// What a server really sends for each.
func TestServerErrors(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	id := "'00000000-0000-7000-8000-000000000000'"
	if _, err := pool.Exec(t.Context(), "insert into pgwake.tasks (id, type, unique_key) values ("+id+", 'a', 'k'); create role nobody_"+suffix(t)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := pool.Exec(context.WithoutCancel(t.Context()), "drop role nobody_"+suffix(t)); err != nil {
			t.Error(err)
		}
	})
	archive := "insert into pgwake.task_archive (id, type, status, due_at, priority, attempt, fence, payload_bytes, metadata, created_at, errors, finished_at) values (" +
		id + ", 'a', 'x', now(), 0, 0, 0, 0, '{}', now(), '[]', "
	for sql, want := range map[string]string{
		"insert into pgwake.tasks (id, type) values (" + id + ", 'a')":    "data, unique, server, ",
		"insert into pgwake.tasks (type, unique_key) values ('a', 'k')":   "data, server, ",
		"insert into pgwake.tasks (type) values ('')":                     "data, server, ",
		archive + "'2001-01-01')":                                         "data, no partition, server, ",
		"select '\\u0000'::jsonb":                                         "data, server, ",
		"select '1e200000'::jsonb":                                        "data, server, ",
		"select jsonb_build_object('a', '\"\\u0000\"'::jsonb)":            "data, server, ",
		"select repeat('[', 100000)::jsonb":                               "data, server, ",
		"select 1 / 0":                                                    "data, server, ",
		"select from pgwake.nothing":                                      "missing, server, ",
		"select from nothing.tasks":                                       "missing, server, ",
		"select pgwake.nothing()":                                         "missing, server, ",
		"set role nobody_" + suffix(t) + "; select from pgwake.tasks":     "denied, server, ",
		"do $$ begin raise exception 'x' using errcode = '40001'; end $$": "retryable, server, ",
		"do $$ begin raise exception 'x' using errcode = '40P01'; end $$": "retryable, server, ",
		"do $$ begin raise exception 'x' using errcode = '55P03'; end $$": "lock timeout, server, ",
		"selec": "server, ",
		"do $$ begin raise exception 'x' using errcode = '23514', constraint = 'c'; end $$": "data, server, ",
	} {
		conn, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, err = conn.Conn().PgConn().Exec(t.Context(), sql).ReadAll()
		if err == nil {
			t.Errorf("%s: no error", sql)
		}
		for _, e := range []error{err, fmt.Errorf("step: %w", err), errors.Join(errors.New("first"), err)} {
			if got := judged(e); got != want {
				t.Errorf("%s: %v is %q, want %q", sql, e, got, want)
			}
		}
		_, _ = conn.Exec(t.Context(), "reset role")
		conn.Release()
	}
}

func suffix(t *testing.T) string { return fmt.Sprintf("%x", t.Name()) }

func TestOtherErrors(t *testing.T) {
	t.Parallel()
	for want, list := range map[string][]error{
		"": {
			nil, errors.New("23505 tasks_pkey"), context.DeadlineExceeded, &pgconn.ConnectError{}, &pgconn.PgError{}, other{},
		},
		"data, server, ": {
			&pgconn.PgError{Code: "23505", ConstraintName: "tasks_unique_key"}, other{"23505", "unique tasks_unique_key"}, other{"21000", ""}, other{"54001", ""},
		},
		"data, unique, server, ": {&pgconn.PgError{Code: "23505", ConstraintName: "tasks_pkey"}, other{"23505", `violates "tasks_pkey"`}},
		"retryable, server, ":    {other{"40001", ""}, fmt.Errorf("x: %w", other{"40P01", ""})},
		"server, ":               {other{"57P01", ""}, other{"2", ""}, other{"53300", ""}},
	} {
		for _, err := range list {
			if got := judged(err); got != want {
				t.Errorf("%#v is %q, want %q", err, got, want)
			}
		}
	}
}

func TestUnreachable(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), "postgres://postgres@127.0.0.1:1/postgres")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if err := pool.Ping(t.Context()); err == nil || judged(err) != "" {
		t.Errorf("%v is %q", err, judged(err))
	}
}
