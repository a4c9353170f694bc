package iwarp

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/adverb-rdma/adverb/internal/mem"
	"github.com/adverb-rdma/adverb/internal/mpa"
	"github.com/adverb-rdma/adverb/internal/queue"
	"github.com/adverb-rdma/adverb/verbs"
)

// receiver takes the stream apart, and carries out the peer's messages. With CRCs an FPDU is taken
// once all of it is there. Without them the payload is placed as it comes.
type receiver struct {
	dead bool // nothing of the stream counts any more
	msn  [numQueues]uint32

	// The segment under way, or the last one.
	h       Header
	known   bool     // h is of the segment that is being looked at
	read    *ReadReq // the request, if it is one: &asked
	asked   ReadReq
	segment uint16 // size of the ULPDU
	off     uint32 // payload that is placed
	left    uint32 // payload that is to come
	trailer int    // bytes to pass over behind it
	inside  bool

	recv   *queue.Recv // of the SEND under way
	length uint32      // of the SEND under way, so far

	wrote     uint32 // bytes of the WRITE under way, or of the last one: for immediate data
	writing   bool   // a WRITE is under way
	emptyRead bool   // the answer to a READ of ours that is none of the program's is due, before all others
	heard     bool   // an FPDU has come
	reading   uint64 // place of the READ whose response is due

	marks mpa.Marks // where the next FPDU begins, with markers
	plain []byte    // an FPDU without its markers
}

func newReceiver() receiver {
	r := receiver{}
	for i := range r.msn {
		r.msn[i] = 1
	}
	return r
}

// idle reports whether the stream may end here.
func (r *receiver) idle() bool { return !r.inside && r.recv == nil && !r.writing }

// Heard reports whether an FPDU of the peer has come.
func (q *QP) Heard() bool { return q.rx.heard }

// Receive takes bytes of the stream, and returns how many it has used. The caller keeps the rest, and
// hands the rest in again with the bytes that have come behind. With mpa.MaxMarkedFPDU bytes Receive
// always uses some.
func (q *QP) Receive(b []byte) (used int) {
	if q.terms.MarkersIn {
		return q.receiveMarked(b)
	}
	return q.receive(b)
}

// deaf reports whether the peer's bytes have no meaning any more.
func (q *QP) deaf() bool {
	return q.rx.dead || q.attr.State != verbs.QPStateRTS && q.attr.State != verbs.QPStateSQD
}

// receiveMarked is Receive with markers in the stream. FPDUs are taken as a whole.
func (q *QP) receiveMarked(b []byte) (used int) {
	r := &q.rx
	for {
		lead := r.marks.Lead()
		switch {
		case q.deaf():
			return used + len(b)
		case len(b) < lead+mpa.LengthSize:
			return used
		}
		size := mpa.Length(b[lead:])
		whole := r.marks.Size(mpa.LengthSize + size + mpa.TrailerSize(size))
		if len(b) < whole {
			return used
		}
		ok := !q.terms.CRC || q.verify(b[:whole])
		if ok {
			if r.plain, ok = r.marks.Strip(r.plain[:0], b[:whole]); !ok {
				q.heard()
				r.known = false
				q.reject(fault(mpaFrame, "a marker and the length of an FPDU do not agree on where the FPDU begins"))
			}
		}
		if ok {
			q.receive(r.plain)
		}
		used += whole
		b = b[whole:]
	}
}

// verify checks the CRC of an FPDU. If it is wrong, the connection ends.
func (q *QP) verify(fpdu []byte) bool {
	if mpa.Verify(fpdu) {
		return true
	}
	q.CRCErrors++
	q.heard()
	q.rx.known = false
	q.reject(fault(mpaCRC, "the CRC of an FPDU of %d bytes is wrong: something on the way has changed it", len(fpdu)))
	return false
}

// receive takes bytes without markers.
func (q *QP) receive(b []byte) (used int) {
	r := &q.rx
	for {
		if q.deaf() {
			return used + len(b)
		}
		n := 0
		if r.inside {
			n = q.proceed(b)
		} else if n = q.begin(b); n == 0 {
			return used
		}
		used += n
		b = b[n:]
		if len(b) == 0 {
			return used
		}
	}
}

