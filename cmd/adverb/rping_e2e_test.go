package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// The devices of these tests, on addresses that no other test has.
const (
	rpingServerAddr   = "127.0.88.11"
	rpingServerDevice = "soft_lo@127.0.88.11"
	rpingClientDevice = "soft_lo@127.0.88.12"
)

// rpingTestPort is another one in each process, so that two runs of the tests do not meet.
var rpingTestPort = freeCMPort()

// background runs the tool in this process.
func background(ctx context.Context, argv ...string) <-chan result {
	done := make(chan result, 1)
	go func() {
		code, stdout, stderr := tool(ctx, argv...)
		done <- result{code, stdout, stderr}
	}()
	return done
}

// awaitCM blocks until a connection manager answers at the address, be it with a no. Before that, what
// is sent there is lost, and repeated only after a second.
func awaitCM(ctx context.Context, t *testing.T, device, addr string) {
	t.Helper()
	p := newScriptedPeer(ctx, t, device)
	defer p.close()
	const nobodysPort = 1
	for {
		id := p.newID()
		p.must(id.ResolveAddr(netip.AddrPort{}, netip.AddrPortFrom(netip.MustParseAddr(addr), nobodysPort)))
		p.expect(rdmacm.EventAddrResolved)
		p.must(id.ResolveRoute())
		p.expect(rdmacm.EventRouteResolved)
		p.must(id.CreateQP(nil, verbs.QPInitAttr{Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}}))
		p.must(id.Connect(nil))
		answer, cancel := context.WithTimeout(ctx, 5*time.Millisecond)
		ev, err := p.ch.Next(answer)
		cancel()
		p.must(id.Close())
		switch {
		case err == nil && ev.Status == int(rdmacm.RejectInvalidServiceID):
			return
		case ctx.Err() != nil:
			t.Fatal("nobody answers")
		}
	}
}

const nobodyListens = "cma event RDMA_CM_EVENT_REJECTED, error 8\n"

// untilListening runs a client again and again until the server listens, which a rping server does not
// say.
func untilListening(client func() result) result {
	for {
		if r := client(); !strings.HasPrefix(r.stderr, nobodyListens) {
			return r
		}
	}
}

func rpingServer(ctx context.Context, t *testing.T, flags string) <-chan result {
	t.Helper()
	server := background(ctx, strings.Fields("rping -s -p "+rpingTestPort+" --ib-dev "+rpingServerDevice+" "+flags)...)
	awaitCM(ctx, t, rpingClientDevice, rpingServerAddr)
	return server
}

func rpingClient(ctx context.Context, flags string) result {
	return untilListening(func() result {
		return <-background(ctx, strings.Fields("rping -c -p "+rpingTestPort+" --ib-dev "+rpingClientDevice+" -a "+rpingServerAddr+" "+flags)...)
	})
}

// classicLines returns the lines of a run of the C program, in the order of a terminal.
func classicLines(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func checkLines(t *testing.T, r result, code int, want string) {
	t.Helper()
	if got := r.stdout + r.stderr; r.code != code || got != want {
		t.Errorf("status %d, want %d; stdout and stderr:\n%swant:\n%s", r.code, code, got, want)
	}
}

// checkRping compares a run of 20 rounds of the default size with one of the C program.
func checkRping(t *testing.T, server, client result) {
	t.Helper()
	checkLines(t, server, 0, classicLines(t, "rping_server.txt"))
	checkLines(t, client, 0, classicLines(t, "rping_client.txt"))
}

func TestRping(t *testing.T) {
	for _, tt := range []struct{ server, client string }{
		{"-v -C 20", "-v -C 20"},
		{"-v", "-vV -C20"},
		{"-vq -p 7175", "-v -C 20 -p 7175"},
		{"-v", "-v -C 20 -q"},
		{"--verbose --own-qp", "--verbose --count=20 --own-qp"},
		{"-v -S 65535", "-v -C 20 -I 127.0.88.12"},
		{"-v -a " + rpingServerAddr, "-v -V -C 20 -P"},
	} {
		t.Run(strings.ReplaceAll(tt.server+"|"+tt.client, " ", ""), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			server := rpingServer(ctx, t, tt.server)
			client := rpingClient(ctx, tt.client)
			checkRping(t, <-server, client)
		})
	}
}

