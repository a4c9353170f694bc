package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/bench/emulator"
	"github.com/adverb-rdma/adverb/internal/benchdata"
)

// The tables over a bad path: how our device and the system's TCP do on the same one, and how they share it. The
// two ends are in network namespaces of their own, and an emulator carries their packets.

// pathNetwork is the same for both: TCP's segments are about as long as RDMA's packets.
var pathNetwork = network{name: "path", mtu: 4200, pathMTU: 4096}

// defaultPathTime is the time of a measurement over a bad path, on which controllers of congestion take seconds.
const defaultPathTime = 5 * time.Second

// pathSite is an open path. close removes it, and returns the path's counters for packets from the client and to it,
// and how late packets left.
type pathSite struct {
	*site
	close func() ([2]emulator.Stats, emulator.Lateness)
}

// A flow is something that sends over a path.
type flow struct {
	name    string
	program string
	control string
	env     string // of both ends, or empty
}

var (
	flowWindow = flow{"window", ours, "window", ""}
	flowDelay  = flow{"delay", ours, "delay", ""}
	flowDCQCN  = flow{"dcqcn", ours, "dcqcn", ""}
	flowGoBack = flow{"go-back-N", ours, "window", "ADVERB_EXTENSIONS=0"}
	flowCUBIC  = flow{"CUBIC", "tcp", "cubic", ""}
	flowBBR    = flow{"BBR", "tcp", "bbr", ""}
)

// pathCase is a row of a table: a path, and the flows that use it, each alone or all at a time.
type pathCase struct {
	name     string
	config   emulator.Config
	flows    []flow
	together bool
}

const (
	lossRate   = 125_000_000 // bytes in a second
	lossBuffer = 4 * time.Millisecond
	shareRate  = 62_500_000
	shareTrip  = 5 * time.Millisecond
)

// bytesIn is how many bytes a rate brings in a time.
func bytesIn(rate int, d time.Duration) int { return int(float64(rate) * d.Seconds()) }

// pathTables are the tables that there are.
var pathTables = map[string]func() []pathCase{"losses": lossCases, "shares": shareCases}

// lossCases has each flow alone on a path that loses packets, or has some late. The buffer holds a round trip, 4 ms
// at least.
func lossCases() (cases []pathCase) {
	for _, trip := range []time.Duration{time.Millisecond, 25 * time.Millisecond} {
		c := emulator.Config{Rate: lossRate, Delay: trip / 2, Buffer: bytesIn(lossRate, max(trip, lossBuffer))}
		add := func(what string) {
			cases = append(cases, pathCase{name: fmt.Sprintf("%v, %s", trip, what), config: c, flows: []flow{flowWindow, flowGoBack, flowCUBIC, flowBBR}})
		}
		add("nothing lost")
		for _, percent := range []float64{.1, 1, 3, 10} {
			c.Loss = percent / 100
			add(fmt.Sprintf("%g %% lost", percent))
		}
		c.Loss, c.LateOneIn, c.LateBy = 0, 4, time.Millisecond
		add("25 % late by 1 ms")
	}
	return cases
}

// shareCases has two flows at a time on one path, whose buffer holds one or four round trips, or marks packets that
// find more than one of its four waiting.
func shareCases() (cases []pathCase) {
	add := func(path string, c emulator.Config, pairs ...[]flow) {
		for _, pair := range pairs {
			name := fmt.Sprintf("%s: %s beside %s", path, pair[0].name, pair[1].name)
			cases = append(cases, pathCase{name: name, config: c, flows: pair, together: true})
		}
	}
	for _, trips := range []int{1, 4} {
		c := emulator.Config{Rate: shareRate, Delay: shareTrip / 2, Buffer: trips * bytesIn(shareRate, shareTrip)}
		add(fmt.Sprintf("%d × round trip", trips), c,
			[]flow{flowWindow, flowCUBIC}, []flow{flowWindow, flowBBR}, []flow{flowWindow, flowWindow},
			[]flow{flowDelay, flowCUBIC}, []flow{flowDelay, flowBBR}, []flow{flowDelay, flowDelay},
			[]flow{flowDCQCN, flowCUBIC}, []flow{flowDCQCN, flowBBR}, []flow{flowDCQCN, flowDCQCN},
			[]flow{flowCUBIC, flowCUBIC}, []flow{flowBBR, flowBBR}, []flow{flowCUBIC, flowBBR})
	}
	// BBR heeds no marks, and packets that allow none would be dropped where they cannot be marked.
	c := emulator.Config{Rate: shareRate, Delay: shareTrip / 2, Buffer: 4 * bytesIn(shareRate, shareTrip), MarkAbove: bytesIn(shareRate, shareTrip)}
	add("4 ×, marks from 1 ×", c, []flow{flowDCQCN, flowCUBIC}, []flow{flowDCQCN, flowDCQCN}, []flow{flowCUBIC, flowCUBIC})
	return cases
}

