package cm

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/tables"
	"github.com/adverb-rdma/adverb/internal/wire"
)

const (
	testService = 0x0000000001061c06 // TCP port space, port 7174
	testDelay   = time.Millisecond   // of the network, one way
	testDEAD    = 0xdead             // a communication ID that nobody has
)

// world is some machines and the network between them. Scripts step it by hand.
type world struct {
	t      *testing.T
	now    time.Duration
	a, b   *node
	nodes  []*node
	flying []packet
	sent   []string                           // each MAD since the last wantSent, such as "a REQ"
	lose   func(what string, mad []byte) bool // nil loses nothing

	drained int // MADs that b has sent to strangers
}

type packet struct {
	at   time.Duration
	path Path // as the receiver sees it
	mad  []byte
}

// node is a machine and its user.
type node struct {
	*Machine
	w      *world
	name   string
	addr   netip.Addr
	events []Event // that the test has not looked at
}

func newWorld(t *testing.T) *world {
	w := &world{t: t}
	w.a, w.b = w.node("a", "10.0.0.1"), w.node("b", "10.0.0.2")
	return w
}

func (w *world) node(name, addr string) *node {
	n := &node{w: w, name: name, addr: netip.MustParseAddr(addr)}
	n.restart(uint64(len(w.nodes) + 1))
	w.nodes = append(w.nodes, n)
	return n
}

// restart gives a node a new machine, which knows nothing.
func (n *node) restart(seed uint64) {
	id := uint32(n.name[0]) << 24
	n.Machine = New(Config{GUID: uint64(id), IDBase: id, IDBits: 20, Secret: secretOf(seed), ACKDelay: 15})
	n.events = nil
}

// secretOf makes a machine's secret of a seed.
func secretOf(seed uint64) (secret [16]byte) {
	binary.BigEndian.PutUint64(secret[:], seed)
	return secret
}

// pump moves the machines' MADs into the network, and takes their events.
func (w *world) pump() {
	for _, n := range w.nodes {
		for {
			p, mad, ok := n.Transmit()
			if !ok {
				break
			}
			what := n.name + " " + describe(mad)
			w.sent = append(w.sent, what)
			if w.lose == nil || !w.lose(what, mad) {
				w.flying = append(w.flying, packet{w.now + testDelay, Path{Local: p.Remote, Remote: n.addr, TrafficClass: p.TrafficClass}, slices.Clone(mad)})
			}
		}
		for {
			e, ok := n.Event()
			if !ok {
				break
			}
			n.events = append(n.events, e)
		}
	}
}

// describe names a MAD. Of a REJ it adds the reason.
func describe(mad []byte) string {
	h, _ := wire.DecodeMADHeader(mad)
	attr := wire.CMAttr(h.AttrID)
	if attr == wire.CMREJ {
		rej, _ := wire.DecodeREJ(mad[wire.MADHeaderSize:])
		return fmt.Sprintf("REJ %d", rej.Reason)
	}
	return attr.String()
}

// settle lets everything arrive. No timer runs off.
func (w *world) settle() {
	w.t.Helper()
	for range 1000 {
		w.pump()
		if len(w.flying) == 0 {
			return
		}
		p := w.flying[0]
		w.flying = w.flying[1:]
		w.now = p.at
		for _, n := range w.nodes {
			if n.addr == p.path.Local {
				n.Handle(w.now, p.path, p.mad)
			}
		}
	}
	w.t.Fatal("the network does not come to rest")
}

// advance lets time pass.
func (w *world) advance(d time.Duration) {
	w.t.Helper()
	for end := w.now + d; ; {
		w.settle()
		next := Never
		for _, n := range w.nodes {
			next = min(next, n.NextTimeout())
		}
		if next > end {
			w.now = max(w.now, end)
			return
		}
		w.now = max(w.now, next)
		for _, n := range w.nodes {
			n.HandleTimeout(w.now)
		}
	}
}

// wantSent checks the messages that were sent since the last call, in order: "a REQ", "b REP".
func (w *world) wantSent(want ...string) {
	w.t.Helper()
	w.settle()
	if got := w.sent; !slices.Equal(got, want) {
		w.t.Fatalf("sent %s, want %s", strings.Join(got, ", "), strings.Join(want, ", "))
	}
	w.sent = nil
}

// forget drops the messages and events so far.
func (w *world) forget() {
	w.settle()
	w.sent = nil
	for _, n := range w.nodes {
		n.events = nil
	}
}

