//go:build linux && (amd64 || arm64)

package ibv

import (
	"encoding/binary"
	"errors"
	"syscall"
	"unsafe"
)

// Devices calls visit for each device that the library finds, until visit returns false. The Ref is good that long.
func (l *Lib) Devices(visit func(Ref[Device]) bool) error {
	return once(func(s *scratch) error {
		n := put(s, int32(0))
		list, err := pointer[Ref[Device]](s, l.getDeviceList, n.at)
		if err != nil {
			return err
		}
		count := *n.P()
		devices := append([]Ref[Device](nil), unsafe.Slice(list.P(), count)...)
		defer s.call(l.freeDeviceList, list.at)
		for _, d := range devices {
			if !visit(d) {
				break
			}
		}
		return nil
	})
}

// GUID returns the GUID of a device's node, most significant byte first.
func (l *Lib) GUID(d Ref[Device]) (guid [8]byte, err error) {
	err = once(func(s *scratch) error {
		n, _ := s.call(l.getDeviceGUID, d.at)
		binary.NativeEndian.PutUint64(guid[:], uint64(n)) // a __be64
		return nil
	})
	return guid, err
}

// Open opens a device.
func (l *Lib) Open(d Ref[Device]) (Ref[Context], error) {
	return create[Context](l.openDevice, d.at)
}

// Close closes a device.
func (l *Lib) Close(c Ref[Context]) error { return do(l.closeDevice, c.at) }

// create calls a function that returns an object. None of its arguments is memory of the call.
func create[T any](fn function, args ...uintptr) (Ref[T], error) {
	return made(func(s *scratch) (Ref[T], error) { return pointer[T](s, fn, args...) })
}

// do calls a function that returns a status. None of its arguments is memory of the call.
func do(fn function, args ...uintptr) error {
	return once(func(s *scratch) error { return s.status(fn, args...) })
}

// fill calls a function that fills in a T, whose address is the last argument but those of after.
func fill[T any](fn function, before []uintptr, after ...uintptr) (v T, err error) {
	err = once(func(s *scratch) error {
		p := put(s, v)
		err := s.status(fn, append(append(before, p.at), after...)...)
		v = *p.P()
		return err
	})
	return v, err
}

// QueryDevice returns a device's attributes. A driver that knows only those of ibv_query_device leaves the others 0.
func (l *Lib) QueryDevice(c Ref[Context]) (DeviceAttrEx, error) {
	a, err := fill[DeviceAttrEx](extended(c, "ibv_query_device_ex", toQueryDeviceEx), []uintptr{c.at, 0}, unsafe.Sizeof(DeviceAttrEx{}))
	if errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENOSYS) {
		a = DeviceAttrEx{}
		a.DeviceAttr, err = fill[DeviceAttr](l.queryDevice, []uintptr{c.at})
	}
	return a, err
}

// RawClock returns the time of the device's clock.
func (l *Lib) RawClock(c Ref[Context]) (t uint64, err error) {
	const rawClock = 1 // IBV_VALUES_MASK_RAW_CLOCK
	fn := extended(c, "ibv_query_rt_values_ex", toQueryRTValues)
	err = once(func(s *scratch) error {
		v := put(s, valuesEx{compMask: rawClock})
		if err := s.status(fn, c.at, v.at); err != nil {
			return err
		}
		if v.P().compMask&rawClock == 0 { // the driver knows other values
			return &Error{fn.name, syscall.EOPNOTSUPP}
		}
		t = uint64(v.P().sec)*1e9 + uint64(v.P().nsec)
		return nil
	})
	return t, err
}

// struct verbs_context ends with struct ibv_context, and grows at its other end. So its fields have fixed distances from
// the context, in bytes. It is there if abi_compat says so, and has a field if sz reaches that far.
const (
	toSize          = 8
	toCloseXRCD     = 24
	toOpenXRCD      = 32
	toCreateSRQEx   = 40
	toGetSRQNum     = 48
	toCreateQPEx    = 56
	toOpenQP        = 64
	toQueryDeviceEx = 104
	toCreateCQEx    = 120
	toQueryRTValues = 128
	toQueryPort     = 320
	isExtended      = ^uintptr(0)
)

