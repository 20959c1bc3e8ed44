package report

import (
	"bytes"
	"fmt"
	"image/color"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/pgwake/pgwake/bench/internal/suite"
)

// Plot is a picture of a suite's report.
type Plot struct {
	Suite, Title, File string
	SVG                []byte
}

const (
	width  = 16 * vg.Centimeter
	height = 9 * vg.Centimeter
	margin = 4 * vg.Millimeter
)

// Plots draws what reports have: rates of drains as bars, distributions of latencies, and what happens under a held snapshot
// over time. By gonum/plot, since latencies want a logarithmic axis.
func Plots(reports []suite.Report) (plots []Plot, err error) {
	add := func(r suite.Report, kind, title string, p *plot.Plot, high vg.Length) error {
		var b bytes.Buffer
		canvas := vgsvg.New(width, high)
		p.Draw(draw.Crop(draw.New(canvas), margin, -margin, margin, -margin))
		if _, err := canvas.WriteTo(&b); err != nil {
			return fmt.Errorf("plot %s: %w", r.Suite, err)
		}
		file := strings.ReplaceAll(r.Suite, "/", "-") + kind + ".svg"
		// Who lacks the font whose metrics were used has one of the same.
		svg := bytes.ReplaceAll(b.Bytes(), []byte("font-family:Liberation Sans"), []byte("font-family:Liberation Sans,Arial,Helvetica,sans-serif"))
		plots = append(plots, Plot{Suite: r.Suite, Title: title, File: file, SVG: svg})
		return nil
	}
	for _, r := range reports {
		if r.Suite == "drain" {
			p, n, err := bars(r, "drained")
			if err != nil {
				return nil, err
			}
			if n > 0 {
				if err := add(r, "", p.Title.Text, p, vg.Length(n)*0.8*vg.Centimeter+3*vg.Centimeter); err != nil {
					return nil, err
				}
			}
		}
		if len(r.Distributions) > 0 {
			p, err := distributions(r)
			if err != nil {
				return nil, err
			}
			if err := add(r, "", p.Title.Text, p, height); err != nil {
				return nil, err
			}
		}
		var names []string
		for _, s := range r.Series {
			if !slices.Contains(names, s.Name) {
				names = append(names, s.Name)
			}
		}
		for _, name := range names {
			p, err := overTime(r, name)
			if err != nil {
				return nil, err
			}
			if err := add(r, "-"+strings.ReplaceAll(name, " ", "-"), p.Title.Text, p, height); err != nil {
				return nil, err
			}
		}
	}
	return plots, nil
}

func newPlot(title string) *plot.Plot {
	p := plot.New()
	p.Title.Text = title
	p.Title.Padding = 3 * vg.Millimeter
	p.Legend.Padding = vg.Millimeter
	p.X.Tick.Marker, p.Y.Tick.Marker = ticks{}, ticks{}
	for font, size := range map[*font.Font]vg.Length{
		&p.Title.TextStyle.Font: 11, &p.Legend.TextStyle.Font: 8, &p.X.Label.TextStyle.Font: 9, &p.Y.Label.TextStyle.Font: 9,
		&p.X.Tick.Label.Font: 8, &p.Y.Tick.Label.Font: 8,
	} {
		font.Variant, font.Size = "Sans", size
	}
	return p
}

// ticks are the default ones, their numbers as short as they can be.
type ticks struct{}

func (ticks) Ticks(low, high float64) []plot.Tick {
	all := plot.DefaultTicks{}.Ticks(low, high)
	for i := range all {
		if all[i].Label != "" {
			all[i].Label = strconv.FormatFloat(all[i].Value, 'f', -1, 64)
		}
	}
	return all
}

// ours is the colour of pgwake, raw that of the limit; peers have others.
var ours, raw = color.RGBA{R: 24, G: 90, B: 169, A: 255}, color.RGBA{R: 120, G: 120, B: 120, A: 255}

func colour(side string, i int) color.Color {
	switch {
	case strings.HasPrefix(side, "pgwake"):
		return ours
	case strings.HasPrefix(side, "raw"):
		return raw
	}
	return plotutil.SoftColors[i%len(plotutil.SoftColors)]
}

// bars shows one measurement of every side, the highest on top, and how many there are.
func bars(r suite.Report, name string) (*plot.Plot, int, error) {
	var all []suite.Measurement
	for _, m := range r.Measurements {
		if m.Name == name && m.Median > 0 {
			all = append(all, m)
		}
	}
	slices.SortStableFunc(all, func(a, b suite.Measurement) int { return int(a.Median) - int(b.Median) })
	p := newPlot("Tasks that do nothing, one worker process")
	p.X.Label.Text, p.X.Min = "tasks a second", 0
	var names []string
	for i, m := range all {
		bar, err := plotter.NewBarChart(plotter.Values{float64(m.Median)}, 5*vg.Millimeter)
		if err != nil {
			return nil, 0, err
		}
		bar.Horizontal, bar.XMin, bar.Color, bar.LineStyle.Width = true, float64(i), colour(m.Side, i), 0
		p.Add(bar)
		names = append(names, fmt.Sprintf("%s: %.0f", m.Side, float64(m.Median)))
	}
	p.NominalY(names...)
	return p, len(all), nil
}

// distributions shows which share of the tasks has begun after which time.
func distributions(r suite.Report) (*plot.Plot, error) {
	p := newPlot(r.Suite + ": from enqueue to handler")
	p.X.Label.Text, p.Y.Label.Text = "milliseconds", "share of tasks that have begun"
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.Y.Min, p.Y.Max = 0, 1
	p.Legend.Left, p.Legend.Top = false, false
	for i, d := range r.Distributions {
		var points plotter.XYs
		for j, share := range d.Shares {
			if v := float64(d.Values[j]); v > 0 {
				points = append(points, plotter.XY{X: v, Y: float64(share)})
			}
		}
		if err := line(p, d.Side, i, points); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// overTime shows the series of a name.
func overTime(r suite.Report, name string) (*plot.Plot, error) {
	p := newPlot(fmt.Sprintf("%s: %s", r.Suite, name))
	p.X.Label.Text = "seconds"
	p.Legend.Top = true
	for i, s := range r.Series {
		if s.Name != name {
			continue
		}
		p.Y.Label.Text = s.Unit
		var points plotter.XYs
		for j, v := range s.Values {
			points = append(points, plotter.XY{X: float64(j+1) * float64(s.Step), Y: float64(v)})
		}
		if err := line(p, s.Side, i, points); err != nil {
			return nil, err
		}
	}
	p.Y.Min = 0
	return p, nil
}

func line(p *plot.Plot, side string, i int, points plotter.XYs) error {
	if len(points) == 0 {
		return nil
	}
	l, err := plotter.NewLine(points)
	if err != nil {
		return err
	}
	l.LineStyle = draw.LineStyle{Color: colour(side, i), Width: 1.2 * vg.Points(1), Dashes: plotutil.Dashes(0)}
	if strings.HasPrefix(side, "pgwake") {
		l.LineStyle.Width = vg.Points(2)
	}
	p.Add(l)
	p.Legend.Add(side, l)
	return nil
}
