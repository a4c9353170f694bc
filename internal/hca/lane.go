package hca

// One packet's way between processes of this host, or between QPs of this process, if the carrier is on:
//
//  1. setPath asks Ways.Lane for a lane to the process of the peer's QPN, before the QP's first packet.
//     Where there is none the QP's packets go by the network.
//  2. sendNear has transport.QP.Transmit write the packet into the lane: the payload is copied once. A long
//     payload is lent: the packet stands for several, and says where in a region of ours the data lie.
//  3. A poll at the other end, or its engine's goroutine, finds the record. nearIn checks whether the QP takes
//     packets from the lane, and hands the packet to the transport, which copies the payload out of the lane, or
//     out of the region that lends the payload.
//
// There is no ICRC: memory does not damage packets as networks do. There is no train, and no UDP port to
// learn: a process that hands over a lane has been proved to be of this user. All else is as on the wire.
// So a peer that is stopped is a silent network, with its timeouts and retries, and a peer that writes
// nonsense can do no more than a peer that sends nonsense.

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/mem"
	"github.com/adverb-rdma/adverb/internal/shm"
	"github.com/adverb-rdma/adverb/internal/transport"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

const (
	// Up to laneBatch packets are taken from one lane before the next has its turn.
	laneBatch = 64

	// A full lane waits for lanePatience for a receiver that reads nothing. Then its packets are lost, as in a
	// network whose receiver stands still. A receiver may wait for a processor as long.
	lanePatience = 50 * time.Millisecond

	// While packets come by lanes, or QPs have direct access, a poll that finds the lanes empty looks at the
	// clock each farPolls-th time only. It then looks at the network and the timers if farTime has passed since
	// the latest look at the network, which costs many times as much as a look at the lanes. If a packet has come from
	// the network within nearTime, each look at the clock is followed by a look at the network. Once no packet has come
	// by a lane for nearTime, every poll looks everywhere.
	farPolls = 64
	farTime  = 10 * time.Microsecond
	nearTime = time.Millisecond
)

// near is the part of an engine that looks after the lanes which end at its address.
type near struct {
	inbox  *shm.Inbox    // or nil
	latest time.Duration // when the latest packet came by a lane
	busy   bool          // packets came by lanes, or QPs had direct access, within nearTime
	skips  int           // looks since the latest one at the network or at the clock
	far    time.Duration // when the latest packet came from the network
	looked time.Duration // when the latest look at the network was
	full   full

	admitted bool        // the QP that is locked takes packets from the present lane: see admits
	direct   atomic.Bool // a QP had direct access not long ago
}

// full are the QPs that have found no room in their lanes. They get a turn when there is room, when the lane
// ends, and when their patience ends. Nobody spins for them: an engine that sleeps meanwhile hears the bell.
type full struct {
	n atomic.Int32 // how many, for a look without the lock

	mu  sync.Mutex // a lane's lock is taken second
	qps []fullLane

	due []fullLane // owned by serveFull
}

type fullLane struct {
	qp    *qp
	lane  *shm.Out
	until time.Duration
}

// lane is a connected QP's part in the lane to its peer: the packets, the payloads that the QP lends, and direct access to
// memory. The QP's lock guards it.
type lane struct {
	out    *shm.Out // nil: packets go by the network
	lent   []uint64 // positions in the lane of the records whose payloads are lent
	waits  bool     // for room in the lane
	kept   *kept    // nil before the first use of a lane
	direct *direct  // nil before the first operation that could be direct
}

// findLane asks for a lane to the peer. Packets for a middleware go by the network, and so do
// secured packets: a QP with keys takes no others.
func (q *qp) findLane(p path, to verbs.QPN) {
	q.leaveLane()
	secured := q.security != nil || q.exchange.Agreed()
	if ask := q.shard.Lane; ask != nil && !link.IsV1(p.eng.addr) && q.typ <= verbs.QPTypeUC && !secured && len(q.dev.config.Middleware) == 0 {
		q.lane.out = ask(p.eng.addr, p.dst.Addr(), uint32(to))
	}
	if q.lane.out != nil {
		q.t.Lend(q.lends)
	}
}

// kept keeps the memory open that a QP with a lane uses time and again. The QP's lock holds it in place.
type kept struct{ requester, responder *mem.Keeper }

// keeps returns the memory that q keeps open. The caller holds q.mu.
func (q *qp) keeps() *kept { return q.lane.keeps(&q.mu) }

// keeps returns the memory that the QP keeps open. mu is the QP's lock, which the caller holds.
func (l *lane) keeps(mu *sync.Mutex) *kept {
	if l.kept == nil {
		l.kept = &kept{mem.NewKeeper(mu), mem.NewKeeper(mu)}
	}
	return l.kept
}

