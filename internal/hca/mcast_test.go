package hca

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestMulticastVersions: a port with GIDs of both IP versions takes groups of both.
func TestMulticastVersions(t *testing.T) {
	e := newEnd(t, simDevice(t, sim.New(sim.Config{}), 1), options{typ: verbs.QPTypeUD})
	for _, group := range []string{"239.1.2.3", "ff12::7"} {
		if err := e.qp.AttachMcast(verbs.GIDFromAddr(netip.MustParseAddr(group))); err != nil {
			t.Errorf("attach to %s: got error %v, want none", group, err)
		}
	}
}

// TestMulticastV1: RoCEv1 has GIDs, and no IP versions. A port that has such GIDs alone takes groups of each form, and one with
// other GIDs besides, of which none has the group's version, too.
func TestMulticastV1(t *testing.T) {
	v4, v6 := link.V1(simAddr(1)), link.V1(simAddr6(1))
	for _, addrs := range [][]netip.Addr{{v4}, {v6}, {v4, simAddr(1)}, {v6, simAddr6(1)}} {
		for _, group := range []string{"239.1.2.3", "ff0e::ffff:ef01:203"} {
			e := newEnd(t, openDevice(t, sim.New(sim.Config{}).Netdev("sim1", addrs...)), options{typ: verbs.QPTypeUD})
			gid := verbs.GIDFromAddr(netip.MustParseAddr(group))
			e.must(e.qp.AttachMcast(gid))
			ah, err := e.pd.CreateAH(verbs.AHAttr{DGID: gid, Port: 1}) // from the GID with index 0, of RoCEv1
			e.must(err)
			e.must(ah.Close())
			e.must(e.qp.DetachMcast(gid))
		}
	}
	refuses := error(syscall.EADDRNOTAVAIL) // as Linux does for an IPv6 address that is new
	d := openDevice(t, sim.New(sim.Config{}).Netdev("sim1", v4, simAddr(1), simAddr6(1)), func(l link.Link) link.Link {
		if link.IsV1(l.Addr().Addr()) {
			return l
		}
		return unjoinable{l, &refuses}
	})
	for group, want := range map[string]error{"ff0e::ffff:ef01:203": nil, "ff12::7": refuses, "239.1.2.3": refuses} {
		if err := newEnd(t, d, options{typ: verbs.QPTypeUD}).qp.AttachMcast(verbs.GIDFromAddr(netip.MustParseAddr(group))); !errors.Is(err, want) {
			t.Errorf("%s where RoCEv2 joins nothing: got error %v, want %v", group, err, want)
		}
	}
	e := newEnd(t, openDevice(t, sim.New(sim.Config{}).Netdev("sim1", simAddr(1))), options{typ: verbs.QPTypeUD})
	if err := e.qp.AttachMcast(verbs.GIDFromAddr(netip.MustParseAddr("ff12::7"))); !errors.Is(err, verbs.ErrNotFound) {
		t.Errorf("a group of IPv6 without a GID of IPv6: got error %v, want %v", err, verbs.ErrNotFound)
	}
}

// TestMulticastLimit: a group takes as many QPs as the device says, and no more.
func TestMulticastLimit(t *testing.T) {
	e := newEnd(t, simDevice(t, sim.New(sim.Config{}), 1), options{typ: verbs.QPTypeUD})
	group := verbs.GIDFromAddr(netip.MustParseAddr("239.1.2.3"))
	attr, err := e.dev.Query()
	e.must(err)
	attach := func() error {
		q, err := e.pd.CreateQP(verbs.QPInitAttr{Type: verbs.QPTypeUD, SendCQ: e.cq, RecvCQ: e.cq})
		e.must(err)
		e.must(q.Modify(&verbs.QPAttr{State: verbs.QPStateInit, Port: 1}, verbs.MaskState|verbs.MaskPKeyIndex|verbs.MaskPort|verbs.MaskQKey))
		return q.AttachMcast(group)
	}
	for i := range attr.MaxMcastQPAttach {
		if err := attach(); err != nil {
			t.Fatalf("QP %d: got error %v, want none", i, err)
		}
	}
	if err := attach(); !errors.Is(err, verbs.ErrLimit) {
		t.Errorf("one QP more than max_mcast_qp_attach, which is %d: got error %v, want %v", attr.MaxMcastQPAttach, err, verbs.ErrLimit)
	}
}

// unjoinable is a link that joins no group, for a cause.
type unjoinable struct {
	link.Link
	cause *error
}

func (l unjoinable) Join(netip.Addr) error  { return *l.cause }
func (l unjoinable) Leave(netip.Addr) error { return nil }

