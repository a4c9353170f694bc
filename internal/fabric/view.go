package fabric

// GID returns the port's GID: the prefix of its subnet and its GUID.
func (p *Port) GID() [16]byte { return gidOf(p.info.Prefix, p.guid) }

// State is what a port's owner sees of it.
type State struct {
	Name             string
	NodeGUID, GUID   uint64
	State, PhysState uint8 // codes
	LID, SMLID       uint16
	LMC, SMSL        uint8
	MTU, MaxMTU      uint8 // codes
	Width            uint8
	SpeedMbps        int
	SubnetTimeout    uint8
	VLs              uint8 // code
	CapMask          uint32
	GID              [16]byte
	PKeys            [pkeyCap]uint16 // all entries of the table; 0 is a free one
	Reregister       uint64          // how often the manager has asked clients to register anew
	SMChanges        uint64          // how often the manager has changed
}

// State returns the port's state.
func (p *Port) State() State {
	i := &p.info
	return State{
		Name: p.node.name, NodeGUID: p.node.guid, GUID: p.guid, State: i.State, PhysState: i.PhysState, LID: i.LID, SMLID: i.SMLID, LMC: i.LMC, SMSL: i.SMSL,
		MTU: i.MTU, MaxMTU: i.MTUCap, Width: i.Width, SpeedMbps: 100_000, SubnetTimeout: i.SubnetTimeout, VLs: i.VLCap, CapMask: i.CapMask, GID: p.GID(),
		PKeys: p.pkeys, Reregister: p.rereg, SMChanges: p.smChanges,
	}
}
