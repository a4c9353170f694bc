package adverb_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// A test that lets time pass is slow, and flaky too: on a busy machine no time is long enough. So
// tests wait for events. checkSleeps knows these uses of the clock as harmless:
//
//   - Inside synctest.Test the clock is simulated, and everything is allowed.
//   - A deadline: a case of a select which fails the test, or gives up by returning a value, while
//     another case waits for the event.
//   - A repetition: a case of a select which does something again, for example sends a datagram that
//     may have been lost, while one case waits for the event and another is a deadline.
//
// Everything else is a sleep: time.Sleep, a receive from a timer outside of a select, a case that
// is just left when the time has passed, time.AfterFunc. What must stay goes into sleepsThatStay.

// sleepsThatStay are the functions of tests that may sleep, by file and name, each with its reason.
var sleepsThatStay = map[[2]string]string{
	{"lab/verbsidle_linux_test.go", "silence"}:              "that nothing happens is what the scenario is about",
	{"internal/hca/congestiontable_test.go", "run"}:         "every run is inside synctest.Test",
	{"internal/hca/idle_unix_bench_test.go", "idle"}:        "that nothing happens is what is measured",
	{"internal/whole/world_test.go", "advance"}:             "every run is inside synctest.Test",
	{"cmd/adverb/internal/run/kills_linux_test.go", "pass"}: "the instant of a kill is random, and a number of open files offers no event",
	{"provider/soft/process_cm_linux_test.go", "heldAfter"}: "neither the number of goroutines nor that of open files offers an event",
}

// isTestCode reports whether a file is a test, or a package of tests such as a conformance suite.
func isTestCode(name string, f *ast.File) bool {
	return strings.HasSuffix(name, "_test.go") || importName(f, "testing") != ""
}

// A sleepCheck looks for sleeps in one top-level declaration.
type sleepCheck struct {
	time, synctest string          // the names of the imports
	simulated      map[string]bool // the functions that run inside synctest.Test by their names
	clocks         map[string]bool // the variables that hold a timer, a ticker or the channel of one
	harmless       map[ast.Node]bool
	fault          func(n ast.Node, what string)
}

// checkSleeps returns the places where a test sleeps, by the function that each is in.
func checkSleeps(fset *token.FileSet, f *ast.File) (faults map[string][]string) {
	c := sleepCheck{time: importName(f, "time"), synctest: importName(f, "testing/synctest"), simulated: map[string]bool{}}
	if c.time == "" {
		return nil
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && c.synctest != "" && isSelector(call.Fun, c.synctest, "Test") {
			for _, arg := range call.Args {
				if name, ok := arg.(*ast.Ident); ok {
					c.simulated[name.Name] = true
				}
			}
		}
		return true
	})
	faults = map[string][]string{}
	for _, decl := range f.Decls {
		name := ""
		if fn, ok := decl.(*ast.FuncDecl); ok {
			if name = fn.Name.Name; c.simulated[name] {
				continue
			}
		}
		c.fault = func(n ast.Node, what string) {
			faults[name] = append(faults[name], fmt.Sprintf("%v: a test sleeps: %s. Wait for the event, or simulate the clock by synctest.Test",
				fset.Position(n.Pos()), what))
		}
		c.check(decl)
	}
	return faults
}

func (c *sleepCheck) check(decl ast.Decl) {
	c.clocks, c.harmless = map[string]bool{}, map[ast.Node]bool{}
	c.inspect(decl, c.findClocks)
	c.inspect(decl, c.findHarmless)
	c.inspect(decl, c.findSleeps)
}

// inspect calls visit for all nodes but those inside synctest.Test.
func (c *sleepCheck) inspect(decl ast.Decl, visit func(ast.Node)) {
	ast.Inspect(decl, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && c.synctest != "" && isSelector(call.Fun, c.synctest, "Test") {
			return false
		}
		visit(n)
		return true
	})
}

// findClocks takes note of the variables to which timers are assigned.
func (c *sleepCheck) findClocks(n ast.Node) {
	assign := func(names []ast.Expr, values []ast.Expr) {
		if len(names) != len(values) {
			return
		}
		for i, v := range values {
			if name, ok := names[i].(*ast.Ident); ok && c.makesClock(v) {
				c.clocks[name.Name] = true
				c.harmless[v] = true // what is done with it decides
			}
		}
	}
	switch n := n.(type) {
	case *ast.AssignStmt:
		assign(n.Lhs, n.Rhs)
	case *ast.ValueSpec:
		names := make([]ast.Expr, len(n.Names))
		for i := range names {
			names[i] = n.Names[i]
		}
		assign(names, n.Values)
	}
}

