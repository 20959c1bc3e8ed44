package demo

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/internal/pgtest"
)

func TestWithDatabase(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, in string }{
		{"URL", "postgres://u:p@localhost:5433/app?sslmode=disable"},
		{"URL without a database", "postgresql://u:p@localhost:5433?sslmode=disable"},
		{"database in the query", "postgres://localhost:5433/?dbname=app&user=u&password=p&sslmode=disable"},
		{"socket", "postgres:///app?host=/tmp&port=5433&user=u&password=p"},
		{"keywords", "host=localhost port=5433 user=u password=p dbname=app"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got, err := withDatabase(tc.in, Database)
			if err != nil {
				t.Fatal(err)
			}
			config, err := pgx.ParseConfig(got)
			if err != nil {
				t.Fatal(err)
			}
			if config.Database != Database || config.User != "u" || config.Password != "p" || config.Port != 5433 {
				t.Errorf("%q becomes %q: database %q, user %q, port %d", tc.in, got, config.Database, config.User, config.Port)
			}
		})
	}
}

// TestDatabaseOfOthers sees that the demo replaces its own database and leaves every other alone.
func TestDatabaseOfOthers(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	server := pgtest.Server(t)
	open := func() (*database, error) { return openDatabase(ctx, Config{DatabaseURL: server.URL("")}) }
	exec := func(database, sql string) {
		t.Helper()
		conn, err := pgx.Connect(ctx, server.URL(database))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(ctx)
		if _, err := conn.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(why string) {
		t.Helper()
		if _, err := open(); err == nil || !strings.Contains(err.Error(), why) {
			t.Fatalf("error %v, want one that says %q", err, why)
		}
	}

	exec("", "create database "+Database)
	refused("did not make")
	exec("", "drop database "+Database)

	for range 2 { // the second replaces the first
		if _, err := open(); err != nil {
			t.Fatal(err)
		}
	}

	// The demo's own tasks do not stand in the way.
	pool, err := openPool(ctx, server.URL(Database), "test", 2)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	client, err := pgwake.NewClient(ctx, pool, pgwake.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Enqueue(ctx, Page{"http://example.com/"}, nil); err != nil {
		t.Fatal(err)
	}
	refused("in use")
	pool.Close()
	if _, err := open(); err != nil {
		t.Fatal(err)
	}

	exec(Database, `select pgwake.enqueue('email.welcome')`)
	refused("holds tasks that are not the demo's (1 in pgwake.tasks)")
}
