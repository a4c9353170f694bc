package rdmatest_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// counter returns a counter of a QP.
func counter(t *testing.T, e *rdmatest.Endpoint, name string) uint64 {
	t.Helper()
	cs, err := e.QP.Counters()
	if err != nil {
		t.Fatal(err)
	}
	v, ok := cs.Get(name)
	if !ok {
		t.Fatalf("there is no counter %s", name)
	}
	return v
}

// write makes x write 8 bytes into y's memory.
func write(x, y *rdmatest.Endpoint, src, dst *verbs.MR) {
	x.Send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{src.SGE(0, 8)}, Remote: dst.Remote(0)})
	x.Done()
}

// The packet that is counted meets its fault, and no other does.
func TestOnPacket(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fault rdmatest.Fault
		back  bool   // of the acknowledgement
		at    string // the end that sees it: x or y
		sees  string // the counter that it shows in
	}{
		{"request lost", rdmatest.Lose, false, "x", "loss_probes"},
		{"acknowledgement lost", rdmatest.Lose, true, "y", "duplicate_request"},
		{"request twice", rdmatest.Duplicate, false, "y", "duplicate_request"},
		{"acknowledgement twice", rdmatest.Duplicate, true, "x", "unexpected_pkts"},
		{"request damaged", rdmatest.Corrupt, false, "y", "rx_icrc_encapsulated"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				net := rdmatest.New(t, rdmatest.Config{Seed: 1}) // one that damages no QPN
				a, b := net.Device(), net.Device()
				x, y := rdmatest.Connect(t, a, b)
				src, dst := x.MR(8), y.MR(8)
				write(x, y, src, dst)
				if tt.back {
					net.OnPacket(b, a, 2, tt.fault)
				} else {
					net.OnPacket(a, b, 2, tt.fault)
				}
				e := x
				if tt.at == "y" {
					e = y
				}
				write(x, y, src, dst)
				if n := counter(t, e, tt.sees); n != 0 {
					t.Fatalf("%s is %d after the first packet from then on, want 0", tt.sees, n)
				}
				write(x, y, src, dst)
				synctest.Wait()
				write(x, y, src, dst)
				synctest.Wait()
				if n := counter(t, e, tt.sees); n != 1 {
					t.Errorf("%s is %d after the second and third, want 1", tt.sees, n)
				}
			})
		})
	}
}

// Packets that find bytes waiting are marked, from the beginning and by SetFaults.
func TestMarkCEAbove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		congested := rdmatest.Config{Rate: 1 << 20, MarkCEAbove: 1}
		for _, config := range []rdmatest.Config{congested, {}} {
			net := rdmatest.New(t, config)
			x, y := rdmatest.Connect(t, net.Device(), net.Device(), rdmatest.Options{Path: verbs.Path{TrafficClass: 2}}) // ECT(0)
			net.SetFaultsFrom(y.Device, x.Device, rdmatest.Config{})
			if config.Rate == 0 {
				net.SetFaults(congested)
			}
			src, dst := x.MR(8192), y.MR(8192)
			x.Send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{src.SGE(0, 8192)}, Remote: dst.Remote(0)})
			x.Done()
			if n := counter(t, y, "np_ecn_marked_roce_packets"); n != 1 {
				t.Errorf("of two packets that were sent at once %d are marked, want the second", n)
			}
		}
	})
}

// A packet that the next one overtakes comes behind it. In a bubble, where the next one is never late.
func TestOnPacketOvertaken(t *testing.T) { synctest.Test(t, testOnPacketOvertaken) }

func testOnPacketOvertaken(t *testing.T) {
	net := rdmatest.New(t)
	a, b := net.Device(), net.Device()
	x, y := rdmatest.Datagrams(t, a, b)
	src, dst := x.MR(8), y.MR(400)
	for i := range 3 {
		y.Recv(verbs.RecvWR{SGList: []verbs.SGE{dst.SGE(100*i, 100)}})
	}
	net.OnPacket(a, b, 1, rdmatest.Overtake)
	for i := range 2 {
		src.Bytes()[0] = byte(i)
		x.Send(x.To(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{src.SGE(0, 8)}}))
		x.Done()
	}
	y.Done()
	y.Done()
	if first, second := dst.Bytes()[verbs.GRHSize], dst.Bytes()[100+verbs.GRHSize]; first != 1 || second != 0 {
		t.Errorf("datagrams %d and %d arrive, want 1 before 0", first, second)
	}
}

