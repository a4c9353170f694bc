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
		t.Errorf("%d of %d counted as malformed", n, len(bad))
	}
	if _, _, ok := m.Transmit(); ok {
		t.Error("something was answered")
	}
}

// What another host says about a connection is ignored, with the right IDs too.
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
				t.Errorf("states %v, were %v", after, before)
			}
			if w.a.Stats().Foreign < 6 || w.b.Stats().Foreign < 6 {
				t.Errorf("%d and %d counted as foreign", w.a.Stats().Foreign, w.b.Stats().Foreign)
			}
		})
	}
}

// Messages with IDs that nobody has are answered where that helps the sender, and counted.
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
		t.Errorf("%d counted as unknown", unknown)
	}
	w.wantEmpty()
}

// A LAP is answered: alternate paths are not supported.
func TestLAP(t *testing.T) {
	w := newWorld(t)
	c, d := w.connected()
	for own, want := range map[uint32]uint8{c.ID(): wire.APRUnsupported, testDEAD: wire.APRInvalidCommID} {
		w.a.inject(w.b.addr, 9, wire.CMLAP, &wire.LAP{LocalCommID: d.ID(), RemoteCommID: own, RemoteQPN: 0x11})
		_, mad, ok := w.a.Transmit()
		h, _ := wire.DecodeMADHeader(mad)
		apr, err := wire.DecodeAPR(mad[wire.MADHeaderSize:])
		if !ok || err != nil || h.TID != 9 || apr.Status != want || apr.LocalCommID != own || apr.RemoteCommID != d.ID() {
			t.Errorf("%v, %+v", ok, apr)
		}
	}
	w.wantState(c, StateEstablished)
}

// A machine can have a connection with itself.
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

// The addresses' zones and forms do not matter.
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
		t.Errorf("state %v", c.State())
	}
	if !sameAddr(netip.MustParseAddr("fe80::1%eth0"), netip.MustParseAddr("fe80::1")) {
		t.Error("a zone makes an address another one")
	}
}

// Communication IDs stay in their block, differ, are not 0, and come to an end with an error.
func TestIDs(t *testing.T) {
	m := New(Config{IDBits: 4, Seed: 1})
	p := Path{Local: netip.MustParseAddr("::1"), Remote: netip.MustParseAddr("::2")}
	seen := map[uint32]bool{}
	var last *Conn
	for range 15 - 1 {
		c, err := m.Connect(0, p, ConnectParams{MTU: 1})
		if err != nil {
			t.Fatal(err)
		}
		if id := c.ID(); id == 0 || id > 15 || seen[id] {
			t.Fatalf("ID %#x", id)
		}
		seen[c.ID()] = true
		last = c
	}
	s, err := m.Resolve(0, p, SIDRParams{})
	if err != nil || seen[s.ID()] {
		t.Fatalf("ID %#x, %v", s.ID(), err)
	}
	if _, err := m.Connect(0, p, ConnectParams{MTU: 1}); !errors.Is(err, ErrNoIDs) {
		t.Fatalf("error %v", err)
	}
	last.Close(0)
	if c, err := m.Connect(0, p, ConnectParams{MTU: 1}); err != nil || c.ID() != last.ID() {
		t.Fatalf("ID %#x, %v", c.ID(), err)
	}
	m = New(Config{IDBase: 0xabc12345, IDBits: 20, Seed: 1})
	if c, err := m.Connect(0, p, ConnectParams{MTU: 1}); err != nil || c.ID()>>20 != 0xabc {
		t.Fatalf("ID %#x, %v", c.ID(), err)
	}
}

// Nobody takes what is to be sent: that has an end too, and what is due waits.
func TestQueueIsBounded(t *testing.T) {
	m := New(Config{})
	p := Path{Local: netip.MustParseAddr("::1"), Remote: netip.MustParseAddr("::2")}
	for range maxQueue + 10 {
		if _, err := m.Connect(0, p, ConnectParams{MTU: 1}); err != nil {
			t.Fatal(err)
		}
	}
	if s := m.Stats(); m.queued() != maxQueue || s.Dropped != 10 {
		t.Fatalf("%d queued, %d dropped", m.queued(), s.Dropped)
	}
	now := 2 * time.Second
	m.HandleTimeout(now)
	if m.NextTimeout() > now {
		t.Fatal("what there was no room for is forgotten")
	}
	sent := 0
	for m.NextTimeout() <= now {
		for _, _, ok := m.Transmit(); ok; _, _, ok = m.Transmit() {
			sent++
		}
		m.HandleTimeout(now)
	}
	if sent+m.queued() != 2*maxQueue+10 {
		t.Fatalf("%d sent and %d queued", sent, m.queued())
	}
}

// Many connections cost no more each than a few.
func BenchmarkConnect(b *testing.B) {
	for _, live := range []int{0, 10000} {
		b.Run(fmt.Sprintf("live=%d", live), func(b *testing.B) {
			x, y := New(Config{GUID: 1, Seed: 1}), New(Config{GUID: 2, Seed: 2})
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
