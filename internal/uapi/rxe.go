package uapi

// RxeABIVersion is the content of uverbsN/abi_version for rdma_rxe, and RxeDriverID is RDMA_DRIVER_RXE.
const (
	RxeABIVersion = 2
	RxeDriverID   = 14
)

// MMInfo says where the program can map a queue: mminfo. The offset is one of the command descriptor.
type MMInfo struct {
	Offset uint64
	Size   uint32
	Pad    uint32
}

// RxeCreateAHResp is the part of rxe in CreateAHResp: rxe_create_ah_resp.
type RxeCreateAHResp struct {
	AHNum    uint32
	Reserved uint32
}

// RxeCreateCQResp is the part of rxe in CreateCQResp and ResizeCQResp: rxe_create_cq_resp.
type RxeCreateCQResp struct {
	MI MMInfo
}

// RxeCreateQPResp is the part of rxe in CreateQPResp: rxe_create_qp_resp.
type RxeCreateQPResp struct {
	RQMI MMInfo `c:"rq_mi"`
	SQMI MMInfo `c:"sq_mi"`
}

// RxeCreateSRQResp is the part of rxe in CreateSRQResp: rxe_create_srq_resp.
type RxeCreateSRQResp struct {
	MI       MMInfo
	SRQNum   uint32
	Reserved uint32
}

// RxeModifySRQCmd is the part of rxe in ModifySRQ: rxe_modify_srq_cmd. It has the address where the program takes an MMInfo.
type RxeModifySRQCmd struct {
	MMInfoAddr uint64 `c:"mmap_info_addr"`
}

// QueueBuf is the beginning of a queue: rxe_queue_buf. The elements follow, 1<<Log2ElemSize bytes each. Both indices are
// below IndexMask+1, and the queue is empty if they are equal.
type QueueBuf struct {
	Log2ElemSize  uint32 `c:"log2_elem_size"`
	IndexMask     uint32
	Pad1          [30]uint32 `c:"pad_1"`
	ProducerIndex uint32
	Pad2          [31]uint32 `c:"pad_2"`
	ConsumerIndex uint32
	Pad3          [31]uint32 `c:"pad_3"`
}

// Offsets in a queue, in bytes.
const (
	QueueElemSize = 0
	QueueMask     = 4
	QueueProducer = 128
	QueueConsumer = 256
	QueueData     = 384
)

// SGE is rxe_sge.
type SGE struct {
	Addr   uint64
	Length uint32
	LKey   uint32 `c:"lkey"`
}

// SGESize is the length of an SGE in bytes.
const SGESize = 16

// SendWQESize and RecvWQESize are the lengths of the structures, in bytes. SGEs or inline data follow.
const (
	SendWQESize = 208
	RecvWQESize = 40
)

// WCSize is the length of a WC, in bytes.
const WCSize = 48

// Opcodes of send work requests that are rxe's own numbers, or are named here alone: IB_WR_.
const (
	WRLocalInv    = 7
	WRBindMW      = 8
	WRSendWithInv = 9
	WRFlush       = 14
	WRAtomicWrite = 15
)

// SendInline is IB_SEND_INLINE.
const SendInline = 1 << 3

// SendWQE is an element of a send queue: rxe_send_wqe. Of the union wr it has all members, which overlap in the program's
// memory: those that the opcode does not use hold nothing of meaning.
type SendWQE struct {
	WRID      uint64
	Opcode    uint32
	SendFlags uint32
	Ex        [4]byte // immediate data in network byte order, or the key to invalidate

	RemoteAddr uint64 // rdma, atomic
	RKey       uint32 // rdma

	CompareAdd uint64 // atomic
	Swap       uint64
	AtomicRKey uint32

	FlushRKey        uint32 // flush; the range is Length bytes from RemoteAddr on: the provider leaves wr.flush.length 0
	FlushPlacement   uint8
	FlushSelectivity uint8

	RemoteQPN  uint32 // ud
	RemoteQKey uint32
	AHNum      uint32

	MWAddr   uint64 // mw
	MWLength uint64
	MRLKey   uint32
	MWRKey   uint32
	NewRKey  uint32
	Access   uint32

	Length uint32 // of all SGEs, of the inline data, or of a flush
	NumSGE uint32
}

// Key returns the key to invalidate, of the field that immediate data has too.
func (w *SendWQE) Key() uint32 { return native.Uint32(w.Ex[:]) }

// Decode fills w from an element. The element must be a copy that the program cannot change, and have SendWQESize bytes
// at least.
func (w *SendWQE) Decode(b []byte) {
	_ = b[SendWQESize-1]
	u32 := func(at int) uint32 { return native.Uint32(b[at:]) }
	u64 := func(at int) uint64 { return native.Uint64(b[at:]) }
	*w = SendWQE{
		WRID: u64(0), Opcode: u32(12), SendFlags: u32(16), Ex: [4]byte(b[20:24]),
		RemoteAddr: u64(24), RKey: u32(32),
		CompareAdd: u64(32), Swap: u64(40), AtomicRKey: u32(48),
		FlushRKey: u32(36), FlushPlacement: b[40], FlushSelectivity: b[41],
		RemoteQPN: u32(24), RemoteQKey: u32(28), AHNum: u32(36),
		MWAddr: u64(24), MWLength: u64(32), MRLKey: u32(40), MWRKey: u32(44), NewRKey: u32(48), Access: u32(52),
		Length: u32(184), NumSGE: u32(196),
	}
}

// RecvWQE is an element of a receive queue: rxe_recv_wqe.
type RecvWQE struct {
	WRID   uint64
	NumSGE uint32
}

// Decode fills w from an element, as SendWQE's does. It needs RecvWQESize bytes.
func (w *RecvWQE) Decode(b []byte) {
	_ = b[RecvWQESize-1]
	*w = RecvWQE{WRID: native.Uint64(b), NumSGE: native.Uint32(b[28:])}
}

// SGEAt returns the i-th SGE of those that b begins with.
func SGEAt(b []byte, i int) SGE {
	b = b[SGESize*i:][:SGESize]
	return SGE{Addr: native.Uint64(b), Length: native.Uint32(b[8:]), LKey: native.Uint32(b[12:])}
}

// Encode writes w into an element of a CQ, which must have WCSize bytes.
func (w *WC) Encode(b []byte) {
	b = b[:WCSize]
	native.PutUint64(b, w.WRID)
	native.PutUint32(b[8:], w.Status)
	native.PutUint32(b[12:], w.Opcode)
	native.PutUint32(b[16:], w.VendorErr)
	native.PutUint32(b[20:], w.ByteLen)
	copy(b[24:], w.Ex[:])
	native.PutUint32(b[28:], w.QPNum)
	native.PutUint32(b[32:], w.SrcQP)
	native.PutUint32(b[36:], w.WCFlags)
	native.PutUint16(b[40:], w.PKeyIndex)
	native.PutUint16(b[42:], w.SLID)
	b[44], b[45], b[46], b[47] = w.SL, w.DLIDPathBits, w.PortNum, w.Reserved
}
