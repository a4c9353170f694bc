package verbs

import "os"

// XRCD is a domain of extended reliable connections (struct ibv_xrcd): XRC SRQs, and the target QPs whose peers may send to
// each of them. So a program with many peers, each of which has many threads, needs a QP for each peer, and not for each
// pair of threads. It is of annex A14 of the specification.
//
// An initiator, a QP of QPTypeXRCSend, is made by [PD.CreateQP] and sends to SRQs by [SendWR].RemoteSRQN. A target is made
// by [XRCD.CreateQP]. Each end is connected as RC QPs are, and an exchange both ways takes an initiator and a target at each end.
//
// The domains of a software device belong to the [Device] that opened them. Whoever opens the device once more, in the same
// process or another, opens other domains, also of the same file: a target's packets come to the Device that made it, which has
// the memory of its own SRQs alone. Within one Device the openers of a domain share its SRQs, and its targets by [XRCD.OpenQP].
type XRCD struct {
	object
	dev *Device
	p   ProviderXRCD
}

// XRCDAttr are the attributes of an XRC domain (struct ibv_xrcd_init_attr).
type XRCDAttr struct {
	// File names the domain: whoever opens the same file, by whatever path, opens the same domain. Without a file (fd -1)
	// the domain is its opener's alone. The file itself is not touched, and may be closed again. It may be removed, too:
	// the domain has no name then.
	File *os.File
	// Create makes the domain, if there is none (O_CREAT). A domain without a file is made in any case.
	Create bool
	// Exclusive fails with ErrBusy, if there is one (O_EXCL). It needs Create.
	Exclusive bool
}

// ProviderXRC is for implementers of providers: a ProviderDevice implements it if the device has XRC, which DeviceXRC says.
type ProviderXRC interface {
	// OpenXRCD opens a domain. With the same file it returns a domain of its own with the same SRQs and QPs.
	OpenXRCD(attr XRCDAttr) (ProviderXRCD, error)
}

// ProviderXRCD is for implementers of providers: a provider's side of an [XRCD].
type ProviderXRCD interface {
	// CreateSRQ makes an SRQ of a PD, whose completions come to a CQ. The objects are the device's.
	CreateSRQ(pd ProviderPD, cq ProviderCQ, attr SRQAttr, srq *SRQ) (ProviderSRQ, SRQN, error)
	// CreateQP makes a QP of QPTypeXRCRecv.
	CreateQP(attr *ProviderQPInitAttr, qp *QP) (ProviderQP, error)
	// OpenQP returns the domain's QP of that number once more, for another QP of the facade. The QP lives until all are closed.
	OpenQP(n QPN, qp *QP) (ProviderQP, error)
	Close() error
}

// isXRC reports whether QPs of the type are of extended reliable connections.
func (t QPType) isXRC() bool { return t == QPTypeXRCSend || t == QPTypeXRCRecv }

// hasXRC reports whether the device, and its provider, have XRC.
func (d *Device) hasXRC() bool {
	_, ok := d.p.(ProviderXRC)
	return ok && d.attr.DeviceCapFlags&DeviceXRC != 0
}

// OpenXRCD opens an XRC domain (ibv_open_xrcd). The errors are ErrUnsupported on a device without XRC; ErrNotFound where File
// has no domain and Create is not set; ErrBusy for a domain that exists, with Exclusive; ErrLimit for too many domains.
func (d *Device) OpenXRCD(attr XRCDAttr) (*XRCD, error) {
	const verb = "open xrcd on"
	if err := d.check(verb); err != nil {
		return nil, err
	}
	p, _ := d.p.(ProviderXRC)
	if !d.hasXRC() {
		return nil, wrap(verb, d.name, Errorf(ErrUnsupported, "the device has no XRC (device_cap_flags)"))
	}
	if attr.Exclusive && !attr.Create {
		return nil, wrap(verb, d.name, invalidf("Exclusive without Create"))
	}
	x := &XRCD{object: object{name: d.serial.next("xrcd")}, dev: d}
	if err := x.attach(verb, &d.object); err != nil {
		return nil, err
	}
	var err error
	if x.p, err = p.OpenXRCD(attr); err != nil {
		x.detach()
		return nil, wrap(verb, d.name, err)
	}
	x.made(x)
	return x, nil
}

// Device returns the device that x belongs to.
func (x *XRCD) Device() *Device { return x.dev }