// extended finds a function of verbs_context by its distance.
func extended(c Ref[Context], name string, distance uintptr) function {
	fn := function{name: name}
	if c.P().abiCompat != isExtended {
		return fn
	}
	size := *(Ref[uintptr]{c.at - toSize}).P()
	if size >= distance+unsafe.Sizeof(Context{}) {
		fn.at = *(Ref[uintptr]{c.at - distance}).P()
	}
	return fn
}

// QueryPort returns the attributes of a port. The symbol ibv_query_port is that of programs which were built long ago.
func (l *Lib) QueryPort(c Ref[Context], port int) (PortAttr, error) {
	return fill[PortAttr](extended(c, "ibv_query_port", toQueryPort), []uintptr{c.at, uintptr(port)}, unsafe.Sizeof(PortAttr{}))
}

// QueryGID returns an entry of a port's GID table. The error for a free entry is ENODATA.
func (l *Lib) QueryGID(c Ref[Context], port, index int) (GIDEntry, error) {
	return fill[GIDEntry](l.queryGIDEx, []uintptr{c.at, uintptr(port), uintptr(index)}, 0, unsafe.Sizeof(GIDEntry{}))
}

// QueryPKey returns an entry of a port's P_Key table, most significant byte first.
func (l *Lib) QueryPKey(c Ref[Context], port, index int) ([2]byte, error) {
	return fill[[2]byte](l.queryPKey, []uintptr{c.at, uintptr(port), uintptr(index)})
}

// AllocPD makes a protection domain.
func (l *Lib) AllocPD(c Ref[Context]) (Ref[PD], error) {
	return create[PD](l.allocPD, c.at)
}

// DeallocPD frees a protection domain.
func (l *Lib) DeallocPD(p Ref[PD]) error { return do(l.deallocPD, p.at) }

// base is the address of memory that its owner has pinned, or that is none of Go's.
func base(pinned []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(pinned))) }

// Base returns the address of b's first byte. It holds for as long as b stays where it is: pinned, or outside Go's memory.
func Base(b []byte) uint64 { return uint64(base(b)) }

// RegMR registers b, whose first byte is to have the address iova. b is pinned or outside Go's memory until DeregMR.
func (l *Lib) RegMR(p Ref[PD], b []byte, iova uint64, access uint32) (Ref[MR], error) {
	return create[MR](l.regMR, p.at, base(b), uintptr(len(b)), uintptr(iova), uintptr(access))
}

// RegDmabufMR registers n bytes of a dma-buf from offset on, whose first byte is to have the address iova.
func (l *Lib) RegDmabufMR(p Ref[PD], fd int, offset uint64, n int, iova uint64, access uint32) (Ref[MR], error) {
	return create[MR](l.regDmabufMR, p.at, uintptr(offset), uintptr(n), uintptr(iova), uintptr(fd), uintptr(access))
}

// DeregMR ends a registration.
func (l *Lib) DeregMR(m Ref[MR]) error { return do(l.deregMR, m.at) }

// Results of ibv_rereg_mr (enum ibv_rereg_mr_err_code). Others are failures on the way.
const (
	reregErrInput       = -1 // the arguments are refused
	reregErrDontForkNew = -2 // nothing has changed yet
	reregErrDoForkOld   = -3 // all has changed; a child of fork may lack the old memory
)

// ReregMR changes a registration. Arguments that flags do not name are zero: the library refuses others. intact reports
// whether the region is as it was after an error.
func (l *Lib) ReregMR(m Ref[MR], flags int, p Ref[PD], b []byte, access uint32) (intact bool, err error) {
	err = once(func(s *scratch) error {
		r, errno := s.call(l.reregMR, m.at, uintptr(flags), p.at, base(b), uintptr(len(b)), uintptr(access))
		n := int32(r)
		if n == 0 || n == reregErrDoForkOld {
			return nil
		}
		intact = n == reregErrInput || n == reregErrDontForkNew || errno == syscall.EOPNOTSUPP || errno == syscall.ENOSYS // the driver has none
		if errno == 0 {
			errno = syscall.EINVAL
		}
		return &Error{l.reregMR.name, errno}
	})
	return intact, err
}

