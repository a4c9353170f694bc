package adverb_test

import (
	"go/ast"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// The wall clock jumps: somebody sets it, or a virtual machine goes on after a pause. So nothing is
// decided by it. Values of time.Now hold the monotonic clock too, and Sub, Before and After use that,
// unless it has been taken off. These methods of time.Time take it off, or give the wall clock out. By its
// name alone Round of a duration is caught too: it is for texts, which is why tools are exempt.
var wallClock = []string{"Unix", "UnixMilli", "UnixMicro", "UnixNano", "UTC", "Local", "In", "Round", "Truncate", "AppendFormat", "Clock", "Date", "YearDay"}

// systemClocks are how the system is asked for the wall clock, and what asks it to wait by it.
var systemClocks = []string{"CLOCK_REALTIME", "CLOCK_REALTIME_COARSE", "Gettimeofday", "Time", "ClockGettime", "TIMER_ABSTIME", "TFD_TIMER_CANCEL_ON_SET"}

// wallClockReaders are the packages that may show the wall clock to people or write it into files.
var wallClockReaders = []string{"internal/link/trace/", "internal/link/pcap/", "internal/showpackets/", "internal/mutants/", "cmd/", "lab/", "tools/", "examples/", "adverbprom/"}

func TestNoWallClock(t *testing.T) {
	seen := 0
	goFiles(t, func(name string, fset *token.FileSet, f *ast.File) {
		if isTestCode(name, f) || slices.ContainsFunc(wallClockReaders, func(p string) bool { return strings.HasPrefix(name, p) }) {
			return
		}
		seen++
		clock := importName(f, "time")
		system := importName(f, "golang.org/x/sys/unix")
		ast.Inspect(f, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok && system != "" && isSelector(call.Fun, system, "ClockGettime") && isSelector(call.Args[0], system, "CLOCK_MONOTONIC") {
				return false // a time that processes tell each other
			}
			if sel, ok := n.(*ast.SelectorExpr); ok && system != "" && slices.ContainsFunc(systemClocks, func(name string) bool { return isSelector(sel, system, name) }) {
				t.Errorf("%v: %s.%s is about the wall clock, which jumps. Decide by time.Since, Sub, Before and After", fset.Position(n.Pos()), system, sel.Sel.Name)
			}
			call, ok := n.(*ast.CallExpr)
			if !ok || clock == "" {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || !slices.Contains(wallClock, sel.Sel.Name) || isSelector(sel, clock, sel.Sel.Name) { // time.Unix makes a time
				return true
			}
			t.Errorf("%v: %s uses the wall clock, which jumps. Decide by time.Since, Sub, Before and After", fset.Position(n.Pos()), sel.Sel.Name)
			return true
		})
	})
	if seen < 100 {
		t.Errorf("%d files were read, want all of the module", seen)
	}
}
