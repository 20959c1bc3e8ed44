package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/pgwake/pgwake/bench/internal/fleet"
	"github.com/pgwake/pgwake/bench/internal/goals"
	"github.com/pgwake/pgwake/bench/internal/suite"
)

func TestMain(m *testing.M) {
	if os.Getenv(fleet.Variable) != "" {
		main()
	}
	goleak.VerifyTestMain(m)
}

// bench runs the program and returns what it wrote to its standard output.
func bench(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := newRootCommand(&stdout, &stderr)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(t.Context())
	t.Logf("bench %s:\n%s%s", strings.Join(args, " "), stderr.String(), stdout.String())
	return stdout.String(), err
}

func TestRun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	out, err := bench(t, "run", "enqueue/busy", "--rounds", "1", "--window", "300ms", "--json", "--out", dir)
	if err != nil {
		t.Fatal(err)
	}
	var reports []suite.Report
	if err := json.Unmarshal([]byte(out), &reports); err != nil {
		t.Fatal(err)
	}
	if len(reports) != 1 || reports[0].Error != "" {
		t.Fatalf("%+v", reports)
	}
	all, err := goals.Parse(goalsFile)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range all["enqueue/busy"] {
		if f, ok := reports[0].Figure(want.Figure); !ok || !(f.Median > 0) {
			t.Errorf("%s: %+v", want.Figure, f)
		}
	}
	measured := map[string]bool{}
	for _, m := range reports[0].Measurements {
		measured[m.Name] = measured[m.Name] || m.Median > 0
	}
	for _, name := range []string{"enqueued", "drained", "server CPU", "client CPU", "fleet's statements", "WAL"} {
		if !measured[name] {
			t.Errorf("%s was not measured", name)
		}
	}
	for _, name := range []string{"enqueue-busy.json", "environment.json", "report.md"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A suite that cannot run, here for want of the server, is short.
func TestCheckWithoutServer(t *testing.T) {
	t.Parallel()
	if _, err := bench(t, "check", "herd", "--database-url", "postgres://postgres@127.0.0.1:1/postgres"); err == nil {
		t.Error("it was not short")
	}
}

func TestUnknownSuite(t *testing.T) {
	t.Parallel()
	if _, err := bench(t, "run", "sleep"); err == nil || !strings.Contains(err.Error(), `no suite "sleep"`) {
		t.Errorf("%v", err)
	}
}

// Each suite has goals, each goal a suite, and the list names all.
func TestList(t *testing.T) {
	t.Parallel()
	all, err := goals.Parse(goalsFile)
	if err != nil {
		t.Fatal(err)
	}
	out, err := bench(t, "list")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range suite.All() {
		if len(all[s.Name]) == 0 {
			t.Errorf("%s has no goals", s.Name)
		}
		if !strings.Contains(out, s.Name) {
			t.Errorf("the list lacks %s", s.Name)
		}
		delete(all, s.Name)
	}
	for name := range all {
		t.Errorf("goals name a suite %q that is not there", name)
	}
}

func TestJudge(t *testing.T) {
	t.Parallel()
	two := 2.0
	wanted := goals.Goals{{Figure: "x", Goal: goals.Goal{Max: &two, Unit: "ms"}}}
	for _, tc := range []struct {
		name   string
		report suite.Report
		line   string
		ok     bool
	}{
		{"holds", suite.Report{Suite: "s", Figures: []suite.Figure{{Name: "x", Median: 2, Low: 1, High: 3}}}, "s: x: 2 ms, 1 to 3 (goal ≤ 2 ms) ok", true},
		{"holds not", suite.Report{Suite: "s", Figures: []suite.Figure{{Name: "x", Median: 2.5, Low: 2.5, High: 2.5}}}, "s: x: 2.5 ms (goal ≤ 2 ms) short", false},
		{"noisy", suite.Report{Suite: "s", Figures: []suite.Figure{{Name: "x", Median: 1, Low: 1, High: 1, Noisy: "so"}}}, "s: x: 1 ms, noisy (goal ≤ 2 ms) short", false},
		{"not measured", suite.Report{Suite: "s"}, "s: x: not measured (goal ≤ 2 ms) short", false},
	} {
		lines, ok := judge(tc.report, wanted)
		if ok != tc.ok || len(lines) != 1 || lines[0] != tc.line {
			t.Errorf("%s: %q %v, want %q", tc.name, lines, ok, tc.line)
		}
	}
	if lines, ok := judge(suite.Report{Suite: "s"}, nil); ok || len(lines) != 1 {
		t.Errorf("without goals: %q %v", lines, ok)
	}
}

// A process ends well when it is told to, and its parent is told when one ends by itself.
func TestFleet(t *testing.T) {
	t.Parallel()
	_, err := fleet.Launch(t.Context(), fleet.Job{Kind: fleet.Raw, Name: "lost", URL: "postgres://postgres@127.0.0.1:1/postgres"})
	if err == nil || !strings.Contains(err.Error(), "lost ended by itself") || !strings.Contains(err.Error(), "127.0.0.1") {
		t.Errorf("%v", err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if _, err := fleet.Launch(ended, fleet.Job{Kind: fleet.Raw, Name: "late", URL: "postgres://postgres@127.0.0.1:1/postgres"}); err == nil {
		t.Error("started after all")
	}
}
