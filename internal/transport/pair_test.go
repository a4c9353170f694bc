package transport

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/queue"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

const (
	us = time.Microsecond
	ms = time.Millisecond

	testDelay   = 5 * us // one way
	testTimeout = 10     // 4.2 ms
	testTurn    = us     // from one turn of a QP to the next
	testQKey    = 0x11111111
	memSize     = 1 << 20
	memBaseA    = 0x7a0000000000 // the patterns differ by bits 32 to 39
	memBaseB    = 0x7b6400000000
	roundsLimit = 1 << 20 // of the event loop, after which a test is taken for endless
)

// node is one of the two QPs of a pair, with its host.
type node struct {
	*testHost
	peer *node
	sent int // packets
}

// sentPacket is a packet that one of the ends has sent.
type sentPacket struct {
	from *node
	at   time.Duration
	lost bool // by the hook
	run  int  // packets for which the packet stands, if its payload is lent
	wire.Packet
}

// inFlight is a datagram on its way.
type inFlight struct {
	at   time.Duration
	to   *node
	data []byte
	loan *loan // or nil
	fast *fastRecord
}

// pair is two connected QPs and the network between them, driven through simulated time.
type pair struct {
	t      testing.TB
	fresh  bool // of setup
	now    time.Duration
	a, b   *node
	flight []inFlight // by time, then by order of sending
	log    []sentPacket
	buf    []byte

	// route returns the delays after which the n-th packet (from 0) of an end arrives: none if the packet is lost,
	// and several if it arrives several times. If route is nil, packets arrive after testDelay.
	route func(from *node, n int, p *wire.Packet) []delay

	// single delivers one packet at a time. Otherwise all packets that arrive at the same time come
	// before the receiver may answer.
	single bool

	fast       bool // SENDs take the fast path where they can
	noPrecheck bool // every packet takes all checks: none goes prechecked
	prechecked int  // packets that went prechecked
}

// setup has the attributes of both ends of a new pair. A field that is 0 stands for a sensible value.
type setup struct {
	typ         verbs.QPType // RC if 0
	turn        int          // packets of a turn
	mtu         verbs.MTU
	psnA, psnB  verbs.PSN // first PSN that the end sends
	cap         verbs.QPCap
	timeout     uint8
	noTimeout   bool
	retry       uint8
	noRetry     bool
	rnrRetry    uint8
	rnrLimit    bool // rnrRetry counts, even if 0
	rnrTimer    uint8
	rd          int // max_rd_atomic, at both ends both ways
	noRD        bool
	destRD      int // max_dest_rd_atomic, where it differs from rd
	access      verbs.Access
	noAccess    bool
	signalAll   bool
	lends       bool       // both ends lend payloads from their memory, which is then an allocation
	fast        bool       // SENDs take the fast path where they can
	selective   bool       // both ends know that the other acknowledges selectively
	unconnected bool       // both QPs stay in RESET
	fresh       bool       // the ends have sent nothing yet; else enough for the largest window
	srq         *queue.SRQ // the source of b's receives
}

func (s setup) attr(of, peer *node, sq, rq verbs.PSN) *verbs.QPAttr {
	a := &verbs.QPAttr{
		PathMTU: verbs.MTU1024, SQPSN: sq, RQPSN: rq, DestQPN: peer.qp.cfg.QPN, Port: 1,
		AH:     verbs.AHAttr{TrafficClass: 0b10}, // ECT(0)
		Access: remoteAccess, QKey: testQKey, Timeout: testTimeout, RetryCnt: 7, RNRRetry: 7, MinRNRTimer: 1, MaxRDAtomic: 4, MaxDestRDAtomic: 4,
	}
	pick := func(to *uint8, v uint8, zero bool) {
		if v != 0 || zero {
			*to = v
		}
	}
	if s.mtu != 0 {
		a.PathMTU = s.mtu
	}
	pick(&a.Timeout, s.timeout, s.noTimeout)
	pick(&a.RetryCnt, s.retry, s.noRetry)
	pick(&a.RNRRetry, s.rnrRetry, s.rnrLimit)
	pick(&a.MinRNRTimer, s.rnrTimer, false)
	if s.rd != 0 || s.noRD {
		a.MaxRDAtomic, a.MaxDestRDAtomic = s.rd, s.rd
	}
	if s.destRD != 0 {
		a.MaxDestRDAtomic = s.destRD
	}
	if s.access != 0 || s.noAccess {
		a.Access = s.access
	}
	return a
}