// leaveLane has q's packets go by the network.
func (q *qp) leaveLane() {
	if q.lane.leave() {
		q.t.Lend(nil)
	}
}

// leave gives the lane up, and ends loans and direct access. It reports whether there was a lane.
func (l *lane) leave() bool {
	if l.kept != nil {
		l.kept.requester.Forget()
		l.kept.responder.Forget()
	}
	l.endDirect()
	if l.out == nil {
		return false
	}
	l.recall()
	l.out.Use(-1)
	l.out = nil
	return true
}

// lends reports whether the peer can read a file. A peer that does not know the file is told of it. The caller holds the
// lane's lock.
func (q *qp) lends(f *mem.File) bool {
	o := q.lane.out
	return o.Lends(fileOf(f), func() func() {
		return f.Watch(o, func() (off, n uint64) { o.Withdraw(f.ID); return 0, 0 })
	})
}

// fileOf names a region's memory for the peer.
func fileOf(f *mem.File) shm.File { return shm.File{ID: f.ID, FD: f.FD, Off: f.Off, Size: f.Size} }

// lend makes the packet of n bytes that Transmit has written a record whose payload is lent. The caller holds the
// lane's lock.
func (l *lane) lend(n int, loan *transport.Loan) {
	pos := l.out.CommitLoan(n, shm.Loan{File: loan.File.ID, Off: loan.Off, Len: loan.Len, Packets: loan.Packets})
	l.lent = append(l.out.Unread(l.lent), pos)
}

// recall takes back the payloads that the peer has not taken. The program is about to get its memory back.
func (l *lane) recall() {
	if len(l.lent) == 0 {
		return
	}
	l.out.Lock()
	defer l.out.Unlock()
	l.out.Recall(l.lent)
	l.lent = l.lent[:0]
}

// Carrier implements verbs.ProviderCarrier.
func (q *qp) Carrier() string {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.out.eng == nil:
		return ""
	case q.lane.out != nil && !q.lane.out.Broken():
		return verbs.CarrierSHM
	}
	if link.IsV1(q.out.eng.addr) {
		return verbs.CarrierV1
	}
	return verbs.CarrierUDP
}

// lost is where packets go that a full lane does not take.
var lost = sync.Pool{New: func() any { return new([transport.MaxDatagram]byte) }}

// sendNear sends the packets of one turn by q's lane.
func (q *qp) sendNear(now time.Duration) {
	if full, until := q.fillLane(now); full {
		q.awaitRoom(until)
	}
}

// fillLane puts the packets of one turn into q's lane. It reports whether packets wait for room, and until when they do.
func (q *qp) fillLane(now time.Duration) (full bool, until time.Duration) {
	o := q.lane.out
	o.Lock()
	defer o.Unlock()
	q.t.Turn()
	for {
		buf := o.Reserve(transport.MaxDatagram)
		if buf == nil {
			return q.laneFull(now)
		}
		n := q.t.Transmit(now, buf)
		if n == 0 {
			break
		}
		l := q.t.Loan()
		packets := max(1, l.Packets)
		if l.Packets > 0 && l.File != nil {
			q.lane.lend(n, l)
			q.traffic.sendsNear(int(packets), n+int(l.Len))
		} else {
			o.Commit(n, int(packets))
			q.traffic.sendsNear(int(packets), n)
		}
		if !q.t.HasPackets() {
			break
		}
	}
	o.Publish()
	return false, 0
}

// laneFull is called when q's lane has no room. The packets that are left wait for room or, if the receiver seems to be
// stopped, are lost. The caller holds the lane's lock.
func (q *qp) laneFull(now time.Duration) (wait bool, until time.Duration) {
	o := q.lane.out
	o.Publish()
	if o.Broken() {
		if q.t.HasPackets() {
			q.queue()
		}
		return false, 0
	}
	if !o.Stuck(now, lanePatience) {
		return q.t.HasPackets(), o.FullSince() + lanePatience
	}
	scratch := lost.Get().(*[transport.MaxDatagram]byte)
	for q.t.Transmit(now, scratch[:]) > 0 {
		q.traffic.sent++
		q.traffic.lostNear++
	}
	lost.Put(scratch)
	return false, 0
}

// awaitRoom gives q a turn when its lane has room. The caller holds q.mu.
func (q *qp) awaitRoom(until time.Duration) {
	if q.lane.waits {
		return
	}
	q.lane.waits = true
	e := q.out.eng
	e.near.full.add(fullLane{q, q.lane.out, until})
	if e.near.inbox.Leave() { // behind the receiver's inbox, if that is of this process
		return
	}
	if e.sleepUntil.Load() != 0 {
		e.link.Wake()
	}
}

