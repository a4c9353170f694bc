package programs

import (
	"bytes"
	"cmp"
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// interrupted is the exit status of our tool after a signal that ends it in order.
const interrupted = 130

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
				if r.program == staticPath {
					needStatic(t)
				}
				switch {
				case !r.pair():
					r.try(t, none, run, mostAgain)
				case r.tool == "":
					r.try(t, run, run, mostAgain)
				default:
					t.Run("server", func(t *testing.T) { r.try(t, run, tool, mostAgain) })
					t.Run("client", func(t *testing.T) { r.try(t, tool, run, mostAgain) })
					t.Run("both", func(t *testing.T) { r.try(t, run, run, mostAgain) })
				}
			})
		}
	}
}

// argv returns the command line of an end, whose program has a name and arguments. Our tool calls a device rxe_eth0
// soft_eth0.
func (r row) argv(as end, program, args string) []string {
	list := strings.Fields(strings.ReplaceAll(args, "ADDR", address))
	switch {
	case as == run && r.ready != "": // a C program's lines come late without a terminal
		return append([]string{adverb, "run", "stdbuf", "-oL", program}, list...)
	case as == run:
		return append([]string{adverb, "run", program}, list...)
	}
	for i, a := range list {
		if name, ok := strings.CutPrefix(a, "rxe_"); ok {
			list[i] = "soft_" + name
		}
	}
	return append([]string{adverb, r.tool}, list...)
}

// serverArgv returns the server's command line, or that of the program that is alone.
func (r row) serverArgv(as end) []string {
	args := r.args + " " + r.server
	if as == tool {
		args += " " + r.toolServer
	}
	return r.argv(as, r.program, args)
}

// clientArgv returns the client's command line.
func (r row) clientArgv(as end) []string {
	args := r.args + " ADDR " + r.client
	if strings.Contains(r.client, "ADDR") || r.ready != "" {
		args = r.args + " " + r.client
	}
	return r.argv(as, cmp.Or(r.peer, r.program), args)
}

// awaitServer waits until a server is ready for its client.
func (r row) awaitServer(ctx context.Context, p *process) error {
	switch {
	case r.port != 0:
		return p.listens(ctx, r.port)
	case r.cm != 0:
		return p.listensCM(ctx, r.cm)
	}
	return p.prints(ctx, r.ready)
}

// mostAgain is how often a pair is run again whose client came too early.
const mostAgain = 3

// try runs a row's program, with a server first if there is one. again is how often it may be run again.
func (r row) try(t *testing.T, server, client end, again int) {
	leavesNothing(t, strings.Fields(r.leaves)...)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	env := strings.Fields(r.env)
	var ends []*process
	argv := r.serverArgv(client)
	if server != none {
		p := start(ctx, t, env, r.serverArgv(server)...)
		ends = append(ends, p)
		if err := r.awaitServer(ctx, p); err != nil {
			t.Fatalf("%v\n%s", err, p.report())
		}
		argv = r.clientArgv(client)
	}
	for range r.clients - 1 {
		p := start(ctx, t, env, argv...)
		ends = append(ends, p)
		if server != tool {
			p.wait()
		}
	}
	last := start(ctx, t, env, argv...)
	if r.until != "" {
		if err := last.output.await(ctx, r.until); err != nil {
			t.Fatalf("%v\n%s", err, last.report())
		}
		if err := last.signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	last.wait()
	if r.early != "" && strings.Contains(last.output.String(), r.early) && again > 0 {
		t.Logf("the client came before the server listened for it (%s): once more", r.early)
		if err := ends[0].signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		ends[0].wait()
		r.try(t, server, client, again-1)
		return
	}
	if s := last.status; s.Code != 0 && s.Signal == "" && !r.fails && r.until == "" {
		for _, p := range ends { // which may wait for such a client for ever
			_ = p.signal(syscall.SIGTERM)
		}
	}
	told := last // the end that prints
	for _, p := range ends[min(1, len(ends)):] {
		p.wait()
	}
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
		killed := p == last && r.until != "" || p == ends[0] && r.stays
		ended := killed && p.status.Signal == syscall.SIGTERM.String()
		if killed && server == tool { // our tool goes in order
			ended = ended || p.status.Signal == "" && (p.status.Code == 0 || p.status.Code == interrupted)
		}
		switch {
		case ctx.Err() != nil:
			t.Errorf("not over after %v", patience)
		case ended:
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
	if r.copyOf != "" {
		root := os.Getenv(treeEnv)
		want, err := os.ReadFile(filepath.Join(root, r.copyOf))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(root, r.leaves)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("the copy: got %d bytes and error %v, want the %d of %s", len(got), err, len(want), r.copyOf)
		}
	}
}