const (
	maskInit = verbs.MaskState | verbs.MaskPKeyIndex | verbs.MaskPort | verbs.MaskAccessFlags
	maskRTR  = verbs.MaskState | verbs.MaskAV | verbs.MaskPathMTU | verbs.MaskDestQPN | verbs.MaskRQPSN |
		verbs.MaskMaxDestRDAtomic | verbs.MaskMinRNRTimer
	maskRTS = verbs.MaskState | verbs.MaskTimeout | verbs.MaskRetryCnt | verbs.MaskRNRRetry | verbs.MaskSQPSN | verbs.MaskMaxRDAtomic
)

// connectMasks are the masks of the steps from RESET to RTS, by type.
var connectMasks = map[verbs.QPType][3]verbs.QPAttrMask{
	verbs.QPTypeRC: {maskInit, maskRTR, maskRTS},
	verbs.QPTypeUC: {maskInit, maskRTR &^ (verbs.MaskMaxDestRDAtomic | verbs.MaskMinRNRTimer), verbs.MaskState | verbs.MaskSQPSN},
	verbs.QPTypeUD: {verbs.MaskState | verbs.MaskPKeyIndex | verbs.MaskPort | verbs.MaskQKey, verbs.MaskState, verbs.MaskState | verbs.MaskSQPSN},
}

func newPair(t testing.TB, s setup) *pair {
	t.Helper()
	if s.cap == (verbs.QPCap{}) {
		s.cap = verbs.QPCap{MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 32, MaxRecvSGE: 32, MaxInlineData: 256}
	}
	p := &pair{t: t, fast: s.fast, fresh: s.fresh, buf: bytes.Repeat([]byte{0xa5}, MaxDatagram)}
	p.a = newEnd(t, "a", memBaseA, Config{Type: s.typ, QPN: 0x11, Cap: s.cap, SignalAll: s.signalAll, Turn: int32(s.turn)}, nil)
	p.b = newEnd(t, "b", memBaseB, Config{Type: s.typ, QPN: 0x22, Cap: s.cap, SignalAll: s.signalAll, Turn: int32(s.turn)}, s.srq)
	p.a.peer, p.b.peer = p.b, p.a
	if s.lends {
		p.a.lend()
		p.b.lend()
	}
	if !s.unconnected {
		p.connect(p.a, s.attr(p.a, p.b, s.psnA, s.psnB))
		p.connect(p.b, s.attr(p.b, p.a, s.psnB, s.psnA))
	}
	if s.selective {
		p.greet()
	}
	return p
}

// greet has both ends exchange hellos.
func (p *pair) greet() {
	for _, e := range []*node{p.a, p.b} {
		e.qp.PeerIsOurs()
	}
	p.run()
	if p.log = p.log[:0]; !p.a.rc().responder.reorder.peerSACKs || !p.b.rc().responder.reorder.peerSACKs {
		p.t.Fatal("a peer has not got the other's hello, want it to")
	}
	p.a.sent, p.b.sent = 0, 0
	p.restartTime()
}

func (p *pair) restartTime() {
	p.now = 0
	p.a.qp.timeline, p.b.qp.timeline = timeline{}, timeline{}
}

func newEnd(t testing.TB, name string, base uint64, cfg Config, srq *queue.SRQ) *node {
	e := &node{testHost: newHost(t, name, cfg, srq)}
	e.mem = e.register(base, memSize, allAccess)
	copy(e.mem.data, pattern[base>>32&0xff:])
	return e
}

var pattern = func() []byte {
	b := make([]byte, memSize+256)
	for i := range b {
		b[i] = byte(i*7 + i>>8*13)
	}
	return b
}()

// connect takes an end from RESET to RTS.
func (p *pair) connect(e *node, a *verbs.QPAttr) {
	p.t.Helper()
	for i, mask := range connectMasks[e.qp.cfg.Type] {
		a.State = verbs.QPStateInit + verbs.QPState(i)
		p.modify(e, a, mask)
	}
	if r, ok := e.qp.service.(*rc); ok && !p.fresh {
		r.recovery.EndSlowStart()
	}
}

func (p *pair) modify(e *node, a *verbs.QPAttr, mask verbs.QPAttrMask) {
	p.t.Helper()
	if err := e.qp.Modify(p.now, a, mask); err != nil {
		p.t.Fatalf("%s: modify: %v, want no error", e.name, err)
	}
	e.collect()
	if e.qp.State() == verbs.QPStateReset { // as a device does
		if e.taken = 0; e.own != nil {
			e.own.Enter(verbs.QPStateReset)
			e.own.Enter(verbs.QPStateInit) // tests post at once
		} else {
			e.receives.Receives.(*queue.SRQUser).Reset()
		}
	}
}

