package rping

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
)

// The devices of these tests, on addresses that no other test has.
const (
	serverAddr   = "127.0.88.11"
	serverDevice = "soft_lo@127.0.88.11"
	clientDevice = "soft_lo@127.0.88.12"
)

// testPort is another port in each process, so that two runs of the tests do not meet.
var testPort = tooltest.FreeCMPort()

const nobodyListens = "cma event RDMA_CM_EVENT_REJECTED, error 8\n"

// untilListening runs a client again and again until the server listens. A server of rping does not
// say when it does.
func untilListening(client func() tooltest.Result) tooltest.Result {
	for {
		if r := client(); !strings.HasPrefix(r.Stderr, nobodyListens) {
			return r
		}
	}
}

func startServer(ctx context.Context, t *testing.T, flags string) <-chan tooltest.Result {
	t.Helper()
	server := tool.Background(ctx, strings.Fields("rping -s -p "+testPort+" --ib-dev "+serverDevice+" "+flags)...)
	tooltest.AwaitCM(ctx, t, clientDevice, serverAddr)
	return server
}

func runClient(ctx context.Context, flags string) tooltest.Result {
	return untilListening(func() tooltest.Result {
		return <-tool.Background(ctx, strings.Fields("rping -c -p "+testPort+" --ib-dev "+clientDevice+" -a "+serverAddr+" "+flags)...)
	})
}

// checkRounds compares 20 rounds of the default size with those of the C program.
func checkRounds(t *testing.T, server, client tooltest.Result) {
	t.Helper()
	tooltest.CheckLines(t, server, 0, tooltest.Transcript(t, "rping_server.txt"))
	tooltest.CheckLines(t, client, 0, tooltest.Transcript(t, "rping_client.txt"))
}

func TestRping(t *testing.T) {
	for _, tt := range []struct{ server, client string }{
		{"-v -C 20", "-v -C 20"},
		{"-v", "-vV -C20"},
		{"-vq -p 7175", "-v -C 20 -p 7175"},
		{"-v", "-v -C 20 -q"},
		{"--verbose --own-qp", "--verbose --count=20 --own-qp"},
		{"-v -S 65535", "-v -C 20 -I 127.0.88.12"},
		{"-v -a " + serverAddr, "-v -V -C 20 -P"},
	} {
		t.Run(strings.ReplaceAll(tt.server+"|"+tt.client, " ", ""), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
			defer cancel()
			server := startServer(ctx, t, tt.server)
			client := runClient(ctx, tt.client)
			checkRounds(t, <-server, client)
		})
	}
}

// Ends with one key bounce data, and so does a server of many. Ends that do not agree say why.
func TestRpingPSK(t *testing.T) {
	one, same, other := " --psk "+tooltest.PSK(t, "a"), " --psk "+tooltest.PSK(t, "a"), " --psk "+tooltest.PSK(t, "b")
	for _, tt := range []struct {
		server, client string
		want           string // of the client's failure
	}{
		{one, same, ""},
		{one + " -P", same, ""},
		{one, "", "the listener demands packet security"},
		{one, other, "the listener has another pre-shared key"},
		{"", one, "the peer does not offer packet security"},
	} {
		t.Run(tt.want, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
			defer cancel()
			server := startServer(ctx, t, "-v -C 20"+tt.server)
			client := runClient(ctx, "-v -C 20"+tt.client)
			if tt.want != "" {
				if client.Code == 0 || !strings.Contains(client.Stderr, tt.want) {
					t.Errorf("got status %d, stderr %q, want %q", client.Code, client.Stderr, tt.want)
				}
				if !strings.Contains(client.Stderr, "--psk FILE") || strings.Contains(client.Stderr, "Security") {
					t.Errorf("got stderr %q, want the flag named, and nothing of the API", client.Stderr)
				}
				cancel() // a server does not hear of clients that it refuses
				<-server
				return
			}
			tooltest.CheckLines(t, client, 0, tooltest.Transcript(t, "rping_client.txt"))
			cancel()
			<-server
		})
	}
	for flags, want := range map[string]string{"-q" + one: "exclude each other", "--psk /no/such/file": "read the pre-shared key"} {
		r := tool.Result(t.Context(), strings.Fields("rping -s "+flags)...)
		if r.Code != statusUsage || !strings.Contains(r.Stderr, want) {
			t.Errorf("%s: got status %d, stderr %q, want %q", flags, r.Code, r.Stderr, want)
		}
	}
}

