package suite

import (
	"context"
	"encoding/json"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/pgwake/pgwake/bench/internal/server"
)

func TestSelect(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ names, want string }{
		{"herd", "herd"},
		{"enqueue", "enqueue/busy enqueue/foreign enqueue/spare"},
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
		}, floodValues}})
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

func TestNumberOfJSON(t *testing.T) {
	t.Parallel()
	text, err := json.Marshal([]Number{1.5, Number(math.NaN()), Number(math.Inf(1))})
	if err != nil || string(text) != "[1.5,null,null]" {
		t.Errorf("%s, %v", text, err)
	}
}
