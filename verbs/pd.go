package verbs

// PD is a protection domain (struct ibv_pd). Work requests of a QP may name memory regions of the
// QP's own PD only. One PD serves any number of peers.
type PD struct {
	object
	dev *Device
	p   ProviderPD
}

// AllocPD allocates a protection domain (ibv_alloc_pd). It fails with ErrLimit beyond
// DeviceAttr.MaxPD.
func (d *Device) AllocPD() (*PD, error) {
	const verb = "alloc pd on"
	if err := d.check(verb); err != nil {
		return nil, err
	}
	pd := &PD{object: object{name: d.serial.next("pd")}, dev: d}
	if err := pd.attach(verb, &d.object); err != nil {
		return nil, err
	}
	p, err := d.p.AllocPD()
	if err != nil {
		pd.detach()
		return nil, wrap(verb, d.name, err)
	}
	pd.p = p
	pd.made(pd)
	return pd, nil
}

// SharedPD returns the domain that packages share where the program names none, such as package rdmacm
// for the connections of a device. It is made at first use, and stays. [Device.Close] closes it, unless
// it has open objects. The errors are those of AllocPD.
func (d *Device) SharedPD() (*PD, error) {
	d.sharedMu.Lock()
	defer d.sharedMu.Unlock()
	if d.shared != nil && !d.shared.isClosed() {
		return d.shared, nil
	}
	pd, err := d.AllocPD()
	if err != nil {
		return nil, err
	}
	d.shared = pd
	return pd, nil
}

// Device returns the device that pd belongs to.
func (pd *PD) Device() *Device { return pd.dev }

// RegMR registers buf (ibv_reg_mr). The slice may have any alignment, but not be empty. It stays
// pinned and reachable until [MR.Close]. [PD.AllocMR] is preferred where the program has no memory
// yet.
//
// Remote write and remote atomic access need AccessLocalWrite as well; the error without it is ErrInvalid. So is that
// for memory which cannot be read or, with AccessLocalWrite, written: a read-only mapping, the bytes of a string, a
// mapping beyond the end of its file. The text has the address. The program keeps the memory as it is until Close:
// docs/guide/memory.md has the consequences of unmapping the memory before. Some iWARP devices need AccessRemoteWrite
// for memory that a READ fills.
//
// The race detector sees the accesses of this end's own work requests to buf, and not those of a
// peer by its key. If a program writes to buf and then a message fills it, the detector reports a
// race unless the program calls a verb in between, such as [QP.PostRecv].
func (pd *PD) RegMR(buf []byte, access Access) (*MR, error) {
	return pd.regMR(buf, access, MRAttr{Access: access})
}

// RegMRIOVA is RegMR with an address of the program's choice (ibv_reg_mr_iova): peers, and SGEs as
// well, address the first byte of buf as iova. The error is ErrInvalid if the region would pass the
// end of the address space, and with AccessZeroBased.
func (pd *PD) RegMRIOVA(buf []byte, iova uint64, access Access) (*MR, error) {
	return pd.regMR(buf, access, MRAttr{Access: access, IOVA: iova, HasIOVA: true})
}

// RegForeignMR registers n bytes of memory that this process cannot map, which is reached by calls of m. iova is the address
// of the first byte, for peers and for SGEs. The race detector sees nothing of it, [MR.Bytes] of the region must not be
// touched, and atomics are atomic among those of this process only. It is for programs that serve others, and has no C
// symbol. The error is ErrUnsupported on devices that cannot.
func (pd *PD) RegForeignMR(m ForeignMemory, n int, iova uint64, access Access) (*MR, error) {
	const verb = "register foreign mr in"
	if n <= 0 {
		return nil, wrap(verb, pd.name, invalidf("%d bytes: register at least one", n))
	}
	attr := MRAttr{Length: n, Access: access, IOVA: iova, HasIOVA: true}
	if err := attr.checkIOVA(n); err != nil {
		return nil, wrap(verb, pd.name, err)
	}
	p, ok := pd.p.(ProviderForeignMR)
	if !ok {
		return nil, wrap(verb, pd.name, Errorf(ErrUnsupported, "the device reaches memory of its own process only"))
	}
	return pd.addMR(verb, attr, func() (ProviderMR, error) { return p.RegForeignMR(attr, m) })
}

