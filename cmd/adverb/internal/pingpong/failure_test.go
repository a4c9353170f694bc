package pingpong

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/exchange"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
)

// The server checks pages that the client has not written, so each page is wrong.
func TestRCPingpongBadData(t *testing.T) {
	size := os.Getpagesize() + 1
	server, client := runPair(t, "ibv_rc_pingpong", fmt.Sprintf("-c -n 3 -s %d", size), fmt.Sprintf("-n 3 -s %d", size))
	if server.Code != 0 || client.Code != 0 {
		t.Fatalf("got %+v\nand %+v\nwant status 0 of both", server, client)
	}
	if !strings.HasSuffix(server.Stdout, "usec/iter\ninvalid data in page 0\ninvalid data in page 1\n") {
		t.Errorf("server: got %s, want two pages with invalid data", server.Stdout)
	}
}

// A message that the receiver has no room for fails at both ends. Each prints the C program's line
// and a reason.
func TestRCPingpongSizesDiffer(t *testing.T) {
	server, client := runPair(t, "ibv_rc_pingpong", "-s 100", "-s 200")
	for _, tt := range []struct {
		name string
		tooltest.Result
		line string
	}{
		{"server", server, "Failed status local length error (1) for wr_id 1\nparse WC failed "},
		{"client", client, "Failed status remote invalid request error (9) for wr_id 2\nparse WC failed "},
	} {
		if tt.Code != 1 || !strings.HasPrefix(tt.Stderr, tt.line) || !strings.Contains(tt.Stderr, "\nadverb: work request 0x") {
			t.Errorf("%s: got status %d, stderr:\n%swant status 1, stderr that begins with %q", tt.name, tt.Code, tt.Stderr, tt.line)
		}
	}
}

func TestPingpongErrors(t *testing.T) {
	for _, tt := range []struct {
		prog   string
		args   string
		stderr string
	}{
		{"rc", "-d nope", "IB device nope not found\nadverb: open device nope: no such device; there are ["},
		{"rc", "-i 2", "Failed to modify QP to INIT\nadverb: "},
		{"rc", "-g 200", "can't read sgid of index 200\nadverb: "},
		{"rc", "-r 1000000", "Couldn't create QP\nadverb: "},
		{"rc", "-s 0", "Couldn't register MR\nadverb: "},
		{"rc", "-t", "The device isn't completion timestamp capable\n"},
		{"rc", "-j", "Device doesn't support dm allocation\n"},
		{"rc", "-O", "The device doesn't support implicit ODP\n"},
		{"uc", "-i 2", "Failed to modify QP to INIT\nadverb: "},
		{"ud", "-i 2", "Unable to query port info for port 2\nadverb: "},
		{"ud", "-s 4097", "Requested size larger than port MTU (4096)\n"},
		{"ud", "-g 200", "Could not get local gid for gid index 200\nadverb: "},
		{"srq", "-g 200", "Could not get local gid for gid index 200\nadverb: "},
		{"srq", "-r 1000000", "Couldn't create SRQ\nadverb: "},
		{"srq", "-i 2", "Failed to modify QP[0] to INIT\nadverb: "},
	} {
		argv := append([]string{"ibv_" + tt.prog + "_pingpong", "-d", serverDevice}, strings.Fields(tt.args)...)
		code, stdout, stderr := tool.Run(t.Context(), argv...)
		if code != 1 || stdout != "" || !strings.HasPrefix(stderr, tt.stderr) {
			t.Errorf("%s %s: got status %d, stdout %q, stderr:\n%swant status 1, no stdout, stderr %q…", tt.prog, tt.args, code, stdout, stderr, tt.stderr)
		}
	}
}