// state moves e to a state without any attributes.
func (p *pair) state(e *node, s verbs.QPState) {
	p.t.Helper()
	p.modify(e, &verbs.QPAttr{State: s}, verbs.MaskState)
}

func (p *pair) post(e *node, wrs ...verbs.SendWR) {
	p.t.Helper()
	for i := range wrs {
		e.resolve(&wrs[i])
		if p.fast && p.postFast(e, &wrs[i]) {
			continue
		}
		if err := e.qp.Post(&wrs[i]); err != nil {
			p.t.Fatalf("%s: post %d: %v, want no error", e.name, wrs[i].ID, err)
		}
	}
	e.collect()
}

// transmit gives both ends a turn.
func (p *pair) transmit() {
	for _, e := range []*node{p.a, p.b} {
		if p.fast && e.qp.OnlyACK() {
			var r fastRecord
			r.acked, r.aeth = e.qp.TakeACK()
			p.sendFast(e, &r)
		}
		e.qp.Turn()
		for n := 0; ; n++ {
			if n > 1<<16 {
				p.t.Fatalf("%s: %d packets in a turn, want an end", e.name, n)
			}
			k := p.transmitOne(e)
			e.collect()
			if k == 0 {
				break
			}
			p.send(e, p.buf[:k], e.qp.Loan())
		}
	}
}

// transmitOne is Transmit of e's QP.
func (p *pair) transmitOne(e *node) int {
	r, ok := e.qp.service.(*rc)
	if !ok {
		return e.qp.Transmit(p.now, p.buf)
	}
	if p.noPrecheck {
		r.requester.prechecked = 0
	}
	before := r.requester.prechecked
	n := e.qp.Transmit(p.now, p.buf)
	if n > 0 && before > 0 && r.requester.prechecked == before-1 {
		p.prechecked++
	}
	return n
}

// send puts a datagram of e on the network.
func (p *pair) send(e *node, data []byte, l *Loan) {
	data = bytes.Clone(data)
	s := sentPacket{from: e, at: p.now, run: int(l.Packets)}
	if err := s.Decode(data); err != nil {
		p.t.Fatalf("%s sent % x, which does not decode: %v; want no error", e.name, data, err)
	}
	if s.DestQP != uint32(e.peer.qp.cfg.QPN) || s.PKey != wire.DefaultPKey {
		p.t.Fatalf("%s sent dest QP %#x, P_Key %#x; want %v, %#x", e.name, s.DestQP, s.PKey, e.peer.qp.cfg.QPN, wire.DefaultPKey)
	}
	end := len(data) - wire.ICRCSize
	if s.Piggybacks {
		end -= wire.PiggybackSize
	}
	for _, b := range data[end-int(s.PadCount) : end] {
		if b != 0 {
			p.t.Fatalf("%s sent % x, want a pad of zeros", e.name, data)
		}
	}
	p.launch(s, l, inFlight{data: data})
}

// launch puts s, a packet of an end, on the network: f, once for each arrival.
func (p *pair) launch(s sentPacket, l *Loan, f inFlight) {
	e := s.from
	delays := []delay{testDelay}
	if p.route != nil {
		delays = p.route(e, e.sent, &s.Packet)
	}
	s.lost = len(delays) == 0
	p.log = append(p.log, s)
	e.sent++
	for _, d := range delays {
		f.at, f.to, f.loan = p.now+d, e.peer, e.loan(l)
		p.deliver(f)
	}
}

func (p *pair) deliver(f inFlight) {
	i := len(p.flight)
	for i > 0 && p.flight[i-1].at > f.at {
		i--
	}
	p.flight = slices.Insert(p.flight, i, f)
}

// next returns when the next event happens, or Never.
func (p *pair) next() time.Duration {
	t := min(p.a.qp.NextTimeout(), p.b.qp.NextTimeout())
	if len(p.flight) > 0 {
		t = min(t, p.flight[0].at)
	}
	if p.a.qp.Pending() || p.b.qp.Pending() {
		t = min(t, p.now+testTurn)
	}
	return t
}

