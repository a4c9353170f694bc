package lab

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/rdmacm"
)

var cmtimeLines = regexp.MustCompile(`^creating id
resolving address
resolving route
creating qp
connecting
disconnecting
destroying id
step              total ms     max ms     min us  us / conn
((create id|resolve addr|resolve route|create qp|connect|disconnect|destroy) *:( +[0-9]+\.[0-9]{2}){4}
){7}$`)

func TestCmtime(t *testing.T) {
	needLab(t)
	cmRows("cmtime", func(s scenario) {
		s.variant = "-c 50"
		if s.v6 && cmtimeSynchronises() {
			s.leftOut = "cmtime of rdma-core 52 to 58 finds its peer over IPv4 only"
		}
		s.run(t, func(ctx context.Context, t *testing.T, l *Lab) { runCmtime(ctx, t, l, s) })
	})
}

func runCmtime(ctx context.Context, t *testing.T, l *Lab, s scenario) {
	t.Helper()
	at := cmPort{rdmacm.PortSpaceTCP, nextPort()}
	server, client := s.sides(l)
	synchronises := func(side Side) bool {
		_, ours := side.(ourSide)
		return !ours && cmtimeSynchronises()
	}
	serve := []string{"-p", at.port, "-b", anyAddr(s.v6)}
	if synchronises(server) { // the server serves one client, which makes as many connections
		serve = append(serve, strings.Fields(s.variant)...)
	}
	srv := s.startCM(ctx, t, server, at, cmArgv(server, "cmtime", serve...)...)
	args := append(strings.Fields(s.variant), "-p", at.port, "-s", server.Addr(s.v6).String())
	cli := start(ctx, t, client, cmArgv(client, "cmtime", args...)...)
	if synchronises(server) {
		left := finish(t, srv, cli)
		checkCmtimeRounds(t, srv, left[0])
		checkCmtimeTable(t, cli, left[1])
		return
	}
	left := finish(t, cli)[0]
	if synchronises(client) {
		checkCmtimeRounds(t, cli, left)
	} else {
		checkCmtimeTable(t, cli, left)
	}
	interrupt(t, srv)
	if out := srv.stdout.String(); out != "" {
		t.Errorf("the server prints %q, want nothing", out)
	}
}

// cmtimeSynchronises reports whether the guests' cmtime is of rdma-core 52 to 58. Its client and server
// wait for each other over TCP, and make three rounds.
func cmtimeSynchronises() bool {
	program, err := os.ReadFile(filepath.Join(os.Getenv(imageEnv), "root/usr/bin/cmtime"))
	return err == nil && bytes.Contains(program, []byte("Server warmup"))
}

// checkCmtimeRounds checks the output of such a cmtime: a warm-up, a table with QPs, and one without.
func checkCmtimeRounds(t *testing.T, p *Process, left Result) {
	t.Helper()
	out := left.Stdout
	for _, want := range []string{" warmup\n", "(50) QPs test\n", "qp_conn                50\n", "(50) test - no QPs\n", "cm_conn                50\n"} {
		var ok bool
		if _, out, ok = strings.Cut(out, want); !ok {
			t.Errorf("want stdout with %q at its place, and no stderr; got\n%s", want, p.Report())
			return
		}
	}
	if left.Stderr != "" {
		t.Errorf("want no stderr; got\n%s", p.Report())
	}
}

func checkCmtimeTable(t *testing.T, cli *Process, left Result) {
	t.Helper()
	if !cmtimeLines.MatchString(left.Stdout) || left.Stderr != "" {
		t.Errorf("want no stderr, and stdout that matches %q; got\n%s", cmtimeLines, cli.Report())
	}
}