// callServer starts a server and sends it the first message of the exchange.
func callServer(ctx context.Context, t *testing.T, prog string, message []byte, flags ...string) (*tooltest.Started, net.Conn) {
	t.Helper()
	port := tooltest.FreePort(t)
	s := tool.Start(ctx, append([]string{prog, "-p", port, "-d", serverDevice}, flags...)...)
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

// A C program that was started without -g has no GID.
func TestPingpongPeerWithoutGID(t *testing.T) {
	for prog, line := range map[string]string{
		"ibv_rc_pingpong": "Failed to modify QP to RTR",
		"ibv_uc_pingpong": "Failed to modify QP to RTR",
		"ibv_ud_pingpong": "Failed to create AH",
	} {
		s, _ := callServer(t.Context(), t, prog, exchange.End{QPN: 5, PSN: 6}.Message())
		r := <-s.Done
		want := line + "\nCouldn't connect to remote QP\n" +
			"adverb: the peer has no GID, and Ethernet needs one: give the peer its -g"
		if r.Code != 1 || !strings.HasPrefix(r.Stderr, want) {
			t.Errorf("%s: got status %d, stderr:\n%swant status 1, stderr %q…", prog, r.Code, r.Stderr, want)
		}
	}
}

// absentPeer is an end that sends no packet.
func absentPeer() exchange.End {
	e := exchange.End{QPN: 5, PSN: 6}
	copy(e.GID[10:], []byte{0xff, 0xff, 127, 0, 88, 3})
	return e
}

// Ctrl-C ends a server whose client never sends. A lost message looks the same.
func TestPingpongInterrupted(t *testing.T) {
	for _, tt := range []struct{ prog, flag string }{
		{"ibv_rc_pingpong", "-c"}, {"ibv_rc_pingpong", "-e"}, {"ibv_uc_pingpong", "-c"}, {"ibv_ud_pingpong", "-c"}, {"ibv_ud_pingpong", "-e"},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s, conn := callServer(ctx, t, tt.prog, absentPeer().Message(), tt.flag)
		if _, err := io.ReadFull(conn, make([]byte, exchange.MessageSize)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, "done\x00"); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Read(make([]byte, 1)); err != io.EOF {
			t.Fatalf("got %v, want %v: the server closes the connection", err, io.EOF)
		}
		cancel()
		if r := <-s.Done; r.Code != cli.StatusInterrupted || r.Stderr != "adverb: interrupted\n" {
			t.Errorf("%s %s: got status %d, stderr:\n%swant status %d and that it was interrupted", tt.prog, tt.flag, r.Code, r.Stderr, cli.StatusInterrupted)
		}
	}
}

// A peer that is gone when the first message is sent ends the run, after all retries.
func TestRCPingpongPeerGone(t *testing.T) {
	if testing.Short() {
		t.Skip("takes the eight timeouts of 67 ms that the C program sets")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	c := tool.Start(t.Context(), "ibv_rc_pingpong", "-d", clientDevice, "-p", strconv.Itoa(port), "127.0.0.1")
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	x := exchange.Exchange{Local: []exchange.End{absentPeer()}, Connect: func([]exchange.End) error { return nil }}
	if err := x.Serve(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	r := <-c.Done
	want := "Failed status transport retry counter exceeded (12) for wr_id 2\nparse WC failed "
	if r.Code != 1 || !strings.HasPrefix(r.Stderr, want) || !strings.Contains(r.Stderr, "did not acknowledge") {
		t.Errorf("got status %d, stderr:\n%swant status 1, stderr %q… and the reason", r.Code, r.Stderr, want)
	}
}

// Ends of two kinds connect, and neither receives the other's messages. Each ends, and names the likely cause.
func TestPingpongKindsDiffer(t *testing.T) {
	defer func(d time.Duration) { firstPatience = d }(firstPatience)
	firstPatience = 2 * time.Second // more than the C program's retries take
	for _, tt := range []struct{ server, serverFlags, client, clientFlags, serverSays, clientSays string }{
		{"ibv_rc_pingpong", "", "ibv_uc_pingpong", "", "is the peer rc_pingpong too", "is the peer uc_pingpong too"},
		{"ibv_uc_pingpong", "-e", "ibv_rc_pingpong", "", "is the peer uc_pingpong too", "did not acknowledge"},
		{"ibv_ud_pingpong", "", "ibv_uc_pingpong", "-e", "is the peer ud_pingpong too", "is the peer uc_pingpong too"},
	} {
		port := tooltest.FreePort(t)
		server := tool.Start(t.Context(), append([]string{tt.server, "-p", port, "-d", serverDevice}, strings.Fields(tt.serverFlags)...)...)
		client := tool.Result(t.Context(), append([]string{tt.client, "-p", port, "-d", clientDevice, "127.0.0.1"}, strings.Fields(tt.clientFlags)...)...)
		for who, r := range map[string]struct {
			tooltest.Result
			want string
		}{"server": {<-server.Done, tt.serverSays}, "client": {client, tt.clientSays}} {
			if r.Code != 1 || !strings.Contains(r.Stderr, r.want) {
				t.Errorf("%s and %s: %s: got status %d, stderr %q, want status 1 and %q", tt.server, tt.client, who, r.Code, r.Stderr, r.want)
			}
		}
	}
}