// makesClock reports whether an expression is a new timer, ticker or channel of one.
func (c *sleepCheck) makesClock(e ast.Expr) bool {
	call, ok := e.(*ast.CallExpr)
	return ok && slices.ContainsFunc([]string{"After", "Tick", "NewTimer", "NewTicker"}, func(name string) bool {
		return isSelector(call.Fun, c.time, name)
	})
}

// clockOf returns the timer whose channel an expression is, nil if it is another channel.
func (c *sleepCheck) clockOf(e ast.Expr) ast.Expr {
	if sel, ok := e.(*ast.SelectorExpr); ok && sel.Sel.Name == "C" {
		e = sel.X
	}
	if name, ok := e.(*ast.Ident); ok && c.clocks[name.Name] || c.makesClock(e) {
		return e
	}
	return nil
}

// findHarmless takes note of the deadlines and repetitions in selects.
func (c *sleepCheck) findHarmless(n ast.Node) {
	sel, ok := n.(*ast.SelectStmt)
	if !ok {
		return
	}
	event, deadline := false, false
	var timed []*ast.CommClause
	for _, s := range sel.Body.List {
		clause := s.(*ast.CommClause)
		switch recv := receive(clause.Comm); {
		case recv != nil && c.clockOf(recv.X) != nil:
			timed = append(timed, clause)
			deadline = deadline || givesUp(clause.Body)
		case clause.Comm != nil: // else it is the default
			event = true
		}
	}
	for _, clause := range timed {
		if event && (givesUp(clause.Body) || deadline && len(clause.Body) > 0) {
			recv := receive(clause.Comm)
			c.harmless[recv] = true
			c.harmless[c.clockOf(recv.X)] = true
		}
	}
}

// receive returns the receive operation of a select's case, nil if it has none.
func receive(s ast.Stmt) *ast.UnaryExpr {
	var e ast.Expr
	switch s := s.(type) {
	case *ast.ExprStmt:
		e = s.X
	case *ast.AssignStmt:
		e = s.Rhs[0]
	}
	recv, _ := e.(*ast.UnaryExpr)
	return recv
}

// givesUp reports whether statements fail the test, skip it, or return a value.
func givesUp(body []ast.Stmt) (found bool) {
	for _, s := range body {
		ast.Inspect(s, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncLit:
				return false
			case *ast.ReturnStmt:
				found = found || len(n.Results) > 0
			case *ast.CallExpr:
				switch fun := n.Fun.(type) {
				case *ast.Ident:
					found = found || fun.Name == "panic"
				case *ast.SelectorExpr:
					found = found || slices.Contains([]string{"Fatal", "Fatalf", "FailNow", "Error", "Errorf", "Fail", "Skip", "Skipf", "SkipNow", "Exit"}, fun.Sel.Name)
				}
			}
			return true
		})
	}
	return found
}

func (c *sleepCheck) findSleeps(n ast.Node) {
	switch n := n.(type) {
	case *ast.SelectorExpr:
		for _, name := range []string{"Sleep", "AfterFunc"} {
			if isSelector(n, c.time, name) {
				c.fault(n, "time."+name)
			}
		}
	case *ast.UnaryExpr:
		if clock := c.clockOf(n.X); n.Op == token.ARROW && clock != nil && !c.harmless[n] {
			c.harmless[clock] = true // one fault is enough
			c.fault(n, "it receives from a timer, and not as the deadline of an event")
		}
	case *ast.RangeStmt:
		if clock := c.clockOf(n.X); clock != nil {
			c.harmless[clock] = true
			c.fault(n, "it receives from a timer in a loop")
		}
	case *ast.CallExpr:
		if c.makesClock(n) && !c.harmless[n] {
			c.fault(n, "a timer is handed on to where its use cannot be seen")
		}
	}
}

// isSelector reports whether an expression is pkg.name.
func isSelector(e ast.Expr, pkg, name string) bool {
	sel, ok := e.(*ast.SelectorExpr)
	if !ok || sel.Sel.Name != name {
		return false
	}
	x, ok := sel.X.(*ast.Ident)
	return ok && x.Name == pkg
}

