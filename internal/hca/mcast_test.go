package hca

import (
	"errors"
	"net/netip"
	"testing"

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
