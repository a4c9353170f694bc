package transport

import (
	"time"

	"github.com/adverb-rdma/adverb/internal/recovery"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// The specification fixes these.
const (
	psnWindow     = 1 << 23 // PSNs that may be outstanding
	maxMessage    = 1 << 31 // bytes; for a request's RETH: IBTA C9-94
	atomicLength  = 8
	msnMask       = 1<<24 - 1
	maxPacketData = 4096 // the largest path MTU
)

// This implementation chose these.
const (
	// maxWindow is the most packets that a requester has in flight on most paths.
	maxWindow = recovery.MaxWindow
	// maxHeld is how many packets a responder holds that have come before an earlier one. Packets that were placed
	// are not held.
	maxHeld = recovery.FarWindow
	// A packet that is held gets memory of its payload's size up to shortHeld bytes, and of a full packet's size
	// beyond.
	shortHeld = 512
	// A peer gets maxHellos hellos at most.
	maxHellos = 8
	// Of a long message each window asks for ackParts acknowledgements, so that the window moves while the message is
	// under way.
	ackParts = 4

	// On the wire a packet is longer by netHeaders bytes: the headers of IPv4 and UDP.
	netHeaders = 28

	// A deferred acknowledgement leaves behind deferBehind packets of SENDs at the latest: a train.
	deferBehind = 8

	// An answer piggybacks an acknowledgement if both together have piggybackMost bytes at most. Longer answers gain
	// little. Nor may they be longer than the path MTU, so that they fit wherever a full packet does. A payload that
	// was folded while it was copied has 1024 bytes at least, and must end its datagram: see wire.Fold.
	piggybackMost = 1024

	// Posted messages wait for more (corking) while at least corkFrom packets of corkMessages messages are in flight,
	// until they are as many packets as those, corkMost packets, or a train, which has trainBytes.
	corkFrom     = 16
	corkMessages = 8
	corkMost     = 64
	trainBytes   = recovery.TrainBytes

	// While remainderFrom packets are in flight, the packets beyond the last whole train wait.
	remainderFrom = 48

	// DatagramBytes bounds a train: a train is one UDP payload until the kernel cuts it.
	DatagramBytes = 1<<16 - 1 - 40 - 8

	// Messages of UC and UD of up to shortMessage bytes wait for others, to leave in one train.
	shortMessage = 512

	// SENDs of up to FastMost bytes take the fast path.
	FastMost = lendLeast - 1

	// After fastTimeout without progress, recovery takes over from the fast path.
	fastTimeout = 5 * time.Millisecond

	// A packet whose payload is lent stands for lendMost bytes at most. The peer copies one such payload while the
	// next is on its way.
	lendMost = 64 << 10

	// Payloads of lendLeast bytes and more are lent. Between cores that are near each other, lending costs as much as
	// copying some two KiB. Between cores that are far, each line that is copied through the lane takes as long as an
	// access to a far cache, and lending makes 1 KiB three times as fast.
	lendLeast = 1 << 10

	// While others are in flight, a WRITE of up to splitMost bytes goes as so many WRITEs as it has packets.
	splitMost = 64 << 10

	// One READ request asks for readChunk response packets at most. No acknowledgement holds back the sender of
	// responses, so a long READ is several requests.
	readChunk = recovery.FirstWindow

	// The period of a keep-alive has keepAliveSlots instants at which it may probe. So a probe is early by that part
	// of a period at most.
	keepAliveSlots = 64

	// maxKeepAlive is the longest period of a keep-alive, so that no time overflows.
	maxKeepAlive = 365 * 24 * time.Hour

	// maxReplays bounds how many repeated READs and atomics wait to be answered again, beside the max_dest_rd_atomic
	// new ones.
	maxReplays = 16
)

// A negative length would not compile: the window keeps clear of the PSNs' own limit, and of the PSNs that
// acknowledged ranges cover.
var (
	_ [psnWindow - recovery.MaxAhead]struct{}
	_ [wire.MaxRanges - recovery.MaxAhead]struct{}
)

// Never is the time of a timeout that is not set.
const Never = recovery.Never

// MaxDatagram is the space that Transmit needs: the longest datagram of a QP.
const MaxDatagram = wire.MaxHeaderLen + wire.ImmDtSize + maxPacketData + wire.ICRCSize
