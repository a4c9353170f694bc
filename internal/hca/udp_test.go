package hca

import (
	"bytes"
	"errors"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/adverb-rdma/adverb/internal/link/linktest"
	"github.com/adverb-rdma/adverb/internal/link/udp"
	"github.com/adverb-rdma/adverb/verbs"
)

// exchange moves a SEND and a WRITE each way.
func exchange(t *testing.T, x, y *end) {
	t.Helper()
	for i, ends := range [][2]*end{{x, y}, {y, x}} {
		from, to := ends[0], ends[1]
		src, dst := from.mr(10_000), to.mr(10_000)
		fill(src.Bytes(), uint64(i))
		to.recv(verbs.RecvWR{ID: 3, SGList: []verbs.SGE{dst.SGE(0, 5000)}})
		from.send(verbs.SendWR{ID: 4, Op: verbs.OpSend, Flags: signaled, SGList: []verbs.SGE{src.SGE(0, 4999)}})
		if wc := from.done(); wc.ID != 4 {
			t.Errorf("sent %+v, want ID 4", wc)
		}
		if wc := to.done(); wc.ID != 3 || wc.ByteLen != 4999 || wc.SrcQPN != from.qp.QPN() || !bytes.Equal(dst.Bytes()[:4999], src.Bytes()[:4999]) {
			t.Errorf("received %+v, want ID 3, 4999 bytes from QP %v, and those of the source", wc, from.qp.QPN())
		}
		from.transfer(src, dst)
		if !bytes.Equal(dst.Bytes(), src.Bytes()) {
			t.Error("the WRITE gave other contents")
		}
	}
}

// TestUDP: two devices exchange messages over loopback, and lose none.
func TestUDP(t *testing.T) {
	x, y := connect(t, udpDevice(t, loopAddr(3)), udpDevice(t, loopAddr(4)), options{})
	exchange(t, x, y)
	for _, e := range []*end{x, y} {
		s := stats(t, e.dev)
		if s.Drops != (Drops{}) || s.Link.SendErrors != 0 || s.Link.Sent == 0 || s.Link.Received == 0 || s.Addr != e.addr() {
			t.Errorf("statistics %+v, want some datagrams each way at %v, and no drops or errors", s, e.addr())
		}
	}
	if a, err := x.dev.QueryPort(1); err != nil || a.State != verbs.PortActive || a.ActiveMTU != verbs.MTU4096 {
		t.Errorf("port %+v, %v; want it active with an active MTU of 4096", a, err)
	}
}

// TestUDPItself: one device may be both ends, over IPv6 as well.
func TestUDPItself(t *testing.T) {
	for _, addr := range []string{loopAddr(5), "::1"} {
		t.Run(addr, func(t *testing.T) {
			if addr == "::1" {
				linktest.OwnLoopback(t)
			}
			d := udpDevice(t, addr)
			es, err := d.GIDs(1)
			if err != nil || len(es) != 1 || es[0].GID.Addr() != netip.MustParseAddr(addr) {
				t.Fatalf("GIDs %v, %v; want %s alone", es, err, addr)
			}
			if _, err := impl(d).engine(impl(d).shards[0], netip.MustParseAddr(addr)); errors.Is(err, syscall.EADDRINUSE) {
				t.Skipf("another program uses the address: %v", err)
			}
			x, y := connect(t, d, d, options{})
			exchange(t, x, y)
			if s := stats(t, d); s.Drops != (Drops{}) {
				t.Errorf("drops %+v, want none", s.Drops)
			}
		})
	}
}

// TestUDPAddressInUse: of two devices with one address, the second fails at RTR, and names the first's address. The
// first works on. Once it is closed, the second works too.
func TestUDPAddressInUse(t *testing.T) {
	addr := loopAddr(6)
	first, second := udpDevice(t, addr), udpDevice(t, addr)
	x, y := connect(t, first, first, options{})
	z := newEnd(t, second, options{})
	peer := verbs.Peer{QPN: x.qp.QPN(), PSN: firstPSN, GID: verbs.GIDFromAddr(netip.MustParseAddr(addr))}
	err := z.qp.RTR(peer, verbs.Path{})
	if !errors.Is(err, syscall.EADDRINUSE) {
		t.Fatalf("RTR on an address in use: %v, want EADDRINUSE", err)
	}
	for _, part := range []string{"modify qp 0x", addr + ":4791", "held by", "127.0.0.0/8"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %v, want one that says %q", err, part)
		}
	}
	exchange(t, x, y)
	x.must(impl(first).Close())
	if err := z.qp.RTR(peer, verbs.Path{}); err != nil {
		t.Errorf("RTR once the address is free: %v, want no error", err)
	}
}

// TestUDPInterface: the GIDs of a whole interface are its addresses.
func TestUDPInterface(t *testing.T) {
	n, err := udp.OpenNetdev("lo")
	if err != nil {
		t.Skipf("no loopback interface to test on: %v", err)
	}
	d := openDevice(t, n)
	s, err := n.State()
	if err != nil {
		t.Fatal(err)
	}
	got := gidTable(t, d)
	if len(got) != len(s.Addrs) {
		t.Fatalf("GIDs %v, want those of the interface's addresses, %v", got, s.Addrs)
	}
	for i, a := range s.Addrs {
		if got[i] != a.String() {
			t.Errorf("GID %d is %s, want %v", i, got[i], a)
		}
	}
	if d.Name() != "soft_lo" {
		t.Errorf("name %s, want soft_lo", d.Name())
	}
}
