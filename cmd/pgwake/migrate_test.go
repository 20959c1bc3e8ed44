package main

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgwake/pgwake/internal/pgtest"
	"github.com/pgwake/pgwake/migrations"
)

func TestMigrate(t *testing.T) {
	t.Parallel()
	url := pgtest.NewEmpty(t)

	c := succeed(t, url, "", "migrate", "status")
	expect(t, "status before", c.stdout, "VERSION", "tasks", "pending")
	expect(t, "stderr before", c.stderr, `6 pending in schema "pgwake": run 'pgwake migrate up'`)

	c = succeed(t, url, "", "migrate", "up")
	if c.stdout != "applied 1 tasks\napplied 2 archive\napplied 3 fleet\napplied 4 gate\napplied 5 late\napplied 6 no_history\n" {
		t.Errorf("up prints %q", c.stdout)
	}
	c = succeed(t, url, "", "migrate", "up")
	if c.stdout != "" {
		t.Errorf("a second up prints %q", c.stdout)
	}
	expect(t, "stderr", c.stderr, `schema "pgwake" is up to date, at version 6`)

	list := decode[[]migrations.Migration](t, succeed(t, url, "", "migrate", "status", "--json").stdout)
	if len(list) != migrations.Latest {
		t.Fatalf("%d migrations", len(list))
	}
	for _, m := range list {
		if age := time.Since(m.AppliedAt); age < -time.Minute || age > time.Minute {
			t.Errorf("migration %d was applied %s ago", m.Version, age)
		}
	}

	c = succeed(t, url, "", "migrate", "down", "--to", "1", "--yes")
	if c.stdout != "undone 6 no_history\nundone 5 late\nundone 4 gate\nundone 3 fleet\nundone 2 archive\n" {
		t.Errorf("down prints %q", c.stdout)
	}
	c = succeed(t, url, "", "migrate", "down", "--to", "2", "--yes", "--json")
	if got := decode[[]migrations.Migration](t, c.stdout); len(got) != 0 {
		t.Errorf("a needless down undoes %v", got)
	}
	c = call(t, url, "", "tasks", "counts")
	if c.code != exitFailed {
		t.Errorf("exit %d on an old schema", c.code)
	}
	expect(t, "stderr on an old schema", c.stderr, "is at version 1 and this program needs 6: run 'pgwake migrate up'")
	if got := decode[[]migrations.Migration](t, succeed(t, url, "", "migrate", "up", "--json").stdout); len(got) != 5 {
		t.Errorf("up applies %v", got)
	}
}

// TestMigratePrint runs the printed SQL on an empty database: the result must be one that the program accepts.
func TestMigratePrint(t *testing.T) {
	t.Parallel()
	sql := succeed(t, "", "", "--schema", "by hand", "migrate", "up", "--print").stdout
	url := pgtest.NewEmpty(t)
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
	succeed(t, url, "", "--schema", "by hand", "enqueue", "a")
	c := succeed(t, url, "", "--schema", "by hand", "migrate", "up")
	expect(t, "stderr", c.stderr, "up to date")
}
