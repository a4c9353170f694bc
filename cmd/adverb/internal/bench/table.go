package bench

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/adverb-rdma/adverb/internal/benchdata"
)

// printReport prints a table for each network.
func printReport(w io.Writer, r *benchdata.Report) {
	h := &r.Host
	fmt.Fprintf(w, "%s, %d CPUs, %s %s, %s; adverb %s, %s\n", or(h.CPU, h.Arch), h.CPUs, h.OS, h.Kernel, h.Go, or(h.Revision, "of unknown revision"), h.ProfileText())
	fmt.Fprintf(w, "%d rounds, %g s for each measurement; ratios are taken within the rounds; of latencies less is better\n", r.Rounds, r.Seconds)
	if r.CPUs != "" {
		fmt.Fprintf(w, "server and client pinned to cores %s\n", r.CPUs)
	}
	for i := range r.Networks {
		printNetwork(w, &r.Networks[i])
	}
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

func printNetwork(w io.Writer, n *benchdata.Network) {
	fmt.Fprintf(w, "\n%s: %s", n.Name, n.Title)
	if n.MTU > 0 {
		fmt.Fprintf(w, ", MTU %d", n.MTU)
	}
	if n.Skipped != "" {
		fmt.Fprintf(w, "\nnot measured: %s\n", n.Skipped)
		return
	}
	fmt.Fprintf(w, "\nfrom core to core, round by round: %s\n\n", distances(n.Distance))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "WORKLOAD\tPEER\tMEDIAN\tMIN–MAX\tADVERB ÷ PEER\tNO PROFILE ÷ PEER\tCORES\tPACKETS/OP\tREPEATS\tALLOCS/OP\tNOTE")
	for i := range n.Rows {
		printRow(t, &n.Rows[i])
	}
	t.Flush()
}

// distances writes the time of a cache line in each round.
func distances(ns []float64) string {
	var list []string
	for _, d := range ns {
		if d == 0 {
			return "not measured (one core)"
		}
		list = append(list, fmt.Sprintf("%.0f", d))
	}
	return strings.Join(list, ", ") + " ns"
}

func printRow(w io.Writer, row *benchdata.Row) {
	title := row.Workload.Label()
	our, without := row.Find(ours), row.Find(plain)
	for i := range row.Series {
		s := &row.Series[i]
		if s.Missing == "" && len(s.Cells) == 0 {
			continue // the peer has nothing like this workload
		}
		spread := benchdata.NewSpread(s.Values())
		median, limits, ratio, plainRatio := "–", "", "", ""
		if spread.N > 0 {
			median, limits = row.Workload.Unit.Format(spread.Median), row.Workload.Unit.FormatRange(spread)
		}
		if our != nil && s.Peer != ours {
			ratio = benchdata.FormatRatio(our.Ratios(s))
		}
		if without != nil && s.Peer != plain {
			plainRatio = benchdata.FormatRatio(without.Ratios(s))
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n",
			title, row.Label(s), median, limits, ratio, plainRatio, s.CoresText(), countTexts(s), note(s))
		title = ""
	}
}

// countTexts writes the counters of a series, for three columns. Only our own protocol counts packets.
func countTexts(s *benchdata.Series) string {
	sum, ops, ok := s.Counts()
	if !ok || ops == 0 {
		return "\t\t"
	}
	packets := "\t"
	if s.Peer == ours {
		packets = fmt.Sprintf("%.2f\t%s", float64(sum.Packets)/float64(ops), sum.RepeatsText())
	}
	return fmt.Sprintf("%s\t%.2f", packets, float64(sum.Allocs)/float64(ops))
}

// note returns the note on a series: why it is missing, its failures, and its differences.
func note(s *benchdata.Series) string {
	if s.Missing != "" {
		return s.Missing
	}
	var notes []string
	if n, cause := s.Failures(); n > 0 {
		notes = append(notes, fmt.Sprintf("failed in %d of %d rounds: %s", n, len(s.Cells), strings.ReplaceAll(cause, "\n", "; ")))
	}
	if s.Note != "" {
		notes = append(notes, s.Note)
	}
	return strings.Join(notes, "; ")
}
