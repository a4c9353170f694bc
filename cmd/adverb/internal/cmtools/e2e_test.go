package cmtools

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/clib"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cm"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// The devices of these tests, on addresses that no other test has.
const (
	serverAddr   = "127.0.88.21"
	serverDevice = "soft_lo@127.0.88.21"
	clientDevice = "soft_lo@127.0.88.22"
)

// startServer starts a server. The server listens when startServer returns.
func startServer(ctx context.Context, port, line string) *tooltest.Started {
	argv := strings.Fields(line)
	return tool.Start(ctx, append(argv, "--ib-dev", serverDevice, "--port", port)...)
}

// runClient runs its client.
func runClient(ctx context.Context, port, line string) tooltest.Result {
	return tool.Result(ctx, clientArgs(port, line)...)
}

func clientArgs(port, line string) []string {
	return append(strings.Fields(line), "--ib-dev", clientDevice, "--port", port, "-s", serverAddr)
}

// runPair runs both ends.
func runPair(t *testing.T, server, client string) (s, c tooltest.Result) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	port := tooltest.FreePort(t)
	srv := startServer(ctx, port, server)
	c = runClient(ctx, port, client)
	return <-srv.Done, c
}

// checkTranscript compares a run with what the C program printed.
func checkTranscript(t *testing.T, who string, r tooltest.Result, want string) {
	t.Helper()
	if r.Code != 0 || r.Stderr != "" {
		t.Errorf("%s: got status %d, stderr:\n%swant status 0 and no stderr", who, r.Code, r.Stderr)
	}
	tooltest.DiffLines(t, r.Stdout, want)
}

// with inserts a line into a transcript.
func with(transcript, before, line string) string {
	return strings.Replace(transcript, before, line+before, 1)
}

// without takes lines out of a transcript.
func without(transcript string, lines ...string) string {
	for _, l := range lines {
		transcript = strings.Replace(transcript, l+"\n", "", 1)
	}
	return transcript
}

func TestCmatose(t *testing.T) {
	server, client := tooltest.Transcript(t, "ucmatose_server.txt"), tooltest.Transcript(t, "ucmatose_client.txt")
	const migrating = "migrating to new event channel\n"
	for _, tt := range []struct{ flags, server, client string }{
		{"", server, client},
		{"-c 5 -C 3 -S 5000", server, client},
		{"-c 2 -m", with(server, "cmatose: disconnecting\n", migrating), with(client, "test complete\n", migrating)},
		{"-P ib -a 12 -t 8", server, client},
		{"-C 1 -S 1", server, client},
		{"-S 100000 -C 2", server, client},
		{"-C 0 -c 3", without(server, "initiating data transfers", "completing sends", "receiving data transfers", "data transfers complete"),
			without(client, "receiving data transfers", "sending replies", "data transfers complete")},
		{"-S 0 -m", with(without(server, "initiating data transfers", "completing sends", "receiving data transfers", "data transfers complete"), "cmatose: disconnecting\n", migrating),
			with(without(client, "receiving data transfers", "sending replies", "data transfers complete"), "test complete\n", migrating)},
		{"-c 0", server, client},
	} {
		t.Run(strings.ReplaceAll(tt.flags, " ", ""), func(t *testing.T) {
			s, c := runPair(t, "ucmatose "+tt.flags, "cmatose "+tt.flags)
			checkTranscript(t, "server", s, tt.server)
			checkTranscript(t, "client", c, tt.client)
		})
	}
}

func TestCmatosePSK(t *testing.T) {
	one, other := " --psk "+tooltest.PSK(t, "a"), " --psk "+tooltest.PSK(t, "b")
	s, c := runPair(t, "cmatose -c 3"+one, "cmatose -c 3"+one)
	checkTranscript(t, "server", s, tooltest.Transcript(t, "ucmatose_server.txt"))
	checkTranscript(t, "client", c, tooltest.Transcript(t, "ucmatose_client.txt"))
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	port := tooltest.FreePort(t)
	srv := startServer(ctx, port, "cmatose"+one)
	if r := runClient(ctx, port, "cmatose"+other); r.Code == 0 || !strings.Contains(r.Stdout+r.Stderr, "another pre-shared key") {
		t.Errorf("another key: got status %d, %q, want that named", r.Code, r.Stdout+r.Stderr)
	}
	cancel()
	<-srv.Done
	if r := tool.Result(t.Context(), "cmatose", "--psk", "/no/such/file"); r.Code != 1 || !strings.Contains(r.Stderr, "read the pre-shared key") {
		t.Errorf("no file: got status %d, stderr %q, want that named", r.Code, r.Stderr)
	}
}

