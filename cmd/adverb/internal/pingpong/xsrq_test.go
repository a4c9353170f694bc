package pingpong

import (
	"context"
	"fmt"
	"io"
	"net"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/exchange"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
	"github.com/adverb-rdma/adverb/verbs"
)

var sampleXSRQEnd = xsrqEnd{lid: 0xab, recv: 0x11, send: 0xfedcba, psn: 0x123456, srqn: 7, gid: verbs.GID{10: 0xff, 11: 0xff, 12: 10, 13: 98, 15: 3}}

// The bytes are those of rdma-core's MSG_FORMAT, whose GID is gid_to_wire_gid's.
func TestXSRQMessage(t *testing.T) {
	const want = "00ab:000011:fedcba:123456:000007:00000000000000000000ffff0a620003\x00"
	if got := sampleXSRQEnd.message(); string(got) != want || len(got) != xsrqMessageSize {
		t.Errorf("got %d bytes %q, want %d, %q", len(got), got, xsrqMessageSize, want)
	}
	for _, text := range []string{want, "ab:11:fedcba:123456:7:00000000000000000000ffff0a620003\x00junk", "00ab:000011:fedcba:123456:000007: 00000000000000000000ffff0a620003"} {
		if e, err := parseXSRQEnd([]byte(text)); err != nil || e != sampleXSRQEnd {
			t.Errorf("%q: got %+v, %v, want %+v", text, e, err, sampleXSRQEnd)
		}
	}
	for _, text := range []string{"", want[:60], "1" + want, "00ab:1000011" + want[11:], "g" + want[1:], strings.Replace(want, ":000007", "", 1),
		strings.Replace(want, "ffff", "ffzz", 1)} {
		if e, err := parseXSRQEnd([]byte(text)); err == nil {
			t.Errorf("%q: got %+v, want an error", text, e)
		}
	}
}

func FuzzXSRQMessage(f *testing.F) {
	f.Add(sampleXSRQEnd.message())
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := parseXSRQEnd(b)
		if err != nil {
			return
		}
		if again, err := parseXSRQEnd(e.message()); err != nil || again != e {
			t.Errorf("%q: got %+v, %v, want %+v again", b, again, err, e)
		}
	})
}

// xsrqLines are the lines about a side's ends, without the side.
func xsrqLines(stdout, side string) (list []string) {
	for line := range strings.Lines(stdout) {
		if rest, ok := strings.CutPrefix(line, fmt.Sprintf("%8s: ", side)); ok {
			list = append(list, rest)
		}
	}
	slices.Sort(list)
	return list
}

var xsrqLine = regexp.MustCompile(`^LID 0000, QPN RECV [0-9a-f]{6} SEND [0-9a-f]{6}, PSN [0-9a-f]{6}, SRQN [0-9a-f]{6}, GID ::ffff:[0-9.]+\n$`)

// A server, and its clients: one process of each of the flags, at an address of its own.
func TestXSRQPingpong(t *testing.T) {
	for _, tt := range []struct {
		server  string
		clients []string
		lines   int // about the server's own ends
	}{
		{"", []string{""}, 1},
		{"-g 0 -n 50 -s 1", []string{"-c 3 -n 50 -s 1"}, 1}, // a client takes no note of -c
		{"-n 20 -s 5000 -m 256 -e -o", []string{"-n 20 -s 5000 -m 256 -e -o"}, 1},
		{"-n 50 -c 3", []string{"-n 50", "-n 50 -e", "-n 50"}, 3},
		{"-n 50 -c 3 -e", []string{"-n 50 --as-clients 3"}, 3},
		{"-n 20 -c 40 -s 100", []string{"-n 20 -s 100 --as-clients 40 -e"}, 40},
	} {
		t.Run(strings.ReplaceAll(tt.server, " ", ""), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
			defer cancel()
			port := tooltest.FreePort(t)
			server := tool.Background(ctx, append([]string{"ibv_xsrq_pingpong", "-p", port, "-d", serverDevice}, strings.Fields(tt.server)...)...)
			awaitListener(ctx, t, port)
			var clients []<-chan tooltest.Result
			for i, flags := range tt.clients {
				argv := []string{"ibv_xsrq_pingpong", "-p", port, "-d", fmt.Sprintf("soft_lo@127.0.88.%d", 30+i)}
				clients = append(clients, tool.Background(ctx, append(append(argv, strings.Fields(flags)...), "127.0.0.1")...))
			}
			var local, remote []string
			for _, c := range clients {
				r := <-c
				if r.Code != 0 || r.Stderr != "" || !strings.HasSuffix(r.Stdout, "\nsuccess\n") {
					t.Errorf("client: got %+v, want status 0, success, and no stderr", r)
					cancel()
				}
				local, remote = append(local, xsrqLines(r.Stdout, "local")...), append(remote, xsrqLines(r.Stdout, "remote")...)
			}
			r := <-server
			if r.Code != 0 || r.Stderr != "" || !strings.HasSuffix(r.Stdout, "\nsuccess\n") {
				t.Fatalf("server: got %+v, want status 0, success, and no stderr", r)
			}
			slices.Sort(local)
			slices.Sort(remote)
			// Each prints the other's data as the other prints its own.
			mine := xsrqLines(r.Stdout, "local")
			if !slices.Equal(mine, remote) || !slices.Equal(xsrqLines(r.Stdout, "remote"), local) || len(mine) != tt.lines || !xsrqLine.MatchString(mine[0]) {
				t.Errorf("got server\n%sclients\n%s%swant %d lines about each, and the same lines", r.Stdout, local, remote, tt.lines)
			}
		})
	}
}

