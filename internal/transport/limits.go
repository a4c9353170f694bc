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
	defaultPKey   = 0xffff
	pkeyBaseMask  = 0x7fff // a P_Key without its membership bit
	atomicLength  = 8
	msnMask       = 1<<24 - 1
	maxPacketData = 4096 // the largest path MTU
)

// What this implementation chose.
const (
	// maxWindow is how many packets a requester has unacknowledged at most, responses to its READs
	// included, of which a window that losses have narrowed still takes two chunks. At an MTU of 4096 it is
	// 1 MiB, which a receive buffer of 4 MiB holds several times.
	maxWindow = 256
	// lossWindow is what NAKs leave of it at least, and minWindow what timeouts do. With fewer packets under way, one lost
	// acknowledgement would more often be the only one, and cost a timeout.
	lossWindow = 32
	minWindow  = 16
	// shrinkFactor divides the window after a timeout, and growth is by how many packets it grows in the time of a window.
	shrinkFactor = 4
	growth       = 8

	// ackParts is how many acknowledgements a window of a long message's packets asks for, so that
	// it moves while the message is under way.
	ackParts = 4

	// readChunk is how many response packets one READ request asks for: READs have no
	// acknowledgements that could hold the responder back, so a long READ is several requests.
	readChunk = maxWindow / 4

	// maxReplays bounds the repeated READs and atomics that wait to be answered again, beside
	// the max_dest_rd_atomic new ones.
	maxReplays = 16
)

// A negative length would not compile: the window keeps clear of the PSNs' own limit.
var _ [psnWindow - maxWindow]struct{}

// Never is the time of a timeout that is not set.
const Never = time.Duration(math.MaxInt64)

// MaxDatagram is the space that Transmit needs: the longest datagram of a QP.
const MaxDatagram = wire.BTHSize + wire.AtomicETHSize + wire.ImmDtSize + maxPacketData + wire.ICRCSize
