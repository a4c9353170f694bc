package iwarp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"github.com/adverb-rdma/adverb/internal/mem"
	"github.com/adverb-rdma/adverb/internal/mpa"
	"github.com/adverb-rdma/adverb/verbs"
)

const (
	// segmentData is how many bytes of payload a segment has at most: with the larger header less than
	// an FPDU takes, and divisible by a cache line. RFC 5044 would have FPDUs fit TCP segments.
	// Receivers that place segments out of order need that, and a socket cannot provide it.
	segmentData = (mpa.MaxULPDU - untaggedSize) &^ 63

	// markedData is segmentData where the peer wants markers.
	markedData = (mpa.MaxMarkedULPDU - untaggedSize) &^ 63

	// maxCut is how many FPDUs are cut ahead of the stream.
	maxCut = 32

	// maxPrefix is the longest beginning of an FPDU before its payload.
	maxPrefix = mpa.LengthSize + untaggedSize + atomicRequestSize + 4
)

// cut is an FPDU on its way out.
type cut struct {
	prefix  [maxPrefix]byte // up to the payload
	n       uint8
	trailer uint8  // bytes
	wqe     uint64 // place of the work request that has the payload
	own     bool   // it is one of this end's: wqe
	last    bool   // it ends the message
	answers bool   // it is of an answer: answer
	answer  uint64
	off     uint32 // payload: of the work request's data, or of the READ's
	size    uint32
	written uint32 // bytes of it that the stream has taken
	staged  []byte // with CRCs or markers: all of it

	marks   mpa.Marks // where it begins, if there are markers
	markers uint16    // bytes
}

// plain returns the size without markers.
func (c *cut) plain() uint32 { return uint32(c.n) + c.size + uint32(c.trailer) }

func (c *cut) total() uint32 { return c.plain() + uint32(c.markers) }

// answer is a READ or an atomic of the peer that is to be answered.
type answer struct {
	read     ReadReq
	atomic   AtomicReq
	isAtomic bool
	cut      uint32 // bytes of a READ that are cut
	original uint64 // of an atomic, once it is executed
	executed bool
}

// sender cuts work requests and answers into FPDUs. Messages go one after the other; those of this end
// and answers alternate.
type sender struct {
	waits    bool // for the peer to speak first
	began    bool // something is cut
	asked    bool // the question before the end is cut: see asks
	rtr      mpa.RTR
	msn      [numQueues]uint32
	off      uint32 // of the work request under way
	answered bool   // the last message was an answer
	counts   bool   // the peer counts bytes of a WRITE that is done, and would take them for the next immediate data's
	// A ring of answers, made when it is needed first. Those before answerCur are cut, and those before
	// answerTail are to be.
	answers                           []answer
	answerHead, answerCur, answerTail uint64
	term                              *TermMsg
	ended                             bool // the Terminate message is cut, and nothing follows

	cuts  []cut // a ring, made when it is needed first
	first int
	count int

	marked bool      // the peer wants markers
	marks  mpa.Marks // where the next FPDU begins
}

func newSender(t mpa.Terms) sender {
	s := sender{waits: !t.Initiator, marked: t.MarkersOut}
	for i := range s.msn {
		s.msn[i] = 1
	}
	if t.Initiator {
		s.rtr = t.RTR
	}
	return s
}

// abandon drops all work requests that are not cut, and all FPDUs of which the stream has no part.
func (s *sender) abandon() {
	s.answerCur, s.off, s.rtr = s.answerTail, 0, 0
	if s.count > 0 {
		c := &s.cuts[s.first]
		if c.written > 0 && c.staged == nil {
			s.ended = true // the stream ends inside an FPDU: its memory is the program's again
			s.count = 0
			return
		}
		keep := 1
		if c.written == 0 {
			keep = 0
		}
		if s.count > keep {
			s.marks = s.cuts[(s.first+keep)&(maxCut-1)].marks
		}
		s.count = keep
	}
}

// data returns how many bytes of payload a segment has at most.
func (s *sender) data() uint32 {
	if s.marked {
		return markedData
	}
	return segmentData
}

// ask adds an answer that is due. It returns false if the peer asks for more than was agreed on.
func (s *sender) ask(a answer, most int) bool {
	if s.answerTail-s.answerHead >= uint64(most) {
		return false
	}
	if s.answers == nil {
		s.answers = make([]answer, 1<<bits.Len(uint(most-1)))
	}
	*s.answerAt(s.answerTail) = a
	s.answerTail++
	return true
}

