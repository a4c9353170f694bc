package verbs

// ReregFlags name the properties that MR.Rereg changes (enum ibv_rereg_mr_flags).
type ReregFlags uint8

// The flags (IBV_REREG_MR_CHANGE_*).
const (
	ReregTranslation ReregFlags = 1 << 0 // change the memory
	ReregPD          ReregFlags = 1 << 1 // change the protection domain
	ReregAccess      ReregFlags = 1 << 2 // change the access flags
)

// Rereg changes a region (ibv_rereg_mr). flags name the properties to change: the memory, to buf; the
// PD, to pd; the access flags, to access. Arguments that flags do not name are not looked at. The keys
// may change. No work request that names the region may be outstanding. The memory must allow the
// access of the flags, as for [PD.RegMR].
//
// If the error is ErrInvalid, ErrLimit, ErrUnsupported or ErrClosed, the region is as it was. After
// any other error it may only be closed.
func (mr *MR) Rereg(flags ReregFlags, pd *PD, buf []byte, access Access) error {
	const verb = "reregister"
	if err := mr.object.check(verb); err != nil {
		return err
	}
	if flags == 0 || flags&^(ReregTranslation|ReregPD|ReregAccess) != 0 {
		return wrap(verb, mr.named(), invalidf("flags %#x: give at least one of ReregTranslation, ReregPD, ReregAccess", uint8(flags)))
	}
	to := mr.pd
	if flags&ReregTranslation != 0 {
		if len(buf) == 0 {
			return wrap(verb, mr.named(), invalidf("the buffer is empty: register at least one byte"))
		}
	} else {
		buf = mr.buf
	}
	if flags&ReregAccess != 0 {
		if err := mr.pd.dev.checkAccess(access); err != nil {
			return wrap(verb, mr.named(), err)
		}
	} else {
		access = mr.access
	}
	if flags&ReregPD != 0 {
		if pd == nil || pd.dev != mr.pd.dev {
			return wrap(verb, mr.named(), invalidf("the new PD must be one of the region's device"))
		}
		to = pd
	}
	moved := &object{name: mr.named()}
	if err := moved.attach(verb, &to.object); err != nil { // keeps the new PD open
		return err
	}
	defer moved.detach()
	if err := mr.p.Rereg(flags, to.p, MRAttr{Buf: buf, Access: access}); err != nil {
		return wrap(verb, mr.named(), err)
	}
	mr.mu.Lock()
	mr.allocated = mr.allocated && flags&ReregTranslation == 0
	mr.buf, mr.access = buf, access
	if flags&ReregTranslation != 0 {
		mr.n = len(buf)
	}
	mr.addr, mr.lkey, mr.rkey = mr.p.Addr(), mr.p.LKey(), mr.p.RKey()
	mr.name = mr.lkey.mrName()
	mr.mu.Unlock()
	if to != mr.pd {
		mr.detach()
		mr.pd = to
		return mr.attach(verb, &to.object)
	}
	return nil
}