func TestSleeps(t *testing.T) {
	stayed := map[[2]string]bool{}
	goFiles(t, func(name string, fset *token.FileSet, f *ast.File) {
		if !isTestCode(name, f) {
			return
		}
		for function, faults := range checkSleeps(fset, f) {
			switch key := [2]string{name, function}; {
			case sleepsThatStay[key] != "":
				stayed[key] = true
			default:
				for _, fault := range faults {
					t.Error(fault)
				}
			}
		}
	})
	for key := range sleepsThatStay {
		if !stayed[key] {
			t.Errorf("%s: %s sleeps no more: take it off sleepsThatStay", key[0], key[1])
		}
	}
}

func TestCheckSleeps(t *testing.T) {
	const clock, bubble = `import "time"; `, `import ("testing"; "testing/synctest"; "time"); `
	tests := []struct{ src, want string }{
		{clock + `func f() { time.Sleep(1) }`, "x_test.go:1:"},
		{`import clock "time"; func f() { clock.Sleep(1) }`, "time.Sleep"},
		{clock + `func f(c clock) { c.Sleep(time.Second) }`, ""},
		{clock + `var sleep = time.Sleep`, "time.Sleep"},
		{clock + `func f() { time.AfterFunc(1, f) }`, "time.AfterFunc"},

		{clock + `func f() { <-time.After(1) }`, "not as the deadline"},
		{clock + `func f() { c := time.After(1); <-c }`, "not as the deadline"},
		{clock + `func f() { <-time.NewTimer(1).C }`, "not as the deadline"},
		{clock + `func f() { t := time.NewTimer(1); defer t.Stop(); <-t.C }`, "not as the deadline"},
		{clock + `func f() { var t = time.NewTicker(1); for range t.C {} }`, "in a loop"},
		{clock + `func f() { for range time.Tick(1) {} }`, "in a loop"},
		{clock + `func f() { g(time.After(1)) }`, "handed on"},

		// Deadlines.
		{clock + `func f() { select { case <-e: case <-time.After(1): t.Fatal() } }`, ""},
		{clock + `func f() { end := time.After(1); for { select { case v := <-e: case <-end: t.Errorf("late"); return } } }`, ""},
		{clock + `func f() bool { t := time.NewTimer(1); select { case <-e: return true; case <-t.C: return false } }`, ""},
		{clock + `func f() { for c := time.After(1); ; { select { case e <- 1: case <-c: panic("late") } } }`, ""},
		// Nothing else ends the wait, or the test goes on when the time has passed.
		{clock + `func f() { select { case <-time.After(1): t.Fatal() } }`, "not as the deadline"},
		{clock + `func f() { select { case <-time.After(1): t.Fatal(); default: } }`, "not as the deadline"},
		{clock + `func f() { select { case <-e: t.Fatal(); case <-time.After(1): } }`, "not as the deadline"},
		{clock + `func f() { for { select { case <-e: return; case <-time.After(1): g() } } }`, "not as the deadline"},
		{clock + `func f() { select { case <-e: case <-time.After(1): return } }`, "not as the deadline"},
		{clock + `func f() { select { case <-e: case <-time.After(1): go func() { t.Error() }() } }`, "not as the deadline"},

		// Repetitions.
		{clock + `func f() { a := time.NewTicker(1); for { select { case <-e: return; case <-a.C: g(); case <-time.After(9): t.Fatal() } } }`, ""},
		{clock + `func f() { a := time.NewTicker(1); for { select { case <-a.C: g(); case <-e: return } } }`, "not as the deadline"},
		{clock + `func f() { a := time.NewTicker(1); for { g(); select { case <-e: return; case <-a.C: case <-time.After(9): t.Fatal() } } }`, "not as the deadline"},

		{bubble + `func f(t *testing.T) { synctest.Test(t, func(t *testing.T) { <-time.After(1); time.Sleep(1) }) }`, ""},
		{bubble + `func f(t *testing.T) { synctest.Test(t, g) }; func g(t *testing.T) { <-time.After(1) }`, ""},
		{bubble + `func f(t *testing.T) { synctest.Test(t, func(t *testing.T) {}); time.Sleep(1) }`, "time.Sleep"},
	}
	for _, tt := range tests {
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, "x_test.go", "package p; "+tt.src, parser.SkipObjectResolution)
		if err != nil {
			t.Errorf("%s: %v", tt.src, err)
			continue
		}
		var faults []string
		for _, found := range checkSleeps(fset, f) {
			faults = append(faults, found...)
		}
		checkOne(t, tt.src, faults, tt.want)
	}
}
