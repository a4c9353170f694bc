package verbs

import (
	"net/netip"
	"sync/atomic"
)

// AHAttr is the path to a peer (struct ibv_ah_attr, with the fields of its struct
// ibv_global_route). The fields that a path needs depend on the link layer of its port:
//
//   - Ethernet, so RoCE: DGID is required, and every packet bears a GRH or, with RoCEv2, the IP
//     header in its place. DLID, SrcPathBits and StaticRate do not count.
//   - InfiniBand: DLID is required. DGID is for peers in other subnets, and for multicast groups.
//   - Unspecified, where the device does not tell: DGID or DLID is required.
//
// On iWARP a program does not give a path: the connections are TCP's.
type AHAttr struct {
	DLID        uint16 // dlid: the peer's LID, or that of a multicast group (0xc000 to 0xfffe)
	SL          uint8  // sl: the service level, 4 bits
	SrcPathBits uint8  // src_path_bits: which of our port's LIDs to send from, 7 bits; see PortAttr.LMC
	StaticRate  Rate   // static_rate: the fastest that the path is sent at; RateMax for no limit
	Port        int    // port_num: ours; 0 stands for the QP's, and for port 1 in PD.CreateAH

	// The global route (grh). It is used if DGID is not zero, which is is_global: see IsGlobal.
	DGID         GID    // dgid: the peer's, or a multicast group's
	SGIDIndex    int    // sgid_index: ours, by its place in the port's GID table
	FlowLabel    uint32 // flow_label: 20 bits; no effect on software devices but on InfiniBand
	HopLimit     uint8  // hop_limit; 0 stands for 64; no effect on software devices but on InfiniBand
	TrafficClass uint8  // traffic_class: with RoCEv2 the IPv4 TOS or the IPv6 traffic class
}

// IsGlobal reports whether packets on the path bear a GRH (is_global of struct ibv_ah_attr): they
// do if DGID is not zero. The zero GID is nobody's, so there is no path to it.
func (a *AHAttr) IsGlobal() bool { return !a.DGID.IsZero() }

// Largest values of the fields of AHAttr, by their size in packets.
const (
	maxSL          = 1<<4 - 1
	maxSrcPathBits = 1<<7 - 1
	maxFlowLabel   = 1<<20 - 1
)

// firstMulticastLID is the lowest LID of multicast groups. Ports have lower ones.
const firstMulticastLID = 0xc000

// isMulticast reports whether the path leads to a multicast group.
func (a *AHAttr) isMulticast() bool {
	if a.IsGlobal() {
		return a.DGID.Addr().IsMulticast()
	}
	return a.DLID >= firstMulticastLID
}

// onPort returns the path from another port of the device.
func (a AHAttr) onPort(port int) AHAttr {
	a.Port = port
	return a
}

// setDefaults replaces zero fields by their defaults.
func (a *AHAttr) setDefaults() {
	if a.HopLimit == 0 && a.IsGlobal() {
		a.HopLimit = defaultHopLimit
	}
}

// check reports the first fault of a path on a port whose link layer is link.
func (a *AHAttr) check(link LinkLayer) error {
	switch {
	case link == LinkLayerEthernet && !a.IsGlobal():
		return invalidf("the peer's GID (DGID) is empty")
	case link == LinkLayerInfiniBand && a.DLID == 0:
		return invalidf("the peer's LID (DLID) is 0: on InfiniBand a path needs it, with a GID and without")
	case a.DLID == 0 && !a.IsGlobal():
		return invalidf("the peer's LID (DLID) is 0 and its GID (DGID) is empty: a path needs one of them")
	case a.IsGlobal() && a.FlowLabel > maxFlowLabel:
		return invalidf("flow label %#x has more than 20 bits", a.FlowLabel)
	case link == LinkLayerEthernet:
		return nil // the rest is InfiniBand's: IBTA CA17-30
	case a.SL > maxSL:
		return invalidf("service level (SL) %d: 0 to %d", a.SL, maxSL)
	case a.SrcPathBits > maxSrcPathBits:
		return invalidf("source path bits %#x: 0 to %#x", a.SrcPathBits, maxSrcPathBits)
	}
	return nil
}

// AH is an address handle (struct ibv_ah): the path that a datagram takes.
type AH struct {
	object
	pd   *PD
	p    ProviderAH
	attr AHAttr

	multicast bool        // it leads to a group
	gone      atomic.Bool // it is closed. Posts look at this, which takes no lock
}

// GRHSize is the number of bytes before the payload in the buffer of a UD receive. They are the
// packet's global route header or, with RoCEv2 over IPv4, 20 undefined bytes and the IPv4 header.
// On InfiniBand they are undefined unless the completion has WCFlagGRH.
const GRHSize = 40

// CreateAH makes an address handle (ibv_create_ah). [AHAttr] lists the fields that a path needs; the
// error for a path that lacks one is ErrInvalid. On iWARP, which has no datagrams, the error is
// ErrUnsupported.
func (pd *PD) CreateAH(attr AHAttr) (*AH, error) {
	const verb = "create ah in"
	if err := pd.dev.check(verb); err != nil {
		return nil, err
	}
	if attr.Port == 0 {
		attr = attr.onPort(1)
	}
	attr.setDefaults()
	if err := pd.dev.checkPath(&attr); err != nil {
		return nil, wrap(verb, pd.name, err)
	}
	ah := &AH{object: object{name: pd.dev.serial.next("ah")}, pd: pd, attr: attr, multicast: attr.isMulticast()}
	if err := ah.attach(verb, &pd.object); err != nil {
		return nil, err
	}
	p, err := pd.p.CreateAH(attr)
	if err != nil {
		ah.detach()
		return nil, wrap(verb, pd.name, err)
	}
	ah.p = p
	ah.made(ah)
	return ah, nil
}

