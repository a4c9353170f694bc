//go:build linux && !adverb_portable

package udp_test

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/linktest"
	"github.com/adverb-rdma/adverb/internal/link/udp"
)

func TestAllocs(t *testing.T) {
	linktest.Allocs(t, func(t *testing.T) (a, b link.Link) { return openPair(t) })
	linktest.Allocs(t, func(t *testing.T) (a, b link.Link) { return openIPv6(t) })
}

func TestTrafficClass(t *testing.T) {
	t.Run("IPv4", func(t *testing.T) {
		linktest.TrafficClass(t, func(t *testing.T) (a, b link.Link) { return openPair(t) })
	})
	t.Run("IPv6", func(t *testing.T) {
		linktest.TrafficClass(t, func(t *testing.T) (a, b link.Link) { return openIPv6(t) })
	})
}

func TestWaitAllocs(t *testing.T) {
	a, b := openPair(t)
	out := []link.Datagram{{Src: a.Source(1), Dst: b.Addr(), Payload: make([]byte, 64)}}
	in := make([]link.Datagram, 1)
	n := testing.AllocsPerRun(200, func() {
		a.Send(out)
		for deadline := time.Now().Add(linktest.Patience); ; {
			if time.Now().After(deadline) {
				t.Fatalf("nothing arrived within %v", linktest.Patience)
			}
			if err := b.Wait(linktest.Patience); err != nil {
				t.Fatal(err)
			}
			if n, err := b.Recv(in); err != nil {
				t.Fatal(err)
			} else if n > 0 {
				return
			}
		}
	})
	if n != 0 {
		t.Errorf("Wait allocates %v times, want 0", n)
	}
}

// The ICRC covers the IPv4 identification and the flags. So the socket must set them as link.Link
// promises, for single datagrams and for those of batches.
func TestIdentification(t *testing.T) {
	raw := rawSocket(t)
	a, b := openPair(t)
	sa := unix.SockaddrInet4{Addr: b.Addr().Addr().As4()}
	if err := unix.Bind(raw, &sa); err != nil {
		t.Fatal(err)
	}
	var batch []link.Datagram
	for i := range 6 {
		batch = append(batch, link.Datagram{Src: a.Source(uint32(i / 3)), Dst: b.Addr(), Payload: make([]byte, 64), TrafficClass: uint8(i%3) * 0x20})
	}
	for range 3 {
		if err := a.Send(batch); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Send(batch[:1]); err != nil {
		t.Fatal(err)
	}
	p := make([]byte, 1500)
	for i := range 3*len(batch) + 1 {
		readRaw(t, raw, p, a.Addr().Addr(), b.Addr().Addr())
		want := &batch[i%len(batch)]
		if id, flags := binary.BigEndian.Uint16(p[4:]), binary.BigEndian.Uint16(p[6:]); id != 0 || flags != 0x4000 {
			t.Errorf("datagram %d: identification %d, flags and fragment offset %#04x; want 0 and 0x4000 (DF)", i, id, flags)
		}
		if port := binary.BigEndian.Uint16(p[20:]); port != want.Src.Port() || port < 0xc000 {
			t.Errorf("datagram %d: source port %d, want %d", i, port, want.Src.Port())
		}
		if p[1] != want.TrafficClass {
			t.Errorf("datagram %d: TOS %#02x, want %#02x", i, p[1], want.TrafficClass)
		}
	}
}

// rawSocket returns a socket that receives all IPv4 packets with UDP in them, headers included.
func rawSocket(t *testing.T) int {
	t.Helper()
	raw, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
	if errors.Is(err, unix.EPERM) {
		t.Skip("a raw socket needs privileges")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(raw) })
	// The socket receives all UDP of the host, for example the floods of other packages' tests.
	_ = unix.SetsockoptInt(raw, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20) // as far as permitted
	if err := unix.SetsockoptTimeval(raw, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 20}); err != nil {
		t.Fatal(err)
	}
	return raw
}

// readRaw reads the next IPv4 packet from src to dst. It skips others, which the socket took before it was bound.
func readRaw(t *testing.T, raw int, p []byte, src, dst netip.Addr) {
	t.Helper()
	for {
		n, _, err := unix.Recvfrom(raw, p, 0)
		if err != nil || n < 28 {
			t.Fatalf("raw socket: %d bytes, %v, want 28 at least", n, err)
		}
		if netip.AddrFrom4([4]byte(p[12:])) == src && netip.AddrFrom4([4]byte(p[16:])) == dst {
			return
		}
	}
}

