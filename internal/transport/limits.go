package transport

import (
	"time"

	"github.com/adverb-rdma/adverb/internal/recovery"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// What the specification fixes.
const (
	psnWindow     = 1 << 23 // PSNs that may be outstanding
	maxMessage    = 1 << 31 // bytes; for a request's RETH: IBTA C9-94
	atomicLength  = 8
	msnMask       = 1<<24 - 1
	maxPacketData = 4096 // the largest path MTU
)

// What this implementation chose.
const (
	// maxWindow is the most packets that a requester has in flight on most paths.
	maxWindow = recovery.MaxWindow
	// maxHeld is how many packets a responder keeps that have come before others. What it need not keep,
	// since it could be placed, does not count.
	maxHeld = recovery.FarWindow
	// A packet that is kept gets memory of its payload's size up to shortHeld bytes, and of a full packet's beyond.
	shortHeld = 512
	// A peer is told maxHellos times at most that we understand acknowledged ranges.
	maxHellos = 8
	// Of a long message each window asks for ackParts acknowledgements, so that the window moves while the message is
	// under way.
	ackParts = 4

	// A packet is longer on the wire by netHeaders bytes, which are IPv4's and UDP's.
	netHeaders = 28

	// An acknowledgement that was deferred leaves behind deferBehind packets of SENDs at the latest: a train.
	deferBehind = 8

	// An answer carries an acknowledgement if both together are piggybackMost bytes at most. Longer ones gain little. Nor
	// are they longer than the path MTU, so that they fit wherever a full packet does. A payload that was folded while it
	// was copied has 1024 bytes at least, and must end its datagram: see wire.Fold.
	piggybackMost = 1024

	// What is posted waits for more while at least corkFrom packets of corkMessages messages are on their way, until it
	// is as much as those, corkMost packets, or a train, which has trainBytes.
	corkFrom     = 16
	corkMessages = 8
	corkMost     = 64
	trainBytes   = recovery.TrainBytes

	// While remainderFrom packets are on their way, what remains behind a whole train waits.
	remainderFrom = 48

	// DatagramBytes bounds a train: it is one UDP payload until it is cut.
	DatagramBytes = 1<<16 - 1 - 40 - 8

	// Messages of UC and UD of up to shortMessage bytes wait for company.
	shortMessage = 512

	// SENDs of up to FastMost bytes take the fast path.
	FastMost = lendLeast - 1

	// After fastTimeout without progress, recovery takes over from the fast path.
	fastTimeout = 5 * time.Millisecond

	// A packet whose payload is lent stands for lendMost bytes at most. The peer copies one while the next is on its way.
	lendMost = 64 << 10

	// Payloads of lendLeast bytes and more are lent. Where cores are near each other, that costs as much as copying some
	// two KiB. Where they are far, each line that is copied through the lane takes as long as a far cache does, and
	// lending makes 1 KiB three times as fast.
	lendLeast = 1 << 10

	// While others are on their way, a WRITE of up to splitMost bytes goes as so many WRITEs as it has packets.
	splitMost = 64 << 10

	// One READ request asks for readChunk response packets at most. No acknowledgements hold back who sends responses,
	// so a long READ is several requests.
	readChunk = recovery.FirstWindow

	// The period of a keep-alive has keepAliveSlots instants at which it may ask. So it is early by that part at most.
	keepAliveSlots = 64

	// maxKeepAlive is the longest period of a keep-alive, so that no time overflows.
	maxKeepAlive = 365 * 24 * time.Hour

	// maxReplays bounds how many repeated READs and atomics wait to be answered again, beside
	// the max_dest_rd_atomic new ones.
	maxReplays = 16
)

// A negative length would not compile: the window keeps clear of the PSNs' own limit, and of what acknowledged ranges cover.
var (
	_ [psnWindow - recovery.MaxAhead]struct{}
	_ [wire.MaxRanges - recovery.MaxAhead]struct{}
)

// Never is the time of a timeout that is not set.
const Never = recovery.Never

// MaxDatagram is the space that Transmit needs: the longest datagram of a QP.
const MaxDatagram = wire.BTHSize + wire.AtomicETHSize + wire.ImmDtSize + maxPacketData + wire.ICRCSize
