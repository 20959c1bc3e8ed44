package demo

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/internal/pgtest"
)

// TestDatabaseOfOthers sees that the demo replaces its own database and leaves every other alone.
func TestDatabaseOfOthers(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	server := pgtest.Server(t)
	// In both of the forms that PostgreSQL has.
	keywords := func(url string) string {
		config, err := pgx.ParseConfig(url)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("host=%s port=%d user=%s password='%s' dbname=%s sslmode=disable", config.Host, config.Port, config.User, config.Password, config.Database)
	}
	address := server.URL("")
	open := func() error {
		db, err := openDatabase(ctx, Config{DatabaseURL: address})
		if err != nil {
			return err
		}
		return db.close()
	}
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
		if err := open(); err == nil || !strings.Contains(err.Error(), why) {
			t.Fatalf("error %v, want one that says %q", err, why)
		}
	}

	exec("", "create database "+Database)
	refused("did not make")
	exec("", "drop database "+Database)

	for _, address = range []string{server.URL(""), keywords(server.URL(""))} { // the second replaces the first
		if err := open(); err != nil {
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
	refused("being accessed by other users")
	pool.Close()
	if err := open(); err != nil {
		t.Fatal(err)
	}

	exec(Database, `select pgwake.enqueue('email.welcome')`)
	refused("holds 1 task that are not the demo's")
}
