package uapi

// ABIVersion is the content of /sys/class/infiniband_verbs/abi_version: IB_USER_VERBS_ABI_VERSION.
const ABIVersion = 6

// Commands of the older form: IB_USER_VERBS_CMD_.
const (
	CmdGetContext CommandNumber = iota
	CmdQueryDevice
	CmdQueryPort
	CmdAllocPD
	CmdDeallocPD
	CmdCreateAH
	CmdModifyAH
	CmdQueryAH
	CmdDestroyAH
	CmdRegMR
	CmdRegSMR
	CmdReregMR
	CmdQueryMR
	CmdDeregMR
	CmdAllocMW
	CmdBindMW
	CmdDeallocMW
	CmdCreateCompChannel
	CmdCreateCQ
	CmdResizeCQ
	CmdDestroyCQ
	CmdPollCQ
	CmdPeekCQ
	CmdReqNotifyCQ
	CmdCreateQP
	CmdQueryQP
	CmdModifyQP
	CmdDestroyQP
	CmdPostSend
	CmdPostRecv
	CmdAttachMcast
	CmdDetachMcast
	CmdCreateSRQ
	CmdModifySRQ
	CmdQuerySRQ
	CmdDestroySRQ
	CmdPostSRQRecv
	CmdOpenXRCD
	CmdCloseXRCD
	CmdCreateXSRQ
	CmdOpenQP
)

// Commands of the newer form: IB_USER_VERBS_EX_CMD_.
const (
	CmdExQueryDevice = Extended | CmdQueryDevice
	CmdExCreateCQ    = Extended | CmdCreateCQ
	CmdExCreateQP    = Extended | CmdCreateQP
	CmdExModifyQP    = Extended | CmdModifyQP
)

// More commands of the newer form. Their numbers begin at 50: IB_USER_VERBS_CMD_THRESHOLD.
const (
	CmdExCreateFlow CommandNumber = Extended | 50 + iota
	CmdExDestroyFlow
	CmdExCreateWQ
	CmdExModifyWQ
	CmdExDestroyWQ
	CmdExCreateRWQIndTable
	CmdExDestroyRWQIndTable
	CmdExModifyCQ
)

// Commands of the older form have the address of their response in front, and it is given in Command.Out as well.

// AsyncEventDesc is one event on the descriptor of asynchronous events: ib_uverbs_async_event_desc.
type AsyncEventDesc struct {
	Element   uint64
	EventType uint32
	Reserved  uint32
}

// CompEventDesc is one event on a completion channel: ib_uverbs_comp_event_desc.
type CompEventDesc struct {
	CQHandle uint64 // the user handle of the CQ
}

// GetContext is ib_uverbs_get_context.
type GetContext struct {
	Response uint64
}

// GetContextResp is ib_uverbs_get_context_resp.
type GetContextResp struct {
	AsyncFD        uint32
	NumCompVectors uint32
}

// QueryDevice is ib_uverbs_query_device.
type QueryDevice struct {
	Response uint64
}

// QueryDeviceResp is ib_uverbs_query_device_resp. The GUIDs are in network byte order.
type QueryDeviceResp struct {
	FWVer                 uint64
	NodeGUID              [8]byte
	SysImageGUID          [8]byte
	MaxMRSize             uint64
	PageSizeCap           uint64
	VendorID              uint32
	VendorPartID          uint32
	HWVer                 uint32
	MaxQP                 uint32
	MaxQPWR               uint32 `c:"max_qp_wr"`
	DeviceCapFlags        uint32
	MaxSGE                uint32
	MaxSGERd              uint32
	MaxCQ                 uint32
	MaxCQE                uint32
	MaxMR                 uint32
	MaxPD                 uint32
	MaxQPRdAtom           uint32
	MaxEERdAtom           uint32
	MaxResRdAtom          uint32
	MaxQPInitRdAtom       uint32
	MaxEEInitRdAtom       uint32
	AtomicCap             uint32
	MaxEE                 uint32
	MaxRDD                uint32
	MaxMW                 uint32
	MaxRawIPv6QP          uint32 `c:"max_raw_ipv6_qp"`
	MaxRawEthyQP          uint32
	MaxMcastGrp           uint32
	MaxMcastQPAttach      uint32
	MaxTotalMcastQPAttach uint32
	MaxAH                 uint32
	MaxFMR                uint32
	MaxMapPerFMR          uint32
	MaxSRQ                uint32
	MaxSRQWR              uint32 `c:"max_srq_wr"`
	MaxSRQSGE             uint32 `c:"max_srq_sge"`
	MaxPKeys              uint16 `c:"max_pkeys"`
	LocalCAACKDelay       uint8  `c:"local_ca_ack_delay"`
	PhysPortCnt           uint8
	Reserved              [4]byte
}

