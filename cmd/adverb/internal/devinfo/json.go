package devinfo

import "github.com/adverb-rdma/adverb/verbs"

// The JSON of devinfo has the classic names as keys. MTUs are in bytes.

type reportJSON struct {
	deviceJSON
	cardFacts
	FWVer           string     `json:"fw_ver"`
	SysImageGUID    string     `json:"sys_image_guid"`
	VendorID        uint32     `json:"vendor_id"`
	VendorPartID    uint32     `json:"vendor_part_id"`
	HWVer           uint32     `json:"hw_ver"`
	PhysPortCnt     int        `json:"phys_port_cnt"`
	MaxMRSize       uint64     `json:"max_mr_size"`
	PageSizeCap     uint64     `json:"page_size_cap"`
	MaxQP           int        `json:"max_qp"`
	MaxQPWR         int        `json:"max_qp_wr"`
	DeviceCapFlags  []string   `json:"device_cap_flags"`
	MaxSGE          int        `json:"max_sge"`
	MaxSGERd        int        `json:"max_sge_rd"`
	MaxCQ           int        `json:"max_cq"`
	MaxCQE          int        `json:"max_cqe"`
	MaxMR           int        `json:"max_mr"`
	MaxPD           int        `json:"max_pd"`
	MaxQPRdAtom     int        `json:"max_qp_rd_atom"`
	MaxResRdAtom    int        `json:"max_res_rd_atom"`
	MaxQPInitRdAtom int        `json:"max_qp_init_rd_atom"`
	AtomicCap       string     `json:"atomic_cap"`
	MaxMW           int        `json:"max_mw"`
	MaxMcastGrp     int        `json:"max_mcast_grp"`
	MaxMcastAttach  int        `json:"max_mcast_qp_attach"`
	MaxAH           int        `json:"max_ah"`
	MaxSRQ          int        `json:"max_srq"`
	MaxSRQWR        int        `json:"max_srq_wr"`
	MaxSRQSGE       int        `json:"max_srq_sge"`
	MaxPKeys        int        `json:"max_pkeys"`
	LocalCAAckDelay uint8      `json:"local_ca_ack_delay"`
	MaxInline       *int       `json:"max_inline_data,omitempty"` // nil where the device does not tell
	NumCompVectors  int        `json:"num_comp_vectors"`
	TimestampMask   uint64     `json:"completion_timestamp_mask"`
	HCACoreClock    uint64     `json:"hca_core_clock"` // kHz
	ODPCaps         odpJSON    `json:"odp_caps"`
	Guarantees      string     `json:"guarantees"`
	UnsharedMemory  string     `json:"unshared_memory,omitempty"`
	RefusedOptions  string     `json:"refused_options,omitempty"`
	MissingOps      string     `json:"missing_ops,omitempty"`
	Ports           []portJSON `json:"ports"`
}

// odpJSON has the names of capabilities, joined by "|", and 0 for none.
type odpJSON struct {
	General string `json:"general_caps"`
	RC      string `json:"rc_odp_caps"`
	UC      string `json:"uc_odp_caps"`
	UD      string `json:"ud_odp_caps"`
	XRC     string `json:"xrc_odp_caps"`
}

type portJSON struct {
	Port         int       `json:"port"`
	State        string    `json:"state"`
	MaxMTU       int       `json:"max_mtu"`
	ActiveMTU    int       `json:"active_mtu"`
	SMLID        uint16    `json:"sm_lid"`
	PortLID      uint16    `json:"port_lid"`
	PortLMC      uint8     `json:"port_lmc"`
	LinkLayer    string    `json:"link_layer"`
	MaxMsgSize   uint32    `json:"max_msg_sz"`
	PortCapFlags uint32    `json:"port_cap_flags"`
	BadPKeyCntr  uint32    `json:"bad_pkey_cntr"`
	QKeyViolCntr uint32    `json:"qkey_viol_cntr"`
	PKeyTableLen int       `json:"pkey_tbl_len"`
	GIDTableLen  int       `json:"gid_tbl_len"`
	ActiveWidth  string    `json:"active_width"`
	ActiveSpeed  string    `json:"active_speed"`
	PhysState    string    `json:"phys_state"`
	GIDs         []gidJSON `json:"gids"`
}

