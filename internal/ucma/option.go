package ucma

import (
	"encoding/binary"
	"errors"
	"syscall"

	"github.com/adverb-rdma/adverb/internal/uapi"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// maxOption is how long an option may be, in bytes: that of a path has a few records of 72.
const maxOption = 1 << 16

func (f *File) setOption(k *call) error {
	var in uapi.CMSetOptionArg
	if err := k.in(&in); err != nil {
		return err
	}
	if in.OptLen > maxOption {
		return syscall.EINVAL
	}
	c, err := f.get(in.ID)
	if err != nil {
		return err
	}
	v := make([]byte, in.OptLen)
	if err := k.ReadMemory(in.OptVal, v); err != nil {
		return errors.Join(err, syscall.EFAULT)
	}
	switch in.Level {
	case uapi.OptionID:
		return f.setIDOption(c, in.OptName, v)
	case uapi.OptionIB:
		if in.OptName == uapi.OptionIBPath {
			return f.setPath(c, v)
		}
	}
	return syscall.ENOSYS
}

// setIDOption sets an option that is a byte or an int.
func (f *File) setIDOption(c *cmID, name uint32, v []byte) error {
	var (
		size int
		set  func(uint32) error
	)
	switch name {
	case uapi.OptionIDTOS:
		size, set = 1, func(n uint32) error { return c.v.SetTOS(uint8(n)) }
	case uapi.OptionIDACKTimeout:
		size, set = 1, func(n uint32) error { return invalid(c.v.SetACKTimeout(uint8(n))) }
	case uapi.OptionIDReuseAddr:
		size, set = 4, func(n uint32) error { return c.setReuseAddr(n != 0) }
	case uapi.OptionIDAFOnly:
		size, set = 4, func(n uint32) error { return c.setAFOnly(n != 0) }
	default:
		return syscall.ENOSYS
	}
	if len(v) != size {
		return syscall.EINVAL
	}
	if size == 1 {
		return set(uint32(v[0]))
	}
	return set(binary.NativeEndian.Uint32(v))
}

// invalid makes an error EINVAL that is one of a kind of QP.
func invalid(err error) error {
	if errors.Is(err, verbs.ErrUnsupported) {
		return errors.Join(syscall.EINVAL, err)
	}
	return err
}

// setReuseAddr is for the next port that the ID gets. Linux takes a yes also from an ID that has one.
func (c *cmID) setReuseAddr(on bool) error {
	err := c.v.SetReuseAddr(on)
	if on && errors.Is(err, verbs.ErrState) {
		return nil
	}
	return err
}

// setAFOnly says whether [::] leaves out IPv4. An ID with another address has one family anyway.
func (c *cmID) setAFOnly(on bool) error {
	err := c.v.SetAFOnly(on)
	if a := c.v.LocalAddr(); errors.Is(err, verbs.ErrState) && c.v.RemoteAddr().Port() == 0 && a.IsValid() && !(a.Addr().Is6() && a.Addr().IsUnspecified()) {
		return nil
	}
	return err
}

// setPath takes a path that the program has found, in place of RESOLVE_ROUTE.
func (f *File) setPath(c *cmID, v []byte) error {
	size := binary.Size(uapi.PathRecData{})
	if len(v)%size != 0 {
		return syscall.EINVAL
	}
	for ; len(v) > 0; v = v[size:] {
		var data uapi.PathRecData
		if err := uapi.Decode(v, &data); err != nil || data.Flags != uapi.PathFlags {
			continue
		}
		if c.v.Device() == nil {
			return syscall.EINVAL
		}
		p := data.Path()
		err := c.v.SetPath(rdmacm.PathRecord{SGID: p.SGID, DGID: p.DGID, SLID: p.SLID, DLID: p.DLID, FlowLabel: p.FlowLabel, HopLimit: p.HopLimit,
			TrafficClass: p.TrafficClass, PKey: verbs.PKey(p.PKey), SL: p.SL, MTU: verbs.MTU(p.MTU), Rate: verbs.Rate(p.Rate), PacketLifetime: p.PacketLifeTime})
		if err == nil {
			c.set(f.m, func() { c.phase.routed = true })
		}
		return err
	}
	return syscall.EINVAL
}
