//go:build linux

package uverbs

import (
	"sync"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/uapi"
	"github.com/adverb-rdma/adverb/verbs"
)

// cq is a completion queue of the program's. Its CQ of verbs hands completions to it.
type cq struct {
	c       *Context
	v       *verbs.CQ
	user    uint64   // the program's name for it
	channel *channel // or nil

	mu   sync.Mutex // while the ring is another
	ring *ring
}

// maxCQE is the most completions that a CQ may have. Linux's rxe has 32767, which is too few for libfabric's ofi_rxm
// unless FI_UNIVERSE_SIZE is set. Memory for completions is taken when they come.
const maxCQE = 1<<20 - 1

func (c *Context) newCQ(user uint64, cqe uint32, comp int32, vector uint32) (*cq, error) {
	if cqe == 0 || cqe > maxCQE || int(vector) >= max(1, c.attr.NumCompVectors) {
		return nil, unix.EINVAL
	}
	q := &cq{c: c, user: user}
	if comp >= 0 {
		if q.channel = c.channels[comp]; q.channel == nil {
			return nil, unix.EBADF
		}
	}
	if err := q.makeRing(int(cqe)); err != nil {
		return nil, err
	}
	var err error
	if q.v, err = c.dev.CreateCQ(q.ring.cap()); err != nil {
		q.ring.drop()
		return nil, err
	}
	p, ok := q.v.Provider().(verbs.ProviderCQSink)
	if !ok {
		q.destroy()
		return nil, unix.EOPNOTSUPP
	}
	p.SetSink(q)
	return q, nil
}

// makeRing makes the ring of a CQ that has none.
func (q *cq) makeRing(cqe int) (err error) {
	q.ring, err = newRing(q.c.area, cqe, uapi.WCSize)
	return err
}

// moveTo moves the completions that the program has not polled into another ring, and returns the old one. It reports
// false if they are too many.
func (q *cq) moveTo(r *ring) (old *ring, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := q.ring.unread()
	if n > r.cap() {
		return nil, false
	}
	for i := range n {
		place, _ := r.put()
		copy(place, q.ring.at(q.ring.own-uint32(n-i)))
		r.publish()
	}
	old, q.ring = q.ring, r
	return old, true
}

func (q *cq) destroy() {
	_ = q.v.Close()
	q.drop()
}

func (q *cq) drop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ring != nil {
		q.ring.drop()
		q.ring = nil
	}
}

// Complete implements verbs.CompletionSink. It is called with locks of verbs held.
func (q *cq) Complete(wc *verbs.WC, freed uint64) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ring == nil {
		return true
	}
	place, ok := q.ring.put()
	if !ok {
		return false
	}
	w := uapi.WC{WRID: wc.ID, Status: uint32(wc.Status), Opcode: uint32(wc.Op), VendorErr: wc.VendorErr, ByteLen: wc.ByteLen,
		QPNum: uint32(wc.QPN), SrcQP: uint32(wc.SrcQPN), WCFlags: uint32(wc.Flags), PKeyIndex: wc.PKeyIndex, SLID: wc.SLID,
		SL: wc.SL, DLIDPathBits: wc.DLIDPathBits, PortNum: 1}
	switch {
	case wc.Flags&verbs.WCFlagWithImm != 0:
		w.Ex = [4]byte{byte(wc.Imm >> 24), byte(wc.Imm >> 16), byte(wc.Imm >> 8), byte(wc.Imm)}
	case wc.Flags&verbs.WCFlagWithInv != 0:
		w.Ex = [4]byte(uapi.Append(nil, wc.Imm))
	}
	w.Encode(place)
	if wc.Op&verbs.WCRecv == 0 && wc.QP != nil {
		if of, ok := wc.QP.Context().(*qp); ok {
			of.free(freed)
		}
	}
	q.ring.publish() // after the places: a program that has seen a completion may post as many
	return true
}

// Event implements verbs.CompletionSink: the event that the program has asked for.
func (q *cq) Event() {
	if q.channel != nil {
		q.channel.send(uapi.Append(nil, uapi.CompEventDesc{CQHandle: q.user}))
	}
}

func (c *Context) createCompChannel(k *call) error {
	var resp uapi.CreateCompChannelResp
	if err := k.needs(resp, nil); err != nil {
		return err
	}
	ch, fd, err := c.newChannel(k, 8)
	if err != nil {
		return err
	}
	if old := c.channels[fd]; old != nil {
		old.close() // the program has closed it
	}
	c.channels[fd] = ch
	resp.FD = uint32(fd)
	return k.out(resp, nil)
}

