package pingpong

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
)

// The devices of these tests, on addresses that no other test has.
const (
	serverDevice = "soft_lo@127.0.88.1"
	clientDevice = "soft_lo@127.0.88.2"
)

// runPair runs a server and a client of the program of that classic name.
func runPair(t *testing.T, prog, serverFlags, clientFlags string) (server, client tooltest.Result) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	port := tooltest.FreePort(t)
	args := func(name, dev, flags string) []string {
		return append([]string{name, "-p", port, "-d", dev}, strings.Fields(flags)...)
	}
	s := tool.Start(ctx, args(prog, serverDevice, serverFlags)...)
	c := tool.Start(ctx, append(args("/usr/bin/"+prog, clientDevice, clientFlags), "127.0.0.1")...)
	return <-s.Done, <-c.Done
}

// expected is the flags that two ends are run with, and their expected output.
type expected struct {
	flags string
	bytes int // both ways
	iters int
}

// checkRuns runs a program that prints sep in front of the GID in the line about its own end.
func checkRuns(t *testing.T, prog, sep string, runs []expected) {
	for _, r := range runs {
		t.Run(strings.ReplaceAll(r.flags, " ", ""), func(t *testing.T) {
			server, client := runPair(t, prog, r.flags, r.flags)
			checkRun(t, server, client, sep, 1, r)
		})
	}
}

func checkRun(t *testing.T, server, client tooltest.Result, sep string, qps int, run expected) {
	t.Helper()
	for _, r := range []tooltest.Result{server, client} {
		if r.Code != 0 || r.Stderr != "" {
			t.Fatalf("got server %+v\nand client %+v\nwant status 0 and no stderr of both", server, client)
		}
		checkOutput(t, r.Stdout, sep, qps, run)
	}
	// Each prints the other's data as the other prints its own.
	s, c := endLines(server.Stdout, qps), endLines(client.Stdout, qps)
	if !slices.Equal(s[:qps], c[qps:]) || !slices.Equal(s[qps:], c[:qps]) {
		t.Errorf("got server\n%sand client\n%swant each to print the other's data as the other does", server.Stdout, client.Stdout)
	}
}

// endLines returns the content of the lines about the ends, the program's own ends first.
func endLines(stdout string, qps int) []string {
	lines := strings.Split(stdout, "\n")[:2*qps]
	for i := range lines {
		lines[i] = strings.Replace(lines[i][18:], ": GID", ", GID", 1)
	}
	return lines
}

func checkOutput(t *testing.T, out, sep string, qps int, run expected) {
	t.Helper()
	const address, gid = `LID 0x0000, QPN 0x[0-9a-f]{6}, PSN 0x[0-9a-f]{6}`, ` GID (::ffff:[0-9.]+|[0-9a-f:]+)\n`
	want := regexp.MustCompile(fmt.Sprintf(`^(  local address:  %s%s%s)+(  remote address: %s,%s)+`, address, sep, gid, address, gid) +
		fmt.Sprintf(`%d bytes in \d+\.\d\d seconds = \d+\.\d\d Mbit/sec\n%d iters in \d+\.\d\d seconds = \d+\.\d\d usec/iter\n$`, run.bytes, run.iters))
	if !want.MatchString(out) || strings.Count(out, "  local ") != qps || strings.Count(out, "  remote ") != qps {
		t.Errorf("got\n%swant, with %d lines about each end,\n%v", out, qps, want)
	}
}

func TestRCPingpong(t *testing.T) {
	checkRuns(t, "ibv_rc_pingpong", ",", []expected{
		{"-g 0", 8192000, 1000},
		{"-s 1 -n 100", 200, 100},
		{"-s 4095 -n 50", 409500, 50},
		{"-s 4096 -n 50 -m 4096", 409600, 50},
		{"-s 4097 -n 50 -m 256", 409700, 50},
		{"-s 1048576 -n 10 -c -m 4096", 20971520, 10},
		{"-e -n 100", 819200, 100},
		{"-e -c -s 10000 -r 2 -n 30", 600000, 30},
		{"-r 1 -n 20", 163840, 20},
		{"-r 7 -n 100 -N -U", 819200, 100},
		{"-n 1", 8192, 1},
		{"-o -P -n 5", 40960, 5},
		{"-l 3 -s 0x10 -n 5", 160, 5},
	})
}

func TestUCPingpong(t *testing.T) {
	checkRuns(t, "ibv_uc_pingpong", ",", []expected{
		{"-g 0", 8192000, 1000},
		{"-s 1 -n 100", 200, 100},
		{"-s 4097 -n 50 -m 256 -c", 409700, 50},
		{"-s 100000 -n 10 -m 4096 -e", 2000000, 10},
		{"-r 1 -n 20", 163840, 20},
	})
}

func TestUDPingpong(t *testing.T) {
	checkRuns(t, "ibv_ud_pingpong", ":", []expected{
		{"-g 0", 2048000, 1000},
		{"-s 0 -n 10", 0, 10},
		{"-s 1 -n 100 -e", 200, 100},
		{"-s 4096 -n 50 -c", 409600, 50},
		{"-r 1 -n 20", 40960, 20},
	})
}

func TestSRQPingpong(t *testing.T) {
	for _, tt := range []struct {
		qps int
		expected
	}{
		{16, expected{"-g 0", 8192000, 1000}},
		{1, expected{"-q 1 -r 1 -n 20", 163840, 20}},
		{2, expected{"-q 2 -s 1025 -n 8", 16400, 8}},
		{3, expected{"-q 3 -r 3 -n 100 -e -c", 819200, 100}},
		{5, expected{"-q 5 -r 6 -s 10000 -n 50 -o", 1000000, 50}},
		{255, expected{"-q 255 -s 8 -n 600", 9600, 600}},
	} {
		t.Run(strings.ReplaceAll(tt.flags, " ", ""), func(t *testing.T) {
			server, client := runPair(t, "ibv_srq_pingpong", tt.flags, tt.flags)
			checkRun(t, server, client, ",", tt.qps, tt.expected)
		})
	}
}

// Ends with different numbers of QPs refuse each other: a run of them would not end.
func TestSRQPingpongQPsDiffer(t *testing.T) {
	server, client := runPair(t, "ibv_srq_pingpong", "-q 3", "-q 2")
	const want = "Failed to modify QP[2] to RTR\nCouldn't connect to remote QP\nadverb: the peer has 2 QPs, and here are 3: "
	if server.Code != 1 || !strings.HasPrefix(server.Stderr, want) {
		t.Errorf("server: got status %d, stderr:\n%swant status 1, stderr %q…", server.Code, server.Stderr, want)
	}
	if client.Code != 1 || !strings.Contains(client.Stderr, "\n0/52: Couldn't read remote address [0]\n") {
		t.Errorf("client: got status %d, stderr:\n%swant status 1 and that it could not read an address", client.Code, client.Stderr)
	}
}
