// Package goals reads what the suites' figures are to be and judges what they are.
package goals

import (
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/goccy/go-yaml"
)

// Goal bounds a figure, bounds included.
type Goal struct {
	Min  *float64 `yaml:"min"`
	Max  *float64 `yaml:"max"`
	Unit string   `yaml:"unit"`
}

// Goals are those of one suite, in the order of the file.
type Goals []Named

// Named is the goal of a figure.
type Named struct {
	Figure string
	Goal   Goal
}

// Parse reads goals.yaml: suite, figure, goal. A goal has one bound.
func Parse(text []byte) (map[string]Goals, error) {
	var file map[string]yaml.MapSlice
	if err := yaml.Unmarshal(text, &file); err != nil {
		return nil, fmt.Errorf("read goals: %w", err)
	}
	all := map[string]Goals{}
	for suite, figures := range file {
		if len(figures) == 0 {
			return nil, fmt.Errorf("read goals: suite %q has none", suite)
		}
		for _, f := range figures {
			goal, err := parseGoal(f.Value)
			if err != nil {
				return nil, fmt.Errorf("read goals: %s: %v: %w", suite, f.Key, err)
			}
			all[suite] = append(all[suite], Named{fmt.Sprint(f.Key), goal})
		}
	}
	return all, nil
}

func parseGoal(value any) (Goal, error) {
	var goal Goal
	text, err := yaml.Marshal(value)
	if err != nil {
		return goal, err
	}
	if err := yaml.UnmarshalWithOptions(text, &goal, yaml.Strict()); err != nil {
		return goal, err
	}
	if (goal.Min == nil) == (goal.Max == nil) {
		return goal, errors.New("it must have one of min and max")
	}
	return goal, nil
}

// Holds reports whether a figure is as it should be. One that is not a number is not.
func (g Goal) Holds(figure float64) bool {
	if g.Min != nil {
		return figure >= *g.Min
	}
	return figure <= *g.Max
}

func (g Goal) String() string {
	if g.Min != nil {
		return "≥ " + Format(*g.Min, g.Unit)
	}
	return "≤ " + Format(*g.Max, g.Unit)
}

// Format writes a figure to three digits, with its unit.
func Format(figure float64, unit string) string {
	var text string
	switch size := math.Abs(figure); {
	case math.IsNaN(figure):
		return "unknown"
	case size >= 100 || figure == math.Trunc(figure):
		text = strconv.FormatFloat(figure, 'f', 0, 64)
	default:
		text = strconv.FormatFloat(figure, 'g', 3, 64)
	}
	if unit != "" && unit[0] != '/' {
		text += " "
	}
	return text + unit
}
