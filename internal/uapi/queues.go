package uapi

// Queue pairs, address handles, shared receive queues and completions.

// GlobalRoute is ib_uverbs_global_route.
type GlobalRoute struct {
	DGID         [16]byte
	FlowLabel    uint32
	SGIDIndex    uint8
	HopLimit     uint8
	TrafficClass uint8
	Reserved     uint8
}

// AHAttr is ib_uverbs_ah_attr.
type AHAttr struct {
	GRH         GlobalRoute
	DLID        uint16
	SL          uint8
	SrcPathBits uint8
	StaticRate  uint8
	IsGlobal    uint8
	PortNum     uint8
	Reserved    uint8
}

// QPAttr is ib_uverbs_qp_attr, the answer of rdma_cm to INIT_QP_ATTR.
type QPAttr struct {
	QPAttrMask       uint32
	QPState          uint32
	CurQPState       uint32
	PathMTU          uint32
	PathMigState     uint32
	QKey             uint32 `c:"qkey"`
	RQPSN            uint32 `c:"rq_psn"`
	SQPSN            uint32 `c:"sq_psn"`
	DestQPNum        uint32
	QPAccessFlags    uint32
	AHAttr           AHAttr
	AltAHAttr        AHAttr
	MaxSendWR        uint32
	MaxRecvWR        uint32
	MaxSendSGE       uint32
	MaxRecvSGE       uint32
	MaxInlineData    uint32
	PKeyIndex        uint16 `c:"pkey_index"`
	AltPKeyIndex     uint16 `c:"alt_pkey_index"`
	EnSQDAsyncNotify uint8
	SQDraining       uint8
	MaxRdAtomic      uint8
	MaxDestRdAtomic  uint8
	MinRNRTimer      uint8
	PortNum          uint8
	Timeout          uint8
	RetryCnt         uint8
	RNRRetry         uint8
	AltPortNum       uint8
	AltTimeout       uint8
	Reserved         [5]byte
}

// CreateQP is ib_uverbs_create_qp.
type CreateQP struct {
	Response      uint64
	UserHandle    uint64
	PDHandle      uint32
	SendCQHandle  uint32
	RecvCQHandle  uint32
	SRQHandle     uint32
	MaxSendWR     uint32
	MaxRecvWR     uint32
	MaxSendSGE    uint32
	MaxRecvSGE    uint32
	MaxInlineData uint32
	SQSigAll      uint8
	QPType        uint8
	IsSRQ         uint8
	Reserved      uint8
}

// ExCreateQP is ib_uverbs_ex_create_qp. Only its first 52 bytes are demanded.
type ExCreateQP struct {
	UserHandle      uint64
	PDHandle        uint32
	SendCQHandle    uint32
	RecvCQHandle    uint32
	SRQHandle       uint32
	MaxSendWR       uint32
	MaxRecvWR       uint32
	MaxSendSGE      uint32
	MaxRecvSGE      uint32
	MaxInlineData   uint32
	SQSigAll        uint8
	QPType          uint8
	IsSRQ           uint8
	Reserved        uint8
	CompMask        uint32
	CreateFlags     uint32
	RWQIndTblHandle uint32
	SourceQPN       uint32
}

// ExCreateQPLeast is how much of an ExCreateQP is demanded.
const ExCreateQPLeast = 52

// CreateQPResp is ib_uverbs_create_qp_resp.
type CreateQPResp struct {
	QPHandle      uint32
	QPN           uint32
	MaxSendWR     uint32
	MaxRecvWR     uint32
	MaxSendSGE    uint32
	MaxRecvSGE    uint32
	MaxInlineData uint32
	Reserved      uint32
}

// ExCreateQPResp is ib_uverbs_ex_create_qp_resp.
type ExCreateQPResp struct {
	Base           CreateQPResp
	CompMask       uint32
	ResponseLength uint32
}

// QPDest is ib_uverbs_qp_dest.
type QPDest struct {
	DGID         [16]byte
	FlowLabel    uint32
	DLID         uint16
	Reserved     uint16
	SGIDIndex    uint8
	HopLimit     uint8
	TrafficClass uint8
	SL           uint8
	SrcPathBits  uint8
	StaticRate   uint8
	IsGlobal     uint8
	PortNum      uint8
}

// QueryQP is ib_uverbs_query_qp.
type QueryQP struct {
	Response uint64
	QPHandle uint32
	AttrMask uint32
}

// QueryQPResp is ib_uverbs_query_qp_resp.
type QueryQPResp struct {
	Dest            QPDest
	AltDest         QPDest
	MaxSendWR       uint32
	MaxRecvWR       uint32
	MaxSendSGE      uint32
	MaxRecvSGE      uint32
	MaxInlineData   uint32
	QKey            uint32 `c:"qkey"`
	RQPSN           uint32 `c:"rq_psn"`
	SQPSN           uint32 `c:"sq_psn"`
	DestQPNum       uint32
	QPAccessFlags   uint32
	PKeyIndex       uint16 `c:"pkey_index"`
	AltPKeyIndex    uint16 `c:"alt_pkey_index"`
	QPState         uint8
	CurQPState      uint8
	PathMTU         uint8
	PathMigState    uint8
	SQDraining      uint8
	MaxRdAtomic     uint8
	MaxDestRdAtomic uint8
	MinRNRTimer     uint8
	PortNum         uint8
	Timeout         uint8
	RetryCnt        uint8
	RNRRetry        uint8
	AltPortNum      uint8
	AltTimeout      uint8
	SQSigAll        uint8
	Reserved        [5]byte
}

