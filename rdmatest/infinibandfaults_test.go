package rdmatest_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// brief has a QP give up after some ten milliseconds without an answer.
var brief = rdmatest.Options{Retry: verbs.Retry{Timeout: 8, RetryCount: 2}}

// ends makes a WRITE from x to y, and returns how it ends.
func ends(x, y *rdmatest.Endpoint) verbs.WCStatus {
	x.Send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{x.MR(8).SGE(0, 8)}, Remote: y.MR(8).Remote(0)})
	return x.Next().Status
}

// A port that stays down ends the QPs that send to it. Those that are connected when it is back work.
func TestInfiniBandPortDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net, between, a, b := spines(t, rdmatest.Config{})
		x, y := rdmatest.Connect(t, a, b, brief)
		net.SetCable(b, false)
		event(t, b, verbs.EventPortErr)
		if st := ends(x, y); st != verbs.WCRetryExceeded || x.QP.State() != verbs.QPStateErr {
			t.Errorf("a WRITE to a port that is down ends with %v in %v, want RETRY_EXC_ERR in ERR", st, x.QP.State())
		}
		net.SetCable(b, true)
		event(t, b, verbs.EventPortActive)
		if st := ends(rdmatest.Connect(t, a, b, brief)); st != verbs.WCSuccess {
			t.Errorf("when the port is active again a WRITE ends with %v", st)
		}

		// The same when no switch is left between the two, whose ports stay active.
		x, y = rdmatest.Connect(t, a, b, brief)
		for _, s := range between {
			s.Fail()
		}
		if st := ends(x, y); st != verbs.WCRetryExceeded {
			t.Errorf("without a switch between the ports a WRITE ends with %v, want RETRY_EXC_ERR", st)
		}
		for _, d := range []*verbs.Device{a, b} {
			if p, err := d.QueryPort(1); err != nil || p.State != verbs.PortActive {
				t.Errorf("%s: port in %v, %v; want it ACTIVE, since its own cable works", d.Name(), p.State, err)
			}
		}
	})
}

// A cable makes one subnet of two, in which the same LIDs were given. The subnet manager that stays gives new ones.
func TestInfiniBandMerge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := rdmatest.New(t, rdmatest.InfiniBand())
		left, right := net.Switch("left"), net.Switch("right")
		a, b, c := left.Device(), right.Device(), right.Device()
		if p, _ := b.QueryPort(1); p.State != verbs.PortInit || p.LID != 0 {
			t.Errorf("without a subnet manager: port in %v with LID %d, want INIT and 0", p.State, p.LID)
		}
		net.StartManager(b, 0)
		event(t, b, verbs.EventPortActive)
		event(t, c, verbs.EventPortActive)
		before, _ := b.QueryPort(1)
		if pa, _ := a.QueryPort(1); before.LID != pa.LID {
			t.Fatalf("LIDs %d and %d, want one of each subnet's own", pa.LID, before.LID)
		}
		x, y := rdmatest.Connect(t, c, b, brief)
		if st := ends(x, y); st != verbs.WCSuccess {
			t.Errorf("within a subnet a WRITE ends with %v", st)
		}
		drain(b) // the events of the bring-up

		left.Connect(right)
		if before := event(t, b, verbs.EventLIDChange); slices.Contains(before, verbs.EventPortErr) {
			t.Errorf("events %v, want LID_CHANGE of a port that stays active", before)
		}
		event(t, b, verbs.EventClientReregister)
		pa, _ := a.QueryPort(1)
		pb, _ := b.QueryPort(1)
		if pb.LID == before.LID || pb.LID == 0 || pb.SMLID != pa.LID || pb.State != verbs.PortActive {
			t.Errorf("LID %d, the manager at %d, in %v; want another LID than %d, and the first device's manager", pb.LID, pb.SMLID, pb.State, before.LID)
		}
		if st := ends(x, y); st != verbs.WCRetryExceeded {
			t.Errorf("by the LID of before a WRITE ends with %v, want RETRY_EXC_ERR", st)
		}
		for _, to := range []*verbs.Device{a, c} {
			if st := ends(rdmatest.Connect(t, b, to, brief)); st != verbs.WCSuccess {
				t.Errorf("from %s to %s a WRITE ends with %v", b.Name(), to.Name(), st)
			}
		}
	})
}

// A subnet manager of a higher priority takes over, and ports keep their LIDs.
func TestInfiniBandPriority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net, _, a, b := spines(t, rdmatest.Config{})
		x, y := rdmatest.Connect(t, a, b, brief)
		pa, _ := a.QueryPort(1)
		pb, _ := b.QueryPort(1)
		net.StartManager(b, 7)
		for _, d := range []*verbs.Device{a, b} {
			if before := event(t, d, verbs.EventClientReregister); !slices.Contains(before, verbs.EventSMChange) || slices.Contains(before, verbs.EventLIDChange) {
				t.Errorf("%s: events %v, want SM_CHANGE among them, and no LID_CHANGE", d.Name(), before)
			}
			p, _ := d.QueryPort(1)
			if want := map[*verbs.Device]uint16{a: pa.LID, b: pb.LID}[d]; p.LID != want || p.SMLID != pb.LID {
				t.Errorf("%s: LID %d, the manager at %d; want %d and %d", d.Name(), p.LID, p.SMLID, want, pb.LID)
			}
		}
		if st := ends(x, y); st != verbs.WCSuccess {
			t.Errorf("after the handover a WRITE ends with %v", st)
		}
	})
}

// A subnet manager that takes over knows of no groups. CLIENT_REREGISTER tells members to join again.
func TestInfiniBandReregister(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := rdmatest.New(t, rdmatest.InfiniBand())
		a, b := net.Device(), net.Device()
		x, y := rdmatest.Datagrams(t, a, b)
		group := verbs.GID{0: 0xff, 1: 0x12, 15: 5}
		const mlid = 0xc007
		join := func() {
			t.Helper()
			if err := y.QP.AttachMcastLID(group, mlid); err != nil {
				t.Fatal(err)
			}
		}
		ah, err := x.PD.CreateAH(verbs.AHAttr{DGID: group, DLID: mlid})
		if err != nil {
			t.Fatal(err)
		}
		in := y.MR(200)
		sends := func() {
			t.Helper()
			x.Send(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.SendSignaled, AH: ah, RemoteQPN: 0xffffff, RemoteQKey: rdmatest.QKey})
			x.Done()
			synctest.Wait()
		}
		came := func() bool {
			var wc [1]verbs.WC
			n, err := y.CQ.Poll(wc[:])
			return n == 1 && err == nil
		}
		y.Recv(verbs.RecvWR{SGList: []verbs.SGE{in.SGE(0, 200)}}, verbs.RecvWR{SGList: []verbs.SGE{in.SGE(0, 200)}})
		join()
		if sends(); !came() {
			t.Error("a datagram does not come to a member")
		}
		net.StartManager(b, 0)
		net.StopManager(a)
		event(t, b, verbs.EventClientReregister)
		if sends(); came() {
			t.Error("a datagram comes by a group that the new manager has not been told of")
		}
		if err := y.QP.DetachMcast(group); err != nil {
			t.Fatal(err)
		}
		join()
		if sends(); !came() {
			t.Error("a datagram does not come to a member that has joined again")
		}
	})
}

// drain takes the events that come within a second.
func drain(d *verbs.Device) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for {
		if _, err := d.NextEvent(ctx); err != nil {
			return
		}
	}
}
