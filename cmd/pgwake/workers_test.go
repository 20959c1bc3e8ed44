package main

import (
	"strings"
	"testing"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/internal/pgtest"
)

func TestWorkers(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	url := pool.Config().ConnString()
	if got := succeed(t, url, "", "workers"); got.stdout != "" || got.stderr != "pgwake: no worker has reported within 1m0s\n" {
		t.Errorf("none: stdout %q, stderr %q", got.stdout, got.stderr)
	}
	if got := succeed(t, url, "", "workers", "--json").stdout; got != "[]\n" {
		t.Errorf("none: %q", got)
	}
	_, err := pool.Exec(t.Context(), `
		insert into pgwake.workers (id, name, version, types, slots, running, seen_at, draining) values
		(gen_random_uuid(), 'alpha', 'v1', '{a,b}', 10, 3, now(), true),
		(gen_random_uuid(), 'beta', 'v1', '{a}', 10, 0, now() - interval '5 minutes', false)`)
	if err != nil {
		t.Fatal(err)
	}

	got := succeed(t, url, "", "workers").stdout
	expect(t, "stdout", got, "NAME", "alpha  draining  3/10 ", "a,b\n")
	if strings.Contains(got, "beta") {
		t.Errorf("lists one that is silent:\n%s", got)
	}
	list := decode[[]pgwake.WorkerInfo](t, succeed(t, url, "", "workers", "--within", "10m", "--json").stdout)
	if len(list) != 2 || list[0].Name != "alpha" || list[0].Running != 3 || list[1].Name != "beta" {
		t.Errorf("--json: %+v", list)
	}
}
