package examples_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pgwake/pgwake/lease"
	"github.com/pgwake/pgwake/registry"
	"github.com/pgwake/pgwake/worker"
)

func readme(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The README's program is the quickstart, word for word.
func TestReadmeShowsTheQuickstart(t *testing.T) {
	t.Parallel()
	program, err := os.ReadFile("quickstart/main.go")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(readme(t), "```go\n")
	block, _, found := strings.Cut(rest, "```")
	if !found || !strings.Contains(string(program), strings.TrimSpace(block)) {
		t.Error("the README's program is not that of examples/quickstart")
	}
}

// The README's table of defaults says what the code does.
func TestReadmeDefaults(t *testing.T) {
	t.Parallel()
	row := regexp.MustCompile(`(?m)^\| ([a-z ]+) \| ([^|]+) \|`)
	documented := map[string]string{}
	_, table, _ := strings.Cut(readme(t), "## Defaults")
	for _, m := range row.FindAllStringSubmatch(table, -1) {
		documented[m[1]] = m[2]
	}
	seconds := func(d time.Duration) string { return strings.TrimSuffix(d.String(), "s") + " s" }
	for name, want := range map[string]string{
		"max attempts":     "4: one run and 3 retries",
		"retry":            "after 30 s, 1 min, 2 min, … at most 1 h",
		"timeout of a run": "300 s",
		"priority":         "5, of 0 (first) to 9 (last)",
		"lease":            seconds(worker.DefaultLease) + ", renewed every 5 s",
		"bump":             seconds(lease.DefaultBump),
		"sweep":            seconds(worker.DefaultSweep),
		"slots":            "10 × cores",
		"drain":            seconds(worker.DefaultDrainTimeout),
		"history":          "14 days",
	} {
		if !strings.HasPrefix(documented[name], want) {
			t.Errorf("default of %s: the README says %q, want %q", name, documented[name], want)
		}
	}
	for name, holds := range map[string]bool{
		"max attempts": registry.DefaultMaxAttempts == 4,
		"retry":        registry.DefaultRetryBase == 30*time.Second && registry.DefaultRetryCap == time.Hour,
		"timeout":      registry.DefaultTimeout == 300*time.Second,
		"lease":        worker.DefaultLease == 15*time.Second,
		"bump":         lease.DefaultBump == 10*time.Second,
		"sweep":        worker.DefaultSweep == 5*time.Second,
		"slots":        worker.DefaultSlotsPerCore == 10,
		"drain":        worker.DefaultDrainTimeout == 30*time.Second,
		"history":      worker.DefaultHistory == 14*24*time.Hour,
	} {
		if !holds {
			t.Errorf("default of %s is not the documented one", name)
		}
	}
}
