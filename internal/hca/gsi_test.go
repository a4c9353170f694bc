package hca

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// gsiEnd makes QP1 of a device, ready to send and with receives.
func gsiEnd(t testing.TB, d *verbs.Device) (*end, *verbs.MR) {
	t.Helper()
	e := &end{t: t, dev: d}
	g, err := d.GSI()
	e.must(err)
	e.pd, err = d.AllocPD()
	e.must(err)
	e.cq, err = d.CreateCQ(16)
	e.must(err)
	e.qp, err = g.CreateQP(e.pd, verbs.QPInitAttr{SendCQ: e.cq, RecvCQ: e.cq, Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4}})
	e.must(err)
	e.must(e.qp.Modify(&verbs.QPAttr{State: verbs.QPStateInit, Port: 1, QKey: verbs.GSIQKey},
		verbs.MaskState|verbs.MaskPKeyIndex|verbs.MaskPort|verbs.MaskQKey))
	e.must(e.qp.Modify(&verbs.QPAttr{State: verbs.QPStateRTR}, verbs.MaskState))
	e.must(e.qp.RTS(0, verbs.Retry{}))
	const size = verbs.GRHSize + wire.MADSize
	mr := e.mr(3 * size)
	for i := range 2 {
		e.recv(verbs.RecvWR{ID: uint64(i), SGList: []verbs.SGE{mr.SGE(i*size, size)}})
	}
	return e, mr
}

// TestGSI: MADs go from QP1 to QP1, and nowhere else.
func TestGSI(t *testing.T) {
	net := sim.New(sim.Config{})
	x, xmr := gsiEnd(t, simDevice(t, net, 1))
	y, ymr := gsiEnd(t, simDevice(t, net, 2))
	gid, err := y.dev.GID(1, 0)
	y.must(err)
	ah, err := x.pd.CreateAH(verbs.AHAttr{DGID: gid.GID})
	x.must(err)
	const size = verbs.GRHSize + wire.MADSize
	out := xmr.Bytes()[2*size:][:wire.MADSize]
	fill(out, 1)
	for round := range 2 {
		mad := verbs.SendWR{Op: verbs.OpSend, Flags: signaled, SGList: []verbs.SGE{xmr.SGE(2*size, wire.MADSize)},
			AH: ah, RemoteQPN: verbs.GSIQPN, RemoteQKey: verbs.GSIQKey}
		other := mad
		other.RemoteQPN = 0 // is dropped
		x.send(other, mad)
		x.done()
		x.done()
		wc := y.done()
		if wc.SrcQPN != verbs.GSIQPN || wc.QPN != verbs.GSIQPN || wc.ByteLen != size || wc.Flags&verbs.WCFlagGRH == 0 {
			t.Errorf("completion %+v, want one of %d bytes with a GRH from QP1 to QP1", wc, size)
		}
		if got := ymr.Bytes()[int(wc.ID)*size+verbs.GRHSize:][:wire.MADSize]; string(got) != string(out) {
			t.Error("another MAD than was sent")
		}
		if round > 0 {
			break
		}
		// A QP1 that is closed makes room for the next.
		y.must(y.qp.Close())
		y, ymr = gsiEnd(t, y.dev)
	}
	cs, err := x.dev.Counters()
	x.must(err)
	if n := cs.Value("sent_pkts"); n != 4 {
		t.Errorf("the device has sent %d packets, want the 4 of its QP1", n)
	}
	y.must(y.qp.Close())
	x.send(verbs.SendWR{Op: verbs.OpSend, Flags: signaled, AH: ah, RemoteQPN: verbs.GSIQPN, RemoteQKey: verbs.GSIQKey})
	x.done()
	// Two datagrams for QP0, and this one.
	for deadline := time.Now().Add(patience); impl(y.dev).Stats()[0].Drops.NoQP != 3; y.empty() { // which makes progress
		if time.Now().After(deadline) {
			t.Fatalf("drops %+v after %v, want 3 NoQP", impl(y.dev).Stats()[0].Drops, patience)
		}
	}
}

// neighbors is a network interface that counts the neighbours which it was asked to resolve.
type neighbors struct {
	*sim.Netdev
	asked int
}

func (n *neighbors) ResolveNeighbor(_, _ netip.Addr) { n.asked++ }

// TestGSINeighbors: no AH of QP1's PD waits for a neighbour. When QP1 is closed, the PD is as any other: its UD QPs
// lose no first datagram.
func TestGSINeighbors(t *testing.T) {
	n := &neighbors{Netdev: sim.New(sim.Config{}).Netdev("sim1", simAddr(1))}
	x, _ := gsiEnd(t, openDevice(t, n))
	for want := range 2 {
		_, err := x.pd.CreateAH(verbs.AHAttr{DGID: verbs.GIDFromAddr(simAddr(2))})
		x.must(err)
		if n.asked != want {
			t.Errorf("%d neighbours resolved, want %d", n.asked, want)
		}
		x.must(x.qp.Close())
	}
}

