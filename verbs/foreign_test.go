package verbs_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// foreign stands for a device of a kind that this module does not drive. It has the attributes that a
// test wants, and keeps the facade's arguments. Underneath is a simulated device.
type foreign struct {
	verbs.ProviderDevice
	transport verbs.Transport
	change    func(*verbs.DeviceAttr)
	links     []verbs.LinkLayer // of its ports
	grant     int               // bytes of inline data that it has
	twice     bool              // each GID is there for RoCE v1 and for v2, in this order
	queryErr  error
	closeErr  error // of its PDs
	closed    bool

	portQueries int
	ahs         []verbs.AHAttr
}

// inline is the number of bytes that a foreign device grants to a QP that asks for less.
const inline = 28

func (f *foreign) Info() verbs.DeviceInfo {
	i := f.ProviderDevice.Info()
	i.Transport = f.transport
	return i
}

func (f *foreign) Query() (verbs.DeviceAttr, error) {
	a, err := f.ProviderDevice.Query()
	a.PhysPortCnt = max(len(f.links), 1)
	if f.change != nil {
		f.change(&a)
	}
	return a, errors.Join(err, f.queryErr)
}

func (f *foreign) QueryPort(port int) (verbs.PortAttr, error) {
	f.portQueries++
	a, err := f.ProviderDevice.QueryPort(1)
	if f.links != nil {
		a.LinkLayer = f.links[port-1]
	}
	return a, err
}

func (f *foreign) GID(port, index int) (verbs.GIDEntry, error) {
	if !f.twice {
		return f.ProviderDevice.GID(port, index)
	}
	e, err := f.ProviderDevice.GID(port, index/2)
	e.Index, e.Type = index, verbs.GIDTypeRoCEv1+verbs.GIDType(index%2)
	return e, err
}

func (f *foreign) AllocPD() (verbs.ProviderPD, error) {
	pd, err := f.ProviderDevice.AllocPD()
	return foreignPD{pd, f}, err
}

func (f *foreign) Close() error {
	f.closed = true
	return f.ProviderDevice.Close()
}

type foreignPD struct {
	verbs.ProviderPD
	dev *foreign
}

func (p foreignPD) CreateAH(attr verbs.AHAttr) (verbs.ProviderAH, error) {
	p.dev.ahs = append(p.dev.ahs, attr)
	return foreignAH{}, nil
}

func (p foreignPD) Close() error { return errors.Join(p.ProviderPD.Close(), p.dev.closeErr) }

type foreignAH struct{}

func (foreignAH) Close() error { return nil }

func (p foreignPD) CreateQP(attr *verbs.ProviderQPInitAttr, qp *verbs.QP) (verbs.ProviderQP, error) {
	if p.dev.grant > 0 {
		if attr.Cap.MaxInlineData > p.dev.grant {
			return nil, verbs.Errorf(verbs.ErrLimit, "the device has %d bytes of inline data", p.dev.grant)
		}
		attr.Cap.MaxInlineData = max(attr.Cap.MaxInlineData, inline)
	}
	q, err := p.ProviderPD.CreateQP(attr, qp)
	return &foreignQP{ProviderQP: q}, err
}

// foreignQP allows every change, and keeps the last one.
type foreignQP struct {
	verbs.ProviderQP
	state verbs.QPState
	port  int
	attr  verbs.QPAttr
	mask  verbs.QPAttrMask
}

func (q *foreignQP) State() verbs.QPState { return q.state }

func (q *foreignQP) Query() (verbs.QPAttr, error) {
	return verbs.QPAttr{State: q.state, CurState: q.state, Port: q.port}, nil
}

func (q *foreignQP) Modify(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	q.attr, q.mask = *attr, mask
	if mask&verbs.MaskState != 0 {
		q.state = attr.State
	}
	if mask&verbs.MaskPort != 0 {
		q.port = attr.Port
	}
	return nil
}

// open makes a Device of f.
func (f *foreign) open(t *testing.T) *verbs.Device {
	f.ProviderDevice = device(t).Provider()
	return verbs.NewDevice(f)
}

