package suite

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgwake/pgwake/bench/internal/server"
)

func TestSelect(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ names, want string }{
		{"herd", "herd"},
		{"enqueue", "enqueue/busy enqueue/foreign enqueue/spare enqueue/bulk enqueue/single"},
		{"due wake/1000", "due wake/1000"},
	} {
		chosen, err := Select(strings.Fields(tc.names))
		var got []string
		for _, s := range chosen {
			got = append(got, s.Name)
		}
		if err != nil || strings.Join(got, " ") != tc.want {
			t.Errorf("%s: %v, %v", tc.names, got, err)
		}
	}
	for _, name := range []string{"", "enqueue/", "wake/1"} {
		if _, err := Select([]string{name}); err == nil {
			t.Errorf("%q names a suite", name)
		}
	}
}

// Rounds in which other programs took too much of the machine do not count, unless they are all there is.
func TestDisturbed(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		busy   []float64 // seconds that all programs took, of one second of all cores
		rounds int
		noisy  bool
	}{
		{"calm", []float64{0.1, 0.1}, 2, false},
		{"one disturbed", []float64{0.9, 0.1, 0.1}, 2, false},
		{"unknown", []float64{math.NaN(), math.NaN()}, 2, false},
		{"disturbed", []float64{0.9, 0.1, 0.9}, 3, true},
	} {
		b := &bench{Options: Options{Rounds: 2}}
		c, err := b.compare(t.Context(), plan{}, []side{{"a", func(context.Context) (sample, error) {
			busy := tc.busy[0] * float64(runtime.NumCPU())
			tc.busy = tc.busy[1:]
			return sample{tasks: 1, took: time.Second, spent: server.Usage{Seconds: 1, Machine: busy}}, nil
		}, floodValues, nil}})
		if err != nil {
			t.Fatal(err)
		}
		if len(c.rounds) != tc.rounds || (c.noisy != "") != tc.noisy {
			t.Errorf("%s: %d rounds, noisy: %q", tc.name, len(c.rounds), c.noisy)
		}
	}
}

// rates is a side that shows one rate a round, and notes its turns.
func rates(name string, turns *[]string, rates ...float64) side {
	return side{
		name: name,
		measure: func(context.Context) (sample, error) {
			*turns = append(*turns, name)
			rate := rates[0]
			rates = append(rates[1:], rate)
			return sample{tasks: rate, took: time.Second}, nil
		},
		values: floodValues,
	}
}

func TestCompare(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		blocks int
		floor  []float64
		turns  string
		noisy  bool
	}{
		{"steady", 0, []float64{100, 101, 99}, "a b a b a b", false},
		{"one bad round", 0, []float64{100, 20, 101}, "a b a b a b", false},
		{"steady at last", 0, []float64{100, 50, 10, 99, 101, 102}, "a b a b a b a b a b", false},
		{"noisy", 0, []float64{100, 50, 10, 200, 300, 20}, "a b a b a b a b a b", true},
		{"in blocks", 2, []float64{100, 300, 200, 200, 300, 100}, "a b a b a b a b a b a b", false},
	} {
		var turns []string
		b := &bench{Options: Options{Rounds: 3}}
		c, err := b.compare(t.Context(), plan{blocks: tc.blocks, limits: map[string]float64{"enqueued": 0.15}},
			[]side{rates("a", &turns, tc.floor...), rates("b", &turns, 50)})
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(turns, " "); got != tc.turns || (c.noisy != "") != tc.noisy {
			t.Errorf("%s: %s, noisy: %q", tc.name, got, c.noisy)
		}
	}
}

func TestRatios(t *testing.T) {
	t.Parallel()
	var turns []string
	b := &bench{Options: Options{Rounds: 2}}
	c, err := b.compare(t.Context(), plan{}, []side{rates("a", &turns, 100, 200), rates("b", &turns, 50, 150)})
	if err != nil {
		t.Fatal(err)
	}
	if got := c.ratios("enqueued", 1, 0); len(got) != 2 || got[0] != 0.5 || got[1] != 0.75 {
		t.Errorf("%v", got)
	}
}