// ExQueryDevice is ib_uverbs_ex_query_device.
type ExQueryDevice struct {
	CompMask uint32
	Reserved uint32
}

// Of on-demand paging: ib_uverbs_odp_general_cap_bits and ib_uverbs_odp_transport_cap_bits.
const (
	ODPSupport         = 1 << 0
	ODPSupportImplicit = 1 << 1

	ODPSupportSend    = 1 << 0
	ODPSupportRecv    = 1 << 1
	ODPSupportWrite   = 1 << 2
	ODPSupportRead    = 1 << 3
	ODPSupportAtomic  = 1 << 4
	ODPSupportSRQRecv = 1 << 5
)

// ODPCaps is ib_uverbs_odp_caps.
type ODPCaps struct {
	GeneralCaps uint64
	RCODPCaps   uint32 `c:"per_transport_caps.rc_odp_caps"`
	UCODPCaps   uint32 `c:"per_transport_caps.uc_odp_caps"`
	UDODPCaps   uint32 `c:"per_transport_caps.ud_odp_caps"`
	Reserved    uint32
}

// RSSCaps is ib_uverbs_rss_caps.
type RSSCaps struct {
	SupportedQPTs               uint32 `c:"supported_qpts"`
	MaxRWQIndirectionTables     uint32
	MaxRWQIndirectionTablesSize uint32 `c:"max_rwq_indirection_table_size"`
	Reserved                    uint32
}

// TMCaps is ib_uverbs_tm_caps.
type TMCaps struct {
	MaxRndvHdrSize uint32
	MaxNumTags     uint32
	Flags          uint32
	MaxOps         uint32
	MaxSGE         uint32
	Reserved       uint32
}

// CQModerationCaps is ib_uverbs_cq_moderation_caps.
type CQModerationCaps struct {
	MaxCQModerationCount  uint16
	MaxCQModerationPeriod uint16
	Reserved              uint32
}

// ExQueryDeviceResp is ib_uverbs_ex_query_device_resp.
type ExQueryDeviceResp struct {
	Base              QueryDeviceResp
	CompMask          uint32
	ResponseLength    uint32
	ODPCaps           ODPCaps
	TimestampMask     uint64
	HCACoreClock      uint64 // in kHz
	DeviceCapFlagsEx  uint64
	RSSCaps           RSSCaps
	MaxWQTypeRQ       uint32 `c:"max_wq_type_rq"`
	RawPacketCaps     uint32
	TMCaps            TMCaps
	CQModerationCaps  CQModerationCaps
	MaxDMSize         uint64
	XRCODPCaps        uint32 `c:"xrc_odp_caps"`
	ReservedAtTheTail uint32 `c:"reserved"`
}

// QueryPort is ib_uverbs_query_port.
type QueryPort struct {
	Response uint64
	PortNum  uint8
	Reserved [7]byte
}

// QueryPortResp is ib_uverbs_query_port_resp.
type QueryPortResp struct {
	PortCapFlags  uint32
	MaxMsgSz      uint32
	BadPKeyCntr   uint32 `c:"bad_pkey_cntr"`
	QKeyViolCntr  uint32 `c:"qkey_viol_cntr"`
	GIDTblLen     uint32
	PKeyTblLen    uint16 `c:"pkey_tbl_len"`
	LID           uint16
	SMLID         uint16 `c:"sm_lid"`
	State         uint8
	MaxMTU        uint8
	ActiveMTU     uint8
	LMC           uint8
	MaxVLNum      uint8
	SMSL          uint8 `c:"sm_sl"`
	SubnetTimeout uint8
	InitTypeReply uint8
	ActiveWidth   uint8
	ActiveSpeed   uint8
	PhysState     uint8
	LinkLayer     uint8
	Flags         uint8
	Reserved      uint8
}

// AllocPD is ib_uverbs_alloc_pd.
type AllocPD struct {
	Response uint64
}

// AllocPDResp is ib_uverbs_alloc_pd_resp.
type AllocPDResp struct {
	PDHandle uint32
}

