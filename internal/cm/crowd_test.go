package cm

import (
	"encoding/binary"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// flood lets b take REQs of different connections from an address. Its user answers each request by
// answer.
func (w *world) flood(from netip.Addr, n int, answer func(*Conn)) {
	w.t.Helper()
	for i := range uint32(n) {
		w.b.inject(from, 1, wire.CMREQ, w.req(0x1000+i, i))
		w.drain(answer)
	}
}

// drain drops the MADs that b sends, but counts them, and lets b's user answer the requests that have come.
func (w *world) drain(answer func(*Conn)) {
	for _, _, ok := w.b.Transmit(); ok; _, _, ok = w.b.Transmit() {
		w.drained++
	}
	for e, ok := w.b.Event(); ok; e, ok = w.b.Event() {
		if e.Type == EventRequest && answer != nil {
			answer(e.Conn)
		}
	}
}

// accept is the answer of a server that accepts everybody.
func (w *world) accept(c *Conn) { w.ok(c.Accept(w.now, testParams(c.ID()&max24))) }

// connectThrough has a connect to b, which may give up others for that.
func (w *world) connectThrough() {
	w.t.Helper()
	w.drain(nil)
	c := w.a.connect(w.b, 0x11)
	w.settle()
	i := slices.IndexFunc(w.b.events, func(e Event) bool { return e.Type == EventRequest && e.Path.Remote == w.a.addr })
	if i < 0 {
		w.t.Fatal("the request of another host does not get through")
	}
	d := w.b.events[i].Conn
	w.b.events = nil
	w.accept(d)
	w.a.want(EventReply)
	w.ok(c.Ready(w.now))
	w.b.want(EventEstablished)
	w.forget()
}

// floodSize is how many REQs a flood has.
func floodSize() int {
	if testing.Short() {
		return 10_000
	}
	return 100_000
}

// liveHeap returns how many bytes are in use after a collection.
func liveHeap() uint64 {
	runtime.GC()
	runtime.GC() // and the objects that pools keep for one collection
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// maxRecord is how many bytes a connection may cost, with its places in all tables.
const maxRecord = 2048

// maxMADs is how many MADs follow the first answer to a REQ, whose sender says no more: REPs, a REJ and DREQs.
const maxMADs = DefaultCMRetries + 1 + maxProbes

// wantBurden checks the cost of a flood since the heap had a size: memory for no more than so many
// connections, as many timers, and no more MADs in answer than so many.
func (w *world) wantBurden(heap uint64, conns, answers int) {
	w.t.Helper()
	if now := liveHeap(); now > heap+uint64(conns)*maxRecord {
		w.t.Errorf("the heap grew from %d to %d bytes, want no more than %d for each of %d connections", heap, now, maxRecord, conns)
	}
	if s := w.b.Stats(); s.Timers > conns || w.drained > answers {
		w.t.Errorf("%d timers and %d MADs in answer, want %d and %d at most", s.Timers, w.drained, conns, answers)
	}
}

var stranger = netip.MustParseAddr("10.6.6.6")

// Any number of REQs from one host hold no more than its share, and nothing a while later, whether
// the program accepts them or does not look at them. They kept a listener closed for good, and a program
// that accepted them died of its QPs. Meanwhile another host connects.
func TestREQsOfOneHost(t *testing.T) {
	for name, answer := range map[string]func(*world, *Conn){
		"nobody answers": func(*world, *Conn) {},
		"all accepted":   (*world).accept,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.b.listen(0)
			before := liveHeap()
			w.flood(stranger, floodSize(), func(c *Conn) { answer(w, c) })
			w.wantBurden(before, maxAttemptsOfSource, maxAttemptsOfSource)
			s := w.b.Stats()
			if s.Conns != maxAttemptsOfSource || s.Requests+s.HalfOpen != maxAttemptsOfSource || int(s.Refused) != floodSize()-maxAttemptsOfSource || s.Displaced != 0 {
				t.Fatalf("after the flood: got %+v, want %d connections, the others refused", s, maxAttemptsOfSource)
			}
			w.connectThrough()
			repeats := 0
			w.lose = func(string, []byte) bool { repeats++; return true }
			w.advance(10 * time.Minute)
			if most := maxAttemptsOfSource * maxMADs; repeats > most {
				t.Errorf("%d MADs follow, want %d at most: %d for each connection", repeats, most, maxMADs)
			}
			if s := w.b.Stats(); s.Conns != 1 || s.Requests+s.HalfOpen != 0 || s.Retired != 0 {
				t.Errorf("later: got %+v, want no connection but the genuine one", s)
			}
		})
	}
}