// Each size comes back as it was sent, and the server prints what the client does.
func TestRpingSizes(t *testing.T) {
	for _, size := range []int{23, 63, 1024, 1025, 4097, 65535} {
		t.Run(strconv.Itoa(size), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			flags := fmt.Sprintf("-v -S %d", size)
			done := rpingServer(ctx, t, flags)
			client := rpingClient(ctx, flags+" -V -C 5")
			server := <-done
			for _, r := range []result{server, client} {
				if r.code != 0 || strings.Count(r.stdout, "\n") != 5 {
					t.Fatalf("status %d, stderr: %s", r.code, r.stderr)
				}
			}
			lines := strings.Split(client.stdout, "\n")
			if got := len(strings.TrimPrefix(lines[0], "ping data: ")); got != size-1 {
				t.Errorf("%d characters for %d bytes", got, size)
			}
			if want := "server " + strings.Join(lines[:5], "\nserver ") + "\n"; server.stdout != want {
				t.Error("the server read other data")
			}
		})
	}
}

// A persistent server serves clients one after the other and at once, until Ctrl-C.
func TestRpingPersistent(t *testing.T) {
	for _, flags := range []string{"-P -v", "-P -v -q"} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		serverCtx, stop := context.WithCancel(ctx)
		done := rpingServer(serverCtx, t, flags)
		const clients, rounds = 5, 20
		checkLines(t, rpingClient(ctx, "-v -C 20"), 0, classicLines(t, "rping_client.txt"))
		var wg sync.WaitGroup
		for range clients {
			wg.Go(func() { checkLines(t, rpingClient(ctx, "-v -C 20"), 0, classicLines(t, "rping_client.txt")) })
		}
		wg.Wait()
		if r := rpingClient(ctx, "-S 100"); r.code != 0 || !strings.Contains(r.stderr, "client DISCONNECT EVENT...\nwait for RDMA_WRITE_ADV state 10\n") {
			t.Errorf("a client with too much data: status %d, stderr:\n%s", r.code, r.stderr)
		}
		checkLines(t, rpingClient(ctx, "-v -C 20"), 0, classicLines(t, "rping_client.txt"))
		stop()
		server := <-done
		if n := strings.Count(server.stdout, "server ping data: rdma-ping-19: T"); server.code != statusInterrupted || n != clients+2 {
			t.Errorf("%s: status %d, %d clients served, stderr:\n%s", flags, server.code, n, server.stderr)
		}
		if !strings.HasSuffix(server.stderr, "adverb: interrupted\n") || !strings.Contains(server.stderr, "start it with -S 100\n") {
			t.Errorf("%s: stderr:\n%s", flags, server.stderr)
		}
		cancel()
	}
}

// A server without -P tells further clients so, and goes on with the first.
func TestRpingSecondClient(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	server := rpingServer(ctx, t, "")
	peer := dialScripted(ctx, t, rpingTestPort)
	if r := rpingClient(ctx, ""); r.code != 255 || !strings.HasPrefix(r.stderr, "cma event RDMA_CM_EVENT_REJECTED, error 28\nwait for CONNECTED state 4\n") {
		t.Errorf("status %d, stderr:\n%s", r.code, r.stderr)
	}
	peer.close()
	checkLines(t, <-server, 0, "server DISCONNECT EVENT...\nwait for RDMA_READ_ADV state 10\n")
}

// An address that is taken is no place for a second server.
func TestRpingPortTaken(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	server := rpingServer(ctx, t, "-P")
	rpingClient(ctx, "-C 1")
	if r := <-rpingServer(ctx, t, ""); r.code != 255 || !strings.HasPrefix(r.stderr, "rdma_bind_addr: Address already in use\nadverb: bind ") {
		t.Errorf("status %d, stderr:\n%s", r.code, r.stderr)
	}
	cancel()
	<-server
}