// Each size comes back as it was sent, and the server prints the same as the client.
func TestRpingSizes(t *testing.T) {
	for _, size := range []int{23, 63, 1024, 1025, 4097, 65535} {
		t.Run(strconv.Itoa(size), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
			defer cancel()
			flags := fmt.Sprintf("-v -S %d", size)
			done := startServer(ctx, t, flags)
			client := runClient(ctx, flags+" -V -C 5")
			server := <-done
			for _, r := range []tooltest.Result{server, client} {
				if r.Code != 0 || strings.Count(r.Stdout, "\n") != 5 {
					t.Fatalf("got status %d, stdout %q, stderr: %s, want status 0 and 5 lines", r.Code, r.Stdout, r.Stderr)
				}
			}
			lines := strings.Split(client.Stdout, "\n")
			if got := len(strings.TrimPrefix(lines[0], "ping data: ")); got != size-1 {
				t.Errorf("got %d characters, want %d for %d bytes", got, size-1, size)
			}
			if want := "server " + strings.Join(lines[:5], "\nserver ") + "\n"; server.Stdout != want {
				t.Errorf("got server\n%swant\n%s", server.Stdout, want)
			}
		})
	}
}

// A persistent server serves clients one after the other and at once, until Ctrl-C.
func TestRpingPersistent(t *testing.T) {
	for _, flags := range []string{"-P -v", "-P -v -q"} {
		ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
		serverCtx, stop := context.WithCancel(ctx)
		done := startServer(serverCtx, t, flags)
		const clients, rounds = 5, 20
		tooltest.CheckLines(t, runClient(ctx, "-v -C 20"), 0, tooltest.Transcript(t, "rping_client.txt"))
		var wg sync.WaitGroup
		for range clients {
			wg.Go(func() {
				tooltest.CheckLines(t, runClient(ctx, "-v -C 20"), 0, tooltest.Transcript(t, "rping_client.txt"))
			})
		}
		wg.Wait()
		if r := runClient(ctx, "-S 100"); r.Code != 0 || !strings.Contains(r.Stderr, "client DISCONNECT EVENT...\nwait for RDMA_WRITE_ADV state 10\n") {
			t.Errorf("a client with too much data: got status %d, stderr:\n%swant status 0 and a disconnect", r.Code, r.Stderr)
		}
		tooltest.CheckLines(t, runClient(ctx, "-v -C 20"), 0, tooltest.Transcript(t, "rping_client.txt"))
		stop()
		server := <-done
		if n := strings.Count(server.Stdout, "server ping data: rdma-ping-19: T"); server.Code != cli.StatusInterrupted || n != clients+2 {
			t.Errorf("%s: got status %d, %d clients served, want status %d and %d clients; stderr:\n%s", flags, server.Code, n, cli.StatusInterrupted, clients+2, server.Stderr)
		}
		if !strings.HasSuffix(server.Stderr, "adverb: interrupted\n") || !strings.Contains(server.Stderr, "start it with -S 100\n") {
			t.Errorf("%s: got stderr:\n%swant the advice of -S 100, and that it was interrupted", flags, server.Stderr)
		}
		cancel()
	}
}

// A server without -P refuses further clients, and goes on with the first.
func TestRpingSecondClient(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	server := startServer(ctx, t, "")
	peer := tooltest.DialPeer(ctx, t, clientDevice, serverAddr, testPort)
	if r := runClient(ctx, ""); r.Code != 255 || !strings.HasPrefix(r.Stderr, "cma event RDMA_CM_EVENT_REJECTED, error 28\nwait for CONNECTED state 4\n") {
		t.Errorf("got status %d, stderr:\n%swant status 255 and RDMA_CM_EVENT_REJECTED with error 28", r.Code, r.Stderr)
	}
	peer.Close()
	tooltest.CheckLines(t, <-server, 0, "server DISCONNECT EVENT...\nwait for RDMA_READ_ADV state 10\n")
}

// A second server on an address and port fails.
func TestRpingPortTaken(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	server := startServer(ctx, t, "-P")
	runClient(ctx, "-C 1")
	if r := <-startServer(ctx, t, ""); r.Code != 255 || !strings.HasPrefix(r.Stderr, "rdma_bind_addr: Address already in use\nadverb: bind ") {
		t.Errorf("got status %d, stderr:\n%swant status 255 and that the address is in use", r.Code, r.Stderr)
	}
	cancel()
	<-server
}