// roomy is called when q's lane has room again, or q's patience is over. It sends by the caller's batch.
func (q *qp) roomy(b *batch, now time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.lane.waits = false
	if !q.closed {
		q.transmitBy(b, now)
	}
}

// serveFull gives a turn to the QPs whose lanes have room again. The caller holds e.rx.
func (e *engine) serveFull(now time.Duration) {
	f := &e.near.full
	if f.n.Load() == 0 {
		return
	}
	for _, w := range f.takeDue(now) {
		w.qp.roomy(&e.batch, now)
	}
	f.finish()
}

func (f *full) add(w fullLane) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.qps = append(f.qps, w)
	f.n.Store(int32(len(f.qps)))
}

// takeDue takes out the QPs whose lanes have room again, and those whose patience is over.
func (f *full) takeDue(now time.Duration) []fullLane {
	f.mu.Lock()
	defer f.mu.Unlock()
	waits := f.qps[:0]
	for _, w := range f.qps {
		if now < w.until && !w.lane.Roomy() {
			waits = append(waits, w)
		} else {
			f.due = append(f.due, w)
		}
	}
	clear(f.qps[len(waits):])
	f.qps = waits
	f.n.Store(int32(len(f.qps)))
	return f.due
}

// finish forgets the QPs that takeDue has taken out.
func (f *full) finish() {
	clear(f.due)
	f.due = f.due[:0]
}

