// Package benchdata holds what "adverb bench" has measured: the form of its JSON, and the statistics
// that its table and docs/BENCHMARKS.md show.
package benchdata

import (
	"fmt"
	"time"
)

// Report is one run.
type Report struct {
	Started  time.Time `json:"started"`
	Host     Host      `json:"host"`
	Rounds   int       `json:"rounds"`
	Seconds  float64   `json:"seconds_per_cell"`
	CPUs     string    `json:"cpus,omitempty"` // where the two ends were pinned, such as "0,1"; empty if they were not
	Networks []Network `json:"networks"`
}

// Host is the machine that the run was on, and what ran.
type Host struct {
	OS       string `json:"os"`
	Arch     string `json:"arch"`
	Kernel   string `json:"kernel,omitempty"`
	CPU      string `json:"cpu,omitempty"`
	CPUs     int    `json:"cpus"`
	Go       string `json:"go"`
	Revision string `json:"revision,omitempty"` // of adverb, where the binary knows it
	Profile  bool   `json:"profile"`            // adverb was built with a profile for the compiler (-pgo)
}

// Network is what the two ends were connected by.
type Network struct {
	Name    string `json:"name"`
	Title   string `json:"title"`
	MTU     int    `json:"mtu"`               // bytes of an IP packet; 0 if it is not known
	Skipped string `json:"skipped,omitempty"` // why nothing was measured

	// Distance is what a cache line takes from one core to the other, in nanoseconds, before each
	// round. It tells the rounds in which the host had moved the cores apart.
	Distance []float64 `json:"distance_ns,omitempty"`

	Rows []Row `json:"rows,omitempty"`
}

// Row is a workload, with what each peer made of it.
type Row struct {
	Workload Workload `json:"workload"`
	Series   []Series `json:"series"`
}

// Unit is what a value counts.
type Unit string

// The units.
const (
	PerSecond      Unit = "op/s"
	BytesPerSecond Unit = "B/s"
	Seconds        Unit = "s"
)

// Workload is something that all peers are asked to do.
type Workload struct {
	Name        string `json:"name"` // on the command line
	Title       string `json:"title"`
	Unit        Unit   `json:"unit"`
	Size        int    `json:"size"`        // bytes of a message
	Outstanding int    `json:"outstanding"` // operations at a time
}

// Label is the title with how many operations are under way.
func (w *Workload) Label() string {
	if w.Outstanding < 2 {
		return w.Title
	}
	return fmt.Sprintf("%s, %d at a time", w.Title, w.Outstanding)
}

// Series is what one peer made of a workload, round by round.
type Series struct {
	Peer    string `json:"peer"`
	Title   string `json:"title"`
	Missing string `json:"missing,omitempty"` // why the peer was not asked, and what to do about it
	Note    string `json:"note,omitempty"`    // how what the peer does differs from the workload
	Bound   bool   `json:"bound,omitempty"`   // the peer does the least that the others must do: see Row.IsLimit
	Cells   []Cell `json:"cells,omitempty"`   // one a round
}

// Cell is one measurement.
type Cell struct {
	Value   float64 `json:"value"` // in the workload's unit
	Failed  string  `json:"failed,omitempty"`
	Ops     int64   `json:"ops"`
	Seconds float64 `json:"seconds"` // for which was measured

	Counts *Counts `json:"counts,omitempty"` // nil for programs that do not tell
	CPU    *CPU    `json:"cpu,omitempty"`    // nil where it is not known
}

// CPU is the CPU time that the ends took in Cell.Seconds, in seconds. An end that polls takes all of that time.
type CPU struct {
	Client float64 `json:"client_seconds"`
	Server float64 `json:"server_seconds"`
}

// Counts are what both ends together did in a cell beside what they were asked for.
type Counts struct {
	Allocs  int64 `json:"allocs"`            // objects allocated by Go
	Packets int64 `json:"packets,omitempty"` // sent, acknowledgements included
	Repeats int64 `json:"repeats"`           // packets sent again, those of the warm-up included
	RNRNAKs int64 `json:"rnr_naks"`          // each has packets sent again, for want of receives and not for loss
}

// Values returns the values of the cells that did not fail.
func (s *Series) Values() (values []float64) {
	for _, c := range s.Cells {
		if c.Failed == "" {
			values = append(values, c.Value)
		}
	}
	return values
}

// Failures returns how many cells failed, and why the last of them did.
func (s *Series) Failures() (n int, cause string) {
	for _, c := range s.Cells {
		if c.Failed != "" {
			n, cause = n+1, c.Failed
		}
	}
	return n, cause
}

// Counts sums the counts of all cells. ok is false if no cell has any.
func (s *Series) Counts() (sum Counts, ops int64, ok bool) {
	for _, c := range s.Cells {
		if c.Counts != nil {
			ok = true
			ops += c.Ops
			sum.Allocs += c.Counts.Allocs
			sum.Packets += c.Counts.Packets
			sum.Repeats += c.Counts.Repeats
			sum.RNRNAKs += c.Counts.RNRNAKs
		}
	}
	return sum, ops, ok
}

// Cores returns how many cores the client and the server kept busy: the medians of the cells that tell. ok is false
// if none does.
func (s *Series) Cores() (client, server float64, ok bool) {
	var c, v []float64
	for _, cell := range s.Cells {
		if cell.CPU != nil && cell.Failed == "" && cell.Seconds > 0 {
			c, v = append(c, cell.CPU.Client/cell.Seconds), append(v, cell.CPU.Server/cell.Seconds)
		}
	}
	return NewSpread(c).Median, NewSpread(v).Median, len(c) > 0
}

// IsLimit reports whether a series is a bound of its row that no other series has beaten. One that is beaten in the
// median of the rounds is no limit, whatever it was meant to be.
func (r *Row) IsLimit(s *Series) bool {
	if !s.Bound || len(s.Values()) == 0 {
		return false
	}
	for i := range r.Series {
		o := &r.Series[i]
		if o.Bound {
			continue
		}
		ratio := o.Ratios(s)
		if ratio.N > 0 && (r.Workload.Unit == Seconds && ratio.Median < 1 || r.Workload.Unit != Seconds && ratio.Median > 1) {
			return false
		}
	}
	return true
}

// Label is the title of a series in its row.
func (r *Row) Label(s *Series) string {
	if r.IsLimit(s) {
		return s.Title + " (limit)"
	}
	return s.Title
}

// RepeatsText writes the packets that were sent again, such as "7" or "7 (2 RNR NAKs)".
func (c *Counts) RepeatsText() string {
	if c.RNRNAKs == 0 {
		return fmt.Sprint(c.Repeats)
	}
	return fmt.Sprintf("%d (%d RNR NAKs)", c.Repeats, c.RNRNAKs)
}

// Plain is the peer that is ours as "go install" builds it, without a profile for the compiler.
const Plain = "adverb_plain"

// Find returns the series of a peer, or nil.
func (r *Row) Find(peer string) *Series {
	for i := range r.Series {
		if r.Series[i].Peer == peer {
			return &r.Series[i]
		}
	}
	return nil
}