// wantEmpty checks that no table of a machine holds anything, but for listeners.
func (w *world) wantEmpty() {
	w.t.Helper()
	for _, n := range w.nodes {
		n.wantEmpty(w.t)
	}
}

func (n *node) wantEmpty(t *testing.T) {
	t.Helper()
	if held := tables.Held(n.Machine, nil, besides); len(held) > 0 {
		t.Fatalf("%s still holds %s", n.name, tables.String(held))
	}
	if s := n.Stats(); s.Conns+s.SIDRs+s.Requests+s.HalfOpen+s.Retired+s.Timers > 0 {
		t.Fatalf("%s still counts %+v, want nothing held", n.name, s)
	}
}

// besides are the tables of a machine that are not about connections: listeners, whose backlogs are
// looked at apart, and the MADs and events that the harness has not taken.
var besides = []string{"services", "out", "events"}

// want takes the next event, which must be of the type.
func (n *node) want(typ EventType) Event {
	n.w.t.Helper()
	n.w.settle()
	if len(n.events) == 0 {
		n.w.t.Fatalf("%s: no event, want %v", n.name, typ)
	}
	e := n.events[0]
	n.events = n.events[1:]
	if e.Type != typ {
		n.w.t.Fatalf("%s: event %v, want %v", n.name, e.Type, typ)
	}
	return e
}

func (n *node) wantNone() {
	n.w.t.Helper()
	n.w.settle()
	if len(n.events) > 0 {
		n.w.t.Fatalf("%s: event %v, want none", n.name, n.events[0].Type)
	}
}

func (n *node) path(to *node) Path { return Path{Local: n.addr, Remote: to.addr} }

func (n *node) listen(backlog int) *Listener {
	n.w.t.Helper()
	l, err := n.Listen(testService, netip.Addr{}, backlog)
	n.w.ok(err)
	return l
}

func (w *world) ok(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func testParams(qpn uint32) Params {
	return Params{QPN: qpn, PSN: qpn + 0x1000, ResponderResources: 3, InitiatorDepth: 4, RNRRetryCount: 6, PrivateData: []byte("private")}
}

func (n *node) connect(to *node, qpn uint32) *Conn {
	n.w.t.Helper()
	c, err := n.Connect(n.w.now, n.path(to), ConnectParams{Service: testService, Params: testParams(qpn), MTU: 3, RetryCount: 7})
	n.w.ok(err)
	return c
}

// pending goes as far as the request, which b has and has not answered.
func (w *world) pending() (c, d *Conn) {
	w.t.Helper()
	if w.b.services[testService] == nil {
		w.b.listen(0)
	}
	c = w.a.connect(w.b, 0x11)
	d = w.b.want(EventRequest).Conn
	w.forget()
	return c, d
}

// replied goes as far as the reply, which a has and is not ready for.
func (w *world) replied() (c, d *Conn) {
	w.t.Helper()
	c, d = w.pending()
	w.ok(d.Accept(w.now, testParams(0x22)))
	w.a.want(EventReply)
	w.forget()
	return c, d
}

// halfOpen goes as far as an RTU that is lost.
func (w *world) halfOpen() (c, d *Conn) {
	w.t.Helper()
	c, d = w.replied()
	w.lossOf("a RTU")
	w.ok(c.Ready(w.now))
	w.forget()
	w.lose = nil
	return c, d
}

func (w *world) connected() (c, d *Conn) {
	w.t.Helper()
	c, d = w.replied()
	w.ok(c.Ready(w.now))
	w.b.want(EventEstablished)
	w.forget()
	return c, d
}

// lossOf loses all messages of these kinds.
func (w *world) lossOf(what ...string) {
	w.lose = func(s string, _ []byte) bool { return slices.Contains(what, s) }
}

// inject lets a message arrive at n as if it came from an address.
func (n *node) inject(from netip.Addr, tid uint64, attr wire.CMAttr, msg body) {
	n.Handle(n.w.now, Path{Local: n.addr, Remote: from}, encode(nil, attr, tid, msg))
}

func (w *world) wantState(c *Conn, want State) {
	w.t.Helper()
	w.settle()
	if c.State() != want {
		w.t.Fatalf("connection %#x is in %v, want %v", c.ID(), c.State(), want)
	}
}

// wantExit goes through time-wait, after an EventDisconnected.
func (w *world) wantExit(nodes ...*node) {
	w.t.Helper()
	w.advance(time.Minute)
	for _, n := range nodes {
		n.want(EventTimeWaitExit)
		n.wantNone()
	}
	w.wantEmpty()
}
