package cm

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
)

func TestMalformed(t *testing.T) {
	m := New(Config{})
	good := encode(nil, wire.CMDREQ, 1, &wire.DREQ{})
	bad := [][]byte{nil, good[:1], good[:wire.MADHeaderSize], good[:255], append(good[:256:256], 0)}
	for at := range 4 {
		b := append([]byte(nil), good...)
		b[at] ^= 0x40
		bad = append(bad, b)
	}
	for _, id := range []byte{0x0f, 0x1b} {
		b := append([]byte(nil), good...)
		b[17] = id
		bad = append(bad, b)
	}
	p := Path{Local: netip.MustParseAddr("::1"), Remote: netip.MustParseAddr("::2")}
	bad = append(bad, encode(nil, wire.CMREQ, 1, &wire.REQ{}), encode(nil, wire.CMREP, 1, &wire.REP{})) // no communication ID
	for _, b := range bad {
		m.Handle(0, p, b)
	}
	if n := m.Stats().Malformed; n != uint64(len(bad)) {
		t.Errorf("malformed: got %d counted, want %d", n, len(bad))
	}
	if _, _, ok := m.Transmit(); ok {
		t.Error("malformed: got an answer, want none")
	}
}

// Messages about a connection from another host are ignored, even with the right IDs.
func TestForeign(t *testing.T) {
	for name, to := range map[string]func(*world) (c, d *Conn){"pending": (*world).pending, "replied": (*world).replied, "connected": (*world).connected} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			c, d := to(w)
			before := [2]State{c.State(), d.State()}
			s := w.a.resolve(w.b)
			w.forget()
			evil := netip.MustParseAddr("10.0.0.66")
			for _, x := range []struct {
				n        *node
				own, its uint32
				guid     uint64
			}{{w.a, c.ID(), d.ID(), 'b' << 24}, {w.b, d.ID(), c.ID(), 'a' << 24}} {
				timeout := rejTimeout(x.guid)
				timeout.LocalCommID, timeout.RemoteCommID, timeout.Message = x.its, x.own, wire.CMMessageOther
				x.n.inject(evil, 1, wire.CMREJ, &timeout)
				for message := range uint8(3) {
					x.n.inject(evil, 1, wire.CMREJ, &wire.REJ{LocalCommID: x.its, RemoteCommID: x.own, Message: message, Reason: 1})
					x.n.inject(evil, 1, wire.CMMRA, &wire.MRA{LocalCommID: x.its, RemoteCommID: x.own, Message: message})
				}
				x.n.inject(evil, 1, wire.CMREP, &wire.REP{LocalCommID: x.its, RemoteCommID: x.own, LocalGUID: x.guid})
				x.n.inject(evil, 1, wire.CMRTU, &wire.RTU{LocalCommID: x.its, RemoteCommID: x.own})
				x.n.inject(evil, 1, wire.CMDREQ, &wire.DREQ{LocalCommID: x.its, RemoteCommID: x.own, RemoteQPN: 0x11})
				x.n.inject(evil, 1, wire.CMDREP, &wire.DREP{LocalCommID: x.its, RemoteCommID: x.own})
				x.n.inject(evil, 1, wire.CMLAP, &wire.LAP{LocalCommID: x.its, RemoteCommID: x.own})
				x.n.inject(evil, 1, wire.CMSIDRREP, &wire.SIDRREP{RequestID: s.ID()})
			}
			w.wantSent()
			w.a.wantNone()
			w.b.wantNone()
			if after := [2]State{c.State(), d.State()}; after != before {
				t.Errorf("got states %v, want %v as before", after, before)
			}
			if w.a.Stats().Foreign < 6 || w.b.Stats().Foreign < 6 {
				t.Errorf("foreign: got %d and %d counted, want at least 6 each", w.a.Stats().Foreign, w.b.Stats().Foreign)
			}
		})
	}
}

