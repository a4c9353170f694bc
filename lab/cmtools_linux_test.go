package lab

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/adverb-rdma/adverb/rdmacm"
)

// The ends of rping print these lines on stderr when the client leaves. The lines are no error.
const (
	rpingClientEnd = "client DISCONNECT EVENT...\n"
	rpingServerEnd = "server DISCONNECT EVENT...\nwait for RDMA_READ_ADV state 10\n"

	// rpingLateEnd follows where C's program takes longer to end than the kernel keeps the connection in
	// its timewait state.
	rpingLateEnd = "unhandled event: RDMA_CM_EVENT_TIMEWAIT_EXIT, ignoring\n"
)

// rpingText returns the text that rping sends back and forth in a round, as "rdma-ping-0: ABCDE…".
// With the NUL behind the text, the text has size bytes.
func rpingText(round, size int) string {
	const first, last = 'A', 'z'
	b := fmt.Appendf(nil, "rdma-ping-%d: ", round)
	for c := first + round%(last-first+1); len(b) < size-1; c++ {
		if c > last {
			c = first
		}
		b = append(b, byte(c))
	}
	return string(b[:size-1])
}

// rpingLines returns the lines that one end prints in all rounds.
func rpingLines(prefix string, rounds, size int) string {
	var b strings.Builder
	for i := range rounds {
		fmt.Fprintf(&b, "%s: %s\n", prefix, rpingText(i, size))
	}
	return b.String()
}

func TestRping(t *testing.T) {
	needLab(t)
	cmRows("rping", func(s scenario) {
		sizes := []int{23, 4095, 4097, 65535} // the first and the last are the program's limits
		if s.mtu != mtus[0] {
			sizes = sizes[1:]
		}
		for _, size := range sizes {
			s := s
			s.variant = strconv.Itoa(size)
			s.run(t, func(ctx context.Context, t *testing.T, l *Lab) { runRping(ctx, t, l, s, size) })
		}
	})
}

func runRping(ctx context.Context, t *testing.T, l *Lab, s scenario, size int) {
	t.Helper()
	srv, options := startRping(ctx, t, l, s, size, "-C", "4")
	_, client := s.sides(l)
	cli := start(ctx, t, client, cmArgv(client, "rping", options...)...)
	left := finish(t, srv, cli)
	checkRping(t, s, left[1], 4, size)
	wantOutput(t, "the server's stdout", left[0].Stdout, rpingLines("server ping data", 4, size))
	ends := []string{rpingServerEnd}
	if s.server == "kernel" {
		ends = append(ends, rpingServerEnd+rpingLateEnd)
	}
	wantOutput(t, "the server's stderr", left[0].Stderr, ends...)
}

// startRping starts a server, and returns the options for its clients.
func startRping(ctx context.Context, t *testing.T, l *Lab, s scenario, size int, more ...string) (srv *Process, client []string) {
	t.Helper()
	at := cmPort{rdmacm.PortSpaceTCP, nextPort()}
	server, _ := s.sides(l)
	common := append([]string{"-v", "-V", "-p", at.port, "-S", strconv.Itoa(size)}, more...)
	srv = s.startCM(ctx, t, server, at, cmArgv(server, "rping", append(common, "-s", "-a", anyAddr(s.v6))...)...)
	return srv, append([]string{"-c", "-a", server.Addr(s.v6).String()}, common...)
}

// checkRping checks the output of a client. The C program may end before it notices that it has
// disconnected.
func checkRping(t *testing.T, s scenario, client Result, rounds, size int) {
	t.Helper()
	wantOutput(t, "the client's stdout", client.Stdout, rpingLines("ping data", rounds, size))
	if s.server == "adverb" && s.family != ownGuestFamily && client.Stderr == "" {
		return
	}
	wantOutput(t, "the client's stderr", client.Stderr, rpingClientEnd)
}

