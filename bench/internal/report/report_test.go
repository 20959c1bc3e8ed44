package report_test

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/pgwake/pgwake/bench/internal/goals"
	"github.com/pgwake/pgwake/bench/internal/report"
	"github.com/pgwake/pgwake/bench/internal/server"
	"github.com/pgwake/pgwake/bench/internal/suite"
)

func number(name, unit string, median, low, high suite.Number) suite.Figure {
	return suite.Figure{Name: name, Unit: unit, Median: median, Low: low, High: high}
}

var reports = []suite.Report{
	{
		Suite:   "drain",
		Figures: []suite.Figure{number("of raw", "×", 0.85, 0.8, 0.9), number("of River, best", "×", 2, 2, 2), number("free", "", 1, 1, 1)},
		Measurements: []suite.Measurement{
			{Side: "raw", Figure: number("drained", "/s", 60000, 50000, 70000)},
			{Side: "pgwake", Figure: number("drained", "/s", 51000, 51000, 51000)},
			{Side: "pgwake", Figure: number("CPU", "s", 0.3, 0.3, 0.3)},
		},
		Notes: []string{"one\ntwo"},
	},
	{
		Suite: "latency/idle", Error: "the disk is full",
		Distributions: []suite.Distribution{{Side: "pgwake", Unit: "ms", Shares: []suite.Number{0, 0.5, 1}, Values: []suite.Number{0, 1, 10}}},
	},
	{
		Suite:  "snapshot",
		Series: []suite.Series{{Side: "pgwake", Name: "p99 of start", Unit: "ms", Step: 10, Values: []suite.Number{3, 4}}},
	},
}

func TestPlots(t *testing.T) {
	t.Parallel()
	plots, err := report.Plots(reports)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]string{
		"drain.svg":                 {"raw: 60000", "pgwake: 51000", "tasks a second"},
		"latency-idle.svg":          {"pgwake", "milliseconds"},
		"snapshot-p99-of-start.svg": {"pgwake", "seconds", "ms"},
	}
	for _, p := range plots {
		text := texts(t, p)
		for _, w := range want[p.File] {
			if !strings.Contains(text, w) {
				t.Errorf("%s lacks %q: %s", p.File, w, text)
			}
		}
		delete(want, p.File)
	}
	for file := range want {
		t.Errorf("%s was not drawn", file)
	}
}

// texts are those of a plot, which must be well-formed.
func texts(t *testing.T, p report.Plot) string {
	t.Helper()
	var all strings.Builder
	for d := xml.NewDecoder(strings.NewReader(string(p.SVG))); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return all.String()
		}
		if err != nil {
			t.Fatalf("%s: %v", p.File, err)
		}
		if text, ok := token.(xml.CharData); ok {
			all.Write(text)
		}
	}
}

func TestMarkdown(t *testing.T) {
	t.Parallel()
	env := report.Environment{
		Command: "go run . run drain", Began: time.Date(2026, 1, 2, 3, 4, 0, 0, time.UTC), CPU: "some", Cores: 2, Memory: "8 GB",
		PostgreSQL: "18.1", Settings: []server.Setting{{Name: "fsync", Value: "on"}},
	}
	least, three := 0.8, 3.0
	wanted := map[string]goals.Goals{"drain": {
		{Figure: "of raw", Goal: goals.Goal{Min: &least, Unit: "×"}}, {Figure: "of River, best", Goal: goals.Goal{Min: &three, Unit: "×"}},
	}}
	page := report.Markdown(env, reports, wanted, []report.Plot{{Suite: "drain", Title: "Rates", File: "drain.svg"}})
	for _, line := range []string{
		"`go run . run drain`, 2026-01-02 03:04 UTC",
		"PostgreSQL 18.1", "`fsync = on`",
		"| of raw | 0.85 × (0.8 to 0.9) | ≥ 0.8 × | ok |",
		"| of River, best | 2 × | ≥ 3 × | short |",
		"| free | 1 |  |  |",
		"| side | drained, /s | CPU, s |",
		"| raw | 60000 (50000 to 70000) |  |",
		"| pgwake | 51000 | 0.3 |",
		"![Rates](drain.svg)",
		"- one two",
		"Could not run to its end: the disk is full",
	} {
		if !strings.Contains(page, line) {
			t.Errorf("the page lacks %q:\n%s", line, page)
		}
	}
}
