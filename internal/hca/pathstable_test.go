package hca

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/verbs"
)

var pathsTableFlag = flag.String("pathstable", "", "write the tables of paths to this file")

// The fabric of docs/PATHS.md: two hosts with fast ports, and equal paths between them.
const (
	pathRate  = 10e9 / 8  // bytes in a second
	hostRate  = 200e9 / 8 // of the hosts' ports
	pathDelay = 5 * time.Microsecond
)

// pathFabric is a fabric of a sender and a receiver with several paths between them.
type pathFabric struct {
	*fabric
	forth, back []*sim.Port
}

func newPathFabric(t testing.TB, paths, sources int, how sim.Spread, seed uint64, slow func(i int) float64) *pathFabric {
	f := &pathFabric{fabric: newFabric(t, 1, false, verbs.CongestionWindow, fabricMarks{}, seed)}
	port := func(rate float64) *sim.Port {
		return f.net.Port(sim.PortConfig{Rate: int64(rate), Delay: pathDelay, Buffer: fabricBuffer})
	}
	way := func(from, to int) (ports []*sim.Port) {
		up, down := port(hostRate), port(hostRate)
		var list [][]*sim.Port
		for i := range paths {
			p := port(pathRate * slow(i))
			ports = append(ports, p)
			list = append(list, []*sim.Port{up, p, down})
		}
		f.net.SetRoutes(simAddr(from), simAddr(to), how, list...)
		return ports
	}
	f.hosts[1].depth = 48
	f.forth, f.back = way(2, 1), way(1, 2)
	for _, e := range []*end{f.hosts[1].end, f.recv[0]} {
		if err := e.qp.SetAdaptiveRouting(verbs.AdaptiveRouting{Send: true, Accept: true, Paths: sources}); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func alike(int) float64 { return 1 }

// goodput runs for a time and returns the bytes in a second that WRITEs have moved.
func (f *pathFabric) goodput(d time.Duration) float64 {
	h := f.hosts[1]
	h.bytes = 0
	f.run(f.now() + d)
	return float64(h.bytes) / d.Seconds()
}

// TestPathsTable holds QPs with several paths to what docs/PATHS.md says of them, and writes that file's tables if
// asked:
//
//	go test ./internal/hca -run PathsTable -args -pathstable ../../docs/PATHS.md
func TestPathsTable(t *testing.T) {
	const settle, measured = 5 * time.Millisecond, 10 * time.Millisecond
	var rows strings.Builder
	var one float64
	for _, row := range []struct {
		name           string
		paths, sources int
		how            sim.Spread
		slow           func(i int) float64
		least          float64 // times one path
	}{
		{"one path", 1, 1, sim.ByPort, alike, .9},
		{"two paths", 2, 2, sim.ByPort, alike, 1.9},
		{"four paths", 4, 4, sim.ByPort, alike, 3.7},
		{"eight paths", 8, 8, sim.ByPort, alike, 7},
		{"four paths, one source port", 4, 1, sim.ByPort, alike, .9},
		{"four paths, of which one has a quarter of the rate", 4, 4, sim.ByPort, func(i int) float64 { return []float64{1, .25, 1, 1}[i] }, 2.9},
		{"four paths, of which one has a tenth of the rate", 4, 4, sim.ByPort, func(i int) float64 { return []float64{1, .1, 1, 1}[i] }, 2.5},
		{"four paths, chosen by a hash of eight source ports", 4, 8, sim.ByHash, alike, 1.9},
		{"four paths, one source port, and a switch that spreads packets", 4, 1, sim.ByPacket, alike, 3.7},
	} {
		if row.paths > 2 && testing.Short() {
			continue // the race detector's time
		}
		var g float64
		synctest.Test(t, func(t *testing.T) {
			f := newPathFabric(t, row.paths, row.sources, row.how, 1, row.slow)
			defer f.close()
			f.run(settle)
			g = f.goodput(measured)
			if one == 0 {
				one = g
			}
			var shares []string
			for _, p := range f.forth {
				shares = append(shares, fmt.Sprint(p.Stats(false).Passed))
			}
			c := func(name string) uint64 {
				all, err := f.hosts[1].end.qp.Counters()
				if err != nil {
					t.Fatal(err)
				}
				return all.Value(name)
			}
			fmt.Fprintf(&rows, "| %s | %.2f | %.2f | %d | %d |\n", row.name, g*8/1e9, g/one, c("retrans_pkts"), c("needless_repeats"))
			t.Logf("%s: packets by path %v, %d paths left, %d tries", row.name, shares, c("paths_left"), c("path_probes"))
			if n := c("drop_source"); n > 0 {
				t.Errorf("%s: %d packets were dropped for the port that they came from, want none", row.name, n)
			}
		})
		if g < row.least*one {
			t.Errorf("%s: %.2f times one path, want %v", row.name, g/one, row.least)
		}
	}
	t.Log("\n" + rows.String())
	failing := pathFails(t, one)
	t.Log("\n" + failing)
	if *pathsTableFlag != "" {
		writePathsTable(t, *pathsTableFlag, 5, rows.String())
		writePathsTable(t, *pathsTableFlag, 3, failing)
	}
}

// pathFails has one of four paths fail, both ways, and come back after 5 ms. It returns the rows of a table that says
// what gets through when.
func pathFails(t *testing.T, one float64) string {
	var b strings.Builder
	synctest.Test(t, func(t *testing.T) {
		f := newPathFabric(t, 4, 4, sim.ByPort, 1, alike)
		defer f.close()
		f.run(5 * time.Millisecond)
		for _, what := range []struct {
			name  string
			down  bool
			least float64 // of one path, in the end
		}{{"down", true, 2.7}, {"up again", false, 3.7}} {
			f.forth[1].SetDown(what.down)
			f.back[1].SetDown(what.down)
			from, last := 0.0, 0.0
			for _, to := range []float64{.25, .5, .75, 1, 1.5, 2, 3, 5} {
				g := f.goodput(time.Duration((to - from) * float64(time.Millisecond)))
				fmt.Fprintf(&b, "| %s, %.2f to %.2f ms | %.1f | %.2f |\n", what.name, from, to, g*8/1e9, g/one)
				from, last = to, g
			}
			if last < what.least*one {
				t.Errorf("a path is %s, and then there are %.2f times one path, want %v", what.name, last/one, what.least)
			}
		}
	})
	return b.String()
}

// writePathsTable replaces the rows of the table of so many columns in a file.
func writePathsTable(t *testing.T, name string, columns int, rows string) {
	old, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	head := "\n|" + strings.Repeat("---|", columns) + "\n"
	before, rest, ok := strings.Cut(string(old), head)
	_, after, ok2 := strings.Cut(rest, "\n\n")
	if !ok || !ok2 {
		t.Fatalf("%s has no table of %d columns", name, columns)
	}
	if err := os.WriteFile(name, []byte(before+head+rows+"\n"+after), 0o644); err != nil {
		t.Fatal(err)
	}
}
