package main

import (
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// shifted draws error bars beside their places, as bar charts draw bars with an offset.
type shifted struct {
	*plotter.YErrorBars
	offset vg.Length
}

// Plot implements plot.Plotter.
func (s *shifted) Plot(c draw.Canvas, p *plot.Plot) {
	c.Min.X += s.offset
	c.Max.X += s.offset
	s.YErrorBars.Plot(c, p)
}
