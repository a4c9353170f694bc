package uapi

// CMABIVersion is the content of /sys/class/misc/rdma_cm/abi_version: RDMA_USER_CM_ABI_VERSION.
const CMABIVersion = 4

// Commands of rdma_cm: RDMA_USER_CM_CMD_.
const (
	CMCreateID = iota
	CMDestroyID
	CMBindIP
	CMResolveIP
	CMResolveRoute
	CMQueryRoute
	CMConnect
	CMListen
	CMAccept
	CMReject
	CMDisconnect
	CMInitQPAttr
	CMGetEvent
	CMGetOption
	CMSetOption
	CMNotify
	CMJoinIPMcast
	CMLeaveMcast
	CMMigrateID
	CMQuery
	CMBind
	CMResolveAddr
	CMJoinMcast
)

// Port spaces: RDMA_PS_.
const (
	PSIPoIB = 0x0002
	PSIB    = 0x013f
	PSTCP   = 0x0106
	PSUDP   = 0x0111
)

// CMHeader opens each command of rdma_cm: rdma_ucm_cmd_hdr. Lengths are in bytes; that of the command leaves the header
// out.
type CMHeader struct {
	Cmd uint32
	In  uint16
	Out uint16
}

// CMHeaderSize is the length of a CMHeader in bytes.
const CMHeaderSize = 8

// SockaddrIn6 is room for a sockaddr_in or a sockaddr_in6, as the kernel has it.
type SockaddrIn6 [28]byte

// SockaddrStorage is __kernel_sockaddr_storage.
type SockaddrStorage [128]byte

// CMCreate is rdma_ucm_create_id.
type CMCreate struct {
	UID      uint64
	Response uint64
	PS       uint16
	QPType   uint8
	Reserved [5]uint8
}

// CMCreateResp is rdma_ucm_create_id_resp.
type CMCreateResp struct {
	ID uint32
}

// CMDestroy is rdma_ucm_destroy_id.
type CMDestroy struct {
	Response uint64
	ID       uint32
	Reserved uint32
}

// CMDestroyResp is rdma_ucm_destroy_id_resp, and rdma_ucm_migrate_resp.
type CMDestroyResp struct {
	EventsReported uint32
}

// CMBindIPArg is rdma_ucm_bind_ip.
type CMBindIPArg struct {
	Response uint64
	Addr     SockaddrIn6
	ID       uint32
}

// CMBindArg is rdma_ucm_bind.
type CMBindArg struct {
	ID       uint32
	AddrSize uint16
	Reserved uint16
	Addr     SockaddrStorage
}

// CMResolveIPArg is rdma_ucm_resolve_ip.
type CMResolveIPArg struct {
	SrcAddr   SockaddrIn6
	DstAddr   SockaddrIn6
	ID        uint32
	TimeoutMs uint32 `c:"timeout_ms"`
}

// CMResolveAddrArg is rdma_ucm_resolve_addr.
type CMResolveAddrArg struct {
	ID        uint32
	TimeoutMs uint32 `c:"timeout_ms"`
	SrcSize   uint16
	DstSize   uint16
	Reserved  uint32
	SrcAddr   SockaddrStorage
	DstAddr   SockaddrStorage
}

// CMResolveRouteArg is rdma_ucm_resolve_route.
type CMResolveRouteArg struct {
	ID        uint32
	TimeoutMs uint32 `c:"timeout_ms"`
}

// Options of CMQueryArg: RDMA_USER_CM_QUERY_.
const (
	CMQueryAddr = iota
	CMQueryPath
	CMQueryGID
)

// CMQueryArg is rdma_ucm_query.
type CMQueryArg struct {
	Response uint64
	ID       uint32
	Option   uint32
}

// UserPathRec is ib_user_path_rec. Fields that the header calls __be are arrays of bytes.
type UserPathRec struct {
	DGID                   [16]byte
	SGID                   [16]byte
	DLID                   [2]byte
	SLID                   [2]byte
	RawTraffic             uint32
	FlowLabel              [4]byte
	Reversible             uint32
	MTU                    uint32
	PKey                   [2]byte `c:"pkey"`
	HopLimit               uint8
	TrafficClass           uint8
	NumbPath               uint8
	SL                     uint8
	MTUSelector            uint8
	RateSelector           uint8
	Rate                   uint8
	PacketLifeTimeSelector uint8
	PacketLifeTime         uint8
	Preference             uint8
}

// CMQueryRouteResp is rdma_ucm_query_route_resp.
type CMQueryRouteResp struct {
	NodeGUID   [8]byte
	IBRoute    [2]UserPathRec
	SrcAddr    SockaddrIn6
	DstAddr    SockaddrIn6
	NumPaths   uint32
	PortNum    uint8
	Reserved   [3]uint8
	IBDevIndex uint32 `c:"ibdev_index"`
	Reserved1  uint32 `c:"reserved1"`
}

// CMQueryAddrResp is rdma_ucm_query_addr_resp. The addresses of CMQueryGID are sockaddr_ib.
type CMQueryAddrResp struct {
	NodeGUID   [8]byte
	PortNum    uint8
	Reserved   uint8
	PKey       uint16 `c:"pkey"`
	SrcSize    uint16
	DstSize    uint16
	SrcAddr    SockaddrStorage
	DstAddr    SockaddrStorage
	IBDevIndex uint32 `c:"ibdev_index"`
	Reserved1  uint32 `c:"reserved1"`
}