// qp makes a QP of a type in INIT, at a port.
func (f *foreign) qp(t *testing.T, pd *verbs.PD, port int) (*verbs.QP, *foreignQP) {
	t.Helper()
	cq := must(pd.Device().CreateCQ(8))(t)
	qp := must(pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq}))(t)
	check(t, qp.Init(port, 0))
	return qp, qp.Provider().(*foreignQP)
}

// An object whose Close fails is closed all the same, unless it is busy: its parents can be closed.
func TestCloseFails(t *testing.T) {
	f := &foreign{closeErr: errors.New("the hardware does not answer")}
	d := f.open(t)
	pd := must(d.AllocPD())(t)
	wantErr(t, "close pd", pd.Close(), f.closeErr, "close pd 1: the hardware does not answer")
	check(t, pd.Close())
	check(t, d.Close())
}

// A device that does not tell its inline limit decides when it creates the QP, and posts may have
// as many bytes as it grants.
func TestMaxInlineUnknown(t *testing.T) {
	f := &foreign{grant: 256, change: func(a *verbs.DeviceAttr) { a.MaxInline = verbs.MaxInlineUnknown }}
	d := f.open(t)
	if a := must(d.Query())(t); a.MaxInline != verbs.MaxInlineUnknown {
		t.Errorf("MaxInline is %d, want MaxInlineUnknown (%d)", a.MaxInline, verbs.MaxInlineUnknown)
	}
	pd, cq := must(d.AllocPD())(t), must(d.CreateCQ(8))(t)
	create := func(n int) (*verbs.QP, error) {
		return pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 4, MaxInlineData: n}})
	}
	for asked, granted := range map[int]int{0: inline, 1: inline, 200: 200, 256: 256} {
		qp, err := create(asked)
		check(t, err)
		_, init, err := qp.Query()
		check(t, err)
		if init.Cap.MaxInlineData != granted {
			t.Errorf("asked for %d bytes of inline data, got %d, want %d", asked, init.Cap.MaxInlineData, granted)
		}
		_, err = qp.PostSend([]verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.SendInline, InlineData: make([]byte, granted+1)}})
		wantErr(t, "one byte more than granted", err, verbs.ErrLimit, "max_inline_data")
	}
	_, err := create(257)
	wantErr(t, "more than the device has", err, verbs.ErrLimit, "create qp in pd 1: the device has 256 bytes of inline data")
	_, err = create(-1)
	wantErr(t, "a negative number", err, verbs.ErrLimit, "max_inline_data -1: it must be 0 or more")
	_, err = pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 1 << 20}})
	wantErr(t, "a limit that is known", err, verbs.ErrLimit, "max_send_wr")
}

var (
	ethernet, infiniband = verbs.LinkLayerEthernet, verbs.LinkLayerInfiniBand
	unspecified          = verbs.LinkLayerUnspecified
)