func (s *sender) answerAt(i uint64) *answer { return &s.answers[i&uint64(len(s.answers)-1)] }

// terminate has the message sent as the last one.
func (s *sender) terminate(m *TermMsg) {
	if !s.ended && s.term == nil {
		s.term = m
		s.waits = false
	}
}

// Finished reports whether nothing will be written any more, so that the stream can be shut down.
func (q *QP) Finished() bool {
	switch q.attr.State {
	case verbs.QPStateErr:
		return q.tx.count == 0 && (q.tx.ended || q.tx.term == nil)
	case verbs.QPStateSQD:
		return q.drained() && !q.asks() && (!q.rx.emptyRead || q.rx.dead)
	}
	return false
}

// HasOutput reports whether Fill may have something.
func (q *QP) HasOutput() bool {
	s := &q.tx
	return s.count > 0 || s.term != nil && !s.ended || !s.waits && (s.rtr != 0 || s.answerCur != s.answerTail || q.sq.cur != q.sq.tail || q.asks())
}

// Fill puts up to about limit bytes into v, which is empty. After the write the caller calls Wrote.
func (q *QP) Fill(v *Vec, limit int) {
	s := &q.tx
	for i := range s.count {
		c := &s.cuts[(s.first+i)&(maxCut-1)]
		if err := q.emit(v, c); err != nil {
			if i > 0 { // the FPDUs that were cut before go first
				return
			}
			q.gone(c, err)
			break
		}
	}
	for v.Bytes < limit && s.count < maxCut && q.cutNext(v) {
	}
}

// gone ends the connection, since the payload of the next FPDU, which is cut, has gone. If the peer has a part of it,
// nothing can follow.
func (q *QP) gone(c *cut, err error) {
	err = fmt.Errorf("memory that was being sent has gone: %w", err)
	begun := c.written > 0
	switch {
	case c.answers && begun:
		q.Fail(err)
	case c.answers:
		q.reject(accessFault(err, true))
	default:
		q.failAt(c.wqe, verbs.WCLocProtErr, err)
		if !begun {
			q.tx.terminate(&TermMsg{Code: rdmapCatastrophic})
		}
	}
}

var zeros [8]byte

// emit adds the rest of an FPDU to v.
func (q *QP) emit(v *Vec, c *cut) error {
	skip := c.written
	if c.staged != nil {
		v.add(c.staged, &skip)
		return nil
	}
	var err error
	v.list = v.list[:0]
	var inline []byte
	if c.size > 0 {
		if inline, err = q.payload(v, c); err != nil {
			return err
		}
	}
	if q.terms.CRC || q.tx.marked || q.copies {
		c.staged = v.carve(int(c.total()))
		whole := c.staged
		if q.tx.marked {
			v.plain = slices.Grow(v.plain[:0], int(c.plain()))
			whole = v.plain[:c.plain()]
		}
		b := append(whole[:0], c.prefix[:c.n]...)
		b = append(b, inline...)
		for _, s := range v.list {
			n := len(s.Bytes())
			if err == nil {
				err = s.Fetch(b[len(b) : len(b)+n])
			}
			b = b[:len(b)+n]
			s.Release()
		}
		if err != nil {
			c.staged = nil
			return err
		}
		if q.terms.CRC || q.tx.marked {
			mpa.Seal(whole)
		} else {
			copy(whole[len(b):], zeros[:])
		}
		if q.tx.marked {
			at := c.marks
			at.Append(c.staged[:0], whole)
			mpa.SealMarked(c.staged)
		}
		v.add(c.staged, &skip)
		return nil
	}
	v.add(c.prefix[:c.n], &skip)
	if inline != nil {
		v.add(inline, &skip)
	}
	v.addList(&skip)
	v.add(zeros[:c.trailer], &skip)
	return nil
}

// payload opens the payload of an FPDU: v.list, or memory of the send queue.
func (q *QP) payload(v *Vec, c *cut) (inline []byte, err error) {
	if c.answers {
		r := &q.tx.answerAt(c.answer).read
		span, err := q.cfg.PD.Open(verbs.RKey(r.SrcSTag), q.cfg.QPN, r.SrcTO+uint64(c.off), uint64(c.size), verbs.AccessRemoteRead)
		if err == nil {
			v.list = append(v.list, span)
		}
		return nil, err
	}
	w := q.sq.at(c.wqe)
	if w.flags&verbs.SendInline != 0 {
		return w.inline[c.off : c.off+c.size], nil
	}
	v.list, err = q.cfg.PD.OpenList(v.list, w.sg, c.off, c.size, 0)
	return nil, err
}

