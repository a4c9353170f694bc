package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
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

// freePort returns a TCP port that nobody has.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

// pingpongPair runs a server and a client.
func pingpongPair(t *testing.T, serverFlags, clientFlags string) (server, client result) {
	t.Helper()
	port := freePort(t)
	args := func(name, dev, flags string) []string {
		return append([]string{name, "-p", port, "-d", dev}, strings.Fields(flags)...)
	}
	s := start(t.Context(), args("ibv_rc_pingpong", serverDevice, serverFlags)...)
	c := start(t.Context(), append(args("/usr/bin/ibv_rc_pingpong", clientDevice, clientFlags), "127.0.0.1")...)
	return <-s.done, <-c.done
}

func TestRCPingpong(t *testing.T) {
	for _, tt := range []struct {
		flags string
		bytes int // both ways
		iters int
	}{
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
	} {
		t.Run(strings.ReplaceAll(tt.flags, " ", ""), func(t *testing.T) {
			server, client := pingpongPair(t, tt.flags, tt.flags)
			for _, r := range []result{server, client} {
				if r.code != 0 || r.stderr != "" {
					t.Fatalf("status %d, stderr:\n%s", r.code, r.stderr)
				}
				checkPingpongOutput(t, r.stdout, tt.bytes, tt.iters)
			}
			// Each prints of the other what the other prints of itself.
			s, c := strings.Split(server.stdout, "\n"), strings.Split(client.stdout, "\n")
			if s[0][18:] != c[1][18:] || s[1][18:] != c[0][18:] {
				t.Errorf("the ends do not agree:\n%s\n%s", server.stdout, client.stdout)
			}
		})
	}
}

func checkPingpongOutput(t *testing.T, out string, bytes, iters int) {
	t.Helper()
	const address = `LID 0x0000, QPN 0x[0-9a-f]{6}, PSN 0x[0-9a-f]{6}, GID ::ffff:127\.0\.88\.[12]\n`
	want := regexp.MustCompile(`^  local address:  ` + address + `  remote address: ` + address +
		fmt.Sprintf(`%d bytes in \d+\.\d\d seconds = \d+\.\d\d Mbit/sec\n%d iters in \d+\.\d\d seconds = \d+\.\d\d usec/iter\n$`, bytes, iters))
	if !want.MatchString(out) {
		t.Errorf("got\n%swant\n%v", out, want)
	}
}

// A server that checks, and a client that does not write what is checked: each page is wrong.
func TestRCPingpongBadData(t *testing.T) {
	size := os.Getpagesize() + 1
	server, client := pingpongPair(t, fmt.Sprintf("-c -n 3 -s %d", size), fmt.Sprintf("-n 3 -s %d", size))
	if server.code != 0 || client.code != 0 {
		t.Fatalf("%+v\n%+v", server, client)
	}
	if !strings.HasSuffix(server.stdout, "usec/iter\ninvalid data in page 0\ninvalid data in page 1\n") {
		t.Errorf("server: %s", server.stdout)
	}
}

// A message that the receiver has no room for fails at both ends, with the classic line and a
// reason.
func TestRCPingpongSizesDiffer(t *testing.T) {
	server, client := pingpongPair(t, "-s 100", "-s 200")
	for _, tt := range []struct {
		name string
		result
		line string
	}{
		{"server", server, "Failed status local length error (1) for wr_id 1\nparse WC failed "},
		{"client", client, "Failed status remote invalid request error (9) for wr_id 2\nparse WC failed "},
	} {
		if tt.code != 1 || !strings.HasPrefix(tt.stderr, tt.line) || !strings.Contains(tt.stderr, "\nadverb: work request 0x") {
			t.Errorf("%s: status %d, stderr:\n%s", tt.name, tt.code, tt.stderr)
		}
	}
}