func TestUdaddy(t *testing.T) {
	server, client := tooltest.Transcript(t, "udaddy_server.txt"), tooltest.Transcript(t, "udaddy_client.txt")
	for _, tt := range []struct{ flags, server, client string }{
		{"", server, client},
		{"-c 4 -C 20 -S 1024 -t 8", server, client},
		{"-P udp -p 0x111 -C 1 -S 1", server, client},
		{"-C 0", without(server, "receiving data transfers", "sending replies", "data transfers complete"),
			without(client, "initiating data transfers", "receiving data transfers", "data transfers complete")},
	} {
		t.Run(strings.ReplaceAll(tt.flags, " ", ""), func(t *testing.T) {
			s, c := runPair(t, "udaddy "+tt.flags, "udaddy "+tt.flags)
			checkTranscript(t, "server", s, tt.server)
			checkTranscript(t, "client", c, tt.client)
		})
	}
}

func TestMckey(t *testing.T) {
	server, client := tooltest.Transcript(t, "mckey_server.txt"), tooltest.Transcript(t, "mckey_client.txt")
	const joined = "mckey: joined dgid: ::ffff:239.1.2.3 mlid 0x0 sl 0\n"
	for i, tt := range []struct{ group, receiver, sender string }{
		{"-m 239.88.0.%d", "", ""},
		{"-m 239.88.0.%d", "-c 3", "-C 20 -o"},
		{"-M ::ffff:239.88.0.%d", "-C 4 -S 1000", "-C 4 -S 1000"},
		{"-m 239.88.0.%d", "-C 0", "-C 0 -c 2"},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
			defer cancel()
			group := fmt.Sprintf(tt.group, i+1)
			argv := func(dev, flags string) []string {
				return strings.Fields("mckey " + group + " --settle 0s -b " + strings.TrimPrefix(dev, "soft_lo@") + " --ib-dev " + dev + " " + flags)
			}
			r := tool.StartUntil(ctx, "receiving data transfers", argv(serverDevice, tt.receiver)...)
			s := tool.Result(ctx, append(argv(clientDevice, tt.sender), "-s")...)
			want := func(text, flags string) string {
				n := 1
				if _, after, ok := strings.Cut(flags, "-c "); ok {
					n = clib.Atoi(after)
				}
				text = strings.Replace(text, joined, strings.Repeat(strings.Replace(joined, "239.1.2.3", fmt.Sprintf("239.88.0.%d", i+1), 1), n), 1)
				if strings.Contains(flags, "-C 0") {
					text = without(text, "initiating data transfers", "receiving data transfers", "data transfers complete")
				}
				return text
			}
			checkTranscript(t, "sender", s, want(client, tt.sender))
			checkTranscript(t, "receiver", <-r, want(server, tt.receiver))
		})
	}
	t.Run("no loopback", func(t *testing.T) {
		code, stdout, stderr := tool.Run(t.Context(), strings.Fields("mckey -m 239.88.0.9 -l -b "+serverAddr+" --ib-dev "+serverDevice)...)
		const line = "mckey: unable to create QP: Operation not supported\nadverb: -l: "
		if code != 255 || !strings.HasPrefix(stderr, line) || stdout != "mckey: starting server\nmckey: joining\ntest complete\nreturn status -1\n" {
			t.Errorf("got status %d, stdout:\n%sstderr:\n%swant status 255 and stderr %q…", code, stdout, stderr, line)
		}
	})
}

// Datagrams that are larger than the MTU are refused at either end.
func TestDatagramTooLarge(t *testing.T) {
	const line = ": message_size 4097 is larger than active mtu 4096\n"
	s, c := runPair(t, "udaddy -S 4097", "udaddy")
	if s.Code != 234 || s.Stdout != "udaddy: starting server\nudaddy"+line+"udaddy: failing connection request\nreceiving data transfers\nsending replies\ndata transfers complete\ntest complete\nreturn status -22\n" {
		t.Errorf("server: got %+v, want status 234, the line about the size, and the transfer of the rest", s)
	}
	if c.Code != 2 || !strings.Contains(c.Stdout, "udaddy: event: RDMA_CM_EVENT_UNREACHABLE, error: 2\ntest complete\nreturn status 2\n") {
		t.Errorf("client: got %+v, want status 2 and RDMA_CM_EVENT_UNREACHABLE", c)
	}
	code, stdout, _ := tool.Run(t.Context(), strings.Fields("mckey -m 239.88.0.9 -S 4097 -b "+serverAddr+" --ib-dev "+serverDevice)...)
	if code != 234 || !strings.Contains(stdout, "mckey"+line) {
		t.Errorf("mckey: got status %d, %s, want status 234 and %q", code, stdout, "mckey"+line)
	}
}

