package bench

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/adverb-rdma/adverb/internal/benchdata"
)

// settings are the command line's.
type settings struct {
	rounds    int
	time      time.Duration // of a cell, without its warm-up
	networks  []network
	peers     []peer
	workloads []workload
	cpus      []int  // the server's and the client's core, or nil
	profiles  string // a directory, or empty
	path      string // a table over a bad path; empty: none
	pathRows  string // the names of its rows must have this part
	json      bool
	revision  string // of the source; empty: as the program knows
	plain     string // a build of this program without a profile; empty: none
}

// warmup is how long a cell runs before it counts.
func (s *settings) warmup() time.Duration { return s.time / 4 }

// limit is after which time a cell counts as failed.
func (s *settings) limit() time.Duration { return settle + 10*s.time }

// measure measures everything. The report has the failures; an error ends the run.
func (s *settings) measure(ctx context.Context, progress io.Writer) (*benchdata.Report, error) {
	r := &benchdata.Report{Started: time.Now().UTC().Truncate(time.Second), Host: host(), Rounds: s.rounds, Seconds: s.time.Seconds()}
	if s.revision != "" {
		r.Host.Revision = s.revision
	}
	if s.cpus != nil {
		r.CPUs = fmt.Sprintf("%d,%d", s.cpus[atServer], s.cpus[atClient])
	}
	for i := range s.networks {
		n, err := s.measureNetwork(ctx, &s.networks[i], progress)
		if err != nil {
			return nil, err
		}
		r.Networks = append(r.Networks, *n)
	}
	return r, nil
}

// measureNetwork measures all rounds over a network. In a round the peers follow one another workload by workload, so
// that compared values are measured within a second or two.
func (s *settings) measureNetwork(ctx context.Context, n *network, progress io.Writer) (*benchdata.Network, error) {
	out := &benchdata.Network{Name: n.name, Title: n.title, MTU: n.mtu}
	site, err := n.open(n, s.cpus)
	if err != nil {
		out.Skipped = err.Error()
		return out, nil
	}
	defer site.close()
	out.MTU = site.mtu
	methods := s.rows(n, out)
	for round := range s.rounds {
		fmt.Fprintf(progress, "%s: round %d of %d\n", n.name, round+1, s.rounds)
		out.Distance = append(out.Distance, coreDistance(s.cpus))
		for w := range s.workloads {
			for i := range s.peers {
				p := (i + round) % len(s.peers) // none always comes after the same one
				series, m := &out.Rows[w].Series[p], methods[w][p]
				if m == nil || series.Missing != "" {
					continue
				}
				c := &cell{settings: s, site: site, w: &s.workloads[w], peer: &s.peers[p], round: round}
				if round > 0 {
					if last := series.Cells[round-1]; last.Seconds > 0 {
						c.perSecond = float64(last.Ops) / last.Seconds
					}
				}
				got, err := m.measure(ctx, c)
				if ctx.Err() != nil {
					return nil, ctx.Err()
				}
				if err != nil {
					got = benchdata.Cell{Failed: err.Error()}
				}
				series.Cells = append(series.Cells, got)
			}
		}
	}
	return out, nil
}

// rows makes the rows of a network, and returns how each peer does each workload.
func (s *settings) rows(on *network, n *benchdata.Network) (methods [][]*method) {
	for w := range s.workloads {
		row := benchdata.Row{Workload: s.workloads[w].data()}
		var ms []*method
		for _, p := range s.peers {
			series := benchdata.Series{Peer: p.name, Title: p.title, Bound: p.bound}
			var m *method
			if p.has(on) && (!p.otherBuild || s.plain != "") {
				m = p.prepare(&s.workloads[w])
			}
			if m != nil {
				series.Note, series.Missing = m.note, m.missing
				if p.missing != nil && series.Missing == "" {
					series.Missing = p.missing()
				}
			}
			row.Series = append(row.Series, series)
			ms = append(ms, m)
		}
		n.Rows = append(n.Rows, row)
		methods = append(methods, ms)
	}
	return methods
}

// host describes the machine and the program.
func host() benchdata.Host {
	h := benchdata.Host{OS: runtime.GOOS, Arch: runtime.GOARCH, Kernel: kernel(), CPU: model(), CPUs: runtime.NumCPU(), Go: runtime.Version()}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				h.Revision = s.Value[:min(12, len(s.Value))]
			}
			if s.Key == "-pgo" {
				h.Profile = s.Value != ""
			}
			if s.Key == "vcs.modified" && s.Value == "true" {
				h.Revision += " and changes"
			}
		}
	}
	return h
}

// parseCPUs reads two numbers of cores, such as "0,1".
func parseCPUs(s string) ([]int, error) {
	a, b, ok := strings.Cut(s, ",")
	x, err1 := strconv.Atoi(a)
	y, err2 := strconv.Atoi(b)
	if !ok || err1 != nil || err2 != nil || x < 0 || y < 0 {
		return nil, fmt.Errorf("cores %q: give two numbers, the server's and the client's, such as 0,1", s)
	}
	return []int{x, y}, nil
}