// failing is a peer that fails from its second turn on.
func failing(turns *[]string) side {
	s := rates("peer", turns, 70)
	measure := s.measure
	s.system = named("peer")
	s.measure = func(ctx context.Context) (sample, error) {
		if slices.Contains(*turns, "peer") {
			return sample{}, errors.New("so")
		}
		return measure(ctx)
	}
	return s
}

// named is a system that has nothing but a name.
type named string

func (n named) Name() string { return string(n) }

func (named) KeepsHistory() bool { return true }

// A peer that fails is left out with a note; pgwake that fails ends the suite.
func TestTolerate(t *testing.T) {
	t.Parallel()
	var turns []string
	b := &bench{Options: Options{Rounds: 2}}
	c, err := b.compare(t.Context(), plan{}, []side{rates("a", &turns, 100), failing(&turns), rates("b", &turns, 50)})
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(turns, " "); got != "a peer b a b" {
		t.Error(got)
	}
	if why := c.without([]string{"other"}); why != "not measured: other; peer" || len(b.report.Notes) != 1 {
		t.Errorf("%q, %q", why, b.report.Notes)
	}
	if got := c.ratiosToLeast("enqueued", 0, []int{1, 2}); len(got) != 2 || got[0] != 2 {
		t.Errorf("%v", got)
	}
	turns = nil
	ours := failing(&turns)
	ours.system = named("pgwake")
	if _, err := b.compare(t.Context(), plan{}, []side{ours}); err == nil {
		t.Error("pgwake has failed, and nothing came of it")
	}
}

// The best of the others is the one that is best in the median, not the best of each round.
func TestRatiosToLeast(t *testing.T) {
	t.Parallel()
	var turns []string
	b := &bench{Options: Options{Rounds: 3}}
	c, err := b.compare(t.Context(), plan{}, []side{
		rates("ours", &turns, 60), rates("steady", &turns, 30), rates("lucky once", &turns, 40, 40, 10),
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := c.ratiosToLeast("enqueued", 0, []int{1, 2}); len(got) != 3 || got[0] != 2 || got[2] != 2 {
		t.Errorf("%v", got)
	}
	if c.index("steady") != 1 || c.index("none") != -1 {
		t.Error("sides are not found by name")
	}
}

func TestWanted(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		only []string
		name string
		want bool
	}{
		{nil, "River, best", true},
		{[]string{"river"}, "River, best", true},
		{[]string{"River, best"}, "River, default", false},
		{[]string{"raw", "pgwake"}, "pgwake", true},
		{[]string{"raw"}, "pgwake", false},
	} {
		b := &bench{Options: Options{Only: tc.only}}
		if got := b.wanted(tc.name); got != tc.want {
			t.Errorf("only %q: %s is wanted: %v", tc.only, tc.name, got)
		}
	}
}

func TestChange(t *testing.T) {
	t.Parallel()
	var c curve
	for i := range 18 { // three minutes
		c = append(c, window{seconds: 10, tasks: float64(int64(100) << (i / 6)), cpu: 1, latencies: []time.Duration{time.Millisecond << (i / 6)}})
	}
	if got := c.change(rate); got != 4 {
		t.Errorf("rate: %v", got)
	}
	if got := c.change(p99); got != 4 {
		t.Errorf("p99: %v", got)
	}
	if got := c.change(cpuEach); got != 0.25 {
		t.Errorf("CPU: %v", got)
	}
	if c.noisy() != "" {
		t.Error(c.noisy())
	}
	c[17].others = 1
	if c.noisy() == "" {
		t.Error("a sixth of a minute was somebody else's, and it is a result")
	}
}

func TestNumberOfJSON(t *testing.T) {
	t.Parallel()
	text, err := json.Marshal([]Number{1.5, Number(math.NaN()), Number(math.Inf(1))})
	if err != nil || string(text) != "[1.5,null,null]" {
		t.Errorf("%s, %v", text, err)
	}
}