// hasRoom reports whether a lane has room for a QP that waits. If ask is set and no lane has, hasRoom asks for the bell.
func (f *full) hasRoom(ask bool) bool {
	if f.n.Load() == 0 {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range f.qps {
		if ask && w.lane.AwaitRoom() || !ask && w.lane.Roomy() {
			return true
		}
	}
	return false
}

// until returns when the first QP loses its patience.
func (f *full) until() int64 {
	until := never
	if f.n.Load() != 0 {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, w := range f.qps {
			until = min(until, int64(w.until))
		}
	}
	return until
}

// receiveNear works off the packets in the lanes, up to laneBatch packets of each. It returns their number. The caller
// holds e.rx.
func (e *engine) receiveNear(now time.Duration) (n int) {
	if e.near.inbox == nil {
		return 0
	}
	for _, in := range e.near.inbox.Lanes() {
		var q *qp
		e.row = 0
		i := 0
		for i < laneBatch {
			b := in.Next()
			if b == nil {
				break
			}
			q = e.nearIn(now, q, in, b)
			i += max(1, in.Packets())
		}
		in.Release()
		if q != nil {
			e.answerNow(now, q)
		}
		if n += i; i == 0 && in.Finished() {
			e.near.inbox.Drop(in)
		}
	}
	if n > 0 {
		e.near.latest, e.near.busy = now, true
	}
	return n
}

// lanesFirst works off the packets in the lanes from an address, before a packet of a UC QP that came from that address by
// the network. If the sender has given up a lane, the packets in the lane are older. On RC the PSNs would show this, but
// on UC each message that begins is taken. q is locked before and after.
func (e *engine) lanesFirst(now time.Duration, q *qp, from netip.Addr) {
	from = from.WithZone("")
	cur := q
	for _, in := range e.near.inbox.Lanes() {
		if in.From() != from {
			continue
		}
		e.near.admitted = false
		for end := in.End(); in.Before(end); { // the sender of a lane that goes on may send for ever
			b := in.Next()
			if b == nil {
				break
			}
			cur = e.nearIn(now, cur, in, b)
		}
		in.Release()
	}
	if cur != q {
		e.answerNow(now, cur)
		e.row = 0
		q.mu.Lock()
	}
}

// nearIn hands a packet that came by the lane in to its QP. cur is the QP that is locked before the call, or nil.
// nearIn returns the QP that is locked after it, or nil.
func (e *engine) nearIn(now time.Duration, cur *qp, in *shm.In, b []byte) *qp {
	if len(b) >= fastSize && b[0] == fastMark {
		return e.fastIn(now, cur, in, b)
	}
	p, from, packets, lent := &e.packet, in.From(), in.Packets(), in.Lent()
	if p.Decode(b) != nil || packets == 0 || lent != nil && lent.Payload == nil {
		e.dropNear(dropMalformed, nil, from)
		return cur
	}
	q := e.turnTo(now, cur, p.DestQP, in)
	if q == nil {
		return cur
	}
	switch {
	case !e.admits(q, in):
	case p.Opcode == wire.Secured:
		e.dropNear(dropNoKey, q, from)
	case !wire.SamePartition(p.PKey, wire.DefaultPKey):
		e.dropNear(dropPKey, q, from)
		e.dev.port.badPKeys.add()
	default:
		bytes := len(b)
		if lent != nil {
			bytes += len(lent.Payload)
		}
		q.traffic.receivesNear(packets, bytes)
		q.handleNear(now, p, packets, lent)
	}
	return q
}

// turnTo locks the QP of a number in place of cur, which may be nil. If no QP has the number, turnTo returns nil and
// changes nothing.
func (e *engine) turnTo(now time.Duration, cur *qp, qpn uint32, in *shm.In) *qp {
	if cur != nil && cur.num == qpn {
		e.row++
		return cur
	}
	q := e.shard.qps.Get(qpn)
	if q == nil {
		e.dropNear(dropNoQP, nil, in.From())
		return nil
	}
	if cur != nil {
		e.answerNow(now, cur)
	}
	e.row = 1
	q.mu.Lock()
	q.t.KeepMemory(q.keeps().responder)
	return q
}

// admits reports whether q takes packets from a lane. If not, the packet is dropped. For a row of packets by one lane the
// answer stays the same, since q is locked meanwhile.
func (e *engine) admits(q *qp, in *shm.In) bool {
	if e.row > 1 && e.near.admitted {
		return true
	}
	e.near.admitted = e.takesFrom(q, in.From())
	return e.near.admitted
}

// takesFrom is admits for the first packet of a row, which has come from an address.
func (e *engine) takesFrom(q *qp, from netip.Addr) bool {
	switch {
	case q.closed || q.out.eng != e || q.typ == verbs.QPTypeUD:
		e.dropNear(dropNoQP, nil, from)
	case q.security != nil:
		e.dropNear(dropPlain, q, from)
	case from != q.out.dst.Addr() && from != q.out.dst.Addr().WithZone(""):
		e.dropNear(dropSource, q, from)
	default:
		return true
	}
	return false
}

// at returns now, or looks at the clock again if somebody has used q since. The engine reads the clock before it takes
// packets out of lanes. A packet may have come after that, in answer to a packet that q has sent after that. The caller
// holds q.mu.
func (q *qp) at(now time.Duration) time.Duration {
	if now < q.t.Latest() {
		return q.dev.now()
	}
	return now
}

// handleNear hands the transport a packet that came by a lane, and stands for a number of packets.
func (q *qp) handleNear(now time.Duration, p *wire.Packet, packets int, lent *shm.Lent) {
	if lent == nil && packets == 1 {
		q.t.HandlePacket(q.at(now), p, 0)
		return
	}
	var payload transport.Lent
	if lent != nil {
		p.Payload, payload = lent.Payload, lent
	}
	q.t.HandleRun(q.at(now), p, packets, payload)
}

// dropNear is drop for a packet that has come by a lane.
func (e *engine) dropNear(c dropCause, q *qp, from netip.Addr) {
	e.drop(c, q, &link.Datagram{Src: netip.AddrPortFrom(from, 0), Dst: e.link.Addr()})
}

// idle reports whether a look may end here, since the lanes are empty and no other work is likely to wait.
// The caller holds e.rx.
func (e *engine) idle() bool {
	s := &e.near
	if !s.busy || s.inbox.Waiting() || e.turns.due() || len(e.delayed.list) > 0 || s.full.hasRoom(false) {
		return false
	}
	if s.skips++; s.skips < farPolls {
		return true
	}
	s.skips = 0
	return !s.wantsFar(e.dev.now())
}

// wantsFar reports whether it is time to look at the network.
func (s *near) wantsFar(now time.Duration) bool {
	return now-s.looked >= farTime || now-s.far < nearTime
}

// looksFar reports whether a look goes on to the network. n is the number of packets found in the lanes. The caller
// holds e.rx.
func (e *engine) looksFar(now time.Duration, n int) bool {
	s := &e.near
	if n == 0 {
		if now-s.latest > nearTime {
			if s.busy = e.near.direct.Swap(false); s.busy {
				s.latest = now
			}
		}
		return true
	}
	if s.skips++; s.skips < farPolls {
		return false
	}
	s.skips = 0
	return s.wantsFar(now)
}

// glance looks at the lanes alone, about as long as a look at the network takes. It reports whether they were
// empty. The caller holds e.rx.
func (e *engine) glance() bool {
	for range farPolls {
		if !e.idle() {
			return false
		}
	}
	return true
}