// The fields that a path needs depend on the link layer of its port, in CreateAH and in Modify.
func TestPathByLinkLayer(t *testing.T) {
	peer := must(verbs.ParseGID("10.0.0.9"))(t)
	const sl, bits = 15, 127
	tests := []struct {
		name  string
		link  verbs.LinkLayer
		attr  verbs.AHAttr
		wants string // of the error, or empty
	}{
		{"GID", ethernet, verbs.AHAttr{DGID: peer}, ""},
		{"no GID", ethernet, verbs.AHAttr{}, "the peer's GID (DGID) is empty"},
		{"LID alone", ethernet, verbs.AHAttr{DLID: 7}, "the peer's GID (DGID) is empty"},
		{"what InfiniBand limits", ethernet, verbs.AHAttr{DGID: peer, SL: 255, SrcPathBits: 255}, ""},
		{"flow label", ethernet, verbs.AHAttr{DGID: peer, FlowLabel: 1<<20 - 1}, ""},
		{"long flow label", ethernet, verbs.AHAttr{DGID: peer, FlowLabel: 1 << 20}, "flow label 0x100000 has more than 20 bits"},
		{"LID alone", infiniband, verbs.AHAttr{DLID: 7}, ""},
		{"LID and all that goes with it", infiniband, verbs.AHAttr{DLID: 0xbfff, SL: sl, SrcPathBits: bits, StaticRate: verbs.Rate100}, ""},
		{"LID and GID", infiniband, verbs.AHAttr{DLID: 7, DGID: peer}, ""},
		{"GID alone", infiniband, verbs.AHAttr{DGID: peer}, "the peer's LID (DLID) is 0"},
		{"nothing", infiniband, verbs.AHAttr{}, "the peer's LID (DLID) is 0"},
		{"SL", infiniband, verbs.AHAttr{DLID: 7, SL: sl + 1}, "service level (SL) 16: 0 to 15"},
		{"path bits", infiniband, verbs.AHAttr{DLID: 7, SrcPathBits: bits + 1}, "source path bits 0x80: 0 to 0x7f"},
		{"flow label without a GRH", infiniband, verbs.AHAttr{DLID: 7, FlowLabel: 1 << 20}, ""},
		{"long flow label", infiniband, verbs.AHAttr{DLID: 7, DGID: peer, FlowLabel: 1 << 20}, "flow label"},
		{"LID", unspecified, verbs.AHAttr{DLID: 7}, ""},
		{"GID", unspecified, verbs.AHAttr{DGID: peer}, ""},
		{"nothing", unspecified, verbs.AHAttr{}, "a path needs one of them"},
	}
	for _, tt := range tests {
		t.Run(tt.link.String()+" "+tt.name, func(t *testing.T) {
			f := &foreign{links: []verbs.LinkLayer{tt.link}}
			pd := must(f.open(t).AllocPD())(t)
			want := tt.attr
			if !want.DGID.IsZero() {
				want.HopLimit = 64
			}
			_, err := pd.CreateAH(tt.attr)
			if tt.wants != "" {
				wantErr(t, "CreateAH", err, verbs.ErrInvalid, "create ah in pd 1: ", tt.wants)
			} else if check(t, err); true {
				given := want
				given.Port = 1
				if !slices.Equal(f.ahs, []verbs.AHAttr{given}) {
					t.Errorf("CreateAH gave the provider %+v, want %+v", f.ahs, given)
				}
			}
			qp, q := f.qp(t, pd, 1)
			err = qp.Modify(&verbs.QPAttr{State: verbs.QPStateRTR, AH: tt.attr, PathMTU: verbs.MTU1024}, rtrMask)
			if tt.wants != "" {
				wantErr(t, "Modify", err, verbs.ErrInvalid, "modify qp", "AV: ", tt.wants)
				if q.state != verbs.QPStateInit {
					t.Errorf("a refused Modify took the QP to %v, want it in INIT", q.state)
				}
			} else if check(t, err); q.attr.AH != want {
				t.Errorf("Modify gave the provider %+v, want %+v", q.attr.AH, want)
			}
		})
	}
}

const rtrMask = verbs.MaskState | verbs.MaskAV | verbs.MaskPathMTU | verbs.MaskDestQPN | verbs.MaskRQPSN |
	verbs.MaskMaxDestRDAtomic | verbs.MaskMinRNRTimer

