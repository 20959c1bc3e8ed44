package suite

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/pgwake/pgwake/bench/internal/stats"
)

// Number is a float64 that JSON can hold: null if it is not a number.
type Number float64

// MarshalJSON implements [json.Marshaler].
func (n Number) MarshalJSON() ([]byte, error) {
	if math.IsNaN(float64(n)) || math.IsInf(float64(n), 0) {
		return []byte("null"), nil
	}
	return json.Marshal(float64(n))
}

// Figure is what a suite found out: the median over rounds, and the range.
type Figure struct {
	Name   string `json:"name"`
	Unit   string `json:"unit,omitempty"`
	Median Number `json:"median"`
	Low    Number `json:"low"`
	High   Number `json:"high"`
	Noisy  string `json:"noisy,omitempty"` // why it is no result
}

// Measurement is a figure of one side of a comparison.
type Measurement struct {
	Side string `json:"side"`
	Figure
}

// Report is what came of a suite.
type Report struct {
	Suite        string        `json:"suite"`
	Seconds      Number        `json:"seconds"`
	Figures      []Figure      `json:"figures"`      // goals are set for these
	Measurements []Measurement `json:"measurements"` // what they were made of, and what was spent
	// Distributions and Series are what plots show.
	Distributions []Distribution `json:"distributions,omitempty"`
	Series        []Series       `json:"series,omitempty"`
	Notes         []string       `json:"notes,omitempty"`
	Error         string         `json:"error,omitempty"` // why it could not run to its end
}

// Distribution is that of many values of one side, over all rounds.
type Distribution struct {
	Side   string   `json:"side"`
	Name   string   `json:"name"`
	Unit   string   `json:"unit"`
	Shares []Number `json:"shares"` // of all values
	Values []Number `json:"values"` // that so many do not exceed
}

// Series is a value of one side over time.
type Series struct {
	Side   string   `json:"side"`
	Name   string   `json:"name"`
	Unit   string   `json:"unit"`
	Step   Number   `json:"step"` // seconds from one value to the next
	Values []Number `json:"values"`
}

// Figure returns one by its name.
func (r Report) Figure(name string) (Figure, bool) {
	for _, f := range r.Figures {
		if f.Name == name {
			return f, true
		}
	}
	return Figure{}, false
}

func newFigure(name, unit, noisy string, values []float64) Figure {
	s := stats.Summarize(values)
	return Figure{Name: name, Unit: unit, Median: Number(s.Median), Low: Number(s.Low), High: Number(s.High), Noisy: noisy}
}

func (b *bench) figure(name, unit, noisy string, values ...float64) {
	b.report.Figures = append(b.report.Figures, newFigure(name, unit, noisy, values))
}

func (b *bench) measurement(side, name, unit string, values ...float64) {
	b.report.Measurements = append(b.report.Measurements, Measurement{side, newFigure(name, unit, "", values)})
}

// shares are those that distributions are kept by: finer towards the slow end.
var shares = []float64{0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 1}

func (b *bench) distribution(side, name string, of []time.Duration) {
	d := Distribution{Side: side, Name: name, Unit: "ms"}
	sorted := slices.Sorted(slices.Values(of))
	for _, share := range shares {
		d.Shares = append(d.Shares, Number(share))
		d.Values = append(d.Values, Number(float64(stats.Quantile(sorted, share))/float64(time.Millisecond)))
	}
	b.report.Distributions = append(b.report.Distributions, d)
}

func (b *bench) series(side, name, unit string, step time.Duration, values []float64) {
	s := Series{Side: side, Name: name, Unit: unit, Step: Number(step.Seconds())}
	for _, v := range values {
		s.Values = append(s.Values, Number(v))
	}
	b.report.Series = append(b.report.Series, s)
}

func (b *bench) note(format string, args ...any) {
	b.report.Notes = append(b.report.Notes, fmt.Sprintf(format, args...))
}