// If all places are taken, the host with the most attempts makes room: the oldest one goes. A half-open
// connection that goes is reported to its user and rejected. Nothing goes for a host that has as many.
func TestDisplacedByOtherSource(t *testing.T) {
	for name, accepted := range map[string]bool{"request": false, "half-open": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.b.listen(0)
			var conns []*Conn
			answer := func(c *Conn) {
				if conns = append(conns, c); accepted {
					w.accept(c)
				}
			}
			full := maxBacklog
			if accepted {
				full = maxAttempts
				w.flood(netip.MustParseAddr("10.6.6.7"), maxAttempts-maxAttemptsOfSource, answer)
			}
			w.flood(stranger, maxAttemptsOfSource, answer)
			if s := w.b.Stats(); s.Conns != full || s.Refused+s.Displaced != 0 {
				t.Fatalf("got %+v, want %d connections and no refusal", s, full)
			}
			w.drain(nil)
			oldest := conns[0]
			w.a.connect(w.b, 0x11)
			if e := w.b.want(EventUnreachable); e.Conn != oldest {
				t.Fatalf("got the end of %#x, want that of the oldest, %#x", e.Conn.ID(), oldest.ID())
			}
			w.b.want(EventRequest)
			if accepted {
				w.wantSent("a REQ", "b REJ 4") // the half-open connection's peer is told
			} else {
				w.wantSent("a REQ") // to a request that was forgotten there is nothing to say
			}
			if s := w.b.Stats(); s.Displaced != 1 || s.Requests+s.HalfOpen != full {
				t.Errorf("got %+v, want one displaced and %d that wait", s, full)
			}
			if err := oldest.Ready(w.now); err == nil {
				t.Error("the displaced connection can still be used")
			}
		})
	}
}

// A host that has its share already displaces nobody from a listener, again and again, for requests that are
// refused all the same.
func TestRefusedDisplacesNobody(t *testing.T) {
	w := newWorld(t)
	w.b.listen(0)
	w.flood(stranger, maxAttemptsOfSource, w.accept)
	w.drain(nil)
	for i := range byte(4) { // others' requests fill the backlog
		for n := range uint32(maxBacklog / 4) {
			w.b.inject(netip.AddrFrom4([4]byte{10, 7, 7, i}), 1, wire.CMREQ, w.req(0x100000+n, n))
		}
	}
	before := w.b.Stats()
	if before.Requests != maxBacklog || before.HalfOpen != maxAttemptsOfSource || before.Refused != 0 {
		t.Fatalf("got %+v, want a full backlog and the stranger's share of half-open connections", before)
	}
	w.b.inject(stranger, 1, wire.CMREQ, w.req(0x200000, 0x200000))
	w.b.inject(stranger, 1, wire.CMSIDRREQ, &wire.SIDRREQ{RequestID: 1, PKey: wire.DefaultPKey, ServiceID: testService})
	if s := w.b.Stats(); s.Refused != 2 || s.Displaced != 0 || s.Requests != maxBacklog {
		t.Errorf("got %+v, want two refusals and nobody displaced", s)
	}
}

// A request for which there is no communication ID displaces nobody: neither a half-open connection of the
// host with the most, which would keep its ID, nor the connection of the same QP that this end is giving up.
// It takes the place of a request, with the ID of that.
func TestRequestWithoutID(t *testing.T) {
	for name, halfOpen := range map[string]bool{"half-open": true, "requests": false} {
		t.Run(name, func(t *testing.T) {
			const bits = 12
			w := newWorld(t)
			w.b.Machine = New(Config{GUID: 'b' << 24, IDBase: 'b' << 24, IDBits: bits, Secret: secretOf(2), ACKDelay: 15})
			_, d := w.connected()
			w.lose = func(string, []byte) bool { return true }
			w.ok(d.Disconnect(w.now, nil))
			held := maxBacklog
			if halfOpen {
				held = maxAttempts
				for i := range byte(2) {
					w.flood(netip.AddrFrom4([4]byte{10, 6, 6, i}), maxAttemptsOfSource, w.accept)
				}
			} else {
				w.flood(stranger, maxBacklog, nil)
			}
			for w.b.Stats().Conns < 1<<bits-1 {
				w.b.connect(w.a, 0x99)
			}
			w.forget()

			w.b.inject(w.a.addr, 1, wire.CMREQ, w.req(testDEAD, 0x11)) // d's peer has restarted
			w.settle()
			s := w.b.Stats()
			if s.Requests+s.HalfOpen != held {
				t.Errorf("got %+v, want %d attempts", s, held)
			}
			if !halfOpen {
				w.b.want(EventDisconnected)
				w.b.want(EventUnreachable)
				w.b.want(EventRequest)
				if s.Displaced != 1 {
					t.Errorf("got %+v, want one displaced", s)
				}
				return
			}
			w.wantSent("b REJ 3")
			w.wantState(d, StateDREQSent)
			w.b.wantNone()
			if s.Displaced != 0 {
				t.Errorf("got %+v, want nobody displaced", s)
			}
		})
	}
}