// RTR makes the address vector of the peer's values and of the path.
func TestRTROnInfiniBand(t *testing.T) {
	f := &foreign{links: []verbs.LinkLayer{infiniband}}
	pd := must(f.open(t).AllocPD())(t)
	peer := must(verbs.ParseGID("fe80::9"))(t)
	for _, tt := range []struct {
		peer verbs.Peer
		path verbs.Path
		want verbs.AHAttr
	}{
		{verbs.Peer{LID: 3}, verbs.Path{}, verbs.AHAttr{DLID: 3}},
		{verbs.Peer{LID: 3}, verbs.Path{SL: 2, SrcPathBits: 1, StaticRate: verbs.Rate25},
			verbs.AHAttr{DLID: 3, SL: 2, SrcPathBits: 1, StaticRate: verbs.Rate25}},
		{verbs.Peer{LID: 3, GID: peer}, verbs.Path{SGIDIndex: 1, FlowLabel: 5, TrafficClass: 6},
			verbs.AHAttr{DLID: 3, DGID: peer, SGIDIndex: 1, FlowLabel: 5, TrafficClass: 6, HopLimit: 64}},
	} {
		qp, q := f.qp(t, pd, 1)
		if check(t, qp.RTR(tt.peer, tt.path)); q.attr.AH != tt.want {
			t.Errorf("RTR to %v by %+v: address vector %+v, want %+v", tt.peer, tt.path, q.attr.AH, tt.want)
		}
	}
	qp, _ := f.qp(t, pd, 1)
	wantErr(t, "a GID alone", qp.RTR(verbs.Peer{GID: peer}, verbs.Path{}), verbs.ErrInvalid, "AV: the peer's LID (DLID) is 0")
	wantErr(t, "a group's LID", qp.RTR(verbs.Peer{LID: 0xc000}, verbs.Path{}), verbs.ErrInvalid, "LID 0xc000 is no single port's")
}

// The link layer is that of the path's port or, if it has none, of the QP's. Each port is asked for it
// once.
func TestLinkLayerOfPort(t *testing.T) {
	f := &foreign{links: []verbs.LinkLayer{ethernet, infiniband}}
	d := f.open(t)
	pd := must(d.AllocPD())(t)
	lid, global := verbs.AHAttr{DLID: 7}, verbs.AHAttr{DGID: gid(t, d)}
	for _, port := range []int{1, 2} {
		qp, _ := f.qp(t, pd, port)
		good, bad := global, lid
		if port == 2 {
			good, bad = lid, global
		}
		asked := f.portQueries
		for range 3 {
			rtr := verbs.QPAttr{State: verbs.QPStateRTR, AH: bad, PathMTU: verbs.MTU1024}
			wantErr(t, "by the QP's port", qp.Modify(&rtr, rtrMask), verbs.ErrInvalid, "AV: ")
		}
		if n := f.portQueries - asked; n != 1 {
			t.Errorf("three changes asked %d times for the attributes of port %d, want once", n, port)
		}
		check(t, qp.Modify(&verbs.QPAttr{State: verbs.QPStateRTR, AH: good, PathMTU: verbs.MTU1024}, rtrMask))

		good.Port, bad.Port = port, port
		must(pd.CreateAH(good))(t)
		_, err := pd.CreateAH(bad)
		wantErr(t, "by the path's port", err, verbs.ErrInvalid, "create ah in pd 1: ")
	}
	qp, _ := f.qp(t, pd, 2)
	global.Port = 1 // the path's own port counts, not the QP's
	check(t, qp.Modify(&verbs.QPAttr{State: verbs.QPStateRTR, AH: global, PathMTU: verbs.MTU1024}, rtrMask))
	global.Port = 3
	_, err := pd.CreateAH(global)
	wantErr(t, "CreateAH", err, verbs.ErrInvalid, "port 3: ports are 1 to 2")
	qp, _ = f.qp(t, pd, 1)
	err = qp.Modify(&verbs.QPAttr{State: verbs.QPStateRTR, AH: global, PathMTU: verbs.MTU1024}, rtrMask)
	wantErr(t, "Modify", err, verbs.ErrInvalid, "AV: port 3: ports are 1 to 2")
}