// begin starts an FPDU with n bytes of payload, and extra ones before it that the caller appends to the
// result.
func (s *sender) begin(h *Header, extra, n int) (*cut, []byte) {
	if s.cuts == nil {
		s.cuts = make([]cut, maxCut)
	}
	c := &s.cuts[(s.first+s.count)&(maxCut-1)]
	*c = cut{size: uint32(n)}
	size := untaggedSize
	if h.Tagged {
		size = taggedSize
	}
	size += extra + n
	c.trailer = uint8(mpa.TrailerSize(size))
	b := mpa.AppendLength(c.prefix[:0], size)
	return c, h.AppendTo(b)
}

// commit adds the FPDU to v and to the ring. With an error neither has it.
func (q *QP) commit(v *Vec, c *cut, prefix []byte) error {
	c.n = uint8(len(prefix))
	s := &q.tx
	after := s.marks
	if s.marked {
		n := int(c.plain())
		c.marks, c.markers = s.marks, uint16(s.marks.Size(n)-n)
		after.Skip(n)
	}
	if err := q.emit(v, c); err != nil {
		return err
	}
	s.marks, s.began = after, true
	s.count++
	return nil
}

// cutNext cuts the next FPDU. It returns false if none may go now.
func (q *QP) cutNext(v *Vec) bool {
	s := &q.tx
	switch {
	case s.ended:
		return false
	case s.term != nil:
		h := Header{Last: true, Op: Terminate, QN: queueTerminate, MSN: s.msn[queueTerminate]}
		body := s.term.AppendTo(nil)
		c, b := s.begin(&h, len(body), 0)
		s.ended = true
		q.TerminatesSent++
		return q.commit(v, c, append(b, body...)) == nil
	case q.attr.State != verbs.QPStateRTS && q.attr.State != verbs.QPStateSQD, s.waits:
		return false
	case s.rtr != 0 && s.off == 0:
		return q.cutRTR(v)
	}
	if s.answerCur != s.answerTail && (s.answerAt(s.answerCur).cut > 0 || s.off == 0 && (!s.answered || !q.mayCut())) {
		if q.attr.State == verbs.QPStateErr { // by a local operation, and there is nothing to answer any more
			return false
		}
		return q.cutAnswer(v)
	}
	if q.asks() {
		s.asked, s.rtr = true, mpa.RTRRead
		return q.cutRTR(v)
	}
	return q.cutRequest(v)
}

// cutRTR cuts the empty message that tells the responder that this end is ready: RFC 6581. Others like that wake a peer,
// and ask one.
func (q *QP) cutRTR(v *Vec) bool {
	s := &q.tx
	rtr := s.rtr
	s.rtr = 0
	var c *cut
	var b []byte
	switch rtr {
	case mpa.RTRRead:
		h := Header{Last: true, Op: ReadRequest, QN: queueRequest, MSN: s.msn[queueRequest]}
		s.msn[queueRequest]++
		q.rx.emptyRead = true
		c, b = s.begin(&h, readRequestSize, 0)
		b = (&ReadReq{}).AppendTo(b)
	case mpa.RTRFPDU:
		c, b = s.begin(&Header{}, 0, 0)
		c.trailer = uint8(mpa.TrailerSize(0))
		b = mpa.AppendLength(b[:0], 0)
	default:
		c, b = s.begin(&Header{Tagged: true, Last: true, Op: Write}, 0, 0)
	}
	return q.commit(v, c, b) == nil
}

// mayCut reports whether a work request of this end may go now. Local operations that come first are
// carried out.
func (q *QP) mayCut() bool {
	for q.sq.cur != q.sq.tail {
		if q.attr.State == verbs.QPStateSQD && q.sq.cur >= q.sq.limit && q.tx.off == 0 {
			return false
		}
		w := q.sq.at(q.sq.cur)
		switch {
		case w.flags&verbs.SendFence != 0 && q.sq.reading > 0 && q.tx.off == 0:
			return false
		case w.hasResponse():
			return q.terms.ORD == 0 || q.sq.reading < q.terms.ORD
		case !w.isLocal():
			return true
		case q.sq.head != q.sq.cur: // it takes effect once all that was posted before is done
			return false
		}
		if err := q.carryOut(w); err != nil {
			q.sq.cur++
			q.failOldest(verbs.WCMWBindErr, err)
			return false
		}
		w.done = true
		q.sq.cur++
		q.completeDone()
	}
	return false
}

