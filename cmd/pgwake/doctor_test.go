package main

import (
	"strings"
	"testing"

	"github.com/pgwake/pgwake/internal/doctor"
	"github.com/pgwake/pgwake/internal/pgtest"
)

func TestDoctor(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	url := pool.Config().ConnString()

	// No worker, and a test server's settings: warnings alone are no failure.
	c := succeed(t, url, "", "doctor")
	expect(t, "stdout", c.stdout, "ok    schema         at version ", "warn  workers        no worker is alive", "\n                     → start a worker\n")
	if c.stderr != "" {
		t.Errorf("stderr %q", c.stderr)
	}
	list := decode[[]doctor.Finding](t, succeed(t, url, "", "doctor", "--json").stdout)
	if len(list) != len(doctor.Checks()) {
		t.Errorf("%d findings, want %d", len(list), len(doctor.Checks()))
	}

	if _, err := pool.Exec(t.Context(), `drop trigger tasks_ring_insert on pgwake.tasks`); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"doctor"}, {"doctor", "--json"}, {"doctor", "--listener-url", url}} {
		c = call(t, url, "", args...)
		if c.code != exitFailed || c.stderr != "pgwake: 1 check failed\n" {
			t.Errorf("%q: exit %d, stderr %q", args, c.code, c.stderr)
		}
		expect(t, "stdout", c.stdout, "tasks_ring_insert is missing")
	}
	c = call(t, url, "", "doctor", "--schema", "none")
	if c.code != exitFailed {
		t.Errorf("no schema: exit %d", c.code)
	}
	expect(t, "stdout", c.stdout, "fail  schema         schema \"none\" has no pgwake tables", "→ pgwake migrate up")
}

func TestDoctorWrongUse(t *testing.T) {
	t.Parallel()
	url := pgtest.NewURL(t)
	c := call(t, url, "", "doctor", "--listener-url", "postgres://h:x/")
	if c.code != exitUsage || !strings.Contains(c.stderr, "--listener-url: ") {
		t.Errorf("exit %d, stderr %q", c.code, c.stderr)
	}
	c = call(t, url, "", "doctor", "--listener-url", "postgres://127.0.0.1:1/x")
	if c.code != exitFailed {
		t.Errorf("exit %d, stderr %q", c.code, c.stderr)
	}
	expect(t, "stdout", c.stdout, "fail  listener")
	c = call(t, "postgres://127.0.0.1:1/x", "", "doctor")
	if c.code != exitFailed || !strings.Contains(c.stderr, "connection refused") || c.stdout != "" {
		t.Errorf("exit %d, stdout %q, stderr %q", c.code, c.stdout, c.stderr)
	}
	for _, name := range doctor.Checks() {
		expect(t, "help", succeed(t, "", "", "doctor", "--help").stdout, "\n  "+name+" ")
	}
}