// If nobody listens, a client prints the C program's line and the reason, and has its status.
func TestCMToolRefused(t *testing.T) {
	idle := tool.Start(t.Context(), "ucmatose", "--ib-dev", serverDevice, "--port", tooltest.FreePort(t), "-c", "0") // opens QP1
	<-idle.Done
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	srv := startServer(ctx, tooltest.FreePort(t), "ucmatose")
	for _, tt := range []struct {
		line, event string
		status      int
	}{
		{"ucmatose -c 2", "cmatose: event: RDMA_CM_EVENT_REJECTED, error: 8\n", int(rdmacm.RejectInvalidServiceID)},
		{"udaddy", "udaddy: event: RDMA_CM_EVENT_UNREACHABLE, error: 1\n", 1},
	} {
		r := runClient(t.Context(), tooltest.FreePort(t), tt.line)
		want := fmt.Sprintf("%stest complete\nreturn status %d\n", tt.event, tt.status)
		if r.Code != tt.status || !strings.HasSuffix(r.Stdout, want) || !strings.Contains(r.Stderr, "no listener for port") {
			t.Errorf("%s: got %+v, want status %d, stdout …%q, and a stderr that names the port", tt.line, r, tt.status, want)
		}
	}
	cancel()
	if r := <-srv.Done; r.Code != cli.StatusInterrupted || r.Stdout != "cmatose: starting server\n" || r.Stderr != "adverb: interrupted\n" {
		t.Errorf("server: got %+v, want status %d and its first line only", r, cli.StatusInterrupted)
	}
}

// A second server on a port fails, and says why.
func TestCMToolAddressInUse(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for prog, name := range map[string]string{"ucmatose": "cmatose", "udaddy": "udaddy"} {
		port := tooltest.FreePort(t)
		first := startServer(ctx, port, prog)
		r := <-startServer(ctx, port, prog).Done
		want := name + ": starting server\ntest complete\nreturn status -1\n"
		if r.Code != 255 || r.Stdout != want || !strings.HasPrefix(r.Stderr, name+": bind address failed: Address already in use\nadverb: bind ") {
			t.Errorf("%s: got %+v, want status 255, stdout %q and a stderr that says that the address is in use", prog, r, want)
		}
		defer func() { cancel(); <-first.Done }()
	}
}

// Ends whose flags do not fit together come to an end. The C programs wait for ever.
func TestCmatoseFlagsDiffer(t *testing.T) {
	t.Run("connections", func(t *testing.T) {
		s, c := runPair(t, "ucmatose -c 1", "ucmatose -c 2")
		if c.Code != 28 || !strings.Contains(c.Stdout, "cmatose: event: RDMA_CM_EVENT_REJECTED, error: 28\n") {
			t.Errorf("client: got %+v, want status 28 and RDMA_CM_EVENT_REJECTED", c)
		}
		if s.Code == 0 || !strings.Contains(s.Stdout, "cmatose: failing connection request\n") || !strings.Contains(s.Stderr, cm.ErrTooMany.Error()) {
			t.Errorf("server: got %+v, want a failure and the reason %q", s, cm.ErrTooMany)
		}
	})
	t.Run("messages", func(t *testing.T) { // the client has no receives for the rest, and the server waits for more
		s, _ := runPair(t, "ucmatose -C 10", "ucmatose -C 5")
		if s.Code != 255 || !strings.Contains(s.Stdout, "cmatose: failed polling CQ: -1\n") || s.Stderr == "" {
			t.Errorf("server: got %+v, want status 255, the line of a failed poll, and a reason", s)
		}
	})
	t.Run("size", func(t *testing.T) {
		s, c := runPair(t, "ucmatose -S 200", "ucmatose -S 100")
		// The network decides which of the two the client sees first.
		why := strings.Contains(c.Stderr, "work request") || strings.Contains(c.Stderr, errPeerLeft.Error())
		if s.Code != 255 || c.Code != 255 || !why {
			t.Errorf("server: got %+v\nclient: got %+v\nwant status 255 of both, and the client's reason", s, c)
		}
	})
}

