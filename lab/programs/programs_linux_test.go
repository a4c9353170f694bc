package programs

import (
	"context"
	"strings"
	"syscall"
	"testing"
)

// end is how one end of a row runs.
type end int

const (
	none end = iota
	run      // the program under adverb run
	tool     // the tool's command
)

func TestPrograms(t *testing.T) {
	needTree(t)
	for _, f := range table {
		for _, r := range f.rows {
			t.Run(strings.ReplaceAll(r.program+" "+r.args+" "+r.client, " ", "_"), func(t *testing.T) {
				switch {
				case r.port == 0:
					r.try(t, none, run)
				case r.tool == "":
					r.try(t, run, run)
				default:
					t.Run("server", func(t *testing.T) { r.try(t, run, tool) })
					t.Run("client", func(t *testing.T) { r.try(t, tool, run) })
					t.Run("both", func(t *testing.T) { r.try(t, run, run) })
				}
			})
		}
	}
}

// argv returns the command line of an end. Our tool calls a device rxe_eth0 soft_eth0.
func (r row) argv(as end, more ...string) []string {
	args := append(strings.Fields(r.args), more...)
	if as == run {
		return append([]string{adverb, "run", r.program}, args...)
	}
	for i, a := range args {
		if name, ok := strings.CutPrefix(a, "rxe_"); ok {
			args[i] = "soft_" + name
		}
	}
	return append([]string{adverb, r.tool}, args...)
}

// try runs a row's program, with a server first if there is one.
func (r row) try(t *testing.T, server, client end) {
	leavesNothing(t, strings.Fields(r.leaves)...)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	env := strings.Fields(r.env)
	var ends []*process
	var more []string
	if server != none {
		p := start(ctx, t, env, r.argv(server)...)
		ends = append(ends, p)
		if err := p.listens(ctx, r.port); err != nil {
			t.Fatalf("%v\n%s", err, p.report())
		}
		more = append([]string{address}, strings.Fields(r.client)...)
	}
	last := start(ctx, t, env, r.argv(client, more...)...)
	if r.until != "" {
		if err := last.output.await(ctx, r.until); err != nil {
			t.Fatalf("%v\n%s", err, last.report())
		}
		if err := last.signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	last.wait()
	told := last // the end that prints
	if r.stays {
		// Of two ends that are refused, one tells, and the other may get no more than the beginning of that.
		if r.fails && !strings.Contains(last.output.String(), r.prints) {
			told = ends[0]
			if err := told.output.await(ctx, r.prints); err != nil {
				t.Errorf("the server: %v", err)
			}
		}
		if err := ends[0].signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	ends = append(ends, last)
	for _, p := range ends {
		p.wait()
	}
	for _, p := range ends {
		killed := p == last && r.until != "" || p != last && r.stays
		switch {
		case ctx.Err() != nil:
			t.Errorf("not over after %v", patience)
		case killed && p.status.Signal == syscall.SIGTERM.String():
			continue
		case killed:
			t.Errorf("want an end by %v", syscall.SIGTERM)
		case p.status.Signal != "" || (p.status.Code != 0) != r.fails:
			t.Errorf("want an exit status that is 0: %v", !r.fails)
		case p == told && !strings.Contains(p.output.String(), r.prints):
			t.Errorf("want %q in the output", r.prints)
		default:
			continue
		}
		for _, p := range ends {
			t.Log(p.report())
		}
		return
	}
}