// On InfiniBand a datagram may come without a GRH. The way back is then made of LIDs.
func TestAHAttrFromWC(t *testing.T) {
	f := &foreign{links: []verbs.LinkLayer{infiniband, ethernet}}
	d := f.open(t)
	wc := verbs.WC{SLID: 9, SL: 3, DLIDPathBits: 1}
	want := verbs.AHAttr{Port: 1, DLID: 9, SL: 3, SrcPathBits: 1}
	if a, err := d.AHAttrFromWC(1, &wc, nil); err != nil || a != want {
		t.Errorf("without a GRH: %+v, %v, want %+v", a, err, want)
	}
	pd := must(d.AllocPD())(t)
	if ah := must(pd.CreateAHFromWC(1, &wc, nil))(t); ah.Attr() != want {
		t.Errorf("the handle leads by %+v, want %+v", ah.Attr(), want)
	}

	from := must(verbs.ParseGID("fd00::7"))(t)
	local := must(d.GID(1, 1))(t) // an IPv6 address
	grh := make([]byte, verbs.GRHSize)
	grh[0], grh[1], grh[3] = 0x6a, 0xb1, 0x02
	copy(grh[8:], from[:])
	copy(grh[24:], local.GID[:])
	wc.Flags = verbs.WCFlagGRH
	want.DGID, want.SGIDIndex, want.TrafficClass, want.FlowLabel = from, 1, 0xab, 0x10002
	if a, err := d.AHAttrFromWC(1, &wc, grh); err != nil || a != want {
		t.Errorf("with a GRH: %+v, %v, want %+v", a, err, want)
	}

	f.twice = true // as on a card
	want.SGIDIndex = 3
	if a, err := d.AHAttrFromWC(1, &wc, grh); err != nil || a != want {
		t.Errorf("where each GID is there twice: %+v, %v, want that of RoCE v2, %+v", a, err, want)
	}
	want.SGIDIndex, grh[6] = 2, 0x1b // a BTH follows, not UDP
	if a, err := d.AHAttrFromWC(1, &wc, grh); err != nil || a != want {
		t.Errorf("of a message of RoCE v1: %+v, %v, want its GID, %+v", a, err, want)
	}
	grh[6] = 17
	copy(grh[24:], "\xff\x02") // a multicast message: any GID of its IP version
	if a, err := d.AHAttrFromWC(1, &wc, grh); err != nil || a.SGIDIndex%2 != 1 {
		t.Errorf("of a multicast message: %+v, %v, want a GID of RoCE v2", a, err)
	}
	f.twice = false

	_, err := d.AHAttrFromWC(1, &wc, grh[1:])
	wantErr(t, "a short buffer", err, verbs.ErrInvalid, "make a path on device sim0: a GRH has 40 bytes, and 39 were given")
	_, err = d.AHAttrFromWC(1, &verbs.WC{}, grh)
	wantErr(t, "neither GRH nor LID", err, verbs.ErrInvalid, "neither WC_GRH nor the sender's LID")
	_, err = d.AHAttrFromWC(2, &verbs.WC{SLID: 9}, grh)
	wantErr(t, "no GRH on Ethernet", err, verbs.ErrInvalid, "the completion has no WC_GRH")
	_, err = d.AHAttrFromWC(3, &wc, grh)
	wantErr(t, "no such port", err, verbs.ErrNotFound, "no port 3")
}