// Close closes the domain (ibv_close_xrcd). It fails with ErrBusy while x has SRQs or QPs. A domain that others have opened stays theirs.
func (x *XRCD) Close() error { return x.close(func() error { return x.p.Close() }) }

// CreateSRQ makes an XRC SRQ (ibv_create_srq_ex with IBV_SRQT_XRC). Completions of its receives come to cq, from whatever
// QP of the domain; their WC.QP is that QP. The memory of receives, and the memory that peers name in messages to the SRQ, are
// of pd. [SRQ.Num] is the number that peers send to. The errors are those of [PD.CreateSRQ], and ErrInvalid for objects of another device.
func (x *XRCD) CreateSRQ(pd *PD, cq *CQ, attr SRQAttr) (*SRQ, error) {
	const verb = "create srq in"
	switch {
	case pd == nil || cq == nil:
		return nil, wrap(verb, x.name, invalidf("an XRC SRQ needs a PD and a CQ"))
	case attr.Limit != 0:
		return nil, wrap(verb, x.name, invalidf("srq_limit %d: it is armed by Modify, once receives are posted", attr.Limit))
	}
	if err := x.dev.checkOpen("PD", "AllocPD of the Device of the XRCD", pd.dev); err != nil {
		return nil, wrap(verb, x.name, err)
	}
	if err := x.dev.checkOpen("CQ", "CreateCQ of the Device of the XRCD", cq.dev); err != nil {
		return nil, wrap(verb, x.name, err)
	}
	if err := attr.check(&x.dev.attr); err != nil {
		return nil, wrap(verb, x.name, err)
	}
	s := &SRQ{object: object{name: x.dev.serial.next("srq")}, pd: pd, xrcd: x, cq: cq}
	if err := s.attach(verb, &pd.object, &x.object, &cq.object); err != nil {
		return nil, err
	}
	p, n, err := x.p.CreateSRQ(pd.p, cq.p, attr, s)
	if err != nil {
		s.detach()
		return nil, wrap(verb, x.name, err)
	}
	s.provided(p, n)
	return s, nil
}

// CreateQP makes a target, in the state RESET (ibv_create_qp_ex with IBV_QPT_XRC_RECV). attr.Type is QPTypeXRCRecv or 0. A target
// has no CQs, capacities and SRQ of its own, and [QP.PD] is nil. It takes no work requests: RTR is enough for it to work.
func (x *XRCD) CreateQP(attr QPInitAttr) (*QP, error) {
	attr = attr.orType(QPTypeXRCRecv)
	if attr.Type != QPTypeXRCRecv {
		return nil, wrap("create qp in", x.name, invalidf("type %v: an XRC domain has targets, QPTypeXRCRecv", attr.Type))
	}
	if attr.SendCQ != nil || attr.RecvCQ != nil || attr.SRQ != nil {
		return nil, wrap("create qp in", x.name, invalidf("a target has no CQs and no SRQ of its own: its receives, and their CQs, are those of the domain's SRQs"))
	}
	return x.newQP("create qp in", attr.Context, func(qp *QP) (ProviderQP, error) {
		return x.p.CreateQP(&ProviderQPInitAttr{Type: QPTypeXRCRecv}, qp)
	})
}

// OpenQP opens a target of the domain that exists already (ibv_open_qp). The QP is another handle: the target lives until all of its
// handles are closed, and each is told of the target's events. The error is ErrNotFound for a number that no target of the domain has.
func (x *XRCD) OpenQP(n QPN, context any) (*QP, error) {
	return x.newQP("open qp in", context, func(qp *QP) (ProviderQP, error) { return x.p.OpenQP(n, qp) })
}

func (x *XRCD) newQP(verb string, context any, create func(*QP) (ProviderQP, error)) (*QP, error) {
	qp := &QP{object: object{name: "new qp"}, dev: x.dev, typ: QPTypeXRCRecv, context: context}
	if err := qp.attach(verb, &x.object); err != nil {
		return nil, err
	}
	p, err := create(qp)
	if err != nil {
		qp.detach()
		return nil, wrap(verb, x.name, err)
	}
	qp.provided(p, QPCap{})
	return qp, nil
}

// Num returns the number of an XRC SRQ, for SendWR.RemoteSRQN of its peers (ibv_get_srq_num). It is 0 for another SRQ.
func (s *SRQ) Num() SRQN { return s.num }