// atLine is an output. When its line is printed, do runs before the program goes on.
type atLine struct {
	line string
	do   func()
}

func (a atLine) Write(b []byte) (int, error) {
	if string(b) == a.line {
		a.do()
	}
	return len(b), nil
}

// connectSlowly connects to cmatose, and disconnects when the server does. Before it says that its QP is ready,
// it calls meanwhile. It has no QP: no data flows.
func connectSlowly(ctx context.Context, t *testing.T, port string, meanwhile func()) {
	t.Helper()
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	dev, err := verbs.Open(clientDevice)
	ok(err)
	ch := rdmacm.NewEventChannel(dev)
	id, err := rdmacm.NewID(ch, rdmacm.PortSpaceTCP)
	ok(err)
	defer func() { ok(errors.Join(id.Close(), ch.Close(), dev.Close())) }()
	then := func(err error, want rdmacm.EventType) {
		t.Helper()
		ok(err)
		if ev, err := ch.Next(ctx); err != nil || ev.Type != want {
			t.Fatalf("got event %v, %v, want %v", ev.Type, err, want)
		}
	}
	then(id.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort(serverAddr+":"+port)), rdmacm.EventAddrResolved)
	then(id.ResolveRoute(), rdmacm.EventRouteResolved)
	param := rdmacm.DefaultConnParam()
	param.QPN = 1000
	then(id.Connect(&param), rdmacm.EventConnectResponse)
	meanwhile()
	then(id.Establish(), rdmacm.EventDisconnected)
}

// A server that has refused a client beyond -c ends with that status, though all goes well with the other one.
func TestRefusedBeyondCount(t *testing.T) {
	for _, tt := range []struct {
		prog, server string
		good         func(ctx context.Context, port string, refused func()) // calls refused while the server has it as a client
	}{
		{"cmatose", "ucmatose", func(ctx context.Context, port string, refused func()) {
			tool.RunTo(ctx, atLine{"receiving data transfers\n", refused}, io.Discard, clientArgs(port, "ucmatose")...)
		}},
		{"cmatose", "ucmatose -C 0", func(ctx context.Context, port string, refused func()) {
			connectSlowly(ctx, t, port, refused)
		}},
		{"udaddy", "udaddy", func(ctx context.Context, port string, refused func()) {
			tool.RunTo(ctx, atLine{"initiating data transfers\n", refused}, io.Discard, clientArgs(port, "udaddy")...)
		}},
	} {
		t.Run(strings.ReplaceAll(tt.server, " ", ""), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
			defer cancel()
			port := tooltest.FreePort(t)
			srv := startServer(ctx, port, tt.server)
			tt.good(ctx, port, func() {
				if c := runClient(ctx, port, tt.server); c.Code == 0 {
					t.Errorf("the client beyond -c: got %+v, want a failure", c)
				}
			})
			s := <-srv.Done
			if want := cm.ExitStatus(cm.StatusNoMemory); s.Code != want || !strings.Contains(s.Stdout, tt.prog+": failing connection request\n") || !strings.Contains(s.Stderr, cm.ErrTooMany.Error()) {
				t.Errorf("server: got %+v, want status %d and the reason %q", s, want, cm.ErrTooMany)
			}
		})
	}
}

