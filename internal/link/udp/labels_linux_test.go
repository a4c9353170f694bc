//go:build !adverb_portable

package udp

import (
	"bytes"
	"errors"
	"net/netip"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/linktest"
)

// openLoopback6 opens a link of ::1, in a network namespace of its own where the test may make one.
func openLoopback6(t *testing.T) *Link {
	t.Helper()
	linktest.OwnLoopback(t)
	d, err := NetdevForAddr("lo", netip.IPv6Loopback())
	if err != nil {
		t.Skipf("no IPv6 on loopback: %v", err)
	}
	t.Cleanup(func() { d.Close() })
	l, err := d.Open(netip.IPv6Loopback())
	if errors.Is(err, unix.EADDRINUSE) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.(*Link)
}

// takesLabels skips the test unless l's datagrams leave with the labels that they are given. Before Linux 5.17 a
// lease in any network namespace is in the way, and later one in a namespace that has ever had one.
func takesLabels(t *testing.T, l *Link) {
	t.Helper()
	const label = 0x54321
	if err := l.Send([]link.Datagram{{Src: l.Source(1), Dst: l.Addr(), Payload: []byte("probe"), FlowLabel: label}}); err != nil {
		t.Fatal(err)
	}
	if got := receiveSome(t, l); got[0].FlowLabel != label {
		if l.labels.on.Load() {
			t.Fatalf("a datagram has flow label %#05x, want %#05x", got[0].FlowLabel, label)
		}
		t.Skip("flow labels are refused: this system has none, or somebody has leased one for himself")
	}
}

// TestFlowLabel: labels of single datagrams and of trains, which the kernel cuts and joins, go from a socket to
// the other.
func TestFlowLabel(t *testing.T) {
	linktest.FlowLabel(t, func(t *testing.T) (a, b link.Link) {
		l := openLoopback6(t)
		takesLabels(t, l)
		return l, l
	})
}

// TestFlowLabelNotAtFault: a datagram that is refused with EINVAL for another reason is lost, as without labels, and
// labels stay in use.
func TestFlowLabelNotAtFault(t *testing.T) {
	l := openLoopback6(t)
	takesLabels(t, l)
	before := l.Stats()
	d := link.Datagram{Src: l.Source(1), Dst: l.Addr(), Payload: []byte("single"), FlowLabel: 5}
	if none := linktest.SendFails(unix.EINVAL, func() {
		if err := l.Send([]link.Datagram{d, d}); err != nil {
			t.Error(err)
		}
	}); none != nil {
		t.Skipf("no seccomp: %v", none)
	}
	if s := l.Stats(); s.SendErrors != 2 || s.Sent != before.Sent {
		t.Errorf("%d sent and %d lost, want 2 lost", s.Sent-before.Sent, s.SendErrors)
	}
	if err := l.Send([]link.Datagram{d}); err != nil {
		t.Fatal(err)
	}
	if got := receiveSome(t, l); len(got) != 1 || got[0].FlowLabel != 5 {
		t.Errorf("%+v arrives afterwards, want one datagram with flow label 5", got)
	}
}

// TestFlowLabelRefused: while somebody in the network namespace has leased a label, the kernel refuses all others.
// Datagrams leave with labels of the system's then, and none is lost. Labels are tried again later.
func TestFlowLabelRefused(t *testing.T) {
	linktest.OwnNetwork(t)
	if err := linktest.LoopbackUp(); err != nil {
		t.Fatal(err)
	}
	l := openLoopback6(t)
	if !l.labels.on.Load() || l.MaxTrain() < 4 {
		t.Skip("this system has no flow labels, or cuts no trains")
	}
	leaseLabel(t, 0x777)
	const size, label = 100, 0x12345
	one := func(segments int) link.Datagram {
		return link.Datagram{Src: l.Source(1), Dst: l.Addr(), Payload: bytes.Repeat([]byte{7}, segments*size), SegmentSize: size, FlowLabel: label}
	}
	labels := func(want int, batch ...link.Datagram) (list []uint32) {
		t.Helper()
		if err := l.Send(batch); err != nil {
			t.Fatal(err)
		}
		for got := 0; got < want; {
			for _, d := range receiveSome(t, l) {
				got += d.Segments()
				list = append(list, d.FlowLabel)
			}
		}
		return list
	}
	for round := range 3 {
		for _, got := range labels(1+4+1, one(1), one(4), one(1)) {
			if got == label {
				t.Errorf("round %d: a datagram has the label that the kernel refuses, want another", round)
			}
		}
		if s := l.Stats(); s.SendErrors != 0 || s.Sent != uint64(6*(round+1)) {
			t.Errorf("round %d: %d datagrams sent and %d lost, want %d and none", round, s.Sent, s.SendErrors, 6*(round+1))
		}
		if l.labels.on.Load() || l.MaxTrain() == 1 {
			t.Errorf("round %d: labels in use: %v, longest train %d; want no labels, and trains", round, l.labels.on.Load(), l.MaxTrain())
		}
		if round == 1 {
			l.labels.resume() // the pause is over
		}
	}

	// Trains may be refused too. Then the first datagram of one must show that the train was at fault.
	l.labels.resume()
	for i := range l.tx {
		if err := unix.SetsockoptInt(l.tx[i].fd, unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_TX, 1); err != nil {
			t.Fatal(err)
		}
	}
	labels(1, one(4))
	if s := l.Stats(); s.SendErrors != 3 || l.MaxTrain() != 1 {
		t.Errorf("of a train of 4 that is refused as well, %d are lost and the longest train is %d; want 3 and 1", s.SendErrors, l.MaxTrain())
	}
}

// leaseLabel has a socket lease a flow label to ::1 for itself: struct in6_flowlabel_req of linux/in6.h.
func leaseLabel(t *testing.T, label uint32) {
	t.Helper()
	const manager, exclusive, create = 32, 1, 1 // IPV6_FLOWLABEL_MGR, IPV6_FL_S_EXCL, IPV6_FL_F_CREATE
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	request := struct {
		dst             [16]byte
		label           [4]byte
		action, share   uint8
		flags           uint16
		expires, linger uint16
		_               uint32
	}{dst: netip.IPv6Loopback().As16(), label: [4]byte{0, byte(label >> 16), byte(label >> 8), byte(label)}, share: exclusive, flags: create}
	raw := unsafe.Slice((*byte)(unsafe.Pointer(&request)), unsafe.Sizeof(request))
	if err := unix.SetsockoptString(fd, unix.IPPROTO_IPV6, manager, string(raw)); err != nil {
		t.Skipf("no flow label to lease: %v", err)
	}
}