// A persistent server serves one client after the other, and then two at once.
func TestRpingPersistent(t *testing.T) {
	needLab(t)
	cmRows("rping", func(s scenario) {
		if s.v6 || s.mtu != mtus[0] {
			return
		}
		s.variant = "-P"
		s.run(t, func(ctx context.Context, t *testing.T, l *Lab) {
			const size, few = 1500, 3
			srv, options := startRping(ctx, t, l, s, size, "-P")
			_, client := s.sides(l)
			begin := func(more ...string) *Process {
				return start(ctx, t, client, cmArgv(client, "rping", append(options, more...)...)...)
			}
			finite := func() {
				t.Helper()
				checkRping(t, s, finish(t, begin("-C", strconv.Itoa(few)))[0], few, size)
			}
			for i := range 2 {
				finite()
				await(ctx, t, srv, strings.Repeat(rpingServerEnd, i+1))
			}
			// Without a count, a client goes on until it is interrupted. So both run at once when
			// both have begun.
			first := begin()
			if s.server == "kernel" {
				// If two requests come at once, this rping may answer one of them twice and the other
				// never (rdma-core's pull request 1568).
				await(ctx, t, first, rpingRound(0))
			}
			endless := []*Process{first, begin()}
			for _, p := range endless {
				await(ctx, t, p, rpingRound(0))
			}
			served := 2 * few
			for _, p := range endless {
				await(ctx, t, p, rpingRound(strings.Count(p.stdout.String(), rpingRoundMark)))
			}
			for _, p := range endless {
				interrupt(t, p)
				out := p.stdout.String()
				rounds := strings.Count(out, rpingRoundMark)
				if want := rpingLines("ping data", rounds+1, size); !strings.HasPrefix(want, out) {
					t.Errorf("%v prints %q, want the beginning of %q", p, out, want)
				}
				served += rounds
			}
			finite()
			interrupt(t, srv)
			if got, want := strings.Count(srv.stdout.String(), "server ping data: "), served+few; got < want {
				t.Errorf("the server has printed %d rounds, want at least the clients' %d", got, want)
			}
		})
	})
}

// rpingRoundMark begins the text that a client prints in each round.
const rpingRoundMark = "ping data: rdma-ping-"

func rpingRound(i int) string { return fmt.Sprint(rpingRoundMark, i, ": ") }

// With -q both ends make their QPs themselves.
func TestRpingOwnQP(t *testing.T) {
	needLab(t)
	cmRows("rping", func(s scenario) {
		if s.v6 || s.mtu != mtus[0] {
			return
		}
		s.variant = "-q"
		s.run(t, func(ctx context.Context, t *testing.T, l *Lab) {
			srv, options := startRping(ctx, t, l, s, 64, "-q", "-C", "2")
			_, client := s.sides(l)
			left := finish(t, srv, start(ctx, t, client, cmArgv(client, "rping", options...)...))
			checkRping(t, s, left[1], 2, 64)
		})
	})
}

// interrupt ends a program as Ctrl-C does. The program must be one that would go on for ever.
func interrupt(t *testing.T, p *Process) {
	t.Helper()
	const interrupted = 130 // the exit status of our programs after an interrupt
	if !alive(p) {
		t.Fatalf("the program has ended before the interrupt, want one that goes on for ever:\n%s", p.Report())
	}
	if err := p.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	left, err := p.Wait()
	if err != nil || left.Signal != "interrupt" && left.Code != interrupted {
		t.Errorf("after an interrupt: want the signal or exit status %d; got %v\n%s", interrupted, err, p.Report())
	}
}

// transcripts are the texts that a server and its client print on stdout.
type transcripts struct{ server, client string }

var cmatoseLines = transcripts{
	"cmatose: starting server\ninitiating data transfers\ncompleting sends\nreceiving data transfers\n" +
		"data transfers complete\ncmatose: disconnecting\ndisconnected\ntest complete\nreturn status 0\n",
	"cmatose: starting client\ncmatose: connecting\nreceiving data transfers\nsending replies\n" +
		"data transfers complete\ntest complete\nreturn status 0\n",
}

func (want transcripts) check(t *testing.T, left []Result) {
	t.Helper()
	wantOutput(t, "the server's stdout", left[0].Stdout, want.server)
	wantOutput(t, "the client's stdout", left[1].Stdout, want.client)
	wantOutput(t, "the server's stderr", left[0].Stderr, "")
	wantOutput(t, "the client's stderr", left[1].Stderr, "")
}

// The program cmatose takes any size. The program sends whatever is in its memory, and compares
// nothing.
func TestCmatose(t *testing.T) {
	needLab(t)
	cmRows("cmatose", func(s scenario) {
		for _, options := range []string{
			"-c 5 -C 10 -S 4095", "-c 1 -C 1 -S 1", "-c 2 -C 3 -S 65536", "-c 1 -C 2 -S 1048576", "-c 3 -P ib -t 32 -a 14 -m",
		} {
			s := s
			s.variant = options
			s.run(t, func(ctx context.Context, t *testing.T, l *Lab) { runCmatose(ctx, t, l, s) })
			if s.mtu != mtus[0] {
				return // the first variant is enough for another MTU
			}
		}
	})
}