// ModifyQP is ib_uverbs_modify_qp.
type ModifyQP struct {
	Dest             QPDest
	AltDest          QPDest
	QPHandle         uint32
	AttrMask         uint32
	QKey             uint32 `c:"qkey"`
	RQPSN            uint32 `c:"rq_psn"`
	SQPSN            uint32 `c:"sq_psn"`
	DestQPNum        uint32
	QPAccessFlags    uint32
	PKeyIndex        uint16 `c:"pkey_index"`
	AltPKeyIndex     uint16 `c:"alt_pkey_index"`
	QPState          uint8
	CurQPState       uint8
	PathMTU          uint8
	PathMigState     uint8
	EnSQDAsyncNotify uint8
	MaxRdAtomic      uint8
	MaxDestRdAtomic  uint8
	MinRNRTimer      uint8
	PortNum          uint8
	Timeout          uint8
	RetryCnt         uint8
	RNRRetry         uint8
	AltPortNum       uint8
	AltTimeout       uint8
	Reserved         [2]byte
}

// ExModifyQP is ib_uverbs_ex_modify_qp. Only its base is demanded.
type ExModifyQP struct {
	Base      ModifyQP
	RateLimit uint32
	Reserved  uint32
}

// ExModifyQPResp is ib_uverbs_ex_modify_qp_resp.
type ExModifyQPResp struct {
	CompMask       uint32
	ResponseLength uint32
}

// DestroyQP is ib_uverbs_destroy_qp.
type DestroyQP struct {
	Response uint64
	QPHandle uint32
	Reserved uint32
}

// DestroyQPResp is ib_uverbs_destroy_qp_resp.
type DestroyQPResp struct {
	EventsReported uint32
}

// PostSend is ib_uverbs_post_send. rxe's provider writes it without work requests, as a doorbell.
type PostSend struct {
	Response uint64
	QPHandle uint32
	WRCount  uint32
	SGECount uint32
	WQESize  uint32
}

// PostSendSize is the length in bytes of a doorbell with its header.
const PostSendSize = HeaderSize + 24

// CreateAH is ib_uverbs_create_ah.
type CreateAH struct {
	Response   uint64
	UserHandle uint64
	PDHandle   uint32
	Reserved   uint32
	Attr       AHAttr
}

// CreateAHResp is ib_uverbs_create_ah_resp.
type CreateAHResp struct {
	AHHandle uint32
}

// DestroyAH is ib_uverbs_destroy_ah.
type DestroyAH struct {
	AHHandle uint32
}

// AttachMcast is ib_uverbs_attach_mcast, and ib_uverbs_detach_mcast.
type AttachMcast struct {
	GID      [16]byte
	QPHandle uint32
	MLID     uint16
	Reserved uint16
}

// CreateSRQ is ib_uverbs_create_srq.
type CreateSRQ struct {
	Response   uint64
	UserHandle uint64
	PDHandle   uint32
	MaxWR      uint32
	MaxSGE     uint32
	SRQLimit   uint32
}

// CreateXSRQ is ib_uverbs_create_xsrq: ibv_create_srq_ex, also for basic SRQs.
type CreateXSRQ struct {
	Response   uint64
	UserHandle uint64
	SRQType    uint32
	PDHandle   uint32
	MaxWR      uint32
	MaxSGE     uint32
	SRQLimit   uint32
	MaxNumTags uint32
	XRCDHandle uint32
	CQHandle   uint32
}

// CreateSRQResp is ib_uverbs_create_srq_resp.
type CreateSRQResp struct {
	SRQHandle uint32
	MaxWR     uint32
	MaxSGE    uint32
	SRQN      uint32
}

// What ModifySRQ changes: IB_SRQ_.
const (
	SRQMaxWR = 1 << 0
	SRQLimit = 1 << 1
)

// ModifySRQ is ib_uverbs_modify_srq.
type ModifySRQ struct {
	SRQHandle uint32
	AttrMask  uint32
	MaxWR     uint32
	SRQLimit  uint32
}

// QuerySRQ is ib_uverbs_query_srq.
type QuerySRQ struct {
	Response  uint64
	SRQHandle uint32
	Reserved  uint32
}

// QuerySRQResp is ib_uverbs_query_srq_resp.
type QuerySRQResp struct {
	MaxWR    uint32
	MaxSGE   uint32
	SRQLimit uint32
	Reserved uint32
}

// DestroySRQ is ib_uverbs_destroy_srq.
type DestroySRQ struct {
	Response  uint64
	SRQHandle uint32
	Reserved  uint32
}

// DestroySRQResp is ib_uverbs_destroy_srq_resp.
type DestroySRQResp struct {
	EventsReported uint32
}

// WC is ib_uverbs_wc, an element of a CQ of rxe: ibv_wc has the same layout.
type WC struct {
	WRID         uint64 `c:"wr_id"`
	Status       uint32
	Opcode       uint32
	VendorErr    uint32
	ByteLen      uint32
	Ex           [4]byte // immediate data in network byte order, or the key that was invalidated
	QPNum        uint32
	SrcQP        uint32
	WCFlags      uint32
	PKeyIndex    uint16 `c:"pkey_index"`
	SLID         uint16
	SL           uint8
	DLIDPathBits uint8
	PortNum      uint8
	Reserved     uint8
}