// What older programs have room for, who do not know of IBDevIndex, in bytes.
const (
	CMQueryRouteLeast = 8 + 2*64 + 2*28 + 8
	CMQueryAddrLeast  = 16 + 2*128
)

// CMQueryPathResp is rdma_ucm_query_path_resp. NumPaths PathRecData follow.
type CMQueryPathResp struct {
	NumPaths uint32
	Reserved uint32
}

// PathRecData is ib_path_rec_data.
type PathRecData struct {
	Flags    uint32
	Reserved uint32
	PathRec  [16]uint32
}

// CMConnParam is rdma_ucm_conn_param.
type CMConnParam struct {
	QPNum              uint32
	QKey               uint32 `c:"qkey"`
	PrivateData        [256]uint8
	PrivateDataLen     uint8
	SRQ                uint8
	ResponderResources uint8
	InitiatorDepth     uint8
	FlowControl        uint8
	RetryCount         uint8
	RNRRetryCount      uint8
	Valid              uint8
}

// CMUDParam is rdma_ucm_ud_param.
type CMUDParam struct {
	QPNum          uint32
	QKey           uint32 `c:"qkey"`
	AHAttr         AHAttr
	PrivateData    [256]uint8
	PrivateDataLen uint8
	Reserved       [7]uint8
}

// CMECE is rdma_ucm_ece.
type CMECE struct {
	VendorID uint32
	AttrMod  uint32
}

// CMConnectArg is rdma_ucm_connect. Programs of before ECE leave it out: CMConnectLeast bytes are demanded.
type CMConnectArg struct {
	ConnParam CMConnParam
	ID        uint32
	Reserved  uint32
	ECE       CMECE
}

// CMListenArg is rdma_ucm_listen.
type CMListenArg struct {
	ID      uint32
	Backlog uint32
}

// CMAcceptArg is rdma_ucm_accept. Programs of before ECE leave it out: CMAcceptLeast bytes are demanded.
type CMAcceptArg struct {
	UID       uint64
	ConnParam CMConnParam
	ID        uint32
	Reserved  uint32
	ECE       CMECE
}

// What is demanded of commands that have grown, in bytes.
const (
	CMConnectLeast = 272 + 8
	CMAcceptLeast  = 8 + 272 + 8
)

// CMRejectArg is rdma_ucm_reject.
type CMRejectArg struct {
	ID             uint32
	PrivateDataLen uint8
	Reason         uint8
	Reserved       [2]uint8
	PrivateData    [256]uint8
}

// CMDisconnectArg is rdma_ucm_disconnect.
type CMDisconnectArg struct {
	ID uint32
}

// CMInitQPAttrArg is rdma_ucm_init_qp_attr.
type CMInitQPAttrArg struct {
	Response uint64
	ID       uint32
	QPState  uint32
}

// CMNotifyArg is rdma_ucm_notify.
type CMNotifyArg struct {
	ID    uint32
	Event uint32
}

// CMJoinIPMcastArg is rdma_ucm_join_ip_mcast. CMLeaveMcast takes a CMDestroy.
type CMJoinIPMcastArg struct {
	Response uint64
	UID      uint64
	Addr     SockaddrIn6
	ID       uint32
}

// CMJoinMcastArg is rdma_ucm_join_mcast.
type CMJoinMcastArg struct {
	Response  uint64
	UID       uint64
	ID        uint32
	AddrSize  uint16
	JoinFlags uint16
	Addr      SockaddrStorage
}

// CMGetEventArg is rdma_ucm_get_event.
type CMGetEventArg struct {
	Response uint64
}

// CMEventResp is rdma_ucm_event_resp. Param is a CMConnParam or, for port spaces of datagrams, a CMUDParam: see PutParam.
type CMEventResp struct {
	UID      uint64
	ID       uint32
	Event    uint32
	Status   uint32
	Param    [304]byte
	Reserved uint32
	ECE      CMECE
}

// CMEventRespLeast is the length in bytes of a CMEventResp without ECE, which older programs have room for.
const CMEventRespLeast = 20 + 304

// PutParam sets the parameters: a CMConnParam or a CMUDParam.
func (e *CMEventResp) PutParam(p any) { copy(e.Param[:], Append(nil, p)) }

// Levels and names of options: RDMA_OPTION_.
const (
	OptionID = 0
	OptionIB = 1

	OptionIDTOS        = 0
	OptionIDReuseAddr  = 1
	OptionIDAFOnly     = 2
	OptionIDACKTimeout = 3

	OptionIBPath = 1
)

// CMSetOptionArg is rdma_ucm_set_option.
type CMSetOptionArg struct {
	OptVal  uint64 `c:"optval"`
	ID      uint32
	Level   uint32
	OptName uint32 `c:"optname"`
	OptLen  uint32 `c:"optlen"`
}

// CMMigrate is rdma_ucm_migrate_id. It is answered by a CMDestroyResp.
type CMMigrate struct {
	Response uint64
	ID       uint32
	FD       uint32
}
