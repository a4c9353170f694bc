//go:build linux && !adverb_portable

package udp_test

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/fault"
	"github.com/adverb-rdma/adverb/internal/link/linktest"
	"github.com/adverb-rdma/adverb/internal/link/pcap"
	"github.com/adverb-rdma/adverb/internal/link/trace"
	"github.com/adverb-rdma/adverb/internal/link/udp"
)

// testGroup returns an IPv4 group that only this process uses, as testAddr returns an address.
func testGroup(n byte) netip.Addr {
	pid := os.Getpid()
	return netip.AddrFrom4([4]byte{239, 192 | byte(pid>>8)&63, byte(pid), n})
}

// inNamespace makes a network namespace, and runs commands of the program ip in it. It returns a
// function that runs other functions there.
func inNamespace(t *testing.T, commands ...string) (run func(f func())) {
	t.Helper()
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip(err)
	}
	calls, ready := make(chan func()), make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread cannot return to the other namespace, and ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		for _, c := range commands {
			if err != nil {
				break
			}
			var out []byte
			if out, err = exec.Command("ip", strings.Fields(c)...).CombinedOutput(); err != nil {
				err = fmt.Errorf("ip %s: %w: %s", c, err, out)
			}
		}
		ready <- err
		for f := range calls {
			f()
		}
	}()
	t.Cleanup(func() { close(calls) })
	if err := <-ready; errors.Is(err, unix.EPERM) {
		t.Skip("a network namespace needs privileges")
	} else if err != nil {
		t.Skip(err) // for example because ip is old or small, or the kernel has no IPv6
	}
	return func(f func()) {
		done := make(chan struct{})
		calls <- func() { defer close(done); f() }
		<-done
	}
}

