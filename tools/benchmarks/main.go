// Command benchmarks writes docs/BENCHMARKS.md and its plots from what "adverb bench --json" printed:
//
//	benchmarks data.json docs
//
// With -charts it draws what a test has recorded over time, into a directory:
//
//	benchmarks -charts charts.json docs/benchmarks
//
// It is a module of its own because nothing else needs its plotting library.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/adverb-rdma/adverb/internal/benchdata"
)

func main() {
	args, do := os.Args[1:], write
	if len(args) > 0 && args[0] == "-charts" {
		args, do = args[1:], writeCharts
	}
	if len(args) != 2 {
		fmt.Fprintln(os.Stderr, "Usage: benchmarks <data.json> <directory of BENCHMARKS.md>\n       benchmarks -charts <charts.json> <directory>")
		os.Exit(2)
	}
	if err := do(args[0], args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "benchmarks:", err)
		os.Exit(1)
	}
}

// plotDir is where the plots are, below the directory of BENCHMARKS.md.
const plotDir = "benchmarks"

// write writes all files into dir.
func write(data, dir string) error {
	b, err := os.ReadFile(data)
	if err != nil {
		return err
	}
	var r benchdata.Report
	if err := json.Unmarshal(b, &r); err != nil {
		return fmt.Errorf("read %s: %w", data, err)
	}
	if len(r.Networks) == 0 {
		return fmt.Errorf("read %s: there is no network in it: it must be what adverb bench --json printed", data)
	}
	if err := os.MkdirAll(filepath.Join(dir, plotDir), 0o777); err != nil {
		return err
	}
	for i := range r.Networks {
		if err := writePlots(&r.Networks[i], filepath.Join(dir, plotDir)); err != nil {
			return fmt.Errorf("plot %s: %w", r.Networks[i].Name, err)
		}
	}
	return os.WriteFile(filepath.Join(dir, "BENCHMARKS.md"), []byte(markdown(&r)), 0o666)
}
