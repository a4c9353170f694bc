package bench

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/internal/benchdata"
)

// runPath measures a table over a bad path, and prints it as Markdown.
func (s *settings) runPath(inv *cli.Invocation) int {
	report, err := s.measurePath(inv.Ctx, inv.Stderr)
	if err != nil {
		return inv.Finish(err, func(err error) int { return inv.Fail(err, "") })
	}
	if s.json {
		return inv.PrintJSON(report)
	}
	printPath(inv.Stdout, report)
	return cli.ExitOK
}

// printPath prints a table. Values are the medians of the rounds.
func printPath(w io.Writer, r *pathReport) {
	var worst, p99 time.Duration
	for i := range r.Rows {
		row := &r.Rows[i]
		for _, p := range row.Paths {
			worst, p99 = max(worst, p.Late.Max), max(p99, p.Late.P99)
		}
		if i == 0 {
			printPathHead(w, row)
		}
		printPathRow(w, row, r.whole(i))
	}
	fmt.Fprintf(w, "\n%s, %s, %d CPUs, %s; adverb %s. Medians of %d rounds of %g s. The emulator was late by %v at most with 99 %% of the packets, and by %v with the last.\n",
		r.Started.Format(time.DateOnly), "Linux "+r.Host.Kernel, r.Host.CPUs, r.Host.Go, or(r.Host.Revision, "of unknown revision"), r.Rounds, r.Seconds, p99, worst)
}

// whole returns the row whose path is like that of row i, and loses nothing.
func (r *pathReport) whole(i int) *pathRow {
	for j := range r.Rows {
		if c := &r.Rows[j].Config; c.Loss == 0 && c.LateOneIn == 0 && c.Delay == r.Rows[i].Config.Delay {
			return &r.Rows[j]
		}
	}
	return &r.Rows[i]
}

func printPathHead(w io.Writer, row *pathRow) {
	head := append([]string{""}, row.Flows...)
	if row.Together {
		head = []string{"", "first", "second", "first ÷ second", "queue"}
	}
	fmt.Fprintf(w, "| %s |\n|%s\n", strings.Join(head, " | "), strings.Repeat("---|", len(head)))
}

// median is that of one flow's rounds. ok is false if all failed.
func (row *pathRow) median(flow int) (v float64, ok bool) {
	s := benchdata.Series{Cells: row.Cells[flow]}
	spread := benchdata.NewSpread(s.Values())
	return spread.Median, spread.N > 0
}

func printPathRow(w io.Writer, row, whole *pathRow) {
	fmt.Fprintf(w, "| %s |", row.Name)
	for i := range row.Flows {
		v, ok := row.median(i)
		if !ok {
			fmt.Fprintf(w, " failed: %s |", row.Cells[i][len(row.Cells[i])-1].Failed)
			continue
		}
		fmt.Fprintf(w, " %.1f", v/1e6)
		if all, ok := whole.median(i); ok && !row.Together {
			fmt.Fprintf(w, " (%.2f)", v/all)
		}
		fmt.Fprint(w, " |")
	}
	if row.Together {
		longest := 0
		for _, p := range row.Paths {
			longest = max(longest, p.There.Longest)
		}
		ours, theirs := benchdata.Series{Cells: row.Cells[0]}, benchdata.Series{Cells: row.Cells[1]}
		fmt.Fprintf(w, " %s | %d |", benchdata.FormatRatio(ours.Ratios(&theirs)), longest>>10)
	}
	fmt.Fprintln(w)
}
