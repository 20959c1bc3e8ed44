// Package stats has the few statistics that the suites need: quantiles by nearest rank, and a spread that one bad round
// does not decide.
package stats

import (
	"cmp"
	"math"
	"slices"
)

// Quantile is the smallest value that the share given of all do not exceed; zero of no values.
func Quantile[T cmp.Ordered](values []T, share float64) T {
	if len(values) == 0 {
		var none T
		return none
	}
	sorted := slices.Sorted(slices.Values(values))
	// Less a little, since 0.99 × 100 is more than 99 in binary.
	rank := int(math.Ceil(share*float64(len(sorted)) - 1e-9))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// Median is the value in the middle, or the mean of the two there; not a number of no values.
func Median(values []float64) float64 {
	n := len(values)
	if n == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// Spread says how far apart measurements of one thing lie: the median distance from their median, as a share of it. Half
// of them are no farther off than that.
func Spread(values []float64) float64 {
	middle := Median(values)
	distances := make([]float64, len(values))
	for i, v := range values {
		distances[i] = math.Abs(v - middle)
	}
	return Median(distances) / math.Abs(middle)
}

// Summary is what becomes of the measurements of one thing in all rounds.
type Summary struct {
	Median, Low, High float64
}

// Summarize returns the median and the range; not a number of no values.
func Summarize(values []float64) Summary {
	if len(values) == 0 {
		return Summary{math.NaN(), math.NaN(), math.NaN()}
	}
	return Summary{Median(values), slices.Min(values), slices.Max(values)}
}
