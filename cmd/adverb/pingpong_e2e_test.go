package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// The devices of these tests, on addresses that no other test has.
const (
	serverDevice = "soft_lo@127.0.88.1"
	clientDevice = "soft_lo@127.0.88.2"
)

// result is what a run of the tool came to.
type result struct {
	code           int
	stdout, stderr string
}

// started is a run of the tool in the background.
type started struct {
	firstLine string
	done      chan result
}

// start runs the tool, and returns when it has printed a line or is done.
func start(ctx context.Context, argv ...string) *started {
	s := &started{done: make(chan result, 1)}
	r, w := io.Pipe()
	var stderr strings.Builder
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, argv, strings.NewReader(""), w, &stderr)
		w.Close()
	}()
	out := bufio.NewReader(r)
	s.firstLine, _ = out.ReadString('\n')
	go func() {
		rest, _ := io.ReadAll(out)
		c := <-code
		s.done <- result{c, s.firstLine + string(rest), stderr.String()}
	}()
	return s
}

// freePort returns a TCP port that nobody has. It is below those that systems hand out to others
// that ask for any, so that nobody gets it before it is used.
func freePort(t *testing.T) string {
	t.Helper()
	const first, count = 10000, 20000
	for range count {
		port := strconv.Itoa(first + (os.Getpid()+int(portsTried.Add(1)))%count)
		l, err := net.Listen("tcp", ":"+port)
		if err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal("no TCP port is free")
	return ""
}

var portsTried atomic.Int32

// patience ends a run that got stuck, so that the test can say where.
const patience = time.Minute

// pingpongPair runs a server and a client of the program of that classic name.
func pingpongPair(t *testing.T, prog, serverFlags, clientFlags string) (server, client result) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	port := freePort(t)
	args := func(name, dev, flags string) []string {
		return append([]string{name, "-p", port, "-d", dev}, strings.Fields(flags)...)
	}
	s := start(ctx, args(prog, serverDevice, serverFlags)...)
	c := start(ctx, append(args("/usr/bin/"+prog, clientDevice, clientFlags), "127.0.0.1")...)
	return <-s.done, <-c.done
}

// pingpongRun is a run of two ends with the same flags, and what it comes to.
type pingpongRun struct {
	flags string
	bytes int // both ways
	iters int
}

// checkRuns runs a program whose line about the own end has sep in front of the GID.
func checkRuns(t *testing.T, prog, sep string, runs []pingpongRun) {
	for _, r := range runs {
		t.Run(strings.ReplaceAll(r.flags, " ", ""), func(t *testing.T) {
			server, client := pingpongPair(t, prog, r.flags, r.flags)
			checkRun(t, server, client, sep, 1, r)
		})
	}
}

func checkRun(t *testing.T, server, client result, sep string, qps int, run pingpongRun) {
	t.Helper()
	for _, r := range []result{server, client} {
		if r.code != 0 || r.stderr != "" {
			t.Fatalf("status %d, stdout:\n%sstderr:\n%s", r.code, r.stdout, r.stderr)
		}
		checkPingpongOutput(t, r.stdout, sep, qps, run)
	}
	// Each prints of the other what the other prints of itself.
	s, c := endLines(server.stdout, qps), endLines(client.stdout, qps)
	if !slices.Equal(s[:qps], c[qps:]) || !slices.Equal(s[qps:], c[:qps]) {
		t.Errorf("the ends do not agree:\n%s\n%s", server.stdout, client.stdout)
	}
}

// endLines returns what the lines about the ends say of them, the own ones first.
func endLines(stdout string, qps int) []string {
	lines := strings.Split(stdout, "\n")[:2*qps]
	for i := range lines {
		lines[i] = strings.Replace(lines[i][18:], ": GID", ", GID", 1)
	}
	return lines
}

func checkPingpongOutput(t *testing.T, out, sep string, qps int, run pingpongRun) {
	t.Helper()
	const address, gid = `LID 0x0000, QPN 0x[0-9a-f]{6}, PSN 0x[0-9a-f]{6}`, ` GID (::ffff:[0-9.]+|[0-9a-f:]+)\n`
	want := regexp.MustCompile(fmt.Sprintf(`^(  local address:  %s%s%s)+(  remote address: %s,%s)+`, address, sep, gid, address, gid) +
		fmt.Sprintf(`%d bytes in \d+\.\d\d seconds = \d+\.\d\d Mbit/sec\n%d iters in \d+\.\d\d seconds = \d+\.\d\d usec/iter\n$`, run.bytes, run.iters))
	if !want.MatchString(out) || strings.Count(out, "  local ") != qps || strings.Count(out, "  remote ") != qps {
		t.Errorf("got\n%swant, with %d lines about each end,\n%v", out, qps, want)
	}
}

func TestRCPingpong(t *testing.T) {
	checkRuns(t, "ibv_rc_pingpong", ",", []pingpongRun{
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
	checkRuns(t, "ibv_uc_pingpong", ",", []pingpongRun{
		{"-g 0", 8192000, 1000},
		{"-s 1 -n 100", 200, 100},
		{"-s 4097 -n 50 -m 256 -c", 409700, 50},
		{"-s 100000 -n 10 -m 4096 -e", 2000000, 10},
		{"-r 1 -n 20", 163840, 20},
	})
}

func TestUDPingpong(t *testing.T) {
	checkRuns(t, "ibv_ud_pingpong", ":", []pingpongRun{
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
		pingpongRun
	}{
		{16, pingpongRun{"-g 0", 8192000, 1000}},
		{1, pingpongRun{"-q 1 -r 1 -n 20", 163840, 20}},
		{2, pingpongRun{"-q 2 -s 1025 -n 8", 16400, 8}},
		{3, pingpongRun{"-q 3 -r 3 -n 100 -e -c", 819200, 100}},
		{5, pingpongRun{"-q 5 -r 6 -s 10000 -n 50 -o", 1000000, 50}},
		{255, pingpongRun{"-q 255 -s 8 -n 600", 9600, 600}},
	} {
		t.Run(strings.ReplaceAll(tt.flags, " ", ""), func(t *testing.T) {
			server, client := pingpongPair(t, "ibv_srq_pingpong", tt.flags, tt.flags)
			checkRun(t, server, client, ",", tt.qps, tt.pingpongRun)
		})
	}
}

// Ends that do not have as many QPs could not end.
func TestSRQPingpongQPsDiffer(t *testing.T) {
	server, client := pingpongPair(t, "ibv_srq_pingpong", "-q 3", "-q 2")
	const want = "Failed to modify QP[2] to RTR\nCouldn't connect to remote QP\nadverb: the peer has 2 QPs, and here are 3: "
	if server.code != 1 || !strings.HasPrefix(server.stderr, want) {
		t.Errorf("server: status %d, stderr:\n%s", server.code, server.stderr)
	}
	if client.code != 1 || !strings.Contains(client.stderr, "\n0/52: Couldn't read remote address [0]\n") {
		t.Errorf("client: status %d, stderr:\n%s", client.code, client.stderr)
	}
}
