package suite

import (
	"encoding/json"
	"fmt"
	"math"

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
	Notes        []string      `json:"notes,omitempty"`
	Error        string        `json:"error,omitempty"` // why it could not run to its end
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

func (b *bench) note(format string, args ...any) {
	b.report.Notes = append(b.report.Notes, fmt.Sprintf(format, args...))
}
