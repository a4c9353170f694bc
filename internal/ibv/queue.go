//go:build linux && (amd64 || arm64)

package ibv

import (
	"fmt"
	"syscall"
	"unsafe"
)

// Batch is how many work requests one call posts.
const Batch = 16

// Most that we believe a driver of one work request. Cards have some dozens of SGEs, and some KiB of inline data.
const (
	mostSGEs   = 1 << 16
	mostInline = 1 << 24
)

// sgesOf is how many SGEs the memory of a queue holds whose work requests have up to most each.
func sgesOf(most int) (int, error) {
	if most > mostSGEs {
		return 0, fmt.Errorf("the driver says that a work request has up to %d SGEs: at most %d are believed", most, mostSGEs)
	}
	return max(most, 1) * 4, nil
}

// listOf is the list of the n SGEs from at on: C's null pointer where there are none.
func listOf(sges []SGE, at, n int) Ref[SGE] {
	if n == 0 {
		return Ref[SGE]{}
	}
	return first(sges[at:])
}

// SendQueue is memory in which C finds the work requests of a QP's send queue. It has one user at a time.
type SendQueue struct {
	WRs    []SendWR // Batch of them
	SGEs   []SGE    // at least what one work request has
	Inline []byte   // at least what one work request has

	block block
	frame *frame
	fn    uintptr
	qp    Ref[QP]
	bad   []Ref[SendWR]
	bind  []MWBind

	builder builder // of a QP that CreateQPEx has made
}

// leastInline is how many bytes Inline has at least: an ATOMIC WRITE's.
const leastInline = 8

// NewSendQueue returns the memory for the send queue of q, whose work requests have up to sges SGEs and inline bytes. ex is null
// for a QP that CreateQP has made.
func NewSendQueue(q Ref[QP], ex QPEx, sges, inline int) (*SendQueue, error) {
	n, err := sgesOf(sges)
	if err == nil && inline > mostInline {
		err = fmt.Errorf("the driver says that a work request has up to %d bytes of inline data: at most %d are believed", inline, mostInline)
	}
	if err != nil {
		return nil, err
	}
	b, err := take(1024 + Batch*int(unsafe.Sizeof(SendWR{})) + n*int(unsafe.Sizeof(SGE{})) + max(inline, leastInline))
	if err != nil {
		return nil, err
	}
	off := 0
	s := &SendQueue{block: b, qp: q, fn: q.P().context.P().ops.PostSend}
	s.frame = &cut[frame](b, &off, 1)[0]
	s.bad = cut[Ref[SendWR]](b, &off, 1)
	s.bind = cut[MWBind](b, &off, 1)
	if ex.at != 0 {
		s.builder = newBuilder(ex, cut[frame](b, &off, chainLength))
	}
	s.WRs = cut[SendWR](b, &off, Batch)
	s.SGEs = cut[SGE](b, &off, n)
	s.Inline = cut[byte](b, &off, len(b.bytes)-off)
	for i := range s.WRs[1:] {
		s.WRs[i].next = first(s.WRs[i+1:])
	}
	return s, nil
}

// Free gives the memory back.
func (s *SendQueue) Free() { s.block.give() }

// SetSGEs gives work request i the n SGEs from at on.
func (s *SendQueue) SetSGEs(i, at, n int) {
	w := &s.WRs[i]
	w.numSGE, w.sgList = int32(n), listOf(s.SGEs, at, n)
}

// SetAH says where the datagram goes.
func (w *SendWR) SetAH(a Ref[AH], qpn, qkey uint32) {
	w.RemoteAddr, w.Key = uint64(a.at), uint64(qkey)<<32|uint64(qpn)
}

// SetInline makes one SGE of the n inline bytes from at on.
func (s *SendQueue) SetInline(sge, at, n int) {
	s.SGEs[sge] = SGE{Addr: Base(s.Inline[at:]), Length: uint32(n)}
}