// Messages whose IDs belong to no connection are counted, and answered where that helps the sender.
func TestUnknown(t *testing.T) {
	w := newWorld(t)
	w.a.inject(w.b.addr, 1, wire.CMREP, &wire.REP{LocalCommID: 1, RemoteCommID: testDEAD})
	w.a.inject(w.b.addr, 1, wire.CMDREQ, &wire.DREQ{LocalCommID: 1, RemoteCommID: testDEAD})
	w.a.inject(w.b.addr, 1, wire.CMLAP, &wire.LAP{LocalCommID: 1, RemoteCommID: testDEAD})
	w.wantSent("a REJ 6", "a DREP", "a APR")
	w.a.inject(w.b.addr, 1, wire.CMMRA, &wire.MRA{LocalCommID: 1, RemoteCommID: testDEAD})
	w.a.inject(w.b.addr, 1, wire.CMREJ, &wire.REJ{LocalCommID: 1, RemoteCommID: testDEAD})
	w.a.inject(w.b.addr, 1, wire.CMREJ, &wire.REJ{LocalCommID: 1, RemoteCommID: testDEAD, Message: wire.CMMessageREP})
	w.a.inject(w.b.addr, 1, wire.CMRTU, &wire.RTU{LocalCommID: 1, RemoteCommID: testDEAD})
	w.a.inject(w.b.addr, 1, wire.CMDREP, &wire.DREP{LocalCommID: 1, RemoteCommID: testDEAD})
	w.a.inject(w.b.addr, 1, wire.CMSIDRREP, &wire.SIDRREP{RequestID: testDEAD})
	w.a.inject(w.b.addr, 1, wire.CMAPR, &wire.APR{})
	w.wantSent()
	unknown := uint64(0)
	for _, n := range w.a.Stats().Unknown {
		unknown += n
	}
	if unknown != 9 {
		t.Errorf("unknown: got %d counted, want 9", unknown)
	}
	w.wantEmpty()
}

// A LAP is answered by an APR: alternate paths are not supported.
func TestLAP(t *testing.T) {
	w := newWorld(t)
	c, d := w.connected()
	for own, want := range map[uint32]uint8{c.ID(): wire.APRUnsupported, testDEAD: wire.APRInvalidCommID} {
		w.a.inject(w.b.addr, 9, wire.CMLAP, &wire.LAP{LocalCommID: d.ID(), RemoteCommID: own, RemoteQPN: 0x11})
		_, mad, ok := w.a.Transmit()
		h, _ := wire.DecodeMADHeader(mad)
		apr, err := wire.DecodeAPR(mad[wire.MADHeaderSize:])
		if !ok || err != nil || h.TID != 9 || apr.Status != want || apr.LocalCommID != own || apr.RemoteCommID != d.ID() {
			t.Errorf("got %+v, TID %d, %v, want an APR from %#x to %#x with status %d, TID 9", apr, h.TID, ok, own, d.ID(), want)
		}
	}
	w.wantState(c, StateEstablished)
}

// A machine can be both ends of a connection.
func TestLoopback(t *testing.T) {
	w := newWorld(t)
	w.a.listen(0)
	c := w.a.connect(w.a, 0x11)
	d := w.a.want(EventRequest).Conn
	w.ok(d.Accept(w.now, testParams(0x22)))
	w.a.want(EventReply)
	w.ok(c.Ready(w.now))
	w.a.want(EventEstablished)
	w.ok(d.Disconnect(w.now, nil))
	w.a.want(EventDisconnected)
	w.a.want(EventDisconnected)
	w.wantExit()
}

// Zones and the form of an IPv4 address do not matter.
func TestAddressForms(t *testing.T) {
	w := newWorld(t)
	w.b.listen(0)
	c, err := w.a.Connect(0, Path{Local: netip.MustParseAddr("::ffff:10.0.0.1"), Remote: netip.MustParseAddr("::ffff:10.0.0.2")}, ConnectParams{Service: testService, MTU: 1})
	w.ok(err)
	p, mad, _ := w.a.Transmit()
	w.b.Handle(0, Path{Local: p.Remote, Remote: p.Local}, mad)
	e, _ := w.b.Event()
	w.ok(e.Conn.Accept(0, testParams(2)))
	_, mad, _ = w.b.Transmit()
	w.a.Handle(0, w.a.path(w.b), mad)
	if c.State() != StateREPRcvd {
		t.Errorf("got state %v, want %v", c.State(), StateREPRcvd)
	}
	if !sameAddr(netip.MustParseAddr("fe80::1%eth0"), netip.MustParseAddr("fe80::1")) {
		t.Error("sameAddr with a zone and without: got false, want true")
	}
}

