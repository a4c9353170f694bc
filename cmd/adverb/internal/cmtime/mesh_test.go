package cmtime

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
)

const (
	meshClientSteps = "\tCreating IDs\n\tBinding addresses\n\tResolving addresses\n\tResolving routes\n\tCreating QPs\n%s\tModify QPs to INIT\n" +
		"\tConnecting\n\tDisconnecting\n\tDestroying QPs\n\tDestroying IDs\n"
	meshAllocating = "\tAllocating verbs resources\n"
)

// meshTable is the pattern of a table, with a rate if there is one.
func meshTable(kind string, conns, threads int) string {
	s := fmt.Sprintf("%s        %10d\nthreads        %10d\n", kind, conns, threads) +
		regexp.QuoteMeta("step             avg/conn  total(us)    us/conn    sum(us)    max(us)    min(us)\n")
	for _, name := range meshStepNames {
		s += fmt.Sprintf(`%-13s  ( +\d+){6}\n`, name)
	}
	return s + `(rate +\d+ connections/s \(cm connect\)\n)?`
}

// meshServer and meshClient are the patterns of two peers' output.
func meshServer(conns int, test, kind string) string {
	const steps = "\tAccepting\n\tDisconnecting\n"
	return "Server warmup\n\tAccepting\n" + meshAllocating + "\tDisconnecting\n" + fmt.Sprintf(test, "Accept", conns) + steps + meshTable(kind, conns, 1) +
		fmt.Sprintf(`Accept \(%d\) test - no QPs\n`, conns) + steps + meshTable("cm_conn", conns, 1)
}

func meshClient(conns, threads int, test, kind string) string {
	steps := fmt.Sprintf(meshClientSteps, "")
	return "Client warmup\n" + fmt.Sprintf(meshClientSteps, meshAllocating) + fmt.Sprintf(test, "Connect", conns) + steps + meshTable(kind, conns, threads) +
		fmt.Sprintf(`Connect \(%d\) test - no QPs\n`, conns) + steps + meshTable("cm_conn", conns, threads)
}

// meshArgs is the command line of a peer of a mesh whose controller is at 127.0.0.1.
func meshArgs(dev, port, flags string) []string {
	addr := strings.TrimPrefix(dev, "soft_lo@")
	return strings.Fields("cmtime -C 127.0.0.1 -p " + port + " -b " + addr + " --ib-dev " + dev + " " + flags)
}

func checkPattern(t *testing.T, who string, r tooltest.Result, pattern string) {
	t.Helper()
	if r.Code != 0 || r.Stderr != "" || !regexp.MustCompile("^"+pattern+"$").MatchString(r.Stdout) {
		t.Errorf("%s: status %d, stdout:\n%sstderr:\n%swant\n%s", who, r.Code, r.Stdout, r.Stderr, pattern)
	}
}

const meshRoot = "Running as OOB root\n"

func TestCmtimeMesh(t *testing.T) {
	const real, mimic = `%s \(%d\) QPs test\n`, `%s \(%d\) simulated QPs test \(delay 5 us\)\n`
	for _, tt := range []struct {
		name, server, client string
		wantServer           string
		wantClient           string
	}{
		{"server is root", "-c 30", "-c 30 -n 3 --rate", meshRoot + meshServer(30, real, "qp_conn"), meshClient(30, 3, real, "qp_conn")},
		{"no QPs", "-c 5 -m 5", "-c 5 -m 5 -q 77", meshRoot + meshServer(5, mimic, "cm_conn"), meshClient(5, 1, mimic, "cm_conn")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
			defer cancel()
			port := tooltest.FreePort(t)
			s := tool.Start(ctx, meshArgs(serverDevice, port, "-L "+tt.server)...)
			code, stdout, stderr := tool.Run(ctx, meshArgs(clientDevice, port, tt.client)...)
			checkPattern(t, "server", <-s.Done, tt.wantServer)
			checkPattern(t, "client", tooltest.Result{Code: code, Stdout: stdout, Stderr: stderr}, tt.wantClient)
		})
	}
}

// Two clients and a server, and a client is the controller.
func TestCmtimeMeshOfThree(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	port := tooltest.FreePort(t)
	root := tool.Start(ctx, meshArgs(clientDevice, port, "-P 3 -c 4")...)
	server := tool.Background(ctx, meshArgs(serverDevice, port, "-P 3 -c 4 -L")...)
	code, stdout, stderr := tool.Run(ctx, meshArgs("soft_lo@127.0.88.53", port, "-P 3 -c 4")...)
	steps := fmt.Sprintf(meshClientSteps, "")
	want := "Client warmup\n" + fmt.Sprintf(meshClientSteps, meshAllocating) + `Connect \(4\) QPs test\n` + steps + meshTable("qp_conn", 4, 1)
	checkPattern(t, "client", tooltest.Result{Code: code, Stdout: stdout, Stderr: stderr}, want)
	checkPattern(t, "root", <-root.Done, meshRoot+want)
	checkPattern(t, "server", <-server, "Server warmup\n\tAccepting\n"+meshAllocating+"\tDisconnecting\n"+
		`Accept \(8\) QPs test\n`+"\tAccepting\n\tDisconnecting\n"+meshTable("qp_conn", 8, 1))
}

