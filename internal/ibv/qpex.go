//go:build linux && (amd64 || arm64)

package ibv

import "syscall"

// SendOps are operations of a QP that ibv_post_send does not have: flags of enum ibv_qp_create_send_ops_flags.
type SendOps uint64

// The operations.
const (
	WithFlush       SendOps = 1 << 11 // IBV_QP_EX_WITH_FLUSH, since rdma-core 45
	WithAtomicWrite SendOps = 1 << 12 // IBV_QP_EX_WITH_ATOMIC_WRITE, since 44

	// withPosted are the operations of an RC QP that ibv_post_send has. A driver makes the places of a queue as large as the
	// operations need that it is told of.
	withPosted SendOps = 1<<10 - 1
)

// Bits of comp_mask of ibv_qp_init_attr_ex.
const (
	initAttrPD      = 1 << 0
	initAttrXRCD    = 1 << 1
	initAttrSendOps = 1 << 6
)

// QPEx is the address by which a QP's own functions know it.
type QPEx Ref[qpEx]

// CreateQPEx is CreateQP for an RC QP that has more operations than ibv_post_send. A driver that lacks one of them makes no QP: so
// ibv_qp_ex has the functions of those that it was made with, however old the library is.
func (l *Lib) CreateQPEx(p Ref[PD], attr *QPInitAttr, ops SendOps) (q Ref[QP], ex QPEx, err error) {
	c := p.P().context
	err = once(func(s *scratch) error {
		a := put(s, qpInitAttrEx{sendCQ: attr.SendCQ, recvCQ: attr.RecvCQ, srq: attr.SRQ, cap: attr.Cap, qpType: attr.QPType, sqSigAll: attr.SQSigAll,
			compMask: initAttrPD | initAttrSendOps, pd: p, sendOpsFlags: uint64(withPosted | ops)})
		if q, err = pointer[QP](s, extended(c, "ibv_create_qp_ex", toCreateQPEx), c.at, a.at); err != nil {
			return err
		}
		attr.Cap = a.P().cap
		if ex.at, _ = s.call(l.qpToQPEx, q.at); ex.at == 0 {
			_ = s.status(l.destroyQP, q.at) // the first error is the one to tell
			return &Error{l.qpToQPEx.name, syscall.EOPNOTSUPP}
		}
		return nil
	})
	return q, ex, err
}

// builder is memory for one work request that is made by functions of the QP: ibv_wr_start, the work request, ibv_wr_complete. They
// are one call of C, since the driver may hold a lock of the thread's from the first to the last.
type builder struct {
	ex    *qpEx
	at    uintptr
	chain []frame
}

// chainLength is how many calls make a work request.
const chainLength = 3

// newBuilder has memory for a builder, which is zeroed.
func newBuilder(ex QPEx, chain []frame) builder {
	b := builder{Ref[qpEx](ex).P(), ex.at, chain}
	for i, fn := range []uintptr{b.ex.wrStart, 0, b.ex.wrComplete} {
		chain[i].fn, chain[i].args[0] = fn, b.at
		if i > 0 {
			chain[i-1].next = first(chain[i:])
		}
	}
	return b
}

// post posts one work request, which fn makes with arguments behind the QP.
func (b *builder) post(fn uintptr, id uint64, flags uint32, args [5]uintptr) error {
	b.ex.wrID, b.ex.wrFlags = id, flags
	b.chain[1].fn = fn
	copy(b.chain[1].args[1:], args[:])
	b.chain[0].carryOut()
	if r := int32(b.chain[chainLength-1].ret); r != 0 {
		return &Error{"ibv_wr_complete", errnoOf(r)}
	}
	return nil
}

// Flush posts a FLUSH of n bytes from an address of the peer's on. The QP was made WithFlush.
func (s *SendQueue) Flush(id uint64, flags, rkey uint32, addr, n uint64, placement, selectivity uint8) error {
	return s.builder.post(s.builder.ex.wrFlush, id, flags, [5]uintptr{uintptr(rkey), uintptr(addr), uintptr(n), uintptr(placement), uintptr(selectivity)})
}

// AtomicWrite posts an ATOMIC WRITE of the first 8 bytes of Inline. The QP was made WithAtomicWrite.
func (s *SendQueue) AtomicWrite(id uint64, flags, rkey uint32, addr uint64) error {
	return s.builder.post(s.builder.ex.wrAtomicWrite, id, flags, [5]uintptr{uintptr(rkey), uintptr(addr), base(s.Inline)})
}
