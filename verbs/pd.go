package verbs

import "fmt"

// PD is a protection domain (struct ibv_pd): MRs and QPs of one PD may be used together. One
// PD serves any number of peers.
type PD struct {
	object
	dev *Device
	p   ProviderPD
}

// AllocPD allocates a protection domain (ibv_alloc_pd).
func (d *Device) AllocPD() (*PD, error) {
	pd := &PD{dev: d}
	pd.name = d.serial.next("pd")
	if err := pd.attach("alloc pd on", &d.object); err != nil {
		return nil, err
	}
	p, err := d.p.AllocPD()
	if err != nil {
		pd.detach()
		return nil, wrap("alloc pd on", d.name, err)
	}
	pd.p = p
	return pd, nil
}

// Device returns the device that pd belongs to.
func (pd *PD) Device() *Device { return pd.dev }

// RegMR registers buf (ibv_reg_mr), which stays pinned and reachable until MR.Close. Any slice
// will do, at any alignment; AllocMR's memory is preferred. Under the race detector, a program that
// goes on writing to buf before a peer does should call a verb in between, such as QP.PostRecv: what
// orders the two goes over the network, which the detector does not see. Remote write and remote atomic
// access need AccessLocalWrite as well.
func (pd *PD) RegMR(buf []byte, access Access) (*MR, error) {
	return pd.regMR(buf, access, MRAttr{Access: access})
}

// RegMRIOVA is RegMR for a peer to address the region from iova on instead of from the
// buffer's own address (ibv_reg_mr_iova). SGEs use iova as well.
func (pd *PD) RegMRIOVA(buf []byte, iova uint64, access Access) (*MR, error) {
	return pd.regMR(buf, access, MRAttr{Access: access, IOVA: iova, HasIOVA: true})
}

func (pd *PD) regMR(buf []byte, access Access, attr MRAttr) (*MR, error) {
	const verb = "register mr in"
	if len(buf) == 0 {
		return nil, wrap(verb, pd.name, invalidf("the buffer is empty: register at least one byte"))
	}
	if attr.HasIOVA && attr.IOVA+uint64(len(buf)) < attr.IOVA {
		return nil, wrap(verb, pd.name, invalidf("iova %#x and %d bytes pass the end of the address space", attr.IOVA, len(buf)))
	}
	if attr.HasIOVA && access&AccessZeroBased != 0 {
		return nil, wrap(verb, pd.name, invalidf("ACCESS_ZERO_BASED and an iova exclude each other"))
	}
	attr.Buf = buf
	return pd.newMR(verb, attr)
}

// AllocMR registers n bytes of zeroed, page-aligned shared memory outside the Go heap: the
// preferred form, since processes of one host can map it. MR.Close frees it: no slice of
// MR.Bytes may be used after.
func (pd *PD) AllocMR(n int, access Access) (*MR, error) {
	const verb = "alloc mr in"
	if n <= 0 {
		return nil, wrap(verb, pd.name, invalidf("%d bytes: allocate at least one", n))
	}
	return pd.newMR(verb, MRAttr{Length: n, Access: access})
}

func (pd *PD) newMR(verb string, attr MRAttr) (*MR, error) {
	if err := checkAccess(attr.Access); err != nil {
		return nil, wrap(verb, pd.name, err)
	}
	mr := &MR{pd: pd, access: attr.Access}
	if err := mr.attach(verb, &pd.object); err != nil {
		return nil, err
	}
	p, err := pd.p.RegMR(attr)
	if err != nil {
		mr.detach()
		return nil, wrap(verb, pd.name, err)
	}
	mr.p, mr.buf, mr.addr, mr.lkey, mr.rkey = p, p.Bytes(), p.Addr(), p.LKey(), p.RKey()
	mr.setName(fmt.Sprintf("mr lkey %v", mr.lkey))
	return mr, nil
}

// Close frees the domain (ibv_dealloc_pd). It fails with ErrBusy while it has objects.
func (pd *PD) Close() error { return pd.close(pd.p.Close) }
