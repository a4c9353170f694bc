package main

import (
	"image/color"
	"path/filepath"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/adverb-rdma/adverb/internal/benchdata"
)

// A figure is the workloads of a network that share an axis.
type figure struct {
	name  string
	unit  benchdata.Unit
	axis  string
	scale float64 // of the axis' unit
}

var figures = []figure{
	{"bandwidth", benchdata.BytesPerSecond, "GB/s", 1e9},
	{"rate", benchdata.PerSecond, "million operations/s", 1e6},
	{"latency", benchdata.Seconds, "µs one way (less is better)", 1e-6},
}

// file is the name of a figure's file.
func (f *figure) file(n *benchdata.Network) string { return n.Name + "-" + f.name + ".svg" }

// rows are the workloads that the figure shows. Without a measurement there is nothing to show.
func (f *figure) rows(n *benchdata.Network) (rows []*benchdata.Row) {
	for i := range n.Rows {
		r := &n.Rows[i]
		if r.Workload.Unit != f.unit {
			continue
		}
		for j := range r.Series {
			if len(r.Series[j].Values()) > 0 {
				rows = append(rows, r)
				break
			}
		}
	}
	return rows
}

// colors of the peers, in the order in which they come. They differ in brightness too.
var colors = []color.Color{
	color.RGBA{0x1b, 0x5e, 0x9e, 0xff}, // ours
	color.RGBA{0xc8, 0xc8, 0xc8, 0xff},
	color.RGBA{0xe0, 0x8e, 0x2b, 0xff},
	color.RGBA{0x4f, 0x9d, 0x69, 0xff},
	color.RGBA{0x9a, 0x6c, 0xb0, 0xff},
	color.RGBA{0xd9, 0x6b, 0x6b, 0xff},
	color.RGBA{0x6d, 0x6d, 0x6d, 0xff},
	color.RGBA{0x36, 0xb3, 0xb8, 0xff},
	color.RGBA{0x8c, 0x6d, 0x46, 0xff},
	color.RGBA{0xa0, 0xa0, 0x28, 0xff},
	color.RGBA{0xe3, 0x9a, 0xc0, 0xff},
}

const (
	width, height = 8 * vg.Inch, 3.5 * vg.Inch
	groupWidth    = 1.3 * vg.Inch // at most, of the bars of a workload
)

// writePlots writes the figures of a network.
func writePlots(n *benchdata.Network, dir string) error {
	for i := range figures {
		f := &figures[i]
		if rows := f.rows(n); len(rows) > 0 {
			if err := f.write(n, rows, filepath.Join(dir, f.file(n))); err != nil {
				return err
			}
		}
	}
	return nil
}

// write writes a figure: the medians as bars, and the spread of the rounds.
func (f *figure) write(n *benchdata.Network, rows []*benchdata.Row, file string) error {
	p := plot.New()
	p.Title.Text = n.Name + ": medians, with the spread of the rounds"
	p.Y.Label.Text = f.axis
	p.Y.Min = 0
	p.Legend.Top = true
	p.Legend.Padding = vg.Points(1)
	peers := measured(rows)
	bar := min(groupWidth, 0.7*width/vg.Length(len(rows))) / vg.Length(len(peers))
	top := 0.0
	for i, peer := range peers {
		bars := make(plotter.Values, len(rows))
		var spreads errorBars
		for x, r := range rows {
			s := benchdata.NewSpread(r.Find(peer.Peer).Values())
			if s.N == 0 {
				continue
			}
			bars[x] = s.Median / f.scale
			top = max(top, s.Max/f.scale)
			spreads.XYs = append(spreads.XYs, plotter.XY{X: float64(x), Y: bars[x]})
			spreads.YErrors = append(spreads.YErrors, struct{ Low, High float64 }{(s.Median - s.Min) / f.scale, (s.Max - s.Median) / f.scale})
		}
		chart, err := plotter.NewBarChart(bars, bar)
		if err != nil {
			return err
		}
		chart.Offset = bar * (vg.Length(i) - vg.Length(len(peers)-1)/2)
		chart.Color = colors[i%len(colors)]
		chart.LineStyle.Width = 0
		p.Add(chart)
		p.Legend.Add(peer.Title, chart)
		if err := addSpreads(p, spreads, chart.Offset); err != nil {
			return err
		}
	}
	p.Y.Max = top * 1.05
	p.NominalX(titles(rows)...)
	p.X.Min, p.X.Max = -0.5, float64(len(rows))+0.3 // room for the legend
	canvas := vgsvg.New(width, height)
	p.Draw(draw.New(canvas))
	return writeSVG(canvas, file)
}

// measured are the peers of rows that measured anything.
func measured(rows []*benchdata.Row) (peers []*benchdata.Series) {
	for i := range rows[0].Series {
		for _, r := range rows {
			if len(r.Series[i].Values()) > 0 {
				peers = append(peers, &r.Series[i])
				break
			}
		}
	}
	return peers
}

func titles(rows []*benchdata.Row) (list []string) {
	for _, r := range rows {
		list = append(list, r.Workload.Title)
	}
	return list
}

type errorBars struct {
	plotter.XYs
	plotter.YErrors
}

// addSpreads draws the spreads over bars that stand offset beside their places.
func addSpreads(p *plot.Plot, e errorBars, offset vg.Length) error {
	if len(e.XYs) == 0 {
		return nil
	}
	bars, err := plotter.NewYErrorBars(e)
	if err != nil {
		return err
	}
	bars.CapWidth = vg.Points(4)
	p.Add(&shifted{bars, offset})
	return nil
}
