package hca

// One packet's way out:
//
//  1. verbs.QP.PostSend checks the work request, and calls qp.PostSend, which locks the QP.
//  2. transport.QP.Post copies the work request into the send queue and numbers its packets.
//  3. transmit asks transport.QP.Transmit for packets until there are none. The requester decides
//     what may go, writes the headers, and copies the payload from memory into the batch's space.
//  4. batch.add seals the packet with its ICRC, and appends it to a train or begins a new one.
//  5. batch.flush gives the datagrams to link.Send.
//
// Answers, repeated packets and further turns take the same way from step 3 on. The ICRC is taken over
// the copy, not over the memory: a program may be counting there, and an ICRC over memory that changes
// before it is sent would never verify.

import (
	"sync"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/transport"
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
	space [trainSpace + transport.MaxDatagram]byte
}

var batches = sync.Pool{New: func() any { return new(batch) }}

// transmit sends what q has to send, for one turn at most. The caller holds q.mu while the link sends
// too, so that packets leave in the order of their PSNs.
func (q *qp) transmit(now time.Duration) {
	q.publish()
	q.gather.waits = false
	if q.out.eng == nil && q.typ != verbs.QPTypeUD {
		return
	}
	b := batches.Get().(*batch)
	q.t.Turn()
	for {
		n := q.t.Transmit(now, b.space[b.used:b.used+transport.MaxDatagram])
		if n == 0 {
			break
		}
		if q.typ == verbs.QPTypeUD {
			if q.routeTo(q.t.AH().(*ah)) {
				b.train = b.maxTrain // a train has one destination
			}
		}
		if l := q.out.eng.link; b.link != l {
			b.flush()
			b.link, b.maxTrain = l, l.MaxTrain()
		}
		b.add(&q.out, n)
		if b.n == sendBatch || b.used > trainSpace {
			b.flush()
			b.used = 0
		}
	}
	b.flush()
	b.used, b.link = 0, nil
	batches.Put(b)
	q.publish()
	e := q.out.eng
	if e == nil {
		return
	}
	e.setTimer(q)
	if q.t.Pending() {
		q.queue()
	}
}

// add takes the n bytes that were written to the free space for a packet. The packet becomes the next
// segment of the last train or else begins a datagram. The identification that its ICRC covers is the
// segment's number: see link.Link.Send.
func (b *batch) add(o *outbound, n int) {
	data := b.space[b.used : b.used+n]
	b.used += n
	if b.n > 0 {
		// Only the last segment of a train may be shorter than the others.
		last := &b.dgram[b.n-1]
		if b.train < b.maxTrain && n <= last.SegmentSize && len(last.Payload) == b.train*last.SegmentSize &&
			len(last.Payload)+n <= trainBytes {
			o.flow.Seal(uint16(b.train), data)
			last.Payload = last.Payload[:len(last.Payload)+n]
			b.train++
			return
		}
	}
	o.flow.Seal(0, data)
	b.dgram[b.n] = link.Datagram{
		Src: o.src, Dst: o.dst, Payload: b.space[b.used-n : b.used : len(b.space)], SegmentSize: n, TrafficClass: o.trafficClass,
	}
	b.n++
	b.train = 1
}

// flush sends the datagrams. The caller may then set used to 0.
func (b *batch) flush() {
	if b.n > 0 {
		b.link.Send(b.dgram[:b.n]) // a closed link is the device's end; losses are the network's
	}
	b.n, b.train = 0, 0
}