func (q *QP) carryOut(w *sendWQE) error {
	if w.op == verbs.OpBindMW {
		return mem.Bind(&w.bind, q.cfg.QPN)
	}
	return q.cfg.PD.Invalidate(w.invalidate, q.cfg.QPN)
}

// cutRequest cuts the next FPDU of this end's work requests.
func (q *QP) cutRequest(v *Vec) bool {
	s := &q.tx
	if !q.mayCut() {
		return false
	}
	w := q.sq.at(q.sq.cur)
	var c *cut
	var b []byte
	n := min(w.length-s.off, s.data())
	last := s.off+n == w.length
	switch w.op {
	case verbs.OpRDMARead, verbs.OpAtomicCmpSwap, verbs.OpAtomicFetchAdd:
		if q.terms.ORD == 0 {
			if s.count > 0 || q.sq.head != q.sq.cur { // that goes first, and completes
				return false
			}
			q.sq.cur++
			q.failAt(q.sq.cur-1, verbs.WCLocQPOpErr, fmt.Errorf("the connection allows no READ and no atomic: its initiator depth, or the peer's responder resources, are 0"))
			return false
		}
		n, last = 0, true
		c, b = q.beginRequest(w)
	case verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm:
		// Where the WRITE has no bytes, an empty one goes first if the peer would count those of the WRITE before.
		if w.op == verbs.OpRDMAWriteWithImm && s.off == w.length && (s.off > 0 || !s.counts) {
			c, b, n, last = s.beginImm(w), nil, 0, true // the data have gone
			b = c.prefix[:c.n]
			break
		}
		h := Header{Tagged: true, Last: last, Op: Write, STag: uint32(w.remote.RKey), TO: w.remote.VA + uint64(s.off)}
		c, b = s.begin(&h, 0, int(n))
		last = last && w.op == verbs.OpRDMAWrite
	default:
		h := Header{Last: last, Op: Send, QN: queueSend, MSN: s.msn[queueSend], MO: s.off}
		if w.op == verbs.OpSendWithInv {
			h.Op, h.STag = SendInvalidate, uint32(w.invalidate)
		}
		if w.flags&verbs.SendSolicited != 0 {
			h.Op += SendSolicited - Send
		}
		c, b = s.begin(&h, 0, int(n))
	}
	c.own, c.wqe, c.off, c.size, c.last = true, q.sq.cur, s.off, n, last
	if err := q.commit(v, c, b); err != nil {
		// The FPDUs that were cut before go first, and complete.
		if s.count == 0 && q.sq.head == q.sq.cur {
			q.sq.cur++
			q.failOldest(verbs.WCLocProtErr, err)
			s.terminate(&TermMsg{Code: rdmapCatastrophic})
			return q.cutNext(v)
		}
		return false
	}
	s.off += n
	if w.op == verbs.OpRDMAWrite || w.op == verbs.OpRDMAWriteWithImm {
		s.counts = n > 0
	}
	if !last {
		return true
	}
	s.off, s.answered = 0, false
	q.sq.cur++
	switch {
	case w.hasResponse():
		s.msn[queueRequest]++
		q.sq.reading++
	case w.op != verbs.OpRDMAWrite:
		s.msn[queueSend]++
	}
	return true
}

// failAt fails the work request at a place, once those before it are flushed.
func (q *QP) failAt(place uint64, status verbs.WCStatus, cause error) {
	for q.sq.head < place {
		q.completeSend(verbs.WCFlushErr, nil)
	}
	q.failOldest(status, cause)
}

// beginRequest starts a READ or atomic request.
func (q *QP) beginRequest(w *sendWQE) (*cut, []byte) {
	s := &q.tx
	w.msn = s.msn[queueRequest]
	h := Header{Last: true, Op: ReadRequest, QN: queueRequest, MSN: w.msn}
	if w.op == verbs.OpRDMARead {
		r := ReadReq{Size: w.length, SrcSTag: uint32(w.remote.RKey), SrcTO: w.remote.VA}
		r.SinkSTag, r.SinkTO = w.sink()
		c, b := s.begin(&h, readRequestSize, 0)
		return c, r.AppendTo(b)
	}
	h.Op = AtomicRequest
	r := AtomicReq{Op: FetchAdd, ID: w.msn, STag: uint32(w.remote.RKey), TO: w.remote.VA, Data: w.compareAdd}
	if w.op == verbs.OpAtomicCmpSwap {
		r.Op, r.Data, r.DataMask, r.Compare, r.CompareMask = CompareSwap, w.swap, ^uint64(0), w.compareAdd, ^uint64(0)
	}
	c, b := s.begin(&h, atomicRequestSize, 0)
	return c, r.AppendTo(b)
}