func newReportsJSON(reports []*report) []reportJSON {
	out := []reportJSON{}
	for _, r := range reports {
		out = append(out, r.json())
	}
	return out
}

func (r *report) json() reportJSON {
	a := &r.attr
	j := reportJSON{
		deviceJSON: newDeviceJSON(r.info), cardFacts: r.card,
		FWVer: a.FWVer, SysImageGUID: a.SysImageGUID.String(),
		VendorID: a.VendorID, VendorPartID: a.VendorPartID, HWVer: a.HWVer, PhysPortCnt: a.PhysPortCnt,
		MaxMRSize: a.MaxMRSize, PageSizeCap: a.PageSizeCap, MaxQP: a.MaxQP, MaxQPWR: a.MaxQPWR,
		DeviceCapFlags: append([]string{}, a.DeviceCapFlags.Names()...),
		MaxSGE:         a.MaxSGE, MaxSGERd: a.MaxSGERd, MaxCQ: a.MaxCQ, MaxCQE: a.MaxCQE, MaxMR: a.MaxMR, MaxPD: a.MaxPD,
		MaxQPRdAtom: a.MaxQPRdAtom, MaxResRdAtom: a.MaxResRdAtom, MaxQPInitRdAtom: a.MaxQPInitRdAtom,
		AtomicCap: nameOf(atomicCapNames, a.AtomicCap, "invalid atomic capability"),
		MaxMW:     a.MaxMW, MaxMcastGrp: a.MaxMcastGrp, MaxMcastAttach: a.MaxMcastQPAttach, MaxAH: a.MaxAH,
		MaxSRQ: a.MaxSRQ, MaxSRQWR: a.MaxSRQWR, MaxSRQSGE: a.MaxSRQSGE,
		MaxPKeys: a.MaxPKeys, LocalCAAckDelay: a.LocalCAAckDelay, NumCompVectors: a.NumCompVectors,
		TimestampMask: a.TimestampMask, HCACoreClock: a.HCACoreClock, Guarantees: a.Guarantees.String(),
		ODPCaps:        odpJSON{a.ODPCaps.General.String(), a.ODPCaps.RC.String(), a.ODPCaps.UC.String(), a.ODPCaps.UD.String(), a.ODPCaps.XRC.String()},
		UnsharedMemory: a.UnsharedMemory, RefusedOptions: a.RefusedOptions, MissingOps: a.MissingOps, Ports: []portJSON{},
	}
	if a.MaxInline != verbs.MaxInlineUnknown {
		j.MaxInline = &a.MaxInline
	}
	for i := range r.ports {
		j.Ports = append(j.Ports, r.ports[i].json(r.info.Name))
	}
	return j
}

func (p *portinfo) json(device string) portJSON {
	a := &p.attr
	j := portJSON{
		Port: p.number, State: nameOf(portStateNames, a.State, "invalid state"),
		MaxMTU: a.MaxMTU.Bytes(), ActiveMTU: a.ActiveMTU.Bytes(),
		SMLID: a.SMLID, PortLID: a.LID, PortLMC: a.LMC, LinkLayer: nameOf(linkLayerNames, a.LinkLayer, "Unknown"),
		MaxMsgSize: a.MaxMsgSize, PortCapFlags: a.PortCapFlags, BadPKeyCntr: a.BadPKeyCntr, QKeyViolCntr: a.QKeyViolCntr,
		PKeyTableLen: a.PKeyTableLen, GIDTableLen: a.GIDTableLen,
		ActiveWidth: nameOf(widthNames, a.ActiveWidth, "invalid width") + "X",
		ActiveSpeed: nameOf(speedNames, a.ActiveSpeed, "invalid speed"),
		PhysState:   nameOf(physStateNames, a.PhysState, "invalid physical state"),
		GIDs:        []gidJSON{},
	}
	for _, e := range p.gids {
		if e.GID != (verbs.GID{}) {
			j.GIDs = append(j.GIDs, newGIDJSON(device, e))
		}
	}
	return j
}