// begin takes the beginning of an FPDU, or all of it. It returns 0 while bytes are missing.
func (q *QP) begin(b []byte) int {
	r := &q.rx
	if len(b) < mpa.LengthSize+2 {
		return 0
	}
	size := mpa.Length(b)
	whole := mpa.LengthSize + size + mpa.TrailerSize(size)
	if q.terms.CRC && !q.terms.MarkersIn {
		if len(b) < whole {
			return 0
		}
		if !q.verify(b[:whole]) {
			return len(b)
		}
	}
	ulpdu := b[mpa.LengthSize:]
	if size == 0 {
		if len(b) < whole {
			return 0
		}
		if r.heard || q.terms.Initiator {
			q.reject(fault(mpaFrame, "an empty FPDU in the midst of the stream"))
			return len(b)
		}
		q.heard()
		return whole
	}
	header := min(headerSize(ulpdu[0]), size)
	if len(ulpdu) < header {
		return 0
	}
	h, n, err := DecodeHeader(ulpdu[:header])
	r.known, r.read = false, nil
	if err != nil {
		q.heard()
		q.reject(err)
		return len(b)
	}
	r.h, r.known, r.segment = h, true, uint16(size)
	if !h.Op.isSend() && !h.Tagged { // a small message of its own, which is taken as a whole
		if len(b) < whole {
			return 0
		}
		q.heard()
		if err := q.request(ulpdu[n:size]); err != nil {
			q.reject(err)
		}
		return whole
	}
	q.heard()
	r.off, r.left, r.trailer = 0, uint32(size-n), mpa.TrailerSize(size)
	r.inside = true
	if err := q.open(); err != nil {
		q.reject(err)
		return len(b)
	}
	return mpa.LengthSize + n
}

// heard takes note of an FPDU.
func (q *QP) heard() {
	q.FPDUsReceived++
	if !q.rx.heard {
		q.rx.heard, q.tx.waits = true, false
	}
}

// open looks at the header of a segment with payload, and where that is to go.
func (q *QP) open() error {
	r := &q.rx
	h := &r.h
	switch h.Op {
	case Write:
		return q.openWrite()
	case ReadResponse:
		return q.openResponse()
	}
	if err := q.checkUntagged(r.length); err != nil {
		return err
	}
	if r.recv == nil {
		if r.recv = q.cfg.Receives.Take(); r.recv == nil {
			return fault(untaggedNoBuffer, "a SEND came, and no receive was posted: iWARP does not wait for one")
		}
	}
	if r.left > r.recv.Length-r.length {
		got := r.length + r.left
		err := fault(untaggedTooLong, "the receive has %d bytes, and at least %d came", r.recv.Length, got)
		q.failRecv(verbs.WCLocLenErr, err)
		return err
	}
	return nil
}

// failRecv completes the receive of the message under way with an error.
func (q *QP) failRecv(status verbs.WCStatus, cause error) {
	r := q.rx.recv
	q.rx.recv = nil
	q.completeRecv(r, verbs.WC{Status: status, Op: verbs.WCRecv, Cause: cause}, true)
}

// checkUntagged checks queue, number and offset of an untagged segment.
func (q *QP) checkUntagged(offset uint32) error {
	h := &q.rx.h
	want := queueOf(h.Op)
	switch {
	case h.QN != want:
		return fault(untaggedQueue, "%v in queue %d: it belongs to queue %d", h.Op, h.QN, want)
	case h.MSN != q.rx.msn[want]:
		return fault(untaggedMSN, "message %d of queue %d: message %d is due", h.MSN, h.QN, q.rx.msn[want])
	case h.MO != offset:
		return fault(untaggedOffset, "offset %d in message %d of queue %d: %d is due", h.MO, h.MSN, h.QN, offset)
	}
	return nil
}

func (q *QP) openWrite() error {
	r := &q.rx
	if !r.writing {
		r.writing, r.wrote = true, 0
	}
	if r.left == 0 {
		return nil // RFC 5040: an empty WRITE names no memory
	}
	if q.attr.Access&verbs.AccessRemoteWrite == 0 {
		return &Fault{rdmapAccess, verbs.Errorf(verbs.ErrQPAccess, "RDMA Write, and the QP does not allow ACCESS_REMOTE_WRITE")}
	}
	if r.h.TO+uint64(r.left) < r.h.TO {
		return fault(taggedWrap, "RDMA Write of %d bytes at va %#x: beyond the end of all addresses", r.left, r.h.TO)
	}
	s, err := q.cfg.PD.Open(verbs.RKey(r.h.STag), q.cfg.QPN, r.h.TO, uint64(r.left), verbs.AccessRemoteWrite)
	if err != nil {
		return accessFault(err, false)
	}
	s.Release()
	return nil
}

