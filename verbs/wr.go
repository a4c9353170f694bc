package verbs

// Opcode is the operation of a send work request (enum ibv_wr_opcode).
type Opcode uint8

// The operations (IBV_WR_*).
const (
	OpRDMAWrite        Opcode = 0
	OpRDMAWriteWithImm Opcode = 1
	OpSend             Opcode = 2
	OpSendWithImm      Opcode = 3
	OpRDMARead         Opcode = 4
	OpAtomicCmpSwap    Opcode = 5 // IBV_WR_ATOMIC_CMP_AND_SWP
	OpAtomicFetchAdd   Opcode = 6 // IBV_WR_ATOMIC_FETCH_AND_ADD
	OpLocalInv         Opcode = 7
	OpBindMW           Opcode = 8
	OpSendWithInv      Opcode = 9
)

var opcodeNames = names[Opcode]{"WR", map[Opcode]string{
	OpRDMAWrite: "WR_RDMA_WRITE", OpRDMAWriteWithImm: "WR_RDMA_WRITE_WITH_IMM",
	OpSend: "WR_SEND", OpSendWithImm: "WR_SEND_WITH_IMM", OpRDMARead: "WR_RDMA_READ",
	OpAtomicCmpSwap: "WR_ATOMIC_CMP_AND_SWP", OpAtomicFetchAdd: "WR_ATOMIC_FETCH_AND_ADD",
	OpLocalInv: "WR_LOCAL_INV", OpBindMW: "WR_BIND_MW", OpSendWithInv: "WR_SEND_WITH_INV",
}}

func (o Opcode) String() string { return opcodeNames.name(o) }

// SendFlags qualify a send work request (enum ibv_send_flags).
type SendFlags uint8

// The send flags (IBV_SEND_*).
const (
	SendFence     SendFlags = 1 << 0 // start only when all earlier READs and atomics are done
	SendSignaled  SendFlags = 1 << 1 // make a completion on success too
	SendSolicited SendFlags = 1 << 2 // the peer's completion is a solicited event
	SendInline    SendFlags = 1 << 3 // copy the data while posting; the buffer is free at once
)

var sendFlagNames = []flagName{
	{uint64(SendFence), "SEND_FENCE"}, {uint64(SendSignaled), "SEND_SIGNALED"},
	{uint64(SendSolicited), "SEND_SOLICITED"}, {uint64(SendInline), "SEND_INLINE"},
}

func (f SendFlags) String() string { return flagNames(uint64(f), sendFlagNames) }

// SGE is a scatter/gather element: bytes of a local memory region (struct ibv_sge).
// [MR.SGE] makes one.
type SGE struct {
	Addr   uint64 // virtual address, as MR.Addr gives it
	Length uint32 // bytes; unlike in some C libraries 0 means none
	LKey   LKey
}

// RemoteAddr names memory of a peer. [MR.Remote] makes one to give to the peer. Any VA inside
// the region goes with the region's key.
type RemoteAddr struct {
	VA   uint64
	RKey RKey
}

// Add returns the address n bytes further on.
func (r RemoteAddr) Add(n int) RemoteAddr { return RemoteAddr{r.VA + uint64(n), r.RKey} }

// SendWR is a send work request (struct ibv_send_wr). PostSend copies it, SGList included, so
// callers reuse one. The memory that SGList names must stay unchanged until the completion.
type SendWR struct {
	ID     uint64 // returned in WC.ID
	Op     Opcode
	Flags  SendFlags
	SGList []SGE // the local memory: gathered from in order, or scattered to by READs and atomics

	// InlineData is sent instead of SGList where it is not nil and Flags has SendInline. It
	// needs no memory region.
	InlineData []byte

	Imm           uint32     // host order; Op…WithImm
	Remote        RemoteAddr // RDMA and atomics
	Compare, Swap uint64     // atomics; Swap is the addend of OpAtomicFetchAdd

	// UD: where the datagram goes, and the Q_Key that it carries. One with its top bit set
	// stands for the QP's own.
	AH         *AH
	RemoteQPN  QPN
	RemoteQKey QKey

	InvalidateRKey RKey    // OpSendWithInv: the peer's key; OpLocalInv: ours
	Bind           *MWBind // OpBindMW
}

// RecvWR is a receive work request (struct ibv_recv_wr). PostRecv copies it, SGList included.
type RecvWR struct {
	ID     uint64 // returned in WC.ID
	SGList []SGE  // where a message goes, in order; one that is too long for it fails at both ends
}
