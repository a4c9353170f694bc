package verbs

import (
	"cmp"
	"net/netip"
	"slices"
)

// Resources are the open objects of a device, as "rdma resource show" lists them. PDs, CQs and SRQs are
// known by names, such as "pd 1", which errors have too.
type Resources struct {
	PD   []string
	CQ   []CQInfo
	QP   []QPInfo
	MR   []MRInfo
	MW   []MWInfo
	SRQ  []SRQInfo
	AH   int
	CMID []CMID // of the program's connection manager of the device
}

// CQInfo describes an open CQ.
type CQInfo struct {
	Name    string
	Entries int // for which there is room
}

// QPInfo describes an open QP.
type QPInfo struct {
	QPN            QPN
	Type           QPType
	State          QPState
	PD             string
	SendCQ, RecvCQ string
	SRQ            string // or empty
	DestQPN        QPN    // of a connected QP from RTR on
	DestGID        GID    // as well
	PathMTU        MTU    // as well
	RQPSN, SQPSN   PSN
	Carrier        string // see [QP.Carrier]

	qp *QP
}

// Counters returns the QP's counters: see [QP.Counters].
func (i *QPInfo) Counters() (Counters, error) { return i.qp.Counters() }

// MRInfo describes an open memory region.
type MRInfo struct {
	LKey   LKey
	RKey   RKey
	Addr   uint64
	Length int // bytes
	Access Access
	PD     string
}

// MWInfo describes a memory window.
type MWInfo struct {
	RKey RKey
	Type MWType
	PD   string
}

// SRQInfo describes a shared receive queue.
type SRQInfo struct {
	Name string
	PD   string
	SRQAttr
	Num SRQN   // of an XRC SRQ: the number that peers send to; else 0
	CQ  string // of an XRC SRQ: where its receives complete; else empty
}

// CMID is an ID of the connection manager: a connection, a lookup of a UD service, or a port that
// somebody listens on.
type CMID struct {
	QPN           QPN    // of this end; 0 where there is none
	Type          QPType // 0 where it is not known
	State         string // the specification's name, such as ESTABLISHED, or LISTEN; of iWARP Linux's
	Local, Remote netip.AddrPort
}

// Resources returns the open objects of the device. Objects that are opened or closed meanwhile may
// be missing.
func (d *Device) Resources() (Resources, error) {
	var r Resources
	if err := d.check("list resources of"); err != nil {
		return r, err
	}
	for name, pd := range dependents[PD](&d.object) {
		r.PD = append(r.PD, name)
		for _, qp := range dependents[QP](&pd.object) {
			r.QP = append(r.QP, qp.info(name))
		}
		for _, mr := range dependents[MR](&pd.object) {
			r.MR = append(r.MR, mr.info(name))
		}
		for _, mw := range dependents[MW](&pd.object) {
			r.MW = append(r.MW, MWInfo{mw.RKey(), mw.typ, name})
		}
		for srq, s := range dependents[SRQ](&pd.object) {
			attr, _ := s.p.Query() // of a queue that was closed meanwhile nothing is known
			i := SRQInfo{Name: srq, PD: name, SRQAttr: attr, Num: s.num}
			if s.cq != nil {
				i.CQ = s.cq.name
			}
			r.SRQ = append(r.SRQ, i)
		}
		for range dependents[AH](&pd.object) {
			r.AH++
		}
	}
	for _, x := range dependents[XRCD](&d.object) {
		for _, qp := range dependents[QP](&x.object) {
			r.QP = append(r.QP, qp.info(""))
		}
	}
	for name, cq := range dependents[CQ](&d.object) {
		r.CQ = append(r.CQ, CQInfo{name, cq.Cap()})
	}
	if m := d.manager.Load(); m != nil {
		r.CMID = (*m).CMIDs()
	}
	return r, nil
}

func (qp *QP) info(pd string) QPInfo {
	i := QPInfo{qp: qp, QPN: qp.p.QPN(), Type: qp.typ, State: qp.p.State(), PD: pd, Carrier: qp.Carrier()}
	if qp.typ != QPTypeXRCRecv {
		i.SendCQ, i.RecvCQ = qp.sendCQ.name, qp.recvCQ.name
	}
	if qp.srq != nil {
		i.SRQ = qp.srq.name
	}
	if a, err := qp.p.Query(); err == nil && i.State >= QPStateRTR {
		i.RQPSN, i.SQPSN = a.RQPSN, a.SQPSN
		if qp.typ != QPTypeUD {
			i.DestQPN, i.DestGID, i.PathMTU = a.DestQPN, a.AH.DGID, a.PathMTU
		}
	}
	return i
}

func (mr *MR) info(pd string) MRInfo {
	mr.mu.Lock()
	defer mr.mu.Unlock()
	return MRInfo{LKey: mr.lkey, RKey: mr.rkey, Addr: mr.addr, Length: mr.n, Access: mr.access, PD: pd}
}

// dependents returns an iterator over the names and dependents of o that are T and whole.
func dependents[T any](o *object) func(yield func(string, *T) bool) {
	type named struct {
		name string
		v    *T
	}
	var found []named
	o.mu.Lock()
	for c := range o.children {
		c.mu.Lock()
		if v, ok := c.of.(*T); ok && !c.closed {
			found = append(found, named{c.name, v})
		}
		c.mu.Unlock()
	}
	o.mu.Unlock()
	slices.SortFunc(found, func(a, b named) int {
		return cmp.Or(cmp.Compare(len(a.name), len(b.name)), cmp.Compare(a.name, b.name)) // pd 2 before pd 10
	})
	return func(yield func(string, *T) bool) {
		for _, f := range found {
			if !yield(f.name, f.v) {
				return
			}
		}
	}
}

// Manager is implemented by a connection manager, for those who watch the device.
type Manager interface {
	Counters() Counters
	CMIDs() []CMID
}

// Report makes [Device.Counters] and [Device.Resources] include those of m, the program's connection manager of the
// device. A nil m ends that, and the counts of the manager before stay. The caller holds no lock that the manager's
// methods take.
func (d *Device) Report(m Manager) {
	d.countMu.Lock()
	defer d.countMu.Unlock()
	if old := d.manager.Load(); old != nil {
		d.managed = d.managed.plus((*old).Counters().withoutGauges())
	}
	if m == nil {
		d.manager.Store(nil)
		return
	}
	d.manager.Store(&m)
}

// OpenDevices returns the devices of this program that [Open] opened and that are not closed, in the
// order of opening.
func OpenDevices() []*Device {
	openMu.Lock()
	defer openMu.Unlock()
	return slices.Clone(opened)
}
