package transport

import (
	"math"
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// What the specification fixes.
const (
	psnWindow     = 1 << 23 // PSNs that may be outstanding
	maxMessage    = 1 << 31 // bytes; for a request's RETH: IBTA C9-94
	retryForever  = 7       // rnr_retry without end
	atomicLength  = 8
	msnMask       = 1<<24 - 1
	maxPacketData = 4096 // the largest path MTU
)

// What this implementation chose.
const (
	// maxWindow is how many packets a requester has unacknowledged at most. Responses to its READs
	// count. At an MTU of 4096 it is 1 MiB, which a receive buffer of 4 MiB holds several times. A
	// window that losses have halved still takes two chunks of a READ.
	maxWindow = 256
	// lossWindow is the least that NAKs leave of the window, and minWindow the least that timeouts
	// leave. With fewer packets under way a lost acknowledgement would more often be the only one, and
	// cost a timeout.
	lossWindow = 32
	minWindow  = 16
	// unknownRoundTrip stands for the round trip that was not measured yet.
	unknownRoundTrip = time.Millisecond
	// shrinkFactor divides the window after a timeout.
	shrinkFactor = 4
	// growth is by how many packets the window grows in the time of a window.
	growth = 8

	// ackParts is how many acknowledgements a window of a long message's packets asks for, so that
	// the window moves while the message is under way.
	ackParts = 4

	// readChunk is how many response packets one READ request asks for. READ responses have no
	// acknowledgements that could hold the responder back, so a long READ is several requests.
	readChunk = maxWindow / 4

	// maxReplays bounds how many repeated READs and atomics wait to be answered again, beside
	// the max_dest_rd_atomic new ones.
	maxReplays = 16
)

// A negative length would not compile: the window keeps clear of the PSNs' own limit.
var _ [psnWindow - maxWindow]struct{}

// Never is the time of a timeout that is not set.
const Never = time.Duration(math.MaxInt64)

// MaxDatagram is the space that Transmit needs: the longest datagram of a QP.
const MaxDatagram = wire.BTHSize + wire.AtomicETHSize + wire.ImmDtSize + maxPacketData + wire.ICRCSize