// However many addresses a stranger forges, the memory held is bounded, and a host that answers in
// less time than the flood takes to go round connects.
func TestREQsOfManyAddresses(t *testing.T) {
	w := newWorld(t)
	w.b.listen(0)
	before := liveHeap()
	for i := range uint32(floodSize()) {
		w.b.inject(netip.AddrFrom4([4]byte{11, byte(i >> 16), byte(i >> 8), byte(i)}), 1, wire.CMREQ, w.req(i+1, i))
		w.drain(w.accept)
	}
	w.wantBurden(before, maxAttempts+maxRetired, 2*floodSize()) // a REP and, to who is displaced, a REJ
	if s := w.b.Stats(); s.HalfOpen != maxAttempts || int(s.Displaced) != floodSize()-maxAttempts || s.Retired > maxRetired || s.Conns > maxAttempts+maxRetired {
		t.Fatalf("got %+v, want %d half-open, and no more than %d that are over", s, maxAttempts, maxRetired)
	}
	w.connectThrough()
}

// A request whose sender waits for the answer stays, however long the program takes. One whose sender
// does not repeat it is forgotten.
func TestSilentRequest(t *testing.T) {
	w := newWorld(t)
	w.b.listen(0)
	_, d := w.pending()
	w.b.inject(stranger, 1, wire.CMREQ, w.req(1, 1))
	x := w.b.want(EventRequest).Conn
	w.advance(10 * time.Minute) // a repeats its REQ nine times
	w.wantState(d, StateMRAREQSent)
	if e := w.b.want(EventUnreachable); e.Conn != x {
		t.Errorf("got the end of %#x, want that of the silent one, %#x", e.Conn.ID(), x.ID())
	}
	w.wantState(x, StateIdle)
	if s := w.b.Stats(); s.Silent != 1 || s.Requests != 1 {
		t.Errorf("got %+v, want one that was silent and one that waits", s)
	}
	w.ok(d.Accept(w.now, testParams(0x22)))
	w.a.want(EventReply)
}

// The same holds for those who look up a UD service. The time begins anew when the request comes again.
func TestSilentSIDRREQ(t *testing.T) {
	w := newWorld(t)
	w.b.listen(0)
	ask := func() {
		w.b.inject(stranger, 1, wire.CMSIDRREQ, &wire.SIDRREQ{RequestID: 1, PKey: wire.DefaultPKey, ServiceID: testService})
	}
	ask()
	s := w.b.want(EventSIDRRequest).SIDR
	w.advance(sidrSilence - 1)
	ask()
	w.advance(sidrSilence - 1)
	w.b.wantNone()
	w.advance(1)
	if e := w.b.want(EventUnreachable); e.SIDR != s {
		t.Errorf("got the end of another exchange")
	}
	w.wantEmpty()
}

// All addresses of an IPv6 network that one host has are one source: together they have its share, and a host that has
// another network connects. A neighbor in the network connects, too.
func TestREQsOfOneNetwork(t *testing.T) {
	for name, genuine := range map[string]string{"elsewhere": "2001:db8:0:1::1", "in the network": "2001:db8::1"} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.a.addr, w.b.addr = netip.MustParseAddr(genuine), netip.MustParseAddr("2001:db8:0:2::1")
			w.b.listen(0)
			before := liveHeap()
			network := netip.MustParseAddr("2001:db8::").As16()
			for i := range uint32(floodSize()) {
				binary.BigEndian.PutUint32(network[12:], 0x10000+i)
				w.b.inject(netip.AddrFrom16(network), 1, wire.CMREQ, w.req(i+1, i))
				w.drain(w.accept)
			}
			w.wantBurden(before, maxAttemptsOfSource+maxRetired, 2*floodSize())
			if s := w.b.Stats(); s.HalfOpen != maxAttemptsOfSource || s.Refused != 0 {
				t.Fatalf("got %+v, want %d half-open connections of the network, that give way to one another", s, maxAttemptsOfSource)
			}
			w.connectThrough()
		})
	}
}