func TestCmtimeSockets(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	port := tooltest.FreePort(t)
	s := tool.Start(ctx, strings.Fields("cmtime -C 127.0.0.1 -p "+port+" -b 127.0.0.1 -L -S -c 7")...)
	code, stdout, stderr := tool.Run(ctx, strings.Fields("cmtime -C 127.0.0.1 -p "+port+" -b 127.0.0.1 -S -c 7")...)
	checkPattern(t, "client", tooltest.Result{Code: code, Stdout: stdout, Stderr: stderr}, "Client baseline socket setup\nCreating sockets\nConnecting sockets\nClosing sockets\n"+
		"Client baseline socket results:\n"+meshTable("cm_conn", 7, 1))
	checkPattern(t, "server", <-s.Done, meshRoot+"Server baseline socket setup\nAccept sockets\nClosing sockets\n"+
		"Server baseline socket results:\n"+meshTable("cm_conn", 7, 1))
}

// All peers are told if their roles do not fit together.
func TestCmtimeMeshRoles(t *testing.T) {
	for flags, want := range map[string]string{"-L": "cannot have all listeners\n", "": "need at least 1 listener\n"} {
		ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
		defer cancel()
		port := tooltest.FreePort(t)
		root := tool.Start(ctx, meshArgs(serverDevice, port, flags)...)
		code, stdout, _ := tool.Run(ctx, meshArgs(clientDevice, port, flags)...)
		if r := <-root.Done; code != 1 || stdout != want || r.Code != 1 || r.Stdout != meshRoot+want {
			t.Errorf("%q: got status %d, %s, root: %+v, want status 1 and %q of both", flags, code, stdout, r, want)
		}
	}
}

// A peer that leaves ends the runs of the others, which say why.
func TestCmtimeMeshPeerGone(t *testing.T) {
	port := tooltest.FreePort(t)
	root := tool.Start(t.Context(), meshArgs(serverDevice, port, "-L")...)
	conn, err := net.Dial("tcp", "127.0.0.1:"+port)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(meshPeer{}.appendTo(nil)); err != nil {
		t.Fatal(err)
	}
	conn.Close()
	if r := <-root.Done; r.Code != 1 || !strings.HasPrefix(r.Stderr, "adverb: "+errOOBGone.Error()) {
		t.Errorf("got %+v, want status 1 and %q", r, errOOBGone)
	}
	ctx, cancel := context.WithCancel(t.Context())
	root = tool.Start(ctx, meshArgs(serverDevice, port, "-L")...)
	cancel()
	if r := <-root.Done; r.Code != cli.StatusInterrupted || r.Stderr != "adverb: interrupted\n" {
		t.Errorf("got %+v, want status %d and that it was interrupted", r, cli.StatusInterrupted)
	}
}

// An instance that is at another step ends the run of the one that waits for it.
func TestMeshOtherStep(t *testing.T) {
	for _, root := range []bool{true, false} {
		conn, other := net.Pipe()
		go other.Write([]byte{meshDisconnect})
		go io.Copy(io.Discard, other)
		o := &oob{root: root, peers: 2, conns: []net.Conn{conn}}
		want := fmt.Sprintf("is at step %d, this one at %d", meshDisconnect, meshConnect)
		if err := o.sync(meshConnect); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("root %v: got %v, want an error with %q", root, err, want)
		}
		o.close()
		other.Close()
	}
}

func TestMeshPeer(t *testing.T) {
	for _, p := range []meshPeer{
		{}, {netip.MustParseAddrPort("10.98.0.2:7471"), true}, {netip.MustParseAddrPort("[fd98::2]:40000"), true},
	} {
		b := p.appendTo(nil)
		if got, err := decodeMeshPeer(b); len(b) != meshPeerSize || err != nil || got != p {
			t.Errorf("got %d bytes, and %+v, %v back, want %d bytes and %+v", len(b), got, err, meshPeerSize, p)
		}
	}
	// As a C program on x86 has it in memory.
	b := meshPeer{netip.MustParseAddrPort("10.98.0.2:7471"), true}.appendTo(nil)
	if string(b[:8]) != "\x02\x00\x1d\x2f\x0a\x62\x00\x02" || b[128] != 1 {
		t.Errorf("got % x, want AF_INET, port 7471 in network order, the address, and 1 at offset 128", b)
	}
	for _, at := range []int{0, 129} { // an address family, a role
		bad := append([]byte(nil), b...)
		bad[at] = 77
		if _, err := decodeMeshPeer(bad); err == nil {
			t.Errorf("byte %d is wrong: got no error, want one", at)
		}
	}
}

func FuzzDecodeMeshPeer(f *testing.F) {
	f.Add(meshPeer{netip.MustParseAddrPort("[fd98::2]:40000"), true}.appendTo(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) != meshPeerSize {
			return
		}
		p, err := decodeMeshPeer(b)
		if err != nil {
			return
		}
		if again, err := decodeMeshPeer(p.appendTo(nil)); err != nil || again != p {
			t.Errorf("got %+v, %v back, want %+v", again, err, p)
		}
	})
}