// Two processes share the device of the loopback interface.
func TestCMToolProcesses(t *testing.T) {
	tooltest.Exclusive(t, "soft_lo")
	for _, tt := range []struct{ name, prog, flags, bind, host string }{
		{"cmatose", "ucmatose", "-c 3 -m", "", "localhost"},
		{"cmatose IPv6", "ucmatose", "", "::0", "::1"},
		{"cmatose bound", "ucmatose", "-S 3000", "127.0.0.1", "127.0.0.1"},
		{"udaddy", "udaddy", "", "", "localhost"},
		{"udaddy IPv6", "udaddy", "-c 2", "::1", "::1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if strings.Contains(tt.host, ":") {
				tooltest.LoopbackGID(t, tt.host)
			}
			ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
			defer cancel()
			argv := append([]string{tt.prog, "--port", tooltest.FreePort(t)}, strings.Fields(tt.flags)...)
			server := argv
			if tt.bind != "" {
				server = append(argv[:len(argv):len(argv)], "-b", tt.bind)
			}
			s := tooltest.StartProcess(ctx, t, server...)
			s.AwaitListening(ctx, t, "soft_lo")
			c := tooltest.StartProcess(ctx, t, append(argv[:len(argv):len(argv)], "-s", tt.host)...)
			results := map[string]tooltest.Result{"server": <-s.Done, "client": <-c.Done}
			for who, r := range results {
				if r.Code != 0 {
					t.Logf("%s: got %+v", who, r)
				}
			}
			for who, r := range results {
				want := tooltest.Transcript(t, tt.prog+"_"+who+".txt")
				if strings.Contains(tt.flags, "-m") && who == "server" {
					want = with(want, "cmatose: disconnecting\n", "migrating to new event channel\n")
				} else if strings.Contains(tt.flags, "-m") {
					want = with(want, "test complete\n", "migrating to new event channel\n")
				}
				checkTranscript(t, who, r, want)
			}
		})
	}
}

// A client whose answer fails disconnects and says why. The server still waits for the answer, so the
// two would wait for each other.
func TestCmatoseReplyFails(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	port := tooltest.FreePort(t)
	p := tooltest.ListenPeer(ctx, t, serverDevice, serverAddr, port)
	done := make(chan tooltest.Result, 1)
	go func() { done <- runClient(ctx, port, "cmatose -C 1 -S 3000") }()
	p.Accept()
	p.Send([]byte("a message; the receive for the answer is shorter than the answer"))
	p.Expect(rdmacm.EventDisconnected)
	p.Must(p.ID.Disconnect())
	if r := <-done; r.Code != 255 || !strings.Contains(r.Stdout, "cmatose: failed polling CQ: -1\n") || !strings.Contains(r.Stderr, "WC_REM_INV_REQ_ERR") {
		t.Errorf("client: got %+v, want status 255, the line of a failed poll, and WC_REM_INV_REQ_ERR", r)
	}
}

// stranger asks a udaddy server for n QPs, and never sends to them.
func stranger(ctx context.Context, t *testing.T, port string, device string, n int) {
	t.Helper()
	d, err := verbs.Open(device)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	ch := rdmacm.NewEventChannel(d)
	t.Cleanup(func() { ch.Close() })
	dst := netip.MustParseAddrPort(serverAddr + ":" + port)
	await := func(want rdmacm.EventType) {
		t.Helper()
		if ev, err := ch.Next(ctx); err != nil || ev.Type != want {
			t.Fatalf("stranger: got %v, %v, %v, want %v", ev.Type, ev.Err, err, want)
		}
	}
	for range n {
		id, err := rdmacm.NewID(ch, rdmacm.PortSpaceUDP)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { id.Close() })
		for _, step := range []struct {
			do   func() error
			then rdmacm.EventType
		}{
			{func() error { return id.ResolveAddr(netip.AddrPort{}, dst) }, rdmacm.EventAddrResolved},
			{id.ResolveRoute, rdmacm.EventRouteResolved},
			{func() error { return id.Connect(&rdmacm.ConnParam{QPN: 1}) }, rdmacm.EventEstablished},
		} {
			if err := step.do(); err != nil {
				t.Fatal(err)
			}
			await(step.then)
		}
	}
}

// A stranger who asks for all QPs that a udaddy server has, and sends nothing, does not keep its client out. The server
// waited for him for ever.
func TestUdaddyStranger(t *testing.T) {
	for _, n := range []int{1, 3} {
		ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
		defer cancel()
		port, line := tooltest.FreePort(t), fmt.Sprintf("udaddy -c %d", n)
		s := startServer(ctx, port, line)
		stranger(ctx, t, port, "soft_lo@127.0.88.23", n)
		if c := runClient(ctx, port, line); c.Code != 0 {
			t.Errorf("-c %d: the client: got status %d, stdout:\n%sstderr:\n%s", n, c.Code, c.Stdout, c.Stderr)
			cancel() // the server
		}
		if r := <-s.Done; r.Code != 0 || strings.Count(r.Stderr, "has asked and sent nothing") != n {
			t.Errorf("-c %d: the server: got status %d, stdout:\n%sstderr:\n%swant status 0, and word of the stranger's places", n, r.Code, r.Stdout, r.Stderr)
		}
	}
}