func TestRCPingpongErrors(t *testing.T) {
	for _, tt := range []struct {
		args   string
		stderr string
	}{
		{"-d nope", "IB device nope not found\nadverb: open device nope: no such device; there are ["},
		{"-i 2", "Failed to modify QP to INIT\nadverb: "},
		{"-g 200", "can't read sgid of index 200\nadverb: "},
		{"-r 1000000", "Couldn't create QP\nadverb: "},
		{"-s 0", "Couldn't register MR\nadverb: "},
		{"-t", "The device isn't completion timestamp capable\n"},
		{"-j", "Device doesn't support dm allocation\n"},
		{"-O", "The device doesn't support implicit ODP\n"},
	} {
		argv := append([]string{"ibv_rc_pingpong", "-d", serverDevice}, strings.Fields(tt.args)...)
		code, stdout, stderr := tool(t.Context(), argv...)
		if code != 1 || stdout != "" || !strings.HasPrefix(stderr, tt.stderr) {
			t.Errorf("%s: status %d, stdout %q, stderr:\n%s", tt.args, code, stdout, stderr)
		}
	}
}

// callServer starts a server and sends it the first message of the exchange.
func callServer(ctx context.Context, t *testing.T, message []byte, flags ...string) (*started, net.Conn) {
	t.Helper()
	port := freePort(t)
	s := start(ctx, append([]string{"ibv_rc_pingpong", "-p", port, "-d", serverDevice}, flags...)...)
	conn, err := net.Dial("tcp", "127.0.0.1:"+port)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if _, err := conn.Write(message); err != nil {
		t.Fatal(err)
	}
	return s, conn
}

// A C program that was given no -g has no GID.
func TestRCPingpongPeerWithoutGID(t *testing.T) {
	s, _ := callServer(t.Context(), t, pingpongEnd{QPN: 5, PSN: 6}.message())
	r := <-s.done
	if want := "Failed to modify QP to RTR\nCouldn't connect to remote QP\n" +
		"adverb: the peer has no GID, and Ethernet needs one: give the peer its -g"; r.code != 1 || !strings.HasPrefix(r.stderr, want) {
		t.Errorf("status %d, stderr:\n%s", r.code, r.stderr)
	}
}

// absentPeer is an end of which no packet will come.
func absentPeer() pingpongEnd {
	e := pingpongEnd{QPN: 5, PSN: 6}
	copy(e.GID[10:], []byte{0xff, 0xff, 127, 0, 88, 3})
	return e
}

// Ctrl-C ends a server whose client never sends.
func TestRCPingpongInterrupted(t *testing.T) {
	for _, flag := range []string{"-c", "-e"} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s, conn := callServer(ctx, t, absentPeer().message(), flag)
		if _, err := readEnd(conn); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, doneMessage); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Read(make([]byte, 1)); err != io.EOF {
			t.Fatalf("the server did not close the connection: %v", err)
		}
		cancel()
		if r := <-s.done; r.code != statusInterrupted || r.stderr != "adverb: interrupted\n" {
			t.Errorf("%s: status %d, stderr:\n%s", flag, r.code, r.stderr)
		}
	}
}

// A peer that is gone when the first message is sent ends the run, after all retries.
func TestRCPingpongPeerGone(t *testing.T) {
	if testing.Short() {
		t.Skip("takes the eight timeouts of 67 ms that the C program sets")
	}
	l, port := listenLoopback(t)
	c := start(t.Context(), "ibv_rc_pingpong", "-d", clientDevice, "-p", strconv.Itoa(port), "127.0.0.1")
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := serveExchange(t.Context(), conn, absentPeer(), connectNothing); err != nil {
		t.Fatal(err)
	}
	r := <-c.done
	want := "Failed status transport retry counter exceeded (12) for wr_id 2\nparse WC failed "
	if r.code != 1 || !strings.HasPrefix(r.stderr, want) || !strings.Contains(r.stderr, "did not acknowledge") {
		t.Errorf("status %d, stderr:\n%s", r.code, r.stderr)
	}
}