// pathReport is the result of the measurements.
type pathReport struct {
	Started time.Time      `json:"started"`
	Host    benchdata.Host `json:"host"`
	Table   string         `json:"table"`
	Rounds  int            `json:"rounds"`
	Seconds float64        `json:"seconds_per_cell"`
	Rows    []pathRow      `json:"rows"`
}

// pathRow is a row of a table. Cells has a list for each flow, with an entry for each round.
type pathRow struct {
	Name     string             `json:"name"`
	Config   emulator.Config    `json:"path"`
	Together bool               `json:"together"`
	Flows    []string           `json:"flows"`
	Cells    [][]benchdata.Cell `json:"cells"`
	Paths    []pathUse          `json:"paths"` // in the order in which they were used
}

// pathUse has the path's counters of a measurement: of packets from the client, and to it, and how late they were.
type pathUse struct {
	There, Back emulator.Stats
	Late        emulator.Lateness
}

// measurePath measures a table, or those rows that match.
func (s *settings) measurePath(ctx context.Context, progress io.Writer) (*pathReport, error) {
	cases := slices.DeleteFunc(pathTables[s.path](), func(c pathCase) bool { return !strings.Contains(c.name, s.pathRows) })
	if len(cases) == 0 {
		return nil, fmt.Errorf("--path %s:%s: no row has this text", s.path, s.pathRows)
	}
	r := &pathReport{Started: time.Now().UTC().Truncate(time.Second), Host: host(), Table: s.path, Rounds: s.rounds, Seconds: s.time.Seconds()}
	for _, c := range cases {
		row := pathRow{Name: c.name, Config: c.config, Together: c.together, Cells: make([][]benchdata.Cell, len(c.flows))}
		for _, f := range c.flows {
			row.Flows = append(row.Flows, f.name)
		}
		r.Rows = append(r.Rows, row)
	}
	for round := range s.rounds {
		for i := range cases {
			fmt.Fprintf(progress, "round %d of %d: %s\n", round+1, s.rounds, cases[i].name)
			if err := s.measureCase(ctx, &cases[i], &r.Rows[i], round); err != nil {
				return nil, err
			}
		}
	}
	return r, nil
}

// measureCase adds a round to a row.
func (s *settings) measureCase(ctx context.Context, c *pathCase, row *pathRow, round int) error {
	c.config.Seed = uint64(round + 1)
	groups := [][]int{nil} // of flows that are measured at a time
	for i := range c.flows {
		if c.together {
			groups[0] = append(groups[0], i)
		} else {
			groups = append(groups, []int{i})
		}
	}
	for _, group := range groups {
		if len(group) == 0 {
			continue
		}
		site, err := openPath(c.config, s.cpus)
		if err != nil {
			return err
		}
		cells := make(chan benchdata.Cell)
		for _, i := range group {
			go func() {
				f := &c.flows[i]
				cell := &cell{settings: s, site: site.site, w: &pathWorkload, control: f.control, env: f.env, round: round, peer: &peer{name: f.name}}
				got, err := measurePair(f.program)(ctx, cell)
				if err != nil {
					got = benchdata.Cell{Failed: err.Error()}
				}
				row.Cells[i] = append(row.Cells[i], got)
				cells <- got
			}()
		}
		for range group {
			got := <-cells
			if got.Failed != "" {
				err = errors.Join(err, errors.New(got.Failed))
			}
		}
		stats, late := site.close()
		row.Paths = append(row.Paths, pathUse{stats[0], stats[1], late})
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}
