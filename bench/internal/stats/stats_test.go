package stats_test

import (
	"math"
	"testing"
	"time"

	"github.com/pgwake/pgwake/bench/internal/stats"
)

func TestQuantile(t *testing.T) {
	t.Parallel()
	hundred := make([]time.Duration, 100) // 100 ms, 99 ms, … 1 ms
	for i := range hundred {
		hundred[i] = time.Duration(100-i) * time.Millisecond
	}
	// Nearest rank, as in the table of Wikipedia's article "Percentile".
	few := []int{15, 20, 35, 40, 50}
	for _, tc := range []struct {
		name      string
		got, want time.Duration
	}{
		{"p50 of 100", stats.Quantile(hundred, 0.5), 50 * time.Millisecond},
		{"p99 of 100", stats.Quantile(hundred, 0.99), 99 * time.Millisecond},
		{"all of 100", stats.Quantile(hundred, 1), 100 * time.Millisecond},
		{"least of 100", stats.Quantile(hundred, 0), time.Millisecond},
		{"p5 of five", time.Duration(stats.Quantile(few, 0.05)), 15},
		{"p30 of five", time.Duration(stats.Quantile(few, 0.30)), 20},
		{"p40 of five", time.Duration(stats.Quantile(few, 0.40)), 20},
		{"p50 of five", time.Duration(stats.Quantile(few, 0.50)), 35},
		{"p100 of five", time.Duration(stats.Quantile(few, 1)), 50},
		{"none", stats.Quantile([]time.Duration{}, 0.5), 0},
	} {
		if tc.got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, tc.got, tc.want)
		}
	}
	if hundred[0] != 100*time.Millisecond {
		t.Error("the values were put in another order")
	}
}

func TestMedianAndSpread(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name           string
		values         []float64
		median, spread float64
	}{
		{"one", []float64{3}, 3, 0},
		{"even", []float64{4, 1, 3, 2}, 2.5, 1 / 2.5},
		{"odd", []float64{9, 1, 5}, 5, 4.0 / 5},
		{"one bad of five", []float64{100, 102, 98, 101, 20}, 100, 2.0 / 100},
		{"negative", []float64{-2, -4, -3}, -3, 1.0 / 3},
	} {
		if got := stats.Median(tc.values); got != tc.median {
			t.Errorf("%s: median %v, want %v", tc.name, got, tc.median)
		}
		if got := stats.Spread(tc.values); math.Abs(got-tc.spread) > 1e-12 {
			t.Errorf("%s: spread %v, want %v", tc.name, got, tc.spread)
		}
	}
	if !math.IsNaN(stats.Median(nil)) || !math.IsNaN(stats.Spread(nil)) || !math.IsNaN(stats.Summarize(nil).Low) {
		t.Error("no values have a median")
	}
}

func TestSummarize(t *testing.T) {
	t.Parallel()
	if got, want := stats.Summarize([]float64{3, 1, 2}), (stats.Summary{Median: 2, Low: 1, High: 3}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