// step moves on to the next event. It returns false if there is none up to a time.
func (p *pair) step(until time.Duration) bool {
	p.transmit()
	at := p.next()
	if at == Never || at > until {
		return false
	}
	p.now = max(p.now, at)
	for len(p.flight) > 0 && p.flight[0].at <= p.now {
		f := p.flight[0]
		p.flight = p.flight[1:]
		if f.fast != nil {
			p.receiveFast(f.to, f.fast, f.loan)
		} else {
			p.receive(f.to, f.data, f.loan)
		}
		if p.single {
			p.transmit()
		}
	}
	for _, e := range []*node{p.a, p.b} {
		if p.now >= e.qp.NextTimeout() {
			e.qp.HandleTimeout(p.now)
			e.collect()
		}
	}
	return true
}

func (p *pair) receive(to *node, data []byte, l *loan) {
	var pkt wire.Packet
	if err := pkt.Decode(data); err != nil {
		p.t.Fatalf("to %s: decode: %v, want no error", to.name, err)
	}
	switch {
	case to.qp.cfg.Type == verbs.QPTypeUD:
		to.qp.HandleDatagram(&pkt, &testGRH)
	case l != nil && l.payload == nil:
		to.qp.HandleRun(p.now, &pkt, l.packets, nil)
	case l != nil:
		pkt.Payload = l.payload
		to.qp.HandleRun(p.now, &pkt, l.packets, l)
	default:
		to.qp.HandlePacket(p.now, &pkt, 0)
	}
	to.collect()
	checkBounds(p.t, to.qp)
}

// run goes on until nothing is left to happen.
func (p *pair) run() {
	p.t.Helper()
	for n := 0; p.step(Never - 1); n++ {
		if n > roundsLimit {
			p.t.Fatalf("something still happens at %v after %d steps, want an end", p.now, n)
		}
	}
}

// runUntil goes on until a time, and leaves the clock there.
func (p *pair) runUntil(until time.Duration) {
	p.t.Helper()
	for n := 0; p.step(until); n++ {
		if n > roundsLimit {
			p.t.Fatalf("something still happens at %v after %d steps, want nothing more before %v", p.now, n, until)
		}
	}
	p.now = until
}

// inject makes e's QP take a packet made by hand, as if the peer had sent it, and runs nothing.
func (p *pair) inject(e *node, pkt wire.Packet) {
	pkt.DestQP = uint32(e.qp.cfg.QPN)
	pkt.PKey = wire.DefaultPKey
	p.receive(e, pkt.AppendTo(nil), nil)
}

// packets returns the packets that e has sent from the mark on. A mark is a length of p.log.
func (p *pair) packets(e *node, mark int) []sentPacket {
	var out []sentPacket
	for _, s := range p.log[mark:] {
		if s.from == e {
			out = append(out, s)
		}
	}
	return out
}

// last returns the last packet that e has sent.
func (p *pair) last(e *node) sentPacket {
	p.t.Helper()
	s := p.packets(e, 0)
	if len(s) == 0 {
		p.t.Fatalf("%s has sent nothing, want a packet", e.name)
	}
	return s[len(s)-1]
}

// testGRH is the GRH before the payload of every datagram.
var testGRH = [verbs.GRHSize]byte([]byte("0123456789abcdefghijklmnopqrstuvwxyzABCD"))

// checkBounds checks the sizes that must never grow.
func checkBounds(t testing.TB, q *QP) {
	t.Helper()
	if q.cfg.Type != verbs.QPTypeRC {
		if w := q.sq.head; w > q.sq.tail || q.sq.freed != nil && q.sq.freed.Load() > w {
			t.Fatalf("freed %d, head %d, tail %d; want them in this order", q.sq.freed.Load(), w, q.sq.tail)
		}
		if q.receiver.unused != nil && q.receiver.msg.recv != nil {
			t.Fatal("two receives are held")
		}
		return
	}
	c := q.service.(*rc)
	if n, limit := len(c.responder.responses.pending)-int(c.responder.responses.first), q.attr.MaxDestRDAtomic+maxReplays; n > limit {
		t.Fatalf("%d responses are pending, want %d at most", n, limit)
	}
	repeats := int32(0)
	for _, e := range c.responder.responses.pending[c.responder.responses.first:] {
		if e.replay {
			repeats++
		}
	}
	if n := c.responder.responses.repeats; n != repeats {
		t.Fatalf("%d responses count as repeats, want %d", n, repeats)
	}
	if n := len(c.requester.outstanding); n > q.attr.MaxRDAtomic && q.attr.State == verbs.QPStateRTS {
		t.Fatalf("%d READs and atomics are outstanding, want %d at most", n, q.attr.MaxRDAtomic)
	}
	if q.attr.State != verbs.QPStateRTS {
		return
	}
	cur := c.requester.cur
	if q.sq.head > cur || cur > q.sq.tail {
		t.Fatalf("head %d, cur %d, tail %d; want them in this order", q.sq.head, cur, q.sq.tail)
	}
	if err := c.recovery.Check(); err != nil {
		t.Fatal(err)
	}
}