// TestGSIConfig: a device's messages to others that share QP1 with it, and its questions to them.
func TestGSIConfig(t *testing.T) {
	served := 0
	taken := map[service]bool{}
	failure := errors.New("no sockets")
	n := sim.New(sim.Config{}).Netdev("sim1", simAddr(1), simAddr6(1))
	var owned []uint32
	p, err := Open(n, Config{
		Ways: Ways{Claim: func(block uint32) (bool, error) {
			owned = append(owned, block)
			return true, nil
		}},
		ServeGSI: func(on bool) {
			served--
			if on {
				served += 2
			}
		},
		ClaimService: func(addr netip.Addr, id uint64) (func(), bool, error) {
			if id == 13 {
				return nil, false, failure
			}
			s := service{addr, id}
			if taken[s] {
				return nil, false, nil
			}
			taken[s] = true
			return func() { delete(taken, s) }, true, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	d := verbs.NewDevice(p)
	g, err := d.GSI()
	if err != nil {
		t.Fatal(err)
	}
	base, bits, err := g.CommIDs()
	if err != nil || bits != commIDBits || len(owned) != 1 || base != owned[0]<<commIDBits {
		t.Errorf("communication IDs %#x, %d bits, %v; blocks %#x; want %d bits and one block that the IDs begin with", base, bits, err, owned, commIDBits)
	}
	e, _ := gsiEnd(t, d)
	if _, err := g.CreateQP(e.pd, verbs.QPInitAttr{SendCQ: e.cq, RecvCQ: e.cq}); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("a second QP1: got error %v, want ErrBusy", err)
	}
	if err := e.qp.Modify(&verbs.QPAttr{QKey: 7}, verbs.MaskQKey); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("another Q_Key for QP1: got error %v, want ErrInvalid", err)
	}
	if served != 1 {
		t.Error("QP1 is not announced")
	}
	e.must(e.qp.Close())
	if served != 0 || len(owned) != 1 {
		t.Errorf("QP1 is announced %d times, and there are blocks %#x; want 0 and one", served, owned)
	}

	there := service{simAddr6(1), 7}
	release, err := g.ClaimService(1, 7)
	if err != nil || !taken[there] {
		t.Errorf("claim: %v, %v; want no error and %v taken", err, taken, there)
	}
	if _, err := g.ClaimService(1, 7); !errors.Is(err, verbs.ErrBusy) || !strings.Contains(err.Error(), "this device") {
		t.Errorf("second claim: %v, want ErrBusy that names this device", err)
	}
	if release(); taken[there] {
		t.Errorf("%v is taken after its release, want others to know that it is free", there)
	}
	taken[there] = true
	if _, err := g.ClaimService(1, 7); !errors.Is(err, verbs.ErrBusy) || !strings.Contains(err.Error(), "address in use: another program") {
		t.Errorf("claim of what another program has: %v, want ErrBusy that says so", err)
	}
	delete(taken, there)
	if _, err := g.ClaimService(1, 13); !errors.Is(err, failure) {
		t.Errorf("claim without sockets: %v, want %v", err, failure)
	}
	if _, err := g.ClaimService(1, 7); err != nil {
		t.Errorf("claim of what is free again: %v, want no error", err)
	}
}

// TestShareService: a service is shared by those alone who share it, of the device and of others, and the last of the
// device asks the others before it has it alone.
func TestShareService(t *testing.T) {
	others, ended := 1, 0 // who share it as well
	p, err := Open(sim.New(sim.Config{}).Netdev("sim1", simAddr(1)), Config{
		ShareService: func(addr netip.Addr, id uint64) (claim func() (bool, error), release func(), ok bool, err error) {
			return func() (bool, error) { return others == 0, nil }, func() { ended++ }, id != 13, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	g, err := verbs.NewDevice(p).GSI()
	if err != nil {
		t.Fatal(err)
	}
	busy := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, verbs.ErrBusy) || !strings.Contains(err.Error(), "address in use") {
			t.Errorf("%s: got error %v, want %v that says that the address is in use", what, err, verbs.ErrBusy)
		}
	}
	share := func(id uint64) (claim func() error, release func(), err error) { return g.ShareService(0, id) }
	_, _, err = share(13)
	busy("sharing what another program has", err)
	release, err := g.ClaimService(0, 7)
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = share(7)
	busy("sharing what the device has claimed", err)
	release()

	claimX, releaseX, errX := share(7)
	_, releaseY, errY := share(7)
	if err := errors.Join(errX, errY); err != nil {
		t.Fatal(err)
	}
	_, err = g.ClaimService(0, 7)
	busy("claiming what is shared", err)
	others = 0
	busy("having alone what another of the device shares", claimX())
	releaseY()
	others = 1
	busy("having alone what another program shares", claimX())
	others = 0
	if err := claimX(); err != nil {
		t.Errorf("having alone what nobody else shares: got error %v, want none", err)
	}
	_, _, err = share(7)
	busy("sharing what one has alone", err)
	_, err = g.ClaimService(0, 7)
	busy("claiming what one has alone", err)
	if ended != 0 {
		t.Errorf("the others were told %d times that it is free, want none while one has it", ended)
	}
	releaseX()
	releaseX()
	if _, err := g.ClaimService(0, 7); err != nil || ended != 1 {
		t.Errorf("claiming what was given back: got error %v, and the others were told %d times, want once", err, ended)
	}
}

// TestClaimWhereDeaf: nobody claims a service at an address that the device cannot receive at, though its
// QP1 serves another. When the address is free again the claim is good, and requests come.
func TestClaimWhereDeaf(t *testing.T) {
	net := sim.New(sim.Config{})
	p, err := Open(net.Netdev("sim1", simAddr(1), simAddr6(1)), Config{})
	if err != nil {
		t.Fatal(err)
	}
	d := verbs.NewDevice(p)
	t.Cleanup(func() { p.Close() })
	holder, err := net.Netdev("other", simAddr6(1)).Open(simAddr6(1))
	if err != nil {
		t.Fatal(err)
	}
	x, _ := gsiEnd(t, d)
	g, err := d.GSI()
	x.must(err)
	if _, err := g.ClaimService(1, 7); err == nil || !strings.Contains(err.Error(), simAddr6(1).String()) {
		t.Errorf("claim at an address that somebody else holds: got error %v, want one that names %v", err, simAddr6(1))
	}
	if _, err := g.ClaimService(0, 7); err != nil {
		t.Errorf("claim at the other address: got error %v, want none", err)
	}
	if err := holder.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := g.ClaimService(1, 7); err != nil {
		t.Errorf("claim at the address that is free again: got error %v, want none", err)
	}
	y, mr := gsiEnd(t, simDevice(t, net, 2))
	gid, err := d.GID(1, 1)
	y.must(err)
	ah, err := y.pd.CreateAH(verbs.AHAttr{DGID: gid.GID, SGIDIndex: 1})
	y.must(err)
	y.send(verbs.SendWR{Op: verbs.OpSend, Flags: signaled, SGList: []verbs.SGE{mr.SGE(2*(verbs.GRHSize+wire.MADSize), wire.MADSize)},
		AH: ah, RemoteQPN: verbs.GSIQPN, RemoteQKey: verbs.GSIQKey})
	y.done()
	if wc := x.done(); wc.SrcQPN != verbs.GSIQPN {
		t.Errorf("got completion %+v, want that of a MAD", wc)
	}
}

// TestCommEst: a program that asks for it is told of the peer's first request, in RTS too, where there
// is no event.
func TestCommEst(t *testing.T) {
	for _, rtr := range []bool{false, true} {
		net := sim.New(sim.Config{})
		x, y := newEnd(t, simDevice(t, net, 1), options{}), newEnd(t, simDevice(t, net, 2), options{})
		x.join(y, options{})
		y.join(x, options{rtr: rtr})
		told := make(chan struct{})
		y.must(y.qp.NotifyCommEst(func() {
			y.qp.State() // no lock is held
			close(told)  // once, or it panics
		}))
		for range 2 {
			x.send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: signaled})
			x.done()
		}
		<-told
		if rtr {
			if ev := event(t, y.dev); ev.Type != verbs.EventCommEst || ev.QP != y.qp {
				t.Errorf("event %v of QP %p, want COMM_EST of %p", ev.Type, ev.QP, y.qp)
			}
		}
		noEvent(t, y.dev)
		late := make(chan struct{})
		y.must(y.qp.NotifyCommEst(func() { close(late) }))
		select {
		case <-late:
		case <-time.After(patience / 10):
			t.Errorf("who asks once the request has come is not told within %v, want it told", patience/10)
		}
		y.must(y.qp.Modify(&verbs.QPAttr{State: verbs.QPStateReset}, verbs.MaskState))
		if y.impl().commEst.seen {
			t.Error("after RESET the peer's first request counts as seen, want that of the next connection to be told")
		}
	}
}

// TestGSIWithoutBlock: a device that can have no block of QPNs says so.
func TestGSIWithoutBlock(t *testing.T) {
	failure := errors.New("no sockets")
	p, err := Open(sim.New(sim.Config{}).Netdev("sim1", simAddr(1)), Config{Ways: Ways{Claim: func(uint32) (bool, error) { return false, failure }}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	d := verbs.NewDevice(p)
	g, err := d.GSI()
	if err != nil {
		t.Fatal(err)
	}
	_, _, e1 := g.CommIDs()
	_, e2 := g.ClaimService(0, 1)
	pd, err := d.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	cq, err := d.CreateCQ(1)
	if err != nil {
		t.Fatal(err)
	}
	_, e3 := g.CreateQP(pd, verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq})
	for i, err := range []error{e1, e2, e3} {
		if !errors.Is(err, failure) {
			t.Errorf("%d: %v, want %v", i, err, failure)
		}
	}
}