// openResponse checks that a segment of a READ response is the one that is due.
func (q *QP) openResponse() error {
	r := &q.rx
	if r.emptyRead {
		if r.left != 0 || !r.h.Last {
			return fault(taggedBounds, "a response of %d bytes to a READ of none", r.left)
		}
		return nil
	}
	w := q.nextRead()
	if w == nil {
		return fault(rdmapOpcode, "an RDMA Read Response, and no READ is outstanding")
	}
	stag, to := w.sink()
	due := w.length - w.arrived
	switch {
	case r.h.STag != stag:
		return fault(taggedInvalidSTag, "an RDMA Read Response for STag %#08x: that of the READ is %#08x", r.h.STag, stag)
	case r.h.TO != to+uint64(w.arrived), r.left > due, r.h.Last != (r.left == due):
		return fault(taggedBounds, "an RDMA Read Response with %d bytes at offset %d, last %v: the READ of %d bytes has got %d", r.left, r.h.TO-to, r.h.Last, w.length, w.arrived)
	}
	return nil
}

// nextRead returns the oldest READ without its response, or nil.
func (q *QP) nextRead() *sendWQE {
	r := &q.rx
	for r.reading = max(r.reading, q.sq.head); r.reading < q.sq.cur; r.reading++ {
		if w := q.sq.at(r.reading); w.op == verbs.OpRDMARead && !w.done {
			return w
		}
	}
	return nil
}

// proceed takes payload and trailer of the segment under way.
func (q *QP) proceed(b []byte) (used int) {
	r := &q.rx
	if r.left > 0 {
		n := min(uint32(len(b)), r.left)
		if err := q.place(b[:n]); err != nil {
			q.reject(err)
			return len(b)
		}
		q.placed(n)
		used, b = int(n), b[n:]
	}
	if r.left == 0 {
		n := min(len(b), r.trailer)
		r.trailer -= n
		used += n
		if r.trailer == 0 {
			r.inside = false
			if err := q.deliver(); err != nil {
				q.reject(err)
			}
		}
	}
	return used
}

// placed takes note that n bytes of payload are in place.
func (q *QP) placed(n uint32) {
	r := &q.rx
	r.off += n
	r.left -= n
	q.BytesReceived += uint64(n)
	switch r.h.Op {
	case Write:
		r.wrote += n
	case ReadResponse:
		q.nextRead().arrived += n
	default:
		r.length += n
	}
}

// place copies payload to where it belongs.
func (q *QP) place(b []byte) error {
	r := &q.rx
	switch r.h.Op {
	case Write:
		s, err := q.cfg.PD.Open(verbs.RKey(r.h.STag), q.cfg.QPN, r.h.TO+uint64(r.off), uint64(len(b)), verbs.AccessRemoteWrite)
		if err != nil {
			return accessFault(err, false)
		}
		err = s.Place(b)
		s.Release()
		if err != nil {
			return accessFault(err, false)
		}
		return nil
	case ReadResponse:
		w := q.nextRead()
		return q.localFault(q.cfg.PD.Scatter(w.sg, w.arrived, b))
	}
	return q.localFault(r.recv.Place(r.length, b))
}

// localFault makes a Fault of an error of this end's memory.
func (q *QP) localFault(err error) error {
	if err == nil {
		return nil
	}
	if q.rx.recv != nil && q.rx.h.Op.isSend() {
		q.failRecv(verbs.WCLocProtErr, err)
	} else if w := q.nextRead(); w != nil {
		for q.sq.at(q.sq.head) != w {
			q.completeSend(verbs.WCFlushErr, nil)
		}
		q.completeSend(verbs.WCLocProtErr, err)
	}
	return &Fault{ddpCatastrophic, err}
}

// Room opens the registered memory where the next bytes of the stream belong, at least atLeast of them, and
// appends it to v.Bufs. It does nothing where the bytes must be looked at first. After the read the caller
// calls Filled, in any case.
func (q *QP) Room(v *Vec, atLeast int) {
	r := &q.rx
	if q.terms.CRC || q.terms.MarkersIn || q.copies || r.dead || !r.inside || int(r.left) < atLeast {
		return
	}
	var err error
	v.list = v.list[:0]
	switch r.h.Op {
	case Write:
		var s mem.Span
		s, err = q.cfg.PD.Open(verbs.RKey(r.h.STag), q.cfg.QPN, r.h.TO+uint64(r.off), uint64(r.left), verbs.AccessRemoteWrite)
		if err == nil {
			v.list = append(v.list, s)
		}
	case ReadResponse:
		w := q.nextRead()
		v.list, err = w.open(q, v.list, r.left)
	default:
		v.list, err = r.recv.PD.OpenList(v.list, r.recv.SGList, r.length, r.left, verbs.AccessLocalWrite)
	}
	if err != nil {
		return // Receive will find out
	}
	var skip uint32
	v.addList(&skip)
}