// AllocMW makes a memory window of a type.
func (l *Lib) AllocMW(p Ref[PD], kind int) (Ref[MW], error) {
	return create[MW](function{"ibv_alloc_mw", p.P().context.P().ops.AllocMW}, p.at, uintptr(kind))
}

// DeallocMW frees a memory window.
func (l *Lib) DeallocMW(m Ref[MW]) error {
	return do(function{"ibv_dealloc_mw", m.P().context.P().ops.DeallocMW}, m.at)
}

// CreateCompChannel makes a completion channel.
func (l *Lib) CreateCompChannel(c Ref[Context]) (Ref[CompChannel], error) {
	return create[CompChannel](l.createCompChannel, c.at)
}

// DestroyCompChannel ends a completion channel.
func (l *Lib) DestroyCompChannel(c Ref[CompChannel]) error {
	return do(l.destroyCompChannel, c.at)
}

// CreateCQ makes a CQ whose events come by a channel, from a completion vector.
func (l *Lib) CreateCQ(c Ref[Context], entries int, ch Ref[CompChannel], vector int) (Ref[CQ], error) {
	return create[CQ](l.createCQ, c.at, uintptr(entries), 0, ch.at, uintptr(vector))
}

// CreateCQEx is CreateCQ for a CQ whose completions tell the time of a clock.
func (l *Lib) CreateCQEx(c Ref[Context], entries int, ch Ref[CompChannel], vector int, clock Clock) (Ref[CQ], error) {
	return made(func(s *scratch) (Ref[CQ], error) {
		a := cqInitAttrEx{cqe: uint32(entries), channel: ch, compVector: uint32(vector), wcFlags: wcStandard | uint64(clock)}
		return pointer[CQ](s, extended(c, "ibv_create_cq_ex", toCreateCQEx), c.at, put(s, a).at)
	})
}

// ResizeCQ gives a CQ another size.
func (l *Lib) ResizeCQ(c Ref[CQ], entries int) error {
	return do(l.resizeCQ, c.at, uintptr(entries))
}

// DestroyCQ destroys a CQ. It waits until the events that were taken are acknowledged.
func (l *Lib) DestroyCQ(c Ref[CQ]) error { return do(l.destroyCQ, c.at) }

// CQEvents calls visit for each event of a channel that is there. The channel's descriptor does not block. The CQ is not
// destroyed before visit has returned.
func (l *Lib) CQEvents(ch Ref[CompChannel], visit func(Ref[CQ])) error {
	return once(func(s *scratch) error {
		cq, user := put(s, Ref[CQ]{}), put(s, uintptr(0))
		for {
			if err := s.status(l.getCQEvent, ch.at, cq.at, user.at); err != nil {
				return err
			}
			visit(*cq.P())
			s.call(l.ackCQEvents, cq.P().at, 1)
		}
	})
}

// Event is an asynchronous event. Element is the address of an object, or in its first four bytes the number of a port.
type Event struct {
	Type    uint32
	element uint64
}

// QP returns the QP, if the type of the event says that it concerns one.
func (e Event) QP() Ref[QP] { return Ref[QP]{uintptr(e.element)} }

// CQ returns the CQ, as QP does.
func (e Event) CQ() Ref[CQ] { return Ref[CQ]{uintptr(e.element)} }

// SRQ returns the SRQ, as QP does.
func (e Event) SRQ() Ref[SRQ] { return Ref[SRQ]{uintptr(e.element)} }

// Port returns the port's number, if the type of the event says that it concerns one.
func (e Event) Port() int { return int(uint32(e.element)) }