// checkPath reports the first fault of a path, whose port is given.
func (d *Device) checkPath(a *AHAttr) error {
	if d.info.Transport == TransportIWARP {
		return Errorf(ErrUnsupported, "iWARP has no address handles: its connections are TCP's, and it has no datagrams")
	}
	if !d.hasPort(a.Port) {
		return invalidf("port %d: ports are 1 to %d", a.Port, d.attr.PhysPortCnt)
	}
	link, err := d.linkLayer(a.Port)
	if err != nil {
		return err
	}
	return a.check(link)
}

// CreateAHFromWC makes an address handle that leads back to the sender of a UD message
// (ibv_create_ah_from_wc). Its arguments are those of [Device.AHAttrFromWC].
func (pd *PD) CreateAHFromWC(port int, wc *WC, grh []byte) (*AH, error) {
	attr, err := pd.dev.ahAttrFromWC(port, wc, grh)
	if err != nil {
		return nil, wrap("create ah in", pd.name, err)
	}
	return pd.CreateAH(attr)
}

// The field of a GRH that says what follows: of RoCEv2 it is UDP, else a BTH.
const (
	grhNextHeaderAt  = 6
	grhNextHeaderBTH = 0x1b
)

// AHAttrFromWC returns the path back to the sender of a UD message (ibv_init_ah_from_wc). wc is
// the receive's completion, port the port that it came in by, and grh the start of the buffer that
// received it: at least GRHSize bytes if wc has WCFlagGRH. On RoCE every UD receive has it. On
// InfiniBand a message from the same subnet may lack it, and the path is then made of LIDs alone.
//
// The error is ErrInvalid if wc is no UD receive or grh is too short, and ErrNotFound if the port
// does not exist or has no GID of the sender's IP version.
func (d *Device) AHAttrFromWC(port int, wc *WC, grh []byte) (AHAttr, error) {
	a, err := d.ahAttrFromWC(port, wc, grh)
	return a, wrap("make a path on", d.name, err)
}

func (d *Device) ahAttrFromWC(port int, wc *WC, grh []byte) (AHAttr, error) {
	if err := d.checkPort("make a path on", port); err != nil {
		return AHAttr{}, err
	}
	a := AHAttr{Port: port, DLID: wc.SLID, SL: wc.SL, SrcPathBits: wc.DLIDPathBits}
	if wc.Flags&WCFlagGRH == 0 {
		link, err := d.linkLayer(port)
		switch {
		case err != nil:
			return AHAttr{}, err
		case link == LinkLayerEthernet:
			return AHAttr{}, invalidf("the completion has no WC_GRH: it is no UD receive")
		case wc.SLID == 0:
			return AHAttr{}, invalidf("the completion has neither WC_GRH nor the sender's LID: it is no UD receive")
		}
		return a, nil
	}
	if len(grh) < GRHSize {
		return AHAttr{}, invalidf("a GRH has %d bytes, and %d were given", GRHSize, len(grh))
	}
	if link, err := d.linkLayer(port); err == nil && link == LinkLayerEthernet {
		a.SL = 0 // the completion has the header's type there
	}
	var local GID
	typ := GIDTypeRoCEv2
	if ip := grh[20:GRHSize]; ip[0] == 0x45 && grh[0]>>4 != 6 {
		a.DGID = GIDFromAddr(netip.AddrFrom4([4]byte(ip[12:])))
		local = GIDFromAddr(netip.AddrFrom4([4]byte(ip[16:])))
		a.TrafficClass = ip[1]
	} else {
		a.DGID, local = GID(grh[8:24]), GID(grh[24:40])
		a.TrafficClass = grh[0]<<4 | grh[1]>>4
		a.FlowLabel = uint32(grh[1]&0xf)<<16 | uint32(grh[2])<<8 | uint32(grh[3])
		if grh[grhNextHeaderAt] == grhNextHeaderBTH {
			typ = GIDTypeRoCEv1 // or InfiniBand, where all GIDs are of one type
		}
	}
	es, err := d.GIDs(port)
	if err != nil {
		return AHAttr{}, err
	}
	// The destination of a multicast message is no GID of ours. Any GID of its IP version will do. A card has each GID
	// twice, for RoCE v1 and v2.
	best := 0
	for _, e := range es {
		fit := 0
		if e.GID == local {
			fit = 4
		} else if e.GID.Addr().Is4() == a.DGID.Addr().Is4() {
			fit = 2
		}
		if fit > 0 && e.Type == typ {
			fit++
		}
		if fit > best {
			a.SGIDIndex, best = e.Index, fit
		}
	}
	if best == 0 {
		return AHAttr{}, Errorf(ErrNotFound, "no GID of port %d is of the IP version of the sender's, %v", port, a.DGID)
	}
	return a, nil
}

// Attr returns the path.
func (ah *AH) Attr() AHAttr { return ah.attr }

// Provider returns the provider's side of the handle, for implementers of providers.
func (ah *AH) Provider() ProviderAH { return ah.p }

// Close destroys the handle (ibv_destroy_ah). Messages that were posted with it still go out. To post
// others with it is ErrClosed.
func (ah *AH) Close() error {
	return ah.close(func() error {
		ah.gone.Store(true)
		return ah.p.Close()
	})
}
