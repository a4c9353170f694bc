package hca

import (
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/internal/benchdata"
	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/verbs"
)

var chartsFlag = flag.String("charts", "", "write what congestion control and paths do over time to this file, for tools/benchmarks")

// chartPoint rounds a value to what a picture shows, so that the files stay small.
func chartPoint(v float64) float64 { return math.Round(v*1000) / 1000 }

// TestCharts records the scenarios of docs/CONGESTION.md and docs/PATHS.md over time, if asked:
//
//	go test ./internal/hca -run TestCharts -args -charts ../../docs/benchmarks/charts.json
//	cd tools/benchmarks && go run . -charts ../../docs/benchmarks/charts.json ../../docs/benchmarks
func TestCharts(t *testing.T) {
	if *chartsFlag == "" {
		t.Skip("there is no -charts, which says where to write")
	}
	all := benchdata.Charts{Charts: []benchdata.Chart{
		congestionChart(t, "congestion-2-to-1", 2, time.Millisecond, 40*time.Millisecond, 10*time.Millisecond),
		congestionChart(t, "congestion-32-to-1", 32, 2*time.Millisecond, 60*time.Millisecond, 0),
		pathChart(t),
	}}
	b, err := json.Marshal(&all)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(*chartsFlag, append(b, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
}

// congestionChart has senders write to one receiver under each controller. The second begins later by so much.
func congestionChart(t *testing.T, name string, senders int, step, length, later time.Duration) benchdata.Chart {
	c := benchdata.Chart{Name: name, X: "ms", Rows: make([][]benchdata.Panel, 3)}
	for _, control := range []verbs.CongestionControl{verbs.CongestionWindow, verbs.CongestionDCQCN, verbs.CongestionDelay} {
		c.Columns = append(c.Columns, fmt.Sprintf("%d to 1, %v", senders, control))
		var rates [][]float64 // by step, then by sender, in Gbit/s
		queue, fair := benchdata.Line{}, benchdata.Line{}
		synctest.Test(t, func(t *testing.T) {
			f := newFabric(t, senders, true, control, earlyMarks, 1)
			defer f.close()
			f.idleTrip()
			f.hosts[2].begins += later
			f.hosts[0].down.Stats(true)
			for n := 1; time.Duration(n)*step <= length; n++ {
				for _, h := range f.hosts {
					h.bytes = 0
				}
				f.run(f.now() + step)
				at := (time.Duration(n)*step - step/2).Seconds() * 1e3
				var list []float64
				var sum, squares float64
				for _, h := range f.hosts[1 : 1+senders] {
					r := float64(h.bytes) * 8 / step.Seconds() / 1e9
					list = append(list, r)
					sum, squares = sum+r, squares+r*r
				}
				rates = append(rates, list)
				queue.Add(at, float64(f.hosts[0].down.Stats(true).Longest>>10))
				if squares > 0 && f.now() > f.hosts[2].begins {
					fair.Add(at, chartPoint(sum*sum/float64(senders)/squares))
				}
			}
		})
		var lines []benchdata.Line
		if senders <= 4 {
			for i := range senders {
				l := benchdata.Line{Title: fmt.Sprintf("sender %d", i+1)}
				for n, list := range rates {
					l.Add(queue.X[n], chartPoint(list[i]))
				}
				lines = append(lines, l)
			}
		} else {
			for q, title := range []string{"least", "lower quartile", "median", "upper quartile", "most"} {
				l := benchdata.Line{Title: title}
				for n, list := range rates {
					slices.Sort(list)
					l.Add(queue.X[n], chartPoint(list[q*(len(list)-1)/4]))
				}
				lines = append(lines, l)
			}
		}
		top := 42.0
		if senders > 4 {
			top = 4
		}
		c.Rows[0] = append(c.Rows[0], benchdata.Panel{Y: "goodput, Gbit/s", Max: top, Lines: lines})
		c.Rows[1] = append(c.Rows[1], benchdata.Panel{Y: "queue, KiB", Lines: []benchdata.Line{queue}})
		c.Rows[2] = append(c.Rows[2], benchdata.Panel{Y: "Jain's index", Max: 1.05, Lines: []benchdata.Line{fair}})
	}
	return c
}

// pathChart has one of four paths fail for 5 ms.
func pathChart(t *testing.T) benchdata.Chart {
	const step = 250 * time.Microsecond
	total, failing := benchdata.Line{Title: "completed"}, benchdata.Line{Title: "by the path that fails"}
	synctest.Test(t, func(t *testing.T) {
		f := newPathFabric(t, 4, 4, sim.ByPort, 1, alike)
		defer f.close()
		f.run(5 * time.Millisecond)
		for n := range 60 {
			if n == 10 || n == 30 {
				f.forth[1].SetDown(n == 10)
				f.back[1].SetDown(n == 10)
			}
			f.forth[1].Stats(true)
			g := f.goodput(step)
			at := (time.Duration(n)*step + step/2).Seconds() * 1e3
			total.Add(at, chartPoint(g*8/1e9))
			failing.Add(at, chartPoint(float64(f.forth[1].Stats(false).Bytes)*8/step.Seconds()/1e9))
		}
	})
	return benchdata.Chart{Name: "paths-failure", Columns: []string{"one of four paths is down from 2.5 to 7.5 ms"}, X: "ms",
		Rows: [][]benchdata.Panel{{{Y: "Gbit/s", Lines: []benchdata.Line{total, failing}}}}}
}
