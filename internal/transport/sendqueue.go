package transport

import (
	"sync/atomic"

	"github.com/adverb-rdma/adverb/internal/mem"
	"github.com/adverb-rdma/adverb/internal/queue"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// sendWQE is a posted send work request. Its packets have the consecutive sequence numbers
// [seq, seq+packets). Sequence numbers have 64 bits; their lowest 24 are the PSN.
type sendWQE struct {
	id         uint64
	op         verbs.Opcode
	flags      verbs.SendFlags
	simple     bool   // a SEND, WRITE or READ of one packet or an atomic, without a fence: see requester.transmitPrechecked
	split      bool   // each packet is a message of its own: see requester.splits
	mark       uint16 // of a split WRITE's packets, or 0: adaptive routing
	executed   bool   // local operations: done, and may complete in its turn
	imm        uint32
	invalidate verbs.RKey // OpSendWithInv, OpLocalInv
	length     uint32     // bytes; 2^31 at most
	remote     verbs.RemoteAddr
	sg         []verbs.SGE
	inline     []byte // the data, when SendInline was given
	seq        uint64
	packets    uint64
	message    uint64 // how many messages went before, for credits

	fault *fault   // a local error, which ends the work request when its turn to complete comes
	cold  *coldWQE // or nil
}

// coldWQE has the fields that most work requests lack, apart from the hot ones: so a ring of short messages is half
// as large, and stays in the cache.
type coldWQE struct {
	compareAdd uint64 // atomics
	swap       uint64

	flush verbs.Flush        // OpFlush
	word  [atomicLength]byte // OpAtomicWrite with inline data

	bind verbs.MWBind // OpBindMW

	ah      verbs.ProviderAH // UD: the way to the destination
	destQPN verbs.QPN
	qkey    verbs.QKey

	srqn verbs.SRQN // XRC
}

// seqBase keeps sequence numbers away from 0, so that a PSN before the first one does not wrap.
const seqBase = 1 << 24

// countSplit counts the messages of w, the latest, whose packets go as WRITEs of their own.
func (sq *sendQueue) countSplit(w *sendWQE) { sq.messages += w.packets - 1 }

// skip takes a sequence number, and a message, without a work request.
func (sq *sendQueue) skip() (seq uint64) {
	seq = sq.nextSeq
	sq.nextSeq++
	sq.messages++
	return seq
}

// fail keeps a local error until w's turn to complete comes.
func (w *sendWQE) fail(f *fault) { w.fault = f }

// setExecuted notes that w, a local operation, is done.
func (w *sendWQE) setExecuted() { w.executed = true }

// psn is the PSN of a sequence number.
func psn(seq uint64) wire.PSN { return wire.PSN(seq) & wire.PSNMask }

func (w *sendWQE) end() uint64 { return w.seq + w.packets }

// responseOps are the operations that complete by a response of their own, not by an acknowledgement. The response of
// all but READs is one packet.
const responseOps = 1<<verbs.OpRDMARead | 1<<verbs.OpAtomicCmpSwap | 1<<verbs.OpAtomicFetchAdd | 1<<verbs.OpFlush | 1<<verbs.OpAtomicWrite

// hasResponse reports whether w completes by a response of its own.
func (w *sendWQE) hasResponse() bool { return responseOps>>w.op&1 != 0 }

// isOnePacket reports whether w is one packet, and so is its response.
func (w *sendWQE) isOnePacket() bool { return w.op != verbs.OpRDMARead && w.hasResponse() }

// isAtomic reports whether w fills its SGList with the value before.
func (w *sendWQE) isAtomic() bool {
	return w.op == verbs.OpAtomicCmpSwap || w.op == verbs.OpAtomicFetchAdd
}

// isLocal reports whether w is executed here and sends no packet.
func (w *sendWQE) isLocal() bool { return w.op == verbs.OpLocalInv || w.op == verbs.OpBindMW }

// takesRecv reports whether w takes a receive of the peer.
func (w *sendWQE) takesRecv() bool {
	switch w.op {
	case verbs.OpSend, verbs.OpSendWithImm, verbs.OpSendWithInv, verbs.OpRDMAWriteWithImm:
		return true
	}
	return false
}

// sendQueue is the ring of send WQEs. Places are counted from RESET on:
//
//	freed <= head <= requester.cur <= tail
//
// Those before freed are free; those before head, complete; before cur, sent; before tail, posted.
//
// The ring grows while work requests are under way, up to the room that was granted.
type sendQueue struct {
	wqes      []sendWQE // a power of two, or none before INIT
	cold      []coldWQE // of the WQEs; none before the first WQE that needs one
	allCold   bool      // UD and XRC: each WQE has a coldWQE
	sges      []verbs.SGE
	maxSGE    int
	inline    []byte
	maxInline int32
	most      int32 // the most WQEs

	freed        *atomic.Uint64 // polling moves it on
	head, tail   uint64
	lastSignaled uint64 // place of the newest signaled WQE, plus 1

	nextSeq  uint64
	messages uint64
}

// newSendQueue makes the ring. cap has the granted sizes.
func newSendQueue(typ verbs.QPType, cap verbs.QPCap, firstSeq uint64) sendQueue {
	sq := sendQueue{
		allCold:   typ == verbs.QPTypeUD || typ == verbs.QPTypeXRCSend,
		most:      int32(cap.MaxSendWR),
		maxSGE:    cap.MaxSendSGE,
		maxInline: int32(cap.MaxInlineData),
		freed:     new(atomic.Uint64),
		nextSeq:   firstSeq,
	}
	sq.make(queue.FirstPlaces(cap.MaxSendWR))
	return sq
}

// make makes the ring, of n places.
func (sq *sendQueue) make(n int) {
	sq.wqes = make([]sendWQE, n)
	sq.sges = make([]verbs.SGE, n*sq.maxSGE)
	sq.inline = make([]byte, n*int(sq.maxInline))
	sq.cold = nil
}

// grow makes a ring that is twice as large. Work requests in the queue keep their part of the smaller one: their
// SGEs, inline data and coldWQE.
func (sq *sendQueue) grow() {
	old := *sq
	sq.make(2 * len(old.wqes))
	for place := sq.freed.Load(); place != sq.tail; place++ {
		*sq.at(place) = *old.at(place)
	}
}

func (sq *sendQueue) at(place uint64) *sendWQE { return &sq.wqes[place&uint64(len(sq.wqes)-1)] }

// full returns why there is no room for one more, or nil if there is room.
func (sq *sendQueue) full() error {
	if sq.tail-sq.freed.Load() < uint64(len(sq.wqes)) {
		return nil
	}
	return sq.makeRoom()
}

// makeRoom is full where the ring has no room as it is. A function of its own lets the compiler inline full.
func (sq *sendQueue) makeRoom() error {
	if len(sq.wqes) < int(sq.most) {
		sq.grow()
		return nil
	}
	n, freed := len(sq.wqes), sq.freed.Load()
	if sq.lastSignaled <= freed {
		return verbs.Errorf(verbs.ErrQueueFull,
			"the send queue is full: all %d work requests in it are unsignaled, so no completion can free them; "+
				"set SendSignaled on at least one work request in %d and poll its completion", n, n)
	}
	return verbs.Errorf(verbs.ErrQueueFull,
		"the send queue is full: %d work requests are in it (max_send_wr), of which %d are done; "+
			"poll the send CQ, which frees a signaled work request's place and all before it", n, sq.head-freed)
}

// push copies wr into the ring. There must be room.
func (sq *sendQueue) push(wr *verbs.SendWR, mtu uint32) *sendWQE {
	place := sq.tail & uint64(len(sq.wqes)-1)
	w := &sq.wqes[place]
	w.id, w.op, w.flags, w.imm, w.remote = wr.ID, wr.Op, wr.Flags, wr.Imm, wr.Remote
	w.seq, w.message, w.split, w.mark, w.executed = sq.nextSeq, sq.messages, false, 0, false
	w.invalidate, w.fault = wr.InvalidateRKey, nil
	if w.cold != nil {
		*w.cold, w.cold = coldWQE{}, nil
	}
	if coldOps>>wr.Op&1 != 0 || sq.allCold {
		sq.copyCold(w, place, wr)
	}
	if wr.InlineData != nil {
		w.length, w.sg = uint32(len(wr.InlineData)), nil
		if wr.Op == verbs.OpAtomicWrite {
			w.inline = w.cold.word[:]
		} else {
			w.inline = sq.inlineSpace(place, w.length)
		}
		copy(w.inline, wr.InlineData)
	} else {
		w.length, w.inline = 0, nil
		w.sg = sq.sges[int(place)*sq.maxSGE:][:len(wr.SGList):sq.maxSGE]
		for i := range wr.SGList {
			w.sg[i] = wr.SGList[i]
			w.length += w.sg[i].Length
		}
	}
	w.packets = packetsFor(w.length, mtu)
	if w.isOnePacket() {
		w.packets = 1
	}
	w.simple = w.packets == 1 && simpleOps>>wr.Op&1 != 0 && w.flags&verbs.SendFence == 0
	if w.isLocal() {
		w.packets = 0
		sq.tail++
		return w
	}
	sq.messages++
	if w.op == verbs.OpRDMARead {
		sq.messages += (w.packets - 1) / readChunk
	}
	sq.nextSeq += w.packets
	sq.tail++
	return w
}

// unpush takes back w, which was pushed last, and is neither a READ nor local.
func (sq *sendQueue) unpush(w *sendWQE) {
	sq.tail--
	sq.nextSeq, sq.messages = w.seq, w.message
}

// simpleOps are the operations of simple work requests, and coldOps those with a coldWQE.
const (
	simpleOps = 1<<verbs.OpRDMAWrite | 1<<verbs.OpRDMAWriteWithImm | 1<<verbs.OpSend | 1<<verbs.OpSendWithImm | 1<<verbs.OpRDMARead | 1<<verbs.OpAtomicCmpSwap |
		1<<verbs.OpAtomicFetchAdd
	coldOps = 1<<verbs.OpAtomicCmpSwap | 1<<verbs.OpAtomicFetchAdd | 1<<verbs.OpBindMW | 1<<verbs.OpFlush | 1<<verbs.OpAtomicWrite
)

// copyCold copies the cold fields of a work request to the coldWQE of w, which is at place.
func (sq *sendQueue) copyCold(w *sendWQE, place uint64, wr *verbs.SendWR) {
	if sq.cold == nil {
		sq.cold = make([]coldWQE, len(sq.wqes))
	}
	r := &sq.cold[place]
	w.cold = r
	r.compareAdd, r.swap, r.destQPN, r.qkey, r.flush, r.srqn = wr.CompareAdd, wr.Swap, wr.RemoteQPN, wr.RemoteQKey, wr.Flush, wr.RemoteSRQN
	if wr.Bind != nil {
		r.bind = *wr.Bind // the program may reuse wr.Bind once the post is done
		if w.op == verbs.OpBindMW {
			mem.Promise(&r.bind)
		}
	}
	if wr.AH != nil {
		r.ah = wr.AH.Provider()
	}
}

func (sq *sendQueue) inlineSpace(place uint64, n uint32) []byte {
	return sq.inline[int(place)*int(sq.maxInline):][:n:n]
}

// packetsFor returns how many packets a message takes. An empty one takes one as well.
func packetsFor(length, mtu uint32) uint64 {
	if length <= mtu { // most messages, and a division is slow
		return 1
	}
	return (uint64(length) + uint64(mtu) - 1) / uint64(mtu)
}
