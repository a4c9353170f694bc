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
	// maxWindow is how many packets a requester has unacknowledged at most, but for farWindow. Responses to its READs
	// count. At an MTU of 4096 it is 1 MiB, which a receive buffer of 4 MiB holds several times. A
	// window that losses have halved still takes two chunks of a READ.
	maxWindow = 256
	// farWindow is the same toward a peer that repeats selectively, where the round trip is farTrip at least. Beyond
	// maxWindow the window grows by farGrowth packets in its time, while the round trip is about the shortest. The peer
	// would not keep more than maxHeld.
	farWindow = maxHeld
	farTrip   = time.Millisecond
	farGrowth = 32
	// firstWindow is the window of a new connection to a peer that goes back: a chunk of a READ.
	firstWindow = readChunk
	// lossWindow is the least that NAKs leave of the window, unless the path holds less. With fewer packets under
	// way a lost acknowledgement would more often be the only one, and cost a probe.
	lossWindow = 32
	// restartWindow is the window once a probe has shown that what followed it is lost.
	restartWindow = 2
	// maxHeld is how many packets a responder keeps that have come before others. What it need not keep,
	// since it could be placed, does not count.
	maxHeld = 512
	// shortHeld is the longest payload of one that gets memory of its own size.
	shortHeld = 512
	// maxHellos is how often a peer is told that we understand acknowledged ranges.
	maxHellos = 8
	// calmTrips is after how many round trips the patience with packets that are overtaken becomes what was needed
	// in them.
	calmTrips = 64
	// maxSuspects is of how many packets that were taken for lost one knows when they come twice: about as many as a
	// window has of a bad path.
	maxSuspects = 64
	// leastProbe is after how much silence at least a probe goes. A peer's program may hold an
	// acknowledgement back for a nap, and hosts are busy elsewhere now and then.
	leastProbe = 4 * time.Millisecond
	// unknownProbe is in what part of the acknowledge timeout a probe goes while the round trip is unknown.
	unknownProbe = 4
	// silentProbes is how many probes must go without an answer before the window begins again at its least.
	silentProbes = 2
	// narrowWindow is the least that single losses leave of the window.
	narrowWindow = 8
	// backWindow is the least that a path which holds little leaves of the window toward a peer that goes back. Each
	// loss repeats about as many packets. One more brings such a path a tenth more.
	backWindow = 7
	// maxBackoff is how often the time from one probe to the next is doubled.
	maxBackoff = 16
	// queueTime is by how much a round trip must be longer than the shortest to tell of a queue. Hosts are late by
	// less, mostly.
	queueTime = time.Millisecond
	// queueTrips is in how many round trips a loss with such a queue narrows the window by it once. queueGrowth is
	// growth while there is a queue. With more of either CUBIC beside us gets less, and with less BBR gets more. Where
	// the queue is longer than the path round trips are long as well, and CUBIC grows by the clock: longTrips, longGrowth.
	queueTrips  = 42
	queueGrowth = 1
	longTrips   = 16
	longGrowth  = 2
	// unknownRoundTrip stands for the round trip that was not measured yet.
	unknownRoundTrip = time.Millisecond
	// rareLoss is for how many packets after a loss that made us go back the window does not grow beyond what the path
	// holds. Where losses are more frequent each would repeat what only waits.
	rareLoss = 256
	// growth is by how many packets the window grows in the time of a window.
	growth = 8

	// ackParts is how many acknowledgements a window of a long message's packets asks for, so that
	// the window moves while the message is under way.
	ackParts = 4

	// notifyInterval is the least time from one congestion notification to the next of a QP. It is that of
	// DCQCN.
	notifyInterval = 50 * time.Microsecond

	// paceQuantum is for how long, and trainBytes how much, of what the pace allows goes at once. Timers are
	// not finer. paceSlack is what a timer may be late by without loss of rate.
	paceQuantum = 50 * time.Microsecond
	paceSlack   = time.Millisecond
	// netHeaders is what a packet is longer on the wire: IPv4 and UDP.
	netHeaders = 28

	// A QP with several paths sends pathRun bytes by one before it chooses again: see paths.go. A path counts as idle,
	// and is tried, after pathIdleTrips round trips, and one that was left after pathPauseTrips, twice as long each time
	// that it is left again before pathTrust packets have come by it, up to pathPauseMost.
	pathRun        = 32 << 10
	pathIdleTrips  = 16
	pathPauseTrips = 8
	pathPauseMost  = 100 * time.Millisecond
	pathTrust      = 1024
	// pathMemory is over how many packets the losses of a path count, and pathLossLimit which part of lossScale is
	// too many, if another path has half of that.
	// pathAnswer is for how many packets an answer counts that the peer seems to have missed.
	pathMemory    = 64
	pathAnswer    = 9
	lossScale     = 1024
	pathLossLimit = lossScale / 8
	// A path gets less than others if its packets take pathLate times as long as usual, and pathNoise more. What it gets
	// changes by pathGrowth and pathShrink at most at a time, and pathLeastShare is the least.
	pathLate       = 1.25
	pathNoise      = 20 * time.Microsecond
	pathGrowth     = 1.25
	pathShrink     = 0.5
	pathLeastShare = 1.0 / 64
	// pathTripPart is the part of a path's latest trip that counts.
	pathTripPart = 4

	// deferBehind is how many packets of SENDs may leave before an acknowledgement that was deferred: a train.
	deferBehind = 8

	// carrierMost is how long an answer with the acknowledgement that it carries is at most, in bytes. Longer ones
	// gain little. Nor is it longer than the path MTU, so that it fits wherever a full packet does.
	carrierMost = 1024

	// What is posted waits for more while at least holdFrom packets are on their way, until it is as much as
	// those, holdMost packets, or a train, which has trainBytes.
	holdFrom   = 16
	holdMost   = 64
	trainBytes = 60 << 10

	// shortMessage is up to which length messages of UC and UD wait for company.
	shortMessage = 512

	// FastMost is how many bytes a SEND has at most that takes the fast path.
	FastMost = lendLeast - 1

	// fastPatience is after how long without progress recovery takes over from the fast path.
	fastPatience = 5 * time.Millisecond

	// lendMost is how many bytes a packet stands for at most whose payload is lent. The peer copies one while
	// the next is on its way.
	lendMost = 64 << 10

	// lendLeast is how many bytes are lent at least. To lend a payload costs what it costs to copy some two KiB, where
	// cores are near each other. Where they are far, each line that is copied through the lane takes as long as a
	// far cache does, and 1 KiB is three times as fast lent.
	lendLeast = 1 << 10

	// apartMost is how many packets a WRITE has at most to go as so many WRITEs while others are on their way.
	apartMost = 16

	// readChunk is how many response packets one READ request asks for. READ responses have no
	// acknowledgements that could hold the responder back, so a long READ is several requests.
	readChunk = maxWindow / 4

	// aliveBeats is at how many times in its period a keep-alive may ask. So it is early by that part at most.
	aliveBeats = 64

	// maxKeepAlive is the longest period of a keep-alive, so that no time overflows.
	maxKeepAlive = 365 * 24 * time.Hour

	// maxReplays bounds how many repeated READs and atomics wait to be answered again, beside
	// the max_dest_rd_atomic new ones.
	maxReplays = 16
)

// maxAhead is how many sequence numbers are outstanding at most, from the first that is missing on. The
// window counts only what is on its way.
const maxAhead = wire.MaxRanges

// A negative length would not compile: the window keeps clear of the PSNs' own limit.
var _ [psnWindow - maxAhead]struct{}

// Never is the time of a timeout that is not set.
const Never = time.Duration(math.MaxInt64)

// MaxDatagram is the space that Transmit needs: the longest datagram of a QP.
const MaxDatagram = wire.BTHSize + wire.AtomicETHSize + wire.ImmDtSize + maxPacketData + wire.ICRCSize
