package main

import (
	"fmt"
	"strings"

	"github.com/adverb-rdma/adverb/internal/benchdata"
)

// ours is the peer that the others are compared with.
const ours = "adverb"

const introduction = `# Benchmarks

` + "`make benchmarks`" + ` wrote this page. ` + "`adverb bench --help`" + ` says what is measured, and ` + "`adverb bench`" + `
measures it on your machine. The figures are those of one machine at one hour: only ratios within a
round mean something elsewhere. Each value is the median of the rounds, with the least and the
greatest in parentheses. The two ends are processes of their own in every case.

**probe** is the limit for any stack over UDP sockets: it sends and receives trains of packets,
computes and verifies their ICRCs, and puts the payload into its place. It has no protocol, so
nothing that speaks RoCEv2 in this way can be faster. Of latencies less is better, and so a ratio
below 1.
`

// markdown is the page.
func markdown(r *benchdata.Report) string {
	var b strings.Builder
	b.WriteString(introduction)
	h := &r.Host
	fmt.Fprintf(&b, "\n| | |\n|---|---|\n")
	for _, row := range [][2]string{
		{"measured", r.Started.Format("2006-01-02 15:04 MST")},
		{"adverb", h.Revision},
		{"machine", fmt.Sprintf("%s, %d CPUs, %s", h.CPU, h.CPUs, h.Arch)},
		{"system", strings.TrimSpace(h.OS + " " + h.Kernel + ", " + h.Go)},
		{"rounds", fmt.Sprintf("%d, with %g s for each measurement", r.Rounds, r.Seconds)},
		{"cores of server and client", r.CPUs},
	} {
		if row[1] != "" {
			fmt.Fprintf(&b, "| %s | %s |\n", row[0], row[1])
		}
	}
	for i := range r.Networks {
		writeNetwork(&b, &r.Networks[i])
	}
	return b.String()
}

func writeNetwork(b *strings.Builder, n *benchdata.Network) {
	fmt.Fprintf(b, "\n## %s\n\n%s", n.Name, n.Title)
	if n.MTU > 0 {
		fmt.Fprintf(b, ", MTU %d", n.MTU)
	}
	b.WriteString(".\n")
	if n.Skipped != "" {
		fmt.Fprintf(b, "Not measured: %s.\n", cell(n.Skipped))
		return
	}
	if d := benchdata.NewSpread(n.Distance); d.Median > 0 {
		fmt.Fprintf(b, "A cache line takes %.0f ns from core to core (%.0f–%.0f over the rounds).\n", d.Median, d.Min, d.Max)
	}
	for i := range figures {
		f := &figures[i]
		if len(f.rows(n)) > 0 {
			fmt.Fprintf(b, "\n![%s over %s](%s/%s)\n", f.name, n.Name, plotDir, f.file(n))
		}
	}
	for i := range n.Rows {
		writeRow(b, &n.Rows[i])
	}
}

// writeRow writes a workload, with a line for each peer.
func writeRow(b *strings.Builder, r *benchdata.Row) {
	fmt.Fprintf(b, "\n### %s\n\n| | median | adverb ÷ it | |\n|---|---|---|---|\n", r.Workload.Label())
	our := r.Find(ours)
	for i := range r.Series {
		s := &r.Series[i]
		if s.Missing == "" && len(s.Cells) == 0 {
			continue
		}
		value, ratio := "", ""
		if spread := benchdata.NewSpread(s.Values()); spread.N > 0 {
			value = fmt.Sprintf("%s (%s)", r.Workload.Unit.Format(spread.Median), r.Workload.Unit.FormatRange(spread))
		}
		if our != nil && s.Peer != ours {
			ratio = benchdata.FormatRatio(our.Ratios(s))
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s |\n", s.Title, value, ratio, cell(remarks(s)))
	}
}

// remarks are what there is to say about a series beside its values.
func remarks(s *benchdata.Series) string {
	if s.Missing != "" {
		return s.Missing
	}
	var list []string
	if n, cause := s.Failures(); n > 0 {
		list = append(list, fmt.Sprintf("failed in %d of %d rounds: %s", n, len(s.Cells), cause))
	}
	if sum, ops, ok := s.Counts(); ok && ops > 0 {
		if s.Peer == ours {
			list = append(list, fmt.Sprintf("%.2f packets an operation, sent again: %s", float64(sum.Packets)/float64(ops), sum.RepeatsText()))
		}
		list = append(list, fmt.Sprintf("%.2f allocations an operation", float64(sum.Allocs)/float64(ops)))
	}
	if s.Note != "" {
		list = append(list, s.Note)
	}
	return strings.Join(list, "; ")
}

// cell makes text fit into a table.
func cell(s string) string { return strings.NewReplacer("\n", " ", "|", `\|`).Replace(s) }