// SetFaultsFrom is about one direction.
func TestSetFaultsFrom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const delay = time.Second
		net := rdmatest.New(t)
		a, b := net.Device(), net.Device()
		x, y := rdmatest.Datagrams(t, a, b)
		once := func(from, to *rdmatest.Endpoint) time.Duration {
			src, dst := from.MR(8), to.MR(100)
			to.Recv(verbs.RecvWR{SGList: []verbs.SGE{dst.SGE(0, 100)}})
			start := time.Now()
			from.Send(from.To(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{src.SGE(0, 8)}}))
			from.Done()
			to.Done()
			return time.Since(start)
		}
		net.SetFaultsFrom(a, b, rdmatest.Config{Delay: delay})
		if there, back := once(x, y), once(y, x); there != delay || back != 0 {
			t.Errorf("a datagram takes %v, and one back %v; want %v and 0", there, back, delay)
		}
		net.SetFaults(rdmatest.Config{Delay: 2 * delay})
		if there, back := once(x, y), once(y, x); there != delay || back != 2*delay {
			t.Errorf("with faults of the network a datagram takes %v, and one back %v; want %v and %v", there, back, delay, 2*delay)
		}
		net.ClearFaultsFrom(a, b)
		if there := once(x, y); there != 2*delay {
			t.Errorf("without faults of its own a datagram takes %v, want %v", there, 2*delay)
		}
	})
}

// UC does not repeat lost packets, and counts them.
func TestConnectUC(t *testing.T) {
	net := rdmatest.New(t)
	a, b := net.Device(), net.Device()
	x, y := rdmatest.Connect(t, a, b, rdmatest.Options{Type: verbs.QPTypeUC, Path: verbs.Path{MTU: verbs.MTU256}})
	src, dst := x.MR(1000), y.MR(1000)
	send := func() {
		x.Send(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{src.SGE(0, 1000)}})
		x.Done()
	}
	y.Recv(verbs.RecvWR{ID: 1, SGList: []verbs.SGE{dst.SGE(0, 1000)}})
	net.OnPacket(a, b, 2, rdmatest.Lose)
	send()
	send()
	if wc := y.Done(); wc.ID != 1 || wc.ByteLen != 1000 || x.QP.Type() != verbs.QPTypeUC {
		t.Errorf("received %+v, want the second message", wc)
	}
	if missed, lost := counter(t, y, "uc_missed_pkts"), counter(t, y, "uc_lost_msgs"); missed != 1 || lost != 1 {
		t.Errorf("%d packets missed and %d messages lost are counted, want one each", missed, lost)
	}
}

// A UD message that is longer than its receive is counted.
func TestDatagrams(t *testing.T) {
	net := rdmatest.New(t)
	x, y := rdmatest.Datagrams(t, net.Device(), net.Device(), rdmatest.Options{GIDIndex: 1})
	src, dst := x.MR(100), y.MR(1000)
	y.Recv(verbs.RecvWR{ID: 1, SGList: []verbs.SGE{dst.SGE(0, verbs.GRHSize+50)}})
	for _, n := range []int{51, 50} {
		x.Send(x.To(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{src.SGE(0, n)}}))
		x.Done()
	}
	if wc := y.Done(); wc.ByteLen != verbs.GRHSize+50 || wc.SrcQPN != x.QP.QPN() {
		t.Errorf("received %+v, want the second message", wc)
	}
	if n := counter(t, y, "resp_local_length_error"); n != 1 {
		t.Errorf("%d messages that are too long are counted, want 1", n)
	}
	if gid := x.AH.Attr().DGID; !gid.Addr().Is6() {
		t.Errorf("the way goes to %v, want an IPv6 address", gid)
	}
}

// A region's address is the same at each run, and its memory begins at a page as AllocMR's does.
func TestMRAddress(t *testing.T) {
	for range 2 {
		net := rdmatest.New(t)
		x, y := rdmatest.Connect(t, net.Device(), net.Device())
		m, n, o := x.MR(1), x.MR(5000), y.MR(1)
		if m.Addr() != 1<<40 || n.Addr() != 1<<40+2*4096 || o.Addr() != m.Addr() {
			t.Errorf("addresses %#x, %#x and %#x; want them to follow from the order", m.Addr(), n.Addr(), o.Addr())
		}
		if n.Load64(8) != 0 {
			t.Error("memory is not zeroed")
		}
	}
}