// RegFileMR registers n bytes of a file, from an offset on, that can be mapped: memory that is another process's too. The
// descriptor stays open until the MR is closed. iova is the address of the first byte, for peers and for SGEs; the
// memory has the same place in its page as the offset has. [MR.Bytes] is a mapping, and goes with the MR. Where the file is a
// memfd with the seal F_SEAL_SHRINK, other processes of the host are lent the memory as that of [PD.AllocMR]. It is for
// programs that serve others, and has no C symbol. The error is ErrUnsupported on devices and systems that cannot.
func (pd *PD) RegFileMR(fd int, off int64, n int, iova uint64, access Access) (*MR, error) {
	const verb = "register file mr in"
	if n <= 0 || off < 0 {
		return nil, wrap(verb, pd.name, invalidf("%d bytes at offset %d: register at least one, of those that are there", n, off))
	}
	attr := MRAttr{Length: n, Access: access, IOVA: iova, HasIOVA: true}
	if err := attr.checkIOVA(n); err != nil {
		return nil, wrap(verb, pd.name, err)
	}
	p, ok := pd.p.(ProviderFileMR)
	if !ok {
		return nil, wrap(verb, pd.name, Errorf(ErrUnsupported, "the device maps no files"))
	}
	return pd.addMR(verb, attr, func() (ProviderMR, error) { return p.RegFileMR(attr, fd, off) })
}

// checkIOVA checks an address of the program's choice for n bytes.
func (a *MRAttr) checkIOVA(n int) error {
	if a.HasIOVA && a.IOVA+uint64(n) < a.IOVA {
		return invalidf("iova %#x and %d bytes pass the end of the address space", a.IOVA, n)
	}
	return nil
}

func (pd *PD) regMR(buf []byte, access Access, attr MRAttr) (*MR, error) {
	const verb = "register mr in"
	if len(buf) == 0 {
		return nil, wrap(verb, pd.name, invalidf("the buffer is empty: register at least one byte"))
	}
	if err := attr.checkIOVA(len(buf)); err != nil {
		return nil, wrap(verb, pd.name, err)
	}
	if attr.HasIOVA && access&AccessZeroBased != 0 {
		return nil, wrap(verb, pd.name, invalidf("ACCESS_ZERO_BASED and an iova exclude each other"))
	}
	attr.Buf = buf
	return pd.newMR(verb, attr)
}

// AllocMR allocates n bytes and registers them. The memory is zeroed, begins at a page and, on Linux,
// lies outside the Go heap, where other processes of the host can map it (see
// DeviceAttr.UnsharedMemory). It is the preferred form. [MR.Close] frees the memory, so no slice of
// [MR.Bytes] may be used afterwards.
//
// Pages are taken when they are first written to. The error is ErrInvalid for n < 1, and for remote
// write or atomic access without AccessLocalWrite. It is ErrLimit beyond DeviceAttr.MaxMR and, on Linux,
// for a length that the host, the container or the process cannot hold; the text names the limit:
// MemAvailable, a control group's, RLIMIT_AS, RLIMIT_FSIZE or vm.max_map_count. Memory counts there when it
// is used: of regions that nobody has written to there may be more than the host has memory.
func (pd *PD) AllocMR(n int, access Access) (*MR, error) {
	const verb = "alloc mr in"
	if n <= 0 {
		return nil, wrap(verb, pd.name, invalidf("%d bytes: allocate at least one", n))
	}
	return pd.newMR(verb, MRAttr{Length: n, Access: access})
}

func (pd *PD) newMR(verb string, attr MRAttr) (*MR, error) {
	return pd.addMR(verb, attr, func() (ProviderMR, error) { return pd.p.RegMR(attr) })
}

// addMR makes a region of what register registers.
func (pd *PD) addMR(verb string, attr MRAttr, register func() (ProviderMR, error)) (*MR, error) {
	if err := pd.dev.checkAccess(attr.Access); err != nil {
		return nil, wrap(verb, pd.name, err)
	}
	mr := &MR{pd: pd, access: attr.Access, allocated: attr.Buf == nil}
	if err := mr.attach(verb, &pd.object); err != nil {
		return nil, err
	}
	p, err := register()
	if err != nil {
		mr.detach()
		return nil, wrap(verb, pd.name, err)
	}
	mr.register(p, attr.Length)
	mr.made(mr)
	return mr, nil
}

// Close frees the domain (ibv_dealloc_pd). It fails with ErrBusy while the domain has open objects.
func (pd *PD) Close() error { return pd.close(pd.p.Close) }
