package rsocket

import (
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// forge sends n REQs of rsockets from a device to a listener, and never answers.
func forge(t *testing.T, d *verbs.Device, from, to netip.AddrPort, n int) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	gsi, err := d.GSI()
	must(err)
	pd, err := d.AllocPD()
	must(err)
	cq, err := d.CreateCQ(64)
	must(err)
	qp, err := gsi.CreateQP(pd, verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: wire.MADSize}})
	must(err)
	must(qp.Modify(&verbs.QPAttr{State: verbs.QPStateInit, Port: 1, QKey: verbs.GSIQKey}, verbs.MaskState|verbs.MaskPKeyIndex|verbs.MaskPort|verbs.MaskQKey))
	must(qp.Modify(&verbs.QPAttr{State: verbs.QPStateRTR}, verbs.MaskState))
	must(qp.RTS(0, verbs.Retry{}))
	ah, err := pd.CreateAH(verbs.AHAttr{DGID: verbs.GIDFromAddr(to.Addr())})
	must(err)
	id, _, err := gsi.CommIDs()
	must(err)
	for i := range uint32(n) {
		m := wire.REQ{
			LocalCommID: id + i, ServiceID: wire.RDMAServiceID(uint16(rdmacm.PortSpaceTCP), to.Port()), LocalGUID: 77, LocalQPN: 1 + i,
			ResponderResources: 1, InitiatorDepth: 1, RemoteCMTimeout: 18, LocalCMTimeout: 18, StartingPSN: 5, RetryCount: 7, PKey: wire.DefaultPKey,
			MTU: uint8(verbs.MTU1024), RNRRetryCount: 7, MaxCMRetries: 15,
			Primary: wire.CMPath{LocalLID: 0xffff, RemoteLID: 0xffff, LocalGID: verbs.GIDFromAddr(from.Addr()), RemoteGID: verbs.GIDFromAddr(to.Addr()), HopLimit: 64, ACKTimeout: 15},
		}
		ip := wire.IPCMHeader{Src: from.Addr(), Dst: to.Addr(), SrcPort: from.Port()}
		private := ip.AppendTo(nil)
		copy(m.PrivateData[:], appendHello(private, &parameters{credits: 10, sgl: extent{length: 2}, data: extent{verbs.RemoteAddr{VA: 1, RKey: 2}, 100}}))
		head := wire.NewCMHeader(wire.CMREQ, uint64(1+i))
		must(qp.PostOneSend(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.SendInline | verbs.SendSignaled, InlineData: m.AppendTo(head.AppendTo(nil)),
			AH: ah, RemoteQPN: verbs.GSIQPN, RemoteQKey: verbs.GSIQKey}))
		var wcs [16]verbs.WC
		synctest.Wait()
		_, err := cq.Poll(wcs[:])
		must(err)
	}
}

// A host whose requests are accepted and never confirmed does not keep others out. Its requests held all places of a
// listener for DefaultHandshakeTime.
func TestForgedRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const backlog = 4
		n := rdmatest.New(t)
		a, b, strangers := n.Device(), n.Device(), []*verbs.Device{n.Device(), n.Device()}
		lc := ListenConfig{Devices: []*verbs.Device{b}, Backlog: backlog}
		l, err := lc.Listen(t.Context(), "rsocket", "10.0.0.2:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		places := l.(*Listener).places
		for i, d := range strangers { // the connection manager takes half of the first one's requests back for the second one
			from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(3 + i)}), 999)
			forge(t, d, from, netip.MustParseAddrPort(l.Addr().String()), 3*backlog)
			time.Sleep(time.Second) // until who makes room has let go
			synctest.Wait()
		}
		places.mu.Lock()
		if making, waiting := places.making.Len(), places.waiting.Len(); making != backlog || places.taken != backlog || waiting > backlog {
			t.Errorf("%d connections on the way, %d places taken, %d requests wait; want %d, %d, %d at most", making, places.taken, waiting, backlog, backlog, backlog)
		}
		of := map[string]int{}
		for a := range places.making.All() {
			of[a.from.String()]++
		}
		if of["10.0.0.3"] != backlog/2 || of["10.0.0.4"] != backlog/2 {
			t.Errorf("of the connections on the way are %v, want half of each stranger", of)
		}
		places.mu.Unlock()
		begin := time.Now()
		for range backlog / 2 {
			d := Dialer{Devices: []*verbs.Device{a}}
			x, err := d.Dial("rsocket", l.Addr().String())
			if err != nil {
				t.Fatalf("another host does not connect: %v", err)
			}
			defer x.Close()
		}
		if took := time.Since(begin); took > DefaultHandshakeTime/4 {
			t.Errorf("another host has connected after %v, want it within %v", took, DefaultHandshakeTime/4)
		}
		for range backlog / 2 {
			y, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			if got := y.(*Conn).cm.RemoteAddr().Addr().String(); got != "10.0.0.1" {
				t.Errorf("a connection of %v, want of 10.0.0.1", got)
			}
			defer y.Close()
		}
		time.Sleep(3 * DefaultHandshakeTime)
		synctest.Wait()
		places.mu.Lock()
		defer places.mu.Unlock()
		if making, waiting := places.making.Len(), places.waiting.Len(); places.taken != 0 || making+waiting != 0 {
			t.Errorf("%d places are taken in the end, by %d on the way, and %d wait; want none", places.taken, making, waiting)
		}
	})
}

