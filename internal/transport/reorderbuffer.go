package transport

import (
	"math/bits"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// hold is what a responder has of packets that came before others, between peers that repeat selectively and on
// networks that route packets one by one. The middle of a WRITE that is under way goes to its place at once. All
// else waits for its turn: SENDs and atomics, what belongs to a later message, and the last packet of a WRITE, behind
// which programs that watch memory believe the rest to be there. So the order of effects is what it is without
// losses, and completions are too. WRITEs whose senders have given up that order, by a mark, do not wait.
type reorderBuffer struct {
	peerSACKs      bool  // the peer understands acknowledged ranges
	peerPiggybacks bool  // and messages that carry an acknowledgement
	n              int32 // packets that are held or placed
	*reorderSlots
}

// early is those packets. It is made with the first: most QPs never hold one.
type reorderSlots struct {
	kept     int // packets with a copy
	bits     [wire.MaxRanges / 64]uint64
	slots    [][]byte // by PSN; a datagram, or nil where the packet was placed
	taken    []byte   // the latest datagram that was taken out
	buffers  Buffers  // where it goes then; nil before the first that is not short
	placed   [wire.MaxRanges / 64]uint64
	messages [wire.MaxRanges / 64]uint64 // of placed: messages of their own
	ackReqs  [wire.MaxRanges / 64]uint64 // of bits: the peer asks for an acknowledgement
	packet   wire.Packet                 // that is taken out
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

// Buffers is memory for packets that wait, *[MaxDatagram]byte each. A sync.Pool is one, for all QPs together, since each
// needs some for a moment only.
type Buffers interface {
	Get() any
	Put(buffer any)
}

// keep takes a packet that is to wait, into a buffer if it is not short. It reports false when there is no room.
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

// place takes note that a packet's data are in their place.
func (h *reorderBuffer) place(psn wire.PSN) {
	h.make()
	word, bit := slotOf(psn)
	h.bits[word] |= bit
	h.placed[word] |= bit
	h.n++
}

// placeWhole is place for a message of one packet.
func (h *reorderBuffer) placeMessage(psn wire.PSN) {
	h.place(psn)
	word, bit := slotOf(psn)
	h.messages[word] |= bit
}

// note takes note of what a packet asks for that is there, or has come again.
func (h *reorderBuffer) note(p *wire.Packet) {
	if p.AckReq {
		word, bit := slotOf(p.PSN)
		h.ackReqs[word] |= bit
	}
}

// take takes out the packet with a PSN. It returns nil for one that was placed, and whether that was a message of
// its own, and asks for an acknowledgement. The packet holds until the next call of take.
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

// remove is take, with the packet as it came.
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

// forget drops what came with n PSNs from one on.
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

// ahead takes a packet that came before others. It reports false where the packet is dropped.
func (s *responder) holdOutOfOrder(p *wire.Packet) bool {
	h, in := &s.reorder, &s.qp.receiver
	if s.qp.run.packets > 0 { // it comes again packet by packet, with its data
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

// due makes an acknowledgement with ranges due, unless a NAK is that tells the same or ends the connection, or the
// peer does not know ranges. duplicate says that the packet had come before.
func (s *responder) sackDue(psn wire.PSN, duplicate bool) {
	if !s.reorder.peerSACKs {
		return
	}
	switch s.reply.kind {
	case noReply, ackReply, sequenceReply, sackReply:
		s.reply = reply{kind: sackReply, psn: psn, duplicate: duplicate || s.reply.kind == sackReply && s.reply.duplicate}
	}
}

// executeHeld executes what was held and is next now.
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

// placeOutOfOrder places the data of a packet from the middle of the WRITE that is under way, d packets ahead of
// the expected one. It reports false where the packet is none such.
func (s *receiver) placeOutOfOrder(p *wire.Packet, d uint32) bool {
	q, m := s.qp, &s.msg
	if p.Opcode != wire.RCRDMAWriteMiddle || m.kind != writeMessage || len(p.Payload) != int(q.mtu) || p.PadCount != 0 {
		return false
	}
	off := uint64(m.off) + uint64(d)*uint64(q.mtu)
	if off+uint64(q.mtu) >= uint64(m.size) { // it belongs to a later message, or is the last, which is not the middle
		return false
	}
	span, err := q.cfg.PD.Open(m.rkey, q.cfg.QPN, m.va+off, uint64(q.mtu), verbs.AccessRemoteWrite)
	if err != nil {
		return false // refused in its turn
	}
	err = span.Place(p.Payload)
	span.Release()
	if err != nil {
		return false // likewise
	}
	q.work.WriteBytes += uint64(q.mtu)
	return true
}
