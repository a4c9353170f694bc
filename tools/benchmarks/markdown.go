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
greatest in parentheses. The two ends are processes of their own, but for memcpy, which is two
threads of one process at most. Of latencies less is better, and so a ratio below 1.

**probe** does the least that a stack over UDP sockets must do: it sends and receives trains of
packets, computes and verifies their ICRCs, and puts the payload into its place. It has no protocol.
**memcpy** copies as much memory as adverb walks, from and to regions of the same size. Either is
called a limit in the rows where nothing has beaten it in the median.

**cores** is the CPU time of the client and of the server, divided by the time that was measured. An
end that polls has 1. In the rows "in a call that may sleep" both ends wait for a message by a call
of their library. Some spin before they sleep, and the cores tell: adverb does so for up to 200 µs,
and **adverb, sleeping at once** does not (` + "`ADVERB_SPIN=0`" + `). Of programs that say nothing of CPU
time it is what the whole process took, less what it took for a few operations.
`

const profileText = `
**adverb** is built with a profile for the compiler (` + "`-pgo=deploy/adverb.pgo`" + `), as the released
programs are. ` + "`go install`" + ` does not take it: the column "no profile ÷ it" is that of **adverb, no
profile**, which is the same source built without.
`

// markdown is the page.
func markdown(r *benchdata.Report) string {
	var b strings.Builder
	b.WriteString(introduction)
	if hasPlain(r) {
		b.WriteString(profileText)
	}
	h := &r.Host
	fmt.Fprintf(&b, "\n| | |\n|---|---|\n")
	for _, row := range [][2]string{
		{"measured", r.Started.Format("2006-01-02 15:04 MST")},
		{"adverb", strings.TrimPrefix(h.Revision+", "+h.ProfileText(), ", ")},
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

// hasPlain reports whether an adverb without a profile was measured.
func hasPlain(r *benchdata.Report) bool {
	for i := range r.Networks {
		for j := range r.Networks[i].Rows {
			if s := r.Networks[i].Rows[j].Find(benchdata.Plain); s != nil && len(s.Values()) > 0 {
				return true
			}
		}
	}
	return false
}

// writeRow writes a workload, with a line for each peer. Where an adverb without a profile was measured, it has a column.
func writeRow(b *strings.Builder, r *benchdata.Row) {
	our, without := r.Find(ours), r.Find(benchdata.Plain)
	if without != nil && len(without.Cells) == 0 {
		without = nil
	}
	column := func(text string) string {
		if without == nil {
			return ""
		}
		return text
	}
	fmt.Fprintf(b, "\n### %s\n\n| | median | adverb ÷ it |%s cores | |\n|---|---|---|%s---|---|\n", r.Workload.Label(), column(" no profile ÷ it |"), column("---|"))
	for i := range r.Series {
		s := &r.Series[i]
		if s.Missing == "" && len(s.Cells) == 0 {
			continue
		}
		value, ratio, plain := "", "", ""
		if spread := benchdata.NewSpread(s.Values()); spread.N > 0 {
			value = fmt.Sprintf("%s (%s)", r.Workload.Unit.Format(spread.Median), r.Workload.Unit.FormatRange(spread))
		}
		if our != nil && s.Peer != ours {
			ratio = benchdata.FormatRatio(our.Ratios(s))
		}
		if without != nil && s.Peer != benchdata.Plain {
			plain = benchdata.FormatRatio(without.Ratios(s))
		}
		fmt.Fprintf(b, "| %s | %s | %s |%s %s | %s |\n", r.Label(s), value, ratio, column(" "+plain+" |"), s.CoresText(), cell(remarks(s)))
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