// Datagrams that overflow the receive buffer are counted once a later one arrives.
func TestReceiveDrops(t *testing.T) {
	a, b := openPair(t)
	batch := make([]link.Datagram, 64)
	for i := range batch {
		batch[i] = link.Datagram{Src: a.Source(1), Dst: b.Addr(), Payload: make([]byte, 4096)}
	}
	in := make([]link.Datagram, 64)
	drain := func() {
		for {
			if n, err := b.Recv(in); err != nil {
				t.Fatal(err)
			} else if n == 0 {
				return
			}
		}
	}
	before := uint64(0)
	for range 2 { // the second time the system counts on from the first
		const rounds = 256 // 64 MiB, which no receive buffer of ours holds
		for range rounds {
			if err := a.Send(batch); err != nil {
				t.Fatal(err)
			}
		}
		drain()
		if err := a.Send(batch[:1]); err != nil {
			t.Fatal(err)
		}
		drain()
		sent, s := a.Stats().Sent, b.Stats()
		if s.ReceiveDrops <= before || s.Received+s.ReceiveDrops != sent {
			t.Errorf("%d sent, %d received, %d dropped; want more than %d dropped and none unaccounted for", sent, s.Received, s.ReceiveDrops, before)
		}
		before = s.ReceiveDrops
	}
}

func TestOversizedDropped(t *testing.T) {
	a, b := openPair(t)
	out := []link.Datagram{
		{Src: a.Source(1), Dst: b.Addr(), Payload: make([]byte, 9000)},
		{Src: a.Source(1), Dst: b.Addr(), Payload: make([]byte, 100)},
	}
	if err := a.Send(out); err != nil {
		t.Fatal(err)
	}
	in := make([]link.Datagram, 4)
	n, err := b.Recv(in)
	if err != nil || n != 1 || len(in[0].Payload) != 100 {
		t.Fatalf("Recv = %d, %v; want the datagram of 100 bytes alone", n, err)
	}
	if s := b.Stats(); s.ReceiveDrops != 1 {
		t.Errorf("ReceiveDrops = %d, want 1", s.ReceiveDrops)
	}
}

// Changed fires when an interface goes up. The test runs in a network namespace of its own, which
// needs privileges.
func TestChanged(t *testing.T) {
	linktest.OwnNetwork(t)
	d, err := udp.OpenNetdev("lo")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	changes := d.Changed()
	if s, err := d.State(); err != nil || s.Up || len(s.Addrs) != 0 {
		t.Fatalf("state %+v, %v; want down, without addresses", s, err)
	}
	if err := linktest.LoopbackUp(); err != nil {
		t.Fatal(err)
	}
	timeout := time.After(linktest.Patience)
	for {
		select {
		case <-changes:
		case <-timeout:
			t.Fatal("Changed did not fire until the state was up, with an address")
		}
		s, err := d.State()
		if err != nil {
			t.Fatal(err)
		}
		if s.Up && len(s.Addrs) > 0 {
			return
		}
	}
}

// A link-local address works without a zone: the link implies it.
func TestLinkLocal(t *testing.T) {
	run := inNamespace(t, "link set lo up", "link add v0 type veth peer name v1", "link set v1 up", "link set v0 up", "-6 addr add fe80::93/64 dev v0 nodad")
	await(t, run, "-6 route show table local", "local fe80::93 ")
	l := openIn(t, run, "v0", netip.MustParseAddr("fe80::93%v0"))
	if err := l.Send([]link.Datagram{{Src: l.Source(1), Dst: l.Addr(), Payload: make([]byte, 64)}}); err != nil {
		t.Fatal(err)
	}
	in := make([]link.Datagram, 1)
	if n := receive(t, l, in); n != 1 || in[0].Src != l.Source(1) {
		t.Errorf("got %d datagrams, the first from %v; want 1 from %v; stats %+v", n, in[0].Src, l.Source(1), l.Stats())
	}
}

// A path MTU that somebody has told the kernel is no reason to lose datagrams: an attacker who forges ICMP could
// shrink it. Datagrams that the interface can carry leave, whole and unfragmented.
func TestPathMTUIgnored(t *testing.T) {
	run := inNamespace(t, "link set lo up", "addr add 10.78.0.1/32 dev lo", "route add local 10.78.0.2 dev lo table local mtu 700",
		"-6 addr add fd78::1/128 dev lo nodad", "-6 route add local fd78::2 dev lo table local mtu 1300")
	await(t, run, "-6 route show table local", "local fd78::1 ")
	for _, c := range []struct{ from, to string }{{"10.78.0.1", "10.78.0.2"}, {"fd78::1", "fd78::2"}} {
		from, to := netip.MustParseAddr(c.from), netip.MustParseAddr(c.to)
		l := openIn(t, run, "lo", from)
		if err := l.Send([]link.Datagram{{Src: l.Source(1), Dst: netip.AddrPortFrom(to, link.Port), Payload: make([]byte, 4096)}}); err != nil {
			t.Fatal(err)
		}
		if s := l.Stats(); s.Sent != 1 || s.SendErrors != 0 {
			t.Errorf("%s to %s: sent %d, lost %d for %v; want 1 sent", c.from, c.to, s.Sent, s.SendErrors, s.LastSendError)
		}
	}
}

