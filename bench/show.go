package main

import (
	"fmt"
	"io"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/pgwake/pgwake/bench/internal/goals"
	"github.com/pgwake/pgwake/bench/internal/suite"
)

// show prints a report for people.
func show(w io.Writer, r suite.Report) {
	fmt.Fprintf(w, "\n%s, in %.0f s\n", r.Suite, float64(r.Seconds))
	t := table.NewWriter()
	t.SetOutputMirror(w)
	t.SetStyle(table.StyleLight)
	t.Style().Format.Header = text.FormatDefault
	t.AppendHeader(table.Row{"side", "measured", "median", "low", "high", ""})
	row := func(side string, f suite.Figure) {
		n := func(v suite.Number) string { return goals.Format(float64(v), "") }
		t.AppendRow(table.Row{side, f.Name, n(f.Median), n(f.Low), n(f.High), f.Unit})
	}
	for _, m := range r.Measurements {
		row(m.Side, m.Figure)
	}
	t.AppendSeparator()
	for _, f := range r.Figures {
		row("", f)
	}
	t.Render()
	for _, f := range r.Figures {
		if f.Noisy != "" {
			fmt.Fprintf(w, "%s is no result: noisy: %s\n", f.Name, f.Noisy)
		}
	}
	for _, note := range r.Notes {
		fmt.Fprintln(w, note)
	}
	if r.Error != "" {
		fmt.Fprintf(w, "could not run to its end: %s\n", r.Error)
	}
}

// judge says how a report's figures stand to the goals: a line each, and whether all hold.
func judge(r suite.Report, wanted goals.Goals) (lines []string, ok bool) {
	ok = true
	if len(wanted) == 0 {
		return []string{fmt.Sprintf("%s: no goals short", r.Suite)}, false
	}
	for _, want := range wanted {
		f, measured := r.Figure(want.Figure)
		var is string
		switch {
		case !measured:
			is = "not measured"
		case f.Low == f.High:
			is = goals.Format(float64(f.Median), want.Goal.Unit)
		default:
			is = fmt.Sprintf("%s, %s to %s", goals.Format(float64(f.Median), want.Goal.Unit), goals.Format(float64(f.Low), ""), goals.Format(float64(f.High), ""))
		}
		verdict := "ok"
		if !measured || f.Noisy != "" || !want.Goal.Holds(float64(f.Median)) {
			verdict, ok = "short", false
		}
		if f.Noisy != "" {
			is += ", noisy"
		}
		lines = append(lines, fmt.Sprintf("%s: %s: %s (goal %s) %s", r.Suite, want.Figure, is, want.Goal, verdict))
	}
	return lines, ok
}
