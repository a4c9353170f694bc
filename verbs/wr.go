package verbs

import "encoding/binary"

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
	OpFlush            Opcode = 14 // IBV_WR_FLUSH
	OpAtomicWrite      Opcode = 15 // IBV_WR_ATOMIC_WRITE
)

var opcodeNames = names[Opcode]{"WR", map[Opcode]string{
	OpRDMAWrite: "WR_RDMA_WRITE", OpRDMAWriteWithImm: "WR_RDMA_WRITE_WITH_IMM",
	OpSend: "WR_SEND", OpSendWithImm: "WR_SEND_WITH_IMM", OpRDMARead: "WR_RDMA_READ",
	OpAtomicCmpSwap: "WR_ATOMIC_CMP_AND_SWP", OpAtomicFetchAdd: "WR_ATOMIC_FETCH_AND_ADD",
	OpLocalInv: "WR_LOCAL_INV", OpBindMW: "WR_BIND_MW", OpSendWithInv: "WR_SEND_WITH_INV",
	OpFlush: "WR_FLUSH", OpAtomicWrite: "WR_ATOMIC_WRITE",
}}

// String returns the C library's name without IBV_, such as WR_RDMA_WRITE.
func (o Opcode) String() string { return opcodeNames.name(o) }

// SendFlags qualify a send work request (enum ibv_send_flags).
type SendFlags uint8

// The send flags (IBV_SEND_*).
const (
	SendFence     SendFlags = 1 << 0 // start only when all earlier READs and atomics are done
	SendSignaled  SendFlags = 1 << 1 // make a completion even on success
	SendSolicited SendFlags = 1 << 2 // the peer's completion counts as solicited: see CQ.Notify
	SendInline    SendFlags = 1 << 3 // copy the data during the post; the buffer is free again after it
)

var sendFlagNames = []flagName{
	{uint64(SendFence), "SEND_FENCE"}, {uint64(SendSignaled), "SEND_SIGNALED"},
	{uint64(SendSolicited), "SEND_SOLICITED"}, {uint64(SendInline), "SEND_INLINE"},
}

// String joins the names of the set bits by "|".
func (f SendFlags) String() string { return flagNames(uint64(f), sendFlagNames) }

// SGE is a scatter/gather element (struct ibv_sge): it names bytes of a local memory region. [MR.SGE]
// makes one.
type SGE struct {
	Addr   uint64 // virtual address, as MR.Addr gives it
	Length uint32 // bytes; 0 means none, which some C libraries take for 2^31
	LKey   LKey
}

// RemoteAddr names memory of a peer: an address and the key of its region (wr.rdma.remote_addr and
// wr.rdma.rkey of struct ibv_send_wr). The owner of the memory makes one by [MR.Remote] and gives it
// to its peer, by AppendBinary and UnmarshalBinary. The key is good for every address inside the region.
type RemoteAddr struct {
	VA   uint64
	RKey RKey
}

// RemoteAddrSize is how many bytes AppendBinary appends.
const RemoteAddrSize = 12

// AppendBinary appends the address as peers tell it to each other: VA, of 8 bytes, and RKey, of 4, in network order. It
// is an encoding.BinaryAppender, and its error is nil.
func (r RemoteAddr) AppendBinary(b []byte) ([]byte, error) {
	b = binary.BigEndian.AppendUint64(b, r.VA)
	return binary.BigEndian.AppendUint32(b, uint32(r.RKey)), nil
}

// MarshalBinary is AppendBinary to nothing: an encoding.BinaryMarshaler.
func (r RemoteAddr) MarshalBinary() ([]byte, error) {
	return r.AppendBinary(make([]byte, 0, RemoteAddrSize))
}

// UnmarshalBinary reads the bytes that AppendBinary appends: an encoding.BinaryUnmarshaler. It takes RemoteAddrSize
// bytes, and fails with ErrInvalid for any other length.
func (r *RemoteAddr) UnmarshalBinary(b []byte) error {
	if len(b) != RemoteAddrSize {
		return Errorf(ErrInvalid, "a remote address of %d bytes: it has %d", len(b), RemoteAddrSize)
	}
	*r = RemoteAddr{binary.BigEndian.Uint64(b), RKey(binary.BigEndian.Uint32(b[8:]))}
	return nil
}

// Add returns the address n bytes further on, with the same key.
func (r RemoteAddr) Add(n int) RemoteAddr { return RemoteAddr{r.VA + uint64(n), r.RKey} }

// SendWR is a send work request (struct ibv_send_wr). PostSend copies it, SGList included, so a
// caller may reuse it at once. The memory that SGList names must not change until the completion.
type SendWR struct {
	ID     uint64 // returned in WC.ID
	Op     Opcode
	Flags  SendFlags
	SGList []SGE // the local memory, in order: sent from it, or filled by READs and atomics

	// InlineData is sent in place of SGList if it is not nil. Flags must have SendInline. The
	// bytes need no memory region. The 8 bytes of OpAtomicWrite need no MaxInlineData either.
	InlineData []byte

	Imm    uint32     // immediate data in host order, for Op…WithImm
	Remote RemoteAddr // for RDMA, atomics, FLUSH and ATOMIC WRITE

	// CompareAdd is the value with which OpAtomicCmpSwap compares, and that OpAtomicFetchAdd adds
	// (wr.atomic.compare_add). Swap is the value that OpAtomicCmpSwap stores (wr.atomic.swap). It
	// must be 0 for OpAtomicFetchAdd.
	CompareAdd, Swap uint64

	// UD: where the datagram goes, and the Q_Key that it carries. A Q_Key whose top bit is set
	// stands for the QP's own Q_Key.
	AH         *AH
	RemoteQPN  QPN
	RemoteQKey QKey

	// RemoteSRQN is, on XRC QPs, the SRQ at the peer that the message names (qp_type.xrc.remote_srqn): a SEND takes its
	// receive there, and the memory that Remote names must be of the SRQ's protection domain.
	RemoteSRQN SRQN

	// Flush says what OpFlush flushes, of the region that Remote names.
	Flush Flush

	InvalidateRKey RKey    // for OpSendWithInv a key of the peer's; for OpLocalInv one of ours
	Bind           *MWBind // for OpBindMW
}

// RecvWR is a receive work request (struct ibv_recv_wr). PostRecv copies it, SGList included, so a
// caller may reuse it at once.
type RecvWR struct {
	ID     uint64 // returned in WC.ID
	SGList []SGE  // where a message goes, in order; one that is too long for it fails at both ends
}