func runCmatose(ctx context.Context, t *testing.T, l *Lab, s scenario) {
	t.Helper()
	at := cmPort{rdmacm.PortSpaceTCP, nextPort()}
	want := cmatoseLines
	if strings.Contains(s.variant, "-m") {
		at.space = rdmacm.PortSpaceIB
		want.server = strings.Replace(want.server, "cmatose: disc", "migrating to new event channel\ncmatose: disc", 1)
		want.client = strings.Replace(want.client, "test complete", "migrating to new event channel\ntest complete", 1)
	}
	args := append(strings.Fields(s.variant), "-p", at.port)
	server, client := s.sides(l)
	srv := s.startCM(ctx, t, server, at, cmArgv(server, "cmatose", append(args, "-b", anyAddr(s.v6))...)...)
	cli := start(ctx, t, client, cmArgv(client, "cmatose", append(args, "-s", server.Addr(s.v6).String())...)...)
	want.check(t, finish(t, srv, cli))
}

// Each message of udaddy is one packet. The program compares nothing.
func TestUdaddy(t *testing.T) {
	needLab(t)
	cmRows("udaddy", func(s scenario) {
		for _, options := range []string{"-c 3 -C 5 -S " + strconv.Itoa(pathMTU(s.mtu)), "-c 1 -C 1 -S 1"} {
			s := s
			s.variant = options
			s.run(t, func(ctx context.Context, t *testing.T, l *Lab) { runUdaddy(ctx, t, l, s) })
		}
	})
}

func runUdaddy(ctx context.Context, t *testing.T, l *Lab, s scenario) {
	t.Helper()
	at := cmPort{rdmacm.PortSpaceUDP, "7174"} // the program has no option for the port
	args := strings.Fields(s.variant)
	server, client := s.sides(l)
	srv := s.startCM(ctx, t, server, at, cmArgv(server, "udaddy", append(args, "-b", server.Addr(s.v6).String())...)...)
	cli := start(ctx, t, client, cmArgv(client, "udaddy", append(args, "-s", server.Addr(s.v6).String())...)...)
	transcripts{
		"udaddy: starting server\nreceiving data transfers\nsending replies\ndata transfers complete\ntest complete\nreturn status 0\n",
		"udaddy: starting client\nudaddy: connecting\ninitiating data transfers\nreceiving data transfers\ndata transfers complete\ntest complete\nreturn status 0\n",
	}.check(t, finish(t, srv, cli))
}

const noIPv6Groups = "Linux joins no IPv6 group over RoCE v2: the join ends in ENOTSUPP"

func TestMckey(t *testing.T) {
	needLab(t)
	cmRows("mckey", func(s scenario) {
		s.variant = fmt.Sprintf("-c 2 -C 5 -S %d", pathMTU(s.mtu))
		if s.v6 {
			s.leftOut = noIPv6Groups
		}
		s.check.oneWay = true
		s.run(t, func(ctx context.Context, t *testing.T, l *Lab) { runMckey(ctx, t, l, s) })
	})
}

// runMckey runs mckey at both ends. The server receives from the group, and the client sends to it.
func runMckey(ctx context.Context, t *testing.T, l *Lab, s scenario) {
	t.Helper()
	group, gid := "239.47.1.2", "::ffff:239.47.1.2"
	if s.v6 {
		group, gid = "ff0e::47:1:2", "ff0e::47:1:2"
	}
	joined := "mckey: joined dgid: " + gid + " mlid 0x0 sl 0\n"
	args := append(strings.Fields(s.variant), "-m", group)
	server, client := s.sides(l)
	srv := start(ctx, t, server, cmArgv(server, "mckey", append(args, "-b", server.Addr(s.v6).String())...)...)
	await(ctx, t, srv, joined+joined)
	cli := start(ctx, t, client, cmArgv(client, "mckey", append(args, "-s", "-b", client.Addr(s.v6).String())...)...)
	end := "data transfers complete\ntest complete\nreturn status 0\n"
	transcripts{
		"mckey: starting server\nmckey: joining\n" + joined + joined + "receiving data transfers\n" + end,
		"mckey: starting client\nmckey: joining\n" + joined + joined + "initiating data transfers\n" + end,
	}.check(t, finish(t, srv, cli))
}