// TestMulticastRefused: a group that the link does not join is none that the QP is attached to, and the next try is a try.
func TestMulticastRefused(t *testing.T) {
	cause := error(nil)
	d := openDevice(t, sim.New(sim.Config{}).Netdev("eth0", simAddr(1)), func(l link.Link) link.Link { return unjoinable{l, &cause} })
	e := newEnd(t, d, options{typ: verbs.QPTypeUD})
	group := verbs.GIDFromAddr(netip.MustParseAddr("239.1.2.3"))
	for _, tt := range []struct{ cause, is error }{
		{syscall.ENOBUFS, syscall.ENOBUFS}, // as Linux has it beyond igmp_max_memberships
		{fmt.Errorf("this kind of link has no multicast: %w", errors.ErrUnsupported), verbs.ErrUnsupported},
	} {
		cause = tt.cause
		if err := e.qp.AttachMcast(group); !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.cause.Error()) {
			t.Errorf("attach where the link says %q: got error %v, want %v, with what the link says", tt.cause, err, tt.is)
		}
		if err := e.qp.DetachMcast(group); !errors.Is(err, verbs.ErrNotFound) {
			t.Errorf("detach after an attach that failed: got error %v, want %v", err, verbs.ErrNotFound)
		}
	}
	cause = nil
	e.must(e.qp.AttachMcast(group))
	e.must(e.qp.DetachMcast(group))
}

// TestMulticastGroups: a device takes as many groups as it says, and no more. A group that is left makes room.
func TestMulticastGroups(t *testing.T) {
	e := newEnd(t, simDevice(t, sim.New(sim.Config{}), 1), options{typ: verbs.QPTypeUD})
	attr, err := e.dev.Query()
	e.must(err)
	addr := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{239, byte(i >> 16), byte(i >> 8), byte(i)}) }
	gid := func(i int) verbs.GID { return verbs.GIDFromAddr(addr(i)) }
	e.must(e.qp.AttachMcast(gid(0)))
	e.must(e.qp.AttachMcast(gid(1)))
	groups := &e.hca().groups
	for i := 2; i < attr.MaxMcastGrp; i++ { // as if by AttachMcast: to join so many takes long
		groups.by[addr(i)] = &group{joined: groups.by[addr(0)].joined}
	}
	if err := e.qp.AttachMcast(gid(attr.MaxMcastGrp)); !errors.Is(err, verbs.ErrLimit) {
		t.Errorf("one group more than max_mcast_grp, which is %d: got error %v, want %v", attr.MaxMcastGrp, err, verbs.ErrLimit)
	}
	e.must(e.qp.AttachMcast(gid(0))) // which it is in already
	e.must(e.qp.DetachMcast(gid(1)))
	e.must(e.qp.AttachMcast(gid(attr.MaxMcastGrp)))
	if n, total := attr.MaxTotalMcastQPAttach, attr.MaxMcastGrp*attr.MaxMcastQPAttach; n != total {
		t.Errorf("max_total_mcast_qp_attach is %d, want %d: nothing else bounds it", n, total)
	}
}

// TestMulticastClose: a QP that is attached while it is being closed stays in no group, whichever comes first.
func TestMulticastClose(t *testing.T) {
	e := newEnd(t, simDevice(t, sim.New(sim.Config{}), 1), options{typ: verbs.QPTypeUD})
	addr := netip.MustParseAddr("239.1.2.3")
	e.must(e.qp.AttachMcast(verbs.GIDFromAddr(addr)))
	user, err := e.pd.CreateQP(verbs.QPInitAttr{Type: verbs.QPTypeUD, SendCQ: e.cq, RecvCQ: e.cq})
	e.must(err)
	q := user.Provider().(*qp)
	q.mu.Lock()
	closed := make(chan error, 1)
	go func() { closed <- user.Close() }()
	for q.shard.qps.Get(q.num) != nil { // until Close has looked whether the QP is attached
		runtime.Gosched()
	}
	groups := &e.hca().groups
	groups.mu.Lock()
	groups.by[addr].qps = append(groups.by[addr].qps, q)
	groups.mu.Unlock()
	q.mu.Unlock()
	e.must(<-closed)
	q.state.Store(uint32(verbs.QPStateInit)) // as AttachMcast may have seen it before
	if err := q.AttachMcast(verbs.GIDFromAddr(addr)); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("attached after Close: got error %v, want %v", err, verbs.ErrClosed)
	}
	if n := len(groups.members(&link.Datagram{Dst: netip.AddrPortFrom(addr, link.Port)})); n != 1 {
		t.Errorf("the group has %d QPs, want 1: the other is closed", n)
	}
}
