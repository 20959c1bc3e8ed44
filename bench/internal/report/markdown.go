package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/pgwake/pgwake/bench/internal/goals"
	"github.com/pgwake/pgwake/bench/internal/suite"
)

// Markdown is the page of a run: what it was run on, and the figures of every suite beside their goals, with the plots named.
func Markdown(e Environment, reports []suite.Report, wanted map[string]goals.Goals, plots []Plot) string {
	var page strings.Builder
	fmt.Fprintf(&page, "# Measured\n\n`%s`, %s\n\n", e.Command, e.Began.Format("2006-01-02 15:04 MST"))
	fmt.Fprintf(&page, "%s, %d cores, %s of memory, %s, %s, PostgreSQL %s; server, workers and clients share the machine.\n\n",
		e.CPU, e.Cores, e.Memory, e.OS, e.Go, e.PostgreSQL)
	settings := make([]string, len(e.Settings))
	for i, s := range e.Settings {
		settings[i] = fmt.Sprintf("`%s = %s`", s.Name, s.Value)
	}
	fmt.Fprintf(&page, "Settings of the server: %s. All else is PostgreSQL's default.\n", strings.Join(settings, ", "))
	for _, r := range reports {
		fmt.Fprintf(&page, "\n## %s\n\n", r.Suite)
		if r.Error != "" {
			fmt.Fprintf(&page, "Could not run to its end: %s\n\n", r.Error)
		}
		page.WriteString(figures(r, wanted[r.Suite]))
		page.WriteString(sides(r))
		for _, p := range plots {
			if p.Suite == r.Suite {
				fmt.Fprintf(&page, "![%s](%s)\n\n", p.Title, p.File)
			}
		}
		for _, note := range r.Notes {
			fmt.Fprintf(&page, "- %s\n", strings.ReplaceAll(note, "\n", " "))
		}
	}
	return page.String()
}

// number writes a figure's median and, where there is one, its range.
func number(f suite.Figure) string {
	text := goals.Format(float64(f.Median), f.Unit)
	if f.Low != f.High {
		text += fmt.Sprintf(" (%s to %s)", goals.Format(float64(f.Low), ""), goals.Format(float64(f.High), ""))
	}
	return text
}

// figures is the table of what goals are set for.
func figures(r suite.Report, wanted goals.Goals) string {
	if len(r.Figures) == 0 {
		return ""
	}
	t := table.NewWriter()
	t.AppendHeader(table.Row{"figure", "measured", "goal", ""})
	for _, f := range r.Figures {
		goal, verdict := "", ""
		for _, w := range wanted {
			if w.Figure != f.Name {
				continue
			}
			goal, verdict = w.Goal.String(), "short"
			if f.Noisy == "" && w.Goal.Holds(float64(f.Median)) {
				verdict = "ok"
			}
		}
		if f.Noisy != "" {
			verdict += ", noisy: " + f.Noisy
		}
		t.AppendRow(table.Row{f.Name, number(f), goal, strings.TrimPrefix(verdict, ", ")})
	}
	return t.RenderMarkdown() + "\n\n"
}

// sides is the table of measurements: a row a side, a column each thing measured.
func sides(r suite.Report) string {
	var names, columns []string
	cells := map[string]map[string]string{}
	for _, m := range r.Measurements {
		column := m.Name
		if m.Unit != "" {
			column += ", " + m.Unit
		}
		if cells[m.Side] == nil {
			cells[m.Side] = map[string]string{}
			names = append(names, m.Side)
		}
		if !slices.Contains(columns, column) {
			columns = append(columns, column)
		}
		m.Unit = ""
		cells[m.Side][column] = number(m.Figure)
	}
	if len(names) == 0 {
		return ""
	}
	t := table.NewWriter()
	head := table.Row{"side"}
	for _, c := range columns {
		head = append(head, c)
	}
	t.AppendHeader(head)
	for _, name := range names {
		row := table.Row{name}
		for _, c := range columns {
			row = append(row, cells[name][c])
		}
		t.AppendRow(row)
	}
	return t.RenderMarkdown() + "\n\n"
}