// -d says what is done, the addresses of objects aside, in the order of the C program.
func TestRpingDebug(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	done := rpingServer(ctx, t, "-d -v")
	client := rpingClient(ctx, "-d -V -C 1")
	server := <-done
	mask := regexp.MustCompile(`0x[0-9a-f]+`)
	if got := mask.ReplaceAllString(client.stdout, "P"); !strings.HasPrefix(got, `validate data
count 1
created cm_id P
cma_event type RDMA_CM_EVENT_ADDR_RESOLVED cma_id P (parent)
cma_event type RDMA_CM_EVENT_ROUTE_RESOLVED cma_id P (parent)
rdma_resolve_addr - rdma_resolve_route successful
created pd P
created channel P
created cq P
created qp P
rping_setup_buffers called on cb P
allocated & registered buffers...
cma_event type RDMA_CM_EVENT_ESTABLISHED cma_id P (parent)
ESTABLISHED
rdma_connect successful
RDMA addr `) {
		t.Errorf("client:\n%s", got)
	}
	// When the server learns that it is connected is a matter of chance.
	steps := regexp.MustCompile(`(?m)^(cma_event type RDMA_CM_EVENT_ESTABLISHED.*|ESTABLISHED)\n`).ReplaceAllString(server.stdout, "")
	if !regexp.MustCompile(`^verbose\ncreated cm_id 0x[\s\S]*\nReceived rkey [0-9a-f]+ addr [0-9a-f]+ len 64 from peer\nserver received sink adv\n` +
		`[\s\S]*\nserver received read complete\nserver ping data: [\s\S]*\nserver posted go ahead\n` +
		`[\s\S]*\nrdma write from lkey [0-9a-f]+ laddr [0-9a-f]+ len 64\nrdma write completion\nserver rdma write complete \nserver posted go ahead\n`).MatchString(steps) {
		t.Errorf("server:\n%s", server.stdout)
	}
}

// Two processes, as a user runs them: over IPv4 and IPv6.
func TestRpingProcesses(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only on Linux do processes share an address")
	}
	for _, tt := range []struct{ server, client string }{
		{"-a 127.0.0.1", "-a localhost"},
		{"-a ::0", "-a ::1 -V"},
		{"-a ::0", "-a 127.0.0.1 -V"},
		{"-a ::1 -q", "-a ::1 -q"},
	} {
		t.Run(strings.ReplaceAll(tt.server+"|"+tt.client, " ", ""), func(t *testing.T) {
			if strings.Contains(tt.client, "::1") {
				loopbackGID(t, "::1")
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			port := freeCMPort()
			server := make(chan *started, 1)
			go func() { // it prints nothing until there is a client
				server <- startProcess(ctx, t, strings.Fields("rping -s -v -p "+port+" "+tt.server)...)
			}()
			client := untilListening(func() result {
				return <-startProcess(ctx, t, strings.Fields("rping -c -v -C 20 -p "+port+" "+tt.client)...).done
			})
			checkRping(t, <-(<-server).done, client)
		})
	}
}

// freeCMPort returns a port that other runs of the tests on this machine hardly have. The
// connection manager's ports are none of the host's.
func freeCMPort() string {
	const first, count = 10000, 20000
	return strconv.Itoa(first + (os.Getpid()*31+int(portsTried.Add(1)))%count)
}

// Ctrl-C ends either side cleanly: the other one sees a disconnect.
func TestRpingInterrupted(t *testing.T) {
	for _, side := range []string{"server", "client"} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		serverCtx, stopServer := context.WithCancel(ctx)
		clientCtx, stopClient := context.WithCancel(ctx)
		server := rpingServer(serverCtx, t, "")
		client := &started{}
		for client.firstLine == "" { // until the server listens
			client = start(clientCtx, "rping", "-c", "-v", "-p", rpingTestPort, "--ib-dev", rpingClientDevice, "-a", rpingServerAddr)
		}
		other := "client"
		if side == "client" {
			other = "server"
			stopClient()
		} else {
			stopServer()
		}
		s, c := <-server, <-client.done
		if side == "client" {
			s, c = c, s
		}
		if s.code != statusInterrupted || s.stderr != "adverb: interrupted\n" {
			t.Errorf("%s: status %d, stderr:\n%s", side, s.code, s.stderr)
		}
		if c.code != 0 || !strings.HasPrefix(c.stderr, other+" DISCONNECT EVENT...\nwait for RDMA_") {
			t.Errorf("%s: status %d, stderr:\n%s", other, c.code, c.stderr)
		}
		stopServer()
		stopClient()
		cancel()
	}
}
