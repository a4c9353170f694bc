package transport

import (
	"math/bits"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// reorderBuffer has the packets of a responder that came before an earlier one, between peers that acknowledge
// selectively and on networks that route packets one by one. TCP calls such a buffer the out-of-order queue. The
// middle of a WRITE that is under way is placed at once. All other packets wait for their turn: SENDs and atomics,
// packets of a later message, and the last packet of a WRITE, since programs that watch memory take the last byte as
// a sign that the rest is there. So the order of effects and completions is the same as without losses. WRITEs whose
// senders have given up that order, by a mark, do not wait.
type reorderBuffer struct {
	peerSACKs      bool  // the peer acknowledges selectively
	peerPiggybacks bool  // the peer understands piggybacked acknowledgements
	n              int32 // packets that are held or placed
	*reorderSlots
}

// reorderSlots are those packets. They are made with the first: most QPs never hold one.
type reorderSlots struct {
	kept     int // packets with a copy
	bits     [wire.MaxRanges / 64]uint64
	slots    [][]byte // by PSN; a datagram, or nil where the packet was placed
	taken    []byte   // the latest datagram that was taken out
	buffers  Buffers  // where taken goes later; nil before the first packet that is not short
	placed   [wire.MaxRanges / 64]uint64
	messages [wire.MaxRanges / 64]uint64 // of placed: the packet is a whole message
	ackReqs  [wire.MaxRanges / 64]uint64 // of bits: the peer asks for an acknowledgement
	packet   wire.Packet                 // the packet of taken
	report   [wire.MaxRanges / 8]byte
}

func slotOf(psn wire.PSN) (word int, bit uint64) {
	i := int(psn) % wire.MaxRanges
	return i / 64, 1 << (i % 64)
}

func (h *reorderBuffer) make() {
	if h.reorderSlots == nil {
		h.reorderSlots = new(reorderSlots)
	}
}

// has reports whether the packet with a PSN, less than MaxRanges behind the expected one, is there.
func (h *reorderBuffer) has(psn wire.PSN) bool {
	if h.n == 0 {
		return false
	}
	word, bit := slotOf(psn)
	return h.bits[word]&bit != 0
}

// Buffers is memory for held packets, *[MaxDatagram]byte each. A sync.Pool is one, for all QPs together, since each
// needs some for a moment only.
type Buffers interface {
	Get() any
	Put(buffer any)
}

// keep holds a packet, in a buffer if the packet is not short. It reports false when there is no room.
func (h *reorderBuffer) keep(p *wire.Packet, buffers Buffers) bool {
	h.make()
	if h.kept == maxHeld || len(p.Payload) > maxPacketData {
		return false
	}
	if h.slots == nil {
		h.slots = make([][]byte, wire.MaxRanges)
	}
	var b []byte
	if len(p.Payload) > shortHeld && buffers != nil {
		b = buffers.Get().(*[MaxDatagram]byte)[:]
		h.buffers = buffers
	}
	word, bit := slotOf(p.PSN)
	h.slots[int(p.PSN)%wire.MaxRanges] = p.AppendTo(b[:0])
	h.bits[word] |= bit
	h.n++
	h.kept++
	return true
}

// place notes that a packet's data have been placed.
func (h *reorderBuffer) place(psn wire.PSN) {
	h.make()
	word, bit := slotOf(psn)
	h.bits[word] |= bit
	h.placed[word] |= bit
	h.n++
}

// placeMessage is place for a message of one packet.
func (h *reorderBuffer) placeMessage(psn wire.PSN) {
	h.place(psn)
	word, bit := slotOf(psn)
	h.messages[word] |= bit
}

// note notes that a packet in the buffer asks for an acknowledgement, if p does. p is that packet, or repeats it.
func (h *reorderBuffer) note(p *wire.Packet) {
	if p.AckReq {
		word, bit := slotOf(p.PSN)
		h.ackReqs[word] |= bit
	}
}

// take takes out the packet with a PSN. For a packet that was placed it returns nil, whether the packet was a whole
// message, and whether it asks for an acknowledgement. The packet is valid until the next call of take.
func (h *reorderBuffer) take(psn wire.PSN) (p *wire.Packet, whole, asks bool) {
	b, whole, asks := h.remove(psn)
	if b == nil {
		return nil, whole, asks
	}
	if h.packet.Decode(b) != nil {
		panic("a packet that was decoded does not decode")
	}
	h.packet.AckReq = asks
	return &h.packet, false, asks
}

// remove is take, with the datagram of the packet.
func (h *reorderBuffer) remove(psn wire.PSN) (b []byte, whole, asks bool) {
	word, bit := slotOf(psn)
	asks = h.ackReqs[word]&bit != 0
	h.ackReqs[word] &^= bit
	h.bits[word] &^= bit
	h.n--
	if h.placed[word]&bit != 0 {
		whole = h.messages[word]&bit != 0
		h.placed[word] &^= bit
		h.messages[word] &^= bit
		return nil, whole, asks
	}
	i := int(psn) % wire.MaxRanges
	b = h.slots[i]
	h.slots[i] = nil
	h.kept--
	if cap(h.taken) >= MaxDatagram && h.buffers != nil {
		h.buffers.Put((*[MaxDatagram]byte)(h.taken[:MaxDatagram]))
	}
	h.taken = b
	return b, false, asks
}

// forget drops the packets with n PSNs from psn on.
func (h *reorderBuffer) forget(psn wire.PSN, n int) {
	for range min(n, wire.MaxRanges-1) {
		if h.has(psn) {
			h.remove(psn)
		}
		psn = psn.Add(1)
	}
}

// ranges returns the bits of an acknowledgement whose first missing PSN is epsn: whole words of 4 bytes, the
// last of them not 0.
func (h *reorderBuffer) ranges(epsn wire.PSN) []byte {
	h.make()
	out := h.report[:]
	clear(out)
	last := 0
	for w, word := range h.bits {
		for ; word != 0; word &= word - 1 {
			i := (w*64 + bits.TrailingZeros64(word) - int(epsn)) & (wire.MaxRanges - 1)
			out[i/8] |= 1 << (i % 8)
			last = max(last, i)
		}
	}
	return out[:(last/32+1)*4]
}

// holdOutOfOrder takes a packet that came before an earlier one. It reports false where the packet is dropped.
func (s *responder) holdOutOfOrder(p *wire.Packet) bool {
	h, in := &s.reorder, &s.qp.receiver
	if s.qp.run.packets > 0 { // the packet comes again, packet by packet, with its data
		s.sackDue(p.PSN, false)
		return false
	}
	d := p.PSN.Diff(in.epsn)
	if d >= wire.MaxRanges {
		return false
	}
	if h.has(p.PSN) {
		s.qp.counters.Duplicates++
		h.note(p)
		s.sackDue(p.PSN, true)
		return true
	}
	switch {
	case s.isMarked(p) && in.placeWriteOnly(p):
		h.placeMessage(p.PSN)
	case in.placeOutOfOrder(p, uint32(d)):
		h.place(p.PSN)
	case !h.keep(p, s.qp.cfg.Buffers):
		s.sackDue(p.PSN, false)
		return false
	}
	s.qp.counters.Held++
	h.note(p)
	s.sackDue(p.PSN, false)
	return true
}

// sackDue makes a selective acknowledgement due, unless a NAK is due that tells the same or ends the connection, or
// the peer does not acknowledge selectively. duplicate says that the packet had come before.
func (s *responder) sackDue(psn wire.PSN, duplicate bool) {
	if !s.reorder.peerSACKs {
		return
	}
	switch s.reply.kind {
	case noReply, ackReply, sequenceReply, sackReply:
		s.reply = reply{kind: sackReply, psn: psn, duplicate: duplicate || s.reply.kind == sackReply && s.reply.duplicate}
	}
}

// executeHeld executes the held packets whose turn has come.
func (s *responder) executeHeld() *refusal {
	h, in := &s.reorder, &s.qp.receiver
	filled := h.n > 0
	for h.n > 0 && h.has(in.epsn) {
		var r *refusal
		switch p, whole, asks := h.take(in.epsn); {
		case p != nil:
			r = s.execute(p)
		case whole:
			r = s.executePlaced(asks)
		default:
			in.placed(s.qp.mtu)
			s.executed(false, asks)
		}
		if r != nil {
			return r
		}
	}
	if filled {
		s.sackDue(in.epsn.Add(-1), s.reply.kind == sackReply && s.reply.duplicate)
	}
	return nil
}

// placeOutOfOrder places the data of a packet from the middle of the WRITE that is under way, d packets ahead of the
// expected one. It reports false for any other packet.
func (s *receiver) placeOutOfOrder(p *wire.Packet, d uint32) bool {
	q, m := s.qp, &s.msg
	if p.Opcode != wire.RCRDMAWriteMiddle || m.kind != writeMessage || len(p.Payload) != int(q.mtu) || p.PadCount != 0 {
		return false
	}
	off := uint64(m.off) + uint64(d)*uint64(q.mtu)
	if off+uint64(q.mtu) >= uint64(m.size) { // the packet belongs to a later message, or is the last one
		return false
	}
	span, err := q.cfg.PD.Open(m.rkey, q.cfg.QPN, m.va+off, uint64(q.mtu), verbs.AccessRemoteWrite)
	if err != nil {
		return false // the packet is refused in its turn
	}
	err = span.Place(p.Payload)
	span.Release()
	if err != nil {
		return false // likewise
	}
	q.work.WriteBytes += uint64(q.mtu)
	return true
}