// newChannel makes a channel, and gives the program its descriptor.
func (c *Context) newChannel(k *call, size int) (ch *channel, fd int32, err error) {
	ch, r, err := newChannel(size)
	if err != nil {
		return nil, 0, err
	}
	defer r.Close()
	n, err := k.Inject(r, true)
	if err != nil {
		ch.close()
		return nil, 0, err
	}
	return ch, int32(n), nil
}

func (c *Context) createCQ(k *call) error {
	var in uapi.CreateCQ
	if err := k.in(&in); err != nil {
		return err
	}
	return c.addCQ(k, in.UserHandle, in.CQE, in.CompChannel, in.CompVector, func(r uapi.CreateCQResp) any { return r })
}

func (c *Context) exCreateCQ(k *call) error {
	var in uapi.ExCreateCQ
	if err := k.inPrefix(24, &in); err != nil {
		return err
	}
	if in.CompMask != 0 || in.Reserved != 0 || in.Flags&^uapi.CQIgnoreOverrun != 0 {
		return unix.EOPNOTSUPP
	}
	return c.addCQ(k, in.UserHandle, in.CQE, in.CompChannel, in.CompVector, func(r uapi.CreateCQResp) any {
		return uapi.ExCreateCQResp{Base: r, ResponseLength: 16}
	})
}

// addCQ makes a CQ and answers with the structure that resp makes of the response.
func (c *Context) addCQ(k *call, user uint64, cqe uint32, comp int32, vector uint32, resp func(uapi.CreateCQResp) any) error {
	if err := k.needs(resp(uapi.CreateCQResp{}), uapi.RxeCreateCQResp{}); err != nil {
		return err
	}
	q, err := c.newCQ(user, cqe, comp, vector)
	if err != nil {
		return err
	}
	h := c.handle()
	if err := k.out(resp(uapi.CreateCQResp{CQHandle: h, CQE: uint32(q.ring.cap())}), uapi.RxeCreateCQResp{MI: q.ring.info()}); err != nil {
		q.destroy()
		return err
	}
	c.cqs[h] = q
	return nil
}

// resizeCQ moves the completions that the program has not polled into another ring.
func (c *Context) resizeCQ(k *call) error {
	var in uapi.ResizeCQ
	if err := k.in(&in); err != nil {
		return err
	}
	if err := k.needs(uapi.ResizeCQResp{}, uapi.RxeCreateCQResp{}); err != nil {
		return err
	}
	q, err := c.cqs.get(in.CQHandle)
	if err != nil {
		return err
	}
	if in.CQE == 0 || in.CQE > maxCQE {
		return unix.EINVAL
	}
	r, err := newRing(c.area, int(in.CQE), uapi.WCSize)
	if err != nil {
		return err
	}
	if err := q.v.Resize(r.cap()); err != nil {
		r.drop()
		return err
	}
	old, ok := q.moveTo(r)
	if !ok {
		r.drop()
		return unix.EINVAL
	}
	old.drop()
	return k.out(uapi.ResizeCQResp{CQE: uint32(r.cap())}, uapi.RxeCreateCQResp{MI: r.info()})
}

func (c *Context) reqNotifyCQ(k *call) error {
	var in uapi.ReqNotifyCQ
	if err := k.in(&in); err != nil {
		return err
	}
	q, err := c.cqs.get(in.CQHandle)
	if err != nil {
		return err
	}
	if q.channel != nil {
		q.channel.retry()
	}
	c.flushErrored()
	return q.v.Notify(in.SolicitedOnly != 0)
}

func (c *Context) destroyCQ(k *call) error {
	var in uapi.DestroyCQ
	if err := k.in(&in); err != nil {
		return err
	}
	if err := k.needs(uapi.DestroyCQResp{}, nil); err != nil {
		return err
	}
	q, err := c.cqs.get(in.CQHandle)
	if err != nil {
		return err
	}
	if err := q.v.Close(); err != nil {
		return err
	}
	q.drop()
	delete(c.cqs, in.CQHandle)
	resp := uapi.DestroyCQResp{AsyncEventsReported: c.async.forget(q.user)}
	if q.channel != nil {
		resp.CompEventsReported = q.channel.forget(q.user)
	}
	return k.out(resp, nil)
}