func (w *sendWQE) open(q *QP, spans []mem.Span, n uint32) ([]mem.Span, error) {
	return q.cfg.PD.OpenList(spans, w.sg, w.arrived, n, verbs.AccessLocalWrite)
}

// Filled takes note that the stream has put n bytes into the memory of Room, and empties v.
func (q *QP) Filled(v *Vec, n int) {
	v.release()
	if n > 0 {
		q.placed(uint32(n))
	}
}

// deliver ends a segment and, with its last one, a message.
func (q *QP) deliver() error {
	r := &q.rx
	h := &r.h
	if !h.Last {
		return nil
	}
	switch h.Op {
	case Write:
		r.writing = false
	case ReadResponse:
		if r.emptyRead {
			r.emptyRead = false
			return nil
		}
		q.nextRead().done = true
		q.sq.reading--
		q.completeDone()
	default:
		recv, wc := r.recv, verbs.WC{Op: verbs.WCRecv, ByteLen: r.length}
		r.recv, r.length = nil, 0
		r.msn[queueSend]++
		if h.Op.invalidates() {
			if err := q.cfg.PD.Invalidate(verbs.RKey(h.STag), q.cfg.QPN); err != nil {
				q.completeRecv(recv, verbs.WC{Status: verbs.WCRemInvReqErr, Op: verbs.WCRecv, Cause: err}, true)
				return &Fault{rdmapCannotInvalidate, err}
			}
			wc.Flags, wc.Imm = verbs.WCFlagWithInv, h.STag
		}
		q.completeRecv(recv, wc, h.Op.solicited())
	}
	return nil
}

// request takes a message that is one segment: all untagged ones but SENDs.
func (q *QP) request(body []byte) error {
	r := &q.rx
	h := &r.h
	if h.Op != Terminate {
		if err := q.checkUntagged(0); err != nil {
			return err
		}
		if !h.Last {
			return fault(ddpCatastrophic, "%v in more than one segment", h.Op)
		}
		r.msn[queueOf(h.Op)]++
	}
	switch h.Op {
	case ReadRequest:
		return q.readRequest(body)
	case AtomicRequest:
		return q.atomicRequest(body)
	case AtomicResponse:
		return q.atomicResponse(body)
	case Terminate:
		m, err := DecodeTermMsg(body)
		if err != nil {
			m.Code = rdmapGlobal
		}
		q.terminated(&m)
		return nil
	}
	if len(body) != immediateSize {
		return fault(ddpCatastrophic, "%v of %d bytes: it has %d", h.Op, len(body), immediateSize)
	}
	recv := q.cfg.Receives.Take()
	if recv == nil {
		return fault(untaggedNoBuffer, "immediate data came, and no receive was posted: iWARP does not wait for one")
	}
	wc := verbs.WC{Op: verbs.WCRecvRDMAWithImm, Flags: verbs.WCFlagWithImm, Imm: binary.BigEndian.Uint32(body[4:]), ByteLen: r.wrote}
	r.wrote = 0
	q.completeRecv(recv, wc, h.Op.solicited())
	return nil
}

func (q *QP) readRequest(body []byte) error {
	m, err := DecodeReadReq(body)
	if err != nil {
		return err
	}
	q.rx.asked = m
	q.rx.read = &q.rx.asked
	if m.Size > 0 {
		if err := q.checkRead(&m); err != nil {
			return err
		}
	}
	// The READ that says the peer is ready has no place among those that were agreed on.
	if !q.tx.ask(answer{read: m}, q.terms.IRD+1) {
		return fault(untaggedNoBuffer, "a READ request beyond the %d that this end answers at a time", q.terms.IRD)
	}
	return nil
}