// -d prints the steps in the order of the C program. The addresses of objects differ.
func TestRpingDebug(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	done := startServer(ctx, t, "-d -v")
	client := runClient(ctx, "-d -V -C 1")
	server := <-done
	mask := regexp.MustCompile(`0x[0-9a-f]+`)
	if got := mask.ReplaceAllString(client.Stdout, "P"); !strings.HasPrefix(got, `validate data
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
		t.Errorf("client: got\n%swant the steps up to the first advert", got)
	}
	// The server may learn earlier or later that it is connected.
	steps := regexp.MustCompile(`(?m)^(cma_event type RDMA_CM_EVENT_ESTABLISHED.*|ESTABLISHED)\n`).ReplaceAllString(server.Stdout, "")
	if !regexp.MustCompile(`^verbose\ncreated cm_id 0x[\s\S]*\nReceived rkey [0-9a-f]+ addr [0-9a-f]+ len 64 from peer\nserver received sink adv\n` +
		`[\s\S]*\nserver received read complete\nserver ping data: [\s\S]*\nserver posted go ahead\n` +
		`[\s\S]*\nrdma write from lkey [0-9a-f]+ laddr [0-9a-f]+ len 64\nrdma write completion\nserver rdma write complete \nserver posted go ahead\n`).MatchString(steps) {
		t.Errorf("server: got\n%swant the steps of a round", server.Stdout)
	}
}

// Two processes, as a user runs them: over IPv4 and IPv6.
func TestRpingProcesses(t *testing.T) {
	tooltest.Exclusive(t, "soft_lo")
	for _, tt := range []struct{ server, client string }{
		{"-a 127.0.0.1", "-a localhost"},
		{"-a ::0", "-a ::1 -V"},
		{"-a ::0", "-a 127.0.0.1 -V"},
		{"-a ::1 -q", "-a ::1 -q"},
	} {
		t.Run(strings.ReplaceAll(tt.server+"|"+tt.client, " ", ""), func(t *testing.T) {
			if strings.Contains(tt.client, "::1") {
				tooltest.LoopbackGID(t, "::1")
			}
			ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
			defer cancel()
			port := tooltest.FreeCMPort()
			server := make(chan *tooltest.Started, 1)
			go func() { // it prints nothing until there is a client
				server <- tooltest.StartProcess(ctx, t, strings.Fields("rping -s -v -p "+port+" "+tt.server)...)
			}()
			client := untilListening(func() tooltest.Result {
				return <-tooltest.StartProcess(ctx, t, strings.Fields("rping -c -v -C 20 -p "+port+" "+tt.client)...).Done
			})
			checkRounds(t, <-(<-server).Done, client)
		})
	}
}

// Ctrl-C ends either side cleanly: the other one sees a disconnect.
func TestRpingInterrupted(t *testing.T) {
	for _, side := range []string{"server", "client"} {
		ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
		serverCtx, stopServer := context.WithCancel(ctx)
		clientCtx, stopClient := context.WithCancel(ctx)
		server := startServer(serverCtx, t, "")
		client := &tooltest.Started{}
		for client.FirstLine == "" { // until the server listens
			client = tool.Start(clientCtx, "rping", "-c", "-v", "-p", testPort, "--ib-dev", clientDevice, "-a", serverAddr)
		}
		other := "client"
		if side == "client" {
			other = "server"
			stopClient()
		} else {
			stopServer()
		}
		s, c := <-server, <-client.Done
		if side == "client" {
			s, c = c, s
		}
		if s.Code != cli.StatusInterrupted || s.Stderr != "adverb: interrupted\n" {
			t.Errorf("%s: got status %d, stderr:\n%swant status %d and that it was interrupted", side, s.Code, s.Stderr, cli.StatusInterrupted)
		}
		if c.Code != 0 || !strings.HasPrefix(c.Stderr, other+" DISCONNECT EVENT...\nwait for RDMA_") {
			t.Errorf("%s: got status %d, stderr:\n%swant status 0 and a disconnect", other, c.Code, c.Stderr)
		}
		stopServer()
		stopClient()
		cancel()
	}
}