// Post posts the first n work requests, and returns how many of them are posted.
func (s *SendQueue) Post(n int) (posted int, err error) {
	last := &s.WRs[n-1]
	next := last.next
	last.next = Ref[SendWR]{}
	list := first(s.WRs)
	r := s.frame.call3(s.fn, s.qp.at, list.at, first(s.bad).at)
	last.next = next
	if r == 0 {
		return n, nil
	}
	return refused(s.bad[0].at, list.at, unsafe.Sizeof(SendWR{}), n), &Error{"ibv_post_send", errnoOf(r)}
}

// Bind binds a window of type 1.
func (s *SendQueue) Bind(m Ref[MW], bind MWBind) error {
	fn := s.qp.P().context.P().ops.BindMW
	if fn == 0 {
		return missing(function{name: "ibv_bind_mw"})
	}
	s.bind[0] = bind
	if r := s.frame.call3(fn, s.qp.at, m.at, first(s.bind).at); r != 0 {
		return &Error{"ibv_bind_mw", errnoOf(r)}
	}
	return nil
}

// errnoOf is the errno that a function of the table has returned. Some return -1, and mean that there is no memory.
func errnoOf(r int32) syscall.Errno {
	switch {
	case r == -1:
		return syscall.ENOMEM
	case r < 0:
		return syscall.Errno(-r)
	}
	return syscall.Errno(r)
}

// refused returns the place of the work request bad in a list of n, which is how many are posted.
func refused(bad, list, size uintptr, n int) int {
	if i := (bad - list) / size; bad >= list && i < uintptr(n) {
		return int(i)
	}
	return 0 // the driver has not said which
}

// RecvQueue is memory in which C finds the work requests of a receive queue. It has one user at a time.
type RecvQueue struct {
	WRs  []RecvWR // Batch of them
	SGEs []SGE    // at least what one work request has

	block block
	frame *frame
	call  string
	fn    uintptr
	queue uintptr
	bad   []Ref[RecvWR]
}

// NewRecvQueue returns the memory for the receive queue of q.
func NewRecvQueue(q Ref[QP], sges int) (*RecvQueue, error) {
	return newRecvQueue("ibv_post_recv", q.P().context.P().ops.PostRecv, q.at, sges)
}

// NewSRQQueue returns the memory for an SRQ.
func NewSRQQueue(q Ref[SRQ], sges int) (*RecvQueue, error) {
	return newRecvQueue("ibv_post_srq_recv", q.P().context.P().ops.PostSRQRecv, q.at, sges)
}

func newRecvQueue(call string, fn, queue uintptr, sges int) (*RecvQueue, error) {
	n, err := sgesOf(sges)
	if err != nil {
		return nil, err
	}
	b, err := take(256 + Batch*int(unsafe.Sizeof(RecvWR{})) + n*int(unsafe.Sizeof(SGE{})))
	if err != nil {
		return nil, err
	}
	off := 0
	r := &RecvQueue{block: b, call: call, fn: fn, queue: queue}
	r.frame = &cut[frame](b, &off, 1)[0]
	r.bad = cut[Ref[RecvWR]](b, &off, 1)
	r.WRs = cut[RecvWR](b, &off, Batch)
	r.SGEs = cut[SGE](b, &off, n)
	for i := range r.WRs[1:] {
		r.WRs[i].next = first(r.WRs[i+1:])
	}
	return r, nil
}

// Free gives the memory back.
func (r *RecvQueue) Free() { r.block.give() }

// SetSGEs gives work request i the n SGEs from at on.
func (r *RecvQueue) SetSGEs(i, at, n int) {
	w := &r.WRs[i]
	w.numSGE, w.sgList = int32(n), listOf(r.SGEs, at, n)
}

// Post posts the first n work requests, and returns how many of them are posted.
func (r *RecvQueue) Post(n int) (posted int, err error) {
	last := &r.WRs[n-1]
	next := last.next
	last.next = Ref[RecvWR]{}
	list := first(r.WRs)
	e := r.frame.call3(r.fn, r.queue, list.at, first(r.bad).at)
	last.next = next
	if e == 0 {
		return n, nil
	}
	return refused(r.bad[0].at, list.at, unsafe.Sizeof(RecvWR{}), n), &Error{r.call, errnoOf(e)}
}