// checkRead checks that the peer may read the bytes for which it asks.
func (q *QP) checkRead(m *ReadReq) error {
	if m.Size > verbs.MaxMessageSize {
		return fault(rdmapBounds, "a READ of %d bytes: at most 2^31", m.Size)
	}
	if q.attr.Access&verbs.AccessRemoteRead == 0 {
		return &Fault{rdmapAccess, verbs.Errorf(verbs.ErrQPAccess, "RDMA Read Request, and the QP does not allow ACCESS_REMOTE_READ")}
	}
	if m.SrcTO+uint64(m.Size) < m.SrcTO {
		return fault(rdmapWrap, "a READ of %d bytes at va %#x: beyond the end of all addresses", m.Size, m.SrcTO)
	}
	s, err := q.cfg.PD.Open(verbs.RKey(m.SrcSTag), q.cfg.QPN, m.SrcTO, uint64(m.Size), verbs.AccessRemoteRead)
	if err != nil {
		return accessFault(err, true)
	}
	s.Release()
	return nil
}

func (q *QP) atomicRequest(body []byte) error {
	m, err := DecodeAtomicReq(body)
	if err != nil {
		return err
	}
	plain := m.Op == FetchAdd && m.DataMask == 0 || m.Op == CompareSwap && m.DataMask == ^uint64(0) && m.CompareMask == ^uint64(0)
	switch {
	case q.attr.Access&verbs.AccessRemoteAtomic == 0:
		return &Fault{rdmapAccess, verbs.Errorf(verbs.ErrQPAccess, "Atomic Request, and the QP does not allow ACCESS_REMOTE_ATOMIC")}
	case !plain:
		return fault(rdmapOperationUnknown, "an atomic of operation %d with masks %#x and %#x: adverb has those of whole words", m.Op, m.DataMask, m.CompareMask)
	case m.TO%8 != 0:
		return fault(rdmapOperationUnknown, "an atomic at va %#x: it must be divisible by 8", m.TO)
	}
	// It is executed when its turn to be answered comes. Nothing that comes behind a bad one may be placed until then.
	span, err := q.cfg.PD.Open(verbs.RKey(m.STag), q.cfg.QPN, m.TO, 8, verbs.AccessRemoteAtomic)
	if err != nil {
		return accessFault(err, true)
	}
	span.Release()
	if !q.tx.ask(answer{atomic: m, isAtomic: true}, q.terms.IRD+1) {
		return fault(untaggedNoBuffer, "an atomic beyond the %d READs and atomics that this end answers at a time", q.terms.IRD)
	}
	return nil
}

func (q *QP) atomicResponse(body []byte) error {
	m, err := DecodeAtomicResp(body)
	if err != nil {
		return err
	}
	for place := q.sq.head; place < q.sq.cur; place++ {
		w := q.sq.at(place)
		if !w.isAtomic() || w.done || w.msn != m.ID {
			continue
		}
		var word [8]byte
		binary.NativeEndian.PutUint64(word[:], m.Original)
		if err := q.cfg.PD.Scatter(w.sg, 0, word[:]); err != nil {
			q.failAt(place, verbs.WCLocProtErr, err)
			return &Fault{ddpCatastrophic, err}
		}
		w.done = true
		q.sq.reading--
		q.completeDone()
		return nil
	}
	return fault(rdmapOpcode, "an Atomic Response to request %d, which is not outstanding", m.ID)
}

// accessFault makes a fault of why memory does not open, or cannot be accessed. RDMAP checks READs and atomics, and DDP,
// which knows no access rights, WRITEs.
func accessFault(err error, rdmap bool) *Fault {
	code := taggedInvalidSTag
	switch {
	case errors.Is(err, mem.ErrFault) && rdmap:
		return &Fault{rdmapCatastrophic, err}
	case errors.Is(err, mem.ErrFault):
		return &Fault{ddpCatastrophic, err}
	case errors.Is(err, mem.ErrAccess):
		return &Fault{rdmapAccess, err}
	case errors.Is(err, mem.ErrBounds):
		code = taggedBounds
	case errors.Is(err, mem.ErrDomain):
		code = taggedNotAssociated
	}
	if rdmap {
		code = map[Code]Code{taggedInvalidSTag: rdmapInvalidSTag, taggedBounds: rdmapBounds, taggedNotAssociated: rdmapNotAssociated}[code]
	}
	return &Fault{code, err}
}

// String describes the header for traces.
func (h *Header) String() string {
	last := ""
	if h.Last {
		last = " last"
	}
	if h.Tagged {
		return fmt.Sprintf("%v stag=%#08x to=%#x%s", h.Op, h.STag, h.TO, last)
	}
	return fmt.Sprintf("%v qn=%d msn=%d mo=%d%s", h.Op, h.QN, h.MSN, h.MO, last)
}
