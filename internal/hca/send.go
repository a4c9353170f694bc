package hca

// One packet's way out by the network. On one host a QP's packets take lane.go instead of steps 4 to 6, and many
// need no packet: see fastpath.go and direct.go.
//
//  1. verbs.QP.PostSend checks the work request, and calls qp.PostSend, which locks the QP.
//  2. transport.QP.Post copies the work request into the send queue and numbers its packets.
//  3. transmit asks transport.QP.Transmit for packets until there are none. The requester decides which
//     packets may leave, writes the headers, and copies the payload from memory into the batch's space. The
//     copy of a whole packet's payload folds its part of the ICRC: see wire.Fold.
//  4. A QP with keys encrypts the packet: see security.go.
//  5. batch.add seals the packet with its ICRC, and appends it to a train or begins a new one.
//  6. batch.flush gives the datagrams to link.Send.
//
// Answers, repeated packets and further turns take the same way from step 3 on. The ICRC is taken over
// the copy, not over the memory: a program may be counting there, and an ICRC over memory that changes
// before it is sent would never verify.

import (
	"sync"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/mem"
	"github.com/adverb-rdma/adverb/internal/secure"
	"github.com/adverb-rdma/adverb/internal/transport"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// batch gathers the datagrams of one QP for one Link.Send.
type batch struct {
	link     link.Link
	maxTrain int

	n     int // datagrams
	used  int // bytes of space
	train int // segments of the last datagram
	dgram [sendBatch]link.Datagram

	memory mem.Keeper // of the turn
	fold   wire.Fold  // of the packet

	space [trainSpace + transport.MaxDatagram + secure.Overhead]byte
}

var batches = sync.Pool{New: func() any { return new(batch) }}

// transmit sends the packets that q has to send, for one turn at most. The caller holds q.mu while the link sends
// too, so that packets leave in the order of their PSNs.
func (q *qp) transmit(now time.Duration) { q.transmitBy(nil, now) }

// transmitBy is transmit with a batch of the caller's, or nil.
func (q *qp) transmitBy(b *batch, now time.Duration) {
	q.publish()
	q.transmitPublished(b, now)
}

// transmitPublished is transmitBy for a caller that has called publish.
func (q *qp) transmitPublished(b *batch, now time.Duration) {
	q.gather.end()
	if q.out.eng == nil && q.typ != verbs.QPTypeUD {
		return
	}
	if q.lane.out != nil && q.lane.out.Broken() {
		q.leaveLane()
	}
	if q.t.HasPackets() {
		if q.lane.out != nil {
			if !q.sendFastACK() {
				q.sendNear(now)
			}
		} else if b != nil {
			q.send(b, now)
		} else {
			b = batches.Get().(*batch)
			q.send(b, now)
			batches.Put(b)
		}
		q.publish()
	}
	if q.out.eng == nil {
		return
	}
	q.setTimer()
	if q.t.Pending() {
		q.queue()
	}
}

// send sends the packets of one turn by an empty batch, and leaves it empty.
func (q *qp) send(b *batch, now time.Duration) {
	q.t.Turn()
	lead, pkey := 0, q.pkey()
	if q.security != nil {
		lead = secure.Lead
	}
	b.begin(q.security == nil) // an encrypted packet has another ICRC
	q.t.KeepMemory(&b.memory)
	for {
		buf := b.next(lead)
		n := q.t.Transmit(now, buf)
		if n == 0 {
			break
		}
		op := wire.Opcode(buf[0])
		if q.security != nil {
			n = q.security.seal.Seal(b.space[b.used:], n)
		}
		if q.typ == verbs.QPTypeUD {
			if q.routeTo(q.t.AH().(*ah)) {
				b.endTrain() // a train has one destination
			}
		}
		if q.out.ways != nil {
			if w := &(*q.out.ways)[q.t.Path()]; w.src != q.out.src {
				q.out.src, q.out.flow = w.src, w.flow
				b.endTrain() // a train has one source
			}
		}
		b.leaveBy(q.out.eng.link)
		class := q.out.trafficClass
		if op == wire.CNP {
			class = cnpClass
		}
		q.traffic.sends(n)
		if pkey != wire.DefaultPKey {
			mark(b.space[b.used:], pkey)
		}
		b.add(&q.out, n, class)
		if op == wire.RCFlush && q.security == nil && q.peer.MayBeLinux() {
			q.traffic.sends(n)
			b.addLinuxFlush(&q.out, n, class)
		}
		if b.n == 1 && b.train == 1 && !q.t.HasPackets() { // a single packet, as most are: Transmit need not look
			break
		}
		if b.isFull() {
			b.empty()
		}
	}
	q.t.ReleaseMemory()
	b.end()
}

// cnpClass is the traffic class of congestion notification packets: DSCP 48, as cards have it, so that switches may let
// them overtake other packets. CNPs are not ECN-capable.
const cnpClass = 48 << 2

// begin prepares an empty batch for a QP's packets. folds says whether the copy of a payload folds its part of the ICRC.
func (b *batch) begin(folds bool) {
	b.memory.Fold = nil
	if folds {
		b.memory.Fold = &b.fold
	}
}

// next returns the space of the next packet, which begins behind lead bytes.
func (b *batch) next(lead int) []byte {
	b.fold.Reset()
	at := b.used + lead
	return b.space[at : at+transport.MaxDatagram]
}

// endTrain has the next packet begin a datagram.
func (b *batch) endTrain() { b.train = b.maxTrain }

// leaveBy has the packet that was written last, and those after it, leave by a link.
func (b *batch) leaveBy(l link.Link) {
	if b.link != l {
		b.change(l)
	}
}

func (b *batch) change(l link.Link) {
	b.flush()
	b.link, b.maxTrain = l, l.MaxTrain()
}

// add takes the n bytes that were written to the free space for a packet. The packet becomes the next
// segment of the last train or else begins a datagram. The identification that its ICRC covers is the
// segment's number: see link.Link.Send.
func (b *batch) add(o *outbound, n int, class uint8) {
	data := b.space[b.used : b.used+n] // with room for a train behind it
	b.used += n
	if b.n > 0 {
		// Only the last segment of a train may be shorter than the others.
		last := &b.dgram[b.n-1]
		if b.train < b.maxTrain && class == last.TrafficClass && n <= last.SegmentSize && len(last.Payload) == b.train*last.SegmentSize &&
			len(last.Payload)+n <= transport.DatagramBytes {
			o.flow.SealFolded(uint16(b.train), data, &b.fold)
			last.Payload = last.Payload[:len(last.Payload)+n]
			b.train++
			return
		}
	}
	o.flow.SealFolded(0, data, &b.fold)
	d := &b.dgram[b.n] // field by field, as in transport: links alone set the others
	d.Src, d.Dst, d.Payload, d.SegmentSize, d.FlowLabel, d.TrafficClass = o.src, o.dst, data, n, o.flow.Label(), class
	if o.ib != nil {
		d.HopLimit = o.ib.hopLimit
	}
	b.n++
	b.train = 1
}

// addLinuxFlush has the FLUSH of n bytes that was added last leave once more, with the ICRC that Linux wants. Whoever gets the two
// drops one without a word, or takes it for a repeated packet.
func (b *batch) addLinuxFlush(o *outbound, n int, class uint8) {
	var packet [wire.FlushLen]byte
	copy(packet[:], b.space[b.used-n:b.used])
	if b.isFull() {
		b.empty()
	}
	copy(b.next(0), packet[:n])
	b.add(o, n, class)
	wire.SealLinuxFlush(b.space[b.used-n : b.used])
}

// isFull reports whether the datagrams are to be sent now, since there is no room for more, or the last train has
// all the packets that it can take. A packet behind a full train would leave as a datagram of its own, at a third
// of the cost of a whole train.
func (b *batch) isFull() bool {
	if b.n == sendBatch || b.used > trainSpace {
		return true
	}
	last := &b.dgram[b.n-1]
	return len(last.Payload)+last.SegmentSize > transport.DatagramBytes
}

// empty sends the datagrams, and makes their space free.
func (b *batch) empty() {
	b.flush()
	b.used = 0
}

// end empties the batch, for the packets of another QP.
func (b *batch) end() {
	b.empty()
	b.link = nil
}

// flush sends the datagrams, and leaves their space used.
func (b *batch) flush() {
	if b.n > 0 {
		b.link.Send(b.dgram[:b.n]) // a closed link is the device's end; losses are the network's
	}
	b.n, b.train = 0, 0
}
