package main

import (
	"encoding/json"
	"fmt"
	"image/color"
	"os"
	"path/filepath"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/adverb-rdma/adverb/internal/benchdata"
)

const (
	panelWidth, panelHeight = 3.2 * vg.Inch, 1.9 * vg.Inch
	loneWidth, loneHeight   = 7 * vg.Inch, 3 * vg.Inch // of a chart with one panel
	legendPart              = 0.32                     // of a panel's width is left of the legend
)

// lineColors are colors for lines on white.
var lineColors = []color.Color{colors[0], colors[2], colors[3], colors[4], colors[5]}

// writeCharts draws what tests have recorded over time: a file for each chart, into dir.
func writeCharts(data, dir string) error {
	b, err := os.ReadFile(data)
	if err != nil {
		return err
	}
	var all benchdata.Charts
	if err := json.Unmarshal(b, &all); err != nil {
		return fmt.Errorf("read %s: %w", data, err)
	}
	if len(all.Charts) == 0 {
		return fmt.Errorf("read %s: there is no chart in it: it must be what a test with -charts has written", data)
	}
	for i := range all.Charts {
		c := &all.Charts[i]
		if err := writeChart(c, filepath.Join(dir, c.Name+".svg")); err != nil {
			return fmt.Errorf("draw %s: %w", c.Name, err)
		}
	}
	return nil
}

// writeChart draws a chart. The panels of a row have the same axes, so that columns compare.
func writeChart(c *benchdata.Chart, file string) error {
	columns := len(c.Columns)
	w, h := panelWidth*vg.Length(columns), panelHeight*vg.Length(len(c.Rows))
	if columns == 1 && len(c.Rows) == 1 {
		w, h = loneWidth, loneHeight
	}
	plots := make([][]*plot.Plot, len(c.Rows))
	for r, row := range c.Rows {
		if len(row) != columns {
			return fmt.Errorf("row %d has %d panels, and there are %d columns", r+1, len(row), columns)
		}
		top := 0.0
		for i := range row {
			p, err := panel(&row[i], i == columns-1 && len(row[i].Lines) > 1, w/vg.Length(columns)*legendPart)
			if err != nil {
				return err
			}
			if r == 0 {
				p.Title.Text = c.Columns[i]
			}
			if r == len(c.Rows)-1 {
				p.X.Label.Text = c.X
			}
			if i > 0 {
				p.Y.Label.Text = ""
			}
			plots[r], top = append(plots[r], p), max(top, p.Y.Max)
		}
		for _, p := range plots[r] {
			p.Y.Min, p.Y.Max = 0, top
		}
	}
	canvas := vgsvg.New(w, h)
	tiles := draw.Tiles{Rows: len(c.Rows), Cols: columns, PadX: vg.Points(8), PadY: vg.Points(6), PadRight: vg.Points(8), PadTop: vg.Points(4)}
	area := draw.New(canvas)
	area.SetColor(color.White)
	area.Fill(area.Rectangle.Path())
	for r, row := range plot.Align(plots, tiles, area) {
		for i := range row {
			plots[r][i].Draw(row[i])
		}
	}
	return writeSVG(canvas, file)
}

// panel makes the plot of a panel.
func panel(d *benchdata.Panel, legend bool, legendAt vg.Length) (*plot.Plot, error) {
	p := plot.New()
	p.Y.Label.Text = d.Y
	p.X.Min = 0
	p.Legend.Top = true
	p.Legend.TextStyle.Font.Size = vg.Points(9)
	p.Legend.Left, p.Legend.XOffs = true, legendAt // lines before texts: viewers may have wider fonts
	p.X.Tick.Marker, p.Y.Tick.Marker = plainTicks{}, plainTicks{}
	p.Add(plotter.NewGrid())
	for i, l := range d.Lines {
		if len(l.X) != len(l.Y) || len(l.X) == 0 {
			return nil, fmt.Errorf("%q: line %q has %d times and %d values", d.Y, l.Title, len(l.X), len(l.Y))
		}
		xys := make(plotter.XYs, len(l.X))
		for j := range xys {
			xys[j] = plotter.XY{X: l.X[j], Y: l.Y[j]}
		}
		line, err := plotter.NewLine(xys)
		if err != nil {
			return nil, err
		}
		line.Color, line.Width = lineColors[i%len(lineColors)], vg.Points(1.3)
		p.Add(line)
		if legend {
			p.Legend.Add(l.Title, line)
		}
	}
	if d.Max > 0 {
		p.Y.Max = d.Max
	}
	return p, nil
}

// plainTicks are the usual ones, without zeros behind the point.
type plainTicks struct{}

func (plainTicks) Ticks(low, high float64) []plot.Tick {
	ticks := plot.DefaultTicks{}.Ticks(low, high)
	for i := range ticks {
		if ticks[i].Label != "" {
			ticks[i].Label = strconv.FormatFloat(ticks[i].Value, 'g', 6, 64)
		}
	}
	return ticks
}