// sink names the memory of a READ to the peer, which repeats it in its answers. The names mean something
// to this end alone: several SGEs are as good as one.
func (w *sendWQE) sink() (stag uint32, to uint64) {
	if len(w.sg) == 0 {
		return 0, 0
	}
	return uint32(w.sg[0].LKey), w.sg[0].Addr
}

// beginImm starts the message of immediate data that follows a WRITE: RFC 7306.
func (s *sender) beginImm(w *sendWQE) *cut {
	h := Header{Last: true, Op: Immediate, QN: queueSend, MSN: s.msn[queueSend]}
	if w.flags&verbs.SendSolicited != 0 {
		h.Op = ImmediateSolicited
	}
	c, b := s.begin(&h, immediateSize, 0)
	b = binary.BigEndian.AppendUint32(b, 0)
	c.n = uint8(len(binary.BigEndian.AppendUint32(b, w.imm)))
	return c
}

// cutAnswer cuts the next FPDU of the oldest answer. Its memory is checked again: it may have gone.
func (q *QP) cutAnswer(v *Vec) bool {
	s := &q.tx
	a := s.answerAt(s.answerCur)
	var c *cut
	var b []byte
	var n uint32
	last := true
	if a.isAtomic {
		if err := q.execute(a); err != nil {
			if s.count > 0 { // the FPDUs that were cut before go first
				return false
			}
			q.reject(err)
			return q.cutNext(v)
		}
		h := Header{Last: true, Op: AtomicResponse, QN: queueAtomic, MSN: s.msn[queueAtomic]}
		c, b = s.begin(&h, atomicResponseSize, 0)
		b = (&AtomicResp{ID: a.atomic.ID, Original: a.original}).AppendTo(b)
	} else {
		n = min(a.read.Size-a.cut, s.data())
		last = a.cut+n == a.read.Size
		h := Header{Tagged: true, Last: last, Op: ReadResponse, STag: a.read.SinkSTag, TO: a.read.SinkTO + uint64(a.cut)}
		c, b = s.begin(&h, 0, int(n))
	}
	c.answers, c.answer, c.off, c.size, c.last = true, s.answerCur, a.cut, n, last
	if err := q.commit(v, c, b); err != nil {
		if s.count == 0 {
			q.reject(accessFault(err, true))
			return q.cutNext(v)
		}
		return false
	}
	a.cut += n
	if last {
		s.answered = true
		s.answerCur++
		if a.isAtomic {
			s.msn[queueAtomic]++
		}
	}
	return true
}

// execute carries out an atomic, once.
func (q *QP) execute(a *answer) error {
	if a.executed {
		return nil
	}
	r := &a.atomic
	span, err := q.cfg.PD.Open(verbs.RKey(r.STag), q.cfg.QPN, r.TO, 8, verbs.AccessRemoteAtomic)
	if err != nil {
		return accessFault(err, true)
	}
	defer span.Release()
	if r.Op == CompareSwap {
		a.original, err = span.CompareSwap(r.Compare, r.Data)
	} else {
		a.original, err = span.FetchAdd(r.Data)
	}
	switch {
	case errors.Is(err, mem.ErrFault):
		return accessFault(err, true)
	case err != nil:
		return &Fault{rdmapOperationUnknown, err}
	}
	a.executed = true
	return nil
}

// Wrote takes note that the stream has taken n bytes of v, and empties v.
func (q *QP) Wrote(v *Vec, n int) {
	v.release()
	s := &q.tx
	left := uint32(n)
	for s.count > 0 {
		c := &s.cuts[s.first]
		rest := c.total() - c.written
		if left < rest {
			c.written += left
			break
		}
		left -= rest
		s.first = (s.first + 1) & (maxCut - 1)
		s.count--
		q.FPDUsSent++
		q.BytesSent += uint64(c.size)
		c.staged = nil
		if !c.last {
			continue
		}
		switch {
		case c.own:
			if w := q.sq.at(c.wqe); !w.hasResponse() {
				w.done = true
			}
		case c.answers:
			s.answerHead++
		}
	}
	if s.count == 0 {
		v.unstage()
	}
	q.completeDone()
}

// Backlog reports whether FPDUs are cut that the stream has not taken: the Vec of the latest Fill is then
// that of the next one.
func (q *QP) Backlog() bool { return q.tx.count > 0 }
