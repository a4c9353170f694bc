package verbs

import "fmt"

// MWType is the type of a memory window (enum ibv_mw_type).
type MWType uint8

// The window types (IBV_MW_TYPE_*).
const (
	MWType1 MWType = 1 // bound by QP.BindMW; any QP of the PD may use it
	MWType2 MWType = 2 // bound by a posted OpBindMW; only the QP that bound it may use it (type 2B)
)

var mwTypeNames = names[MWType]{"MW_TYPE", map[MWType]string{MWType1: "MW_TYPE_1", MWType2: "MW_TYPE_2"}}

// String returns the C library's name without IBV_, such as MW_TYPE_1.
func (t MWType) String() string { return mwTypeNames.name(t) }

// MW is a memory window (struct ibv_mw). It opens a part of a memory region to a peer by a key of its
// own, which can be taken back quickly.
type MW struct {
	object
	pd  *PD
	p   ProviderMW
	typ MWType
}

// AllocMW allocates a window that is bound to nothing (ibv_alloc_mw). The error is ErrUnsupported on
// a device without windows of the type.
func (pd *PD) AllocMW(t MWType) (*MW, error) {
	const verb = "alloc mw in"
	if t != MWType1 && t != MWType2 {
		return nil, wrap(verb, pd.name, invalidf("%v is no window type", t))
	}
	mw := &MW{object: object{name: "new mw"}, pd: pd, typ: t}
	if err := mw.attach(verb, &pd.object); err != nil {
		return nil, err
	}
	p, err := pd.p.AllocMW(t)
	if err != nil {
		mw.detach()
		return nil, wrap(verb, pd.name, err)
	}
	mw.p = p
	mw.setName(fmt.Sprintf("mw rkey %v", p.RKey()))
	mw.made(mw)
	return mw, nil
}

// Type returns the window's type.
func (mw *MW) Type() MWType { return mw.typ }

// RKey returns the window's present key. Binding the window changes it.
func (mw *MW) RKey() RKey { return mw.p.RKey() }

// Provider returns the provider's side of the window, for implementers of providers.
func (mw *MW) Provider() ProviderMW { return mw.p }

// Close frees the window (ibv_dealloc_mw). Peers can then no longer use its key. Close does not wait for the
// packet of a peer that is being carried out: closing the memory region does.
func (mw *MW) Close() error { return mw.close(mw.p.Close) }

// MWBind names the memory to which to bind a window (struct ibv_mw_bind_info).
type MWBind struct {
	MW     *MW
	RKey   RKey   // type 2: the window's next key, which is IncRKey of the present one
	MR     *MR    // registered with AccessMWBind
	Addr   uint64 // the window's first byte, inside MR
	Length uint64 // bytes; 0 unbinds a window of type 1
	Access Access // remote access flags and AccessZeroBased
}

// IncRKey returns the key that follows r for a window of type 2 (ibv_inc_rkey). The lowest 8 bits of
// such a key are the program's to choose; IncRKey adds 1 to them and wraps around.
func IncRKey(r RKey) RKey { return r&^0xff | (r+1)&0xff }

// check reports the first fault of a bind, of those that are faults in any state of the window. QP, window
// and region must be of one PD: IBTA C10-72.
func (b *MWBind) check(qp *QP, t MWType) error {
	const allowed = AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic | AccessZeroBased
	switch {
	case sendOps[qp.typ]>>OpBindMW&1 == 0:
		return Errorf(ErrUnsupported, "%v is no operation of a %v QP", OpBindMW, qp.typ)
	case b == nil || b.MW == nil:
		return invalidf("no window given to bind")
	case b.MW.typ != t:
		return invalidf("%s is of %v, and this binds %v: use QP.BindMW for type 1 and OpBindMW for type 2", b.MW.name, b.MW.typ, t)
	case b.MR == nil && b.Length != 0:
		return invalidf("no memory region given to bind to")
	case b.Access&^allowed != 0:
		return invalidf("access %v: a window takes remote write, read and atomic, and zero based", b.Access&^allowed)
	case b.MW.pd != qp.pd:
		return invalidf("%s is of another PD than the QP", b.MW.name)
	case b.MR != nil && b.MR.pd != qp.pd:
		return invalidf("%s is of another PD than the QP", b.MR.named())
	}
	return nil
}

// BindMW binds a window of type 1 (ibv_bind_mw). The bind is a send work request: of wr only ID and
// Flags count, and the opcode of its completion is WCBindMW. The window has its new key when BindMW
// has returned, and opens its memory by it once the bind is carried out. As with Close, a packet that
// came by the old key may be carried out to its end after that. The error is ErrInvalid if bind does not
// fit the window or the QP, and ErrUnsupported for a UD QP.
func (qp *QP) BindMW(wr SendWR, bind MWBind) error {
	const verb = "bind mw by"
	if bad := wr.Flags &^ knownSendFlags; bad != 0 {
		return wrap(verb, qp.name, invalidf("unknown send flags %v", bad))
	}
	if err := bind.check(qp, MWType1); err != nil {
		return wrap(verb, qp.name, err)
	}
	// Nothing else of wr: its other fields have not been checked, and a provider would copy them.
	wrs := [1]SendWR{{ID: wr.ID, Op: OpBindMW, Flags: wr.Flags, Bind: &bind}}
	_, err := qp.p.PostSend(wrs[:])
	return wrap(verb, qp.name, err)
}