// DeallocPD is ib_uverbs_dealloc_pd.
type DeallocPD struct {
	PDHandle uint32
}

// RegMR is ib_uverbs_reg_mr.
type RegMR struct {
	Response    uint64
	Start       uint64
	Length      uint64
	HCAVA       uint64 `c:"hca_va"`
	PDHandle    uint32
	AccessFlags uint32
}

// RegMRResp is ib_uverbs_reg_mr_resp.
type RegMRResp struct {
	MRHandle uint32
	LKey     uint32 `c:"lkey"`
	RKey     uint32 `c:"rkey"`
}

// Flags of ReregMR: IB_MR_REREG_.
const (
	ReregTrans  = 1 << 0
	ReregPD     = 1 << 1
	ReregAccess = 1 << 2
)

// ReregMR is ib_uverbs_rereg_mr.
type ReregMR struct {
	Response    uint64
	MRHandle    uint32
	Flags       uint32
	Start       uint64
	Length      uint64
	HCAVA       uint64 `c:"hca_va"`
	PDHandle    uint32
	AccessFlags uint32
}

// ReregMRResp is ib_uverbs_rereg_mr_resp.
type ReregMRResp struct {
	LKey uint32 `c:"lkey"`
	RKey uint32 `c:"rkey"`
}

// DeregMR is ib_uverbs_dereg_mr.
type DeregMR struct {
	MRHandle uint32
}

// AllocMW is ib_uverbs_alloc_mw.
type AllocMW struct {
	Response uint64
	PDHandle uint32
	MWType   uint8
	Reserved [3]byte
}

// AllocMWResp is ib_uverbs_alloc_mw_resp.
type AllocMWResp struct {
	MWHandle uint32
	RKey     uint32 `c:"rkey"`
}

// DeallocMW is ib_uverbs_dealloc_mw.
type DeallocMW struct {
	MWHandle uint32
}

// CreateCompChannel is ib_uverbs_create_comp_channel.
type CreateCompChannel struct {
	Response uint64
}

// CreateCompChannelResp is ib_uverbs_create_comp_channel_resp.
type CreateCompChannelResp struct {
	FD uint32
}

// CreateCQ is ib_uverbs_create_cq. A completion channel of -1 is none.
type CreateCQ struct {
	Response    uint64
	UserHandle  uint64
	CQE         uint32
	CompVector  uint32
	CompChannel int32
	Reserved    uint32
}

// Flags of ExCreateCQ: IB_UVERBS_CQ_FLAGS_.
const (
	CQTimestampCompletion = 1 << 0
	CQIgnoreOverrun       = 1 << 1
)

// ExCreateCQ is ib_uverbs_ex_create_cq.
type ExCreateCQ struct {
	UserHandle  uint64
	CQE         uint32
	CompVector  uint32
	CompChannel int32
	CompMask    uint32
	Flags       uint32
	Reserved    uint32
}

// CreateCQResp is ib_uverbs_create_cq_resp.
type CreateCQResp struct {
	CQHandle uint32
	CQE      uint32
}

// ExCreateCQResp is ib_uverbs_ex_create_cq_resp.
type ExCreateCQResp struct {
	Base           CreateCQResp
	CompMask       uint32
	ResponseLength uint32
}

// ResizeCQ is ib_uverbs_resize_cq.
type ResizeCQ struct {
	Response uint64
	CQHandle uint32
	CQE      uint32
}

// ResizeCQResp is ib_uverbs_resize_cq_resp.
type ResizeCQResp struct {
	CQE      uint32
	Reserved uint32
}

// ExModifyCQ is ib_uverbs_ex_modify_cq.
type ExModifyCQ struct {
	CQHandle uint32
	AttrMask uint32
	CQCount  uint16 `c:"attr.cq_count"`
	CQPeriod uint16 `c:"attr.cq_period"`
	Reserved uint32
}

// ReqNotifyCQ is ib_uverbs_req_notify_cq.
type ReqNotifyCQ struct {
	CQHandle      uint32
	SolicitedOnly uint32
}

// DestroyCQ is ib_uverbs_destroy_cq.
type DestroyCQ struct {
	Response uint64
	CQHandle uint32
	Reserved uint32
}

// DestroyCQResp is ib_uverbs_destroy_cq_resp. libibverbs waits until the program has acknowledged so many events.
type DestroyCQResp struct {
	CompEventsReported  uint32
	AsyncEventsReported uint32
}