// AsyncEvents calls visit for each asynchronous event that is there. The descriptor does not block. The object is not
// destroyed before visit has returned.
func (l *Lib) AsyncEvents(c Ref[Context], visit func(Event)) error {
	return once(func(s *scratch) error {
		p := put(s, asyncEvent{})
		for {
			if err := s.status(l.getAsyncEvent, c.at, p.at); err != nil {
				return err
			}
			visit(Event{p.P().eventType, p.P().element})
			s.call(l.ackAsyncEvent, p.at)
		}
	})
}

// CreateQP makes a QP, and sets attr.Cap to the capabilities that the QP has.
func (l *Lib) CreateQP(p Ref[PD], attr *QPInitAttr) (Ref[QP], error) {
	return made(func(s *scratch) (Ref[QP], error) {
		a := put(s, *attr)
		q, err := pointer[QP](s, l.createQP, p.at, a.at)
		if err == nil {
			attr.Cap = a.P().Cap
		}
		return q, err
	})
}

// ModifyQP changes a QP.
func (l *Lib) ModifyQP(q Ref[QP], attr QPAttr, mask uint32) error {
	return once(func(s *scratch) error { return s.status(l.modifyQP, q.at, put(s, attr).at, uintptr(mask)) })
}

// QueryQP returns a QP's attributes.
func (l *Lib) QueryQP(q Ref[QP], mask uint32) (QPAttr, error) {
	var attr QPAttr
	err := once(func(s *scratch) error {
		a, init := put(s, attr), put(s, QPInitAttr{})
		err := s.status(l.queryQP, q.at, a.at, uintptr(mask), init.at)
		attr = *a.P()
		return err
	})
	return attr, err
}

// DestroyQP destroys a QP.
func (l *Lib) DestroyQP(q Ref[QP]) error { return do(l.destroyQP, q.at) }

// CreateSRQ makes an SRQ.
func (l *Lib) CreateSRQ(p Ref[PD], attr SRQAttr) (Ref[SRQ], error) {
	return made(func(s *scratch) (Ref[SRQ], error) {
		return pointer[SRQ](s, l.createSRQ, p.at, put(s, srqInitAttr{attr: attr}).at)
	})
}

// ModifySRQ changes an SRQ.
func (l *Lib) ModifySRQ(q Ref[SRQ], attr SRQAttr, mask uint32) error {
	return once(func(s *scratch) error { return s.status(l.modifySRQ, q.at, put(s, attr).at, uintptr(mask)) })
}

// QuerySRQ returns an SRQ's attributes.
func (l *Lib) QuerySRQ(q Ref[SRQ]) (SRQAttr, error) {
	return fill[SRQAttr](l.querySRQ, []uintptr{q.at})
}

// DestroySRQ destroys an SRQ.
func (l *Lib) DestroySRQ(q Ref[SRQ]) error { return do(l.destroySRQ, q.at) }

// CreateAH makes an address handle.
func (l *Lib) CreateAH(p Ref[PD], attr AHAttr) (Ref[AH], error) {
	return made(func(s *scratch) (Ref[AH], error) { return pointer[AH](s, l.createAH, p.at, put(s, attr).at) })
}

// DestroyAH destroys an address handle.
func (l *Lib) DestroyAH(a Ref[AH]) error { return do(l.destroyAH, a.at) }

// AttachMcast attaches a QP to a multicast group, and DetachMcast undoes that.
func (l *Lib) AttachMcast(q Ref[QP], gid [16]byte, lid uint16) error {
	return l.mcast(l.attachMcast, q, gid, lid)
}

// DetachMcast undoes AttachMcast.
func (l *Lib) DetachMcast(q Ref[QP], gid [16]byte, lid uint16) error {
	return l.mcast(l.detachMcast, q, gid, lid)
}

func (l *Lib) mcast(fn function, q Ref[QP], gid [16]byte, lid uint16) error {
	return once(func(s *scratch) error { return s.status(fn, q.at, put(s, gid).at, uintptr(lid)) })
}