// wc is a completion that a test expects.
type wc struct {
	id     uint64
	status verbs.WCStatus
}

func (w wc) String() string { return fmt.Sprintf("%d:%v", w.id, w.status) }

// wantSends checks all completions of e's send queue.
func (e *node) wantSends(want ...wc) {
	e.t.Helper()
	e.collect()
	var got []wc
	for _, s := range e.sends {
		got = append(got, wc{s.wc.ID, s.wc.Status})
		if (s.wc.Cause != nil) != (s.wc.Status != verbs.WCSuccess && s.wc.Status != verbs.WCFlushErr) {
			e.t.Errorf("%s: send %d: %v with cause %v, want a cause for all errors but WR_FLUSH_ERR", e.name, s.wc.ID, s.wc.Status, s.wc.Cause)
		}
	}
	if !slices.Equal(got, want) {
		e.t.Errorf("%s: send completions %v, want %v", e.name, got, want)
	}
}

// wantRecvs checks all completions of e's receive queue.
func (e *node) wantRecvs(want ...wc) {
	e.t.Helper()
	e.collect()
	var got []wc
	for _, r := range e.recvd {
		got = append(got, wc{r.wc.ID, r.wc.Status})
		if (r.wc.Cause != nil) != (r.wc.Status != verbs.WCSuccess && r.wc.Status != verbs.WCFlushErr) {
			e.t.Errorf("%s: receive %d: %v with cause %v, want a cause for all errors but WR_FLUSH_ERR", e.name, r.wc.ID, r.wc.Status, r.wc.Cause)
		}
	}
	if !slices.Equal(got, want) {
		e.t.Errorf("%s: receive completions %v, want %v", e.name, got, want)
	}
}

func (e *node) wantEvents(want ...verbs.EventType) {
	e.t.Helper()
	e.collect()
	if !slices.Equal(e.events, want) {
		e.t.Errorf("%s: events %v, want %v", e.name, e.events, want)
	}
}

func (e *node) wantState(want verbs.QPState) {
	e.t.Helper()
	if got := e.qp.State(); got != want {
		e.t.Errorf("%s: state %v, want %v", e.name, got, want)
	}
}

// Work requests, signaled.

func sendWR(id uint64, sg ...verbs.SGE) verbs.SendWR {
	return verbs.SendWR{ID: id, Op: verbs.OpSend, Flags: verbs.SendSignaled, SGList: sg}
}

func writeWR(id uint64, to verbs.RemoteAddr, sg ...verbs.SGE) verbs.SendWR {
	return verbs.SendWR{ID: id, Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Remote: to, SGList: sg}
}

func readWR(id uint64, from verbs.RemoteAddr, sg ...verbs.SGE) verbs.SendWR {
	return verbs.SendWR{ID: id, Op: verbs.OpRDMARead, Flags: verbs.SendSignaled, Remote: from, SGList: sg}
}

func addWR(id uint64, at verbs.RemoteAddr, n uint64, sg verbs.SGE) verbs.SendWR {
	return verbs.SendWR{ID: id, Op: verbs.OpAtomicFetchAdd, Flags: verbs.SendSignaled, Remote: at, CompareAdd: n, SGList: []verbs.SGE{sg}}
}

func casWR(id uint64, at verbs.RemoteAddr, compare, swap uint64, sg verbs.SGE) verbs.SendWR {
	wr := addWR(id, at, 0, sg)
	wr.Op, wr.CompareAdd, wr.Swap = verbs.OpAtomicCmpSwap, compare, swap
	return wr
}

// withImm makes a SEND or WRITE one with immediate data.
func withImm(wr verbs.SendWR, imm uint32) verbs.SendWR {
	wr.Op++ // OpRDMAWriteWithImm follows OpRDMAWrite, and OpSendWithImm OpSend
	wr.Imm = imm
	return wr
}

func withFlags(wr verbs.SendWR, f verbs.SendFlags) verbs.SendWR {
	wr.Flags = f
	return wr
}

type delay = time.Duration