// On iWARP a program makes a QP and closes its connection. The connection manager makes the connection.
func TestIWARP(t *testing.T) {
	f := &foreign{transport: verbs.TransportIWARP}
	d := f.open(t)
	pd, cq := must(d.AllocPD())(t), must(d.CreateCQ(8))(t)
	for _, typ := range []verbs.QPType{verbs.QPTypeUC, verbs.QPTypeUD} {
		_, err := pd.CreateQP(verbs.QPInitAttr{Type: typ, SendCQ: cq, RecvCQ: cq})
		wantErr(t, typ.String(), err, verbs.ErrUnsupported, "type "+typ.String()+": iWARP has RC QPs only")
	}
	_, err := pd.CreateAH(verbs.AHAttr{DGID: gid(t, d), DLID: 1})
	wantErr(t, "CreateAH", err, verbs.ErrUnsupported, "iWARP has no address handles")

	qp, q := f.qp(t, pd, 1)
	if q.mask&verbs.MaskPKeyIndex != 0 || q.state != verbs.QPStateInit {
		t.Errorf("Init took the QP to %v by %v, want INIT without PKEY_INDEX", q.state, q.mask)
	}
	err = qp.RTR(verbs.Peer{QPN: 5, GID: gid(t, d)}, verbs.Path{})
	wantErr(t, "RTR", err, verbs.ErrUnsupported, "INIT->RTR: iWARP has no state RTR: its connection manager takes the QP",
		"iWARP has no AV, PATH_MTU, RQ_PSN, MIN_RNR_TIMER, DEST_QPN")
	err = qp.RTS(0, verbs.DefaultRetry)
	wantErr(t, "RTS", err, verbs.ErrUnsupported, "INIT->RTS: on iWARP only the connection manager takes a QP to RTS", "iWARP has no TIMEOUT", "SQ_PSN")
	err = qp.Modify(&verbs.QPAttr{}, verbs.MaskPKeyIndex|verbs.MaskAccessFlags)
	wantErr(t, "PKEY_INDEX", err, verbs.ErrUnsupported, "INIT->INIT: iWARP has no PKEY_INDEX")
	check(t, qp.Modify(&verbs.QPAttr{Access: verbs.AccessRemoteRead}, verbs.MaskAccessFlags))
	if q.state != verbs.QPStateInit {
		t.Fatalf("the QP is in %v, want INIT: what was refused has reached the provider", q.state)
	}

	q.state = verbs.QPStateRTS // by the connection manager
	check(t, qp.Modify(&verbs.QPAttr{Access: verbs.AccessRemoteWrite}, verbs.MaskAccessFlags))
	wantErr(t, "MIN_RNR_TIMER", qp.Modify(&verbs.QPAttr{}, verbs.MaskMinRNRTimer), verbs.ErrUnsupported, "RTS->RTS: iWARP has no MIN_RNR_TIMER")
	check(t, qp.Modify(&verbs.QPAttr{State: verbs.QPStateSQD}, verbs.MaskState))
	wantErr(t, "SQD to RTS", qp.Modify(&verbs.QPAttr{State: verbs.QPStateRTS}, verbs.MaskState), verbs.ErrUnsupported, "SQD->RTS")
	check(t, qp.Modify(&verbs.QPAttr{State: verbs.QPStateErr}, verbs.MaskState))
	check(t, qp.Modify(&verbs.QPAttr{State: verbs.QPStateReset}, verbs.MaskState))
	check(t, qp.Init(1, rdmatest.Access))
}

// DefaultRetry fits a device that allows fewer READs than it asks for; a number of the program's own
// is held to the limit.
func TestDefaultRetryFits(t *testing.T) {
	f := &foreign{change: func(a *verbs.DeviceAttr) { a.MaxQPInitRdAtom = 4 }}
	d := f.open(t)
	qp, q := f.qp(t, must(d.AllocPD())(t), 1)
	check(t, qp.RTR(verbs.Peer{QPN: 5, GID: gid(t, d)}, verbs.Path{}))
	own := verbs.DefaultRetry
	own.RetryCount = 6
	wantErr(t, "16 READs", qp.RTS(0, own), verbs.ErrLimit, "MAX_QP_RD_ATOMIC 16: the device allows 0 to 4")
	if check(t, qp.RTS(0, verbs.DefaultRetry)); q.attr.MaxRDAtomic != 4 {
		t.Errorf("DefaultRetry asks for %d READs, want the device's 4", q.attr.MaxRDAtomic)
	}
}

// If the attributes of a device cannot be queried, every verb says so.
func TestNewDeviceQueryFails(t *testing.T) {
	broken := errors.New("broken")
	f := &foreign{queryErr: broken}
	d := f.open(t)
	for what, verb := range map[string]func() error{
		"Query":     func() error { _, err := d.Query(); return err },
		"QueryPort": func() error { _, err := d.QueryPort(1); return err },
		"AllocPD":   func() error { _, err := d.AllocPD(); return err },
		"CreateCQ":  func() error { _, err := d.CreateCQ(1); return err },
		"GSI":       func() error { _, err := d.GSI(); return err },
		"NextEvent": func() error { _, err := d.NextEvent(t.Context()); return err },
	} {
		wantErr(t, what, verb(), broken, "device sim0: the device's attributes could not be queried: broken")
	}
	check(t, d.Close())
	if !f.closed {
		t.Error("Close has not reached the provider")
	}
}
