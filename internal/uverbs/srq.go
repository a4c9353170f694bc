//go:build linux

package uverbs

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/uapi"
	"github.com/adverb-rdma/adverb/verbs"
)

// srq is a shared receive queue of the program's.
type srq struct {
	*receives
	v    *verbs.SRQ
	user uint64 // the program's name for it
	attr verbs.SRQAttr
}

func (c *Context) createSRQ(k *call) error {
	var in uapi.CreateSRQ
	if err := k.in(&in); err != nil {
		return err
	}
	return c.addSRQ(k, &uapi.CreateXSRQ{UserHandle: in.UserHandle, PDHandle: in.PDHandle, MaxWR: in.MaxWR, MaxSGE: in.MaxSGE, SRQLimit: in.SRQLimit})
}

func (c *Context) createXSRQ(k *call) error {
	var in uapi.CreateXSRQ
	if err := k.in(&in); err != nil {
		return err
	}
	const basic = 0 // IB_SRQT_BASIC
	if in.SRQType != basic {
		return unix.EOPNOTSUPP
	}
	return c.addSRQ(k, &in)
}

func (c *Context) addSRQ(k *call, in *uapi.CreateXSRQ) error {
	if err := k.needs(uapi.CreateSRQResp{}, uapi.RxeCreateSRQResp{}); err != nil {
		return err
	}
	if in.MaxWR == 0 || int64(in.MaxWR) > int64(c.attr.MaxSRQWR) || int64(in.MaxSGE) > int64(c.attr.MaxSRQSGE) {
		return unix.EINVAL
	}
	pd, err := c.pds.get(in.PDHandle)
	if err != nil {
		return err
	}
	s := &srq{user: in.UserHandle, attr: verbs.SRQAttr{MaxWR: int(in.MaxWR), MaxSGE: max(1, int(in.MaxSGE)), Limit: int(in.SRQLimit)}}
	if s.receives, err = newReceives(c.area, s.attr.MaxWR, s.attr.MaxSGE); err != nil {
		return err
	}
	v := s.attr
	v.MaxWR = s.ring.cap()
	if s.v, err = pd.CreateSRQ(v); err != nil {
		s.drop()
		return err
	}
	p, ok := s.v.Provider().(verbs.ProviderRecvSource)
	if !ok {
		_ = s.v.Close()
		s.drop()
		return unix.EOPNOTSUPP
	}
	p.SetRecvSource(s)
	h := c.handle()
	resp := uapi.CreateSRQResp{SRQHandle: h, MaxWR: in.MaxWR, MaxSGE: uint32(s.attr.MaxSGE), SRQN: h}
	if err := k.out(resp, uapi.RxeCreateSRQResp{MI: s.ring.info(), SRQNum: h}); err != nil {
		_ = s.v.Close()
		s.drop()
		return err
	}
	c.srqs[h] = s
	return nil
}

// modifySRQ arms the limit, or moves the posted receives into another ring: the driver's part of the command says where the
// program is told of it.
func (c *Context) modifySRQ(k *call) error {
	var in uapi.ModifySRQ
	if err := k.in(&in); err != nil {
		return err
	}
	s, err := c.srqs.get(in.SRQHandle)
	if err != nil {
		return err
	}
	if in.AttrMask&^(uapi.SRQMaxWR|uapi.SRQLimit) != 0 {
		return unix.EINVAL
	}
	if in.AttrMask&uapi.SRQMaxWR != 0 {
		if err := c.resizeSRQ(k, s, &in); err != nil {
			return err
		}
	}
	if in.AttrMask&uapi.SRQLimit != 0 {
		if int64(in.SRQLimit) > int64(s.attr.MaxWR) {
			return unix.EINVAL
		}
		if err := s.v.Modify(verbs.SRQAttr{Limit: int(in.SRQLimit)}, verbs.SRQMaskLimit); err != nil {
			return err
		}
	}
	return nil
}

func (c *Context) resizeSRQ(k *call, s *srq, in *uapi.ModifySRQ) error {
	var driver uapi.RxeModifySRQCmd
	if in.MaxWR == 0 || int64(in.MaxWR) > int64(c.attr.MaxSRQWR) {
		return unix.EINVAL
	}
	b := k.cmd.DriverIn
	if b == nil && len(k.cmd.In) > 16 {
		b = k.cmd.In[16:] // a write has it behind the command
	}
	if err := uapi.Decode(b, &driver); err != nil {
		return errors.Join(err, unix.EINVAL)
	}
	r, err := newRing(c.area, int(in.MaxWR), s.ring.elem)
	if err != nil {
		return err
	}
	if err := s.v.Modify(verbs.SRQAttr{MaxWR: r.cap()}, verbs.SRQMaskMaxWR); err != nil {
		r.drop()
		return err
	}
	if err := k.put(uapi.Buffer{Addr: driver.MMInfoAddr, Length: 16}, uapi.Append(nil, r.info())); err != nil {
		r.drop()
		return err
	}
	if err := s.move(r); err != nil {
		return err
	}
	s.attr.MaxWR = int(in.MaxWR)
	return nil
}

func (c *Context) querySRQ(k *call) error {
	var in uapi.QuerySRQ
	if err := k.in(&in); err != nil {
		return err
	}
	if err := k.needs(uapi.QuerySRQResp{}, nil); err != nil {
		return err
	}
	s, err := c.srqs.get(in.SRQHandle)
	if err != nil {
		return err
	}
	a, err := s.v.Query()
	if err != nil {
		return err
	}
	return k.out(uapi.QuerySRQResp{MaxWR: uint32(s.attr.MaxWR), MaxSGE: uint32(s.attr.MaxSGE), SRQLimit: uint32(a.Limit)}, nil)
}

func (c *Context) destroySRQ(k *call) error {
	var in uapi.DestroySRQ
	if err := k.in(&in); err != nil {
		return err
	}
	if err := k.needs(uapi.DestroySRQResp{}, nil); err != nil {
		return err
	}
	s, err := c.srqs.get(in.SRQHandle)
	if err != nil {
		return err
	}
	if err := s.v.Close(); err != nil {
		return err
	}
	delete(c.srqs, in.SRQHandle)
	s.drop()
	return k.out(uapi.DestroySRQResp{EventsReported: c.async.forget(s.user)}, nil)
}