// awaitListener waits until somebody listens at a port. The stranger who asks keeps no client out.
func awaitListener(ctx context.Context, t *testing.T, port string) {
	t.Helper()
	var d net.Dialer
	for ctx.Err() == nil {
		if conn, err := d.DialContext(ctx, "tcp", "127.0.0.1:"+port); err == nil {
			conn.Close()
			return
		}
	}
	t.Fatal("nobody listens")
}

// Clients of one GID may share an XRC domain, so a message for one of them goes over the other's connection. Two
// processes of a software device do not share one, and the server says what to do.
func TestXSRQPingpongNoSharedDomain(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	port := tooltest.FreePort(t)
	server := tool.Background(ctx, "ibv_xsrq_pingpong", "-p", port, "-d", serverDevice, "-c", "2")
	awaitListener(ctx, t, port)
	clients := make([]<-chan tooltest.Result, 2)
	for i := range clients {
		clients[i] = tool.Background(ctx, "ibv_xsrq_pingpong", "-p", port, "-d", clientDevice, "127.0.0.1")
	}
	r := <-server
	if r.Code != 1 || !strings.HasPrefix(r.Stderr, "Work completion error 9\nadverb: ") || !strings.Contains(r.Stderr, "share no XRC domain") {
		t.Errorf("server: got status %d, stderr %q, want status 1, error 9 and the remedy", r.Code, r.Stderr)
	}
	for _, c := range clients {
		if r := <-c; r.Code != 1 || !strings.Contains(r.Stderr, "adverb: ") {
			t.Errorf("client: got status %d, stderr %q, want status 1 and a reason", r.Code, r.Stderr)
		}
	}
}

func TestXSRQPingpongErrors(t *testing.T) {
	for args, want := range map[string]string{
		"-d iw_lo@127.0.88.40":           "Couldn't Open the XRC Domain\nadverb: open xrcd on device iw_lo@127.0.88.40: the device has no XRC",
		"-d " + serverDevice + " -g 200": "can't read sgid of index 200\nadverb: ",
		"-c 0":                           "adverb: read --clients=0: that is too small",
		"-n 0":                           "adverb: read --num_tests=0: that is too small",
		"-q 1":                           "ibv_xsrq_pingpong: invalid option -- 'q'\n",
		"a b":                            "adverb: [\"a\" \"b\"]: one server alone can be named\n",
	} {
		r := tool.Result(t.Context(), append([]string{"ibv_xsrq_pingpong"}, strings.Fields(args)...)...)
		if r.Code != 1 || !strings.HasPrefix(r.Stderr, want) {
			t.Errorf("%s: got status %d, stderr %q, want status 1 and %q", args, r.Code, r.Stderr, want)
		}
	}
}

// A client that says nothing, one that leaves early, and one that is another program.
func TestXSRQPingpongStrangers(t *testing.T) {
	defer func(d time.Duration) { xsrqPatience = d }(xsrqPatience)
	xsrqPatience = 100 * time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	serve := func() (<-chan tooltest.Result, func() net.Conn) {
		port := tooltest.FreePort(t)
		r := tool.Background(ctx, "ibv_xsrq_pingpong", "-p", port, "-d", serverDevice)
		awaitListener(ctx, t, port)
		return r, func() net.Conn {
			conn, err := net.Dial("tcp", "127.0.0.1:"+port)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { conn.Close() })
			return conn
		}
	}
	server, dial := serve()
	dial() // which says nothing
	conn := dial()
	if _, err := conn.Write(sampleXSRQEnd.message()); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(io.LimitReader(conn, xsrqMessageSize)); err != nil || len(b) != xsrqMessageSize {
		t.Fatalf("got %q, %v, want the server's end", b, err)
	}
	conn.Close()
	if r := <-server; r.Code != 1 || !strings.Contains(r.Stderr, "0/4: Couldn't read remote termination ack\nadverb: the peer closed the TCP connection") &&
		!strings.Contains(r.Stderr, "did not acknowledge") {
		t.Errorf("a client that leaves: got status %d, stderr %q, want status 1 and that it closed the connection", r.Code, r.Stderr)
	}
	server, dial = serve()
	if _, err := dial().Write(exchange.End{QPN: 5, PSN: 6}.Message()); err != nil {
		t.Fatal(err)
	}
	if r := <-server; r.Code != 1 || !strings.HasPrefix(r.Stderr, "52/66: Couldn't read remote address\nadverb: ") || !strings.Contains(r.Stderr, "a pingpong program of another kind") {
		t.Errorf("another program: got status %d, stderr %q, want status 1 and that it is another program", r.Code, r.Stderr)
	}
	server, dial = serve()
	noGID := sampleXSRQEnd
	noGID.gid = verbs.GID{}
	if _, err := dial().Write(noGID.message()); err != nil {
		t.Fatal(err)
	}
	if r := <-server; r.Code != 1 || !strings.HasPrefix(r.Stderr, "Failed to modify recv QP[0] to RTR\nadverb: the peer has no GID") {
		t.Errorf("a client without GID: got status %d, stderr %q, want status 1 and that it has none", r.Code, r.Stderr)
	}
}
