package verbs

import "net/netip"

// AH is an address handle (struct ibv_ah): the path that a datagram takes.
type AH struct {
	object
	pd   *PD
	p    ProviderAH
	attr AHAttr
}

// GRHSize is how many bytes stand before the payload in the buffer of a UD receive: the
// packet's global route header or, over IPv4, 20 undefined bytes and the IPv4 header.
const GRHSize = 40

// CreateAH makes an address handle (ibv_create_ah).
func (pd *PD) CreateAH(attr AHAttr) (*AH, error) {
	const verb = "create ah in"
	if attr.Port == 0 {
		attr.Port = 1
	}
	if attr.HopLimit == 0 {
		attr.HopLimit = defaultHopLimit
	}
	if err := attr.check(&pd.dev.attr); err != nil {
		return nil, wrap(verb, pd.name, err)
	}
	ah := &AH{pd: pd, attr: attr}
	ah.name = pd.dev.serial.next("ah")
	if err := ah.attach(verb, &pd.object); err != nil {
		return nil, err
	}
	p, err := pd.p.CreateAH(attr)
	if err != nil {
		ah.detach()
		return nil, wrap(verb, pd.name, err)
	}
	ah.p = p
	return ah, nil
}

func (a *AHAttr) check(dev *DeviceAttr) error {
	if a.DGID.IsZero() {
		return invalidf("the peer's GID (DGID) is empty")
	}
	if a.Port < 1 || a.Port > dev.PhysPortCnt {
		return invalidf("port %d: ports are 1 to %d", a.Port, dev.PhysPortCnt)
	}
	return nil
}

// CreateAHFromWC makes an address handle that leads back to the sender of a UD message
// (ibv_create_ah_from_wc). grh is the start of the buffer that received it.
func (pd *PD) CreateAHFromWC(port int, wc *WC, grh []byte) (*AH, error) {
	attr, err := pd.dev.AHAttrFromWC(port, wc, grh)
	if err != nil {
		return nil, wrap("create ah in", pd.name, err)
	}
	return pd.CreateAH(attr)
}

// AHAttrFromWC returns the path back to the sender of a UD message (ibv_init_ah_from_wc).
func (d *Device) AHAttrFromWC(port int, wc *WC, grh []byte) (AHAttr, error) {
	if wc.Flags&WCFlagGRH == 0 {
		return AHAttr{}, invalidf("the completion has no WC_GRH: it is no UD receive")
	}
	if len(grh) < GRHSize {
		return AHAttr{}, invalidf("a GRH has %d bytes, and %d were given", GRHSize, len(grh))
	}
	a := AHAttr{Port: port}
	var local GID
	if ip := grh[20:GRHSize]; ip[0] == 0x45 && grh[0]>>4 != 6 {
		a.DGID = GIDFromAddr(netip.AddrFrom4([4]byte(ip[12:])))
		local = GIDFromAddr(netip.AddrFrom4([4]byte(ip[16:])))
		a.TrafficClass = ip[1]
	} else {
		a.DGID, local = GID(grh[8:24]), GID(grh[24:40])
		a.TrafficClass = grh[0]<<4 | grh[1]>>4
		a.FlowLabel = uint32(grh[1]&0xf)<<16 | uint32(grh[2])<<8 | uint32(grh[3])
	}
	es, err := d.GIDs(port)
	if err != nil {
		return AHAttr{}, err
	}
	// The destination of a multicast message is no GID of ours: any of its family will do.
	found := false
	for _, e := range es {
		if e.GID == local || !found && e.GID.Addr().Is4() == a.DGID.Addr().Is4() {
			a.SGIDIndex, found = e.Index, true
			if e.GID == local {
				break
			}
		}
	}
	if !found {
		return AHAttr{}, Errorf(ErrNotFound, "no GID of port %d is of the IP version of the sender's, %v", port, a.DGID)
	}
	return a, nil
}

// Attr returns the path.
func (ah *AH) Attr() AHAttr { return ah.attr }

// Provider returns the provider's side of the handle.
func (ah *AH) Provider() ProviderAH { return ah.p }

// Close destroys the handle (ibv_destroy_ah). Messages that are posted with it still go out.
func (ah *AH) Close() error { return ah.close(ah.p.Close) }
