package goals_test

import (
	"math"
	"os"
	"strings"
	"testing"

	"github.com/pgwake/pgwake/bench/internal/goals"
)

func TestParse(t *testing.T) {
	t.Parallel()
	all, err := goals.Parse([]byte("a/b:\n  second, of one: {max: 2, unit: ms}\n  first: {min: 0.85}\nc:\n  x: {max: 0}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 2 || len(all["a/b"]) != 2 || len(all["c"]) != 1 {
		t.Fatalf("%+v", all)
	}
	if f := all["a/b"][0]; f.Figure != "second, of one" || f.Goal.String() != "≤ 2 ms" {
		t.Errorf("%+v", f)
	}
	if f := all["a/b"][1]; f.Figure != "first" || f.Goal.String() != "≥ 0.85" {
		t.Errorf("%+v", f)
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ text, want string }{
		"no yaml":      {"a: [", "read goals"},
		"no figures":   {"a: {}", "has none"},
		"no bound":     {"a: {x: {unit: ms}}", "one of min and max"},
		"both bounds":  {"a: {x: {min: 1, max: 2}}", "one of min and max"},
		"unknown word": {"a: {x: {maximum: 2}}", "maximum"},
		"no number":    {"a: {x: {max: soon}}", "a: x"},
	} {
		if _, err := goals.Parse([]byte(tc.text)); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}

func TestHolds(t *testing.T) {
	t.Parallel()
	two := 2.0
	for _, tc := range []struct {
		name   string
		goal   goals.Goal
		figure float64
		want   bool
	}{
		{"at least, more", goals.Goal{Min: &two}, 2.1, true},
		{"at least, equal", goals.Goal{Min: &two}, 2, true},
		{"at least, less", goals.Goal{Min: &two}, 1.99, false},
		{"at most, less", goals.Goal{Max: &two}, 1.9, true},
		{"at most, equal", goals.Goal{Max: &two}, 2, true},
		{"at most, more", goals.Goal{Max: &two}, 2.01, false},
		{"at least, unknown", goals.Goal{Min: &two}, math.NaN(), false},
		{"at most, unknown", goals.Goal{Max: &two}, math.NaN(), false},
	} {
		if got := tc.goal.Holds(tc.figure); got != tc.want {
			t.Errorf("%s: %v", tc.name, got)
		}
	}
}

func TestFormat(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		figure     float64
		unit, want string
	}{
		{0.85, "×", "0.85 ×"},
		{3, "×", "3 ×"},
		{0.4166, "/s", "0.417/s"},
		{12345.6, "/s", "12346/s"},
		{0, "", "0"},
		{math.NaN(), "ms", "unknown"},
	} {
		if got := goals.Format(tc.figure, tc.unit); got != tc.want {
			t.Errorf("%v %q: %q, want %q", tc.figure, tc.unit, got, tc.want)
		}
	}
}

func TestFile(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../goals.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := goals.Parse(text); err != nil {
		t.Error(err)
	}
}