// Communication IDs stay in their block, differ, and are not 0. When none is free there is an error.
func TestIDs(t *testing.T) {
	m := New(Config{IDBits: 4, Secret: secretOf(1)})
	p := Path{Local: netip.MustParseAddr("::1"), Remote: netip.MustParseAddr("::2")}
	seen := map[uint32]bool{}
	var last *Conn
	for range 15 - 1 {
		c, err := m.Connect(0, p, ConnectParams{MTU: 1})
		if err != nil {
			t.Fatal(err)
		}
		if id := c.ID(); id == 0 || id > 15 || seen[id] {
			t.Fatalf("got ID %#x, want one of 1 to 15 that is not in use", id)
		}
		seen[c.ID()] = true
		last = c
	}
	s, err := m.Resolve(0, p, SIDRParams{})
	if err != nil || seen[s.ID()] {
		t.Fatalf("SIDR exchange: got ID %#x, %v, want one that is not in use", s.ID(), err)
	}
	if _, err := m.Connect(0, p, ConnectParams{MTU: 1}); !errors.Is(err, ErrNoIDs) {
		t.Fatalf("with no ID free: got error %v, want %v", err, ErrNoIDs)
	}
	last.Close(0)
	if c, err := m.Connect(0, p, ConnectParams{MTU: 1}); err != nil || c.ID() != last.ID() {
		t.Fatalf("with one ID free: got %#x, %v, want %#x", c.ID(), err, last.ID())
	}
	m = New(Config{IDBase: 0xabc12345, IDBits: 20, Secret: secretOf(1)})
	if c, err := m.Connect(0, p, ConnectParams{MTU: 1}); err != nil || c.ID()>>20 != 0xabc {
		t.Fatalf("got ID %#x, %v, want one of block 0xabc", c.ID(), err)
	}
}

// If nobody takes the machine's MADs, the queue stays bounded, and timeouts that are due wait.
func TestQueueIsBounded(t *testing.T) {
	m := New(Config{})
	p := Path{Local: netip.MustParseAddr("::1"), Remote: netip.MustParseAddr("::2")}
	for range maxQueue + 10 {
		if _, err := m.Connect(0, p, ConnectParams{MTU: 1}); err != nil {
			t.Fatal(err)
		}
	}
	if s := m.Stats(); m.queued() != maxQueue || s.Dropped != 10 {
		t.Fatalf("got %d queued and %d dropped, want %d and 10", m.queued(), s.Dropped, maxQueue)
	}
	now := 2 * time.Second
	m.HandleTimeout(now)
	if m.NextTimeout() > now {
		t.Fatalf("next timeout: got %v, want at most %v, since there was no room for all that is due", m.NextTimeout(), now)
	}
	sent := 0
	for m.NextTimeout() <= now {
		for _, _, ok := m.Transmit(); ok; _, _, ok = m.Transmit() {
			sent++
		}
		m.HandleTimeout(now)
	}
	if sent+m.queued() != 2*maxQueue+10 {
		t.Fatalf("got %d sent and %d queued, want %d together", sent, m.queued(), 2*maxQueue+10)
	}
}

// BenchmarkConnect makes and ends a connection beside a number of others. Many should cost no more
// each than a few.
func BenchmarkConnect(b *testing.B) {
	for _, live := range []int{0, 10000} {
		b.Run(fmt.Sprintf("live=%d", live), func(b *testing.B) {
			x, y := New(Config{GUID: 1, Secret: secretOf(1)}), New(Config{GUID: 2, Secret: secretOf(2)})
			at, bt := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
			if _, err := y.Listen(testService, netip.Addr{}, 0); err != nil {
				b.Fatal(err)
			}
			move := func(now time.Duration, from, to *Machine, p Path) {
				for _, mad, ok := from.Transmit(); ok; _, mad, ok = from.Transmit() {
					to.Handle(now, p, mad)
				}
			}
			var c *Conn
			now := time.Duration(0)
			connect := func(i int) {
				c, _ = x.Connect(now, Path{Local: at, Remote: bt}, ConnectParams{Service: testService, MTU: 3, Params: Params{QPN: uint32(i)}})
				move(now, x, y, Path{Local: bt, Remote: at})
				e, _ := y.Event()
				if err := e.Conn.Accept(now, Params{QPN: uint32(i)}); err != nil {
					b.Fatal(err)
				}
				move(now, y, x, Path{Local: at, Remote: bt})
				x.Event()
				if err := c.Ready(now); err != nil {
					b.Fatal(err)
				}
				move(now, x, y, Path{Local: bt, Remote: at})
				y.Event()
			}
			for i := range live {
				connect(i)
			}
			for i := 0; b.Loop(); i++ {
				connect(live + i&0xffff)
				c.Close(now)
				move(now, x, y, Path{Local: bt, Remote: at})
				y.Event()
				move(now, y, x, Path{Local: at, Remote: bt})
				now += time.Millisecond
				x.HandleTimeout(now)
				y.HandleTimeout(now)
				y.Event()
			}
		})
	}
}