func openIn(t testing.TB, run func(func()), dev string, addr netip.Addr) link.Link {
	t.Helper()
	var l link.Link
	var err error
	run(func() {
		var d *udp.Netdev
		if d, err = udp.OpenNetdev(dev); err == nil {
			l, err = d.Open(addr)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return &inside{l, run}
}

// inside is a link whose Join runs in the namespace where the link was opened.
type inside struct {
	link.Link
	run func(func())
}

func (l *inside) Join(group netip.Addr) (err error) {
	l.run(func() { err = link.Join(l.Link, group) })
	return err
}

func (l *inside) Leave(group netip.Addr) error { return link.Leave(l.Link, group) }

var (
	groups6     = [2]netip.Addr{netip.MustParseAddr("ff12::ad:1"), netip.MustParseAddr("ff02::ad:2")}
	groups6Wide = [2]netip.Addr{netip.MustParseAddr("ff15::ad:1"), netip.MustParseAddr("ff1e::ad:2")}
)

func TestMulticastConformance(t *testing.T) {
	t.Run("IPv4", func(t *testing.T) {
		linktest.Multicast(t, testGroup(1), testGroup(2), func(t *testing.T) (a, b link.Link) { return openPair(t) })
	})
	t.Run("Stack", func(t *testing.T) {
		linktest.Multicast(t, testGroup(1), testGroup(2), func(t *testing.T) (a, b link.Link) {
			w, err := pcap.New(io.Discard, pcap.Options{})
			if err != nil {
				t.Fatal(err)
			}
			stack := []link.Middleware{trace.New(time.Now(), trace.ToWriter(io.Discard, "dev")), w.Middleware(), fault.New(fault.Config{})}
			a, b = openPair(t)
			return link.Chain(a, stack...), link.Chain(b, stack...)
		})
	})
	// Usually loopback has no route for IPv6 groups.
	run := inNamespace(t, "link set lo up", "-6 route add local ff00::/8 dev lo table local",
		"-6 addr add fd00::1/128 dev lo nodad", "-6 addr add fd00::2/128 dev lo nodad")
	await(t, run, "-6 route show table local", "local fd00::1 ", "local fd00::2 ")
	open6 := func(t *testing.T) (a, b link.Link) {
		return openIn(t, run, "lo", netip.MustParseAddr("fd00::1")), openIn(t, run, "lo", netip.MustParseAddr("fd00::2"))
	}
	t.Run("IPv6", func(t *testing.T) {
		linktest.Multicast(t, groups6[0], groups6[1], open6)
	})
	t.Run("IPv6Wide", func(t *testing.T) {
		linktest.Multicast(t, groups6Wide[0], groups6Wide[1], open6)
	})
	linktest.MulticastAllocs(t, groups6[0], open6)
}

// twoNetworks makes two hosts with two networks between them: v0 and w0 of one, v1 and w1 of the other. It runs ip
// there with the commands of each.
func twoNetworks(t *testing.T, hereIP, thereIP []string) (here, there func(func())) {
	t.Helper()
	there = inNamespace(t, "link set lo up")
	var thread int
	there(func() { thread = unix.Gettid() })
	here = inNamespace(t, append([]string{"link set lo up",
		"link add v0 type veth peer name v1", fmt.Sprint("link set v1 netns ", thread), "link set v0 up",
		"link add w0 type veth peer name w1", fmt.Sprint("link set w1 netns ", thread), "link set w0 up"}, hereIP...)...)
	there(func() {
		for _, c := range append([]string{"link set v1 up", "link set w1 up"}, thereIP...) {
			if out, err := exec.Command("ip", strings.Fields(c)...).CombinedOutput(); err != nil {
				t.Errorf("ip %s: %v: %s", c, err, out)
			}
		}
	})
	return here, there
}

// Two hosts have two networks between them. Only members on an interface receive datagrams that arrive through that
// interface.
func TestMulticastInterfaces(t *testing.T) {
	here, there := twoNetworks(t,
		[]string{"addr add 10.77.0.1/24 dev v0", "-6 addr add fd77:0::1/64 dev v0 nodad", "addr add 10.77.1.1/24 dev w0", "-6 addr add fd77:1::1/64 dev w0 nodad"},
		[]string{"addr add 10.77.0.2/24 dev v1", "-6 addr add fd77:0::2/64 dev v1 nodad"})
	await(t, here, "-6 route show table local", "ff00::/8 dev v0", "ff00::/8 dev w0")
	await(t, there, "-6 route show table local", "ff00::/8 dev v1")
	for _, c := range []struct{ from, v, w, group string }{
		{"10.77.0.2", "10.77.0.1", "10.77.1.1", "239.1.2.3"},
		{"fd77:0::2", "fd77:0::1", "fd77:1::1", "ff12::ad:3"},
		{"fd77:0::2", "fd77:0::1", "fd77:1::1", "ff15::ad:3"},
	} {
		t.Run(c.group, func(t *testing.T) {
			group := netip.MustParseAddr(c.group)
			from := openIn(t, there, "v1", netip.MustParseAddr(c.from))
			v, w := openIn(t, here, "v0", netip.MustParseAddr(c.v)), openIn(t, here, "w0", netip.MustParseAddr(c.w))
			for _, l := range []link.Link{v, w} {
				if err := link.Join(l, group); err != nil {
					t.Fatal(err)
				}
			}
			in := make([]link.Datagram, 8)
			for i := range 3 {
				out := []link.Datagram{{Src: from.Source(1), Dst: netip.AddrPortFrom(group, link.Port), Payload: fmt.Append(nil, i)}}
				if err := from.Send(out); err != nil {
					t.Fatal(err)
				}
				n := receive(t, v, in)
				if n != 1 || string(in[0].Payload) != fmt.Sprint(i) || in[0].Src != out[0].Src || in[0].Dst != out[0].Dst {
					t.Fatalf("%d datagrams arrived, first %q from %v to %v; want one, %d from %v to %v",
						n, in[0].Payload, in[0].Src, in[0].Dst, i, out[0].Src, out[0].Dst)
				}
			}
			if n, err := w.Recv(in); n != 0 || err != nil {
				t.Errorf("on the other interface %d datagrams arrived, %v; want none", n, err)
			}
			if s := from.Stats(); s.Received != 0 || s.SendErrors != 0 {
				t.Errorf("stats of the sender, which has not joined: %+v, want nothing received and nothing lost", s)
			}
		})
	}
}

// receive waits for datagrams.
func receive(t *testing.T, l link.Link, in []link.Datagram) int {
	t.Helper()
	for deadline := time.Now().Add(linktest.Patience); time.Now().Before(deadline); {
		n, err := l.Recv(in)
		if err == nil && n == 0 {
			err = l.Wait(linktest.Patience)
		}
		if err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			return n
		}
	}
	t.Fatalf("nothing arrived; stats %+v", l.Stats())
	return 0
}

// await returns once the output of a command of the program ip contains each of the texts. It waits because the
// kernel adds some routes in the background.
func await(t *testing.T, run func(func()), command string, texts ...string) {
	t.Helper()
	for deadline := time.Now().Add(linktest.Patience); ; {
		var out []byte
		var err error
		run(func() { out, err = exec.Command("ip", strings.Fields(command)...).CombinedOutput() })
		if err != nil {
			t.Fatalf("ip %s: %v: %s", command, err, out)
		}
		missing := slices.DeleteFunc(slices.Clone(texts), func(s string) bool { return strings.Contains(string(out), s) })
		if len(missing) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("ip %s does not have %q: %s", command, missing, out)
		}
	}
}

func TestMulticastAllocs(t *testing.T) {
	linktest.MulticastAllocs(t, testGroup(1), func(t *testing.T) (a, b link.Link) { return openPair(t) })
}

// Without a route, IPv6 multicast goes nowhere. Join says so, and names the remedy.
func TestMulticastNoRoute(t *testing.T) {
	run := inNamespace(t, "link set lo up")
	l := openIn(t, run, "lo", netip.IPv6Loopback())
	err := link.Join(l, groups6[0])
	if !errors.Is(err, unix.ENETUNREACH) || !strings.Contains(err.Error(), "ip -6 route add local ff00::/8 dev lo") {
		t.Errorf("Join without a route: %v, want %v and the remedy", err, unix.ENETUNREACH)
	}
	out := []link.Datagram{{Src: l.Source(1), Dst: netip.AddrPortFrom(groups6[0], link.Port), Payload: make([]byte, 64)}}
	if err := l.Send(out); err != nil {
		t.Fatal(err)
	}
	if s := l.Stats(); s.SendErrors != 1 || !strings.Contains(fmt.Sprint(s.LastSendError), "ip -6 route add local ff00::/8 dev lo") {
		t.Errorf("Send without a route: SendErrors = %d, LastSendError = %v; want 1 and the remedy", s.SendErrors, s.LastSendError)
	}
}

// A group's datagrams have the identification and the DF flag that the ICRC covers. They go as far
// as those of other senders.
func TestMulticastHeader(t *testing.T) {
	raw := rawSocket(t)
	a, b := openPair(t)
	group := testGroup(1)
	if err := link.Join(b, group); err != nil {
		t.Fatal(err)
	}
	s, err := loopback(t).State()
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.SetsockoptIPMreqn(raw, unix.IPPROTO_IP, unix.IP_ADD_MEMBERSHIP, &unix.IPMreqn{Multiaddr: group.As4(), Ifindex: int32(s.Index)}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Bind(raw, &unix.SockaddrInet4{Addr: group.As4()}); err != nil {
		t.Fatal(err)
	}
	batch := make([]link.Datagram, 5)
	for i := range batch {
		batch[i] = link.Datagram{Src: a.Source(1), Dst: netip.AddrPortFrom(group, link.Port), Payload: make([]byte, 64)}
	}
	for range 2 {
		if err := a.Send(batch); err != nil {
			t.Fatal(err)
		}
	}
	p := make([]byte, 1500)
	for i := range 2 * len(batch) {
		readRaw(t, raw, p, a.Addr().Addr(), group)
		if id, flags := binary.BigEndian.Uint16(p[4:]), binary.BigEndian.Uint16(p[6:]); id != 0 || flags != 0x4000 {
			t.Errorf("datagram %d: identification %d, flags and fragment offset %#04x; want 0 and 0x4000 (DF)", i, id, flags)
		}
		if ttl := p[8]; ttl != 64 {
			t.Errorf("datagram %d: TTL %d, want 64", i, ttl)
		}
	}
}

// A full socket never makes another one wait, whether it is the link's own or a group's.
func TestMulticastFair(t *testing.T) {
	a, b := openPair(t)
	dsts := []netip.AddrPort{b.Addr()}
	for n := range byte(2) {
		if err := link.Join(b, testGroup(n)); err != nil {
			t.Fatal(err)
		}
		dsts = append(dsts, netip.AddrPortFrom(testGroup(n), link.Port))
	}
	const each, perRecv = 100, 10
	for _, dst := range dsts {
		for range each {
			if err := a.Send([]link.Datagram{{Src: a.Source(1), Dst: dst, Payload: make([]byte, 64)}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	received := map[netip.AddrPort]int{}
	in := make([]link.Datagram, perRecv)
	for range 8 {
		n, err := b.Recv(in)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range in[:n] {
			received[d.Dst]++
		}
	}
	if own, one, two := received[dsts[0]], received[dsts[1]], received[dsts[2]]; own != 40 || one != 20 || two != 20 {
		t.Errorf("in 8 rounds of %d: %d of the link's own, %d and %d of the groups; want 40, 20 and 20", perRecv, own, one, two)
	}
}

// Each process that has joined gets its own copy, whether or not it shares the address.
func TestMulticastProcesses(t *testing.T) {
	if os.Getenv("ADVERB_TEST_GROUP") != "" {
		multicastMember(t)
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	d, err := udp.NetdevForAddr(loopback(t).Name(), testAddr(1))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	l, err := d.OpenShared(testAddr(1))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	group := testGroup(9)
	if err := l.Join(group); err != nil {
		t.Fatal(err)
	}
	var lines []chan string
	for _, addr := range []netip.Addr{testAddr(1), testAddr(2)} { // the first process has the sender's address
		cmd := exec.Command(self, "-test.run=^TestMulticastProcesses$")
		cmd.Env = append(os.Environ(), "ADVERB_TEST_GROUP="+group.String(), "ADVERB_TEST_ADDR="+addr.String())
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		said := make(chan string)
		lines = append(lines, said)
		go func() {
			defer close(said)
			for s := bufio.NewScanner(out); s.Scan(); {
				if text, ok := strings.CutPrefix(s.Text(), "member: "); ok {
					said <- text
				}
			}
		}()
		defer func() {
			cmd.Process.Kill()
			for range said { // until the process has ended
			}
			cmd.Wait()
		}()
	}
	for i := range lines {
		if s := <-lines[i]; s != "joined" { // or has given up
			t.Fatalf("member %d said %q, want joined", i, s)
		}
	}
	for i := range 3 {
		out := []link.Datagram{{Src: l.Source(1), Dst: netip.AddrPortFrom(group, link.Port), Payload: fmt.Appendf(nil, "datagram %d", i)}}
		if err := l.Send(out); err != nil {
			t.Fatal(err)
		}
		for m := range lines {
			if got, want := <-lines[m], fmt.Sprintf("datagram %d to %v", i, out[0].Dst); got != want {
				t.Errorf("member %d received %q, want %q", m, got, want)
			}
		}
	}
	in := make([]link.Datagram, 8)
	if n, err := l.Recv(in); n != 3 || err != nil {
		t.Errorf("the sender received %d, %v of its own; want 3", n, err)
	}
}

// multicastMember is the other process of TestMulticastProcesses.
func multicastMember(t *testing.T) {
	addr := netip.MustParseAddr(os.Getenv("ADVERB_TEST_ADDR"))
	d, err := udp.NetdevForAddr(loopback(t).Name(), addr)
	if err != nil {
		t.Fatal(err)
	}
	l, err := d.OpenShared(addr)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Join(netip.MustParseAddr(os.Getenv("ADVERB_TEST_GROUP"))); err != nil {
		t.Fatal(err)
	}
	fmt.Println("member: joined")
	in := make([]link.Datagram, 8)
	deadline := time.Now().Add(linktest.Patience)
	for received := 0; received < 3; {
		if time.Now().After(deadline) {
			t.Fatalf("%d datagrams after %v, want 3", received, linktest.Patience)
		}
		if err := l.Wait(linktest.Patience); err != nil {
			t.Fatal(err)
		}
		n, err := l.Recv(in)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range in[:n] {
			fmt.Printf("member: %s to %v\n", d.Payload, d.Dst)
		}
		received += n
	}
}