// Datagrams that arrive while nobody is in Wait must not wake Go's network poller: a program that polls busily would
// pay for each of them. The kernel lists the descriptors in the link's epoll set, and their events. They must be for
// no event.
func TestNoPollerWakeups(t *testing.T) {
	t.Run("Alone", func(t *testing.T) { testNoPollerWakeups(t, false) })
	t.Run("Member", func(t *testing.T) { testNoPollerWakeups(t, true) })
}

func testNoPollerWakeups(t *testing.T, member bool) {
	a, b := openPair(t)
	if member {
		if err := link.Join(b, testGroup(1)); err != nil {
			t.Fatal(err)
		}
	}
	out := []link.Datagram{{Src: a.Source(1), Dst: b.Addr(), Payload: make([]byte, 64)}}
	in := make([]link.Datagram, 4)
	armed := func() int {
		t.Helper()
		entries, err := os.ReadDir("/proc/self/fdinfo")
		if err != nil {
			t.Skip(err)
		}
		n := 0
		for _, e := range entries {
			text, _ := os.ReadFile("/proc/self/fdinfo/" + e.Name())
			for line := range strings.Lines(string(text)) {
				f := strings.Fields(line)
				if len(f) < 4 || f[0] != "tfd:" || f[2] != "events:" {
					continue
				}
				if f[3] == "40000019" || f[3] == "40000001" { // ONESHOT and IN, ERR, HUP
					n++
				}
			}
		}
		return n
	}
	if n := armed(); n != 0 {
		t.Errorf("%d sockets are armed before any Wait, want none", n)
	}
	if err := b.Wait(time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if n := armed(); n != 0 {
		t.Errorf("%d sockets are armed after a Wait that timed out, want none", n)
	}
	b.Wake()
	if err := b.Wait(-1); err != nil {
		t.Fatal(err)
	}
	if n := armed(); n != 0 {
		t.Errorf("%d sockets are armed after a Wait that Wake ended, want none", n)
	}
	if err := a.Send(out); err != nil {
		t.Fatal(err)
	}
	if err := b.Wait(-1); err != nil {
		t.Fatal(err)
	}
	if n, err := b.Recv(in); n != 1 || err != nil {
		t.Errorf("Recv = %d, %v; want 1", n, err)
	}
	if n := armed(); n != 0 {
		t.Errorf("%d sockets are armed after a Wait that a datagram ended, want none", n)
	}
	done := make(chan error)
	go func() { done <- b.Wait(-1) }()
	for deadline := time.Now().Add(linktest.Patience); armed() == 0; { // otherwise the test might pass because it never sees armed sockets
		if time.Now().After(deadline) {
			t.Fatal("no socket is armed during Wait")
		}
	}
	b.Wake()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestUnreachableDestination(t *testing.T) {
	a, _ := openPair(t)
	dst := netip.AddrPortFrom(netip.MustParseAddr("fd00:dead::1"), link.Port) // IPv6 from an IPv4 link
	if err := a.Send([]link.Datagram{{Src: a.Source(1), Dst: dst, Payload: make([]byte, 20)}}); err != nil {
		t.Fatal(err)
	}
	if s := a.Stats(); s.SendErrors != 1 || !errors.Is(s.LastSendError, unix.EAFNOSUPPORT) {
		t.Errorf("SendErrors = %d, LastSendError = %v; want 1 for %v", s.SendErrors, s.LastSendError, unix.EAFNOSUPPORT)
	}
}

// A link of a global address reaches link-local peers on its own interface, and not those on the interface to which the
// system has its first route for them.
func TestLinkLocalPeer(t *testing.T) {
	here, there := twoNetworks(t, []string{"-6 addr add fd79:0::1/64 dev v0 nodad", "-6 addr add fd79:1::1/64 dev w0 nodad"},
		[]string{"-6 addr add fe80::94/64 dev v1 nodad", "-6 addr add fe80::95/64 dev w1 nodad"})
	await(t, here, "-6 route", "fe80::/64 dev v0", "fe80::/64 dev w0")
	await(t, there, "-6 route show table local", "local fe80::94 ", "local fe80::95 ")
	for _, c := range []struct{ from, dev, to string }{
		{"fd79:0::1", "v", "fe80::94"},
		{"fd79:1::1", "w", "fe80::95"},
	} {
		from := openIn(t, here, c.dev+"0", netip.MustParseAddr(c.from))
		to := openIn(t, there, c.dev+"1", netip.MustParseAddr(c.to))
		out := []link.Datagram{{Src: from.Source(1), Dst: to.Addr(), Payload: make([]byte, 64)}}
		if err := from.Send(out); err != nil {
			t.Fatal(err)
		}
		in := make([]link.Datagram, 1)
		if n := receive(t, to, in); n != 1 || in[0].Src != from.Source(1) {
			t.Errorf("got %d datagrams, the first from %v; want 1 from %v; stats %+v", n, in[0].Src, from.Source(1), from.Stats())
		}
	}
}