// ask has a request of a host wait for a place.
func (p *places) ask(host byte, lose func(*attempt)) *attempt {
	a := &attempt{from: netip.AddrFrom4([4]byte{10, 0, 0, host}), place: make(chan struct{})}
	a.cancel = func() { lose(a) }
	p.join(a)
	return a
}

// Places go to the source with the fewest, and come from the one with the most, its oldest first, when that has let go.
func TestCrowd(t *testing.T) {
	c := newPlaces(3)
	lost := map[*attempt]bool{}
	join := func(host byte) *attempt { return c.ask(host, func(a *attempt) { lost[a] = true }) }
	has := func(a *attempt) bool {
		select {
		case <-a.place:
			return true
		default:
			return false
		}
	}
	first, second, third, fourth := join(1), join(1), join(1), join(1)
	if !has(first) || !has(second) || !has(third) || has(fourth) || len(lost) != 0 {
		t.Fatalf("a source has not taken the 3 places that nobody else wants, or has lost one to itself")
	}
	other := join(2)
	if !lost[first] || len(lost) != 1 || has(other) {
		t.Errorf("%d have lost a place to another source, want the oldest, and none taken before it is free", len(lost))
	}
	c.complete(second) // which keeps its place
	if len(lost) != 1 {
		t.Errorf("%d have lost a place, want 1", len(lost))
	}
	c.leave(first)
	if !has(other) || has(fourth) || c.taken != 3 {
		t.Errorf("the free place is not the other source's")
	}
	if join(2); len(lost) != 1 {
		t.Error("a source that has as many has taken a place")
	}
	c.accepted()
	if c.taken != 3 || !has(fourth) {
		t.Errorf("the place of a connection that was accepted is not given to who waits longest")
	}
}

// Who has lost its place, and has not let go yet, loses it once, and its source counts without it.
func TestCrowdLosers(t *testing.T) {
	c := newPlaces(4)
	var lost []*attempt
	join := func(host byte) *attempt { return c.ask(host, func(a *attempt) { lost = append(lost, a) }) }
	join(2)
	first, second := join(1), join(1)
	join(1)
	join(3)
	if !slices.Equal(lost, []*attempt{first}) {
		t.Errorf("%d have lost a place to the third source, want the first one's oldest", len(lost))
	}
	join(4) // the first source has two left
	if !slices.Equal(lost, []*attempt{first, second}) {
		t.Errorf("%d have lost a place then, want the first source's two oldest, each once", len(lost))
	}
	if join(2); len(lost) != 2 { // which has as many as the first one has left
		t.Errorf("%d have lost a place in the end, want two", len(lost))
	}
}

// Who is promised a place that its holder has not let go of can lose the promise to another source, which gets the place.
func TestCrowdPromise(t *testing.T) {
	p := newPlaces(4)
	lost := map[*attempt]bool{}
	join := func(host byte) *attempt { return p.ask(host, func(a *attempt) { lost[a] = true }) }
	first, second, third, _ := join(1), join(1), join(1), join(1)
	promised, next := join(2), join(2)
	if len(lost) != 2 || !lost[first] || !lost[second] {
		t.Fatalf("%d have lost a place to a second source, want the first one's two oldest", len(lost))
	}
	p.complete(third)
	other := join(3)
	if len(lost) != 3 || !lost[promised] {
		t.Fatalf("%d have lost a place or a promise then, want the second source's oldest, too", len(lost))
	}
	p.leave(first)
	p.leave(second)
	for _, a := range []*attempt{next, other} {
		select {
		case <-a.place:
		default:
			t.Errorf("host %v has no place, though two are free", a.from)
		}
	}
	p.leave(promised)
	if p.taken != 4 || promised.placed {
		t.Errorf("%d places are taken, want 4: who lost a promise has none", p.taken)
	}
}

// A listener that closes with connections that nobody has accepted, whose peers do not answer, takes as long as one Close does,
// however many they are.
func TestListenerCloseSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := rdmatest.New(t)
		a, b := n.Device(), n.Device()
		l := listen(t, b)
		d := Dialer{Devices: []*verbs.Device{a}}
		for range 8 {
			c, err := d.Dial("rsocket", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
		}
		synctest.Wait()
		n.Partition(a, b)
		start := time.Now()
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took > closeWait {
			t.Errorf("Close took %v, want %v at most", took, closeWait)
		}
	})
}
